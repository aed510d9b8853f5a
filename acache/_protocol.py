"""The decisions of the lease protocol: what was seen goes in, what to do comes out.

Pure: no clock, no files, no loop; the driver in `_lease` and the simulator in the tests run this same
code. Times are seconds on the observer's own monotonic clock. The rules and the faults that follow when
one is broken stand in ``docs/protocol.md``; every rule is a small named function, so that a test can
break it and show the fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from acache._policy import next_delay

if TYPE_CHECKING:
    from collections.abc import Callable

    from acache._format import Entry, Record

__all__ = [
    "Acquire",
    "Action",
    "Chain",
    "CompileAlone",
    "Compiled",
    "Conclusion",
    "LookAt",
    "Seen",
    "SeenArtifact",
    "SeenFailure",
    "Share",
    "Sighting",
    "Slot",
    "Terms",
    "Use",
    "Wait",
    "conclude",
]

Seen: TypeAlias = Literal["absent", "artifact", "cheap", "bad", "foreign", "untrusted"]
Why: TypeAlias = Literal["missing", "takeover", "hedge"]
Verdict: TypeAlias = Literal["identity", "silence", "resigned"]
AloneWhy: TypeAlias = Literal["deadline", "cheap", "uncoordinated"]


@dataclass(frozen=True, slots=True)
class SeenArtifact:
    """What one read of ``K.art`` found; ``foreign`` is an entry of a later format version.

    ``owner`` and ``used`` are the file's uid and mtime.
    """

    what: Seen
    identity: str | None = None
    seconds: float = 0.0
    entry: Entry | None = None
    owner: int = -1
    used: float = 0.0


@dataclass(frozen=True, slots=True)
class SeenFailure:
    """What one read of ``K.err`` found; ``age`` is seconds by the file system's clock, where asked for."""

    identity: str
    holder: str
    deterministic: bool
    age: float | None = None
    entry: Entry | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of a chain: ``follows`` is None for the root, else the predecessor's nonce."""

    follows: str | None
    record: Record


@dataclass(frozen=True, slots=True)
class Chain:
    """A walk from the root to the tail.

    ``broken`` says why a walk ended without a tail to believe (a loop, too many slots, no access);
    ``tail_is_dead`` is certain knowledge by identity, False where there is none.
    """

    slots: tuple[Slot, ...] = ()
    broken: str | None = None
    tail_is_dead: bool = False

    @property
    def tail(self) -> Slot | None:
        """The present holder's slot, or its seal."""
        return self.slots[-1] if self.slots else None


ABSENT = SeenArtifact("absent")


@dataclass(frozen=True, slots=True)
class Sighting:
    """All that one look at a key found."""

    artifact: SeenArtifact = ABSENT
    failure: SeenFailure | None = None
    chain: Chain = Chain()


@dataclass(frozen=True, slots=True)
class Terms:
    """What a wait goes by; seconds. ``grace`` is how long a lease may be gone without a result in sight
    (network mounts show a release before the publication).
    """

    ttl: float
    hedge_after: float | None
    failure_ttl: float
    min_compile_seconds: float
    poll_min: float
    poll_max: float
    grace: float = 0.0
    refresh: bool = False


# --- what to do ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """Take the artifact in sight; ``waited``: another process made it while we watched."""

    seen: SeenArtifact
    waited: bool


@dataclass(frozen=True, slots=True)
class Share:
    """Report the failure in sight."""

    seen: SeenFailure


@dataclass(frozen=True, slots=True)
class LookAt:
    """Look again at that time."""

    at: float


@dataclass(frozen=True, slots=True)
class Acquire:
    """Try to take the slot behind ``follows`` (None: the root); ``holder`` is who has it now, and ``verdict``
    how a dead one was found dead.
    """

    follows: str | None
    why: Why
    holder: Record | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class CompileAlone:
    """Compile without a lease."""

    why: AloneWhy
    detail: str = ""


Action: TypeAlias = Use | Share | LookAt | Acquire | CompileAlone


# --- rules ---------------------------------------------------------------------------------------


UNKEPT, OVERSIZED = -1.0, -2.0
"""Recorded seconds of marks for an artifact that could not be published: by a fault, or for its size."""


def obeys_cheap(recorded: float, threshold: float, *, is_new: bool = True) -> bool:
    """A cheap mark binds those who would not persist such a compile either; the rest take the lease.

    A mark for what a fault kept from being published (a full disk) binds those who waited for it, so that
    they compile at once and in parallel; who finds it there later tries anew.

    :param is_new: it was not there when this wait began.
    """
    return is_new if recorded == UNKEPT else recorded < threshold


