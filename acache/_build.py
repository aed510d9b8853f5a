"""A compile that is ours: run it, watch for others' results, leave ours on disk, give the lease back."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio

from acache import _events, _moves, _store
from acache._errors import CompileError, StoreError
from acache._format import Caption, encode_artifact, encode_cheap, encode_failure
from acache._fs import perform
from acache._models import Artifact, CompileFailure, Origin
from acache._policy import next_delay
from acache._probe import Level
from acache._process import GuardLostError
from acache._protocol import OVERSIZED, UNKEPT, Sighting, Wait, conclude
from acache._report import logger
from acache._store import Layout, Subject, fresh_nonce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from acache._directory import Directory
    from acache._events import CompileReason
    from acache._flight import Flight
    from acache._fs import Steps
    from acache._jobs import Job
    from acache._keys import Key
    from acache._moves import Lease
    from acache._poller import Poller
    from acache._report import Report
    from acache._settings import Settings
    from acache._slots import Claim

__all__ = ["Builder", "Errand", "Landing"]

Landing: TypeAlias = Artifact | CompileFailure


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
class Errand:
    """One flight's business: what is wanted, and what is known on the way."""

    key: Key
    subject: Subject
    job: Job
    flight: Flight[Landing]
    wait: Wait
    layout: Layout
    nested: bool = False
    """Asked for from inside another compile of this process."""
    claim: Claim | None = None
    late: bool = False
    """The deadline passed in the queue for a local slot, so that we compile without one."""
    lease: Lease | None = None
    waiting_for: str | None = None
    reason: CompileReason | None = None
    """Why we compile at this moment; None while we do not."""
    began: float = 0.0
    """When that compile did."""
    untouchable: bool = False
    """Nothing may be written: a later format's entry stands there, or the disk does not answer."""


