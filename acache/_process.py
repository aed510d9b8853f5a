"""Running a compiler under the guard: a private workspace, bounded output, and one way to stop it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, final

import anyio
import anyio.lowlevel

from acache._errors import CompilerNotFoundError, CompileTimeoutError
from acache._frames import encode
from acache._guardlink import Guard, GuardLostError, in_thread, not_started
from acache._models import CompileFailure, Completed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from acache._errors import CompilerCrashedError

__all__ = [
    "ANSWER_LIMIT",
    "OUTPUT_LIMIT",
    "GuardLostError",
    "GuardedWorkspace",
    "LeaseOrders",
    "ServerEndedError",
    "aside",
    "open_workspace",
    "run_tool",
]

T = TypeVar("T")

OUTPUT_LIMIT = 1 << 20
"""Bytes kept of each of stdout and stderr, unless a run says otherwise."""
ANSWER_LIMIT = 1 << 24
"""Bytes that one answer of a serving program may have."""


class ServerEndedError(Exception):
    """A program that serves ended, and gave no answer.

    :param completed: how it ended.
    :param begun: whether it had said that it begins; if not, nothing was done about the order.
    """

    def __init__(self, completed: Completed, *, begun: bool) -> None:
        super().__init__(completed, begun)
        self.completed = completed
        self.begun = begun


@dataclass(frozen=True, slots=True)
class LeaseOrders:
    """Which lease a guard is to beat (LEASE_PROTOCOL: Beat)."""

    slot: str
    """Path of the holder's slot."""
    successor: str
    """Path of the only slot that can follow it."""
    nonce: str
    """The holder's nonce, 32 hex digits."""
    interval: float
    """Seconds between beats; the first comes one interval after the orders."""
    folder: str | None
    """The slot's folder on a network mount, to be opened before each beat; None on local disks."""
    counter: int = 0
    """The counter as it stands in the record; the first beat writes the next number."""

    def frame(self) -> bytes:
        """Return the orders as the guard reads them."""
        return encode(
            "lease",
            os.fsencode(self.slot),
            os.fsencode(self.successor),
            self.nonce.encode(),
            repr(float(self.interval)).encode(),
            os.fsencode(self.folder or ""),
            str(self.counter).encode(),
        )


