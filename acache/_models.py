"""The values that cross acache's borders: artifacts, requests, failures, and what is known of a key."""

from __future__ import annotations

import enum
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, final, runtime_checkable

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from acache._keys import Key

__all__ = [
    "JSON",
    "Artifact",
    "CompileFailure",
    "Compiler",
    "Completed",
    "EntryInfo",
    "FailureReason",
    "Origin",
    "PreparingCompiler",
    "Request",
    "Status",
    "TrimReport",
    "VerifyReport",
    "WarmCompiler",
    "Worker",
    "WorkerProgram",
    "Workspace",
]

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
Buffer: TypeAlias = "bytes | bytearray | memoryview"
FailureReason = Literal["diagnostic", "exit", "signal", "timeout", "spawn", "missing", "memory", "disk"]


About: TypeAlias = tuple[str | None, str | None, float]
"""What is counted of an artifact: its label, its compiler, the seconds that its compile took."""
_NOTHING_KNOWN: About = (None, None, 0.0)


class Origin(enum.StrEnum):
    """Where an artifact came from."""

    MEMORY = "memory"
    DISK = "disk"
    PEER = "peer"
    """Another process compiled it while we waited."""
    COMPILED = "compiled"
    REMOTE = "remote"


class _Parts(Mapping[str, bytes]):
    """Named buffers, each turned into bytes when it is first asked for."""

    __slots__ = ("_buffers",)

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self._buffers: dict[str, Buffer] = dict(buffers)

    def __getitem__(self, name: str) -> bytes:
        buffer = self._buffers[name]
        if not isinstance(buffer, bytes):
            buffer = self._buffers[name] = bytes(buffer)
        return buffer

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)

    def __repr__(self) -> str:
        sizes = {name: f"{len(self.view(name))} bytes" for name in self}
        return f"Parts({sizes})"

    def view(self, name: str) -> memoryview:
        return memoryview(self._buffers[name]).toreadonly()


def _as_bytes(name: str, buffer: Buffer) -> Buffer:
    if not isinstance(buffer, bytes | bytearray | memoryview):
        raise TypeError(f"part {name!r} must be bytes-like, not {type(buffer).__name__}")
    if not isinstance(buffer, memoryview):
        return buffer
    try:
        return buffer.cast("B")  # so that its length is in bytes
    except TypeError:
        raise TypeError(f"part {name!r} must be contiguous; bytes(view) makes a copy that is") from None


