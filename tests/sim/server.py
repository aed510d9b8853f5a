"""A shared file system of the mind: inodes with link counts, a server's clock, and what each client believes.

`Server` is what is true; `Client` is one host's view of it and implements `acache._fs.FileSystem`. In network
mode a client remembers that a name was not there until it opens the folder, makes something in it, or half a
minute has passed; with ``stale`` it also goes on reading what it has read for that many seconds.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acache._fs import File
from acache._host import ProcessState

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from acache._models import Buffer

NEGATIVE = 30.0
"""Seconds for which a client goes by a cached "not there"."""
IN_PLACE = 40
"""Bytes that concurrent readers see written as one; longer writes tear between pieces of that many."""


def fault(number: int, path: str) -> OSError:
    """Make the OSError of that number."""
    return OSError(number, os.strerror(number), path)


@dataclass(slots=True)
class Inode:
    """One file, under however many names."""

    data: bytearray
    uid: int
    mtime: float
    links: int = 0


class Server:
    """What is true."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.names: dict[str, Inode] = {}
        self.folders: set[str] = {"/"}
        self.watchers: list[Callable[[str, bytes], None]] = []
        """Called before a name goes, with the name and what the file holds."""

    def folder_of(self, path: str) -> str:
        """Return the folder that holds a name.

        :raises OSError: ENOENT: there is none.
        """
        folder = path.rpartition("/")[0] or "/"
        if folder not in self.folders:
            raise fault(errno.ENOENT, path)
        return folder

    def add(self, path: str, inode: Inode) -> None:
        """Give a file a name that must not exist."""
        self.folder_of(path)
        if path in self.names:
            raise fault(errno.EEXIST, path)
        self.names[path] = inode
        inode.links += 1

    def drop(self, path: str) -> None:
        """Take a name away."""
        inode = self.names.get(path)
        if inode is None:
            raise fault(errno.ENOENT, path)
        for watcher in self.watchers:
            watcher(path, bytes(inode.data))
        del self.names[path]
        inode.links -= 1

    def move(self, source: str, target: str) -> None:
        """Rename over."""
        inode = self.names.get(source)
        if inode is None:
            raise fault(errno.ENOENT, source)
        if target in self.names:
            self.drop(target)
        del self.names[source]
        self.names[target] = inode