@final
class GuardedWorkspace:
    """A private folder for one compile, and the one way to run programs in it; see `open_workspace`."""

    __slots__ = ("_argv", "_guard", "_path", "_said", "_turn")

    def __init__(self, guard: Guard, path: Path) -> None:
        self._guard = guard
        self._path = path
        self._turn = anyio.Lock(fast_acquire=True)
        self._argv: tuple[str, ...] = ()  # of the program that serves here
        self._said = bytearray()

    @property
    def path(self) -> Path:
        """The folder: ``TMPDIR``, default working directory, place of outputs; gone after the block."""
        return self._path

    async def hold(self, orders: LeaseOrders) -> None:
        """Let the guard beat this lease from now on, instead of any other.

        :raises GuardLostError: the guard was killed.
        """
        await self._guard.send(orders.frame())

    async def idle(self) -> None:
        """Let the guard stop beating; a beat that is under way may still end, and harms nobody.

        :raises GuardLostError: the guard was killed.
        """
        await self._guard.send(encode("idle"))

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        cwd: str | os.PathLike[str] | None = None,
        output_limit: int = OUTPUT_LIMIT,
    ) -> Completed:
        """Run a program under the guard and wait for it (not for the end of its output).

        :param argv: the program and its arguments. A bare name is looked up on the ``PATH`` of ``env``,
            else of this process; a relative path starts from this process's working directory.
        :param env: the whole environment, plus ``TMPDIR`` (always the workspace) and, if it names none, this
            process's ``PATH``: compilers look there for their assembler and linker. Nothing else is
            inherited, so that nothing undeclared can change the artifact.
        :param stdin: what the program reads; nothing by default.
        :param cwd: the workspace by default.
        :param output_limit: bytes kept of each of stdout and stderr: half of it head, half tail.

        Calls take turns. Cancellation stops the program and all that was started in this workspace before it
        returns; the workspace is of no use after that.

        :raises CompilerNotFoundError: there is no such program.
        :raises CompilerCrashedError: it could not be started.
        :raises GuardLostError: the guard was killed; what it left has been swept.
        :raises ValueError: an argument or a variable that no system can pass on (NUL, "=" in a name).
        """
        if not argv:
            raise ValueError("argv is empty")
        await anyio.lowlevel.checkpoint()
        async with self._turn:
            frame = await self._prepared("run", argv, env, stdin, cwd, output_limit)
            outcome = await self._whole(self._ending(frame, tuple(argv)))
        if isinstance(outcome, Completed):
            return outcome
        raise outcome

    async def serve(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        """Start a program that stays and answers: from now on `ask` talks with it.

        It reads orders from its standard input, one line each, and writes two lines for each to its standard
        output: an empty one when it begins, and the answer. Before all orders it may write one line.
        Arguments, cancellation and errors are as of `run`, but for the output: of standard error the usual
        much is kept.
        """
        await anyio.lowlevel.checkpoint()
        async with self._turn:
            frame = await self._prepared("serve", argv, env, None, None, OUTPUT_LIMIT)
            failed = await self._whole(self._beginning(frame, tuple(argv)))
        if failed is not None:
            raise failed
        self._argv = tuple(argv)

    async def ask(self, order: bytes) -> bytes:
        """Give the serving program one order, a line without its end, and return its answer, likewise.

        For an empty order nothing is sent, and the program's next line is returned. Cancellation, like every
        error, stops the program before it is felt here.

        :raises ServerEndedError: the program ended.
        :raises GuardLostError: the guard was killed; what it left has been swept.
        """
        async with self._turn:
            return await self._whole(self._answer(order))

    @property
    def pid(self) -> int:
        """The process id of the program that was started last; 0 when there was none."""
        return self._guard.program[0]

    def quiet(self) -> bool:
        """Whether the guard and its serving program live, with no word from them that nobody asked for.

        What has arrived is looked at, without waiting.
        """
        return bool(self._argv) and not self._said and self._guard.quiet()

    def dismiss(self) -> None:
        """Begin to stop everything; who leaves the block of `open_workspace` waits for the end of it."""
        self._guard.dismiss()

    async def _whole(self, talk: Awaitable[T]) -> T:
        """Talk with the guard to the end of a matter, or stop everything."""
        settled = False
        try:
            result = await talk
            settled = True
            return result
        finally:
            if not settled:
                self._guard.dismiss()
                await self._guard.gone()

    async def _prepared(
        self,
        kind: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        stdin: bytes | None,
        cwd: str | os.PathLike[str] | None,
        limit: int,
    ) -> bytes:
        """Make the frame of a run, in a thread: a PATH may lead to slow disks."""
        variables = dict(env or {})
        variables.setdefault("PATH", os.environ.get("PATH", os.defpath))
        variables["TMPDIR"] = str(self._path)
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"no such environment variable can be: {name!r}")
        if any("\0" in argument for argument in argv):
            raise ValueError("an argument holds a NUL character")

        def prepare() -> bytes:
            program = shutil.which(argv[0], path=variables["PATH"])
            if program is None:
                text = f"{argv[0]}: no such program, or not executable"
                raise CompilerNotFoundError(CompileFailure(reason="missing", text=text))
            source = b""
            if stdin is not None:
                fd, name = tempfile.mkstemp(prefix=".stdin-", dir=self._path)
                source = os.fsencode(name)
                with open(fd, "wb") as file:
                    file.write(stdin)
            words = [os.fsencode(os.path.abspath(program)), *map(os.fsencode, argv[1:])]
            return encode(
                kind,
                words[0],
                os.fsencode(cwd or self._path),
                source,
                str(limit).encode(),
                str(len(words)).encode(),
                *words,
                *[os.fsencode(f"{name}={value}") for name, value in variables.items()],
            )

        try:
            return await in_thread(prepare)
        except OSError as error:
            raise not_started(f"{argv[0]}: {error}", error.errno) from error

    async def _ending(self, frame: bytes, argv: tuple[str, ...]) -> Completed | CompilerCrashedError:
        """Start a program and wait for its end."""
        failed = await self._beginning(frame, argv)
        if failed is not None:
            return failed
        while True:
            kind, fields = await self._guard.receive()
            if kind == "exit":
                return _completed(argv, fields)
            _refuse_oops(kind, fields)

    async def _beginning(self, frame: bytes, argv: tuple[str, ...]) -> CompilerCrashedError | None:
        """Start a program; return what stood against it."""
        await self._guard.send(frame)
        while True:
            kind, fields = await self._guard.receive()
            if kind == "started":
                self._guard.program = (int(fields[0]), int(fields[1]))
                return None
            if kind == "failed":
                return not_started(f"{argv[0]}: {fields[1].decode(errors='replace')}")
            _refuse_oops(kind, fields)

    async def _answer(self, order: bytes) -> bytes:
        if order:
            await self._guard.send(encode("tell", order + b"\n"))
            if await self._line(begun=False):
                raise not_started(f"{self._argv[0]}: an answer without the empty line that says it begins")
        return await self._line(begun=True)

    async def _line(self, *, begun: bool) -> bytes:
        while (end := self._said.find(b"\n")) < 0:
            kind, fields = await self._guard.receive()
            if kind == "said":
                self._said += fields[0]
            elif kind == "exit":
                raise ServerEndedError(_completed(self._argv, fields), begun=begun)
            _refuse_oops(kind, fields)
            if len(self._said) > ANSWER_LIMIT:
                raise not_started(f"{self._argv[0]}: an answer of more than {ANSWER_LIMIT} bytes")
        line = bytes(self._said[:end])
        del self._said[: end + 1]
        return line


