"""The rules of waiting, judging and concluding, one table each; the simulator tests what they add up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from acache._format import Record
from acache._protocol import (
    Acquire,
    Action,
    Chain,
    CompileAlone,
    Conclusion,
    LookAt,
    SeenArtifact,
    SeenFailure,
    Share,
    Sighting,
    Slot,
    TailWatch,
    Terms,
    Use,
    Wait,
    conclude,
    effective_ttl,
    honours,
    is_hedgeable,
    is_silent,
    obeys_cheap,
)

TERMS = Terms(
    ttl=4.0, hedge_after=10.0, failure_ttl=60.0, min_compile_seconds=0.0, poll_min=0.125, poll_max=1.0
)
A, B, SEAL = "a" * 32, "b" * 32, "5" * 32


def record(nonce: str = A, **changes: Any) -> Record:
    return replace(Record(nonce, ttl_ms=4000, interval_ms=500), **changes)


def chain(*records: Record, dead: bool = False, broken: str | None = None) -> Chain:
    slots, follows = [], None
    for item in records:
        slots.append(Slot(follows, item))
        follows = item.nonce
    return Chain(tuple(slots), broken, dead)


def held(*records: Record, dead: bool = False) -> Sighting:
    return Sighting(chain=chain(*records, dead=dead))


def found(what: Any, identity: str | None = "x", seconds: float = 3.0) -> Sighting:
    return Sighting(SeenArtifact(what, identity, seconds))


def failing(
    holder: str = A, identity: str = "f", *, deterministic: bool = True, age: float | None = None
) -> Sighting:
    return Sighting(failure=SeenFailure(identity, holder, deterministic, age))


def waiting(**changes: Any) -> Wait:
    return Wait(replace(TERMS, **changes), 0.0, lambda: 0.0)


def watch(wait: Wait, seen: Sighting, until: float, *, since: float = 0.0, step: float = 0.5) -> Action:
    """Look every ``step`` seconds and return the last action; all before it must have been to look again."""
    now, action = since, wait.observe(seen, since)
    while now + step <= until:
        assert isinstance(action, LookAt), (now, action)
        now += step
        action = wait.observe(seen, now)
    return action


# --- small rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "threshold", "obeyed"),
    [(0.5, 1.0, True), (1.0, 1.0, False), (2.0, 1.0, False), (0.0, 0.0, False), (-1.0, 0.0, True)],
)
def test_a_cheap_mark_binds_those_who_would_not_persist_either(
    recorded: float, threshold: float, obeyed: bool
):
    assert obeys_cheap(recorded, threshold) is obeyed


@pytest.mark.parametrize(
    ("deterministic", "watched", "is_first", "first", "age", "honoured"),
    [
        (True, True, False, None, None, True),
        (False, True, False, None, None, True),
        (False, False, False, None, 0.0, False),
        (False, False, True, None, 0.0, False),
        (True, False, False, None, None, True),
        (True, False, False, "other", None, True),
        (True, False, False, "f", None, False),
        (True, False, True, None, None, False),
        (True, False, True, "f", 0.0, True),
        (True, False, True, "f", 59.9, True),
        (True, False, True, "f", 60.0, False),
        (True, False, True, "f", -0.1, False),
    ],
)
def test_which_failure_answers_a_call(
    deterministic: bool, watched: bool, is_first: bool, first: str | None, age: float | None, honoured: bool
):
    failure = SeenFailure("f", A, deterministic, age)
    assert (
        honours(failure, watched={A} if watched else {B}, first=first, failure_ttl=60.0, is_first=is_first)
        is honoured
    )


def test_failures_of_ttl_zero_are_remembered_only_within_one_wait():
    failure = SeenFailure("f", A, True, 0.0)
    assert not honours(failure, watched=set(), first="f", failure_ttl=0.0, is_first=True)
    assert honours(failure, watched={A}, first="f", failure_ttl=0.0, is_first=False)


@pytest.mark.parametrize(
    ("own", "recorded", "ttl"), [(4.0, 15_000, 15.0), (15.0, 4_000, 15.0), (4.0, 0, 4.0)]
)
def test_neither_is_accused_by_the_others_impatience(own: float, recorded: int, ttl: float):
    assert effective_ttl(record(ttl_ms=recorded), own) == ttl


# --- judging by beats ------------------------------------------------------------------------------------


def test_silence_needs_ttl_and_three_reads():
    tail = TailWatch.begin(record(), 0.0)
    for now in (1.0, 2.0, 3.0):
        tail.look(record(), now, 4.0)
        assert not is_silent(tail, 4.0)
    tail.look(record(), 4.0, 4.0)
    assert is_silent(tail, 4.0)
    tail.look(record(counter=1), 5.0, 4.0)
    assert not is_silent(tail, 4.0)


def test_an_observer_that_was_suspended_accuses_nobody():
    tail = TailWatch.begin(record(), 0.0)
    tail.look(record(), 3600.0, 4.0)
    tail.look(record(), 7200.0, 4.0)
    tail.look(record(), 10800.0, 4.0)
    assert not is_silent(tail, 4.0)
    tail.look(record(), 10801.0, 4.0)
    assert is_silent(tail, 4.0)


def test_few_reads_prove_nothing():
    tail = TailWatch("x", 0, 0, 0.0, 0.0, quiet=100.0, reads=2)
    assert not is_silent(tail, 4.0)


@pytest.mark.parametrize(
    ("stalled", "since", "record_changes", "hedge_after", "hedged"),
    [
        (2, 0.0, {}, 10.0, True),
        (1, 0.0, {}, 10.0, False),
        (9, 0.5, {}, 10.0, False),
        (9, 0.0, {"hedge": True}, 10.0, False),
        (9, 0.0, {"closed": True}, 10.0, False),
        (9, 0.0, {"torn": True}, 10.0, False),
        (9, 0.0, {}, None, False),
        (0, 0.0, {"tail": {"usual_ms": 3000}}, 5.0, True),
        (0, 0.0, {"tail": {"usual_ms": 4000}}, 5.0, False),
        (0, 0.0, {"tail": {"usual_ms": 100}}, 10.0, False),
        (0, 0.0, {"tail": {"usual_ms": 100}}, 9.9, True),
        (0, 0.0, {"tail": {"usual_ms": True}}, 5.0, False),
    ],
)
def test_who_is_hedged_after_ten_seconds(
    stalled: int, since: float, record_changes: dict[str, Any], hedge_after: float | None, hedged: bool
):
    tail = TailWatch(A, 0, 0, 0.0, 10.0, stalled_since=since, stalled_beats=stalled)
    assert is_hedgeable(tail, record(**record_changes), 10.0, hedge_after) is hedged


def test_progress_is_counted_over_newer_beats_only():
    tail = TailWatch.begin(record(), 0.0)
    for now in (1.0, 2.0, 3.0):
        tail.look(record(), now, 4.0)
    assert tail.stalled_beats == 0
    tail.look(record(counter=1), 4.0, 4.0)
    tail.look(record(counter=2), 5.0, 4.0)
    assert (tail.stalled_beats, tail.stalled_since) == (2, 0.0)
    tail.look(record(counter=3, progress=7), 6.0, 4.0)
    assert (tail.stalled_beats, tail.stalled_since) == (0, 6.0)


# --- one wait --------------------------------------------------------------------------------------------


def test_what_a_first_look_leads_to():
    assert waiting().observe(Sighting(), 0.0) == Acquire(None, "missing")
    assert waiting().observe(found("artifact"), 0.0) == Use(found("artifact").artifact, waited=False)
    assert waiting().observe(found("bad", None), 0.0) == Acquire(None, "missing")
    assert waiting().observe(found("untrusted", None), 0.0) == Acquire(None, "missing")
    assert waiting().observe(found("cheap"), 0.0) == Acquire(None, "missing")
    assert waiting(min_compile_seconds=5.0).observe(found("cheap"), 0.0) == CompileAlone("cheap")
    foreign = waiting().observe(found("foreign", None), 0.0)
    assert isinstance(foreign, CompileAlone)
    assert foreign.why == "uncoordinated"
    assert waiting().observe(Sighting(chain=chain(broken="why")), 0.0) == CompileAlone("uncoordinated", "why")
    assert waiting().observe(failing(age=1.0), 0.0) == Share(failing(age=1.0).failure)  # type: ignore[arg-type]
    assert waiting().observe(failing(age=None), 0.0) == Acquire(None, "missing")
    assert waiting().observe(held(record()), 0.0) == LookAt(0.125)


def test_an_artifact_beats_everything():
    everything = replace(found("artifact"), failure=failing(age=0.0).failure, chain=chain(record()))
    assert isinstance(waiting().observe(everything, 0.0, overdue=True), Use)


def test_a_dead_tail_is_taken_over_at_once():
    action = waiting().observe(held(record(A), record(B), dead=True), 0.0)
    assert action == Acquire(B, "takeover", record(B), "identity")


@pytest.mark.parametrize("changes", [{}, {"closed": True}, {"hedge": True}, {"torn": True, "ttl_ms": 0}])
def test_silence_opens_every_slot(changes: dict[str, Any]):
    action = watch(waiting(), held(record(**changes)), until=4.0)
    assert action == Acquire(A, "takeover", record(**changes), "silence")


def test_the_longer_ttl_counts():
    assert isinstance(watch(waiting(), held(record(ttl_ms=9000)), until=8.5), LookAt)
    assert isinstance(watch(waiting(ttl=9.0), held(record()), until=9.0), Acquire)


def test_a_holder_that_progresses_is_left_alone():
    wait = waiting()
    for beat in range(200):
        action = wait.observe(held(record(counter=beat, progress=beat * 100)), beat * 0.5)
        assert isinstance(action, LookAt)


def test_a_holder_that_beats_without_progress_is_hedged_once():
    wait, action = waiting(), None
    for beat in range(30):
        action = wait.observe(held(record(counter=beat)), beat * 0.5)
        if not isinstance(action, LookAt):
            break
    assert action == Acquire(A, "hedge", record(counter=20))
    for beat in range(30, 60):
        seen = held(record(counter=beat), record(B, hedge=True, counter=beat))
        assert isinstance(wait.observe(seen, beat * 0.5), LookAt)
    for beat in range(60, 80):
        assert isinstance(wait.observe(held(record(counter=beat)), beat * 0.5), LookAt)
    assert isinstance(wait.observe(held(record(counter=80)), 40.0), Acquire)


def test_the_deadline_ends_the_wait_but_a_result_comes_first():
    assert waiting().observe(held(record()), 0.0, overdue=True) == CompileAlone("deadline")
    assert waiting().observe(Sighting(), 0.0, overdue=True) == Acquire(None, "missing")  # nobody to wait for
    assert isinstance(waiting().observe(failing(age=0.0), 0.0, overdue=True), Share)


def test_watched_holders_are_those_who_compile():
    wait = waiting()
    wait.observe(held(record(A), record(B), record(SEAL, closed=True)), 0.0)
    wait.observe(held(record("c" * 32, torn=True)), 0.5)
    assert wait.watched == {A, B}
    assert isinstance(wait.observe(failing(B, deterministic=False), 1.0), Share)


def test_an_artifact_after_a_wait_is_a_peers():
    wait = waiting()
    wait.observe(held(record()), 0.0)
    assert wait.observe(found("artifact"), 1.0) == Use(found("artifact").artifact, waited=True)
    alone = waiting()
    assert alone.observe(Sighting(), 0.0) == Acquire(None, "missing")
    alone.superseded()
    assert alone.observe(found("artifact"), 1.0) == Use(found("artifact").artifact, waited=True)


def test_the_last_look_takes_results_only():
    for seen, kind in [
        (found("artifact"), Use),
        (failing(B), Share),
        (failing(B, deterministic=False), type(None)),
        (Sighting(), type(None)),
        (found("bad", None), type(None)),
    ]:
        wait = waiting()
        wait.observe(Sighting(), 0.0)
        assert isinstance(wait.last_look(seen), kind)


def test_a_failure_that_was_there_before_is_no_news():
    wait = waiting()
    assert isinstance(wait.observe(failing(identity="old", age=1000.0), 0.0), Acquire)
    assert wait.last_look(failing(identity="old")) is None
    assert isinstance(wait.last_look(failing(identity="new")), Share)


def test_a_refresh_takes_any_artifact_but_the_one_it_saw_first():
    wait = waiting(refresh=True)
    assert wait.observe(found("artifact", "old"), 0.0) == Acquire(None, "missing")
    assert wait.observe(replace(found("artifact", "old"), chain=chain(record())), 0.5) == LookAt(0.625)
    assert not wait.stops_compile(found("artifact", "old").artifact)
    assert isinstance(wait.observe(found("artifact", "new"), 1.0), Use)


def test_a_refresh_ignores_what_failed_before_and_shares_what_fails_now():
    wait = waiting(refresh=True)
    assert wait.observe(failing(identity="old", age=0.0), 0.0) == Acquire(None, "missing")
    assert wait.observe(failing(identity="old", age=0.0), 0.5) == Acquire(None, "missing")
    assert isinstance(wait.observe(failing(identity="new"), 1.0), Share)


def test_a_refresh_looks_past_the_cheap_mark_it_saw_first():
    wait = waiting(refresh=True, min_compile_seconds=5.0)
    assert wait.observe(found("cheap", "old"), 0.0) == Acquire(None, "missing")
    assert wait.observe(found("cheap", "new"), 1.0) == CompileAlone("cheap")


@pytest.mark.parametrize(
    ("what", "stops"),
    [
        ("artifact", True),
        ("cheap", False),
        ("bad", False),
        ("foreign", False),
        ("untrusted", False),
        ("absent", False),
    ],
)
def test_only_an_artifact_stops_a_compile(what: Any, stops: bool):
    assert waiting().stops_compile(found(what).artifact) is stops


def test_a_lease_that_vanished_gets_a_grace_on_network_mounts():
    local = waiting()
    local.observe(held(record()), 0.0)
    assert local.observe(Sighting(), 1.0) == Acquire(None, "missing")
    wait = waiting(grace=1.5)
    assert wait.observe(Sighting(), 0.0) == Acquire(None, "missing")  # nobody was watched
    wait.observe(held(record()), 1.0)
    assert isinstance(wait.observe(Sighting(), 2.0), LookAt)
    assert isinstance(wait.observe(Sighting(), 3.4), LookAt)
    assert wait.observe(Sighting(), 3.5) == Acquire(None, "missing")


def test_each_lease_that_vanishes_has_a_grace_of_its_own():
    wait = waiting(grace=1.5)
    wait.observe(held(record()), 0.0)
    assert isinstance(wait.observe(Sighting(), 1.0), LookAt)
    wait.observe(held(record(B)), 2.0)
    assert isinstance(wait.observe(Sighting(), 10.0), LookAt)
    assert wait.observe(Sighting(), 11.5) == Acquire(None, "missing")


def test_looks_back_off_but_never_beyond_a_quarter_of_ttl():
    wait, now, gaps = waiting(poll_max=100.0), 0.0, []
    for beat in range(300):
        action = wait.observe(held(record(counter=beat, progress=beat)), now)
        assert isinstance(action, LookAt)
        gaps.append(action.at - now)
        now = action.at
    assert gaps[0] == 0.125
    assert max(gaps) <= 1.0
    assert gaps[-1] >= 0.7


def test_a_lost_race_and_a_closing_holder_are_looked_at_soon():
    wait = waiting()
    for beat in range(100):
        wait.observe(held(record(counter=beat, progress=beat)), beat * 1.0)
    assert wait.lost(100.0).at <= 100.0 + 0.126
    assert wait.observe(held(record(counter=101), record(SEAL, closed=True)), 101.0) == LookAt(101.125)
    assert wait.queued(102.0).at > 102.0


# --- the end of a compile --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "leased", "rival", "deterministic", "seconds", "expected"),
    [
        ("artifact", True, False, False, 2.0, Conclusion(publish=True)),
        ("artifact", False, False, False, 1.0, Conclusion(publish=True)),
        ("artifact", True, True, False, 0.9, Conclusion(mark_cheap=True)),
        ("artifact", False, False, False, 0.9, Conclusion(mark_cheap=True)),
        ("failure", True, False, True, 0.1, Conclusion(record_failure=True)),
        ("failure", True, False, False, 0.1, Conclusion(record_failure=True)),
        ("failure", True, True, True, 0.1, Conclusion(record_failure=True)),
        ("failure", True, True, False, 0.1, Conclusion(withdraw=True)),
        ("failure", False, False, True, 0.1, Conclusion(withdraw=True)),
        ("nothing", True, False, False, 0.0, Conclusion(withdraw=True)),
        ("nothing", True, True, False, 0.0, Conclusion(withdraw=True)),
    ],
)
def test_what_a_compile_leaves_behind(
    result: Any, leased: bool, rival: bool, deterministic: bool, seconds: float, expected: Conclusion
):
    assert (
        conclude(
            result, leased=leased, rival=rival, deterministic=deterministic, seconds=seconds, threshold=1.0
        )
        == expected
    )


def test_a_lease_given_back_beside_an_artifact_is_no_withdrawal():
    """The chain may then go whole: nobody in it has anything left to do."""
    wait = waiting()
    assert wait.withdraws
    wait.observe(Sighting(), 0.0)
    wait.last_look(failing())
    assert wait.withdraws
    wait.last_look(found("artifact"))
    assert not wait.withdraws
    wait.last_look(Sighting())
    assert wait.withdraws
    wait.superseded()
    assert not wait.withdraws
