"""The charts of the report as inline SVG: strings in, strings out.

Colours and fonts come from report.css by class names (``s0``, ``s1``, ... for series), so the charts follow
the light and the dark theme. A series has a colour and a mark of its own, so that colour is never needed to
tell two apart. Every mark carries a ``<title>``, which browsers show on hover and screen readers read.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence

from synth.types import Rate

Point = tuple[float, float]

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def esc(value: object) -> str:
    """Text that is safe in HTML and SVG; characters that XML forbids become a replacement mark."""
    return html.escape(_FORBIDDEN.sub("\ufffd", str(value)))


def percent(value: float) -> str:
    return f"{100 * value:.0f}%"


Gain = tuple[float, float, float]  # mean over tasks, and its 95% interval (arena.rates.rise)


def gain_text(gain: Gain) -> str:
    """Such as "+4.7 points [+1.5, +7.7]"."""
    return "{:+.1f} points [{:+.1f}, {:+.1f}]".format(*(100 * value for value in gain))


def interval(rate: Rate) -> str:
    return f"{percent(rate.passed)} [{100 * rate.low:.0f}, {100 * rate.high:.0f}]"


def _svg(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    head = f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{esc(label)}">'
    return head + "".join(parts) + "</svg>"


def mark(series: int, x: float, y: float, size: float = 5.0) -> str:
    """The mark of a series: circle, square, diamond, triangle, in turn."""
    shape = series % 4
    if shape == 0:
        return f'<circle class="m s{series}" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}"/>'
    if shape == 1:
        side = 1.8 * size
        return (
            f'<rect class="m s{series}" x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" '
            f'width="{side:.1f}" height="{side:.1f}" rx="1.5"/>'
        )
    r = 1.3 * size
    corners = [(0, -r), (r, 0), (0, r), (-r, 0)] if shape == 2 else [(0, -r), (r, 0.8 * r), (-r, 0.8 * r)]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon class="m s{series}" points="{points}"/>'


def legend(names: Sequence[str]) -> str:
    """One line that names the series."""
    items = "".join(
        f'<span><svg width="16" height="14" aria-hidden="true">{mark(i, 8, 7)}</svg>{esc(name)}</span>'
        for i, name in enumerate(names)
    )
    return f'<p class="legend">{items}</p>'


def dot_chart(rows: Mapping[str, Sequence[Rate | None]], names: Sequence[str]) -> str:
    """Dots with 95% intervals on a scale of 0 to 100%.

    Args:
        rows: label -> one rate a series (None where a round didn't measure it).
        names: of the series, for the titles.
    """
    width, left, right, top, step = 760, 190, 56, 10, 17
    heights = 20 + step * max(len(names) - 1, 0) + 14
    height = top + heights * len(rows) + 34
    x = [left + (width - left - right) * share for share in (0, 0.25, 0.5, 0.75, 1)]
    parts = [
        f'<line class="grid" x1="{p:.1f}" x2="{p:.1f}" y1="{top}" y2="{height - 30}"/>'
        f'<text class="tick" x="{p:.1f}" y="{height - 12}" text-anchor="middle">{25 * i}%</text>'
        for i, p in enumerate(x)
    ]
    for number, (label, rates) in enumerate(rows.items()):
        base = top + heights * number
        if number:
            parts.append(f'<line class="row" x1="0" x2="{width}" y1="{base}" y2="{base}"/>')
        parts.append(
            f'<text class="label" x="{left - 16}" y="{base + heights / 2 + 4.5:.1f}" '
            f'text-anchor="end">{esc(_cut(label, 26))}</text>'
        )
        for series, rate in enumerate(rates):
            if rate is not None:
                y = base + 17 + step * series
                parts.append(_dot(series, rate, y, left, width - left - right, names[series], label))
    return _svg(width, height, f"Pass rates with 95% intervals: {', '.join(rows)}", parts)


def _dot(series: int, rate: Rate, y: float, left: float, span: float, name: str, label: str) -> str:
    low, mid, high = (left + span * value for value in (rate.low, rate.passed, rate.high))
    title = f"{label}, {name}: {interval(rate)}, {rate.tasks} tasks, {rate.episodes} episodes"
    return (
        f"<g><title>{esc(title)}</title>"
        f'<line class="bar s{series}" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f"{mark(series, mid, y)}"
        f'<text class="value" x="{high + 10:.1f}" y="{y + 4:.1f}">{percent(rate.passed)}</text></g>'
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def line_chart(title: str, series: Mapping[str, Sequence[Point]], share: bool = False) -> str:
    """Lines over training steps.

    Args:
        title: above the chart.
        series: name -> (step, value) points; steps ascend.
        share: values are shares of 1: the scale is 0 to 100%.
    """
    width, height, left, right, top, bottom = 380, 190, 46, 14, 30, 26
    points = [p for line in series.values() for p in line if math.isfinite(p[1])]
    if not points:
        return ""
    x_low, x_high = min(p[0] for p in points), max(p[0] for p in points)
    ticks = (
        [0, 0.25, 0.5, 0.75, 1] if share else nice_ticks(min(p[1] for p in points), max(p[1] for p in points))
    )

    def at(p: Point) -> Point:
        across = (p[0] - x_low) / ((x_high - x_low) or 1)
        up = (p[1] - ticks[0]) / ((ticks[-1] - ticks[0]) or 1)
        return left + (width - left - right) * across, height - bottom - (height - top - bottom) * up

    parts = [f'<text class="title" x="0" y="14">{esc(title)}</text>']
    for tick in ticks:
        y = at((x_low, tick))[1]
        words = percent(tick) if share else f"{tick:g}"
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{words}</text>')
    for step, anchor in ((x_low, "start"), (x_high, "end")):
        x = at((step, ticks[0]))[0]
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{height - 8}" text-anchor="{anchor}">step {step:g}</text>'
        )
    for number, (name, line) in enumerate(series.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, (p for p in line if math.isfinite(p[1]))))
        # Series 0 is "before training" in the other charts, so lines begin with the colour of series 1.
        parts.append(
            f'<polyline class="line s{number + 1}" points="{path}"><title>{esc(name)}</title></polyline>'
        )
    return _svg(width, height, title, parts)


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers that enclose low..high, about ``count`` of them."""
    if high <= low:
        low, high = low - abs(low or 1) * 0.5, high + abs(high or 1) * 0.5
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]
