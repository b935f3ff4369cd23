"""The bodies of ``agent-world themes build | fetch | place | graph``; imported lazily by the command line.

Each returns an exit code. With ``as_json`` the last line printed is one JSON object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Thousands of small matrix products: threads that wait for each other make them ten times slower on a busy
# machine (ours, measured: 14 s against 114 s for the fit of 3,441 themes). Must come before NumPy.
for _variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402
from rich.table import Table  # noqa: E402

from arena.commands import Report, load_themes, screen  # noqa: E402

if TYPE_CHECKING:
    from synth.classes import Namer
    from synth.graph_bench import Linker
    from synth.sources.dedup import Pair

BAR = 30  # characters of the largest class in the portrait
PAIRS = 6  # near-duplicates that a build shows; all are in its file
GOAL = 0.9  # F1 of a domain with declared types (issue text; ours)


def run_build(
    data: Sequence[Path],
    out: Path,
    license: str | None,
    classes: int,
    as_json: bool,
    model: str | None = None,
    llm_file: Path | None = None,
) -> int:
    """Build themes and print the funnel and the classes; a model names them where its settings are given."""
    from synth.sources import portrait
    from synth.sources.build import build

    with stages() as progress:
        built = build(
            data,
            out,
            license=license,
            classes=classes,
            namer=_namer(llm_file),
            model=model,
            progress=progress,
        )
    damaged = [note for note in built.notes if note.damaged or not note.layout]
    if as_json:
        print(json.dumps({"out": str(out), **built.funnel, "files": [note.__dict__ for note in damaged]}))
        return 0
    for note in damaged:
        if note.damaged or note.remark == "no known layout":
            what = note.remark + (f" ({note.damaged} damaged)" if note.damaged else "")
            print(f"{note.file}: {what}")
    table = Table("stage", "candidates")
    table.columns[1].justify = "right"
    for words, count in portrait.steps(built.funnel):
        table.add_row(words, f"{count:,}")
    screen().print(table)
    screen().print(_wheel(out))
    by_class = built.funnel["by_first_level"]
    print(f"{len(by_class)} classes of the first level, {built.funnel['second_level_classes']} of the second")
    if llm_file:
        print(_named_by(out))
    show_pairs(built.pairs)
    print(f"pairs of duplicates, all of them: {out}/duplicates.jsonl   what was refused: {out}/refused.jsonl")
    print(f"themes: {out}/themes.jsonl   portrait: {out}/portrait.html   names: {out}/taxonomy/mapping.json")
    return 0


def _wheel(out: Path) -> Table:
    """The portrait in text: a row a first-level class, with its second-level classes."""
    from synth.classes import read_mapping
    from synth.sources import portrait

    path = out / "taxonomy" / "mapping.json"
    tree = portrait.classes(read_mapping(path, len(json.loads(path.read_text("utf-8")))))
    sizes = {first: sum(n for _, n in seconds) for first, seconds in tree.items()}
    table = Table("first level", "themes", "", "second level")
    table.columns[1].justify = "right"
    for first, seconds in tree.items():
        bar = "█" * max(1, round(BAR * sizes[first] / max(sizes.values())))
        table.add_row(first, str(sizes[first]), bar, "; ".join(f"{name} {n}" for name, n in seconds))
    return table


def show_pairs(pairs: Sequence[Pair], most: int = PAIRS) -> None:
    """How many duplicates there are, by reason, and some near ones from the clearest to the most doubtful."""
    from synth.sources.dedup import rate

    near = sorted((p for p in pairs if p.similarity < 1.0), key=lambda p: (-p.similarity, p.dropped))
    print("duplicates: " + ("; ".join(f"{n:,} {why}" for why, n in rate(pairs).items()) or "none"))
    step = max(1, len(near) // most)
    for pair in near[::step][:most]:
        print(f"  {pair.similarity:.2f} {pair.why}: {pair.dropped} dropped for {pair.kept}")


def run_fetch(
    registry: str,
    out: Path,
    url: str | None,
    names: Sequence[str],
    most: int | None,
    rate: float,
    as_json: bool,
) -> int:
    """Fetch a registry into one JSONL."""
    from dataclasses import replace

    from synth.sources.http import Client
    from synth.sources.registries import REGISTRIES, crawl, headers_of

    client = replace(Client(headers=headers_of(REGISTRIES.get(registry))), rate=rate)
    out.parent.mkdir(parents=True, exist_ok=True)
    with stages() as progress:
        count = crawl(registry, out, base=url, names=names, most=most, client=client, progress=progress)
    print(json.dumps({"out": str(out), "entries": count}) if as_json else f"{count:,} entries: {out}")
    return 0


def run_place(built: Path, file: Path | None, as_json: bool) -> int:
    """Place themes in the taxonomy of a build."""
    from synth.classes import Taxonomy
    from synth.sources.build import text_of_theme

    themes = load_themes(file)
    taxonomy = Taxonomy.load(built / "taxonomy")
    places = taxonomy.place([text_of_theme(theme) for theme in themes])
    if as_json:
        print(json.dumps({"places": {t.id: p.__dict__ for t, p in zip(themes, places, strict=True)}}))
        return 0
    table = Table("theme", "first level", "second level", "likeness")
    for theme, p in zip(themes, places, strict=True):
        table.add_row(theme.id, p.first_level, p.second_level, f"{p.likeness:.2f}")
    screen().print(table)
    return 0


def run_graph(files: Sequence[Path], as_json: bool, llm_file: Path | None = None) -> int:
    """Score inferred tool graphs; 1 when a domain with declared types falls short of :data:`GOAL`.

    With a model, each domain also has the scores of its links, and of both; the goal is the schemas'.
    """
    from synth.graph_bench import taskbench

    scores = taskbench(files, _linker(llm_file) if llm_file else None)
    met = all(s.f1 >= GOAL for s in scores if s.declares_types and s.by == "schemas")
    if as_json:
        print(json.dumps({"domains": [s.to_json() for s in scores], "goal": GOAL, "met": met}))
        return 0 if met else 1
    table = Table(
        "domain",
        "links by",
        "tools",
        "types declared",
        "gold",
        "inferred",
        "right",
        "precision",
        "recall",
        "F1",
    )
    for s in scores:
        figures = (f"{s.precision:.3f}", f"{s.recall:.3f}", f"{s.f1:.3f}")
        declared = "yes" if s.declares_types else "no"
        table.add_row(
            s.domain, s.by, str(s.tools), declared, str(s.gold), str(s.inferred), str(s.right), *figures
        )
    screen().print(table)
    return 0 if met else 1


def _namer(llm_file: Path | None) -> Namer | None:
    if llm_file is None:
        return None
    from synth.author.llm import LLM
    from synth.author.online.namer import LLMNamer
    from synth.author.settings import Settings

    return LLMNamer(LLM(Settings.read(llm_file)))


def _named_by(out: Path) -> str:
    """How many classes a model named; the others keep the names that their terms give."""
    rows = json.loads((out / "taxonomy" / "mapping.json").read_text("utf-8"))
    by = sorted({row["named_by"] for row in rows if "named_by" in row})
    named = sum("named_by" in row for row in rows)
    return f"{named} of {len(rows)} second-level classes named by {', '.join(by) or 'the model'}"


def _linker(llm_file: Path) -> Linker:
    from synth.author.llm import LLM
    from synth.author.online.linker import link_tools
    from synth.author.settings import Settings

    llm = LLM(Settings.read(llm_file))
    return lambda tools: link_tools(llm, tools)


@contextmanager
def stages() -> Iterator[Report]:
    """A progress bar whose label is the stage; on standard error, on a terminal only."""
    from rich.console import Console

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        line = progress.add_task("", total=None)

        def report(done: int, total: int, what: str = "") -> None:
            progress.update(line, completed=done, total=total or None, description=what[:40])

        yield report
