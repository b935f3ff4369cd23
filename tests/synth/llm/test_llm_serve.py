"""Our own ``agent-world serve`` as the author's endpoint: a policy of two million parameters writes nonsense.

The pipeline must end with one clear dead letter a theme, not with a crash: the shipped policy with its own
context, which no prompt fits, and the same weights with a longer one, which then answer something.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from lake_world import THEME, write_corpus

from arena.measure import BASE
from synth.author.store import Store
from synth.themes import builtin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(params=[1024, 4096])
def served(request, tmp_path):
    """The address of a server with that context."""
    policy = tmp_path / "policy"
    shutil.copytree(BASE, policy)
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": request.param}))
    command = [sys.executable, "-m", "arena.cli", "serve", str(policy), "--port", "0", "--slots", "2"]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            yield request.param, re.search(r"http://\S+/v1", line)[0]
        finally:
            server.terminate()


def test_nonsense_ends_in_dead_letters(served, tmp_path):
    context, address = served
    write_corpus(tmp_path / "web")
    mined = next(theme for theme in builtin("demo") if theme.id == "penguin_survey")
    (tmp_path / "themes.jsonl").write_text(f"{THEME.to_json()}\n{mined.to_json()}\n")
    settings = [
        'model = "policy"',
        f'api_base = "{address}"',
        "max_tokens = 48",
        "longest = 96",
        "repairs = 1",
    ]
    (tmp_path / "llm.toml").write_text("\n".join([*settings, 'corpus = "web"']))
    command = [sys.executable, "-m", "arena.cli", "synth", "complexify", "run", "--themes", "themes.jsonl"]
    done = subprocess.run(
        [*command, "--author", "llm", "--llm", "llm.toml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "mine: 0 done, 2 dead" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    lines = (tmp_path / "run/dead_letters/mine.jsonl").read_text().splitlines()
    letters = {letter["name"]: letter for letter in map(json.loads, lines)}
    assert {letter["fault"] for letter in letters.values()} == {"environment"}
    if context == 1024:
        assert all("longer than the model takes" in letter["message"] for letter in letters.values())
    else:
        assert letters["penguin_survey"]["error"] == "Unusable"
        assert sum(line.tokens_out for line in Store(tmp_path / "llm").ledger()) > 100
