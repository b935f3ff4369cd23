"""Files that people write, a JSON value a line: one reader, one wording of what is wrong."""

import pytest

from synth.env.mcp_import import read_probes
from synth.errors import CallerError
from synth.importers.tasks import read_tasks
from synth.jsonl import read_jsonl


def test_lines_are_parsed_and_blank_ones_left_out(tmp_path):
    path = tmp_path / "numbers.jsonl"
    path.write_text("1\n\n  \n3\n")
    assert read_jsonl(path, lambda n, line: (n, int(line)), "a number") == [(1, 1), (4, 3)]


def test_what_is_wrong_names_file_line_and_form(tmp_path):
    path = tmp_path / "numbers.jsonl"
    path.write_text("1\nx\n")
    with pytest.raises(CallerError, match=r"numbers\.jsonl:2: write a number on every line \(ValueError"):
        read_jsonl(path, lambda _, line: int(line), "a number")
    with pytest.raises(CallerError, match=r"--given .*gone\.jsonl: cannot be read"):
        read_jsonl(tmp_path / "gone.jsonl", lambda _, line: line, "text", "--given")
    path.write_bytes(b"\xff\n")
    with pytest.raises(CallerError, match="cannot be read"):
        read_jsonl(path, lambda _, line: line, "text")


def test_probes_and_tasks_are_read_by_it(tmp_path):
    probes, tasks = tmp_path / "probes.jsonl", tmp_path / "tasks.jsonl"
    probes.write_text('{"tool": "a", "arguments": {"x": 1}}\n\n{"tool": "a", "arguments": {}}\n')
    assert read_probes(probes) == {"a": [{"x": 1}, {}]}
    tasks.write_text('{"task": "do", "calls": [{"tool": "a", "args": {}}], "answer": 3}\n')
    (task,) = read_tasks(tasks)
    assert (task.id, task.instruction, task.answer) == ("line 1", "do", 3)
    for read, path in ((read_probes, probes), (read_tasks, tasks)):
        path.write_text("{}\n")
        with pytest.raises(CallerError, match=rf"{path.name}:1: write .* on every line"):
            read(path)
