"""A guard's process and socket, as the parent sees them: start, talk, dismiss, and be sure of its end."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from typing import TYPE_CHECKING, TypeVar

import anyio

from acache._errors import CompilerCrashedError
from acache._frames import Decoder
from acache._models import CompileFailure
from acache._threads import Crew

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

BOOT = (
    "import sys\n"
    "package = sys.modules['acache'] = type(sys)('acache')\n"
    "package.__path__ = [sys.argv[2]]\n"
    "from acache._guard import main\n"
    "main(sys.argv[3:])\n"
)
"""What ``python -I -S -c`` runs, with arguments ``acache-guard``, the package's folder, and those of `main`.

The package's ``__init__`` (and so anyio) is passed over; the import system's cached bytecode is not, for
compiling this file anew would double the guard's start.
"""

_PATIENCE = 5.0
"""Seconds beyond the grace that a dismissed guard may take before it is killed itself."""
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)

_crew = Crew("acache_process_threads", 16)
_unreaped: list[subprocess.Popen[bytes]] = []
"""Guards that even SIGKILL did not end in time (they hang in the kernel); looked at on later starts."""


class GuardLostError(Exception):
    """The guard itself was killed: no verdict on the compile, whose processes have been swept."""


async def in_thread(function: Callable[[], T]) -> T:
    """Call a blocking function in one of this floor's own threads; cancellation waits for it.

    :raises OSError: EAGAIN: there is no thread to be had (they count as processes of a user); or what the
        function raised.
    """
    return await _crew.run(function)


def not_started(text: str, code: int | None = None) -> CompilerCrashedError:
    """Make the error for a program, or a guard, that could not be started; ``code`` is the errno."""
    full = code in (errno.ENOSPC, errno.EDQUOT)
    return CompilerCrashedError(CompileFailure(reason="disk" if full else "spawn", text=text))


class Guard:
    """A guard's process and socket, as its parent sees them."""

    def __init__(self, grace: float) -> None:
        self.workspace = ""
        self.program = (0, 0)  # process id (and group), start time
        self.dismissed = False
        self._grace = grace
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._state_lock = threading.Lock()
        self._spawning = self._forsaken = self._over = False
        self._decoder = Decoder()
        self._inbox: deque[tuple[str, list[bytes]]] = deque()
        self._sending = anyio.Lock(fast_acquire=True)
        self._burying = anyio.Lock(fast_acquire=True)
        self._link, self._far = socket.socketpair()
        self._link.setblocking(False)

    # Start.

    async def start(self) -> None:
        """Start the process, off the loop's thread.

        :raises CompilerCrashedError: no process, thread, memory or descriptor is to be had.
        """
        try:
            await in_thread(self._spawn)
        except OSError as error:
            raise not_started(f"the guard could not be started: {error}", error.errno) from error

    def _spawn(self) -> None:
        with self._state_lock:
            if self._forsaken:
                return
            self._spawning = True
        _unreaped[:] = [process for process in _unreaped if process.poll() is None]
        try:
            if not sys.executable:
                raise FileNotFoundError(errno.ENOENT, "no Python interpreter (sys.executable is empty)")
            temp = os.fsencode(tempfile.gettempdir()).hex()
            arguments = [str(self._far.fileno()), str(self._owner), repr(float(self._grace)), temp]
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", BOOT, "acache-guard", _PACKAGE, *arguments],
                pass_fds=(self._far.fileno(),),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
            with self._state_lock:
                self._process = process
            with contextlib.suppress(AttributeError, OSError):  # not Linux, or an old kernel
                self._pidfd = os.pidfd_open(process.pid)
        finally:
            self._far.close()
            with self._state_lock:
                self._spawning = False
                forsaken = self._forsaken
        if forsaken:
            self._bury()

    # Talk.

    async def send(self, frame: bytes) -> None:
        """Send one frame.

        :raises GuardLostError: the guard is gone, and what it left has been swept.
        """
        async with self._sending:
            rest = memoryview(frame)
            try:
                while rest:
                    try:
                        rest = rest[self._link.send(rest, _NO_SIGPIPE) :]
                    except BlockingIOError:
                        await anyio.wait_writable(self._link)
            except OSError:
                await self._lost()
            finally:
                if 0 < len(rest) < len(frame):
                    self.dismiss()  # a frame cut short (by cancellation) cannot be mended

    async def receive(self) -> tuple[str, list[bytes]]:
        """Return the next frame.

        :raises GuardLostError: the guard is gone, and what it left has been swept.
        """
        while not self._inbox:
            try:
                data = self._link.recv(1 << 18)
            except BlockingIOError:
                await anyio.wait_readable(self._link)
                continue
            except OSError:
                data = b""
            if not data:
                await self._lost()
            self._inbox.extend(self._decoder.feed(data))
        return self._inbox.popleft()

    def quiet(self) -> bool:
        """Whether the guard lives and has said nothing that nobody asked for; does not wait."""
        if self.dismissed or self._inbox:
            return False
        try:
            self._inbox.extend(self._decoder.feed(self._link.recv(1 << 18)))
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    async def _lost(self) -> None:
        if self.dismissed:
            raise RuntimeError("this workspace is closed: its compile was cancelled, or its block was left")
        with contextlib.suppress(OSError):  # its last words, if it had any
            self._inbox.extend(self._decoder.feed(self._link.recv(1 << 18)))
        words = [fields[0].decode(errors="replace") for kind, fields in self._inbox if kind == "oops"]
        self.dismiss()
        await self.gone()
        code = self._process.returncode if self._process else None
        raise GuardLostError(": ".join([f"the guard ended by itself (status {code})", *words]))

    # Stop.

    def dismiss(self) -> None:
        """Shut the socket down: from here on the guard stops all, whatever becomes of this task.

        Shutdown, not close: a process forked meanwhile holds this end open as well. Such a fork must not
        end its parent's compile by unwinding its own copy of the stack.
        """
        if not self.dismissed and os.getpid() == self._owner:
            self.dismissed = True
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)

    async def gone(self) -> None:
        """Wait until a dismissed guard, all that ran under it and its workspace are gone.

        Shielded, and bounded by the grace and some seconds. Only a native ``Task.cancel()`` of asyncio
        pierces the shield; `leave` sees to that.
        """
        with anyio.CancelScope(shield=True):
            async with self._burying:
                if self._process is None or self._over:
                    return
                if self._pidfd >= 0:
                    with anyio.move_on_after(self._grace + _PATIENCE):
                        await anyio.wait_readable(self._pidfd)
                if self._process.poll() == 0:
                    self._close_pidfd()
                else:
                    try:
                        await in_thread(self._bury)
                    except OSError:
                        return  # no thread to be had: see `leave`
                self._over = True

    async def leave(self) -> None:
        """Stop everything and wait for it; if even the wait is broken off, a thread sees to the rest."""
        self.dismiss()
        try:
            await self.gone()
        finally:
            if not self._over:
                self._forsake()
            anyio.notify_closing(self._link)
            self._link.close()

    def _forsake(self) -> None:
        with self._state_lock:
            self._forsaken = True
            if self._spawning:
                return  # the thread that starts the guard will find out
            self._far.close()
        if self._process is not None:
            try:
                threading.Thread(target=self._bury, name="acache-guard-reaper").start()
            except RuntimeError:  # no thread to be had: a later start reaps it
                self._close_pidfd()
                _unreaped.append(self._process)

    def _bury(self) -> None:
        """Reap the guard, killing it if it overstays; sweep if it did not end in good order. Blocks."""
        process = self._process
        if process is None:
            return
        try:
            process.wait(self._grace + _PATIENCE if self._pidfd < 0 or self._forsaken else 0.1)
        except subprocess.TimeoutExpired:
            process.kill()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                _unreaped.append(process)
        self._close_pidfd()
        if process.returncode != 0 and self.workspace:
            from acache._sweep import sweep  # not everywhere to be had, as posix is not

            sweep(self.workspace, *self.program)

    def _close_pidfd(self) -> None:
        with self._state_lock:  # a wait that was broken off may leave one thread at it and start another
            fd, self._pidfd = self._pidfd, -1
        if fd >= 0:
            os.close(fd)
