"""The guard: supervises one compiler, beats its lease, leaves nothing behind; runs under ``python -I -S``.

One guard serves one workspace. It makes the folder, starts programs in it on request (one that stays and
serves is given lines and gives lines), rewrites the counter of the lease while they run, and ends when its
parent shuts the socket down or dies: TERM to all that was started, a grace, KILL, reap, remove the folder.
That one way serves cancellation, time-out and the parent's own SIGKILL alike.

It starts in about 10 ms, so it imports only what the interpreter has at hand. `acache._frames` says how it is
spoken to.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself would pull in enum
import errno
import posix
import select
import sys
import time

from acache._beat import Beater
from acache._frames import Decoder, encode
from acache._program import Kept, Relayed, Run, pidfd
from acache._sweep import (
    PGRP,
    STARTED,
    UTIME,
    descendants,
    kill,
    make_workspace,
    remove,
    start_time,
    stat,
    sweep_siblings,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PIPE_MAX = 1 << 20  # the largest pipe an ordinary user may have: pipe(7), pipe-max-size
_PARENT_LOOK = 0.2  # seconds between looks at getppid() where there is no pidfd
_CHILD_LOOK = 0.01  # seconds between looks at a child where there is no pidfd, or at orphans
_OUTBOX_MAX = 1 << 20  # bytes that a parent may leave unread before no more is relayed
_UNKILLABLE = 2.0  # seconds after which processes that may not be killed (set-uid programs) are left
_TICKS = posix.sysconf("SC_CLK_TCK")
_CATCHABLE = [number for number in range(1, 32) if number not in (_signal.SIGKILL, _signal.SIGSTOP)]


class _Guard:
    def __init__(self, link: int, parent: int, grace: float) -> None:
        self._link = link
        self._parent = parent
        self._grace = grace
        self._parent_fd = pidfd(parent)
        self._home = self._workspace = b""
        self._alone = False
        self._decoder = Decoder()
        self._outbox = bytearray()
        self._chores: Iterator[None] | None = None
        self._run: Run | None = None
        self._beater = Beater()
        self._lease: tuple[bytes, bytes, str, bytes] | None = None
        self._interval = 0.0
        self._counter = 0
        self._next_beat = 0.0
        self._progress = 0
        self._seen: dict[int, tuple[int, int]] = {}  # pid: start time, CPU milliseconds

    def serve(self, temp: bytes) -> None:
        """Make the workspace and answer the parent until it shuts the socket down, or dies."""
        self._home, self._workspace, self._alone = make_workspace(temp)
        self._say("ready", self._workspace)
        self._flush()
        _adopt_orphans()
        self._chores = sweep_siblings(self._home, self._workspace)
        while posix.getppid() == self._parent and self._turn():
            pass

    # One turn of the loop.

    def _turn(self) -> bool:
        ready = self._wait()
        if self._parent_fd in ready:
            return False
        if ready.get(self._link, 0) & select.POLLOUT:
            self._flush()
        if ready.get(self._link, 0) & ~select.POLLOUT and not self._receive():
            return False
        if self._run is not None:
            for fd in self._run.open.keys() & ready.keys():
                self._progress += self._run.read(fd)
            if self._run.inlet in ready and self._run.untold:
                self._run.tell()
            self._flush()
        self._reap()
        if self._run is not None and self._run.status is not None:
            self._report(self._run, self._run.status)
        if self._lease is not None and time.monotonic() >= self._next_beat:
            self._beat(self._lease)
        elif self._chores is not None and not ready:
            self._tidy(self._chores)
        return True

    def _tidy(self, chores: Iterator[None]) -> None:
        """Take one small step of sweeping what dead guards left; no error of that is ours."""
        try:
            next(chores)
        except (StopIteration, OSError, ValueError):
            self._chores = None

    def _wait(self) -> dict[int, int]:
        poll = select.poll()
        poll.register(self._link, select.POLLIN | (select.POLLOUT if self._outbox else 0))
        waits = []
        if self._parent_fd >= 0:
            poll.register(self._parent_fd, select.POLLIN)
        else:
            waits.append(_PARENT_LOOK)
        if self._run is not None:
            for fd, stream in self._run.open.items():
                if len(self._outbox) < _OUTBOX_MAX or not isinstance(stream, Relayed):
                    poll.register(fd, select.POLLIN)
            if self._run.untold:
                poll.register(self._run.inlet, select.POLLOUT)
            if self._run.fd >= 0:
                poll.register(self._run.fd, select.POLLIN)
            else:
                waits.append(_CHILD_LOOK)
        if self._lease is not None:
            waits.append(max(0.0, self._next_beat - time.monotonic()))
        if self._chores is not None:
            waits.append(0.0)
        return dict(poll.poll(min(waits) * 1000 if waits else None))

    # Talking with the parent, which may have stopped reading: nothing here waits.

    def _say(self, kind: str, *fields: bytes) -> None:
        self._outbox += encode(kind, *fields)

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: posix.write(self._link, self._outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox.clear()  # nobody is there to hear it; the end shows when reading

    def _receive(self) -> bool:
        try:
            data = posix.read(self._link, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for kind, fields in self._decoder.feed(data):
            match kind:
                case "run":
                    self._start(fields)
                case "serve":
                    self._start(fields, serves=True)
                case "tell":
                    if self._run is not None:  # else "exit" is on its way
                        self._run.tell(*fields)
                case "lease":
                    slot, successor, nonce, interval, folder, counter = fields
                    self._lease = (slot, successor, nonce.decode(), folder)
                    self._interval, self._counter = float(interval), int(counter)
                    self._next_beat = time.monotonic() + self._interval
                case "idle":
                    self._lease = None
                case _:
                    raise ValueError(f"unknown request {kind!r}")
        self._flush()
        return bool(data)

    # Programs.

    def _start(self, fields: list[bytes], *, serves: bool = False) -> None:
        executable, cwd, stdin = fields[:3]
        limit, argc = int(fields[3]), int(fields[4])
        argv, env = fields[5 : 5 + argc], fields[5 + argc :]
        if self._run is not None:
            raise ValueError("a program is running already")
        opened: list[int] = []
        kept: list[int] = []
        inlet = -1
        try:
            if serves:
                reader, inlet = posix.pipe()
                opened.append(reader)
                posix.set_blocking(inlet, False)
            else:
                opened.append(posix.open(stdin or b"/dev/null", posix.O_RDONLY | posix.O_CLOEXEC))
            if stdin:
                posix.unlink(stdin)  # made for this run alone: no compiler shall find it among its outputs
            for _ in range(2):
                reader, writer = posix.pipe()
                kept.append(reader)
                opened.append(writer)
                posix.set_blocking(reader, False)
            posix.chdir(cwd)
            pid = posix.posix_spawn(
                executable,
                argv,
                dict(pair.split(b"=", 1) for pair in env),
                file_actions=[(posix.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(opened)],
                setsid=True,
                setsigmask=[],
                setsigdef=_CATCHABLE,
            )
        except (OSError, ValueError) as error:
            for fd in [*kept, inlet]:
                if fd >= 0:
                    posix.close(fd)
            self._say("failed", b"%d" % (getattr(error, "errno", None) or errno.EINVAL), _text(error))
            return
        finally:
            for fd in opened:
                posix.close(fd)
            posix.chdir("/")
        streams = [Kept(limit) for _ in kept]
        if serves:
            streams[0] = Relayed(lambda data: self._say("said", data))
        self._run = Run(pid, dict(zip(kept, streams, strict=True)), inlet)
        self._say("started", b"%d" % pid, b"%d" % start_time(pid))
        self._flush()
        import resource  # noqa: F401  (wait4 needs it; while the program runs, it costs nothing)

    def _reap(self) -> bool:
        """Collect what has ended, adopted orphans too; False when no child is left."""
        try:
            while True:
                pid, status, usage = posix.wait4(-1, posix.WNOHANG)
                if not pid:
                    return True
                cpu = usage.ru_utime + usage.ru_stime
                self._progress += max(0, int(cpu * 1000) - self._seen.pop(pid, (0, 0))[1])
                if self._run is not None:
                    self._run.cpu += cpu
                    if pid == self._run.pid:
                        self._run.status = status
        except ChildProcessError:
            return False

    def _report(self, run: Run, status: int) -> None:
        """Tell how the program ended, whoever may still hold its pipes open."""
        for fd in list(run.open):
            # What it wrote before its end is at most what a pipe holds; a grandchild may write for ever.
            budget = _PIPE_MAX
            while budget > 0 and (got := run.read(fd)):
                budget -= got
                self._progress += got
        out, err = run.kept
        signalled = posix.WIFSIGNALED(status)
        self._say(
            "exit",
            b"signal" if signalled else b"exit",
            b"%d" % (posix.WTERMSIG(status) if signalled else posix.WEXITSTATUS(status)),
            b"%d" % ((time.monotonic() - run.began) * 1e6),
            b"%d" % (run.cpu * 1e6),
            b"%d" % out.dropped,
            b"%d" % err.dropped,
            out.bytes(),
            err.bytes(),
        )
        run.close()
        self._run = None
        self._flush()

    # The lease.

    def _beat(self, lease: tuple[bytes, bytes, str, bytes]) -> None:
        self._next_beat = time.monotonic() + self._interval
        if posix.getppid() != self._parent:
            return  # nobody holds this lease any more
        self._counter += 1
        slot, successor, nonce, folder = lease
        self._measure()
        self._beater.hand((slot, successor, nonce, self._counter, self._progress, folder))

    def _measure(self) -> None:
        """Add to the progress the CPU milliseconds that each process below has used since the last look."""
        before, self._seen = self._seen, {}
        for pid in descendants(posix.getpid()):
            if fields := stat(pid):
                started = int(fields[STARTED])
                used = sum(int(ticks) for ticks in fields[UTIME : UTIME + 4]) * 1000 // _TICKS
                was = before.get(pid, (0, 0))
                known = was[1] if was[0] == started else 0
                self._progress += max(0, used - known)
                self._seen[pid] = (started, max(used, known))

    # The end.

    def give_up(self, error: BaseException) -> None:
        """Tell the parent, if it listens, of a fault of the guard itself."""
        self._say("oops", _text(error) or type(error).__name__.encode())
        self._flush()

    def stop(self) -> None:
        """TERM, grace, KILL, until no child is left; then remove the workspace."""
        if self._reap():
            self._signal(_signal.SIGTERM)
            self._until_gone(self._grace)
        began, pause = time.monotonic(), 0.005
        while self._reap():
            if not self._signal(_signal.SIGKILL) and time.monotonic() - began > _UNKILLABLE:
                break
            self._until_gone(pause)
            pause = min(2 * pause, 0.1)  # it may hang in the kernel for long
        if self._workspace:
            for _ in remove(self._workspace):
                pass
        if self._alone:
            try:
                posix.rmdir(self._home)
            except OSError:
                pass

    def _signal(self, number: int) -> bool:
        """Send a signal to the program's group and to all else below; False if all of them refuse it."""
        group = b""
        sent = False
        if self._run is not None and self._run.status is None:  # not reaped: the number is still its own
            group = b"%d" % self._run.pid
            sent = kill(-self._run.pid, number)
        for pid in descendants(posix.getpid()):
            if (stat(pid) or [b""] * 3)[PGRP] != group or number == _signal.SIGKILL:
                sent = kill(pid, number) or sent
        return sent

    def _until_gone(self, seconds: float) -> None:
        """Wait until no child is left, for so long at most; read on, lest one hang on a full pipe."""
        deadline = time.monotonic() + seconds
        while self._reap() and (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            for fd in self._run.open if self._run is not None else ():
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(min(left, _CHILD_LOOK) * 1000):
                if self._run is not None:
                    self._run.read(fd)
                    self._outbox.clear()  # nobody listens any more


def _text(error: BaseException) -> bytes:
    return str(error).encode(errors="backslashreplace")


def _adopt_orphans() -> None:
    """Become a child subreaper: daemons of a compiler are then our children, and found (prctl(2), Linux)."""
    set_child_subreaper = 36
    if sys.platform != "linux":
        return
    try:
        try:
            import _ctypes  # a third of the cost of ctypes, which is slow to import

            prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
            _ctypes.call_function(prctl, (set_child_subreaper, 1, 0, 0, 0))
        except (ImportError, AttributeError, TypeError):
            import ctypes

            ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
    except (ImportError, AttributeError, OSError):
        pass  # without it only daemons in sessions of their own get away


def main(arguments: list[str]) -> None:
    """Serve one workspace and exit: 0 when all is gone, 1 after a fault of the guard itself.

    :param arguments: the socket's descriptor; the parent's pid; the grace in seconds; the temporary folder
        in hex, since its name may be any bytes.
    """
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_IGN)  # the socket is the one way to stop
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # the parent may ignore it, and wait4 would tell nothing
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])
    link, status = int(arguments[0]), 1
    posix.set_inheritable(link, False)
    posix.set_blocking(link, False)
    guard = _Guard(link, int(arguments[1]), float(arguments[2]))
    try:
        try:
            guard.serve(bytes.fromhex(arguments[3]))
            status = 0
        except Exception as error:
            guard.give_up(error)
        guard.stop()
    except BaseException:
        status = 1
        raise
    finally:
        posix._exit(status)
