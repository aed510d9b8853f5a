"""Drives the lease protocol with real files and time: from a miss to an artifact or a failure.

`_protocol` decides, `_moves` are what is done to the files, and this is the loop between them: look, wait,
take the lease, compile, publish, give the lease back, with cancellation at every await.
"""

from __future__ import annotations

import random
from dataclasses import replace
from errno import ETIMEDOUT
from functools import partial
from typing import TYPE_CHECKING, assert_never

import anyio

from acache import _events, _moves, _store
from acache._build import Builder, Errand, Landing
from acache._fs import perform
from acache._models import Artifact, CompileFailure, Origin
from acache._probe import Level
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
)
from acache._report import logger
from acache._tiers import Below

if TYPE_CHECKING:
    from collections.abc import Callable

    from acache._directory import Directory
    from acache._flight import Flight
    from acache._fs import Steps
    from acache._jobs import Job
    from acache._keys import Key
    from acache._moves import Held
    from acache._poller import Poller
    from acache._protocol import SeenArtifact
    from acache._rejected import Rejected
    from acache._report import Report
    from acache._settings import Settings
    from acache._slots import Slots
    from acache._store import Layout, Subject
    from acache._tiers import Tiers

__all__ = ["Coordinator"]

NETWORK_GRACE = 1.5
"""Seconds to go on looking on a network mount when a lease vanished and no result is seen yet."""
LOOK_LIMIT = 5.0
"""Seconds that the first look may take at least, however short the deadline: a hit is worth that."""


