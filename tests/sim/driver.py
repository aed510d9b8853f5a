"""What a process of the simulator does: the loop of `acache._lease` without its loop, threads and events.

Look, wait, take the lease, compile, publish, give back; decided by `acache._protocol`, done by
`acache._moves`, one file operation per schedule point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from acache import _moves, _store
from acache._beat import beat
from acache._format import Caption, encode_artifact, encode_cheap, encode_failure
from acache._models import Artifact, CompileFailure
from acache._policy import deadline_of
from acache._protocol import Acquire, Chain, CompileAlone, LookAt, Share, Sighting, Terms, Use, Wait, conclude
from tests.sim.world import Sleep

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from acache._moves import Lease
    from acache._protocol import SeenArtifact
    from acache._store import Layout, Subject
    from tests.sim.world import Process

UNKEPT = -1.0

TERMS = Terms(
    ttl=2.0, hedge_after=3.0, failure_ttl=20.0, min_compile_seconds=0.0, poll_min=0.05, poll_max=0.5
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one run of a compiler goes."""

    seconds: float = 1.0
    ends: Literal["artifact", "diagnostic", "memory", "never"] = "artifact"
    progresses: bool = True


@dataclass(frozen=True, slots=True)
class Made:
    """A call ended with these bytes."""

    data: bytes
    origin: Literal["compiled", "peer", "disk"]


@dataclass(frozen=True, slots=True)
class Refused:
    """A call ended with a compile failure."""

    failure: CompileFailure
    shared: bool


Result: TypeAlias = Made | Refused


@dataclass(slots=True)
class Holding:
    """What is publicly known of one lease, for the properties."""

    process: Process
    lease: Lease | None
    state: Literal["trying", "held", "leaving", "left", "leaked"] = "trying"
    fresh: float = 0.0
    """The world's time of the last beat."""
    suspended: float = 0.0
    """How long the process had been suspended in all when it began to leave."""


