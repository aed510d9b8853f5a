"""Every rule that model checking found to be needed: break it, and the fault that it prevents comes back.

Each test plays one scenario twice: with the rule, and with a mutant of the small function that keeps it.
"""

from __future__ import annotations

from dataclasses import replace
from errno import ESTALE
from typing import TYPE_CHECKING, Any

import pytest

from acache import _beat, _format, _moves, _protocol, _store
from acache._format import encode_record
from acache._moves import Bequest, Lease
from acache._protocol import Acquire, Chain, CompileAlone, LookAt, Share, Sighting, Slot, conclude
from tests.sim.driver import TERMS, Attempt
from tests.sim.scene import Cast, Scene
from tests.sim.stage import Actor, Stage
from tests.sim.values import cheap, failed, good

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from acache._protocol import SeenFailure, TailWatch

    Break = Callable[[Any, str, Any], None]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Break]:
    """Replace a function of a module by a mutant, until the test ends."""

    def replace_by(module: Any, name: str, mutant: Any) -> None:
        assert hasattr(module, name)
        monkeypatch.setattr(module, name, mutant)

    return replace_by  # type: ignore[return-value]


# --- records and slots -----------------------------------------------------------------------------------


def test_every_link_attempt_draws_a_fresh_nonce(broken: Break):
    """With one nonce per process, a cancelled holder that comes back links itself behind its own successor:
    a cycle, and nobody can coordinate about that key ever again.
    """

    def scenario() -> str | None:
        a, b, c = Stage().actors(3)
        first = a.take()
        b.take(first.nonce)  # a was suspended for long; b takes over, and then dies
        a.do(a.release(first, withdraw=True))  # a wakes up, cancelled: superseded
        a.take(b.chain()[-1])  # a comes back and takes over from b
        chain: Chain = c.do(_moves.walk(c.layout, c.subject.paths))
        return chain.broken

    assert scenario() is None
    real = _moves.draw_record

    def one_per_process(layout: Any, *, closed: bool = False, **rest: Any) -> Any:
        record = real(layout, closed=closed, **rest)
        return record if closed else replace(record, nonce=f"{layout.identity.pid:032x}")

    broken(_moves, "draw_record", one_per_process)
    assert scenario() == "the chain of leases does not end"


def test_a_beat_rewrites_forty_bytes_that_no_check_covers(broken: Break):
    """Rewriting the whole record under its check tears concurrent reads: the holder is not recognised, and
    its successors cannot be found.
    """

    def scenario() -> bool:
        a, b = Stage().actors(2)
        lease = a.take()
        seen = []
        for counter in range(1, 4):
            beat = a.puppet(_beat.beat(lease.slot, lease.successor, lease.nonce, counter, counter * 1000))
            while not beat.done:
                beat.piece()
                seen.append(b.chain() == [lease.nonce])
            assert beat.result == "beaten"
        return all(seen)

    assert scenario()

    def check_all(data: bytes) -> bytes:
        return _format.xxhash.xxh3_128_hexdigest(data[:106] + data[138:]).encode()

    def rewrite_all(fd: int, successor: Any, nonce: str, counter: int, progress: int) -> Any:
        record: bytes = yield ("pread", fd, 512, 0)
        fresh = _format.encode_beat(counter, progress) + record[40:]
        yield ("pwrite", fd, fresh[:106] + check_all(fresh) + fresh[138:], 0)
        return "beaten"

    broken(_format, "record_check", check_all)
    broken(_beat, "_beat_open", rewrite_all)
    assert not scenario()


def test_a_torn_slot_is_named_after_its_file(broken: Break):
    """With a constant, a torn successor leads to itself: the walk never ends, or coordination is over."""

    def scenario() -> tuple[str | None, bool]:
        a, b = Stage().actors(2)
        a.client.mkdir(a.subject.paths.folder)
        a.client.create(a.subject.paths.slot(None), (b"torn",), False)
        (root,) = a.chain()
        a.client.create(a.subject.paths.slot(root), (b"",), False)
        chain: Chain = b.do(_moves.walk(b.layout, b.subject.paths))
        assert chain.tail is not None
        return chain.broken, b.do(b.acquire(chain.tail.record.nonce)) is not None

    assert scenario() == (None, True)
    broken(_format, "torn_nonce", lambda slot: "0" * 32)
    assert scenario() == ("the chain of leases does not end", False)