class Coordinator:
    """Finds or makes artifacts, in one directory, for one cache."""

    def __init__(
        self,
        directory: Directory,
        settings: Settings,
        report: Report,
        poller: Poller[Sighting],
        slots: Slots,
        builder: Builder,
        tiers: Tiers,
        rejected: Rejected,
    ) -> None:
        self._tiers = tiers
        self._rejected = rejected
        self._directory = directory
        self._settings = settings
        self._report = report
        self._poller = poller
        self._slots = slots
        self._builder = builder

    async def obtain(
        self, key: Key, subject: Subject, job: Job, flight: Flight[Landing], *, nested: bool = False
    ) -> Landing:
        """Return what is in the directory, what another process makes, or what we compile.

        Cancellation stops our compile and gives the lease back before it is passed on.

        :param nested: asked for by a compile that holds a slot, which must not wait for another.
        :raises Exception: what the caller's own compile function raised.
        """
        layout = self._directory.unsurveyed()
        if self._settings.mode != "off":
            with flight.until_deadline(at_least=LOOK_LIMIT):
                layout = await self._directory.layout()
        errand = Errand(key, subject, job, flight, self._begin(layout), layout, nested)
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
        return Wait(terms, anyio.current_time(), random.random, rejected=set(self._rejected.known()))

    async def _just_compile(self, errand: Errand) -> Landing:
        """Compile without looking at the disk: an operator switched the cache off."""
        errand.claim = self._slots.claim()
        granted = anyio.Event()
        errand.claim.subscribe(granted.set)
        if not errand.nested:
            with errand.flight.until_deadline():
                await granted.wait()
        landing = await self._builder.compile(
            errand, None, "missing" if errand.claim.granted or errand.nested else "deadline"
        )
        assert landing is not None  # nobody watches, so nobody supersedes
        return landing

    # --- waiting -------------------------------------------------------------------------------

    async def _pursue(self, errand: Errand) -> Landing:
        wait, flight = errand.wait, errand.flight
        seen, below = await self._first_look(errand)
        if below is not None:
            return await self._use(errand, Use(below, waited=False), lower=True)
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
                        landing = await self._builder.compile(errand, None, action.why, detail=action.detail)
                case _:
                    assert_never(action)
            if landing is not None:
                return landing
            seen = await self._look_now(errand)

    def _steps(self, errand: Errand, *, first: bool) -> Steps[Sighting]:
        wait = errand.wait
        move = _moves.observe if self._builder.coordinates else _store.look
        return move(
            errand.layout,
            errand.subject,
            first=first and self._settings.mode != "readonly",  # the age of a failure costs a temporary
            whole=first and wait.terms.refresh,
            rejected=wait.rejected,
        )

    async def _first_look(self, errand: Errand) -> tuple[Sighting, SeenArtifact | None]:
        """Look in the directory and, where it has nothing to use, in the lower tiers: one trip."""
        below, art = Below(), None
        try:
            with errand.flight.until_deadline(at_least=LOOK_LIMIT) as scope:
                found, below = await self._directory.run(self._first_steps(errand), abandon=True)
                if isinstance(found, OSError):
                    raise found
                art = await self._directory.believed(errand.subject, found.artifact)
                seen = replace(found, artifact=art)
                errand.layout = await self._directory.layout()
            if scope.cancelled_caught:
                raise OSError(ETIMEDOUT, "the disk did not answer in time")
        except OSError as error:
            self._directory.fault("look", error, errand.key)
            errand.untouchable = error.errno == ETIMEDOUT
            seen, art = Sighting(chain=Chain(broken=error.strerror or str(error))), None
        if art is not None:
            self._directory.note(errand.key, errand.subject, art)
        self._tiers.tell(errand.key, below)
        if below.seen is None and (art is None or not errand.wait.takes(art) or errand.wait.terms.refresh):
            job = errand.job
            self._report.tell(_events.Miss(key=errand.key, label=job.label, compiler=job.compiler), misses=1)
        return seen, below.seen

    def _first_steps(self, errand: Errand) -> Steps[tuple[Sighting | OSError, Below]]:
        wait, below = errand.wait, Below()
        seen: Sighting | OSError
        try:
            seen = yield from self._steps(errand, first=True)
        except OSError as error:
            seen = error
        found = isinstance(seen, Sighting) and wait.takes(seen.artifact)
        if self._tiers and not found and not wait.terms.refresh:
            below = yield from self._tiers.look(errand.subject, rejected=wait.rejected)
        return seen, below

    async def _look_again(self, errand: Errand, seen: Sighting, at: float) -> Sighting:
        """Look at that time, or when a slot is granted, or (without a new look) at the deadline."""
        subscribe = errand.claim.subscribe if errand.claim and not errand.claim.granted else None
        with errand.flight.until_deadline():
            return await self._poll(errand, at, subscribe)
        return seen

    async def _look_now(self, errand: Errand) -> Sighting:
        """Look for what just happened: somebody took the slot, or made the artifact while we compiled.

        The deadline does not cut this short: to miss that artifact would mean to compile again.
        """
        return await self._poll(errand, errand.wait.lost(anyio.current_time()).at, None)

    async def _poll(
        self, errand: Errand, at: float, subscribe: Callable[[Callable[[], None]], object] | None
    ) -> Sighting:
        look = partial(perform, self._steps(errand, first=False), self._directory.fs)
        try:
            return await self._poller.look(look, at, subscribe=subscribe)
        except OSError as error:
            self._directory.fault("look", error, errand.key)
            return Sighting(chain=Chain(broken=error.strerror or str(error)))

    def _tell_waiting(self, errand: Errand, seen: Sighting) -> None:
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

    async def _use(self, errand: Errand, action: Use, *, lower: bool = False) -> Artifact:
        """Hand out what is there; what a lower tier holds is not marked as used."""
        entry = action.seen.entry
        assert entry is not None
        origin = Origin.PEER if action.waited else Origin.DISK
        waited = anyio.current_time() - errand.wait.started
        self._report.tell(
            _events.Hit(
                key=errand.key,
                label=errand.job.label if errand.job.label is not None else entry.label,
                compiler=errand.job.compiler or entry.compiler,
                origin=origin,
                seconds=waited,
                saved=entry.seconds,
            ),
            bytes_read=entry.size,
            wait_seconds=waited if action.waited else 0.0,
            **{f"{origin.value}_hits": 1},
        )
        if not lower:
            await self._directory.touch(errand.subject, action.seen)
        return entry.artifact()._stamped(origin, entry.identity)

    def _share(self, errand: Errand, action: Share) -> CompileFailure:
        assert action.seen.entry is not None
        failure = action.seen.entry.failure
        waited = anyio.current_time() - errand.wait.started if errand.wait.watched else 0.0
        self._report.tell(
            _events.FailureShared(
                key=errand.key, label=errand.job.label, compiler=errand.job.compiler, failure=failure
            ),
            wait_seconds=waited,
        )
        return failure

    # --- slots ---------------------------------------------------------------------------------

    def _may_begin(self, errand: Errand) -> bool:
        """Whether a local compile slot is ours; past the deadline, and inside a compile, none is needed."""
        if errand.nested:
            return True
        if errand.claim is None:
            errand.claim = self._slots.claim()
        errand.late = not errand.claim.granted and anyio.current_time() >= errand.flight.deadline
        return errand.claim.granted or errand.late

    @staticmethod
    def _put_claim_back(errand: Errand) -> None:
        if errand.claim is not None:
            errand.claim.give_back()
            errand.claim = None

    # --- leading -------------------------------------------------------------------------------

    async def _lead(self, errand: Errand, action: Acquire) -> Landing | None:
        """Take the lease and compile; None when there is something new to look at."""
        if not self._builder.coordinates:
            return await self._builder.compile(errand, None, "deadline" if errand.late else "missing")
        level = await self._directory.ready()
        errand.layout = await self._directory.layout()
        if level in (Level.PROCESS, Level.NONE):
            return await self._builder.compile(
                errand, None, "uncoordinated", detail=f"coordination is {level.value}"
            )
        try:
            held = await self._directory.run(self._take(errand, action))
        except OSError as error:
            self._directory.fault("acquire", error, errand.key)
            return await self._builder.compile(
                errand, None, "uncoordinated", detail=error.strerror or str(error)
            )
        if held is None:
            return None
        errand.lease = held.lease
        try:
            self._tell_taken(errand, action)
            if errand.wait.last_look(held.seen) is not None:
                return None  # the result is there already, and the next look finds it
            reason = "deadline" if errand.late else "refresh" if errand.wait.terms.refresh else action.why
            return await self._builder.compile(errand, held.lease, reason)
        finally:
            if errand.lease is not None:
                await self._builder.settle(
                    errand, errand.lease, _moves.Bequest(withdraw=errand.wait.withdraws)
                )

    def _take(self, errand: Errand, action: Acquire) -> Steps[Held | None]:
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

    def _tell_taken(self, errand: Errand, action: Acquire) -> None:
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
