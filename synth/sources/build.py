"""Raw theme data to licensed, filtered, distinct and placed themes, in one go.

Stages: read -> license and filter -> exact duplicates -> near-duplicates -> classes -> write. What each
stage costs in candidates is the funnel. ``OUT`` afterwards holds

* ``themes.jsonl``: one :class:`synth.types.Theme` a line, class names in its spec;
* ``refused.jsonl`` and ``duplicates.jsonl``: everything left out, with reason and evidence;
* ``files.jsonl``: what became of every file;
* ``taxonomy/``: the fitted classes and ``mapping.json``, the names that people may edit;
* ``funnel.json`` and ``portrait.html``.

A killed build goes on: read files and fitted classes are kept in ``OUT/work`` under a key of what decides
them. After an edit of ``mapping.json`` the same command only writes the names anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from synth.classes import SECOND_LEVEL, Namer, Place, Taxonomy, fit
from synth.errors import CallerError
from synth.sources import dedup, files, licenses, portrait, state
from synth.sources.dedup import Pair
from synth.sources.files import Note
from synth.sources.found import Found
from synth.types import Theme

VERSION = 2  # of readers and rules: raise it when either changes what comes out
Progress = Callable[[int, int, str], None]  # done, total, what


@dataclass(frozen=True)
class Built:
    """What a build came to."""

    themes: list[Theme]
    funnel: dict[str, Any]
    notes: list[Note]
    pairs: list[Pair]


def build(
    paths: Sequence[Path],
    out: Path,
    *,
    license: str | None = None,
    classes: int = SECOND_LEVEL,
    namer: Namer | None = None,
    model: str | None = None,
    progress: Progress = lambda done, total, what: None,
) -> Built:
    """Run all stages over the data in ``paths`` and write ``out``.

    Args:
        paths: files and folders in any known layout.
        out: made if it isn't there; a build of the same data goes on in it.
        license: the caller's word for candidates whose source states none.
        classes: of the second level.
        namer: writes class names, such as a language model; without one they are made of distinctive terms.
        model: a sentence model for the taxonomy (:mod:`synth.sentences`); TF-IDF without one.
        progress: called as things get done.

    Raises:
        CallerError: no data, nothing left of them, or a damaged ``mapping.json``.
    """
    (out / "work").mkdir(parents=True, exist_ok=True)
    found, notes = _read(files.inputs(paths), out / "work", progress)
    candidates = _distinct_keys(found)
    kept, refused = _filter(candidates, license, progress)
    unique, pairs = dedup.exact([f for f, _ in kept])
    unique, close = dedup.near(unique, lambda done, total: progress(done, total, "near-duplicates"))
    if not unique:
        left = f"nothing is left of {len(found)} candidates ({_common(refused)})"
        raise CallerError(f"{paths[0]}: {left}; add data, or name a --license")
    unique.sort(key=lambda f: f.key)
    taxonomy, places = _classes(unique, out, classes, namer, model, progress)
    themes = _themes(unique, places, {f.key: told for f, told in kept}, license)
    funnel = _funnel(found, candidates, refused, pairs, close, themes, places)
    progress(0, 1, "writing")
    _write_lines(out / "files.jsonl", (asdict(note) for note in notes))
    _write_lines(out / "refused.jsonl", refused)
    _write_lines(out / "duplicates.jsonl", (pair.to_json() for pair in [*pairs, *close]))
    _write(out / "themes.jsonl", "".join(theme.to_json() + "\n" for theme in themes))
    _write(out / "funnel.json", json.dumps(funnel, indent=1, ensure_ascii=False) + "\n")
    _write(out / "portrait.html", portrait.page(funnel, taxonomy.mapping))
    return Built(themes, funnel, notes, [*pairs, *close])


def text_of_theme(theme: Theme) -> str:
    """The same text of a theme, so that newcomers are placed as the fitted ones were."""
    spec = theme.spec
    tools = tuple(t if isinstance(t, dict) else {"name": str(t)} for t in spec.get("tools") or ())
    return Found(
        key=theme.id,
        source=theme.source,
        origin="",
        name=theme.name,
        description=theme.description,
        label=str(spec.get("label") or ""),
        tools=tuple(t for t in tools if "name" in t),  # type: ignore[arg-type]
    ).words()


def _read(paths: Sequence[Path], work: Path, progress: Progress) -> tuple[list[Found], list[Note]]:
    """All candidates of all files; each file's are kept under a hash of its bytes and neighbours."""
    found: list[Found] = []
    notes: list[Note] = []
    for number, path in enumerate(paths, start=1):
        held = work / f"read-{_fingerprint(path)}.jsonl"
        if held.exists():
            head, *rows = held.read_text("utf-8").splitlines()
            note = Note(**json.loads(head))
            some = [Found.model_validate_json(row) for row in rows]
        else:
            try:
                some, note = files.read_file(path)
            except CallerError as err:  # a broken document: named, and read again next time
                notes.append(Note(str(path), "", damaged=1, remark=str(err)))
                continue
            rows = [json.dumps(asdict(note)), *(f.model_dump_json(exclude_defaults=True) for f in some)]
            _write(held, "\n".join(rows) + "\n")
        found += some
        notes.append(note)
        progress(number, len(paths), f"reading {path.name}")
    return found, notes


