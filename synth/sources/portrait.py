"""The portrait of a collection: funnel, wheel and treemap of its classes, in one HTML file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from synth.sources.state import REASONS

SIZE = 640  # of the wheel, pixels
RINGS = (90, 190, 300)  # radii: hole, first level, second level
WIDTH, HEIGHT = 1000, 560  # of the treemap
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1060px;color:#222;background:#fff}"
    "table{border-collapse:collapse}td,th{padding:.15em .9em .15em 0;text-align:left;vertical-align:top}"
    "td.n{text-align:right}text{font-family:system-ui,sans-serif}svg{max-width:100%;height:auto}"
    "@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}}"
)


def page(funnel: Mapping[str, Any], mapping: Sequence[Mapping[str, Any]]) -> str:
    """The whole page: counts of the build, and classes of the mapping (their ``themes`` are the sizes)."""
    tree = classes(mapping)
    rows = "".join(f"<tr><td>{escape(k)}</td><td class=n>{n:,}</td></tr>" for k, n in steps(funnel))
    table = "".join(
        f"<tr><td>{escape(first) if i == 0 else ''}</td><td>{escape(second)}</td><td class=n>{n}</td></tr>"
        for first, seconds in tree.items()
        for i, (second, n) in enumerate(seconds)
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Themes</title><style>{STYLE}</style>'
        f"<h1>{funnel['themes']:,} themes in {len(tree)} classes</h1><h2>Funnel</h2><table>{rows}</table>"
        f"<h2>Wheel</h2>{wheel(tree)}<h2>Treemap</h2>{treemap(tree)}"
        "<h2>Classes</h2><table><tr><th>first level</th><th>second level</th><th>themes</th></tr>"
        f"{table}</table></html>\n"
    )


def classes(mapping: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, int]]]:
    """{first level: [(second level, themes)]}, largest first."""
    tree: dict[str, list[tuple[str, int]]] = {}
    for record in mapping:
        tree.setdefault(record["first_level"], []).append((record["second_level"], int(record["themes"])))
    ordered = sorted(tree.items(), key=lambda item: (-sum(n for _, n in item[1]), item[0]))
    return {first: sorted(seconds, key=lambda s: (-s[1], s[0])) for first, seconds in ordered}


def steps(funnel: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The funnel as lines of words and counts; what falls out is negative."""
    lines = [("candidates read", funnel["read"])]
    again = funnel["read"] - funnel["distinct_keys"]
    lines += [("read twice under one key", -again)] if again else []
    lines += [(f"refused: {REASONS.get(r, r)}", -n) for r, n in funnel["refused"].items()]
    lines += [("exact duplicates", -funnel["exact_duplicates"])] if funnel["exact_duplicates"] else []
    lines += [(f"near-duplicates: {why}", -n) for why, n in funnel["near_duplicates"].items()]
    return [*lines, ("themes", funnel["themes"])]


def wheel(tree: Mapping[str, Sequence[tuple[str, int]]]) -> str:
    """Two rings: first-level classes inside, second-level ones outside; sizes and names on hover."""
    total = sum(n for seconds in tree.values() for _, n in seconds) or 1
    parts, angle = [], 0.0
    for index, (first, seconds) in enumerate(tree.items()):
        whole = sum(n for _, n in seconds) / total
        parts.append(
            _arc(
                angle,
                angle + whole,
                RINGS[0],
                RINGS[1],
                _colour(index, 48),
                f"{first}: {sum(n for _, n in seconds)}",
            )
        )
        parts.append(_label(angle + whole / 2, first) if whole > 0.025 else "")
        for k, (second, n) in enumerate(seconds):
            share = n / total
            colour = _colour(index, 58 + 9 * (k % 3))
            parts.append(_arc(angle, angle + share, RINGS[1], RINGS[2], colour, f"{first} / {second}: {n}"))
            angle += share
    half = SIZE / 2
    return (
        f'<svg viewBox="{-half} {-half} {SIZE} {SIZE}" width="{SIZE}" role="img" aria-label="Wheel">'
        f'{"".join(parts)}<text text-anchor="middle" dy=".35em" font-size="26" fill="currentColor">'
        f"{total:,}</text></svg>"
    )


