"""Drives the lease protocol with real files and time: from a miss to an artifact or a failure.

`_protocol` decides, `_moves` are what is done to the files, and this is the loop between them: look, wait,
take the lease, compile, publish, give the lease back, with cancellation at every await.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from errno import ETIMEDOUT
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, assert_never

import anyio

from acache import _events, _moves, _store
from acache._errors import CompileError, StoreError
from acache._format import Caption, encode_artifact, encode_cheap, encode_failure
from acache._fs import perform
from acache._models import Artifact, CompileFailure, Origin
from acache._policy import next_delay
from acache._process import GuardLostError
from acache._protocol import (
    Acquire,
    Chain,
    CompileAlone,
    LookAt,
    Share,
    Sighting,
    Terms,
    Use,
    Wait,
    conclude,
)
from acache._report import logger
from acache._store import Layout, Level, Subject, fresh_nonce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from acache._directory import Directory
    from acache._events import CompileReason
    from acache._flight import Flight
    from acache._fs import Steps
    from acache._jobs import Job
    from acache._keys import Key
    from acache._moves import Held, Lease
    from acache._poller import Poller
    from acache._report import Report
    from acache._settings import Settings
    from acache._slots import Claim, Slots

__all__ = ["Coordinator", "Landing"]

Landing: TypeAlias = Artifact | CompileFailure

NETWORK_GRACE = 1.5
"""Seconds to go on looking on a network mount when a lease vanished and no result is seen yet."""
LOOK_LIMIT = 5.0
"""Seconds that the first look may take at least, however short the deadline: a hit is worth that."""
UNKEPT = -1.0
"""Recorded seconds of a mark for what cannot be kept: below every threshold, so everybody obeys it."""


@dataclass(frozen=True, slots=True)
class Made:
    """A compile's artifact, and how long it took."""

    artifact: Artifact
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A compile's failure, to be shared as data."""

    failure: CompileFailure


@dataclass(frozen=True, slots=True)
class Raised:
    """What a caller's own function raised besides compile errors: for its callers alone."""

    error: BaseException


Outcome: TypeAlias = Made | Failed | Raised


@dataclass(slots=True)
class _Errand:
    """One flight's business: what is wanted, and what is known on the way."""

    key: Key
    subject: Subject
    job: Job
    flight: Flight[Landing]
    wait: Wait
    layout: Layout
    claim: Claim | None = None
    lease: Lease | None = None
    waiting_for: str | None = None
    reason: CompileReason | None = None
    """Why we compile at this moment; None while we do not."""
    began: float = 0.0
    """When that compile did."""
    untouchable: bool = False
    """Nothing may be written: a later format's entry stands there, or the disk does not answer."""