# --- looking ---------------------------------------------------------------------------------------------


def test_the_failure_is_read_before_the_artifact(broken: Break):
    """The other way round, an artifact that follows a failure is overlooked, and the caller told of the
    failure although a good artifact lies there.
    """

    def scenario() -> bool:
        for steps in range(8):
            a, b = Stage().actors(2)
            a.client.mkdir(a.subject.paths.folder)
            watched = a.take()
            waiting = b.waits()
            assert isinstance(waiting.looks(), LookAt)
            look = b.puppet(_moves.observe(b.layout, b.subject))
            for _ in range(steps):
                if not look.done:
                    look.piece()
            a.fail(watched.nonce)
            a.publish()
            if isinstance(waiting.wait.observe(look.finish(), 1.0), Share):
                return False
        return True

    assert scenario()

    def other_way_round(layout: Any, subject: Any, **rest: Any) -> Any:
        art = yield from _store.read_artifact(layout, subject)
        if art.what == "absent":
            art = yield from _store.read_artifact(layout, subject)
        if art.what == "artifact":
            return Sighting(art)
        return Sighting(art, (yield from _store.read_failure(layout, subject, with_age=False)))

    broken(_moves, "look", other_way_round)
    assert not scenario()


def test_the_last_look_before_compiling_sees_failures_too(broken: Break):
    """Without it, a failure that was published between a caller's first look and its acquire is compiled
    again, by everybody, one after the other.
    """

    def scenario() -> int:
        actors = Stage().actors(4)
        waits = [actor.waits() for actor in actors]
        assert all(wait.looks() == Acquire(None, "missing") for wait in waits)
        compiles = 0
        for actor, waiting in zip(actors, waits, strict=True):
            held = actor.do(actor.acquire())
            if waiting.wait.last_look(held.seen) is None:
                compiles += 1
                actor.do(actor.release(held.lease, failure=failed(actor.subject, held.lease.nonce)))
            else:
                actor.do(actor.release(held.lease, withdraw=True))
        return compiles

    assert scenario() == 1
    real = _moves.look

    def artifacts_only(*rest: Any, **options: Any) -> Any:
        seen = yield from real(*rest, **options)
        return replace(seen, failure=None)

    broken(_moves, "look", artifacts_only)
    assert scenario() == 4


def test_want_of_memory_is_believed_only_of_a_holder_that_was_watched(broken: Break):
    """Else somebody's accident, which says nothing about the input, fails callers who could compile."""

    def scenario() -> type:
        a, b = Stage().actors(2)
        waiting = b.waits()
        waiting.looks()
        lease = a.take()  # between two looks of b, a compiles, runs out of memory and is gone
        a.do(a.release(lease, failure=failed(a.subject, lease.nonce, deterministic=False)))
        return type(waiting.looks())

    assert scenario() is Acquire
    real = _protocol.honours

    def whatever_it_is(failure: SeenFailure, **rest: Any) -> bool:
        return real(replace(failure, deterministic=True), **rest)

    broken(_protocol, "honours", whatever_it_is)
    assert scenario() is Share


# --- giving back -----------------------------------------------------------------------------------------


def test_release_seals_first(broken: Break):
    """Without a seal, a waiter that links itself behind a holder who is just leaving holds a slot that no
    root leads to, and the next caller compiles beside it.
    """

    def scenario() -> int:
        a, b, c = Stage().actors(3)
        lease = a.take()
        leaving = a.puppet(a.release(lease, withdraw=True)).until("unlink", ".lease")
        hedge = b.do(b.acquire(lease.nonce, hedge=True))
        leaving.finish()
        late = c.do(c.acquire()) if c.waits().looks() == Acquire(None, "missing") else None
        return (hedge is not None) + (late is not None)

    assert scenario() == 1

    def no_seal(layout: Any, lease: Lease) -> Any:
        return True
        yield

    broken(_moves, "seal", no_seal)
    assert scenario() == 2


