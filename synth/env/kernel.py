"""Locks of the Linux kernel that a process puts on itself: Landlock, seccomp, limits, capabilities.

Called inside the sandbox, by the worker, before any code of an environment is loaded. Everything
goes through system calls by way of ctypes, so nothing has to be installed. The system-call filter
is an allow-list: what is not named here is refused with EPERM, new system calls included.
x86_64 and aarch64; the numbers are those of the kernel's own headers.
"""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import struct
import sys

TYPE_CHECKING = False  # typing's own costs every episode (see frames.py)
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

# (audit architecture, "name:number ..."); calls without arguments to look at
_ALLOWED = {
    "x86_64": (
        0xC000003E,
        "read:0 write:1 recvfrom:45 sendto:44 poll:7 futex:202 mmap:9 munmap:11 mremap:25 madvise:28 brk:12"
        " mprotect:10 readv:19 writev:20 pread64:17 pwrite64:18 recvmsg:47 sendmsg:46 shutdown:48"
        " getsockopt:55 setsockopt:54 getsockname:51 getpeername:52 ppoll:271 select:23 pselect6:270"
        " close:3 close_range:436 openat:257 open:2 fstat:5 newfstatat:262 stat:4 lstat:6 statx:332 lseek:8"
        " access:21 faccessat:269 faccessat2:439 readlink:89 readlinkat:267 getcwd:79 getdents64:217"
        " dup:32 dup2:33 dup3:292 flock:73 membarrier:324 sched_yield:24 sched_getaffinity:204 getcpu:309"
        " restart_syscall:219 nanosleep:35 clock_nanosleep:230 clock_gettime:228 clock_getres:229"
        " gettimeofday:96 time:201 times:100 rt_sigaction:13 rt_sigprocmask:14 rt_sigreturn:15"
        " sigaltstack:131 exit:60 exit_group:231 rseq:334 set_robust_list:273 getpid:39 gettid:186"
        " getppid:110 getuid:102 geteuid:107 getgid:104 getegid:108 getgroups:115 getpgrp:111 getpgid:121"
        " getsid:124 getrandom:318 getrusage:98 getrlimit:97 uname:63 sysinfo:99 umask:95",
        {"fcntl": 72, "ioctl": 16, "prlimit64": 302},
    ),
    "aarch64": (
        0xC00000B7,
        "read:63 write:64 recvfrom:207 sendto:206 futex:98 mmap:222 munmap:215 mremap:216 madvise:233 brk:214"
        " mprotect:226 readv:65 writev:66 pread64:67 pwrite64:68 recvmsg:212 sendmsg:211 shutdown:210"
        " getsockopt:209 setsockopt:208 getsockname:204 getpeername:205 ppoll:73 pselect6:72"
        " close:57 close_range:436 openat:56 fstat:80 newfstatat:79 statx:291 lseek:62 faccessat:48"
        " faccessat2:439 readlinkat:78 getcwd:17 getdents64:61 dup:23 dup3:24 flock:32 membarrier:283"
        " sched_yield:124 sched_getaffinity:123 getcpu:168 restart_syscall:128 nanosleep:101"
        " clock_nanosleep:115 clock_gettime:113 clock_getres:114 gettimeofday:169 times:153"
        " rt_sigaction:134 rt_sigprocmask:135 rt_sigreturn:139 sigaltstack:132 exit:93 exit_group:94"
        " rseq:293 set_robust_list:99 getpid:172 gettid:178 getppid:173 getuid:174 geteuid:175 getgid:176"
        " getegid:177 getgroups:158 getpgid:155 getsid:156 getrandom:278 getrusage:165 getrlimit:163"
        " uname:160 sysinfo:179 umask:166",
        {"fcntl": 25, "ioctl": 29, "prlimit64": 261},
    ),
}
# calls allowed only for these values of one argument: (index of the argument, values)
_BY_ARGUMENT = {
    "fcntl": (1, (0, 1, 2, 3, 4, 5, 6, 7, 1030)),  # descriptors, flags, file locks; no F_SETOWN (signals)
    "ioctl": (1, (0x5401, 0x5421, 0x5450, 0x5451)),  # TCGETS, FIONBIO, FIONCLEX, FIOCLEX
    "prlimit64": (0, (0,)),  # own limits only
}
_EPERM = 0x00050000 | 1
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 22, 38, 47

_READ_DIR_TREE = 0b1101  # execute, read file, read directory
_READ_FILE = 0b0101


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


@functools.cache
def _prctl() -> Any:
    function = ctypes.CDLL(None, use_errno=True).prctl
    function.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return function


def landlock_version() -> int:
    """The kernel's Landlock ABI, 0 where it has none (or the platform is not Linux)."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _libc().syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint(1)))


def seccomp_supported() -> bool:
    """Whether the filter knows this machine's architecture."""
    return sys.platform.startswith("linux") and os.uname().machine in _ALLOWED