class Client:
    """One host's view of a server."""

    def __init__(
        self, server: Server, *, uid: int, network: bool = False, stale: float = 0.0, linkless: bool = False
    ) -> None:
        self.server = server
        self.uid = uid
        self.network = network
        self.stale = stale
        self.linkless = linkless
        self.processes: dict[int, ProcessState] = {}
        self._absent: dict[str, float] = {}
        self._remembered: dict[str, tuple[float, Inode, File]] = {}
        self._open: dict[int, tuple[Inode, str]] = {}
        self._next_fd = 3

    # --- what the client believes ------------------------------------------------------------------

    def _find(self, path: str) -> Inode:
        now = self.server.clock()
        since = self._absent.get(path)
        if since is not None and now - since < NEGATIVE:
            raise fault(errno.ENOENT, path)
        inode = self.server.names.get(path)
        if inode is None:
            if self.network:
                self._absent[path] = now
            raise fault(errno.ENOENT, path)
        self._absent.pop(path, None)
        return inode

    def _file(self, path: str) -> File:
        now = self.server.clock()
        if self.stale:
            since, _, file = self._remembered.get(path, (-1e9, None, None))
            if file is not None and now - since < self.stale:
                return file
        inode = self._find(path)
        file = File(bytes(inode.data), inode.uid, inode.uid, inode.mtime, len(inode.data))
        if self.stale:
            self._remembered[path] = (now, inode, file)
        return file

    def _changed(self, *paths: str) -> None:
        """This client itself changed these names: it knows their folder anew."""
        for path in paths:
            self._remembered.pop(path, None)
        self.refresh(paths[0].rpartition("/")[0])

    # --- FileSystem ----------------------------------------------------------------------------------

    def read(self, path: str, limit: int, covers: object = None) -> File:
        file = self._file(path)
        if file.size > limit:
            raise fault(errno.EFBIG, path)
        return file

    def head(self, path: str, count: int) -> File:
        file = self._file(path)
        return File(file.data[:count], file.uid, file.gid, file.mtime, file.size)

    def create(self, path: str, chunks: Sequence[Buffer], durable: bool) -> None:
        for _ in self.creating(path, chunks):
            pass

    def creating(self, path: str, chunks: Sequence[Buffer], *, number: int | None = None) -> Iterator[None]:
        """Create in two steps: others may see it empty. With an error's ``number``, half is written."""
        inode = Inode(bytearray(), self.uid, self.server.clock())
        self.server.add(path, inode)
        self._changed(path)
        yield
        data = b"".join(bytes(chunk) for chunk in chunks)
        if number is not None:
            inode.data[:] = data[: len(data) // 2]
            raise fault(number, path)
        inode.data[:] = data
        inode.mtime = self.server.clock()

    def link(self, source: str, target: str) -> None:
        if self.linkless:
            raise fault(errno.EPERM, target)
        self.server.add(target, self._find(source))
        self._changed(target)

    def rename(self, source: str, target: str) -> None:
        self._find(source)
        self.server.move(source, target)
        self._changed(source, target)

    def unlink(self, path: str) -> None:
        self._find(path)
        self.server.drop(path)
        self._changed(path)

    def refresh(self, folder: str) -> None:
        if folder not in self.server.folders:
            raise fault(errno.ENOENT, folder)
        for path in [path for path in self._absent if path.rpartition("/")[0] == folder]:
            del self._absent[path]

    def sync_folder(self, folder: str) -> None:
        self.refresh(folder)

    def listdir(self, folder: str) -> list[str]:
        self.refresh(folder)
        return [path.rpartition("/")[2] for path in self.server.names if path.rpartition("/")[0] == folder]

    def mkdir(self, folder: str) -> None:
        while folder:
            self.server.folders.add(folder)
            self.refresh(folder)
            folder = folder.rpartition("/")[0]

    def touch(self, path: str) -> None:
        self._find(path).mtime = self.server.clock()

    def open_rw(self, path: str) -> int:
        inode = self._find(path)
        self._next_fd += 1
        self._open[self._next_fd] = (inode, path)
        return self._next_fd

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        return bytes(self._inode(fd).data[offset : offset + count])

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        for _ in self.writing(fd, data, offset):
            pass
        return len(data)

    def writing(self, fd: int, data: bytes, offset: int) -> Iterator[None]:
        """Write in place: at once when it is short, else in steps that readers can see."""
        inode = self._inode(fd)
        self._remembered.pop(self._open[fd][1], None)
        for at in range(0, len(data), IN_PLACE):
            if at:
                yield
            inode.data[offset + at : offset + at + IN_PLACE] = data[at : at + IN_PLACE]
            inode.mtime = self.server.clock()

    def close(self, fd: int) -> None:
        del self._open[fd]

    def _inode(self, fd: int) -> Inode:
        if fd not in self._open:
            raise fault(errno.EBADF, str(fd))
        return self._open[fd][0]

    def exists(self, path: str) -> bool:
        try:
            self._file(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                return False
            raise
        return True

    def process(self, pid: int) -> ProcessState:
        return self.processes.get(pid, ProcessState(exists=False))

    # --- for the scheduler ---------------------------------------------------------------------------

    def begin(self, operation: tuple[Any, ...]) -> Generator[None, None, Any]:
        """Do an operation, in as many steps as others can see; the iterator's end carries the result."""
        match operation:
            case ("create", path, chunks, _):
                yield from self.creating(path, chunks)
                return None
            case ("pwrite", fd, data, offset):
                yield from self.writing(fd, data, offset)
                return len(data)
        return getattr(self, operation[0])(*operation[1:])
