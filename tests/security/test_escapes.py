"""What hostile code of an environment tries, and that it is stopped, for each sandbox of this machine.

Every attack is a plain function that runs inside the sandbox as a tool. Where it can be shown without
harm, the same attack is also run without a sandbox and must succeed there, so that "stopped" means
something.
"""

# ruff: noqa: SIM105, SIM115 (attacks are self-contained and leave their files open)

from __future__ import annotations

import ast
import inspect
import os
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from fixtures.make import extra_tool, library, with_tools
from fixtures.processes import descendants

from synth.env import sandbox
from synth.env.bundle import read_bundle, write_bundle
from synth.env.episode import EnvServer, VerifierServer
from synth.env.sandbox import Limits, UnsafeLocal
from synth.env.zygote import Nest
from synth.errors import CallerError, InfrastructureError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandboxes need Linux")

RUN = """
def attack(ctx, *, code, name, arguments):
    names = {}
    exec(code, names)
    return names[name](**arguments)
"""
LIMITS = Limits(memory_mb=512, wall_s=5.0)


def write_attackable(folder: Path) -> Path:
    parameters = {"code": {}, "name": {}, "arguments": {}}
    path = folder / "attackable"
    write_bundle(with_tools(library(), extra_tool("attack", RUN, parameters)), path)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_attackable(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module", params=["bwrap", "landlock", "gvisor", "nest"])
def provider(request):
    """Each way to isolate; and the nest, in which one sandbox stays open for many environments."""
    name = "bwrap" if request.param == "nest" else request.param
    reason = sandbox._why_not(name)
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    if request.param != "nest":
        yield sandbox.provider(name)
        return
    with Nest(sandbox.provider(name)) as nest:
        yield nest


def test_the_table_of_what_each_stops_has_a_column_for_every_provider():
    heads = next(
        line.split() for line in str(sandbox.__doc__).splitlines() if line.strip().startswith("attack")
    )
    assert heads == ["attack", "bwrap", "landlock", "gvisor", UnsafeLocal.name]


@pytest.fixture(scope="module")
def server(bundle, provider):
    with EnvServer(bundle, provider=provider, limits=LIMITS) as server:
        yield server


@pytest.fixture(scope="module")
def bare(bundle):
    """The same server without a sandbox: here the attacks must succeed."""
    with EnvServer(bundle, provider=UnsafeLocal(), limits=LIMITS) as server:
        yield server


def attack(server: EnvServer, function, **arguments):
    """Run a function as a tool in a fresh episode."""
    code = textwrap.dedent(inspect.getsource(function))
    with server.open(seed=1) as episode:
        request = {"code": code, "name": function.__name__, "arguments": arguments}
        return episode.call("attack", request)


def outcomes(server: EnvServer, function, **arguments) -> dict[str, str]:
    result = attack(server, function, **arguments)
    assert result.ok, result
    return result.value


def lives_on(server: EnvServer) -> bool:
    with server.open(seed=1) as episode:
        return episode.call("search_books", {"genre": "travel"}).ok


def root_of(server: EnvServer) -> int:
    """The outermost process of its sandbox."""
    provider = server.provider
    process = (provider._zygote if isinstance(provider, Nest) else server._zygote)._process
    assert process is not None
    return process.pid


def eventually(condition, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


# --- network ----------------------------------------------------------------------------------------


def connect(port, path):
    import socket

    done = {}
    tries = {
        "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port)),
        "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", port)),
        "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", port)),
        "unix": (socket.AF_UNIX, socket.SOCK_STREAM, path),
        "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, "\0" + path),
    }
    for name, (family, kind, address) in tries.items():
        try:
            socket.socket(family, kind).connect(address)
            done[name] = "connected"
        except OSError as err:
            done[name] = type(err).__name__
    return done


def test_no_socket_reaches_the_network_or_a_local_service(server, bare, tmp_path):
    path = str(tmp_path / "s")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        unix.listen()
        port = tcp.getsockname()[1]
        without = outcomes(bare, connect, port=port, path=path)
        assert without["tcp"] == without["udp"] == without["unix"] == "connected"
        within = outcomes(server, connect, port=port, path=path)
        assert set(within.values()) == {"PermissionError"}


