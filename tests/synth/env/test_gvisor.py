"""What gVisor is told to show and to run; that it holds is tried in tests/security, where runsc is there."""

from __future__ import annotations

import json

import pytest

from synth.env import sandbox
from synth.env.gvisor import HIDDEN, Gvisor, write_container
from synth.errors import CallerError


@pytest.fixture
def container(tmp_path):
    write_container(tmp_path / "c")
    return json.loads((tmp_path / "c" / "config.json").read_text()), tmp_path / "c" / "rootfs"


def test_the_container_sees_the_system_the_interpreter_and_the_worker_and_nothing_else(container):
    config, root = container
    mounts = {mount["destination"]: mount for mount in config["mounts"]}
    allowed = (*sandbox.SYSTEM, *sandbox.python_paths(), sandbox.INSIDE, *HIDDEN)
    near = [p for p in mounts if not any(p.startswith(a) or a.startswith(f"{p}/") for a in allowed)]
    assert near == []
    assert all(mount["options"] == ["ro", "rbind"] for mount in mounts.values())
    assert config["root"]["readonly"] is True
    assert (root / "agent-world" / "synth" / "errors.py").is_file()


def test_what_gvisor_would_fill_is_empty(container, tmp_path):
    mounts = {mount["destination"]: mount["source"] for mount in container[0]["mounts"]}
    for path in HIDDEN:
        assert mounts[path] == str(tmp_path / "c" / "empty")
    assert list((tmp_path / "c" / "empty").iterdir()) == []


def test_the_environment_is_not_inherited(container, monkeypatch):
    assert container[0]["process"]["env"] == [f"{k}={v}" for k, v in sandbox.environment().items()]


def test_each_worker_is_a_container_of_its_own_without_a_network(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    provider = Gvisor()
    one, other = provider.command(), provider.command()
    assert one[:4] == ["/usr/bin/runsc", "--rootless", "--network=none", "--ignore-cgroups"]
    assert one[-1] != other[-1]
    assert provider.locks() == {"seccomp": True, "capabilities": True, "landlock": None}


def test_without_runsc_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(CallerError, match="apt install runsc"):
        Gvisor().command()
