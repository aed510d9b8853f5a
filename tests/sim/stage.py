"""A stage for directed scenarios: actors on a virtual file system, whose moves a test runs step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from acache import _moves, _store
from acache._fs import Steps, perform
from acache._protocol import Action, Sighting, Terms, Wait
from tests.sim.driver import TERMS
from tests.sim.server import Client, Server, fault
from tests.sim.values import ME, failed, good, layout_at, subject_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from acache._models import Buffer
    from acache._moves import Bequest, Held, Lease


class Puppet:
    """One move, in the test's hands: run up to a chosen operation, then on, or never."""

    def __init__(self, steps: Steps[Any], client: Client) -> None:
        self._steps = steps
        self._client = client
        self.result: Any = None
        self.done = False
        self.pending: tuple[Any, ...] = ()
        self._pieces: Iterator[Any] | None = None
        self._advance(lambda: next(steps))

    def _advance(self, resume: Callable[[], tuple[Any, ...]]) -> None:
        try:
            self.pending = resume()
        except StopIteration as stop:
            self.done, self.result = True, stop.value

    def piece(self) -> None:
        """Do what others can see of the pending operation next; most operations have one piece."""
        if self._pieces is None:
            self._pieces = self._client.begin(self.pending)
        try:
            next(self._pieces)
        except StopIteration as stop:
            self._pieces, value = None, stop.value
            self._advance(lambda: self._steps.send(value))
        except OSError as error:
            self._pieces, problem = None, error
            self._advance(lambda: self._steps.throw(problem))

    def fail(self, number: int) -> None:
        """Answer the pending operation with an error, undone."""
        self._advance(lambda: self._steps.throw(fault(number, str(self.pending[1]))))

    def until(self, name: str, ending: str = "") -> Puppet:
        """Run up to the next operation of that name on a path that ends so, and stop before it."""
        while not self.done:
            path = self.pending[2 if name == "link" else 1]
            if self.pending[0] == name and str(path).endswith(ending):
                return self
            self.piece()
        raise AssertionError(f"no {name} came")

    def finish(self) -> Any:
        """Run to the end and return the result."""
        while not self.done:
            self.piece()
        return self.result


class Actor:
    """One process on a host of its own."""

    def __init__(self, stage: Stage, pid: int, **kinds: Any) -> None:
        self.stage = stage
        self.client = Client(stage.server, uid=1000, **kinds)
        self.layout = layout_at(
            "/cache",
            identity=replace(ME, pid=pid, boot_id=f"boot {pid}"),
            network=kinds.get("network", False),
        )
        self.subject = subject_in(self.layout)

    def do(self, steps: Steps[Any]) -> Any:
        """Run a move whole."""
        return perform(steps, self.client)

    def puppet(self, steps: Steps[Any]) -> Puppet:
        """Run a move step by step."""
        return Puppet(steps, self.client)

    def acquire(self, follows: str | None = None, *, hedge: bool = False) -> Steps[Held | None]:
        """Return the move that takes a slot."""
        record = _moves.draw_record(self.layout, hedge=hedge)
        return _moves.acquire(self.layout, self.subject, follows, record)

    def take(self, follows: str | None = None, *, hedge: bool = False) -> Lease:
        """Take a slot that nobody contests."""
        held = self.do(self.acquire(follows, hedge=hedge))
        assert held is not None
        lease: Lease = held.lease
        return lease

    def release(
        self, lease: Lease, *, withdraw: bool = False, failure: list[Buffer] | None = None
    ) -> Steps[bool]:
        """Return the move that gives a lease back."""
        return _moves.release(self.layout, self.subject, lease, withdraw=withdraw, failure=failure)

    def settle(self, lease: Lease | None, bequest: Bequest) -> None:
        """Leave a result and give the lease back."""
        self.do(_moves.settle(self.layout, self.subject, lease, bequest))

    def publish(self, data: bytes = b"good") -> None:
        """Put an artifact in place."""
        paths = self.subject.paths
        self.do(_store.publish(self.layout, paths, paths.art, good(self.subject, data)))

    def fail(self, holder: str, *, deterministic: bool = True) -> None:
        """Put a failure in place."""
        chunks = failed(self.subject, holder, deterministic=deterministic)
        self.do(_store.publish(self.layout, self.subject.paths, self.subject.paths.err, chunks))

    def chain(self) -> list[str]:
        """Return the nonces from the root to the tail."""
        return [slot.record.nonce for slot in self.do(_moves.walk(self.layout, self.subject.paths)).slots]

    def waits(self, terms: Terms = TERMS) -> Waiting:
        """Begin a wait."""
        return Waiting(self, terms)


class Waiting:
    """One wait of an actor, on the stage's clock."""

    def __init__(self, actor: Actor, terms: Terms) -> None:
        self.actor = actor
        self.wait = Wait(terms, actor.stage.now, lambda: 0.0)
        self._looks = 0

    def looks(self) -> Action:
        """Look once and decide."""
        actor = self.actor
        self._looks += 1
        seen: Sighting = actor.do(
            _moves.observe(actor.layout, actor.subject, first=self._looks == 1, rejected=self.wait.rejected)
        )
        return self.wait.observe(seen, actor.stage.now)


class Stage:
    """A server, a clock, and actors."""

    def __init__(self) -> None:
        self.now = 0.0
        self.server = Server(lambda: 1e9 + self.now)
        self._pids = iter(range(100, 200))

    def actor(self, **kinds: Any) -> Actor:
        """Let one more process enter."""
        return Actor(self, next(self._pids), **kinds)

    def actors(self, count: int) -> list[Actor]:
        """Let some enter."""
        return [self.actor() for _ in range(count)]