# --- reading ----------------------------------------------------------------------------------------


def read(paths):
    import os

    done = {}
    for path in paths:
        try:
            done[path] = "read " + open(path).read(20) if not os.path.isdir(path) else str(os.listdir(path))
        except OSError as err:
            done[path] = "stopped " + type(err).__name__
    return done


@pytest.fixture
def home_secret():
    path = Path.home() / f".agent-world-test-{secrets.token_hex(8)}"
    path.write_text("my secret")
    yield path
    path.unlink()


def test_files_outside_cannot_be_read(server, bare, bundle, tmp_path, home_secret):
    marker = tmp_path / "marker"
    marker.write_text("my secret")
    detour = f"/usr/lib/../..{marker}"
    files = [str(home_secret), str(marker), detour, str(bundle / "manifest.json"), "/etc/passwd", __file__]
    assert all(v.startswith("read") for v in outcomes(bare, read, paths=files).values())
    more = [f"/proc/self/root{marker}", "/proc/self/environ", f"/proc/{os.getpid()}/environ", "/proc/1/mem"]
    more += [str(Path.home()), str(tmp_path), str(bundle), "/proc/self/fd", "/dev/shm"]
    for path, outcome in outcomes(server, read, paths=files + more).items():
        # an empty skeleton of folders may lead to the interpreter's own, which has to be readable
        listed = [] if outcome.startswith("stopped") else ast.literal_eval(outcome)
        assert set(listed) <= set(Path(sandbox._interpreter()).parts), (path, outcome)


def link_and_read(target, folders):
    import os

    done = {}
    for folder in folders:
        for way in (os.symlink, os.link):
            link = os.path.join(folder, way.__name__)
            try:
                way(target, link)
                done[link] = "read " + open(link).read()
            except OSError as err:
                done[link] = "stopped " + type(err).__name__
    return done


def test_links_do_not_lead_out(server, bare, bundle, tmp_path):
    marker = tmp_path / "marker"
    marker.write_text("my secret")
    folders = [str(tmp_path)]
    assert all(
        v == "read my secret"
        for v in outcomes(bare, link_and_read, target=str(marker), folders=folders).values()
    )
    for link in ("symlink", "link"):
        (tmp_path / link).unlink()
    folders += ["/tmp", "/usr/lib", "/", str(bundle)]
    within = outcomes(server, link_and_read, target=str(marker), folders=folders)
    assert all(v.startswith("stopped") for v in within.values()), within


def test_a_bundle_that_links_to_a_file_outside_is_refused(tmp_path):
    path = write_attackable(tmp_path)
    secret = tmp_path / "secret.py"
    secret.write_text("SECRET = 1")
    (path / "tools" / "attack.py").unlink()
    (path / "tools" / "attack.py").symlink_to(secret)
    with pytest.raises(CallerError, match=r"attack\.py: leads out of the bundle"):
        read_bundle(path)


def test_the_environment_of_the_parent_is_not_inherited(server, monkeypatch, bundle, provider):
    def variables():
        import os

        return dict(os.environ)

    monkeypatch.setenv("MY_API_KEY", "my secret")
    with EnvServer(bundle, provider=provider, limits=LIMITS) as fresh:
        assert "my secret" not in str(attack(fresh, variables).value)


# --- writing ----------------------------------------------------------------------------------------


def write(folders, victim):
    import os

    tries = {
        "unlink": lambda: os.unlink(victim),
        "truncate": lambda: os.truncate(victim, 0),
        "append": lambda: open(victim, "a").write("changed"),
        "chmod": lambda: os.chmod(victim, 0o777),
        "chown": lambda: os.chown(victim, 1, 1),
        "utime": lambda: os.utime(victim, (1, 1)),
        "rename": lambda: os.rename(victim, victim + ".moved"),
        "xattr": lambda: os.setxattr(victim, "user.x", b"1"),
    }
    for folder in folders:
        tries["create in " + folder] = lambda f=folder: open(os.path.join(f, "written"), "w").write("x")
        tries["mkdir in " + folder] = lambda f=folder: os.mkdir(os.path.join(f, "made"))
        tries["mkfifo in " + folder] = lambda f=folder: os.mkfifo(os.path.join(f, "fifo"))
    done = {}
    for name, step in tries.items():
        try:
            step()
            done[name] = "done"
        except OSError as err:
            done[name] = "stopped " + type(err).__name__
    return done