def _distinct_keys(found: Sequence[Found]) -> list[Found]:
    """One candidate a key; of two readings of one thing (a page and a detail) the better documented."""
    best: dict[str, Found] = {}
    for candidate in found:
        if candidate.key not in best or dedup.quality(candidate) < dedup.quality(best[candidate.key]):
            best[candidate.key] = candidate
    return list(best.values())


def _filter(
    candidates: Sequence[Found], license: str | None, progress: Progress
) -> tuple[list[tuple[Found, str]], list[dict[str, str]]]:
    """(kept with their signs of state, refused with reason and evidence)."""
    kept, refused = [], []
    for number, found in enumerate(candidates, start=1):
        reason, told = state.judge(found)
        if not reason and not licenses.permissive(licenses.spdx(found.license or license)):
            reason, told = "license", found.license or "none stated"
        if reason:
            refused.append({"key": found.key, "name": found.name, "reason": reason, "evidence": told})
        else:
            kept.append((found, told))
        if number % 200 == 0 or number == len(candidates):
            progress(number, len(candidates), "filter")
    return kept, refused


def _classes(
    unique: Sequence[Found],
    out: Path,
    classes: int,
    namer: Namer | None,
    model: str | None,
    progress: Progress,
) -> tuple[Taxonomy, list[Place]]:
    """The fitted taxonomy; one that was fitted on the same texts is read back with its edited names."""
    texts = [found.words() for found in unique]
    made = [VERSION, classes, texts, *([model] if model else []), *([namer.label] if namer else [])]
    key = hashlib.sha256(json.dumps(made).encode()).hexdigest()
    folder, mark = out / "taxonomy", out / "taxonomy" / "key.txt"
    progress(0, 1, "classes")
    if mark.exists() and mark.read_text("utf-8") == key:
        taxonomy = Taxonomy.load(folder)
        return taxonomy, taxonomy.place(texts)
    mark.unlink(missing_ok=True)
    titles = [f"{found.name}. {found.description}" for found in unique]
    origins = [found.origin for found in unique]
    taxonomy, places = fit(texts, titles, origins, classes=classes, namer=namer, model=model)
    taxonomy.save(folder)
    _write(mark, key)
    return taxonomy, places


def _themes(
    unique: Sequence[Found], places: Sequence[Place], told: dict[str, str], license: str | None
) -> list[Theme]:
    """Theme records; ids are short words that can name a folder."""
    taken: Counter[str] = Counter()
    themes = []
    for found, place in zip(unique, places, strict=True):
        stem = re.sub(r"[^a-z0-9]+", "_", found.name.lower()).strip("_")[:48] or "theme"
        taken[stem] += 1
        spec = {
            "first_level": place.first_level,
            "second_level": place.second_level,
            "likeness": place.likeness,
            "origin": found.origin,
            "key": found.key,
            "url": found.url,
            "label": found.label,
            "signs_of_state": told[found.key],
            "tools": [tool.model_dump(exclude_defaults=True) for tool in found.tools],
            "text": found.text,
        }
        themes.append(
            Theme(
                id=stem
                if taken[stem] == 1
                else f"{stem}_{hashlib.sha256(found.key.encode()).hexdigest()[:6]}",
                source=found.source,
                name=found.name,
                description=found.description,
                spec={field: value for field, value in spec.items() if value},
                license=licenses.spdx(found.license or license) or "",
            )
        )
    return themes


def _funnel(
    found: Sequence[Found],
    candidates: Sequence[Found],
    refused: Sequence[dict[str, str]],
    same: Sequence[Pair],
    close: Sequence[Pair],
    themes: Sequence[Theme],
    places: Sequence[Place],
) -> dict[str, Any]:
    """Counts of every stage, in order."""
    reasons = Counter(record["reason"] for record in refused)
    return {
        "read": len(found),
        "read_by_origin": dict(Counter(f.origin for f in found).most_common()),
        "distinct_keys": len(candidates),
        "refused": {reason: reasons[reason] for reason in state.REASONS if reasons[reason]},
        "exact_duplicates": len(same),
        "near_duplicates": dedup.rate(close),
        "themes": len(themes),
        "themes_by_source": dict(Counter(theme.source for theme in themes).most_common()),
        "themes_by_origin": dict(Counter(str(theme.spec["origin"]) for theme in themes).most_common()),
        "first_level_classes": len({p.first_level for p in places}),
        "second_level_classes": len({p.second_level for p in places}),
        "by_first_level": dict(Counter(p.first_level for p in places).most_common()),
    }


def _common(refused: Sequence[dict[str, str]]) -> str:
    """The commonest reasons in words."""
    counts = Counter(record["reason"] for record in refused).most_common(3)
    return "; ".join(f"{n} {reason}" for reason, n in counts) or "no file of a known layout"


def _fingerprint(path: Path) -> str:
    """Of a file, of what is read with it, and of the readers."""
    digest = hashlib.sha256(f"{VERSION} {path}".encode())
    for neighbour in (path, path.parent / "provenance.jsonl", path.parent / "tools.json"):
        digest.update(neighbour.read_bytes() if neighbour.exists() else b"-")
    return digest.hexdigest()[:24]


def _write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    _write(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, "utf-8")
    os.replace(beside, path)