def _refuse_oops(kind: str, fields: list[bytes]) -> None:
    if kind == "oops":
        raise GuardLostError(fields[0].decode(errors="replace"))


def _completed(argv: tuple[str, ...], fields: list[bytes]) -> Completed:
    number, wall, cpu, lost_out, lost_err = map(int, fields[1:6])
    ended = fields[0] == b"exit"
    return Completed(
        argv=argv,
        exit_status=number if ended else None,
        signal=None if ended else number,
        stdout=fields[6],
        stderr=fields[7],
        seconds=wall / 1e6,
        cpu_seconds=cpu / 1e6,
        stdout_dropped=lost_out,
        stderr_dropped=lost_err,
    )


@asynccontextmanager
async def open_workspace(
    *, grace: float, lease: LeaseOrders | None = None
) -> AsyncIterator[GuardedWorkspace]:
    """Start a guard with a private workspace; leaving the block stops all that runs there and removes it.

    :param grace: seconds between TERM and KILL, for programs that still run when the block is left.
    :param lease: a lease to beat from the start.

    Leaving waits, shielded from cancellation and for at most the grace and some seconds, until every process
    is gone. Where a native ``Task.cancel()`` breaks that wait off, the guard, which knows already, ends by
    itself, and a thread reaps it.

    :raises CompilerCrashedError: the guard cannot be started, or finds no room for a workspace.
    :raises GuardLostError: the guard was killed at once.
    """
    try:
        guard = Guard(grace)
    except OSError as error:
        raise not_started(f"the guard could not be started: {error}", error.errno) from error
    try:
        await guard.start()
        if lease is not None:
            await guard.send(lease.frame())
        kind, fields = await guard.receive()
        if kind != "ready":
            raise not_started(f"the guard could not begin: {fields[0].decode(errors='replace')}")
        guard.workspace = os.fsdecode(fields[0])
        yield GuardedWorkspace(guard, Path(guard.workspace))
    finally:
        await guard.leave()


async def aside(
    work: Callable[[GuardedWorkspace], Awaitable[T]], *, name: str, timeout: float, grace: float = 1.0
) -> T:
    """Do something in a throw-away workspace without a lease; once more if its guard is killed.

    Cancellation stops all that was started there.

    :param name: what errors call it.
    :param timeout: seconds, the guard's start included; then TERM, ``grace`` seconds, KILL.
    :raises CompileTimeoutError: it took longer.
    :raises CompilerCrashedError: the guard could not be started, or two guards were killed.
    """
    began = time.monotonic()
    with anyio.move_on_after(timeout):
        for _ in range(2):
            try:
                async with open_workspace(grace=grace) as workspace:
                    return await work(workspace)
            except GuardLostError:
                continue
        raise not_started(f"{name}: its guard was killed, twice")
    text = f"{name}: stopped after {timeout:g} s"
    raise CompileTimeoutError(CompileFailure(reason="timeout", text=text, seconds=time.monotonic() - began))


async def run_tool(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float,
    grace: float = 1.0,
) -> Completed:
    """Run one program `aside`; arguments as of `GuardedWorkspace.run`.

    :raises CompilerNotFoundError: there is no such program.
    """

    async def run(workspace: GuardedWorkspace) -> Completed:
        return await workspace.run(argv, env=env, stdin=stdin, cwd=cwd)

    return await aside(run, name=argv[0], timeout=timeout, grace=grace)