class Builder:
    """Compiles, for one cache in one directory."""

    def __init__(
        self,
        directory: Directory,
        settings: Settings,
        report: Report,
        poller: Poller[Sighting],
        group: TaskGroup,
        namespace: str | None,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._report = report
        self._poller = poller
        self._group = group
        self._namespace = namespace
        self._swept: set[str] = set()

    @property
    def coordinates(self) -> bool:
        """Whether leases are used at all."""
        return self._settings.coordinate and self._settings.mode in ("on", "refresh")

    # --- compiling -----------------------------------------------------------------------------

    async def compile(
        self, errand: Errand, lease: Lease | None, reason: CompileReason, *, detail: str = ""
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
                    if errand.reason is not None:  # else it may be our own, just published
                        group.cancel_scope.cancel()

                if self.coordinates and self._directory.level is not Level.NONE:
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

    async def _until_superseded(self, errand: Errand) -> None:
        """Watch for an artifact that makes our compile needless; return when there is one."""
        began, delay = anyio.current_time(), 0.0
        settings = self._settings
        while True:
            now = anyio.current_time()
            delay = next_delay(now - began, delay, settings.poll_min, settings.poll_max, random.random())
            look = partial(perform, self._glance(errand), self._directory.fs)
            with suppress(Exception):  # whatever it is, it must not end a compile
                seen = await self._poller.look(look, now + delay)
                if errand.wait.stops_compile(seen.artifact):
                    errand.wait.superseded()
                    return

    @staticmethod
    def _glance(errand: Errand) -> Steps[Sighting]:
        return Sighting((yield from _store.read_artifact(errand.layout, errand.subject)))

    async def _attempt(self, errand: Errand, lease: Lease | None) -> Outcome:
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

    async def _conclude(self, errand: Errand, lease: Lease | None, outcome: Outcome) -> Outcome:
        """Publish or mark or remember, then give the lease back; the outcome is then stamped."""
        seconds = outcome.seconds if isinstance(outcome, Made) else 0.0
        self._finished(errand, outcome)
        identity = fresh_nonce()
        bequest = self._bequest(errand, lease, outcome, identity)
        fault = await self.settle(errand, lease, bequest)
        if not isinstance(outcome, Made):
            return outcome
        kept = bequest.artifact is not None and fault is None
        job = errand.job
        if kept:
            size = sum(len(chunk) for chunk in bequest.artifact or ())
            event = _events.Published(
                key=errand.key, label=job.label, compiler=job.compiler, size=size, seconds=seconds
            )
            self._report.tell(event, published=1, bytes_written=size)
            self._group.start_soon(self._tidy, errand, seconds)
        about = (job.label, job.compiler, seconds)
        return Made(outcome.artifact._stamped(Origin.COMPILED, identity if kept else None, about), seconds)

    def _bequest(
        self, errand: Errand, lease: Lease | None, outcome: Outcome, identity: str
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
            compiler=errand.job.compiler,
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
        again = replace(caption, nonce=fresh_nonce())
        size, limit = outcome.artifact.size, settings.max_entry_bytes
        try:
            if size <= limit:
                chunks = encode_artifact(caption, outcome.artifact, seconds)
                return _moves.Bequest(chunks, encode_cheap(again, UNKEPT))
        except ValueError as error:  # metadata beyond what a header holds
            logger.warning("%s is not kept: %s", errand.job.label or errand.key.hex[:12], error)
        self._report.tell(_events.Oversized(key=errand.key, label=errand.job.label, size=size, limit=limit))
        return _moves.Bequest(unkept=encode_cheap(again, OVERSIZED))

    async def settle(self, errand: Errand, lease: Lease | None, bequest: _moves.Bequest) -> OSError | None:
        """Write and give back; faults are told, never raised (but with ``strict``).

        `Directory.run` shields a move that writes from cancellation, and bounds it.
        """
        if lease is None and bequest == _moves.Bequest(withdraw=True):
            return None
        if lease is not None and lease.pid != os.getpid():
            return None  # a forked child inherits the nonce, and owns nothing
        if lease is not None:
            errand.lease = None
        fault: OSError | None = None
        try:
            move = _moves.settle(errand.layout, errand.subject, lease, bequest)
            if bequest.writes:
                fault = await self._directory.publish(errand.layout, errand.subject, move)
            else:
                fault = await self._directory.run(move)
        except OSError as error:
            fault = error
        if fault is not None:
            self._directory.fault("publish", fault, errand.key)
        return fault

    def _started(self, errand: Errand, reason: CompileReason, **counts: float) -> None:
        errand.reason, errand.began = reason, anyio.current_time()
        self._report.tell(
            _events.CompileStarted(
                key=errand.key, label=errand.job.label, compiler=errand.job.compiler, reason=reason
            ),
            **counts,
        )

    def _finished(self, errand: Errand, outcome: Outcome | None) -> None:
        """Tell, once per start, that a compile ended; None: it was stopped."""
        if errand.reason is None:
            return
        seconds = anyio.current_time() - errand.began
        event = _events.CompileFinished(
            key=errand.key,
            label=errand.job.label,
            compiler=errand.job.compiler,
            reason=errand.reason,
            seconds=seconds,
            ok=isinstance(outcome, Made),
            failure=outcome.failure if isinstance(outcome, Failed) else None,
        )
        errand.reason = None
        failed = isinstance(outcome, Failed | Raised)
        self._report.tell(event, compile_seconds=seconds, compile_failures=int(failed))

    async def _tidy(self, errand: Errand, seconds: float) -> None:
        """After a publication: remember the label's usual time; once per process, sweep that shard, and the
        folders beside the shards.
        """
        folder = errand.subject.paths.folder
        try:
            if errand.job.label is not None:
                await self._directory.run(_store.write_usual(errand.layout, errand.job.label, seconds))
            if folder not in self._swept:
                self._swept.add(folder)
                await self._directory.run(_moves.sweep(errand.layout, folder))
            for folder in _store.loose_folders(errand.layout):
                if folder not in self._swept:
                    self._swept.add(folder)
                    await self._directory.run(_moves.sweep_temporaries(folder))
        except OSError as error:
            with suppress(StoreError):  # nobody called for this, so nobody is there to hear of it
                self._directory.fault("sweep", error, errand.key)
