"""What the environments of a run are about: counts and a wheel of their classes, as a section of the report.

Comes from: the taxonomy paths of the run's manifests (:mod:`synth.taxonomy`). Drawn by
:mod:`synth.sources.portrait`, as the portrait of a collection of themes is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from arena.charts import esc
from arena.sections import table
from synth.sources.portrait import classes, wheel


def portrait(paths: Sequence[tuple[str, str]]) -> str:
    """The section; an empty string without environments that have a class.

    Args:
        paths: (first level, second level) of each environment.
    """
    if not paths:
        return ""
    counts = Counter(paths)
    tree = classes(
        [{"first_level": f, "second_level": s, "themes": count} for (f, s), count in counts.items()]
    )
    rows = [
        (esc(first) if i == 0 else "", esc(second), str(count))
        for first, seconds in tree.items()
        for i, (second, count) in enumerate(seconds)
    ]
    told = (
        f"{len(paths)} environments in {len(tree)} classes of the first level, {len(counts)} of the second."
    )
    return (
        f"<section><h2>What the environments are about</h2><p class='soft'>{told}</p>{wheel(tree)}"
        f"{table(('first level', 'second level', 'environments'), rows, numbers=(2,))}</section>"
    )
