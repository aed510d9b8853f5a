"""Host: who this process is, whether another is alive, what is mounted where, how many cores, which folder.

Everything here reads ``/proc`` and the like, may block, and never raises for want of it: what cannot be known
is None.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "Directory",
    "Identity",
    "Mount",
    "ProcessState",
    "default_directory",
    "judge_identity",
    "mount_of",
    "my_identity",
    "my_owners",
    "process_state",
    "usable_cores",
]

_PROC: Final = Path("/proc")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


# --- Processes -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process this is, in terms that another process on the same host can check.

    All but ``pid`` and ``host`` are None where they cannot be known; None never matches anything.
    """

    boot_id: str | None
    """One boot of one kernel (random(4), ``/proc/sys/kernel/random/boot_id``); containers share it."""
    pidns: int | None
    """Inode of the pid namespace (pid_namespaces(7)): pids compare only within one."""
    timens: int | None
    """Inode of the time namespace (time_namespaces(7)): start times compare only within one. 0: this kernel
    has none."""
    pid: int
    starttime: int | None
    """Clock ticks from boot to the start of the process (proc_pid_stat(5), field 22)."""
    host: str
    """For people; nothing is decided by it."""
    proc_honest: bool
    """``/proc`` is mounted from this process's own pid namespace, so that what it says of a pid is about that
    pid here."""

    def as_record(self) -> dict[str, str | int | None]:
        """Return what a lease record says of its holder."""
        return {
            "boot_id": self.boot_id,
            "pidns": self.pidns,
            "timens": self.timens,
            "pid": self.pid,
            "starttime": self.starttime,
            "host": self.host,
        }


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What is known of a pid right now.

    ``exists`` is False only when the kernel says that there is no such process (ESRCH from kill(2)): under
    ``hidepid`` a missing ``/proc`` entry proves nothing. None: unknown.
    """

    exists: bool | None
    starttime: int | None = None
    zombie: bool = False
    """Dead, not yet reaped, and its only task: a leader that ended before its threads is no zombie here."""


@dataclass(frozen=True, slots=True)
class _Stat:
    """The fields of ``/proc/PID/stat`` that count here."""

    pid: int
    state: str
    threads: int
    starttime: int


def _parse_stat(data: bytes) -> _Stat | None:
    """Parse ``/proc/PID/stat`` (proc_pid_stat(5)); None: not such a line.

    The command's name stands in parentheses and may itself hold spaces, parentheses and line ends, so the
    fields are counted from the *last* parenthesis.
    """
    head, opened, _ = data.partition(b"(")
    _, closed, tail = data.rpartition(b")")
    fields = tail.split()
    if not opened or not closed or len(fields) < 20:
        return None
    try:
        return _Stat(
            pid=int(head), state=fields[0].decode("ascii"), threads=int(fields[17]), starttime=int(fields[19])
        )
    except ValueError:
        return None


def _namespace(proc: Path, kind: str) -> int | None:
    """Return the inode of a namespace of this process, as in ``time:[4026531834]``."""
    try:
        link = os.readlink(proc / "self" / "ns" / kind)
    except OSError:
        return None
    found = re.fullmatch(rf"{kind}:\[(\d+)\]", link)
    return int(found[1]) if found else None


def _time_namespace(proc: Path) -> int | None:
    found = _namespace(proc, "time")
    if found is not None or _namespace(proc, "pid") is None:
        return found
    # Linux before 5.6 has no such link, and then all processes of the kernel are in one. A link that is
    # there but cannot be read is something else: unknown.
    return None if os.path.lexists(proc / "self" / "ns" / "time") else 0


def _is_honest(proc: Path, pid: int) -> bool:
    """Say whether this ``/proc`` speaks of our own pid namespace.

    NSpid lists the pid in each namespace from that of the mount down to that of the process: a single field,
    which is our pid, means that the two are one.
    """
    status = _read(proc / "self" / "status")
    found = re.search(rb"^NSpid:(.*)$", status, re.MULTILINE) if status else None
    if found is None or found[1].split() != [b"%d" % pid]:
        return False
    stat = _read(proc / str(pid) / "stat")
    parsed = _parse_stat(stat) if stat else None
    return parsed is not None and parsed.pid == pid


def _identify(proc: Path) -> Identity:
    pid = os.getpid()
    boot_id = _read(proc / "sys" / "kernel" / "random" / "boot_id")
    stat = _read(proc / "self" / "stat")
    parsed = _parse_stat(stat) if stat else None
    return Identity(
        boot_id=boot_id.strip().decode("ascii", "replace") or None if boot_id else None,
        pidns=_namespace(proc, "pid"),
        timens=_time_namespace(proc),
        pid=pid,
        starttime=parsed.starttime if parsed and parsed.pid == pid else None,
        host=_host_name(),
        proc_honest=_is_honest(proc, pid),
    )


def _host_name() -> str:
    if hasattr(os, "uname"):
        return os.uname().nodename
    return os.environ.get("COMPUTERNAME", "")


_identities: dict[int, Identity] = {}


def my_identity() -> Identity:
    """Return the identity of this process; read once per pid, so that a forked child has its own."""
    pid = os.getpid()
    identity = _identities.get(pid)
    if identity is None:
        identity = _identify(_PROC)
        _identities.clear()  # a parent's, after a fork
        _identities[pid] = identity
    return identity


def process_state(pid: int, *, proc: Path = _PROC) -> ProcessState:
    """Look whether a process exists, and what it is.

    Nothing is signalled: kill(2) with signal 0 only checks. On Windows, where `os.kill` would do more than
    that, everything is unknown.
    """
    # 0 and negative numbers name process groups.
    if pid <= 0 or sys.platform == "win32":
        return ProcessState(exists=None)
    exists: bool | None
    try:
        os.kill(pid, 0)
    except OverflowError:
        return ProcessState(exists=None)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return ProcessState(exists=False)
        exists = True if error.errno == errno.EPERM else None
    else:
        exists = True
    data = _read(proc / str(pid) / "stat")
    stat = _parse_stat(data) if data else None
    if stat is None or stat.pid != pid:
        return ProcessState(exists=exists)
    return ProcessState(
        exists=exists, starttime=stat.starttime, zombie=stat.state == "Z" and stat.threads <= 1
    )


def judge_identity(mine: Identity, theirs: Mapping[str, object], state: ProcessState) -> bool:
    """Say whether a holder is certainly dead (LEASE_PROTOCOL, "By identity"); False proves nothing.

    :param mine: who looks.
    :param theirs: what the holder's lease record says, as in `Identity.as_record`; anything may stand there.
    :param state: what `process_state` says of the recorded pid.
    """
    if not mine.proc_honest:
        return False
    for name, value in (("boot_id", mine.boot_id), ("pidns", mine.pidns), ("timens", mine.timens)):
        if value is None or theirs.get(name) != value or isinstance(theirs.get(name), bool):
            return False
    pid = theirs.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return False
    if state.exists is False:
        return True
    if state.exists is None:
        return False
    if state.zombie:
        return True
    started = theirs.get("starttime")
    if not isinstance(started, int) or isinstance(started, bool) or state.starttime is None:
        return False
    return state.starttime != started


# --- Mounts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of ``/proc/self/mountinfo`` (proc_pid_mountinfo(5))."""

    point: str
    fstype: str
    source: str
    options: tuple[str, ...]
    """Options of the mount, then those of the file system."""
    read_only: bool
    root: str = "/"
    """Which folder of the file system is mounted here."""


