"""The catalogue: what a run holds, as Parquet tables that any SQL engine reads.

    SELECT first_level, count(*) FROM 'RUN/packed/catalogue/environments/*.parquet' GROUP BY 1

Made shard by shard by :mod:`beam_jobs.pack` from bundles, checks and tasks; four tables: ``environments``,
``tables``, ``tools``, ``tasks``, joined by ``env_id``. Three columns of ``environments`` tell variety from
copies: ``sources`` (which real tables it stands on), ``schema_digest`` and ``rows_digest`` (of the real rows,
without the keys that mining invents).
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from synth.env import state as states
from synth.env.bundle import Bundle
from synth.types import Provenance, Table, Task

if TYPE_CHECKING:
    from synth.admission import CheckReport

Row = dict[str, Any]
SCHEMAS: dict[str, dict[str, str]] = {  # table -> column -> type (pyarrow's names)
    "environments": {
        "env_id": "string",
        "shard": "int32",
        "digest": "string",
        "name": "string",
        "description": "string",
        "first_level": "string",
        "second_level": "string",
        "license": "string",
        "author": "string",
        "sources": "string",
        "schema_digest": "string",
        "rows_digest": "string",
        "tables": "int32",
        "rows": "int64",
        "real_rows": "int64",
        "tools": "int32",
        "write_tools": "int32",
        "cases": "int32",
        "tasks": "int32",
    },
    "tables": {
        "env_id": "string",
        "name": "string",
        "kind": "string",
        "columns": "int32",
        "rows": "int64",
        "links": "int32",
        "origin": "string",
        "package": "string",
        "license": "string",
    },
    "tools": {
        "env_id": "string",
        "name": "string",
        "kind": "string",
        "description": "string",
        "read_only": "bool",
        "parameters": "int32",
        "cases": "int32",
        "pass_rate": "float64",
    },
    "tasks": {
        "env_id": "string",
        "tag": "string",
        "task_id": "string",
        "route": "string",
        "pattern": "string",
        "instruction": "string",
        "changes_state": "bool",
        "steps": "int32",
        "solve_rate": "float64",
        "guide_id": "string",
    },
}


def describe(
    bundle: Bundle, checks: CheckReport, tasks: Sequence[tuple[str, Task]], shard: int
) -> dict[str, list[Row]]:
    """The rows of all four tables for one environment; ``tasks`` are (tag, task)."""
    rows = {table.name: states.rows(bundle.state, table.name) for table in bundle.manifest.tables}
    return {
        "environments": [_environment(bundle, rows, len(tasks), shard)],
        "tables": [_table(bundle, table, rows[table.name]) for table in bundle.manifest.tables],
        "tools": [
            {
                "env_id": bundle.manifest.env_id,
                "name": tool.name,
                "kind": tool.meta.get("kind"),
                "description": tool.description,
                "read_only": tool.read_only,
                "parameters": len(tool.input_schema.get("properties", {})),
                "cases": len(tool.cases),
                "pass_rate": checks.tools.get(tool.name),
            }
            for tool in bundle.tools
        ],
        "tasks": [
            {
                "env_id": task.env_id,
                "tag": tag,
                "task_id": task.id,
                "route": task.route,
                "pattern": task.pattern,
                "instruction": task.instruction,
                "changes_state": task.changes_state,
                "steps": len(task.chain) or None,
                "solve_rate": task.solve_rate,
                "guide_id": task.guide_id,
            }
            for tag, task in tasks
        ],
    }


def to_parquet(table: str, rows: Iterable[Row]) -> bytes:
    """A Parquet file of one of the four tables."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in SCHEMAS[table].items()])
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), out)
    return out.getvalue()


def sources(provenance: Sequence[Provenance], tables: Sequence[Table]) -> str:
    """The real tables that an environment stands on, in words that are equal for equal sets."""
    mined = {table.name for table in tables if table.kind == "mined"}
    return " + ".join(sorted({p.origin for p in provenance if p.target in mined}))


def schema_digest(tables: Sequence[Table]) -> str:
    """Of table and column names, types, keys and links; not of words, values or rows."""
    lines = []
    for table in sorted(tables, key=lambda t: t.name):
        columns = sorted(f"{c.name}:{c.type}:{c.role}" for c in table.columns)
        links = sorted(f"{f.column}>{f.table}.{f.ref_column}" for f in table.foreign_keys)
        lines.append(f"{table.name} {table.primary_key} {columns} {links}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def real_rows(tables: Sequence[Table], rows: dict[str, list[Row]]) -> set[str]:
    """A digest of each real row, without keys and links, which mining may have invented."""
    found = set()
    for table in tables:
        if table.kind == "mined":
            kept = [c.name for c in table.columns if c.role not in ("key", "ref")]
            for row in rows[table.name]:
                text = f"{table.name} {[row[name] for name in kept]}"
                found.add(hashlib.sha256(text.encode()).hexdigest()[:16])
    return found


def _environment(bundle: Bundle, rows: dict[str, list[Row]], tasks: int, shard: int) -> Row:
    manifest = bundle.manifest
    first, second = (*manifest.taxonomy, None, None)[:2]
    real = real_rows(manifest.tables, rows)
    return {
        "env_id": manifest.env_id,
        "shard": shard,
        "digest": manifest.digest,
        "name": manifest.theme.name,
        "description": manifest.theme.description,
        "first_level": first,
        "second_level": second,
        "license": manifest.license,
        "author": str(manifest.generator.get("author")),
        "sources": sources(bundle.provenance, manifest.tables),
        "schema_digest": schema_digest(manifest.tables),
        "rows_digest": hashlib.sha256("".join(sorted(real)).encode()).hexdigest(),
        "tables": len(manifest.tables),
        "rows": sum(map(len, rows.values())),
        "real_rows": len(real),
        "tools": len(bundle.tools),
        "write_tools": sum(not tool.read_only for tool in bundle.tools),
        "cases": sum(len(tool.cases) for tool in bundle.tools),
        "tasks": tasks,
    }


def _table(bundle: Bundle, table: Table, rows: list[Row]) -> Row:
    origin = next((p for p in bundle.provenance if p.target == table.name), None)
    return {
        "env_id": bundle.manifest.env_id,
        "name": table.name,
        "kind": table.kind,
        "columns": len(table.columns),
        "rows": len(rows),
        "links": len(table.foreign_keys),
        "origin": origin.origin if origin else None,
        "package": origin.package if origin else None,
        "license": origin.license if origin else None,
    }
