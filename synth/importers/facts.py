"""What the state of a foreign server says, as plain records: the facts that tasks ask about.

The lens shows tables and files as a program keeps them; people speak of records. Standard library only, and
one pure function, because verifiers of imported environments carry its source and run it on the states that
they judge:

    a sheet of cells           -> one record a row, under the headings of its first row
    lines with a ``type``      -> a table for each type, without the columns that the type does not use
    texts of ``Label: value``  -> one record a file, in a table named like the folder
    lists of ``label: value``  -> columns beside the list
    any other table            -> as it is
"""

from __future__ import annotations

from typing import Any


def logical(
    tables: dict[str, list[dict[str, Any]]], files: dict[str, bytes]
) -> dict[str, list[dict[str, Any]]]:
    """Records by table name; values as they are, texts of files as text.

    Args:
        tables: the lens' tables.
        files: the lens' files by path.
    """
    import json
    import re

    def spread(row):
        """A row with the ``label: value`` texts of its lists as columns of their own."""
        more = {}
        for value in row.values():
            if isinstance(value, str) and value[:2] == '["':
                try:
                    more |= labels("\n".join(map(str, json.loads(value))))
                except ValueError:
                    continue
        return {**more, **row}

    def labels(text):
        found = {}
        for line in text.splitlines():
            match = re.fullmatch(r"\s*([A-Za-z][A-Za-z _-]{0,40}):\s+(\S.*?)\s*", line)
            if match:
                value = match.group(2)
                number = re.fullmatch(r"-?\d{1,15}(?:\.\d{1,9})?", value)
                found[match.group(1).strip().lower().replace(" ", "_")] = (
                    (float(value) if "." in value else int(value)) if number else value
                )
        return found

    result = {}
    for name, rows in tables.items():
        if rows and set(rows[0]) == {"file", "sheet", "cell", "value"}:
            grids = {}
            for row in rows:
                place = re.fullmatch(r"([A-Z]+)(\d+)", row["cell"] or "")
                if place:
                    grid = grids.setdefault(row["sheet"], {})
                    grid.setdefault(int(place.group(2)), {})[place.group(1)] = row["value"]
            for sheet, grid in grids.items():
                head = grid.get(1, {})
                result[sheet] = [
                    {str(head[c]): cells[c] for c in cells if c in head}
                    for r, cells in sorted(grid.items())
                    if r > 1
                ]
        elif rows and "type" in rows[0] and len({row["type"] for row in rows}) < len(rows):
            for kind in sorted({str(row["type"]) for row in rows}):
                same = [row for row in rows if str(row["type"]) == kind]
                used = [c for c in same[0] if c != "type" and any(row[c] is not None for row in same)]
                result[kind] = [spread({c: row[c] for c in used}) for row in same]
        else:
            result[name] = [spread(row) for row in rows]
    for path, content in sorted(files.items()):
        folder, _, name = path.rpartition("/")
        try:
            found = labels(content.decode("utf-8"))
        except UnicodeDecodeError:
            continue
        if folder and len(found) >= 2:
            result.setdefault(folder.rpartition("/")[2], []).append(
                {"name_of_file": name.split(".")[0], **found}
            )
    return result
