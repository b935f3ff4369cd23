"""Records out of whatever a foreign tool answers: the prelude of solutions over imported servers.

Standard library only and self-contained, because solutions carry its source into their sandbox.
"""

from __future__ import annotations

from typing import Any


def records(value: Any) -> list[dict[str, Any]]:
    """All records in a result, field names in lower case with underscores.

    Read are: objects of scalars, wherever they are nested, also in JSON inside a text; ``columns`` beside
    ``rows``; a list of rows under a row of headings; and texts of ``Label: value`` lines.
    """
    import json
    import re

    def plain(name):
        return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(name)).lower()).strip(
            "_"
        )

    def number(text):
        if re.fullmatch(r"-?\d{1,15}(?:\.\d{1,9})?", text):
            return float(text) if "." in text else int(text)
        return text

    def of_text(text):
        found, current = [], {}
        for line in text.splitlines():
            match = re.fullmatch(r"\s*([A-Za-z][A-Za-z _-]{0,40}):\s+(\S.*?)\s*", line)
            if not match:
                continue
            label = plain(match.group(1))
            if label in current:
                found.append(current)
                current = {}
            current[label] = number(match.group(2))
        return [*found, current] if current else found

    def is_grid(rows):
        return (
            len(rows) > 1
            and all(isinstance(row, list) for row in rows)
            and all(isinstance(cell, str) and cell for cell in rows[0])
            and len(set(rows[0])) == len(rows[0])
        )

    def walk(item, depth):
        if depth > 8:
            return []
        if isinstance(item, str):
            if item.strip()[:1] in ("{", "["):
                try:
                    return walk(json.loads(item), depth + 1)
                except ValueError:
                    return of_text(item)
            return of_text(item)
        if isinstance(item, list):
            if is_grid(item):
                return [dict(zip(map(plain, item[0]), row, strict=False)) for row in item[1:]]
            return [record for part in item for record in walk(part, depth + 1)]
        if not isinstance(item, dict):
            return []
        names, rows = item.get("columns"), item.get("rows")
        if (
            isinstance(names, list)
            and isinstance(rows, list)
            and names
            and all(isinstance(n, str) for n in names)
        ):
            return [dict(zip(map(plain, names), row, strict=False)) for row in rows if isinstance(row, list)]
        own = {plain(k): v for k, v in item.items() if not isinstance(v, dict | list)}
        below = []
        for name, part in item.items():
            if isinstance(part, list) and part and all(isinstance(text, str) for text in part):
                own[plain(name)] = part
                for found in of_text("\n".join(part)):
                    own = {**found, **own}
            else:
                below += walk(part, depth + 1)
        return [own, *below] if len(own) > 1 or not below else below

    return walk(value, 0)