def test_nothing_can_be_written_anywhere(server, bare, bundle, tmp_path):
    victim = bundle / "cases" / "get_book.jsonl"
    before = victim.read_bytes(), victim.stat()
    folders = [str(tmp_path), str(bundle), str(bundle / "state"), str(Path.home()), "/tmp", "/dev/shm", "/"]
    within = outcomes(server, write, folders=folders, victim=str(victim))
    assert all(v.startswith("stopped") for v in within.values()), within
    assert (victim.read_bytes(), victim.stat()) == before
    own = tmp_path / "own"
    own.write_text("x")
    without = outcomes(bare, write, folders=[str(tmp_path)], victim=str(own))
    assert without["unlink"] == without[f"create in {tmp_path}"] == without[f"mkdir in {tmp_path}"] == "done"


# --- processes, signals, system calls ---------------------------------------------------------------


def multiply():
    import os
    import subprocess
    import sys
    import threading

    done = {}

    def fork():
        if os.fork() == 0:
            os._exit(0)

    tries = {
        "fork": fork,
        "run": lambda: subprocess.run([sys.executable, "-c", "pass"]),
        "posix_spawn": lambda: os.posix_spawn("/usr/bin/env", ["env"], {}),
        "exec": lambda: os.execv("/nonexistent", ["x"]),
        "thread": lambda: threading.Thread(target=print).start(),
    }
    for name, step in tries.items():
        try:
            step()
            done[name] = "done"
        except (OSError, RuntimeError) as err:
            done[name] = "stopped " + type(err).__name__
    return done


def fork_bomb():
    import os

    made = 0
    for _ in range(50):
        try:
            if os.fork() == 0:
                fork_bomb()
            made += 1
        except OSError:
            pass
    return made


def test_a_fork_bomb_makes_no_process(server, bare):
    without = outcomes(bare, multiply)
    assert without["fork"] == without["run"] == without["thread"] == "done"
    within = outcomes(server, multiply)
    assert within["exec"] == "stopped PermissionError"
    assert all(v.startswith("stopped") for v in within.values()), within
    before = descendants(root_of(server))
    assert attack(server, fork_bomb).value == 0
    assert eventually(lambda: len(descendants(root_of(server))) <= len(before))
    assert lives_on(server)


def signal_others(pid, number):
    import fcntl
    import os
    import signal

    done = {}
    tries = {
        "kill": lambda: os.kill(pid, number),
        "parent": lambda: os.kill(os.getppid(), 0),
        "init": lambda: os.kill(1, 0),
        "group": lambda: os.killpg(0, 0),
        "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(pid), number),
        "owner": lambda: fcntl.fcntl(0, fcntl.F_SETOWN, pid),
    }
    for name, step in tries.items():
        try:
            step()
            done[name] = "done"
        except OSError as err:
            done[name] = "stopped " + type(err).__name__
    return done


def test_the_parent_and_other_episodes_get_no_signal(server, bare):
    got = []
    old = signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
    try:
        assert outcomes(bare, signal_others, pid=os.getpid(), number=signal.SIGUSR1)["kill"] == "done"
        assert eventually(lambda: got)
        got.clear()
        within = outcomes(server, signal_others, pid=os.getpid(), number=signal.SIGUSR1)
        assert set(within.values()) == {"stopped PermissionError"}, within
        time.sleep(0.05)
        assert not got
    finally:
        signal.signal(signal.SIGUSR1, old)