def treemap(tree: Mapping[str, Sequence[tuple[str, int]]]) -> str:
    """Rectangles by size: first-level classes, split into their second-level ones."""
    parts = []
    boxes = squares([sum(n for _, n in seconds) for seconds in tree.values()], 0, 0, WIDTH, HEIGHT)
    for index, ((first, seconds), box) in enumerate(zip(tree.items(), boxes, strict=True)):
        x, y, w, h = box
        for k, ((second, n), inner) in enumerate(
            zip(seconds, squares([n for _, n in seconds], *box), strict=True)
        ):
            parts.append(_box(inner, _colour(index, 58 + 9 * (k % 3)), f"{first} / {second}: {n}"))
        if w > 60 and h > 24:
            room = int(w / 7)
            short = first if len(first) <= room else first[: max(room - 1, 1)] + "…"
            parts.append(
                f'<text x="{x + 5:.1f}" y="{y + 16:.1f}" font-size="12" fill="#111">{escape(short)}</text>'
            )
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="Treemap">'
    return f"{head}{''.join(parts)}</svg>"


def squares(
    sizes: Sequence[int], x: float, y: float, w: float, h: float
) -> list[tuple[float, float, float, float]]:
    """Rectangles (x, y, width, height) of these areas: cut in halves along the longer side."""
    if not sizes:
        return []
    if len(sizes) == 1:
        return [(x, y, w, h)]
    total, cut, most = sum(sizes) or 1, 0, 0
    while cut < len(sizes) - 1 and (cut == 0 or (most + sizes[cut]) * 2 <= total):
        most += sizes[cut]
        cut += 1
    part = most / total
    if w >= h:
        first, rest = (x, y, w * part, h), (x + w * part, y, w * (1 - part), h)
    else:
        first, rest = (x, y, w, h * part), (x, y + h * part, w, h * (1 - part))
    return [*squares(sizes[:cut], *first), *squares(sizes[cut:], *rest)]


def _arc(start: float, end: float, inner: float, outer: float, colour: str, title: str) -> str:
    """A piece of a ring; start and end in turns."""
    end = min(end, start + 0.99999)
    (a, b), (c, d) = _point(start, outer), _point(end, outer)
    (e, f), (g, h) = _point(end, inner), _point(start, inner)
    large = int(end - start > 0.5)
    path = (
        f"M{a:.2f} {b:.2f}A{outer} {outer} 0 {large} 1 {c:.2f} {d:.2f}"
        f"L{e:.2f} {f:.2f}A{inner} {inner} 0 {large} 0 {g:.2f} {h:.2f}Z"
    )
    style = f'fill="{colour}" stroke="#fff" stroke-width=".7"'
    return f'<path d="{path}" {style}><title>{escape(title)}</title></path>'


def _label(turn: float, words: str) -> str:
    """Words along the middle of the inner ring, never upside down."""
    degrees = turn * 360 - 90
    flip = 180 if 90 < degrees % 360 < 270 else 0
    x, y = _point(turn, (RINGS[0] + RINGS[1]) / 2)
    short = words if len(words) <= 17 else words[:16] + "…"
    return (
        f'<text transform="translate({x:.1f} {y:.1f}) rotate({degrees + flip:.1f})" '
        'text-anchor="middle" dy=".35em" '
        f'font-size="10.5" fill="#111">{escape(short)}</text>'
    )


def _point(turn: float, radius: float) -> tuple[float, float]:
    angle = 2 * math.pi * turn - math.pi / 2
    return radius * math.cos(angle), radius * math.sin(angle)


def _box(box: tuple[float, float, float, float], colour: str, title: str) -> str:
    x, y, w, h = box
    place = f'x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}"'
    return (
        f'<rect {place} fill="{colour}" stroke="#fff" stroke-width=".8"><title>{escape(title)}</title></rect>'
    )


def _colour(index: int, light: int) -> str:
    return f"hsl({index * 137.5 % 360:.0f} 45% {light}%)"  # the golden angle: neighbours differ