def late_release() -> bool:
    """Whether a stranger's root survives a holder that comes back long after it was taken over."""
    a, b, c = Stage().actors(3)
    lease = a.take()
    heir = b.take(lease.nonce)
    b.do(b.release(heir))
    stranger = c.take()
    a.do(a.release(lease))
    return c.chain() == [stranger.nonce]


def test_a_late_release_walks_before_it_unlinks(broken: Break):
    """Without the walk, it takes the root for its own and deletes that of a stranger, who compiles."""
    assert late_release()
    mine: list[Lease] = []
    real = _moves.seal

    def remember(layout: Any, lease: Lease) -> Any:
        mine.append(lease)
        return (yield from real(layout, lease))

    def no_walk(layout: Any, paths: Any) -> Any:
        record = replace(_moves.draw_record(layout), nonce=mine[-1].nonce if mine else "0" * 32)
        mine.clear()
        return Chain((Slot(None, record),))
        yield

    broken(_moves, "seal", remember)
    walks = _moves.walk

    def walk(layout: Any, paths: Any) -> Any:
        return (yield from (no_walk if mine else walks)(layout, paths))

    broken(_moves, "walk", walk)
    assert not late_release()


def test_a_holder_unlinks_its_slot_only_while_it_holds_its_nonce(broken: Break):
    """The file of my slot may be the root of a stranger by now."""
    assert late_release()

    def unchecked(lease: Lease) -> Any:
        yield from _store.unlink_quietly(lease.slot)

    broken(_moves, "unlink_own", unchecked)
    assert not late_release()


def test_a_takeover_that_withdraws_seals_its_slot(broken: Break):
    """A spurious ESTALE in the predecessor check makes a holder withdraw. Without the seal it cuts off who
    took over from it meanwhile, and the next caller compiles beside that one.
    """

    def scenario() -> bool:
        a, b, c, d = Stage().actors(4)
        dead = a.take()
        b_takes = b.puppet(b.acquire(dead.nonce)).until("unlink")
        b_takes.piece()  # linked, the temporary unlinked; then suspended until everybody thinks it dead
        (_, b_nonce) = c.chain()
        c_lease = c.take(b_nonce)
        b_takes.until("head", ".lease")  # of the root, in the predecessor check
        b_takes.fail(ESTALE)
        b_takes.fail(ESTALE)  # and once more, through a new open
        assert b_takes.finish() is None
        return d.chain()[-1] == c_lease.nonce

    assert scenario()
    real = _moves.release

    def unsealed(
        layout: Any, subject: Any, lease: Lease, *, withdraw: bool = False, failure: Any = None
    ) -> Any:
        if not withdraw:
            return (yield from real(layout, subject, lease, failure=failure))
        yield from _moves.unlink_own(lease)
        return True

    broken(_moves, "release", unsealed)
    assert not scenario()


def test_a_takeover_checks_that_the_root_still_leads_to_its_predecessor(broken: Break):
    """Else a waiter who acts on an old look compiles in a slot that no root leads to, beside the holder."""

    def scenario() -> bool:
        a, b, c, d = Stage().actors(4)
        dead = a.take()  # b sees it dead, and is slow to take it over
        heir = c.take(dead.nonce)
        c.do(c.release(heir, failure=failed(c.subject, heir.nonce)))
        d.take()
        return b.do(b.acquire(dead.nonce)) is None and len(d.chain()) == 1

    assert scenario()

    def believe(layout: Any, paths: Any, nonce: str) -> Any:
        return True
        yield

    broken(_moves, "leads_to", believe)
    assert not scenario()