def call_the_kernel(pid):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    calls = {
        "ptrace": (16, pid, 0, 0),
        "unshare": (0x10000000,),
        "mount": (b"none", b"/tmp", b"tmpfs", 0, None),
        "umount2": (b"/tmp", 0),
        "chroot": (b"/tmp",),
        "memfd_create": (b"x", 0),
        "shmget": (0, 4096, 0o1600),
        "msgget": (0, 0o1600),
        "prlimit": (pid, 0, None, ctypes.create_string_buffer(16)),
        "setpriority": (0, pid, 5),
        "sched_setaffinity": (pid, 8, ctypes.create_string_buffer(8)),
        "process_vm_readv": (pid, None, 0, None, 0, 0),
        "personality": (0,),
        "setns": (0, 0),
        "sethostname": (b"x", 1),
        "userfaultfd": (0,),
        "setuid": (0,),
    }
    names = dict(calls)
    done = {}
    for name, arguments in names.items():
        function = getattr(libc, name, None)
        if function is None:
            continue
        ctypes.set_errno(0)
        done[name] = [function(*arguments), ctypes.get_errno()]
    for number in (425, 435, 442, 451, 600):  # io_uring_setup, clone3, mount_setattr, cachestat, unknown
        ctypes.set_errno(0)
        done[str(number)] = [libc.syscall(number, 0, 0, 0, 0), ctypes.get_errno()]
    return done


def test_system_calls_beyond_the_list_are_refused(server):
    done = outcomes(server, call_the_kernel, pid=os.getpid())
    assert len(done) > 15
    assert all(outcome == [-1, 1] for outcome in done.values()), done


# --- memory, time, output ---------------------------------------------------------------------------


def allocate(gigabytes):
    return len(bytearray(int(gigabytes * (1 << 30))))


def test_memory_is_limited(server, bundle):
    for gigabytes in (1, 10):
        result = attack(server, allocate, gigabytes=gigabytes)
        assert result.error_code == "tool_failed", result
        assert "MemoryError" in (result.error_message or "")
    wide = Limits(memory_mb=4096, wall_s=5.0)
    with EnvServer(bundle, provider=UnsafeLocal(), limits=wide) as roomy:
        assert attack(roomy, allocate, gigabytes=1).value == 1 << 30
    assert lives_on(server)


def loop():
    import signal

    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True:
        try:
            sum(range(10**9))
        except BaseException:
            pass


def test_an_endless_loop_is_killed_and_the_server_lives_on(bundle, provider):
    with EnvServer(bundle, provider=provider, limits=Limits(wall_s=0.6)) as server:
        root = root_of(server)
        before = descendants(root)
        episode, code = server.open(seed=1), textwrap.dedent(inspect.getsource(loop))
        start = time.monotonic()
        result = episode.call("attack", {"code": code, "name": "loop", "arguments": {}})
        assert 0.5 < time.monotonic() - start < 10
        assert (result.error_code, result.fault) == ("timeout", "environment")
        with pytest.raises(InfrastructureError, match="did not end"):
            episode.call("search_books", {"genre": "travel"})
        assert lives_on(server)
        if provider.name != "gvisor":  # whose processes are not the host's
            assert eventually(lambda: descendants(root) <= before), "the looping process must be gone"


def processor_time():
    while True:
        pass


def test_processor_time_is_limited(bundle, provider):
    with EnvServer(bundle, provider=provider, limits=Limits(cpu_s=1, wall_s=20)) as server:
        start = time.monotonic()
        with pytest.raises(InfrastructureError, match="died"):
            attack(server, processor_time)
        assert time.monotonic() - start < 15
        assert lives_on(server)


def shout(megabytes):
    import sys

    text = "x" * (1 << 20)
    for _ in range(megabytes):
        sys.stdout.write(text)
        sys.stderr.write(text)
    return "said"


def big_result(megabytes):
    return "x" * (megabytes << 20)


def test_a_flood_of_output_goes_nowhere(server, capfd):
    assert attack(server, shout, megabytes=1024).value == "said"
    assert capfd.readouterr() == ("", "")
    for megabytes in (3, 200):
        result = attack(server, big_result, megabytes=megabytes)
        assert result.ok, result
        assert len(result.to_json()) < LIMITS.output_bytes
        assert (result.note or "").startswith("cut: ")
    assert attack(server, big_result, megabytes=1024).error_code == "tool_failed"  # no memory for it
    assert lives_on(server)


def forge(size, body):
    import os
    import struct
    import time

    for handle in range(64):
        try:
            os.write(handle, struct.pack("!II", size, 0) + body.encode())
        except OSError:
            pass
    time.sleep(30)


