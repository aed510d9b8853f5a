"""A scene: hosts, processes, compilers and faults drawn from a seed, run to its end, and checked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from acache._format import decode_record
from acache._fs import perform
from acache._moves import acquire, draw_record, sweep
from acache._store import Layout, Trust
from tests.sim.driver import TERMS, Attempt, Call, Holding, Made, Refused
from tests.sim.values import KEY, ME, NAME, subject_in
from tests.sim.world import DAY, Strike, Wire, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from acache._protocol import Terms
    from tests.sim.server import Client
    from tests.sim.world import Process, Thread

TRUTH = b"the artifact of " + KEY.encode()
SLACK = 20.0
"""Seconds that a call may need for its file operations, beside waiting and compiling."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part, and what may go wrong; the numbers of faults are drawn from ranges up to these."""

    hosts: int = 1
    processes: int = 4
    calls: int = 1
    spread: float = 0.3
    """Seconds within which the processes begin."""
    terms: Terms = TERMS
    thresholds: tuple[float, ...] = ()
    """``min_compile_seconds`` to choose from, one for each process."""
    max_wait: float = 30.0
    compile_timeout: float = 8.0
    attempts: Callable[[int], Attempt] | None = None
    """How the n-th compile goes, from 0; None: it takes up to three seconds and succeeds."""
    network: bool = False
    stale: float = 0.0
    linkless: bool = False
    honest: bool = True
    """Whether identity can be judged at all."""
    crashes: int = 0
    suspensions: int = 0
    pauses: int = 0
    """Suspensions too short for anybody to call the process silent."""
    cancels: int = 0
    leaks: int = 0
    mute: int = 0
    """Holders whose beats stop although they live: their guard was killed."""
    hung: int = 0
    memory: int = 0
    """Compiles that fail for want of memory."""
    usual: float | None = None
    """What compiles of that label usually take."""
    containers: bool = False
    """The hosts are containers of one kernel: equal boot ids, equal pids, other pid namespaces."""
    litter: bool = False
    """A dead chain and other remains from two days ago lie there, and everybody sweeps."""
    counted: bool = True
    """Whether one compile and one for each fault must do."""
    wire: Wire = field(default_factory=Wire)