def restrict_files(readable: Sequence[str]) -> None:
    """Landlock: only the given files and folders can be opened, for reading; nothing for writing.

    From ABI 4 also no TCP bind or connect, from ABI 6 no signals and no abstract sockets to the
    outside. Metadata (stat, readlink) is beyond Landlock.

    Raises:
        OSError: the kernel refuses.
    """
    libc, version = _libc(), landlock_version()
    if version < 1:
        raise OSError("the kernel has no Landlock")
    rights = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    attr = struct.pack("QQQ", rights, 0b11, 0b11)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _call("landlock_create_ruleset", libc.syscall(444, attr, ctypes.c_size_t(len(attr)), 0))
    for path in readable:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            access = _READ_DIR_TREE if os.path.isdir(path) else _READ_FILE
            rule = struct.pack("=Qi", access, handle)
            _call(f"landlock_add_rule {path}", libc.syscall(445, ruleset, 1, rule, 0))
        finally:
            os.close(handle)
    _call("prctl", _prctl()(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _call("landlock_restrict_self", libc.syscall(446, ruleset, 0))
    os.close(ruleset)


def drop_capabilities() -> None:
    """Give up every capability for good, so that root is only the owner of its files."""
    _call("prctl", _prctl()(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _prctl()(_PR_CAP_AMBIENT, 4, 0, 0, 0)  # absent before Linux 4.3
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _call("capset", _libc().capset(header, nothing))


def filter_program() -> bytes:
    """The system-call filter as classic BPF: an array of (code, jump true, jump false, constant).

    A search tree over the numbers of the calls. The kernel runs a filter once for every number when it is
    installed (its cache of calls that are always allowed), so a list of comparisons costs each new episode
    0.7 ms where the tree costs 0.1 (ours, measured).
    """
    arch, plain, special = _ALLOWED[os.uname().machine]
    allow, refuse = _step(_RETURN, 0, 0, _ALLOW), _step(_RETURN, 0, 0, _EPERM)
    leaves: dict[int, list[bytes]] = {int(item.split(":")[1]): [allow] for item in plain.split()}
    for name, (argument, values) in _BY_ARGUMENT.items():
        block = [_step(_LOAD, 0, 0, 16 + 8 * argument)]  # low half: these arguments are 32 bits wide
        for value in values:
            block += [_step(_EQUAL, 0, 1, value), allow]
        leaves[special[name]] = [*block, refuse]
    starts: dict[int, list[bytes]] = {0: [refuse]}  # what holds from a number on
    for number in sorted(leaves):
        starts[number] = leaves[number]
        starts[number + 1] = leaves.get(number + 1, [refuse])
    ranges: list[tuple[int, list[bytes]]] = []
    for number, leaf in sorted(starts.items()):
        if not ranges or ranges[-1][1] != leaf:
            ranges.append((number, leaf))
    head = [
        _step(_LOAD, 0, 0, 4),
        _step(_EQUAL, 1, 0, arch),
        _step(_RETURN, 0, 0, _KILL),
        _step(_LOAD, 0, 0, 0),
    ]
    return b"".join([*head, *_tree(ranges)])


_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06


def _step(code: int, jt: int, jf: int, k: int) -> bytes:
    return struct.pack("=HBBI", code, jt, jf, k)


def _tree(ranges: list[tuple[int, list[bytes]]]) -> list[bytes]:
    """Instructions that find the range of the loaded number: (first number, what to do there) in order."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _tree(ranges[:middle]), _tree(ranges[middle:])
    return [_step(_AT_LEAST, len(below), 0, ranges[middle][0]), *below, *above]


def prepare_calls(program: bytes) -> Callable[[], None]:
    """Make ready, before a fork, for the filter of :func:`filter_program`; what comes back installs it.

    The filter holds for the process that installs it and cannot be taken off: no sockets, no new processes or
    threads, no execve, no signals, no change of files or owners, no mounts, namespaces, ptrace, io_uring,
    shared memory, keys or modules. This process and its children are made unreadable to others (not dumpable)
    here, and never get privileges back.
    """
    _call("prctl", _prctl()(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _call("prctl", _prctl()(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    buffer = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    prctl, where = _prctl(), ctypes.addressof(head)

    def install(keep: tuple[Any, Any] = (buffer, head)) -> None:
        if prctl(_PR_SET_SECCOMP, 2, where, 0, 0):
            raise OSError(ctypes.get_errno(), "the system-call filter was refused")

    return install


def restrict_resources(memory_mb: int, cpu_s: int, *, sandboxed: bool = True) -> None:
    """Limits of one episode's process: address space, processor seconds; in a sandbox no further processes.

    Outside a sandbox a limit that the platform does not know is passed over.
    """
    _limit(resource.RLIMIT_AS, memory_mb << 20, sandboxed)
    _limit(resource.RLIMIT_CPU, cpu_s, sandboxed)
    if sandboxed:
        _limit(resource.RLIMIT_NPROC, 0, True)  # does not bind root; the filter does


def restrict_outputs(*, sandboxed: bool = True) -> None:
    """Limits that the zygote takes and its children inherit: no core dumps; in a sandbox also no bytes into
    files and few descriptors."""
    _limit(resource.RLIMIT_CORE, 0, sandboxed)
    if sandboxed:
        _limit(resource.RLIMIT_FSIZE, 0, True)
        _limit(resource.RLIMIT_NOFILE, 64, True)


def _limit(which: int, value: int, must: bool) -> None:
    try:
        resource.setrlimit(which, (value, value))
    except (OSError, ValueError):
        if must:
            raise