def test_forged_frames_cannot_flood_or_confuse_the_parent(server):
    assert attack(server, forge, size=1 << 31, body="").error_code == "output_too_large"
    assert attack(server, forge, size=5, body="{nope").error_code is not None
    assert attack(server, forge, size=2, body="[]").error_code is not None
    assert lives_on(server)


def open_many():
    import errno
    import os
    import resource

    kept = []
    try:
        for _ in range(500):
            kept.append(os.open(os.__file__, os.O_RDONLY))
        stopped = "nothing"
    except OSError as err:
        stopped = errno.errorcode[err.errno]
    for number in kept:
        os.close(number)
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_FSIZE", "RLIMIT_CORE")}
    return {"opened": len(kept), "stopped": stopped, **limits}


def test_open_files_and_the_size_of_files_are_limited(server, bare):
    assert attack(bare, open_many).value["stopped"] != "EMFILE"  # up to 500, or what the machine allows
    within = attack(server, open_many)
    assert within.ok, within
    assert within.value["opened"] < 64
    assert within.value["stopped"] == "EMFILE"
    assert within.value["RLIMIT_FSIZE"] == within.value["RLIMIT_CORE"] == [0, 0]


# --- other episodes, verifiers and answers ----------------------------------------------------------


def keep(ctx, secret):
    import builtins
    import json

    ctx.files["secret.txt"] = secret.encode()
    ctx.db.execute("UPDATE member SET name = ?", (secret,))
    builtins.secret = secret
    json.dumps = lambda *_, **__: secret
    return "kept"


def search(half, other):
    """Look for a text through all objects of this process, in memory of others, and in what is around."""
    import builtins
    import gc
    import os

    text = half + other  # so that the request itself does not hold it
    found = []
    if hasattr(builtins, "secret"):
        found.append("builtins")
    for thing in gc.get_objects():
        try:
            inner = list(thing.values()) if isinstance(thing, dict) else list(thing)
        except Exception:
            continue
        for item in inner:
            if isinstance(item, bytes | str) and (text if isinstance(item, str) else text.encode()) in item:
                found.append(type(thing).__name__)
    try:
        entries = os.listdir("/proc")
    except OSError:
        entries = ["self", "1", str(os.getppid())]
    for entry in entries:
        for name in ("mem", "environ", "cmdline", "maps"):
            try:
                open(f"/proc/{entry}/{name}", "rb").read(100)
                found.append(f"/proc/{entry}/{name}")
            except OSError:
                pass
    return found


@pytest.fixture(scope="module")
def two_tools(tmp_path_factory, provider):
    """An environment with a tool that leaves secrets wherever it can, beside the attacks."""
    path = tmp_path_factory.mktemp("secrets") / "attackable"
    body = "\n".join(inspect.getsource(keep).splitlines()[1:])
    tools = [
        extra_tool("attack", RUN, {"code": {}, "name": {}, "arguments": {}}),
        extra_tool("keep", "def keep(ctx, *, secret):\n" + body, {"secret": {}}, read_only=False),
    ]
    write_bundle(with_tools(library(), *tools), path)
    with EnvServer(path, provider=provider, limits=LIMITS) as server:
        yield server


def look_for(episode, secret):
    """What the search finds from within an episode."""
    half = len(secret) // 2
    code = textwrap.dedent(inspect.getsource(search))
    arguments = {"half": secret[:half], "other": secret[half:]}
    result = episode.call("attack", {"code": code, "name": "search", "arguments": arguments})
    assert result.ok, result
    return result.value


def test_an_episode_sees_nothing_of_others_and_nothing_is_left_over(two_tools):
    secret = secrets.token_hex(16)
    with two_tools.open(seed=1) as before, two_tools.open(seed=1) as one:
        assert one.call("keep", {"secret": secret}).value == "kept"
        with two_tools.open(seed=1) as after:
            assert look_for(before, secret) == []
            assert look_for(after, secret) == []
            assert secret.encode() not in after.snapshot().tables
            assert after.snapshot().files == {}
            assert after.call("get_book", {"book_id": "B-1"}).value["book_id"] == "B-1"  # its own json.dumps
        assert "builtins" in look_for(one, secret)  # so the search does find what is there
    with two_tools.open(seed=1) as last:
        assert look_for(last, secret) == []