def honours(
    failure: SeenFailure, *, watched: set[str], first: str | None, failure_ttl: float, is_first: bool
) -> bool:
    """Whether a remembered failure answers this call.

    Non-deterministic ones bind only those who watched that very holder: want of memory an hour ago says
    nothing. Deterministic ones bind also when they are new to this wait or young by the file system's clock.
    """
    if failure.holder in watched:
        return True
    if not failure.deterministic:
        return False
    if not is_first and failure.identity != first:
        return True
    return failure.age is not None and 0 <= failure.age < failure_ttl


@dataclass(slots=True)
class TailWatch:
    """What one observer knows of one holder, on the observer's own clock."""

    nonce: str
    counter: int
    progress: int
    first_seen: float
    last_look: float
    quiet: float = 0.0
    """Seconds that the beat has stood still, as far as this observer can tell."""
    reads: int = 1
    stalled_since: float = 0.0
    stalled_beats: int = 0

    @classmethod
    def begin(cls, record: Record, now: float) -> TailWatch:
        """Start to watch."""
        return cls(record.nonce, record.counter, record.progress, now, now, stalled_since=now)

    def look(self, record: Record, now: float, ttl: float) -> None:
        """Take in one more reading.

        A gap between two looks counts at most ttl/4: an observer that was suspended accuses nobody.
        """
        gap = min(now - self.last_look, ttl / 4)
        self.last_look = now
        if record.counter == self.counter:
            self.quiet += gap
            self.reads += 1
            return
        self.counter, self.quiet, self.reads = record.counter, 0.0, 1
        if record.progress == self.progress:
            self.stalled_beats += 1
        else:
            self.progress, self.stalled_since, self.stalled_beats = record.progress, now, 0


def effective_ttl(record: Record, own: float) -> float:
    """The longer of the holder's and the observer's: neither is accused by the other's impatience."""
    return max(own, record.ttl_ms / 1000)


def is_silent(watch: TailWatch, ttl: float) -> bool:
    """Dead by beats: unchanged for ttl over at least three reads. Opens the slot whatever identity says."""
    return watch.quiet >= ttl and watch.reads >= 3


def is_hedgeable(watch: TailWatch, record: Record, now: float, hedge_after: float | None) -> bool:
    """A live holder that makes no progress, or is far over its usual time.

    The slot of a hedge is never hedged (one hedge at a time), nor a closed one (its holder is leaving).
    """
    if hedge_after is None or record.hedge or record.closed or record.torn:
        return False
    if watch.stalled_beats >= 2 and now - watch.stalled_since >= hedge_after:
        return True
    usual = record.usual
    return usual is not None and now - watch.first_seen > max(hedge_after, 3 * usual)


