"""The seeded scheduler: processes, their clocks, and every fault between two file operations.

A process runs threads; a thread is a generator that yields file operations (tuples, as production moves do)
or `Sleep`. Each operation is issued, takes effect and is answered at different moments, and other processes
run in between. A crash ends a process between any two of these: its generators get no chance to clean up.
Everything is drawn from one seed, so that a run repeats exactly.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from acache import _moves, _store
from acache._host import Identity, ProcessState
from tests.sim.server import Client, Server, fault

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

DAY = 24 * 3600.0
LONG = 1.0
"""Seconds of suspension that may make a holder look silent (a scene's ttl is 2, its interval 0.5)."""


class Crashed(BaseException):
    """Thrown at every yield of a process that is dead: nothing it still wants to do is done."""


class Cancelled(BaseException):
    """Thrown into a thread whose caller went away."""


class Violation(AssertionError):
    """A property does not hold; the text has the trace."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wake me after that many seconds of my own clock."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Strike:
    """What happens to a process at its n-th operation: at ``phase`` issue, effect or answer."""

    kind: str
    """crash or suspend."""
    phase: str
    seconds: float = 0.0


@dataclass(slots=True)
class Wire:
    """How often the connection to the file system fails; each is a probability per operation."""

    lost_link: float = 0.0
    """A link is made, but the answer says EEXIST or EIO."""
    lost_create: float = 0.0
    """The same for exclusive creates of slots."""
    loser_eperm: bool = False
    """Who loses a link is told EPERM."""
    stale: float = 0.0
    """ESTALE on a read or an open."""
    full: float = 0.0
    """A create writes half and says ENOSPC."""
    broken: float = 0.0
    """EIO, and nothing done."""


class Thread:
    """One generator of a process."""

    def __init__(self, process: Process, steps: Generator[Any, Any, Any], name: str) -> None:
        self.process = process
        self.steps = steps
        self.name = name
        self.asleep: int | None = None
        """The token of the alarm that will wake it."""
        self.cancelled = False
        self.done = False


class Process:
    """One process: a clock of its own, threads, and what is going to happen to it."""

    def __init__(self, world: World, name: str, client: Client, identity: Identity) -> None:
        self.world = world
        self.name = name
        self.client = client
        self.identity = identity
        self.alive = True
        self.suspended_until = 0.0
        self.suspended = 0.0
        """Seconds suspended so far."""
        self.operations = 0
        self.strikes: dict[int, Strike] = {}
        self.threads: list[Thread] = []
        self._origin = world.random.uniform(0, 1e5)
        self._rate = world.random.uniform(0.999, 1.001)

    def clock(self) -> float:
        """Return the monotonic time of this process."""
        return self._origin + self.world.now * self._rate

    def spawn(self, steps: Generator[Any, Any, Any], name: str) -> Thread:
        """Run one more thread from now on."""
        thread = Thread(self, steps, name)
        self.threads.append(thread)
        self.world.at(self.world.now, self, lambda: self.world.resume(thread))
        return thread

    def crash(self) -> None:
        """End at once."""
        if not self.alive:
            return
        self.alive = False
        self.world.faults += 1
        self.world.note(self, "", ("CRASH",), "")
        zombie = self.world.random.random() < 0.3
        if zombie:
            state = ProcessState(exists=True, starttime=self.identity.starttime, zombie=True)
            self.client.processes[self.identity.pid] = state
        else:
            self.client.processes.pop(self.identity.pid, None)
        for thread in self.threads:
            bury(thread.steps)
            thread.done = True

    def suspend(self, seconds: float) -> None:
        """Stop for some time."""
        if self.alive:
            self.world.note(self, "", ("SUSPENDED", f"{seconds:.2f}"), "")
            self.world.faults += seconds >= LONG
            self.suspended_until = max(self.suspended_until, self.world.now + seconds)
            self.suspended += seconds


def bury(steps: Generator[Any, Any, Any]) -> None:
    """End a generator without letting it do anything."""
    while True:
        try:
            steps.throw(Crashed())
        except BaseException:
            return


@dataclass(slots=True)
class Line:
    """One line of the trace."""

    now: float
    process: str
    thread: str
    operation: tuple[Any, ...]
    outcome: str


@dataclass
class World:
    """All of it. ``faults`` counts those that may cost a compile each."""

    seed: int
    wire: Wire = field(default_factory=Wire)
    hurry: float = 1.0
    """Factor for the time that operations take."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 0.0
        self.skew = 1e9
        self.server = Server(lambda: self.now + self.skew)
        self.processes: list[Process] = []
        self.trace: list[Line] = []
        self.faults = 0
        self._heap: list[tuple[float, int, Process | None, Callable[[], object]]] = []
        self._order = itertools.count()
        self._pids: dict[int, itertools.count[int]] = {}
        self.actor: Process | None = None
        """Whose operation is taking effect."""

    # --- building ------------------------------------------------------------------------------------

    def client(self, **kinds: Any) -> Client:
        """Make a host."""
        return Client(self.server, uid=1000, **kinds)

    def process(
        self,
        client: Client,
        host: str,
        *,
        pid: int | None = None,
        honest: bool = True,
        kernel: str | None = None,
        pidns: int = 0,
    ) -> Process:
        """Start a process on a host, under that pid or a new one."""
        pids = self._pids.setdefault(id(client), itertools.count(100))
        identity = Identity(
            boot_id=kernel or f"boot of {host}",
            pidns=pidns,
            timens=1,
            pid=next(pids) if pid is None else pid,
            starttime=next(self._order) + 1,
            host=host,
            proc_honest=honest,
        )
        client.processes[identity.pid] = ProcessState(exists=True, starttime=identity.starttime)
        process = Process(self, f"p{len(self.processes)}@{host}", client, identity)
        self.processes.append(process)
        return process

    # --- running -------------------------------------------------------------------------------------

    def at(self, when: float, process: Process | None, action: Callable[[], object]) -> int:
        """Do something at that time, if the process then lives; a suspended one does it later."""
        token = next(self._order)
        heapq.heappush(self._heap, (when, token, process, action))
        return token

    def run(self, until: float) -> None:
        """Run until nothing is left to do, or that time."""
        with self.nonces():
            while self._heap and self._heap[0][0] <= until:
                when, token, process, action = heapq.heappop(self._heap)
                self.now = max(self.now, when)
                if process is not None:
                    if not process.alive:
                        continue
                    if process.suspended_until > self.now:
                        later = process.suspended_until
                        heapq.heappush(self._heap, (later, token, process, action))
                        continue
                action()

    @contextlib.contextmanager
    def nonces(self) -> Iterator[None]:
        """Draw nonces from the seed."""

        def draw() -> str:
            return f"{self.random.getrandbits(128):032x}"

        with (
            mock.patch.object(_store, "fresh_nonce", draw),
            mock.patch.object(_moves, "fresh_nonce", draw),
        ):
            yield

    def resume(self, thread: Thread, value: Any = None, error: BaseException | None = None) -> None:
        """Let a thread go on to its next request."""
        thread.asleep = None
        try:
            request = thread.steps.send(value) if error is None else thread.steps.throw(error)
        except StopIteration:
            thread.done = True
            return
        except Cancelled:
            thread.done = True
            self.note(thread.process, thread.name, ("CANCELLED",), "")
            return
        if isinstance(request, Sleep):
            if thread.cancelled:
                thread.cancelled = False
                self.at(self.now, thread.process, lambda: self.resume(thread, error=Cancelled()))
                return
            self._sleep(thread, request.seconds)
        else:
            self._issue(thread, request)

    def _sleep(self, thread: Thread, seconds: float) -> None:
        token: int

        def wake() -> None:
            if thread.asleep == token and not thread.done:
                self.resume(thread)

        token = self.at(self.now + max(0.0, seconds), thread.process, wake)
        thread.asleep = token

    def cancel(self, thread: Thread) -> None:
        """Cancel a thread: at once while it sleeps, else when the move that it is in has ended."""
        if thread.done:
            return
        if thread.asleep is not None:
            self.resume(thread, error=Cancelled())
        else:
            thread.cancelled = True

    def _latency(self) -> float:
        slow = self.random.random() < 0.03
        return self.hurry * (self.random.uniform(0.02, 0.1) if slow else self.random.uniform(0.0002, 0.004))

    def _issue(self, thread: Thread, operation: tuple[Any, ...]) -> None:
        process = thread.process
        process.operations += 1
        strike = process.strikes.get(process.operations)
        phases: Iterator[Any] | None = None
        steps = 0

        def hit(phase: str) -> bool:
            """Whether the process is no longer there after what happens to it in this phase."""
            if strike is not None and strike.phase == phase:
                if strike.kind == "crash":
                    process.crash()
                else:
                    process.suspend(strike.seconds)
            return not process.alive

        def effect() -> None:
            nonlocal phases, steps
            self.actor = process
            try:
                if phases is None:
                    phases = self._faulty(process.client, operation)
                next(phases)
            except StopIteration as stop:
                answer(stop.value, None)
            except OSError as error:
                answer(None, error)
            else:
                steps += 1
                if hit("effect"):
                    return
                self.at(self.now + self._latency(), process, effect)
            finally:
                self.actor = None

        def answer(value: Any, error: OSError | None) -> None:
            self.note(process, thread.name, operation, error if error is not None else value)
            if hit("answer") or (steps == 0 and hit("effect")):
                return
            self.at(self.now + self._latency(), process, lambda: self.resume(thread, value, error))

        if not hit("issue"):
            self.at(self.now + self._latency(), process, effect)

    # --- faults of the connection ----------------------------------------------------------------------

    def _faulty(self, client: Client, operation: tuple[Any, ...]) -> Generator[None, None, Any]:
        wire, name = self.wire, operation[0]
        path = operation[2] if name == "link" else str(operation[1])
        if name in ("read", "head", "open_rw", "pread") and self._chance(wire.stale):
            raise fault(errno.ESTALE, path)
        if name not in ("process", "close") and self._chance(wire.broken):
            self.faults += 1
            raise fault(errno.EIO, path)
        if name == "create" and self._chance(wire.full):
            self.faults += 1
            yield from client.creating(path, operation[2], number=errno.ENOSPC)
        lost = (
            wire.lost_link if name == "link" else wire.lost_create * (name == "create" and ".lease" in path)
        )
        try:
            value = yield from client.begin(operation)
        except OSError as error:
            if name == "link" and error.errno == errno.EEXIST and wire.loser_eperm:
                raise fault(errno.EPERM, path) from None
            raise
        if self._chance(lost):
            raise fault(self.random.choice((errno.EEXIST, errno.EIO)), path)
        return value

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    # --- telling ---------------------------------------------------------------------------------------

    def note(self, process: Process, thread: str, operation: tuple[Any, ...], outcome: Any) -> None:
        """Add a line to the trace."""
        self.trace.append(Line(self.now, process.name, thread, operation, outcome))

    def violation(self, what: str) -> Violation:
        """Make the error that says what went wrong, with the whole trace."""
        lines = "\n".join(map(describe, self.trace))
        return Violation(f"seed {self.seed}: {what}\n{lines}")


def describe(line: Line) -> str:
    """Return a line of the trace for people: time, process, operation, outcome."""
    operation = " ".join(shorten(item) for item in line.operation)
    outcome = line.outcome
    if isinstance(outcome, OSError):
        told = errno.errorcode.get(outcome.errno or 0, str(outcome))
    elif hasattr(outcome, "data"):
        told = shorten(bytes(outcome.data))
    else:
        told = "" if outcome is None else shorten(outcome)
    return f"{line.now:10.4f}  {line.process:8} {line.thread:6} {operation:60} {told}"


def shorten(item: Any) -> str:
    """Return what people need to see of a path, of a record, of an entry."""
    if isinstance(item, str):
        name = item.rpartition("/")[2] if item.startswith("/") else item
        head, _, tail = name.rpartition(".")
        name = (
            name.replace(head.partition(".")[0], "K", 1)
            if ".lease" in name or tail in ("art", "err")
            else name
        )
        nonce = name.rpartition(".")[2]
        return name.replace(nonce, nonce[:6]) if len(nonce) == 32 else name
    if isinstance(item, bytes | bytearray):
        if item[40:48] == b"acachelk":
            flags = {b"01": " closed", b"02": " hedge"}.get(bytes(item[104:106]), "")
            return f"<{item[52:58].decode()} beat {int(item[:20])} progress {int(item[20:40])}{flags}>"
        if len(item) == IN_BEAT:
            return f"beat {int(item[:20])} progress {int(item[20:])}"
        return f"<{len(item)} bytes>"
    if isinstance(item, list | tuple):
        if all(isinstance(name, str) for name in item):
            return " ".join(map(shorten, item))
        return shorten(b"".join(bytes(chunk) for chunk in item))
    return str(item)


IN_BEAT = 40
