"""The few file operations that everything else uses: the seam where tests inject faults and crashes.

Store moves and beats are *generators that yield one operation at a time*, as a tuple of a name and its
arguments, and are sent its result (or have its OSError thrown in). `perform` runs a move whole, in one
trip to a worker thread; the simulator takes one step per schedule point and may crash between any two.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from errno import EFBIG, EINVAL, ENOENT, ESTALE
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from acache import _host

if TYPE_CHECKING:
    import io

    from acache._models import Buffer

__all__ = ["Covers", "File", "FileSystem", "OpenFile", "OsFileSystem", "Steps", "perform"]

T = TypeVar("T")
Steps: TypeAlias = Generator[tuple[Any, ...], Any, T]
Covers: TypeAlias = Callable[[int, int], bool]
"""Whether a file of that user and group id is believed."""

_READ = (
    os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
)
_CREATE = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_BINARY", 0)
)


@dataclass(frozen=True, slots=True)
class File:
    """What one read of a file found: its bytes, and whose they are."""

    data: bytes | bytearray
    uid: int
    gid: int
    mtime: float
    size: int


@dataclass(frozen=True, slots=True)
class OpenFile(File):
    """A file that was left open, of which nothing was read yet."""

    stream: io.BufferedReader


class FileSystem(Protocol):
    """What a store needs of a file system; every call may raise OSError. Paths are absolute."""

    def read(self, path: str, limit: int, covers: Covers | None = None) -> File:
        """Open (never following a link), read at most ``limit`` bytes, close.

        :param covers: judges user and group id of the owner before anything is read; what a stranger planted
            there, of whatever size, has then no data.
        :raises OSError: EFBIG for a larger file, EINVAL for what is no regular file.
        """
        ...

    def head(self, path: str, count: int) -> File:
        """Read the first ``count`` bytes at most; ``size`` is the whole file's."""
        ...

    def hold(self, path: str, limit: int) -> OpenFile:
        """Open (never following a link) and leave open, for who reads piece by piece; close its ``stream``.

        :raises OSError: EFBIG for a file of more than ``limit`` bytes, EINVAL for what is no regular file.
        """
        ...

    def create(self, path: str, chunks: Sequence[Buffer], durable: bool) -> None:
        """Create a file that must not exist, write all chunks, check the close (NFS reports ENOSPC there)."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, which must not exist."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file over whatever file has that name."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a name."""
        ...

    def refresh(self, folder: str) -> None:
        """Open and close a folder: an NFS client then asks the server what is in it."""
        ...

    def sync_folder(self, folder: str) -> None:
        """Make the names in a folder durable."""
        ...

    def listdir(self, folder: str) -> list[str]:
        """Return the names in a folder, in no order."""
        ...

    def survey(self, folder: str) -> list[tuple[str, int, float]]:
        """Return name, bytes and mtime of each regular file in a folder, but for what vanishes meanwhile."""
        ...

    def stamps(self, folders: Sequence[str]) -> list[int | None]:
        """Return, for each folder, its mtime in nanoseconds, which changes with every name that comes or goes
        (to within the file system's clock tick); None where it cannot be had.
        """
        ...

    def mkdir(self, folder: str) -> None:
        """Make a folder and its missing parents, honouring umask and setgid; existing ones are fine."""
        ...

    def touch(self, path: str) -> None:
        """Set a file's mtime to now."""
        ...

    def open_rw(self, path: str) -> int:
        """Open a file read-write without creating it."""
        ...

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        """Read from an open file."""
        ...

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        """Write into an open file."""
        ...

    def close(self, fd: int) -> None:
        """Close an open file."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file can be opened; only ENOENT and ESTALE say no, other errors are raised."""
        ...

    def process(self, pid: int) -> _host.ProcessState:
        """Say what is known of a process of this host."""
        ...


