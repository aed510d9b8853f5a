"""Events: what a cache tells its `on_event`, and the counters behind `Cache.stats`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypeAlias, final

if TYPE_CHECKING:
    from acache._keys import Key
    from acache._models import CompileFailure, Origin

__all__ = [
    "Abandoned",
    "Cheap",
    "Coalesced",
    "CompileFinished",
    "CompileReason",
    "CompileStarted",
    "Coordination",
    "CorruptEntry",
    "Counters",
    "DeadlineReached",
    "Degraded",
    "Event",
    "Evicted",
    "FailureShared",
    "GuardLost",
    "Hedge",
    "Hit",
    "Miss",
    "Oversized",
    "Published",
    "Stats",
    "StoreFault",
    "Superseded",
    "Takeover",
    "UntrustedEntry",
    "Waiting",
]

CompileReason: TypeAlias = Literal[
    "missing", "takeover", "hedge", "deadline", "uncoordinated", "cheap", "refresh", "retry"
]
"""Why a compile runs here: nobody had it; its holder died; its holder makes no progress; ``max_wait``
passed; no lease is to be had; results of this kind are not persisted; ``mode="refresh"``; the guard was
killed and the same holder tries once more."""

Coordination: TypeAlias = Literal["shared", "linkless", "process", "none"]
"""The ladder, best first: shared leases; leases without hard links; single flight within this process only;
no usable folder at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events; ``key`` and ``label`` are None where an event is about the whole folder.

    Events are handed to ``on_event`` on the loop's thread, in the order in which things happened; what it
    raises is logged. They are plain values: frozen, comparable, picklable.
    """

    key: Key | None = None
    label: str | None = None
    compiler: str | None = None
    """The compiler's class, such as ``Tileiras``, on hits, misses, compiles, failures, publications;
    None for a caller's own function, or where unknown.
    """


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Hit(Event):
    """An artifact was had without a compile of ours: from memory, disk, a peer we waited for, or remote."""

    origin: Origin
    seconds: float = 0.0
    """From the call to the artifact."""
    saved: float = 0.0
    """What the artifact's compile took, when it ran; 0 where it was handed in."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Miss(Event):
    """Neither memory nor disk has the key; a flight sets out for it. Once per flight."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Coalesced(Event):
    """A caller joined a flight that was under way in this process."""

    callers: int
    """Callers of that flight now, this one included."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """Another process is compiling the key and we wait for it; again whenever the holder changes."""

    host: str | None = None
    pid: int | None = None
    age: float | None = None
    """Seconds since that holder began, by its own beats; None where unknown."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CompileStarted(Event):
    """A compile starts in this process, after it got its slot."""

    reason: CompileReason


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFinished(Event):
    """A compile of this process ended: with an artifact, with a failure, or stopped (neither)."""

    reason: CompileReason
    seconds: float
    ok: bool
    failure: CompileFailure | None = None
    """Set when the compiler failed; None also when the compile was stopped or a caller's function raised."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Event):
    """An entry was written and renamed in: from now on other processes find it."""

    size: int
    """Bytes of the whole file."""
    seconds: float
    """What its compile took; 0 where it was handed in."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cheap(Event):
    """A compile took less than ``min_compile_seconds``, so a mark was left in place of an entry."""

    seconds: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Oversized(Event):
    """An artifact is over ``max_entry_bytes`` and was not written to disk."""

    size: int
    limit: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted(Event):
    """Files went to stay within the disk budget, least recently used first; never the one just written."""

    entries: int
    """Artifacts and marks; remembered failures are not counted."""
    size: int
    """Bytes of all files that went."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover(Event):
    """A holder is dead and its lease became ours; host and pid are the dead one's."""

    host: str | None = None
    pid: int | None = None
    verdict: Literal["identity", "silence", "resigned"]
    """How it was found dead: its process is gone, or its beats stood still for the ttl."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Hedge(Event):
    """A live holder makes no progress, or takes far too long, and we start a rival; host and pid are its."""

    host: str | None = None
    pid: int | None = None
    waited: float
    """Seconds since the wait began."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded(Event):
    """Another process published an artifact while we compiled; ours was stopped, or ended for nothing."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineReached(Event):
    """``max_wait`` passed; a compile without a lease follows."""

    waited: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FailureShared(Event):
    """A failed compile of another process, or an earlier one, is reported instead of compiling again."""

    failure: CompileFailure


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned(Event):
    """The last caller of a flight left; ``on_abandon`` says what becomes of it."""

    action: Literal["finish", "stop"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLost(Event):
    """The process that supervises the compiler was killed; its compiler was swept, and runs once more."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFault(Event):
    """A file operation in the cache directory failed; at worst a compile follows."""

    operation: str
    """What was being done: ``look``, ``acquire``, ``publish``, ``get``, ``put``, ``delete``, ..."""
    path: str
    errno: int | None = None
    message: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded(Event):
    """The folder allows less than shared leases; once per folder and reason, with a warning in the log."""

    level: Coordination
    folder: str
    mount: str | None = None
    """Mount point and file system type; None where unknown."""
    reason: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptEntry(Event):
    """An entry does not pass its own check: a miss, healed by the compile that follows."""

    path: str
    reason: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UntrustedEntry(Event):
    """An entry belongs to somebody whom ``trust`` does not cover: a miss."""

    path: str
    owner: int
    """User id of the file's owner."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a cache has done since it was entered: a frozen snapshot.

    All are numbers of events, except sizes (bytes) and times (seconds).
    """

    memory_hits: int = 0
    """Artifacts served from memory."""
    disk_hits: int = 0
    """Artifacts read from the cache directory without a wait."""
    peer_hits: int = 0
    """Artifacts that another process compiled while we waited."""
    remote_hits: int = 0
    """Artifacts from a tier beyond this machine."""
    misses: int = 0
    """Flights that found the key neither in memory nor on disk."""
    compiles: int = 0
    """Compiles started in this process, whatever the reason."""
    compile_failures: int = 0
    """Compiles of this process that ended without an artifact."""
    coalesced: int = 0
    """Callers who joined a flight under way."""
    takeovers: int = 0
    """Leases taken over from a dead holder."""
    hedges: int = 0
    """Rival compiles started beside a live holder."""
    deadline_compiles: int = 0
    """Compiles without a lease because ``max_wait`` passed."""
    uncoordinated_compiles: int = 0
    """Compiles without a lease because none was to be had."""
    published: int = 0
    """Entries written."""
    evicted: int = 0
    """Entries removed to stay within the disk budget."""
    corrupt: int = 0
    """Entries that did not pass their own check."""
    untrusted: int = 0
    """Entries passed over for their owner."""
    store_errors: int = 0
    """File operations that failed."""
    bytes_read: int = 0
    """Bytes of entries read."""
    bytes_written: int = 0
    """Bytes of entries written."""
    compile_seconds: float = 0.0
    """Time spent in compiles of this process, added up over parallel ones."""
    wait_seconds: float = 0.0
    """Time spent waiting for other processes, added up over parallel flights."""

    @property
    def hits(self) -> int:
        """All hits together."""
        return self.memory_hits + self.disk_hits + self.peer_hits + self.remote_hits


@final
class Counters:
    """The running counters behind `Stats`; may be used from any thread."""

    __slots__ = ("_lock", "_values")

    def __init__(self) -> None:
        # Any thread may ask for a snapshot, and it is to be consistent.
        self._lock = threading.Lock()
        self._values: dict[str, float] = {each.name: each.default for each in fields(Stats)}  # type: ignore[misc]

    def add(self, name: str, amount: float = 1) -> None:
        """Add to one counter, named as in `Stats`.

        :raises KeyError: there is no such counter.
        :raises ValueError: a negative amount; counters never fall.
        """
        if amount < 0:
            raise ValueError(f"{name}: counters never fall, so {amount} cannot be added")
        with self._lock:
            self._values[name] += amount

    def snapshot(self) -> Stats:
        """Return all counters as they are now, consistent with each other."""
        with self._lock:
            return Stats(**self._values)  # type: ignore[arg-type]  # counts are only ever added ints
