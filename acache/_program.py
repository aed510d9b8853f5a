"""One program under the guard, as the guard sees it: its process, its streams, what it has used.

Part of the guard's process, which must start fast: only modules that the interpreter has at hand.
"""

from __future__ import annotations

import posix
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Kept:
    """The head and the tail of a stream, with the middle dropped and counted."""

    def __init__(self, limit: int) -> None:
        self._head_room = limit - limit // 2
        self._tail_room = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = 0

    def add(self, data: bytes) -> None:
        """Take the next piece."""
        room = self._head_room - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - self._tail_room
        if excess > 0:
            del self._tail[:excess]
            self.dropped += excess

    def bytes(self) -> bytes:
        """Return what was kept."""
        return bytes(self._head + self._tail)


class Relayed(Kept):
    """The output of a program that serves: passed on as it comes, and not kept."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        super().__init__(0)
        self._say = say

    def add(self, data: bytes) -> None:
        """Pass the next piece on."""
        self._say(data)


class Run:
    """One program: its process, its streams, and what it has used so far."""

    def __init__(self, pid: int, streams: dict[int, Kept], inlet: int = -1) -> None:
        self.pid = pid
        self.began = time.monotonic()
        self.open = dict(streams)
        self.kept = list(streams.values())
        self.inlet = inlet  # what is written to the input of a program that serves; -1: none, or it is gone
        self.untold = bytearray()
        self.cpu = 0.0
        self.status: int | None = None
        self.fd = pidfd(pid)

    def tell(self, order: bytes = b"") -> None:
        """Write an order, or the rest of one, to the program's input, as far as there is room."""
        self.untold += order
        try:
            while self.untold:
                del self.untold[: posix.write(self.inlet, self.untold)]
        except BlockingIOError:
            pass
        except OSError:  # it reads no more: its end will tell
            self.untold.clear()

    def read(self, fd: int) -> int:
        """Read once from a stream; return the bytes got, 0 for nothing now, and forget it at its end."""
        try:
            data = posix.read(fd, 1 << 16)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if data:
            self.open[fd].add(data)
        else:
            del self.open[fd]
            posix.close(fd)
        return len(data)

    def close(self) -> None:
        """Close every descriptor."""
        for fd in [*self.open, self.fd, self.inlet]:
            if fd >= 0:
                posix.close(fd)
        self.open.clear()
        self.fd = self.inlet = -1


def pidfd(pid: int) -> int:
    """Return a descriptor that is readable once the process has ended; -1 where there is no such thing."""
    try:
        return posix.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, an old kernel, or a sandbox
        return -1
