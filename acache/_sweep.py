"""What runs below a guard and what dead guards left: processes by /proc, folders removed step by step.

Part of the guard's process, which must start fast: only modules that the interpreter has at hand, so all
is done with ``posix`` calls. Long work is a generator of small steps, for the guard supervises meanwhile.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself would pull in enum
import errno
import posix
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_ONLY = posix.O_RDONLY | posix.O_CLOEXEC
_FOLDER = _READ_ONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW
_DEPTH_MAX = 100  # folders within folders: each open one is a descriptor
_SWEEP_MAX = 32  # dead workspaces that one guard removes
_SWEEP_SECONDS = 2.0
PPID, PGRP, UTIME, STARTED = 1, 2, 11, 19
"""Fields of /proc/PID/stat behind the name: proc(5)."""


def _slurp(path: str) -> bytes:
    """Read a file of /proc; b"" if it, or its process, is gone."""
    try:
        fd = posix.open(path, _READ_ONLY)
    except OSError:
        return b""
    parts = []
    try:
        while part := posix.read(fd, 1 << 16):
            parts.append(part)
    except OSError:
        pass
    finally:
        posix.close(fd)
    return b"".join(parts)


def stat(pid: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat behind the name (which may hold blanks and brackets), or []."""
    return _slurp(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot (0 where that cannot be told)."""
    fields = stat(pid)
    return int(fields[STARTED]) if fields else 0


def _processes() -> list[int]:
    try:
        return [int(name) for name in posix.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = posix.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        found += [int(child) for child in _slurp(f"/proc/{pid}/task/{thread}/children").split()]
    return found


def descendants(root: int) -> list[int]:
    """Return all living or unreaped processes below ``root``: a snapshot, so loop until there are none."""
    kin: dict[int, list[int]] | None = None
    try:
        posix.stat(f"/proc/{root}/task/{root}/children")
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        kin = {}
        for pid in _processes():
            if fields := stat(pid):
                kin.setdefault(int(fields[PPID]), []).append(pid)
    found, at = [root], 0
    while at < len(found):
        children = _children(found[at]) if kin is None else kin.get(found[at], [])
        found += [pid for pid in children if pid not in found]
        at += 1
    return found[1:]


def kill(pid: int, number: int) -> bool:
    """Send a signal; False if the system forbids it (a set-uid program)."""
    try:
        posix.kill(pid, number)
    except PermissionError:
        return False
    except OSError:
        pass  # gone already
    return True


def _strays(workspace: bytes) -> Iterator[int]:
    """Yield each process that was started in ``workspace``, and 0 for each other one looked at."""
    mark = b"TMPDIR=" + workspace
    mine = posix.getpid()
    for pid in _processes():
        yield pid if pid != mine and mark in _slurp(f"/proc/{pid}/environ").split(b"\0") else 0


def _empty(folder: int, depth: int = 0) -> Iterator[None]:
    """Remove all that is in an open folder and close it, one entry a step; follows no link."""
    try:
        posix.fchmod(folder, 0o700)
        for name in posix.listdir(folder):
            yield
            try:
                posix.unlink(name, dir_fd=folder)
                continue
            except OSError:
                if depth >= _DEPTH_MAX or not _is_folder(name, folder):
                    continue
            try:
                try:
                    below = posix.open(name, _FOLDER, dir_fd=folder)
                except PermissionError:
                    posix.chmod(name, 0o700, dir_fd=folder)
                    below = posix.open(name, _FOLDER, dir_fd=folder)
                yield from _empty(below, depth + 1)
                posix.rmdir(name, dir_fd=folder)
            except OSError:
                continue
    except OSError:
        pass  # what cannot be removed stays for a later guard
    finally:
        posix.close(folder)


def _is_folder(path: str | bytes, within: int | None = None) -> bool:
    try:
        return posix.stat(path, dir_fd=within, follow_symlinks=False).st_mode & 0o170000 == 0o040000
    except OSError:
        return False


def remove(workspace: bytes) -> Iterator[None]:
    """Remove a workspace step by step; whoever is dying there may still add a file, so more than once."""
    for _ in range(4):
        try:
            yield from _empty(posix.open(workspace, _FOLDER))
            posix.rmdir(workspace)
        except FileNotFoundError:
            return
        except OSError:
            continue


def sweep(workspace: str | bytes, pgid: int = 0, started: int = 0) -> None:
    """Kill what a dead guard left of its workspace, and remove the folder. Blocks for at most some 2 s.

    :param pgid: the program's group; it is killed only if its leader still is the process that started at
        ``started`` (`start_time`), for a number alone may belong to somebody else by now.

    Apart from the group, processes are known by ``TMPDIR``. Errors are swallowed.
    """
    path = workspace.encode(errors="surrogateescape") if isinstance(workspace, str) else workspace
    deadline = time.monotonic() + _SWEEP_SECONDS
    while True:
        found = [pid for pid in _strays(path) if pid]
        if pgid and started and start_time(pgid) == started:
            found += [pid for pid in _processes() if (stat(pid) or [b""] * 3)[PGRP] == b"%d" % pgid]
        for pid in found:
            kill(pid, _signal.SIGKILL)
            try:
                posix.waitpid(pid, posix.WNOHANG)  # ours now, if this process adopts orphans (pid 1)
            except OSError:
                pass
        found = [pid for pid in found if (stat(pid) or [b"Z"])[0] not in b"ZX"]
        if not found or time.monotonic() > deadline:
            break
        time.sleep(0.005)
    for _ in remove(path):
        pass


def lock(folder: int) -> bool:
    """Lock an open folder for the life of this process, without waiting; False if that is not possible.

    The kernel's own answer to "is its guard alive", which also holds between containers that share a
    temporary folder and cannot see each other's processes. systemd-tmpfiles leaves locked folders alone.
    """
    import fcntl

    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sweep_siblings(home: bytes, own: bytes) -> Iterator[None]:
    """Remove the workspaces whose guard is dead, and what runs in them, one small step at a time."""
    left = _SWEEP_MAX
    try:
        names = posix.listdir(home)
    except OSError:
        return
    for name in names:
        yield
        path = home + b"/" + name
        pid, started, *_ = [*name.split(b"-"), b""]
        if path == own or not left or not pid.isdigit() or not started.isdigit():
            continue
        if _lives(int(pid), int(started)):
            continue
        try:
            folder = posix.open(path, _FOLDER)
        except OSError:
            continue
        try:
            if lock(folder):
                left -= 1
                for stray in _strays(path):
                    if stray:
                        kill(stray, _signal.SIGKILL)
                    yield
                yield from remove(path)
        finally:
            posix.close(folder)


def _lives(pid: int, started: int) -> bool:
    if fields := stat(pid):
        return fields[0] not in (b"Z", b"X") and int(fields[STARTED]) == started
    try:
        posix.kill(pid, 0)  # no /proc here
    except OSError:
        return False
    return not started


def make_workspace(temp: bytes) -> tuple[bytes, bytes, bool]:
    """Make and lock ``<temp>/acache-work-<uid>/<pid>-<start time>``, for nobody but us.

    :returns: the home of all workspaces, the new one, and whether that home is this one's alone, since
        the usual name is taken by somebody else.
    :raises OSError: there is no room, or the folder cannot be written.
    """
    home = b"%s/acache-work-%d" % (temp, posix.geteuid())
    alone = not _private(home)
    if alone:
        home += b"-" + _random()
        posix.mkdir(home, 0o700)
    name = b"%d-%d" % (posix.getpid(), start_time(posix.getpid()))
    for _ in range(8):
        path = home + b"/" + name
        try:
            posix.mkdir(path, 0o700)
            posix.chmod(path, 0o700)  # whatever the umask says
            folder = posix.open(path, _FOLDER)
        except (FileExistsError, FileNotFoundError):
            # Another container's guard of that number, or one that swept ours before it was locked.
            name = name[: name.rfind(b"-")] if name.count(b"-") > 1 else name
            name += b"-" + _random()
            continue
        lock(folder)  # kept open for life; without locks here, the name alone has to do
        if _same(folder, path):
            return home, path, alone
        posix.close(folder)
    raise FileExistsError(errno.EEXIST, "no free name for a workspace", home)


def _same(folder: int, path: bytes) -> bool:
    try:
        held, named = posix.fstat(folder), posix.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)


def _random() -> bytes:
    return posix.urandom(8).hex().encode()


def _private(home: bytes) -> bool:
    """Make the folder, if need be; tell whether it is a real one, ours, and closed to others."""
    try:
        posix.mkdir(home, 0o700)
    except FileExistsError:
        pass
    facts = posix.stat(home, follow_symlinks=False)
    return _is_folder(home) and facts.st_uid == posix.geteuid() and not facts.st_mode & 0o077
