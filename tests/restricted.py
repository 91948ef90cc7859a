"""Runs a command under what a unit file asks of systemd, as far as this machine allows.

    unshare --mount python -m tests.restricted UNIT WRITABLE COMMAND...

Reads:  the unit's directives, and the sets of system calls that systemd-analyze lists.
Calls:  mount, prctl and libseccomp, in the order in which systemd does.
Never:  runs the command with less than it could apply: what fails here fails the test.
Exits:  as the command, which takes the place of this process; a system call outside the filter
        kills it with SIGSYS, as systemd does.
"""

import ctypes
import functools
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Final

PR_SET_DUMPABLE: Final = 4
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAPBSET_DROP: Final = 24
PR_SET_MDWE: Final = 65
PR_MDWE_REFUSE_EXEC_GAIN: Final = 1
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
KILL_PROCESS: Final = 0x80000000
ALLOW: Final = 0x7FFF0000
KEPT: Final = ("/proc", "/sys", "/dev")
"""What ProtectSystem=strict leaves as it is."""


def directives(unit: Path) -> dict[str, str]:
    """Return the directives of the section Service; of one that is repeated, the last."""
    section = unit.read_text().replace("\\\n", " ").split("[Service]\n")[1].split("\n[")[0]
    lines = (line for line in section.splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


def main(unit: Path, writable: Path, command: list[str]) -> None:
    """Apply the unit's directives to this process, then become the command."""
    asked = directives(unit)
    os.umask(int(asked["UMask"], 8))
    for name in ("CORE", "NOFILE"):
        if f"Limit{name}" in asked:
            kind = getattr(resource, f"RLIMIT_{name}")
            most = resource.getrlimit(kind)[1]  # raised by systemd, but not here
            limit = min(int(asked[f"Limit{name}"]), most if most >= 0 else sys.maxsize)
            resource.setrlimit(kind, (limit, limit))
    if asked["ProtectSystem"] == "strict":
        _protect_files(writable, has_tmp=asked["PrivateTmp"] == "yes")
    calls = allowed_calls(asked["SystemCallFilter"])
    if asked["CapabilityBoundingSet"] == "":
        for capability in range(_last_capability() + 1):
            _check(_libc().prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))
    if asked["NoNewPrivileges"] == "yes":
        _check(_libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if asked.get("MemoryDenyWriteExecute") == "yes":
        _check(_libc().prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0))
    _filter(calls)
    os.execvp(command[0], command)


@functools.cache
def allowed_calls(names: str) -> frozenset[str]:
    """Return the system calls of a filter; the names of sets begin with @."""
    found = set[str]()
    for name in names.split():
        if not name.startswith("@"):
            found.add(name)
            continue
        listed = subprocess.run(
            ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True
        ).stdout.splitlines()[1:]
        for line in filter(None, map(str.strip, listed)):
            if not line.startswith("#"):
                found |= allowed_calls(line) if line.startswith("@") else {line}
    return frozenset(found)


def _protect_files(writable: Path, *, has_tmp: bool) -> None:
    """Make all mounts read-only but the kernel's own, one directory, and a /tmp of its own."""
    _mount(b"none", b"/", MS_REC | MS_PRIVATE)
    _mount(os.fsencode(writable), os.fsencode(writable), MS_BIND)
    if has_tmp and not writable.is_relative_to("/tmp"):
        _mount(b"tmpfs", b"/tmp", 0, kind=b"tmpfs")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, options = line.split()[4:6]
        if place in (str(writable), "/tmp") or (place.startswith(KEPT) and place != "/dev/shm"):
            continue
        flags = MS_REMOUNT | MS_BIND | MS_RDONLY
        for option, flag in (("nosuid", 2), ("nodev", 4), ("noexec", 8)):
            flags |= flag if option in options.split(",") else 0
        _mount(b"none", os.fsencode(place), flags)


def _mount(source: bytes, target: bytes, flags: int, kind: bytes | None = None) -> None:
    _check(_libc().mount(source, target, kind, flags, None))


def _filter(calls: frozenset[str]) -> None:
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(KILL_PROCESS)))
    for call in calls:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # negative: this processor has no such call
            _check(library.seccomp_rule_add(context, ctypes.c_uint32(ALLOW), number, 0))
    _check(library.seccomp_load(context))


def _last_capability() -> int:
    return int(Path("/proc/sys/kernel/cap_last_cap").read_text())


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(status: int) -> None:
    if status != 0:
        error = ctypes.get_errno() or -status
        raise OSError(error, os.strerror(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