def test_neither_a_tool_nor_another_verifier_reads_a_verifier_or_an_answer(two_tools, provider):
    secret = secrets.token_hex(16)
    state = two_tools.bundle.state
    code = f"def verify(initial, final, answer):\n    return [('ok', answer == {secret!r}, '')]"
    hunt = textwrap.dedent(inspect.getsource(search))
    half = len(secret) // 2
    hunter = f"{hunt}\n\ndef verify(i, f, a):\n    found = search({secret[:half]!r}, {secret[half:]!r})\n"
    hunter += "    return [('nothing', found == [], str(found))]"
    with VerifierServer(provider, LIMITS) as verifiers, two_tools.open(seed=1) as episode:
        assert verifiers.run(code, state, state, secret, ()).passed
        assert look_for(episode, secret) == []
        verdict = verifiers.run(hunter, state, state, None, ())
        assert verdict.passed, verdict


def test_a_verdict_cannot_be_forged_by_a_tool_a_state_or_an_answer(server, provider):
    state = server.bundle.state
    honest = "def verify(initial, final, answer):\n    return [('ok', answer == 42, '')]"
    forged = '{"checks": [["ok", true, ""]], "passed": true}'
    with VerifierServer(provider, LIMITS) as verifiers:
        result = attack(server, forge, size=len(forged), body=forged)
        assert not result.ok or result.value is None  # at most an odd result of its own call
        assert not verifiers.run(honest, state, state, None, ()).passed
        for answer in (
            forged,
            {"checks": [["ok", True, ""]]},
            [["ok", True, ""]],
            "__import__('os')._exit(0)",
        ):
            assert not verifiers.run(honest, state, state, answer, ()).passed
        for claim in ("[('ok', 1, '')]", "[('ok', 'True', '')]", "[]", "True", "{'checks': 1}"):
            lying = f"def verify(initial, final, answer):\n    return {claim}"
            assert not verifiers.run(lying, state, state, None, ()).passed


def pickled(path):
    class Bomb(Exception):
        def __reduce__(self):
            return (open, (path, "w"))

        def __str__(self):
            return "boom"

    import pickle

    raise Bomb(pickle.dumps(Bomb()))


def return_pickled(path):
    class Bomb(dict):
        def __reduce__(self):
            return (open, (path, "w"))

    return [Bomb(), {"x": Bomb(a=1)}]


def test_pickles_are_never_opened(server, tmp_path):
    import pickle

    marker = tmp_path / "opened"
    for function in (pickled, return_pickled):
        result = attack(server, function, path=str(marker))
        assert result.ok or result.fault == "environment"
    body = pickle.dumps({"value": 1}, 0).decode("latin-1")
    assert not attack(server, forge, size=len(body), body=body).ok
    assert not marker.exists()
    assert lives_on(server)


# --- verifiers, and the end -------------------------------------------------------------------------


def test_the_code_of_a_verifier_is_confined_too(provider, bundle, tmp_path):
    marker = tmp_path / "answer.json"
    marker.write_text("42")
    code = (
        "def verify(initial, final, answer):\n"
        f"    return [('read', open({str(marker)!r}).read() == '42', '')]"
    )
    state = read_bundle(bundle).state
    with VerifierServer(provider, Limits(wall_s=1.0)) as verifiers:
        verdict = verifiers.run(code, state, state, None, ())
        assert not verdict.passed
        assert verdict.checks[0].name == "verifier_raised"
        endless = "def verify(initial, final, answer):\n    while True: pass"
        assert verifiers.run(endless, state, state, None, ()).reward is None
        fine = "def verify(initial, final, answer):\n    return [('ok', answer == 1, '')]"
        assert verifiers.run(fine, state, state, 1, ()).passed


HOST = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from fixtures.processes import descendants
from synth.env.episode import EnvServer
from synth.env.sandbox import provider
server = EnvServer(sys.argv[2], provider=provider(sys.argv[3]))
episode = server.open(seed=1)
print(*descendants(os.getpid()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_parent_leaves_no_sandbox_behind(bundle, provider):
    tests = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-c", HOST, str(tests), str(bundle), provider.name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests.parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    left = [int(pid) for pid in run.stdout.split()]
    assert len(left) >= 2, run.stderr
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