def test_a_rival_without_a_result_unlinks_only_its_own_slot(broken: Break):
    """A root-first release would evict the healthy original."""

    def scenario() -> bool:
        a, b, c = Stage().actors(3)
        original = a.take()
        rival = b.take(original.nonce, hedge=True)
        b.do(b.release(rival, withdraw=True))
        return c.chain() == [original.nonce]

    assert scenario()
    real = _moves.release

    def root_first(
        layout: Any, subject: Any, lease: Lease, *, withdraw: bool = False, failure: Any = None
    ) -> Any:
        return (yield from real(layout, subject, lease, failure=failure))

    broken(_moves, "release", root_first)
    assert not scenario()


def settle_failure(actor: Actor, lease: Lease, *, deterministic: bool, rules: Any = conclude) -> None:
    """Conclude a failed compile as the driver does."""
    plan = rules(
        "failure", leased=True, rival=lease.rival, deterministic=deterministic, seconds=1.0, threshold=0.0
    )
    chunks = failed(actor.subject, lease.nonce, deterministic=deterministic)
    actor.settle(lease, Bequest(failure=chunks if plan.record_failure else None, withdraw=plan.withdraw))


def test_a_rival_that_runs_out_of_memory_tells_nobody(broken: Break):
    """Else it fails everybody who waits for the healthy original."""

    def scenario(rules: Any = conclude) -> type:
        a, b, c = Stage().actors(3)
        original = a.take()
        rival = b.take(original.nonce, hedge=True)
        waiting = c.waits()
        waiting.looks()
        settle_failure(b, rival, deterministic=False, rules=rules)
        return type(waiting.looks())

    assert scenario() is LookAt

    def as_if_original(result: Any, *, rival: bool, **rest: Any) -> Any:
        return conclude(result, rival=False, **rest)

    assert scenario(as_if_original) is Share


def test_a_superseded_holder_writes_no_failure(broken: Break):
    """It would poison those who wait for the live tail."""

    def scenario() -> type:
        a, b, c = Stage().actors(3)
        lease = a.take()
        b.take(lease.nonce)
        waiting = c.waits()
        waiting.looks()
        settle_failure(a, lease, deterministic=False)
        return type(waiting.looks())

    assert scenario() is LookAt
    real = _moves.release

    def failure_first(
        layout: Any, subject: Any, lease: Lease, *, withdraw: bool = False, failure: Any = None
    ) -> Any:
        if failure is not None:
            yield from _moves.record_failure(layout, subject, failure)
        return (yield from real(layout, subject, lease, withdraw=withdraw))

    broken(_moves, "release", failure_first)
    assert scenario() is Share


# --- cheap marks -----------------------------------------------------------------------------------------


def test_a_cheap_mark_is_linked_and_never_renamed(broken: Break):
    """Renamed, it would replace an artifact that somebody with another threshold had published."""

    def scenario() -> str:
        a, b = Stage().actors(2)
        a.publish()
        b.settle(None, Bequest(cheap=cheap(b.subject)))
        what: str = a.do(_store.read_artifact(a.layout, a.subject)).what
        return what

    assert scenario() == "artifact"

    def renamed(layout: Any, subject: Any, chunks: Any) -> Any:
        yield from _store.publish(layout, subject.paths, subject.paths.art, chunks)

    broken(_moves, "mark_cheap", renamed)
    assert scenario() == "cheap"


def test_a_bad_entry_makes_way_for_a_cheap_mark(broken: Break):
    """Else the mark never lands, and N callers take the lease and compile, one after the other."""

    def scenario() -> int:
        stage, leased = Stage(), 0
        for actor in stage.actors(4):
            if leased == 0:
                actor.client.mkdir(actor.subject.paths.folder)
                if actor.subject.paths.art not in stage.server.names:
                    actor.client.create(actor.subject.paths.art, (b"junk",), False)
            action = actor.waits(replace(TERMS, min_compile_seconds=1.0)).looks()
            if action == CompileAlone("cheap"):
                continue
            assert action == Acquire(None, "missing")
            leased += 1
            actor.settle(actor.take(), Bequest(cheap=cheap(actor.subject)))
        return leased

    assert scenario() == 1

    def stand_still(layout: Any, subject: Any) -> Any:
        return
        yield

    broken(_store, "make_way", stand_still)
    assert scenario() == 4


