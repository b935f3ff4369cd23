"""Real MCP servers that this project has tried: how to start each, its state, and calls worth trying.

    agent-world import known SERVERS --out RUN        (SERVERS holds a folder a server; see README.md)

The state is filled with real rows (:mod:`synth.importers.seeds`); the calls name what is in it. For a server
that is not listed here ``agent-world import mcp`` does the same with a folder and calls of the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.importers.seeds import Rows, label, slug

Calls = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Known:
    """One server.

    Attributes:
        package: name in its registry; ``pip`` or ``npm`` installs it into ``SERVERS/<folder>``.
        start: its command line below that folder; ``{state}`` is the state's folder.
        seed: which state (:data:`synth.importers.seeds.SEEDS`); theme: whose rows.
        calls: calls worth trying on that state; tools that are not named are left alone.
    """

    package: str
    registry: str
    folder: str
    start: tuple[str, ...]
    seed: str
    theme: str
    license: str
    calls: Callable[[Rows], Calls]
    env: tuple[tuple[str, str], ...] = ()

    def command(self, servers: Path) -> list[str]:
        """The command line, or what is missing.

        Raises:
            FileNotFoundError: the server is not installed there.
        """
        made = [part.replace("{home}", str(servers / self.folder)) for part in self.start]
        for part in made:
            if part.startswith(str(servers)) and not Path(part).exists():
                raise FileNotFoundError(part)
        return made


def _memory(rows: Rows) -> Calls:
    first, second, third = rows.records[:3]
    name, kind = rows.name, rows.table.rstrip("s")
    fact = f"{rows.measures[0].replace('_', ' ')}: {first[rows.measures[0]]}"
    link = {"from": second[name], "to": str(second[rows.group]), "relationType": "belongs to"}
    new = {"name": "Quince", "entityType": kind, "observations": ["needs a check"]}
    return {
        "create_entities": [{"entities": [new]}],
        "create_relations": [
            {"relations": [{"from": first[name], "to": second[name], "relationType": "resembles"}]}
        ],
        "add_observations": [{"observations": [{"entityName": first[name], "contents": ["looks odd"]}]}],
        "delete_entities": [{"entityNames": [third[name]]}],
        "delete_observations": [{"deletions": [{"entityName": first[name], "observations": [fact]}]}],
        "delete_relations": [{"relations": [link]}],
        "read_graph": [{}],
        "search_nodes": [{"query": first[name]}, {"query": str(first[rows.group])}],
        "open_nodes": [{"names": [first[name]]}, {"names": [second[name], third[name]]}],
    }


def _files(rows: Rows) -> Calls:
    paths = [f"/state/{rows.table}/{slug(r[rows.name])}.note" for r in rows.records]
    first = rows.records[0]
    line = f"{label(rows.measures[0])}: {first[rows.measures[0]]}"
    edit = {"oldText": line, "newText": f"{label(rows.measures[0])}: 7"}
    return {
        "read_text_file": [{"path": paths[0]}, {"path": paths[1], "head": 2}],
        "read_multiple_files": [{"paths": paths[:3]}],
        "write_file": [{"path": "/state/archive/report.note", "content": "Status: open\n"}],
        "edit_file": [{"path": paths[0], "edits": [edit]}],
        "create_directory": [{"path": "/state/drafts"}],
        "list_directory": [{"path": "/state"}, {"path": f"/state/{rows.table}"}],
        "list_directory_with_sizes": [{"path": f"/state/{rows.table}"}],
        "directory_tree": [{"path": "/state"}],
        "move_file": [
            {"source": paths[2], "destination": f"/state/archive/{slug(rows.records[2][rows.name])}.note"}
        ],
        "search_files": [{"path": "/state", "pattern": "**/*.note"}],
        "get_file_info": [{"path": paths[0]}],
        "list_allowed_directories": [{}],
    }


def _sqlite(rows: Rows) -> Calls:
    first, measure = rows.records[0], rows.measures[0]
    new = {**first, rows.name: "Quince"}
    return {
        "db_info": [{}],
        "query": [{"sql": f'SELECT * FROM "{rows.table}"'}],
        "list_tables": [{}],
        "get_table_schema": [{"tableName": rows.table}],
        "create_record": [{"table": rows.table, "data": new}],
        "read_records": [
            {"table": rows.table, "conditions": {rows.name: first[rows.name]}},
            {"table": rows.table, "conditions": {rows.group: first[rows.group]}},
            {"table": rows.table},
        ],
        "update_records": [
            {"table": rows.table, "data": {measure: 5}, "conditions": {rows.name: first[rows.name]}}
        ],
        "delete_records": [{"table": rows.table, "conditions": {rows.name: first[rows.name]}}],
    }


def _duckdb(rows: Rows) -> Calls:
    first, measure = rows.records[0], rows.measures[0]
    name = str(first[rows.name]).replace("'", "''")
    return {
        "execute_query": [
            {"sql": f'SELECT * FROM "{rows.table}"'},
            {"sql": f'UPDATE "{rows.table}" SET "{measure}" = 5 WHERE "{rows.name}" = \'{name}\''},
            {"sql": f'DELETE FROM "{rows.table}" WHERE "{rows.name}" = \'{name}\''},
        ],
        "list_databases": [{}],
        "list_tables": [{}],
        "list_columns": [{"table": rows.table}],
    }


def _git(rows: Rows) -> Calls:
    here = {"repo_path": "/state/repo"}
    groups = list(dict.fromkeys(r[rows.group] for r in rows.records))
    branch = f"review-{slug(groups[1])}"
    return {
        "git_status": [here],
        "git_diff_unstaged": [here],
        "git_diff_staged": [here],
        "git_diff": [{**here, "target": branch}],
        "git_commit": [{**here, "message": "Keep the present state"}],
        "git_add": [{**here, "files": ["todo.note"]}],
        "git_reset": [here],
        "git_log": [{**here, "max_count": 20}],
        "git_create_branch": [
            {**here, "branch_name": "harvest"}, {**here, "branch_name": "spring", "base_branch": branch},
        ],
        "git_checkout": [{**here, "branch_name": branch}],
        "git_show": [{**here, "revision": "HEAD"}],
        "git_branch": [{**here, "branch_type": "local"}],
    }  # fmt: skip


def _excel(rows: Rows) -> Calls:
    here = {"path": "/state/data.xlsx"}
    sheet = {**here, "sheet": rows.table}
    last = len(rows.records) + 1
    return {
        "describe_workbook": [here],
        "list_workbooks": [{"directory": "/state"}],
        "describe_sheet": [sheet],
        "read_range": [sheet, {**sheet, "range": "A1:B6"}],
        "find_cells": [{**here, "query": str(rows.records[0][rows.name])}],
        "create_sheet": [{**here, "new_name": "summary"}],
        "rename_sheet": [{**here, "sheet": "drafts", "new_name": "sketches"}],
        "copy_sheet": [{**sheet, "new_name": "backup"}],
        "delete_sheet": [{**here, "sheet": "drafts"}],
        "write_range": [
            {**sheet, "at": "C2", "rows": [[7]]},
            {**here, "sheet": "drafts", "at": "B2", "rows": [["pear", 4]]},
        ],
        "clear_range": [{**sheet, "range": "C3"}],
        "delete_rows_or_columns": [{**sheet, "axis": "rows", "start": last}],
        "replace_cells": [{**here, "query": str(rows.records[1][rows.name]), "replacement": "Quince"}],
    }  # fmt: skip


_NODE = "{home}/node_modules/"
KNOWN: dict[str, Known] = {
    "memory": Known(
        "@modelcontextprotocol/server-memory", "npm", "server-memory",
        ("node", _NODE + "@modelcontextprotocol/server-memory/dist/index.js"),
        "graph", "film_rentals", "see the package", _memory, (("MEMORY_FILE_PATH", "{state}/memory.jsonl"),),
    ),
    "filesystem": Known(
        "@modelcontextprotocol/server-filesystem", "npm", "server-filesystem",
        ("node", _NODE + "@modelcontextprotocol/server-filesystem/dist/index.js", "{state}"),
        "notes", "euro_squads", "see the package", _files,
    ),
    "sqlite": Known(
        "mcp-sqlite", "npm", "mcp-sqlite",
        ("node", _NODE + "mcp-sqlite/mcp-sqlite-server.js", "{state}/data.db"),
        "sqlite", "penguin_survey", "ISC", _sqlite,
    ),
    "duckdb": Known(
        "mcp-server-motherduck", "pip", "mcp-server-motherduck",
        ("{home}/bin/mcp-server-motherduck", "--db-path", "{state}/data.duckdb", "--read-write"),
        "duckdb", "money_transfer", "see the package", _duckdb,
    ),
    "git": Known(
        "mcp-server-git", "pip", "mcp-server-git",
        ("{home}/bin/mcp-server-git", "--repository", "{state}/repo"),
        "repository", "element_lab", "MIT", _git,
    ),
    "excel": Known(
        "excel-mcp-server", "pip", "excel-mcp-server", ("{home}/bin/excel-mcp-server", "stdio"),
        "workbook", "airport_slots", "MIT", _excel,
    ),
}  # fmt: skip