@final
class Artifact:
    """A compiled result: named parts of bytes, and JSON metadata.

    :param parts: one or more named parts; the first is ``data``. Bytes-like values are kept as they
        are, so do not change them afterwards.
    :param metadata: anything JSON can say; it must not name this host, since others read it.
    :raises TypeError: a part that is not bytes-like, or metadata that is not JSON.
    :raises ValueError: no parts at all.

    Two artifacts are equal when their parts and metadata are; ``origin`` is not compared.
    """

    __slots__ = ("_about", "_identity", "_metadata", "_origin", "_parts")

    def __init__(self, parts: Mapping[str, Buffer], metadata: Mapping[str, JSON] | None = None) -> None:
        if not parts:
            raise ValueError("an Artifact needs at least one part; Artifact.of(data) makes one of one part")
        for name in parts:
            if not isinstance(name, str):
                raise TypeError(f"part names are str, not {type(name).__name__}")
        try:
            plain = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"metadata must be JSON: {error}") from None
        self._parts = _Parts({name: _as_bytes(name, buffer) for name, buffer in parts.items()})
        self._metadata: Mapping[str, JSON] = MappingProxyType(plain)
        self._origin: Origin | None = None
        self._identity: str | None = None
        self._about = _NOTHING_KNOWN

    @classmethod
    def of(cls, data: Buffer, metadata: Mapping[str, JSON] | None = None) -> Artifact:
        """Make an artifact of a single part, named ``data``."""
        return cls({"data": data}, metadata)

    @property
    def parts(self) -> Mapping[str, bytes]:
        """All parts by name, in order; each is copied into bytes when first asked for."""
        return self._parts

    @property
    def metadata(self) -> Mapping[str, JSON]:
        """What the compiler said besides: JSON, independent of the host."""
        return self._metadata

    @property
    def origin(self) -> Origin | None:
        """Where it came from; None on one that you built."""
        return self._origin

    @property
    def data(self) -> bytes:
        """The first part as bytes (copied on first use)."""
        return self._parts[next(iter(self._parts))]

    def view(self, name: str | None = None) -> memoryview:
        """Return a read-only view of one part (the first by default), without a copy.

        :raises KeyError: there is no part of that name.
        """
        return self._parts.view(next(iter(self._parts)) if name is None else name)

    async def write_to(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """Write one part (the first by default) to ``path`` as an atomic file, off the loop's thread.

        A temporary file beside it is renamed over it, so a reader sees the old file or the new one.
        Cancellation waits for the write to end; the file is then complete or untouched.

        :raises OSError: the folder cannot be written.
        """
        await _write_file(path, self.view(name))

    @property
    def size(self) -> int:
        """Bytes of all parts together."""
        return sum(len(self._parts.view(name)) for name in self._parts)

    def _stamped(self, origin: Origin, identity: str | None, about: About | None = None) -> Artifact:
        """Return the same artifact with another origin; ``identity`` is the publish nonce of its entry, and
        ``about`` what is counted of it (None: as before).
        """
        twin = object.__new__(Artifact)
        twin._parts = self._parts
        twin._metadata = self._metadata
        twin._origin = origin
        twin._identity = identity
        twin._about = self._about if about is None else about
        return twin

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Artifact):
            return NotImplemented
        return (
            list(self._parts) == list(other._parts)
            and all(self.view(name) == other.view(name) for name in self._parts)
            and self._metadata == other._metadata
        )

    def __hash__(self) -> int:
        return hash(tuple((name, len(self.view(name))) for name in self._parts))

    def __repr__(self) -> str:
        origin = f", origin={self._origin.value}" if self._origin else ""
        return f"<Artifact {self._parts!r}{origin}>"

    def __getstate__(self) -> dict[str, Any]:
        return {
            "parts": {name: self._parts[name] for name in self._parts},
            "metadata": dict(self._metadata),
            "origin": self._origin,
            "identity": self._identity,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._parts = _Parts(state["parts"])
        self._metadata = MappingProxyType(state["metadata"])
        self._origin = state["origin"]
        self._identity = state["identity"]
        self._about = _NOTHING_KNOWN


async def _no_threads(path: str | os.PathLike[str], data: memoryview) -> None:
    raise RuntimeError("import acache before you write an artifact: its threads are lent by the async floor")


_write_file: Callable[[str | os.PathLike[str], memoryview], Awaitable[None]] = _no_threads


def lend_writer(writer: Callable[[str | os.PathLike[str], memoryview], Awaitable[None]]) -> None:
    """Let the async floor lend `Artifact.write_to` its threads: this floor knows neither loop nor thread."""
    global _write_file
    _write_file = writer


@dataclass(frozen=True, slots=True)
class CompileFailure:
    """Why a compile gave no artifact; the record that waiters share.

    ``deterministic`` means that a diagnostic about the *input* was recognised, so that compiling the
    same input again must fail the same way. Signals, time-outs, failed starts, want of memory or disk
    and unrecognised exits are not.
    """

    reason: FailureReason
    text: str = ""
    """The compiler's own words, bounded."""
    exit_status: int | None = None
    signal: int | None = None
    seconds: float = 0.0
    deterministic: bool = False

    @property
    def summary(self) -> str:
        """One line for people."""
        match self.reason:
            case "diagnostic":
                return f"the compiler refused the input (exit status {self.exit_status})"
            case "exit":
                return f"the compiler failed with exit status {self.exit_status}"
            case "signal":
                hint = ", probably out of memory" if self.signal == 9 else ""
                return f"the compiler was killed by signal {self.signal}{hint}"
            case "timeout":
                return f"the compiler was stopped after {self.seconds:.1f} s (compile_timeout)"
            case "spawn":
                return "the compiler could not be started"
            case "missing":
                return "the compiler is not installed"
            case "memory":
                return "the compiler ran out of memory"
            case "disk":
                return "the compiler ran out of disk space"


@dataclass(frozen=True, slots=True)
class Completed:
    """How one run of a compiler ended.

    Exactly one of ``exit_status`` and ``signal`` is set. ``stdout`` and ``stderr`` are bounded: beyond the
    bound their middle is left out and ``stdout_dropped``/``stderr_dropped`` count the bytes that went.
    """

    argv: tuple[str, ...]
    exit_status: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    cpu_seconds: float
    stdout_dropped: int = 0
    stderr_dropped: int = 0

    @property
    def ok(self) -> bool:
        """Exit status zero."""
        return self.exit_status == 0


@runtime_checkable
class Workspace(Protocol):
    """A private folder for one compile, and the one way to run a program in it."""

    @property
    def path(self) -> Path:
        """The folder: working directory, ``TMPDIR`` and place of outputs; gone after the compile."""
        ...

    async def run(
        self,
        argv: list[str] | tuple[str, ...],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> Completed:
        """Run a program under the guard and wait for it.

        ``env`` is the whole environment, plus ``TMPDIR`` and, where it names none, this process's ``PATH``.
        Cancellation stops the program and all that it started before it returns.

        :raises CompilerNotFoundError: there is no such program.
        :raises CompilerCrashedError: it could not be started.
        """
        ...


class Compiler(Protocol):
    """What turns a request into an artifact; the shipped ones live in `acache.compilers`."""

    async def fingerprint(self) -> str:
        """Return a digest of the toolchain's content, not of its version string alone."""
        ...

    async def key_fields(self, request: Request) -> Mapping[str, object]:
        """Return every input of the compile as labelled fields for `acache.key`."""
        ...

    async def compile(self, request: Request, workspace: Workspace) -> Artifact:
        """Compile in the workspace.

        :raises CompileError: with the compiler's own text.
        """
        ...


@runtime_checkable
class PreparingCompiler(Compiler, Protocol):
    """A compiler that reads what a request refers to once, so that what is keyed is what is compiled."""

    async def prepare(self, request: Request) -> Request:
        """Return a request that carries all it refers to; one that does already is returned as it is."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """A program that serves many compiles, one after the other, so that its start is paid once.

    It reads orders from its standard input and writes answers to its standard output: JSON objects, one line
    each. Before the first order it writes one by itself, when it is ready to serve; ``{"missing": text}``
    says that it never will be, since something is not installed. When it begins with an order it writes an
    empty line: a worker that dies before that (it may have been killed while it idled) is replaced unseen,
    one that dies later fails the compile. An answer with ``"last": true`` is its last: it is stopped
    before the compile returns. It ends at the end of its input. Files go through the folder in
    which it is started (also its ``TMPDIR``), which is emptied between compiles.

    Workers are shared between all requests of a cache whose compilers name equal programs.
    """

    argv: tuple[str, ...]
    """The program and its arguments."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Its whole environment, but for ``TMPDIR`` and, where it names none, ``PATH``."""
    max_compiles: int = 500
    """After so many compiles a worker is replaced."""
    max_growth: int = 512 << 20
    """Bytes: a worker whose resident memory is by so much above what it began with is replaced."""


@runtime_checkable
class Worker(Protocol):
    """A running `WorkerProgram`, lent to one compile."""

    @property
    def path(self) -> Path:
        """Its folder: empty at first, and emptied after the compile."""
        ...

    async def ask(self, order: Mapping[str, JSON]) -> dict[str, JSON]:
        """Give it an order and return its answer. Cancellation stops the worker before it returns.

        :raises CompilerCrashedError: it was killed.
        :raises CompileError: it ended instead of answering, or its answer is no JSON object.
        """
        ...


@runtime_checkable
class WarmCompiler(Compiler, Protocol):
    """A compiler that is hosted by a worker process, which a cache keeps warm between compiles.

    A `acache.Cache` then calls ``compile_with`` in place of ``compile``.
    """

    async def worker(self) -> WorkerProgram:
        """Say what program serves this compiler.

        :raises CompilerNotFoundError: it is not installed.
        """
        ...

    async def compile_with(self, request: Request, worker: Worker) -> Artifact:
        """Compile by asking the worker; it may be called again with another worker if the first is gone.

        :raises CompileError: with the compiler's own text.
        """
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One compile, as a frozen value free of I/O; made by a compiler's ``request``.

    ``source`` is text (str or bytes), a path (a file, read when the key is derived), or what else the
    compiler documents. ``arguments`` are the compiler's further named inputs. A label is never key material.
    """

    compiler: Compiler
    source: object
    label: str | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """What one published entry says of itself; sizes in bytes, times in seconds."""

    key: Key
    namespace: str | None
    label: str | None
    size: int
    """Bytes of the whole file."""
    parts: Mapping[str, int]
    compile_seconds: float
    created: float
    """Wall clock of the publisher, for people; nothing is decided by it."""
    used: float
    """The file's mtime: when it was last written or, within ``recency_grain``, read."""
    metadata: Mapping[str, JSON]
    compiler: str | None = None
    """The compiler's class, such as ``Tileiras``; None for a caller's own function, or where unknown."""


@dataclass(frozen=True, slots=True)
class TrimReport:
    """What `acache.Cache.trim` found and removed, of all namespaces; sizes in bytes of whole files.

    Artifacts, marks of cheap compiles and remembered failures all count.
    """

    files: int = 0
    """Files that were there."""
    size: int = 0
    evicted: int = 0
    evicted_size: int = 0
    refused: int = 0
    """Files that could not be read or removed; each reason was told once, as a fault."""
    spared: int = 0
    """Files that were to go and stayed: read meanwhile, on their way to those who wait for them, or of a
    later format."""
    dry_run: bool = False
    """Nothing was removed: ``evicted`` is what would have gone."""

    @property
    def kept(self) -> int:
        """Files that are left."""
        return self.files - self.evicted

    @property
    def kept_size(self) -> int:
        """Bytes that are left."""
        return self.size - self.evicted_size


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `acache.Cache.verify` found, in all namespaces: numbers of files."""

    artifacts: int = 0
    """Whole and good."""
    size: int = 0
    """Bytes of these."""
    marks: int = 0
    failures: int = 0
    corrupt: int = 0
    """They do not pass their own check, or describe another key than their name."""
    later: int = 0
    """Of a later format, which this version cannot judge."""
    unreadable: int = 0
    """The disk, or its permissions, say no."""
    untrusted: int = 0
    """Of owners whom ``trust`` does not cover; not judged."""
    repaired: int = 0
    """Corrupt ones that were removed."""
    faults: tuple[tuple[str, str], ...] = ()
    """Path and reason of those that are corrupt or unreadable: of the first hundred."""

    @property
    def ok(self) -> bool:
        """Whether nothing bad is left."""
        return not self.unreadable and self.corrupt == self.repaired


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of a key, for watchdogs and operators.

    ``state`` is ``absent``, ``present`` or ``compiling``; the other fields are set only while compiling.
    """

    state: Literal["absent", "present", "compiling"]
    host: str | None = None
    pid: int | None = None
    age: float | None = None
    """Seconds since the holder began, by its own beats (so to within one heartbeat)."""
    beats: int | None = None
    progress: int | None = None
    """CPU milliseconds plus output bytes of the compiler so far; None where the holder reports none."""
    usual: float | None = None
    """Seconds that this label usually takes, where known."""
    label: str | None = None
    verdict: Literal["alive", "dead", "closing", "unknown"] | None = None
    """How the holder would be judged now: dead is certain (by identity); unknown needs time to tell."""
