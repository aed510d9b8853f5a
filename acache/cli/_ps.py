"""Who compiles what in a cache directory: finds all leases, reads their holders, and judges them."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from acache import _policy
from acache._describe import holder_status
from acache._fs import OsFileSystem, perform
from acache._moves import is_dead, walk
from acache._protocol import TailWatch, effective_ttl, is_hedgeable, is_silent
from acache._store import GONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from acache._format import Record
    from acache._fs import FileSystem
    from acache._protocol import Chain
    from acache._settings import Settings
    from acache._store import Layout

__all__ = ["Holder", "Observer", "Verdict", "find"]

Verdict: TypeAlias = Literal["alive", "dead", "closing", "hedge", "unknown", "gone"]
"""How a waiter would judge a holder: ``dead`` is taken over, ``hedge`` gets a rival beside it, ``closing`` is
giving its lease back, ``gone`` did so while we watched; ``unknown`` needs a longer look."""

_LOOK_EVERY = 0.25


@dataclass(frozen=True, slots=True)
class Holder:
    """Who compiles one key, by its lease; times in seconds."""

    name: str
    """64 hex digits, the name of the entry's files: a digest of namespace and key, which a lease does not
    hold."""
    label: str | None
    host: str | None
    pid: int | None
    age_s: float | None
    """Since it began, by its own beats, so to within one heartbeat."""
    beats: int | None
    progress: int | None
    """CPU milliseconds plus output bytes of the compiler so far; None where the holder reports none."""
    usual_s: float | None
    """What this label usually takes, where known."""
    rivals: int
    """How many other holders stand in the chain before this one: superseded by a takeover, or hedged."""
    verdict: Verdict
    why: str

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


def find(layout: Layout, fs: FileSystem | None = None) -> list[str]:
    """Return the names of all keys that have a lease. Blocks; lists the shards, and only reads.

    :raises OSError: the directory is there and cannot be read.
    """
    fs = OsFileSystem() if fs is None else fs
    found: list[str] = []
    try:
        shards = set(fs.listdir(layout.base)).intersection(_policy.SHARDS)
    except OSError as error:
        if error.errno in GONE:
            return found  # nobody has used it yet
        raise
    for shard in sorted(shards):
        try:
            names = fs.listdir(f"{layout.base}/{shard}")
        except OSError as error:
            if error.errno in GONE:
                continue
            raise
        stems = {name.partition(".lease")[0] for name in names if ".lease" in name}
        found += sorted(shard + stem for stem in stems if _policy.is_name(shard + stem))
    return found


class Observer:
    """Looks at holders, once or for a while, and judges them as a waiter would.

    :param clock: monotonic seconds; tests hand in another, and another ``sleep`` with it.
    """

    def __init__(
        self,
        layout: Layout,
        settings: Settings,
        *,
        fs: FileSystem | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._layout = layout
        self._settings = settings
        self._fs = OsFileSystem() if fs is None else fs
        self._clock = clock
        self._sleep = sleep
        self._watches: dict[str, TailWatch] = {}
        self._first: dict[str, int] = {}
        self._holders: dict[str, Holder] = {}

    def observe(self, names: Iterable[str], seconds: float = 0.0) -> list[Holder]:
        """Look at the holders of these keys for ``seconds`` (0: once), and return those that were seen.
        Blocks.

        Ends early when all that was seen is gone or certainly dead.
        """
        known = list(names)
        end = self._clock() + seconds
        while True:
            for name in known:
                self._look(name)
            left = end - self._clock()
            open_ones = [each for each in self._holders.values() if each.verdict not in ("dead", "gone")]
            if left <= 0 or not open_ones:
                return [self._holders[name] for name in known if name in self._holders]
            self._sleep(min(left, _LOOK_EVERY))

    def _look(self, name: str) -> None:
        place = self._layout.paths(name)
        chain = perform(walk(self._layout, place), self._fs)
        status = holder_status(chain)
        if chain.tail is None or status is None:
            if chain.broken is not None:
                self._holders[name] = _unreadable(name, chain.broken)
            elif name in self._holders:
                self._holders[name] = _gone(self._holders[name])
            return
        record = chain.tail.record
        verdict, why = self._judge(name, chain, record)
        self._holders[name] = Holder(
            name=name,
            label=status.label,
            host=status.host,
            pid=status.pid,
            age_s=None if record.torn else status.age,
            beats=None if record.torn else status.beats,
            progress=status.progress,
            usual_s=status.usual,
            rivals=sum(not slot.record.closed for slot in chain.slots[:-1]),
            verdict=verdict,
            why=why,
        )

    def _judge(self, name: str, chain: Chain, record: Record) -> tuple[Verdict, str]:
        watch, beaten = self._watch(name, record)
        if chain.broken is not None:
            return "unknown", chain.broken
        if perform(is_dead(self._layout, record), self._fs):
            return "dead", "its process is gone"
        ttl = effective_ttl(record, self._settings.lease_ttl)
        if is_silent(watch, ttl):
            return "dead", f"no beat for {watch.quiet:.0f} s (lease_ttl {ttl:g})"
        if record.closed:
            return "closing", "it has its result and is giving the lease back"
        if record.torn:
            return "unknown", f"the lease is torn; silence for {ttl:g} s decides"
        if is_hedgeable(watch, record, self._clock(), self._settings.hedge_after):
            return "hedge", self._lag(watch, record)
        if beaten:
            return "alive", "it beats"
        if watch.quiet > 2 * record.interval_ms / 1000:
            return "unknown", f"no beat for {watch.quiet:.0f} s; dead after {ttl:g}"
        if self._runs_here(record):
            return "alive", "its process runs on this host"
        return (
            "unknown",
            f"one look cannot tell; watch it with --for {max(1, 3 * record.interval_ms // 1000)}",
        )

    def _watch(self, name: str, record: Record) -> tuple[TailWatch, bool]:
        """Take in one reading; also returns whether a beat was seen since the first."""
        watch = self._watches.get(name)
        if watch is None or watch.nonce != record.nonce:
            watch = self._watches[name] = TailWatch.begin(record, self._clock())
            self._first[name] = record.counter
        else:
            watch.look(record, self._clock(), effective_ttl(record, self._settings.lease_ttl))
        return watch, record.counter != self._first[name]

    def _lag(self, watch: TailWatch, record: Record) -> str:
        if watch.stalled_beats >= 2:
            return f"it beats, but made no progress for {self._clock() - watch.stalled_since:.0f} s"
        return f"it takes far over the usual {record.usual:.1f} s"

    def _runs_here(self, record: Record) -> bool:
        """Whether the very process that took the lease exists on this host; it may hang all the same."""
        mine, tail = self._layout.identity, record.tail
        if not mine.proc_honest or None in (mine.boot_id, mine.pidns, mine.timens):
            return False
        if any(tail.get(name) != getattr(mine, name) for name in ("boot_id", "pidns", "timens")):
            return False
        pid, started = tail.get("pid"), tail.get("starttime")
        if not isinstance(pid, int) or not isinstance(started, int):
            return False
        state = self._fs.process(pid)
        return state.exists is True and not state.zombie and state.starttime == started


def _unreadable(name: str, why: str) -> Holder:
    return Holder(name, None, None, None, None, None, None, None, 0, "unknown", why)


def _gone(last: Holder) -> Holder:
    fields = asdict(last)
    fields.update(verdict="gone", why="it gave the lease back while we watched")
    return Holder(**fields)