class Coordinator:
    """Finds or makes artifacts, in one directory, for one cache."""

    def __init__(
        self,
        directory: Directory,
        settings: Settings,
        report: Report,
        poller: Poller[Sighting],
        slots: Slots,
        group: TaskGroup,
        namespace: str | None,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._report = report
        self._poller = poller
        self._slots = slots
        self._group = group
        self._namespace = namespace
        self._swept: set[str] = set()
        self._random = random.Random()

    async def obtain(self, key: Key, subject: Subject, job: Job, flight: Flight[Landing]) -> Landing:
        """Return what is in the directory, what another process makes, or what we compile.

        Cancellation stops our compile and gives the lease back before it is passed on.

        :raises Exception: what the caller's own compile function raised.
        """
        layout = self._directory.unsurveyed()
        if self._settings.mode != "off":
            with flight.until_deadline(at_least=LOOK_LIMIT):
                layout = await self._directory.layout()
        errand = _Errand(key, subject, job, flight, self._begin(layout), layout)
        try:
            return await (
                self._just_compile(errand) if self._settings.mode == "off" else self._pursue(errand)
            )
        finally:
            self._put_claim_back(errand)

    def _begin(self, layout: Layout) -> Wait:
        settings = self._settings
        terms = Terms(
            ttl=settings.lease_ttl,
            hedge_after=settings.hedge_after,
            failure_ttl=settings.failure_ttl,
            min_compile_seconds=settings.min_compile_seconds,
            poll_min=settings.poll_min,
            poll_max=settings.poll_max,
            grace=NETWORK_GRACE if layout.network else 0.0,
            refresh=settings.mode == "refresh",
        )
        return Wait(terms, anyio.current_time(), self._random.random)

    async def _just_compile(self, errand: _Errand) -> Landing:
        """Compile without looking at the disk: an operator switched the cache off."""
        errand.claim = self._slots.claim()
        granted = anyio.Event()
        errand.claim.subscribe(granted.set)
        with errand.flight.until_deadline():
            await granted.wait()
        landing = await self._compile(errand, None, "missing" if errand.claim.granted else "deadline")
        assert landing is not None  # nobody watches, so nobody supersedes
        return landing

    # --- waiting -------------------------------------------------------------------------------

    async def _pursue(self, errand: _Errand) -> Landing:
        wait, flight = errand.wait, errand.flight
        seen = await self._first_look(errand)
        while True:
            now = anyio.current_time()
            action = wait.observe(seen, now, overdue=now >= flight.deadline)
            errand.untouchable |= seen.artifact.what == "foreign"
            match action:
                case Use():
                    return await self._use(errand, action)
                case Share():
                    return self._share(errand, action)
                case LookAt():
                    self._put_claim_back(errand)  # no slot is held while waiting for somebody else
                    self._tell_waiting(errand, seen)
                    seen = await self._look_again(errand, seen, action.at)
                    continue
                case Acquire() | CompileAlone():
                    if not self._may_begin(errand):
                        seen = await self._look_again(errand, seen, wait.queued(now).at)
                        continue
                    if isinstance(action, Acquire):
                        landing = await self._lead(errand, action)
                    else:
                        landing = await self._compile(errand, None, action.why, detail=action.detail)
                case _:
                    assert_never(action)
            if landing is not None:
                return landing
            seen = await self._look_now(errand)

    def _steps(self, errand: _Errand, *, first: bool) -> Steps[Sighting]:
        wait = errand.wait
        move = _moves.observe if self._coordinates else _store.look
        return move(
            errand.layout,
            errand.subject,
            first=first and self._settings.mode != "readonly",  # the age of a failure costs a temporary
            whole=first and wait.terms.refresh,
            rejected=wait.rejected,
        )

    async def _first_look(self, errand: _Errand) -> Sighting:
        try:
            with errand.flight.until_deadline(at_least=LOOK_LIMIT) as scope:
                seen = await self._directory.run(self._steps(errand, first=True), abandon=True)
                art = await self._directory.believed(errand.subject, seen.artifact)
                errand.layout = await self._directory.layout()
            if scope.cancelled_caught:
                raise OSError(ETIMEDOUT, "the disk did not answer in time")
        except OSError as error:
            self._directory.fault("look", error, errand.key)
            errand.untouchable = error.errno == ETIMEDOUT
            return Sighting(chain=Chain(broken=error.strerror or str(error)))
        self._directory.note(errand.key, errand.subject, art)
        if art.what != "artifact" or errand.wait.terms.refresh:
            self._report.tell(_events.Miss(key=errand.key, label=errand.job.label), misses=1)
        return replace(seen, artifact=art)

    async def _look_again(self, errand: _Errand, seen: Sighting, at: float) -> Sighting:
        """Look at that time, or when a slot is granted, or (without a new look) at the deadline."""
        subscribe = errand.claim.subscribe if errand.claim and not errand.claim.granted else None
        with errand.flight.until_deadline():
            return await self._poll(errand, at, subscribe)
        return seen

    async def _look_now(self, errand: _Errand) -> Sighting:
        """Look for what just happened: somebody took the slot, or made the artifact while we compiled.

        The deadline does not cut this short: to miss that artifact would mean to compile again.
        """
        return await self._poll(errand, errand.wait.lost(anyio.current_time()).at, None)

    async def _poll(
        self, errand: _Errand, at: float, subscribe: Callable[[Callable[[], None]], object] | None
    ) -> Sighting:
        look = partial(perform, self._steps(errand, first=False), self._directory.fs)
        try:
            return await self._poller.look(look, at, subscribe=subscribe)
        except OSError as error:
            self._directory.fault("look", error, errand.key)
            return Sighting(chain=Chain(broken=error.strerror or str(error)))

    def _tell_waiting(self, errand: _Errand, seen: Sighting) -> None:
        tail = seen.chain.tail
        if tail is None or tail.record.nonce == errand.waiting_for or tail.record.closed:
            return
        record = tail.record
        errand.waiting_for = record.nonce
        host, pid = record.tail.get("host"), record.tail.get("pid")
        self._report.tell(
            _events.Waiting(key=errand.key, label=errand.job.label, host=host, pid=pid, age=record.age)
        )
        logger.info(
            "waiting for %s: pid %s on %s compiles it, for about %.0f s so far",
            errand.job.label or errand.key.hex[:12],
            pid,
            host,
            record.age,
        )

    async def _use(self, errand: _Errand, action: Use) -> Artifact:
        entry = action.seen.entry
        assert entry is not None
        origin = Origin.PEER if action.waited else Origin.DISK
        waited = anyio.current_time() - errand.wait.started
        self._report.tell(
            _events.Hit(key=errand.key, label=errand.job.label, origin=origin, seconds=waited),
            bytes_read=entry.size,
            wait_seconds=waited if action.waited else 0.0,
            **{f"{origin.value}_hits": 1},
        )
        await self._directory.touch(errand.subject, action.seen)
        return entry.artifact()._stamped(origin, entry.identity)

    def _share(self, errand: _Errand, action: Share) -> CompileFailure:
        assert action.seen.entry is not None
        failure = action.seen.entry.failure
        waited = anyio.current_time() - errand.wait.started if errand.wait.watched else 0.0
        self._report.tell(
            _events.FailureShared(key=errand.key, label=errand.job.label, failure=failure),
            wait_seconds=waited,
        )
        return failure

    # --- slots ---------------------------------------------------------------------------------

    def _may_begin(self, errand: _Errand) -> bool:
        """Whether a local compile slot is ours; past the deadline none is needed."""
        if anyio.current_time() >= errand.flight.deadline:
            return True
        if errand.claim is None:
            errand.claim = self._slots.claim()
        return errand.claim.granted

    @staticmethod
    def _put_claim_back(errand: _Errand) -> None:
        if errand.claim is not None:
            errand.claim.give_back()
            errand.claim = None

    # --- leading -------------------------------------------------------------------------------

    @property
    def _coordinates(self) -> bool:
        return self._settings.coordinate and self._settings.mode in ("on", "refresh")

    async def _lead(self, errand: _Errand, action: Acquire) -> Landing | None:
        """Take the lease and compile; None when there is something new to look at."""
        if not self._coordinates:
            return await self._compile(errand, None, "missing")
        level = await self._directory.ready()
        errand.layout = await self._directory.layout()
        if level in (Level.PROCESS, Level.NONE):
            return await self._compile(errand, None, "uncoordinated", detail=f"coordination is {level.value}")
        try:
            held = await self._directory.run(self._take(errand, action))
        except OSError as error:
            self._directory.fault("acquire", error, errand.key)
            return await self._compile(errand, None, "uncoordinated", detail=error.strerror or str(error))
        if held is None:
            return None
        errand.lease = held.lease
        try:
            self._tell_taken(errand, action)
            if errand.wait.last_look(held.seen) is not None:
                return None  # the result is there already, and the next look finds it
            reason = "refresh" if errand.wait.terms.refresh else action.why
            return await self._compile(errand, held.lease, reason)
        finally:
            if errand.lease is not None:
                await self._settle(errand, errand.lease, _moves.Bequest(withdraw=errand.wait.withdraws))

    def _take(self, errand: _Errand, action: Acquire) -> Steps[Held | None]:
        label = errand.job.label
        usual = (yield from _store.read_usual(errand.layout, label)) if label else None
        record = _moves.draw_record(
            errand.layout,
            hedge=action.why == "hedge",
            label=label,
            usual_ms=None if usual is None else round(usual * 1000),
        )
        return (
            yield from _moves.acquire(
                errand.layout,
                errand.subject,
                action.follows,
                record,
                rejected=errand.wait.rejected,
            )
        )

    def _tell_taken(self, errand: _Errand, action: Acquire) -> None:
        if action.holder is None:
            return
        who = {"host": action.holder.tail.get("host"), "pid": action.holder.tail.get("pid")}
        name = errand.job.label or errand.key.hex[:12]
        if action.why == "hedge":
            waited = anyio.current_time() - errand.wait.started
            event: _events.Event = _events.Hedge(key=errand.key, label=errand.job.label, waited=waited, **who)
            self._report.tell(event, hedges=1)
            logger.warning(
                "compiling %s beside pid %s on %s, which makes no progress", name, who["pid"], who["host"]
            )
        else:
            event = _events.Takeover(
                key=errand.key, label=errand.job.label, verdict=action.verdict or "silence", **who
            )
            self._report.tell(event, takeovers=1)
            logger.info(
                "taking over the compile of %s from pid %s on %s, which is gone",
                name,
                who["pid"],
                who["host"],
            )

    # --- compiling -----------------------------------------------------------------------------

    async def _compile(
        self, errand: _Errand, lease: Lease | None, reason: CompileReason, *, detail: str = ""
    ) -> Landing | None:
        """Compile, under a lease or without; None when somebody else's artifact appeared first."""
        waited = anyio.current_time() - errand.wait.started
        counts: dict[str, float] = {"compiles": 1, "wait_seconds": waited if errand.wait.watched else 0.0}
        if reason == "deadline":
            counts["deadline_compiles"] = 1
            self._report.tell(_events.DeadlineReached(key=errand.key, label=errand.job.label, waited=waited))
        elif reason == "uncoordinated":
            counts["uncoordinated_compiles"] = 1
            logger.info("compiling %s without a lease: %s", errand.job.label or errand.key.hex[:12], detail)
        self._started(errand, reason, **counts)
        outcome: Outcome | None = None
        superseded = False
        try:
            async with anyio.create_task_group() as group:

                async def watch() -> None:
                    nonlocal superseded
                    await self._until_superseded(errand)
                    superseded = True
                    group.cancel_scope.cancel()

                if self._coordinates and self._directory.level is not Level.NONE:
                    group.start_soon(watch)
                try:
                    outcome = await self._attempt(errand, lease)
                except (Exception, SystemExit, KeyboardInterrupt) as error:  # as itself, not in a group
                    outcome = Raised(error)
                group.cancel_scope.cancel()
        finally:
            self._finished(errand, outcome if isinstance(outcome, Raised) else None)  # unless told already
        if outcome is None or (superseded and not isinstance(outcome, Made)):
            self._report.tell(_events.Superseded(key=errand.key, label=errand.job.label))
            return None
        match outcome:
            case Made():
                return outcome.artifact
            case Failed():
                return outcome.failure
            case Raised():
                raise outcome.error

    async def _until_superseded(self, errand: _Errand) -> None:
        """Watch for an artifact that makes our compile needless; return when there is one."""
        began, delay = anyio.current_time(), 0.0
        settings = self._settings
        while True:
            now = anyio.current_time()
            delay = next_delay(
                now - began, delay, settings.poll_min, settings.poll_max, self._random.random()
            )
            look = partial(perform, self._glance(errand), self._directory.fs)
            with suppress(Exception):  # whatever it is, it must not end a compile
                seen = await self._poller.look(look, now + delay)
                if errand.wait.stops_compile(seen.artifact):
                    errand.wait.superseded()
                    return

    @staticmethod
    def _glance(errand: _Errand) -> Steps[Sighting]:
        return Sighting((yield from _store.read_artifact(errand.layout, errand.subject)))

    async def _attempt(self, errand: _Errand, lease: Lease | None) -> Outcome:
        """Run the job, and leave its result on disk while the lease is still beaten.

        A guard that was killed is no compile failure: the job runs once more, under the same lease.
        """
        outcome: Outcome
        for attempt in (1, 2):
            concluded = False
            try:
                async with errand.job.station(lease, network=errand.layout.network) as run:
                    outcome = await self._timed(run)
                    concluded = True
                    outcome = await self._conclude(errand, lease, outcome)
            except GuardLostError as error:
                self._report.tell(_events.GuardLost(key=errand.key, label=errand.job.label))
                if concluded:
                    return outcome
                outcome = Failed(CompileFailure("spawn", f"the compile's guard was killed: {error}"))
                if attempt == 1:
                    self._finished(errand, None)
                    self._started(errand, "retry", compiles=1)
                    continue
            except CompileError as error:  # the station itself could not be set up
                outcome = Failed(error.failure)
            if not concluded:
                outcome = await self._conclude(errand, lease, outcome)
            return outcome
        raise AssertionError("unreachable")

    async def _timed(self, run: Callable[[], Awaitable[Artifact]]) -> Outcome:
        began = anyio.current_time()
        limit = self._settings.compile_timeout
        try:
            with anyio.move_on_after(limit) as scope:
                artifact = await run()
                return Made(artifact, anyio.current_time() - began)
        except GuardLostError:
            raise
        except CompileError as error:
            return Failed(error.failure)
        except Exception as error:
            return Raised(error)
        assert scope.cancelled_caught
        text = f"stopped after {limit:g} s; compile_timeout allows no more"
        return Failed(CompileFailure("timeout", text, seconds=anyio.current_time() - began))

    # --- leaving a result ----------------------------------------------------------------------

    async def _conclude(self, errand: _Errand, lease: Lease | None, outcome: Outcome) -> Outcome:
        """Publish or mark or remember, then give the lease back; the outcome is then stamped."""
        seconds = outcome.seconds if isinstance(outcome, Made) else 0.0
        self._finished(errand, outcome)
        identity = fresh_nonce()
        bequest = self._bequest(errand, lease, outcome, identity)
        fault = await self._settle(errand, lease, bequest)
        if not isinstance(outcome, Made):
            return outcome
        kept = bequest.artifact is not None and fault is None
        if kept:
            size = sum(len(chunk) for chunk in bequest.artifact or ())
            event = _events.Published(key=errand.key, label=errand.job.label, size=size, seconds=seconds)
            self._report.tell(event, published=1, bytes_written=size)
            self._group.start_soon(self._tidy, errand, seconds)
        return Made(outcome.artifact._stamped(Origin.COMPILED, identity if kept else None), seconds)

    def _bequest(
        self, errand: _Errand, lease: Lease | None, outcome: Outcome, identity: str
    ) -> _moves.Bequest:
        settings = self._settings
        if settings.mode in ("off", "readonly") or self._directory.level is Level.NONE or errand.untouchable:
            return _moves.Bequest(withdraw=True)
        caption = Caption(
            key=errand.key.hex,
            namespace=self._namespace,
            nonce=identity,
            label=errand.job.label,
            fields=errand.key.fields,
            created=time.time(),
        )
        failure = outcome.failure if isinstance(outcome, Failed) else None
        seconds = outcome.seconds if isinstance(outcome, Made) else 0.0
        plan = conclude(
            "artifact" if isinstance(outcome, Made) else "failure" if failure else "nothing",
            leased=lease is not None,
            rival=lease is not None and lease.rival,
            deterministic=failure is not None and failure.deterministic,
            seconds=seconds,
            threshold=settings.min_compile_seconds,
        )
        if failure is not None and plan.record_failure and lease is not None:
            return _moves.Bequest(failure=encode_failure(caption, failure, lease.nonce))
        if not isinstance(outcome, Made):
            return _moves.Bequest(withdraw=plan.withdraw)
        if plan.mark_cheap:
            self._report.tell(_events.Cheap(key=errand.key, label=errand.job.label, seconds=seconds))
            return _moves.Bequest(cheap=encode_cheap(caption, seconds))
        unkept = encode_cheap(replace(caption, nonce=fresh_nonce()), UNKEPT)
        size, limit = outcome.artifact.size, settings.max_entry_bytes
        try:
            if size <= limit:
                return _moves.Bequest(encode_artifact(caption, outcome.artifact, seconds), unkept)
        except ValueError as error:  # metadata beyond what a header holds
            logger.warning("%s is not kept: %s", errand.job.label or errand.key.hex[:12], error)
        self._report.tell(_events.Oversized(key=errand.key, label=errand.job.label, size=size, limit=limit))
        return _moves.Bequest(unkept=unkept)

    async def _settle(self, errand: _Errand, lease: Lease | None, bequest: _moves.Bequest) -> OSError | None:
        """Write and give back; faults are told, never raised (but with ``strict``).

        `Directory.run` shields a move that writes from cancellation, and bounds it.
        """
        if lease is None and bequest == _moves.Bequest(withdraw=True):
            return None
        if lease is not None:
            errand.lease = None
        fault: OSError | None = None
        try:
            fault = await self._directory.run(_moves.settle(errand.layout, errand.subject, lease, bequest))
        except OSError as error:
            fault = error
        if fault is not None:
            self._directory.fault("publish", fault, errand.key)
        return fault

    def _started(self, errand: _Errand, reason: CompileReason, **counts: float) -> None:
        errand.reason, errand.began = reason, anyio.current_time()
        self._report.tell(
            _events.CompileStarted(key=errand.key, label=errand.job.label, reason=reason), **counts
        )

    def _finished(self, errand: _Errand, outcome: Outcome | None) -> None:
        """Tell, once per start, that a compile ended; None: it was stopped."""
        if errand.reason is None:
            return
        seconds = anyio.current_time() - errand.began
        event = _events.CompileFinished(
            key=errand.key,
            label=errand.job.label,
            reason=errand.reason,
            seconds=seconds,
            ok=isinstance(outcome, Made),
            failure=outcome.failure if isinstance(outcome, Failed) else None,
        )
        errand.reason = None
        failed = isinstance(outcome, Failed | Raised)
        self._report.tell(event, compile_seconds=seconds, compile_failures=int(failed))

    async def _tidy(self, errand: _Errand, seconds: float) -> None:
        """After a publication: remember the label's usual time, and sweep that shard once per process."""
        folder = errand.subject.paths.folder
        try:
            if errand.job.label is not None:
                await self._directory.run(_store.write_usual(errand.layout, errand.job.label, seconds))
            if folder not in self._swept:
                self._swept.add(folder)
                await self._directory.run(_moves.sweep(errand.layout, folder))
        except OSError as error:
            with suppress(StoreError):  # nobody called for this, so nobody is there to hear of it
                self._directory.fault("sweep", error, errand.key)