class Scene:
    """One run."""

    def __init__(self, seed: int, cast: Cast) -> None:
        self.cast = cast
        self.world = world = World(seed, wire=replace(cast.wire))
        self.random = world.random
        self.holdings: dict[str, Holding] = {}
        self.calls: list[Call] = []
        self.threads: list[Thread | None] = []
        self.compiles: list[tuple[float, Call, str, Attempt]] = []
        self.broken: list[str] = []
        self.clients = [
            world.client(network=cast.network, stale=cast.stale, linkless=cast.linkless)
            for _ in range(cast.hosts)
        ]
        self._fates = self._draw_fates()
        world.server.watchers.append(self._watch_names)

    def _draw_fates(self) -> list[str]:
        fates = ["hung"] * self._some(self.cast.hung) + ["memory"] * self._some(self.cast.memory)
        fates += [""] * self.random.randint(0, 2)
        self.random.shuffle(fates)
        return fates

    def _some(self, most: int) -> int:
        return self.random.randint(0, most)

    # --- the play --------------------------------------------------------------------------------------

    def play(self) -> Scene:
        """Run to the end and check everything.

        :raises Violation: with the trace.
        """
        cast, world = self.cast, self.world
        if cast.litter:
            self._drop_litter()
        actors = [self._enter(number) for number in range(cast.processes)]
        for _ in range(self._some(cast.crashes)):
            self._plan_crash(self.random.choice(actors))
        for _ in range(self._some(cast.suspensions)):
            self._plan_suspension(self.random.choice(actors), self.random.uniform(1.0, 12.0))
        for _ in range(self._some(cast.pauses)):
            self._plan_suspension(self.random.choice(actors), self.random.uniform(0.01, 0.5))
        for _ in range(self._some(cast.cancels)):
            self._plan_cancel(self.random.randrange(len(actors)))
        bound = self._bound()
        world.run(until=bound)
        self._check(bound)
        return self

    def _drop_litter(self) -> None:
        client, world = self.world.client(), self.world
        layout = Layout("/cache", Trust("any", frozenset()), replace(ME, host="long gone"), ttl=2.0)
        subject = subject_in(layout)
        world.skew -= 2 * DAY
        with world.nonces():
            client.mkdir(subject.paths.folder)
            root = perform(acquire(layout, subject, None, draw_record(layout)), client)
            assert root is not None
            if self.random.random() < 0.5:
                perform(acquire(layout, subject, root.lease.nonce, draw_record(layout)), client)
            client.create(subject.paths.temporary(), (b"half",), False)
            client.create(subject.paths.slot("e" * 32), (b"torn",), False)
        world.skew += 2 * DAY

    def _enter(self, number: int) -> Process:
        cast, world = self.cast, self.world
        host = number % cast.hosts
        kernel = "one" if cast.containers else None
        process = world.process(
            self.clients[host], "abcdef"[host], honest=cast.honest, kernel=kernel, pidns=host
        )
        self._act(process, world.now + self.random.uniform(0, cast.spread), cast.calls)
        return process

    def _act(self, process: Process, when: float, calls: int) -> None:
        cast, world = self.cast, self.world
        terms = cast.terms
        if cast.thresholds:
            terms = replace(terms, min_compile_seconds=self.random.choice(cast.thresholds))
        layout = Layout(
            root="/cache",
            trust=Trust("any", frozenset()),
            identity=process.identity,
            network=cast.network,
            linkless=cast.linkless and self.random.random() < 0.5,
            ttl=terms.ttl,
            interval=terms.ttl / 4,
        )
        call = Call(
            process,
            layout,
            subject_in(layout),
            TRUTH,
            self._compiler,
            self.holdings,
            terms=terms,
            max_wait=cast.max_wait,
            compile_timeout=cast.compile_timeout,
            leaks=self._rarely(cast.leaks),
            mute=self._rarely(cast.mute),
            usual=cast.usual,
        )
        self.calls.append(call)
        index = len(self.calls) - 1
        self.threads.append(None)

        def begin() -> None:
            self.threads[index] = process.spawn(self._turns(call, process, calls), "call")

        world.at(when, process, begin)

    def _turns(self, call: Call, process: Process, calls: int) -> Any:
        """One call, then the next one some time later, also after a cancelled one."""
        if self.cast.litter:
            sweeping = sweep(call.layout, call.subject.paths.folder)
            self.world.at(
                self.world.now + self.random.uniform(0, 3), process, lambda: process.spawn(sweeping, "sweep")
            )
        try:
            yield from call.run()
        finally:
            if calls > 1 and process.alive:
                self._act(process, self.world.now + self.random.uniform(0.0, 1.0), calls - 1)

    def _rarely(self, most: int) -> bool:
        return most > 0 and self.random.random() < 0.3

    def _compiler(self, call: Call, why: str) -> Attempt:
        number = len(self.compiles)
        if self.cast.attempts is not None:
            attempt = self.cast.attempts(number)
        else:
            attempt = Attempt(self.random.uniform(0.2, 3.0))
            fate = self._fates.pop(0) if self._fates else ""
            if fate == "hung":
                attempt = Attempt(ends="never", progresses=False)
            elif fate == "memory":
                attempt = replace(attempt, ends="memory")
        self.world.faults += attempt.ends == "memory" or why == "hedge"
        self.compiles.append((self.world.now, call, why, attempt))
        self.world.note(
            call.process, "call", (f"COMPILE ({why}, {attempt.ends})",), f"{attempt.seconds:.2f} s"
        )
        return attempt

    # --- what goes wrong ---------------------------------------------------------------------------------

    def _plan_crash(self, process: Process) -> None:
        if self.random.random() < 0.5:
            phase = self.random.choice(("issue", "effect", "answer"))
            process.strikes[self.random.randint(1, 60)] = Strike("crash", phase)
        else:
            self.world.at(self.random.uniform(0, 4.0), process, process.crash)
        if self.random.random() < 0.5:  # it is started again, perhaps under the same pid
            pid = process.identity.pid if self.random.random() < 0.3 else None
            self.world.at(self.random.uniform(4.0, 8.0), None, lambda: self._restart(process, pid))

    def _restart(self, dead: Process, pid: int | None) -> None:
        if not dead.alive:
            world = self.world
            process = world.process(
                dead.client,
                dead.identity.host,
                pid=pid,
                honest=self.cast.honest,
                kernel=dead.identity.boot_id,
                pidns=dead.identity.pidns or 0,
            )
            self._act(process, world.now, self.cast.calls)

    def _plan_suspension(self, process: Process, seconds: float) -> None:
        if self.random.random() < 0.6:
            phase = self.random.choice(("issue", "effect", "answer"))
            process.strikes[self.random.randint(1, 60)] = Strike("suspend", phase, seconds)
        else:
            self.world.at(self.random.uniform(0, 4.0), process, lambda: process.suspend(seconds))

    def _plan_cancel(self, index: int) -> None:
        def cancel() -> None:
            thread = self.threads[index]
            if thread is not None and not thread.done:
                self.world.faults += 1
                self.world.cancel(thread)

        self.world.at(self.random.uniform(0, 4.0), None, cancel)

    # --- what must hold ----------------------------------------------------------------------------------

    def _bound(self) -> float:
        cast = self.cast
        one = cast.max_wait + 2 * cast.compile_timeout + SLACK
        return 10.0 + cast.calls * (one + 1.0) + 15.0 * cast.suspensions

    def _watch_names(self, path: str, data: bytes) -> None:
        """No live owner's slot is deleted by another, unless it is superseded and there is a result."""
        if ".lease" not in path:
            return
        record = decode_record(data, path)
        holding, actor = self.holdings.get(record.nonce), self.world.actor
        if holding is None or actor is None or holding.process is actor or holding.state != "held":
            return
        world, ttl = self.world, self.cast.terms.ttl
        if not holding.process.alive or world.now - holding.fresh >= ttl:
            return
        stem = path.partition(".lease")[0]
        names, wire = world.server.names, self.cast.wire
        if f"{stem}.lease.{record.nonce}" in names and (
            f"{stem}.art" in names or f"{stem}.err" in names or wire.full or wire.broken
        ):
            return
        leaving = [own for own in self.holdings.values() if own.process is actor and own.state == "leaving"]
        if any(actor.suspended - own.suspended >= ttl for own in leaving):
            return  # the stated exception: suspended between its seal and its unlinks
        self.broken.append(f"{actor.name} deleted the slot of {holding.process.name}, who is alive")

    def _check(self, bound: float) -> None:
        world = self.world
        for what in self.broken:
            raise world.violation(what)
        for call, thread in zip(self.calls, self.threads, strict=True):
            if not call.process.alive:
                continue
            if thread is None or not thread.done:
                raise world.violation(f"{call.process.name} is still waiting after {bound:.0f} s")
            if call.result is not None:
                self._check_result(call)
        self._check_compiles()
        left = [name for name in world.server.names if not name.endswith((".art", ".err"))]
        hedges = sum(why == "hedge" for _, _, why, _ in self.compiles)
        if left and world.faults == hedges and self.cast.wire == Wire():
            raise world.violation(f"nothing went wrong, and yet there is {left}")
        self._check_sweep()

    def _check_result(self, call: Call) -> None:
        world, cast = self.world, self.cast
        if isinstance(call.result, Made) and call.result.data != TRUTH:
            raise world.violation(f"{call.process.name} got a wrong artifact")
        if isinstance(call.result, Refused) and not any(
            attempt.ends != "artifact" for _, _, _, attempt in self.compiles
        ):
            raise world.violation(f"{call.process.name} was told of a failure that never was")
        took = call.ended - call.began - call.process.suspended
        if took > cast.max_wait + 2 * cast.compile_timeout + SLACK:
            raise world.violation(f"{call.process.name} took {took:.1f} s")

    def _check_compiles(self) -> None:
        whys = {why for _, _, why, _ in self.compiles}
        if not self.cast.counted or whys & {"deadline", "cheap"}:
            return  # outside the bounds, and cheap marks are meant to be compiled again
        most = 1 + self.world.faults
        if len(self.compiles) > most:
            raise self.world.violation(f"{len(self.compiles)} compiles, {self.world.faults} faults")

    def _check_sweep(self) -> None:
        """Everything but entries is collected when nobody has written it for a day."""
        world = self.world
        client: Client = world.client()
        layout = Layout(
            root="/cache",
            trust=Trust("any", frozenset()),
            identity=replace(ME, host="sweeper"),
            ttl=self.cast.terms.ttl,
        )
        folder = layout.paths(NAME).folder
        for _ in range(2):
            world.skew += 3 * DAY
            with world.nonces():
                perform(sweep(layout, folder), client)
        left = [name for name in world.server.names if not name.endswith(".art")]
        if left:
            raise world.violation(f"left for ever: {left}")
