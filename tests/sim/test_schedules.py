"""Thousands of schedules drawn from seeds: every call is answered, rightly, in time, with few compiles.

What is checked stands in `tests.sim.scene`. A seed that fails prints its whole trace, and
``Scene(seed, CASTS[name]).play()`` repeats it exactly. ``ACACHE_SIM_SEEDS`` says how many seeds of each cast
are played, ``ACACHE_SIM_FIRST`` from which one on.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from acache import _moves, _protocol, _store
from acache._format import Kind, decode_entry
from tests.sim.driver import TERMS, Attempt, Made, Refused
from tests.sim.scene import TRUTH, Cast, Scene
from tests.sim.values import KEY
from tests.sim.world import Violation, Wire, World, describe

SEEDS = int(os.environ.get("ACACHE_SIM_SEEDS", "60"))
FIRST = int(os.environ.get("ACACHE_SIM_FIRST", "0"))

NETWORK = replace(TERMS, grace=1.5)

CASTS = {
    "nothing goes wrong": Cast(hosts=2, processes=5, calls=2),
    "late callers": Cast(hosts=3, processes=6, spread=4.0),
    "short pauses": Cast(hosts=2, pauses=4),
    "crashes": Cast(hosts=2, processes=4, crashes=2, calls=2),
    "crashes that nobody can see": Cast(honest=False, crashes=2),
    "containers with equal pids": Cast(hosts=3, processes=6, containers=True, crashes=2, calls=2),
    "suspensions": Cast(hosts=2, suspensions=2, crashes=1, pauses=2),
    "cancelled callers": Cast(cancels=3, calls=2, crashes=1),
    "broken releases, mute holders": Cast(hosts=2, leaks=1, mute=1),
    "hung compilers": Cast(hosts=2, processes=5, hung=2, memory=1),
    "far over the usual time": Cast(hosts=2, terms=replace(TERMS, hedge_after=0.5), usual=0.4),
    "rivals that run out of memory": Cast(
        hosts=2,
        processes=5,
        usual=0.4,
        terms=replace(TERMS, hedge_after=0.5),
        attempts=lambda number: Attempt(0.5, "memory") if number in (1, 2) else Attempt(5.0),
    ),
    "failures soon forgotten": Cast(
        hosts=2,
        calls=4,
        spread=6.0,
        suspensions=2,
        terms=replace(TERMS, failure_ttl=0.2),
        attempts=lambda number: Attempt(1.0, "diagnostic"),
        counted=False,
    ),
    "no hedging": Cast(processes=3, hung=1, terms=replace(TERMS, hedge_after=None), max_wait=6.0),
    "want of memory": Cast(hosts=2, processes=6, spread=2.0, memory=3),
    "an input that cannot be compiled": Cast(
        hosts=2, processes=6, spread=2.0, crashes=1, attempts=lambda number: Attempt(1.0, "diagnostic")
    ),
    "lost replies": Cast(hosts=2, wire=Wire(lost_link=0.2, loser_eperm=True, stale=0.05)),
    "full and broken disks": Cast(
        hosts=2, crashes=1, wire=Wire(lost_link=0.1, stale=0.02, full=0.02, broken=0.01)
    ),
    "no links": Cast(hosts=2, linkless=True, crashes=1, wire=Wire(lost_create=0.1, full=0.02)),
    "stale views": Cast(hosts=3, network=True, terms=NETWORK, calls=2),
    "stale views and faults": Cast(
        hosts=3, network=True, terms=NETWORK, crashes=2, suspensions=1, hung=1, calls=2
    ),
    "staler views": Cast(hosts=3, network=True, stale=1.0, terms=NETWORK),
    "staler views and faults": Cast(
        hosts=3, network=True, stale=1.0, terms=NETWORK, crashes=1, suspensions=1, calls=2
    ),
    "refreshing": Cast(processes=5, calls=2, terms=replace(TERMS, refresh=True), crashes=1, counted=False),
    "cheap and not so cheap": Cast(
        hosts=2, processes=6, thresholds=(0.0, 1.5, 5.0), crashes=1, counted=False
    ),
    "old litter": Cast(hosts=2, litter=True, crashes=1),
    "everything at once": Cast(
        hosts=3,
        processes=5,
        calls=2,
        network=True,
        terms=NETWORK,
        crashes=2,
        suspensions=2,
        pauses=2,
        cancels=2,
        leaks=1,
        mute=1,
        hung=1,
        memory=1,
        litter=True,
        wire=Wire(lost_link=0.1, stale=0.005, full=0.005, broken=0.002),
    ),
}


def play_all(seeds: range, cast: Cast) -> None:
    for seed in seeds:
        Scene(seed, cast).play()


@pytest.mark.parametrize("name", CASTS)
def test_every_schedule_keeps_the_promises(name: str):
    play_all(range(FIRST, FIRST + SEEDS), CASTS[name])


# --- what each cast should come to, beside the promises --------------------------------------------------


def played(count: int, cast: Cast) -> list[Scene]:
    return [Scene(seed, cast).play() for seed in range(FIRST, FIRST + count)]


def test_without_faults_one_compiles_and_the_rest_get_it():
    for scene in played(30, Cast(hosts=3, processes=8, spread=0.1)):
        origins = sorted(call.result.origin for call in scene.calls if isinstance(call.result, Made))
        assert len(origins) == 8
        assert origins.count("compiled") == 1
        assert len(scene.compiles) == 1


def test_an_input_that_cannot_be_compiled_is_refused_to_all_after_one_attempt():
    cast = Cast(hosts=2, processes=6, spread=2.0, attempts=lambda number: Attempt(1.0, "diagnostic"))
    for scene in played(30, cast):
        results = [call.result for call in scene.calls]
        assert all(isinstance(result, Refused) and result.failure.deterministic for result in results)
        assert len(scene.compiles) == 1


def test_a_holder_that_died_is_taken_over_at_once_on_its_host_and_after_ttl_elsewhere():
    waits: dict[bool, list[float]] = {True: [], False: []}
    for honest, times in waits.items():
        cast = Cast(processes=2, spread=0.0, honest=honest, attempts=lambda number: Attempt(5.0))
        for seed in range(30):
            scene = Scene(seed, cast)
            scene.world.at(1.0, None, lambda scene=scene: scene.compiles[0][1].process.crash())
            scene.play()
            times.append(scene.compiles[1][0] - 1.0)
    assert max(waits[True]) < 0.5
    assert min(waits[False]) > TERMS.ttl - 0.6
    assert max(waits[False]) < 2 * TERMS.ttl


def test_callers_of_a_cheap_compile_do_not_queue():
    cast = Cast(
        processes=8, terms=replace(TERMS, min_compile_seconds=5.0), attempts=lambda number: Attempt(2.0)
    )
    for scene in played(30, cast):
        assert max(call.ended - call.began for call in scene.calls) < 2 * 2.0 + 1.0
        assert {why for _, _, why, _ in scene.compiles} == {"missing", "cheap"}


def test_who_would_persist_does_so_over_a_cheap_mark():
    cast = Cast(
        processes=6,
        thresholds=(0.0, 5.0),
        attempts=lambda number: Attempt(0.5),
        spread=3.0,
        counted=False,
    )
    for scene in played(30, cast):
        if any(call.terms.min_compile_seconds == 0.0 for call in scene.calls):
            (entry,) = scene.world.server.names.values()
            assert decode_entry(bytes(entry.data), key=KEY, namespace=None).kind is Kind.ARTIFACT


def test_without_hedging_everybody_leaves_at_the_deadline():
    cast = Cast(
        processes=3,
        terms=replace(TERMS, hedge_after=None),
        max_wait=4.0,
        attempts=lambda number: Attempt(ends="never", progresses=False) if number == 0 else Attempt(1.0),
    )
    for scene in played(30, cast):
        assert max(call.ended - call.began for call in scene.calls) < 4.0 + 1.0 + 1.0
        assert all(isinstance(call.result, Made) for call in scene.calls)


# --- the simulator itself ----------------------------------------------------------------------------------


def told(scene: Scene) -> list[str]:
    return [describe(line) for line in scene.world.trace]


def test_a_seed_repeats_exactly():
    for seed in range(5):
        one, two = (Scene(seed, CASTS["everything at once"]).play() for _ in range(2))
        assert told(one) == told(two)
        assert one.compiles[0][0] == two.compiles[0][0]
    assert told(Scene(1, Cast()).play()) != told(Scene(2, Cast()).play())


def test_a_violation_tells_the_whole_story(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_moves, "claim", claim_anyhow)
    with pytest.raises(Violation) as caught:
        Scene(7, Cast(processes=2, spread=0.0)).play()
    lines = str(caught.value).splitlines()
    assert lines[0] == "seed 7: 2 compiles, 0 faults"
    assert any("p0@a" in line and "link" in line and "EEXIST" in line for line in lines) or any(
        "p1@a" in line and "link" in line and "EEXIST" in line for line in lines
    )
    assert sum("COMPILE (missing, artifact)" in line for line in lines) == 2


def claim_anyhow(layout: Any, paths: Any, follows: Any, record: Any) -> Any:
    """A claim that believes itself the winner."""
    temporary = yield from _store.write_temporary(layout, paths, (_moves.encode_record(record),))
    try:
        yield ("link", temporary, paths.slot(follows))
    except OSError:
        pass
    yield from _store.unlink_quietly(temporary)
    return True


def no_seal(layout: Any, lease: Any) -> Any:
    return True
    yield


def unchecked(lease: Any) -> Any:
    yield from _store.unlink_quietly(lease.slot)


def root_first(layout: Any, subject: Any, lease: Any, *, withdraw: bool = False, failure: Any = None) -> Any:
    return (yield from RELEASE(layout, subject, lease, failure=failure))


def rash(watch: Any, ttl: float) -> bool:
    return watch.quiet >= ttl / 4


RELEASE = _moves.release
MUTANTS = {
    "a claim that does not look who won": (_moves, "claim", claim_anyhow, "nothing goes wrong"),
    "no seal": (_moves, "seal", no_seal, "hung compilers"),
    "an unlink that does not look whose it is": (_moves, "unlink_own", unchecked, "failures soon forgotten"),
    "a withdrawal that begins at the root": (_moves, "release", root_first, "rivals that run out of memory"),
    "silence too soon": (_protocol, "is_silent", rash, "nothing goes wrong"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_search_finds_a_broken_protocol(name: str, monkeypatch: pytest.MonkeyPatch):
    module, attribute, mutant, cast = MUTANTS[name]
    monkeypatch.setattr(module, attribute, mutant)
    with pytest.raises(Violation, match=r"deleted the slot|compiles, 0 faults"):
        play_all(range(200), CASTS[cast])


def test_a_dead_process_does_nothing_more():
    world = World(1)
    process = world.process(world.client(), "a")
    done: list[str] = []

    def life() -> Any:
        try:
            yield ("mkdir", "/a")
            done.append("lived on")
        finally:
            try:
                yield ("mkdir", "/b")
            finally:
                yield ("mkdir", "/c")
                done.append("cleaned up")

    process.spawn(life(), "life")
    world.at(0.00001, None, process.crash)
    world.run(10.0)
    assert done == []
    assert not {"/b", "/c"} & world.server.folders


def test_the_truth_is_what_everybody_gets():
    (scene,) = played(1, Cast())
    assert all(isinstance(call.result, Made) and call.result.data == TRUTH for call in scene.calls)