def _unescape(field: bytes) -> str:
    # Blank, tab, line end and backslash are written as three octal digits.
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8) & 0xFF]), field))


def _parse_mounts(data: bytes) -> Iterator[Mount]:
    for line in data.splitlines():
        # ID, parent, device, root, point, options, any number of tags, "-", type, source, options.
        before, _, after = line.partition(b" - ")
        head, tail = before.split(b" "), after.split(b" ")
        if len(head) < 6 or len(tail) < 2:
            continue
        options = tuple(_unescape(head[5]).split(","))
        super_options = tuple(_unescape(tail[2]).split(",")) if len(tail) > 2 else ()
        yield Mount(
            point=_unescape(head[4]),
            fstype=_unescape(tail[0]),
            source=_unescape(tail[1]),
            options=options + super_options,
            read_only="ro" in options or "ro" in super_options,
            root=_unescape(head[3]),
        )


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def mount_of(path: str | os.PathLike[str], *, proc: Path = _PROC) -> Mount | None:
    """Return the mount that a path is on, or would be once it exists; None: unknown.

    Symbolic links are followed. Of several mounts on one point the last, which covers the others, counts.
    """
    data = _read(proc / "self" / "mountinfo")
    if data is None:
        return None
    try:
        # Resolves what exists; no mount is below what does not.
        real = os.path.realpath(path)
    except OSError:
        return None
    best: Mount | None = None
    for mount in _parse_mounts(data):
        if _is_below(real, mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


# --- Cores -----------------------------------------------------------------------------------------------


def usable_cores(*, proc: Path = _PROC) -> int:
    """Return how many cores this process may keep busy; at least 1.

    The least of the affinity mask (sched_setaffinity(2)) and every CPU quota from the process's cgroup up
    to the root of the hierarchy (cgroup v2 ``cpu.max``, v1 ``cpu.cfs_quota_us``), parts of a core rounded up.
    """
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cpu_groups(proc):
        quota = _quota(folder)
        if quota is not None:
            cores = min(cores, math.ceil(quota))
    return max(1, int(cores))


def _cpu_groups(proc: Path) -> Iterator[Path]:
    """Yield every cgroup folder that may bound this process's CPU time, innermost first (cgroups(7))."""
    groups, mounts = _read(proc / "self" / "cgroup"), _read(proc / "self" / "mountinfo")
    if groups is None or mounts is None:
        return
    # Lines are "ID:controllers:path"; in version 2 the controllers are empty.
    paths: dict[str, str] = {}
    for line in os.fsdecode(groups).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths["cgroup2"] = path
        elif "cpu" in controllers.split(","):
            paths["cgroup"] = path
    for mount in _parse_mounts(mounts):
        path = paths.get(mount.fstype, "")
        if not path or (mount.fstype == "cgroup" and "cpu" not in mount.options):
            continue
        # In a container without a cgroup namespace the path is the host's, and the mount shows a part of the
        # hierarchy; where the two do not meet, the mount's own top is the best that is known.
        inner = os.path.relpath(path, mount.root) if _is_below(path, mount.root) else "."
        folder, top = Path(os.path.normpath(os.path.join(mount.point, inner))), Path(mount.point)
        while folder != top and top in folder.parents:
            yield folder
            folder = folder.parent
        yield top


def _quota(folder: Path) -> float | None:
    """Return a cgroup's quota in cores; None: it has none."""
    data = _read(folder / "cpu.max")
    if data is not None:
        fields = data.split()
    else:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        fields = [(quota or b"").strip(), (period or b"").strip()]
    try:
        quota_us, period_us = (int(field) for field in fields)
    except ValueError:  # "max", or no such files
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


# --- The default folder ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Directory:
    """Where the cache lives when nobody says otherwise, and why there; nothing has been created."""

    path: Path
    why: str
    """One clause for people, as in "ACACHE_DIR is set"."""


def my_owners() -> tuple[frozenset[int], frozenset[int]]:
    """Return my user and my groups, as files have them; nobody and none where the platform knows neither."""
    if not hasattr(os, "geteuid"):
        return frozenset(), frozenset()
    return frozenset({os.geteuid()}), frozenset({os.getegid(), *os.getgroups()})


def default_directory(environ: Mapping[str, str] | None = None) -> Directory:
    """Return ``ACACHE_DIR``, else the user's cache folder, else one of ours in the temporary folder.

    Needs neither a home nor an entry in the password file, reads no file of the cache and creates nothing.

    :param environ: where ``ACACHE_DIR`` is looked up; None: this process's environment, which the platform's
        rules always go by.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("ACACHE_DIR", "").strip()
    lost = "neither ACACHE_DIR nor a home folder is set"
    if named:
        expanded = os.path.expanduser(named)
        # expanduser() leaves "~" alone where there is no home; a folder of that name is nobody's wish.
        if not expanded.startswith("~"):
            with contextlib.suppress(OSError):  # a relative path, and the working directory is gone
                expanded = os.path.abspath(expanded)
            return Directory(Path(expanded), "ACACHE_DIR is set")
        lost = f"ACACHE_DIR={named} needs a home folder, and none is known"
    else:
        folder = _user_folder()
        if folder is not None:
            return Directory(folder, "the user's cache folder")
    return Directory(_temporary_folder(), f"the temporary folder, since {lost}")


def _user_folder() -> Path | None:
    from platformdirs import user_cache_dir  # imported only when nobody names a folder

    try:
        folder = user_cache_dir("acache", appauthor=False)
    except (RuntimeError, OSError, KeyError):
        return None
    # Without a home, some versions raise, and some answer with "~" left in place.
    return Path(folder) if os.path.isabs(folder) else None


def _temporary_folder() -> Path:
    try:
        base = tempfile.gettempdir()
    except OSError:  # nothing is writable; then neither is this, and the cache says so
        base = os.path.abspath(os.sep) + "tmp"
    return Path(base, f"acache-{os.getuid()}" if hasattr(os, "getuid") else "acache")