# --- one wait ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Wait:
    """One call's way through the protocol, from its first look to a result or a compile of its own.

    ``jitter`` draws from [0, 1); ``rejected`` are identities of artifacts that this call does not take.
    """

    terms: Terms
    started: float
    jitter: Callable[[], float]
    rejected: set[str] = field(default_factory=set)
    watched: set[str] = field(default_factory=set)
    _looks: int = 0
    _first_failure: str | None = None
    _first_mark: str | None = None
    _tail: TailWatch | None = None
    _vanished: float | None = None
    _delay: float = 0.0
    _peer: bool = False
    _artifact_in_sight: bool = False

    def observe(self, seen: Sighting, now: float, *, overdue: bool = False) -> Action:
        """Decide what to do after a look; ``overdue``: the deadline has passed."""
        settled = self._settled(seen)
        if settled is not None:
            return settled
        if seen.chain.broken is not None:
            return CompileAlone("uncoordinated", seen.chain.broken)
        tail = seen.chain.tail
        self._watch(seen.chain, now)
        if tail is None:
            return self._nobody(now, overdue=overdue)
        assert self._tail is not None
        if tail.record.resigned:
            return Acquire(tail.record.nonce, "takeover", tail.record, "resigned")
        if seen.chain.tail_is_dead:
            return Acquire(tail.record.nonce, "takeover", tail.record, "identity")
        if is_silent(self._tail, effective_ttl(tail.record, self.terms.ttl)):
            return Acquire(tail.record.nonce, "takeover", tail.record, "silence")
        if overdue:
            return CompileAlone("deadline")
        if is_hedgeable(self._tail, tail.record, now, self.terms.hedge_after):
            return Acquire(tail.record.nonce, "hedge", tail.record)
        return self._later(now, eager=tail.record.closed)

    def last_look(self, seen: Sighting) -> Action | None:
        """Decide after the lease is held: a result that came meanwhile, or None to compile.

        Without it, a failure published between the first look and the acquire is compiled again by every
        waiter in turn.
        """
        action = self._settled(seen)
        self._artifact_in_sight = isinstance(action, Use)
        return action

    @property
    def withdraws(self) -> bool:
        """Whether a lease that is given back now, without a result of our own, is a withdrawal.

        With an artifact in sight it is not: then the whole chain may go, and the lease of an original that
        published beside its rival, and could not seal, goes with it.
        """
        return not self._artifact_in_sight

    def lost(self, now: float) -> LookAt:
        """Somebody else took the slot: look again soon."""
        self._delay = 0.0
        return self._later(now)

    def queued(self, now: float) -> LookAt:
        """No local compile slot is free: go on looking for somebody else's result meanwhile."""
        return self._later(now)

    def superseded(self) -> None:
        """An artifact appeared while we compiled: whoever made it is a peer."""
        self._peer = self._artifact_in_sight = True

    def takes(self, seen: SeenArtifact) -> bool:
        """Whether an artifact is one that this call may use."""
        return seen.what == "artifact" and seen.identity not in self.rejected

    def stops_compile(self, seen: SeenArtifact) -> bool:
        """Whether an artifact that appears while we compile ends our compile; a cheap mark stops nobody."""
        return self.takes(seen)

    def _settled(self, seen: Sighting) -> Action | None:
        is_first, self._looks = self._looks == 0, self._looks + 1
        art = seen.artifact
        if is_first and self.terms.refresh and art.identity is not None:
            self.rejected.add(art.identity)
        if self.takes(art):
            return Use(art, waited=self._peer or bool(self.watched))
        if art.what == "foreign":
            return CompileAlone("uncoordinated", "an entry of a later format version stands there")
        failure = seen.failure
        if is_first and failure is not None:
            self._first_failure = failure.identity
        if (
            failure is not None
            and not (is_first and self.terms.refresh)
            and honours(
                failure,
                watched=self.watched,
                first=self._first_failure,
                failure_ttl=0.0 if self.terms.refresh else self.terms.failure_ttl,
                is_first=is_first,
            )
        ):
            return Share(failure)
        if is_first and art.what == "cheap":
            self._first_mark = art.identity
        if (
            art.what == "cheap"
            and art.identity not in self.rejected
            and obeys_cheap(
                art.seconds, self.terms.min_compile_seconds, is_new=art.identity != self._first_mark
            )
        ):
            return CompileAlone("cheap")
        return None

    def _watch(self, chain: Chain, now: float) -> None:
        for slot in chain.slots:
            if not slot.record.closed and not slot.record.torn:
                self.watched.add(slot.record.nonce)
        tail = chain.tail
        if tail is not None:
            self._vanished = None  # each lease that goes away has a grace of its own
        if tail is None:
            self._tail = None
        elif self._tail is None or self._tail.nonce != tail.record.nonce:
            self._tail = TailWatch.begin(tail.record, now)
        else:
            self._tail.look(tail.record, now, effective_ttl(tail.record, self.terms.ttl))

    def _nobody(self, now: float, *, overdue: bool) -> Action:
        """No lease: take the root, but give a result that was just published time to show."""
        if self.watched and self.terms.grace > 0 and not overdue:
            if self._vanished is None:
                self._vanished, self._delay = now, 0.0
            if now - self._vanished < self.terms.grace:
                return self._later(now)
        return Acquire(None, "missing")

    def _later(self, now: float, *, eager: bool = False) -> LookAt:
        terms = self.terms
        self._delay = next_delay(
            now - self.started,
            0.0 if eager else self._delay,
            terms.poll_min,
            min(terms.poll_max, max(terms.poll_min, terms.ttl / 4)),
            self.jitter(),
        )
        return LookAt(now + self._delay)


# --- the end of a compile ------------------------------------------------------------------------

Compiled: TypeAlias = Literal["artifact", "failure", "nothing"]


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What to leave on disk after a compile, before and while the lease is given back.

    ``withdraw``: the holder leaves without a result, so a rival unlinks only its own slot.
    """

    publish: bool = False
    mark_cheap: bool = False
    record_failure: bool = False
    withdraw: bool = False


def conclude(
    result: Compiled, *, leased: bool, rival: bool, deterministic: bool, seconds: float, threshold: float
) -> Conclusion:
    """Decide what a compile leaves behind.

    :param rival: the lease is not in the root slot: a non-deterministic failure of a rival must not fail
        the healthy wait of those who watch the original, so it only withdraws.
    :param threshold: ``min_compile_seconds``; cheaper results are only marked.
    """
    if result == "artifact":
        if seconds >= threshold:
            return Conclusion(publish=True)
        return Conclusion(mark_cheap=True)
    if result == "failure" and leased and (deterministic or not rival):
        return Conclusion(record_failure=True)
    return Conclusion(withdraw=True)