class Call:
    """One get_or_compile of one process.

    :param compiler: called when a compile starts, with this call and why; says how it will go.
    :param holdings: where leases are written down under their nonces.
    """

    def __init__(
        self,
        process: Process,
        layout: Layout,
        subject: Subject,
        truth: bytes,
        compiler: Callable[[Call, str], Attempt],
        holdings: dict[str, Holding],
        *,
        terms: Terms = TERMS,
        max_wait: float = 30.0,
        compile_timeout: float = 8.0,
        leaks: bool = False,
        mute: bool = False,
        usual: float | None = None,
    ) -> None:
        self.process = process
        self.layout = layout
        self.subject = subject
        self.truth = truth
        self.terms = terms
        self.max_wait = max_wait
        self.compile_timeout = compile_timeout
        self.leaks = leaks
        self.mute = mute
        self.usual = usual
        self.result: Result | None = None
        self.began = self.ended = 0.0
        self._compiler = compiler
        self._holdings = holdings
        self._random = process.world.random.random
        self._wait = Wait(terms, process.clock(), self._random)
        self._lease: Lease | None = None

    def run(self) -> Generator[Any, Any, None]:
        """Do it all; the result is then in ``result``."""
        clock, world = self.process.clock, self.process.world
        self.began = world.now
        self._wait = wait = Wait(self.terms, clock(), self._random)
        deadline = clock() + deadline_of(self.max_wait, self._random())
        seen = yield from self._look(first=True)
        while True:
            now = clock()
            action = wait.observe(seen, now, overdue=now >= deadline)
            result: Result | None = None
            match action:
                case Use(seen=art):
                    result = self._use(art, "peer" if action.waited else "disk")
                case Share(seen=failure):
                    assert failure.entry is not None
                    result = Refused(failure.entry.failure, shared=True)
                case LookAt(at=at):
                    yield Sleep(min(at, deadline) - now)
                    if at <= deadline:
                        seen = yield from self._look(first=False)
                    continue
                case Acquire():
                    result = yield from self._lead(action)
                case CompileAlone():
                    result = yield from self._compile(None, action.why)
            if result is not None:
                self.result, self.ended = result, world.now
                return
            yield Sleep(wait.lost(clock()).at - clock())
            seen = yield from self._look(first=False)

    def _look(self, *, first: bool) -> Generator[Any, Any, Sighting]:
        try:
            return (
                yield from _moves.observe(
                    self.layout,
                    self.subject,
                    first=first,
                    whole=first and self.terms.refresh,
                    rejected=self._wait.rejected,
                )
            )
        except OSError as error:
            return Sighting(chain=Chain(broken=str(error)))

    @staticmethod
    def _use(seen: SeenArtifact, origin: Literal["peer", "disk"]) -> Made:
        assert seen.entry is not None
        return Made(seen.entry.artifact().data, origin)

    def _lead(self, action: Acquire) -> Generator[Any, Any, Result | None]:
        usual = None if self.usual is None else round(self.usual * 1000)
        record = _moves.draw_record(self.layout, hedge=action.why == "hedge", usual_ms=usual)
        holding = self._holdings[record.nonce] = Holding(self.process, None)
        try:
            held = yield from _moves.acquire(
                self.layout, self.subject, action.follows, record, rejected=self._wait.rejected
            )
        except OSError:
            holding.state = "left"
            return (yield from self._compile(None, "uncoordinated"))
        if held is None:
            holding.state = "left"
            return None
        self._lease = holding.lease = held.lease
        holding.state, holding.fresh = "held", self.process.world.now
        try:
            if self._wait.last_look(held.seen) is not None:
                return None
            return (yield from self._compile(held.lease, action.why))
        finally:
            if self._lease is not None:
                bequest = _moves.Bequest(withdraw=self._wait.withdraws)
                yield from self._settle(held.lease, bequest)

    def _compile(self, lease: Lease | None, why: str) -> Generator[Any, Any, Result | None]:
        clock, wait = self.process.clock, self._wait
        attempt = self._compiler(self, why)
        began = clock()
        if lease is not None and self.mute:
            self.process.world.faults += 1
        elif lease is not None:
            self.process.spawn(self._beat(lease, attempt), "beat")
        seconds = min(attempt.seconds, self.compile_timeout)
        if attempt.ends == "never":
            seconds = self.compile_timeout
        while (left := began + seconds - clock()) > 0:
            yield Sleep(min(left, self.terms.poll_max))
            if clock() < began + seconds:
                try:
                    seen = yield from _store.read_artifact(self.layout, self.subject)
                except OSError:
                    continue
                if wait.stops_compile(seen):
                    wait.superseded()
                    return None
        if attempt.ends == "artifact" and attempt.seconds <= self.compile_timeout:
            yield from self._settle(lease, self._bequest(lease, attempt, None))
            return Made(self.truth, "compiled")
        self.process.world.faults += attempt.ends == "never"
        reason: Any = "timeout" if attempt.ends in ("never", "artifact") else attempt.ends
        failure = CompileFailure(reason, "it failed", deterministic=attempt.ends == "diagnostic")
        yield from self._settle(lease, self._bequest(lease, attempt, failure))
        return Refused(failure, shared=False)

    def _beat(self, lease: Lease, attempt: Attempt) -> Generator[Any, Any, None]:
        holding = self._holdings[lease.nonce]
        counter = progress = 0
        while holding.state == "held":
            yield Sleep(self.layout.interval)
            counter += 1
            progress += 100 * attempt.progresses
            folder = lease.paths.folder if self.layout.network else ""
            if holding.state == "held":
                try:
                    answer = yield from beat(
                        lease.slot, lease.successor, lease.nonce, counter, progress, folder
                    )
                except OSError:
                    continue
                if answer == "beaten":
                    holding.fresh = self.process.world.now

    def _bequest(
        self, lease: Lease | None, attempt: Attempt, failure: CompileFailure | None
    ) -> _moves.Bequest:
        caption = Caption(self.subject.key, self.subject.namespace, _store.fresh_nonce())
        plan = conclude(
            "artifact" if failure is None else "failure",
            leased=lease is not None,
            rival=lease is not None and lease.rival,
            deterministic=failure is not None and failure.deterministic,
            seconds=attempt.seconds,
            threshold=self.terms.min_compile_seconds,
        )
        if plan.record_failure:
            assert lease is not None
            assert failure is not None
            return _moves.Bequest(failure=encode_failure(caption, failure, lease.nonce))
        if plan.mark_cheap:
            return _moves.Bequest(cheap=encode_cheap(caption, attempt.seconds))
        if plan.publish:
            unkept = encode_cheap(replace(caption, nonce=_store.fresh_nonce()), UNKEPT)
            artifact = encode_artifact(caption, Artifact.of(self.truth), attempt.seconds)
            return _moves.Bequest(artifact=artifact, unkept=unkept)
        return _moves.Bequest(withdraw=plan.withdraw)

    def _settle(self, lease: Lease | None, bequest: _moves.Bequest) -> Generator[Any, Any, None]:
        self._lease = None
        holding = None if lease is None else self._holdings[lease.nonce]
        if holding is not None:
            holding.suspended = self.process.suspended
        if self.leaks and holding is not None:
            holding.state = "leaked"
            self.process.world.faults += 1
            return  # a broken release: the process lives on, and its lease stays
        if holding is not None:
            holding.state = "leaving"
        if lease is not None or bequest != _moves.Bequest(withdraw=True):
            yield from _moves.settle(self.layout, self.subject, lease, bequest)
        if holding is not None:
            holding.state = "left"