def test_a_cheap_mark_binds_nobody_who_would_persist(broken: Break):
    """Else N callers with a lower threshold all compile, where one would have made it for all."""

    def scenario() -> int:
        stage = Stage()
        stage.actor().settle(None, Bequest(cheap=cheap(stage.actor().subject, seconds=0.5)))
        actors = stage.actors(4)
        actions = [actor.waits(replace(TERMS, min_compile_seconds=0.5)).looks() for actor in actors]
        alone = actions.count(CompileAlone("cheap"))
        leases = [
            actor.do(actor.acquire())
            for actor, action in zip(actors, actions, strict=True)
            if isinstance(action, Acquire)
        ]
        leaders = [held for held in leases if held is not None]
        if leaders:
            actors[0].settle(leaders[0].lease, Bequest(artifact=good(actors[0].subject)))
            assert actors[1].do(_store.read_artifact(actors[1].layout, actors[1].subject)).what == "artifact"
        return alone + len(leaders)

    assert scenario() == 1
    broken(_protocol, "obeys_cheap", lambda recorded, threshold, **_: True)
    assert scenario() == 4


# --- judging ---------------------------------------------------------------------------------------------


def until_decided(stage: Stage, actor: Actor, limit: float = 30.0) -> str | None:
    """Return why the waiting ends, or None when it goes on until the limit."""
    waiting = actor.waits()
    while stage.now < limit:
        action = waiting.looks()
        if isinstance(action, Acquire):
            return action.why
        assert isinstance(action, LookAt)
        stage.now = action.at
    return None


def test_silence_opens_the_slot_of_a_live_process(broken: Break):
    """Else one whose release is broken keeps everybody waiting until the deadline."""

    def scenario() -> str | None:
        stage = Stage()
        a, b = stage.actors(2)
        a.take()
        return until_decided(stage, b)

    assert scenario() == "takeover"
    broken(_protocol, "is_silent", lambda watch, ttl: False)  # identity alone decides
    assert scenario() is None


def test_silence_opens_a_closed_slot_too(broken: Break):
    """Else a holder that got stuck between its seal and its unlinks keeps everybody waiting."""

    def scenario() -> str | None:
        stage = Stage()
        a, b = stage.actors(2)
        a.puppet(a.release(a.take())).until("unlink", ".lease")
        return until_decided(stage, b)

    assert scenario() == "takeover"
    real = _protocol.TailWatch.look

    def closed_is_no_silence(self: TailWatch, record: Any, now: float, ttl: float) -> None:
        real(self, record, now, ttl)
        if record.closed:
            self.quiet = 0.0

    broken(_protocol.TailWatch, "look", closed_is_no_silence)
    assert scenario() is None


def test_one_hedge_at_a_time(broken: Break):
    """Else every waiter in turn hedges the hedge before it, and N compilers hang instead of two."""
    hung = Cast(hosts=2, processes=6, attempts=lambda number: Attempt(ends="never", progresses=False))

    def scenario(seed: int) -> int:
        compiles = Scene(seed, hung).play().compiles
        return sum(when < compiles[0][0] + hung.compile_timeout for when, *_ in compiles)

    assert [scenario(seed) for seed in range(10)] == [2] * 10
    real = _protocol.is_hedgeable

    def hedges_too(watch: TailWatch, record: Any, now: float, hedge_after: float | None) -> bool:
        return real(watch, replace(record, hedge=False), now, hedge_after)

    broken(_protocol, "is_hedgeable", hedges_too)
    assert all(scenario(seed) > 2 for seed in range(10))


def test_the_stage_runs_moves_as_production_does():
    """A puppet that is let run does what `perform` does, record for record."""
    a, b = Stage().actors(2)
    record = _moves.draw_record(a.layout)
    held = a.puppet(_moves.acquire(a.layout, a.subject, None, record)).finish()
    assert b.chain() == [record.nonce]
    assert bytes(b.client.read(held.lease.slot, 4096).data) == encode_record(record)