class OsFileSystem:
    """The real one."""

    def read(self, path: str, limit: int, covers: Covers | None = None) -> File:
        fd, info = self._open_regular(path)
        try:
            if covers is not None and not covers(info.st_uid, info.st_gid):
                return File(b"", info.st_uid, info.st_gid, info.st_mtime, info.st_size)
            if info.st_size > limit:
                raise OSError(EFBIG, os.strerror(EFBIG), path)
            return File(
                _read_exactly(fd, info.st_size), info.st_uid, info.st_gid, info.st_mtime, info.st_size
            )
        finally:
            os.close(fd)

    def head(self, path: str, count: int) -> File:
        fd, info = self._open_regular(path)
        try:
            data = _read_exactly(fd, min(count, info.st_size))
            return File(data, info.st_uid, info.st_gid, info.st_mtime, info.st_size)
        finally:
            os.close(fd)

    def hold(self, path: str, limit: int) -> OpenFile:
        fd, info = self._open_regular(path)
        try:
            if info.st_size > limit:
                raise OSError(EFBIG, os.strerror(EFBIG), path)
            stream = os.fdopen(fd, "rb")
        except BaseException:
            os.close(fd)
            raise
        return OpenFile(b"", info.st_uid, info.st_gid, info.st_mtime, info.st_size, stream)

    @staticmethod
    def _open_regular(path: str) -> tuple[int, os.stat_result]:
        fd = os.open(path, _READ)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(EINVAL, "not a regular file", path)
        except BaseException:
            os.close(fd)
            raise
        return fd, info

    def create(self, path: str, chunks: Sequence[Buffer], durable: bool) -> None:
        fd = os.open(path, _CREATE, 0o666)
        try:
            for chunk in chunks:
                view = memoryview(chunk).cast("B")
                while view:
                    view = view[os.write(fd, view) :]
            if durable:
                os.fsync(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(fd)
            raise
        os.close(fd)

    def link(self, source: str, target: str) -> None:
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def refresh(self, folder: str) -> None:
        os.close(os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)))

    def sync_folder(self, folder: str) -> None:
        if sys.platform == "win32":
            return
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def listdir(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def survey(self, folder: str) -> list[tuple[str, int, float]]:
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError as error:
                    if error.errno not in (ENOENT, ESTALE):
                        raise
                    continue
                if stat.S_ISREG(info.st_mode):
                    found.append((entry.name, info.st_size, info.st_mtime))
        return found

    def stamps(self, folders: Sequence[str]) -> list[int | None]:
        found: list[int | None] = []
        for folder in folders:
            try:
                found.append(os.stat(folder).st_mtime_ns)
            except OSError:
                found.append(None)
        return found

    def mkdir(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)

    def touch(self, path: str) -> None:
        if os.utime in os.supports_follow_symlinks:
            os.utime(path, follow_symlinks=False)
        else:
            os.utime(path)

    def open_rw(self, path: str) -> int:
        return os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0))

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        return os.pread(fd, count, offset)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def close(self, fd: int) -> None:
        os.close(fd)

    def exists(self, path: str) -> bool:
        try:
            os.close(os.open(path, _READ))
        except OSError as error:
            if error.errno in (ENOENT, ESTALE):
                return False
            raise
        return True

    def process(self, pid: int) -> _host.ProcessState:
        return _host.process_state(pid)


def _read_exactly(fd: int, size: int) -> bytes | bytearray:
    """Read ``size`` bytes, or what there is: a file that shrank shows as a torn entry."""
    data = os.read(fd, size) if size else b""
    if len(data) == size:
        return data
    buffer = bytearray(data)
    while len(buffer) < size:
        more = os.read(fd, size - len(buffer))
        if not more:
            break
        buffer += more
    return buffer


def perform(steps: Steps[T], fs: FileSystem) -> T:
    """Run a move whole: every operation it yields, one after the other, in this thread."""
    try:
        operation = next(steps)
        while True:
            try:
                result = getattr(fs, operation[0])(*operation[1:])
            except Exception as error:
                operation = steps.throw(error)
            else:
                operation = steps.send(result)
                del result  # it may be a whole file, and the next operation reads another
    except StopIteration as stop:
        value: T = stop.value
        return value
