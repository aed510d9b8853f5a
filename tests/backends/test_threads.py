"""Worker threads, the poller, slots and beats on three loops, and a directory that does not answer at all."""

from __future__ import annotations

import asyncio
import errno
import os
import threading

import anyio
import pytest

import acache
from acache import _lease, events
from acache._beats import Beats
from acache._fs import OsFileSystem
from acache._moves import Lease
from acache._poller import Poller
from acache._slots import Slots
from acache._store import Paths
from acache._threads import Workers
from tests.backends.worlds import (
    HANG,
    KEY,
    NATIVE,
    Callers,
    Gate,
    StubbornFileSystem,
    cache_on,
    flights,
    impatient,
    leftovers,
    never,
    until,
)


class Stuck:
    """Calls that hang until the test lets them go, as system calls on a dead mount do."""

    def __init__(self):
        self.go = threading.Event()
        self.entered = 0
        self.ended = 0

    def __call__(self):
        self.entered += 1
        self.go.wait(HANG)
        self.ended += 1
        return "late"


def worker_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("acache-worker")]


# --- Workers -----------------------------------------------------------------------------------------------


async def test_results_and_exceptions_come_back():
    workers = Workers()
    home = threading.get_ident()
    assert await workers.run(threading.get_ident) != home
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 // 0)
    assert worker_threads()[0].daemon
    workers.close()
    await until(lambda: not worker_threads())


async def test_threads_are_few_and_reused():
    workers = Workers(size=3)
    stuck = Stuck()
    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(workers.run, stuck)
        await until(lambda: stuck.entered == 3)
        assert len(worker_threads()) == 3
        stuck.go.set()
    assert stuck.ended == 10
    for _ in range(10):
        await workers.run(int)
    assert len(worker_threads()) == 3
    workers.close()
    await until(lambda: not worker_threads())


async def test_patience_ends_and_the_thread_counts_as_stuck_until_it_returns():
    workers = Workers(size=2, patience=0.05)
    stuck = Stuck()
    for _ in range(2):
        with pytest.raises(OSError, match=r"did not answer within 0\.05 s") as caught:
            await workers.run(stuck)
        assert caught.value.errno == errno.ETIMEDOUT
    with pytest.raises(OSError, match="every worker thread is stuck") as caught:  # and at once
        await workers.run(never)
    assert caught.value.errno == errno.ETIMEDOUT
    stuck.go.set()
    await until(lambda: stuck.ended == 2 and workers._stuck() == 0)
    assert await workers.run(lambda: "recovered") == "recovered"
    workers.close()
    await until(lambda: not worker_threads())


async def test_a_read_is_abandoned_at_once_and_a_write_is_waited_for():
    workers = Workers()
    stuck = Stuck()
    with anyio.move_on_after(0.02) as scope:
        await workers.run(stuck, abandon=True)
    assert scope.cancelled_caught
    assert stuck.ended == 0
    finished = []

    async def write():
        with anyio.CancelScope() as scope:
            group.start_soon(cancel, scope)
            finished.append(await workers.run(stuck))

    async def cancel(scope):
        await until(lambda: stuck.entered == 2)
        scope.cancel()
        await anyio.lowlevel.checkpoint()
        assert not finished
        stuck.go.set()

    async with anyio.create_task_group() as group:
        group.start_soon(write)
    assert finished == ["late"]
    workers.close()
    await until(lambda: not worker_threads())


async def test_reads_that_were_abandoned_do_not_make_a_healthy_directory_look_stuck():
    workers = Workers(size=2)
    stuck = Stuck()
    for _ in range(2):
        with anyio.move_on_after(0.02):
            await workers.run(stuck, abandon=True)
    async with anyio.create_task_group() as group:
        group.start_soon(workers.run, lambda: None)
        await anyio.lowlevel.checkpoint()
        stuck.go.set()
    assert await workers.run(lambda: "next") == "next"
    workers.close()
    await until(lambda: not worker_threads())


async def test_work_that_nobody_waits_for_is_not_begun():
    workers = Workers(size=1)
    stuck, later = Stuck(), []
    async with anyio.create_task_group() as group:
        group.start_soon(workers.run, stuck)
        await until(lambda: stuck.entered)
        with anyio.move_on_after(0.02):
            await workers.run(lambda: later.append("begun"), abandon=True)
        stuck.go.set()
    assert await workers.run(lambda: "next") == "next"
    assert later == []
    workers.close()
    await until(lambda: not worker_threads())


@NATIVE
async def test_a_native_cancellation_pierces_the_wait_and_nothing_more():
    workers = Workers(size=1)
    stuck = Stuck()
    task = asyncio.create_task(workers.run(stuck))
    await until(lambda: stuck.entered)
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(workers._running) == 1
    stuck.go.set()
    await until(lambda: not workers._running)
    assert await workers.run(lambda: "next") == "next"
    workers.close()
    await until(lambda: not worker_threads())


async def test_after_close_threads_end_and_calls_are_refused():
    workers = Workers(size=2)
    stuck = Stuck()
    results = []

    async def call():
        results.append(await workers.run(stuck))

    async with anyio.create_task_group() as group:
        for _ in range(3):  # the third is queued
            group.start_soon(call)
        await until(lambda: stuck.entered == 2)
        workers.close()
        with pytest.raises(acache.CacheClosedError, match="closed meanwhile"):
            await workers.run(int)
        stuck.go.set()
    assert results == ["late"] * 3
    await until(lambda: not worker_threads())


async def test_hurry_shortens_waits_under_way_and_later_ones():
    workers = Workers(size=2)
    stuck = Stuck()

    async def impatient_call():
        with pytest.raises(OSError, match="did not answer"):
            await workers.run(stuck)

    async with anyio.create_task_group() as group:
        group.start_soon(impatient_call)
        await until(lambda: stuck.entered)
        workers.hurry(0.02)
    await impatient_call()
    stuck.go.set()
    workers.close()
    await until(lambda: not worker_threads())


async def test_when_no_thread_can_be_started_it_fails_at_once_and_recovers(monkeypatch):
    workers = Workers(size=2)
    start = threading.Thread.start

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    for _ in range(2):
        with pytest.raises(OSError, match="no worker thread can be started"):
            await workers.run(lambda: done.append("never"))
    monkeypatch.setattr(threading.Thread, "start", start)
    assert await workers.run(lambda: "one") == "one"
    stuck = Stuck()
    async with anyio.create_task_group() as group:
        group.start_soon(workers.run, stuck)
        await until(lambda: stuck.entered)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        group.start_soon(workers.run, lambda: done.append("queued"))  # those that there are do the work
        await until(lambda: workers._idle < 0)
        monkeypatch.setattr(threading.Thread, "start", start)
        assert await workers.run(lambda: "another thread") == "another thread"
        stuck.go.set()
    assert done == ["queued"]
    workers.close()
    await until(lambda: not worker_threads())


# --- Poller, Slots, Beats ----------------------------------------------------------------------------------


async def test_looks_that_are_due_share_a_trip():
    workers = Workers()
    poller = Poller(workers)
    threads, answers = [], {}

    async def wait(number, at):
        def look():
            threads.append(threading.get_ident())
            return number

        answers[number] = await poller.look(look, at)

    trips = []
    run = workers.run

    async def counting(call, **options):
        trips.append(call)
        return await run(call, **options)

    workers.run = counting
    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(wait, number, anyio.current_time() - 1)
        await until(lambda: len(poller._due) == 20)
        group.start_soon(poller.run)
        await until(lambda: len(answers) == 20)
        group.cancel_scope.cancel()
    assert answers == {number: number for number in range(20)}
    assert len(trips) == 1
    assert len(set(threads)) == 1
    workers.close()


async def test_a_look_is_made_when_due_or_when_hurried_and_fails_alone():
    workers = Workers()
    poller = Poller(workers)
    hurry, made = [], []

    def fails():
        raise PermissionError(errno.EACCES, "no")

    def breaks():
        raise MemoryError

    async with anyio.create_task_group() as group:
        group.start_soon(poller.run)

        async def far_off():
            made.append(await poller.look(lambda: "far", anyio.current_time() + 1e6, subscribe=hurry.append))

        group.start_soon(far_off)
        await until(lambda: hurry)
        assert await poller.look(lambda: "now", anyio.current_time()) == "now"
        for look, kind in ((fails, PermissionError), (breaks, MemoryError)):
            with pytest.raises(kind):
                await poller.look(look, anyio.current_time())
        with anyio.move_on_after(0.02) as scope:
            await poller.look(never, anyio.current_time() + 1e6)
        assert scope.cancelled_caught
        assert not made
        hurry[0]()
        hurry[0]()  # twice on the list, once made
        await until(lambda: made == ["far"])
        group.cancel_scope.cancel()
    workers.close()


async def test_a_look_that_hangs_is_an_error_for_those_in_its_trip_and_the_next_trip_goes():
    workers = Workers(patience=0.05)
    poller = Poller(workers)
    stuck = Stuck()
    async with anyio.create_task_group() as group:
        group.start_soon(poller.run)
        with pytest.raises(OSError, match="did not answer"):
            await poller.look(stuck, anyio.current_time())
        assert await poller.look(lambda: "next", anyio.current_time()) == "next"
        group.cancel_scope.cancel()
    stuck.go.set()
    workers.close()
    await until(lambda: not worker_threads())


def test_slots_are_granted_first_come_first_served_and_given_back_once():
    slots = Slots(2)
    granted = []
    claims = [slots.claim() for _ in range(5)]
    for number, claim in enumerate(claims):
        claim.subscribe(lambda number=number: granted.append(number))
    assert granted == [0, 1]
    claims[2].give_back()  # leaves the queue
    claims[0].give_back()
    claims[0].give_back()
    assert granted == [0, 1, 3]
    assert [claim.granted for claim in claims] == [False, True, False, True, False]
    claims[2].give_back()
    claims[1].give_back()
    claims[3].give_back()
    assert granted == [0, 1, 3, 4]
    claims[4].give_back()
    fresh = [slots.claim() for _ in range(3)]
    assert [claim.granted for claim in fresh] == [True, True, False]


async def test_beats_go_on_when_one_fails_and_end_with_close(tmp_path):
    beaten, failed = [], []

    class FileSystem(OsFileSystem):
        def open_rw(self, path):
            if "bad" in path:
                failed.append(path)
                raise PermissionError(errno.EACCES, "no", path)
            beaten.append(path)
            raise FileNotFoundError(errno.ENOENT, "gone", path)

    beats = Beats(FileSystem(), 0.01)
    leases = [Lease(Paths(str(tmp_path), stem), None, stem * 32, os.getpid()) for stem in ("bad", "a")]
    for lease in leases:
        beats.hold(lease, network=False)
    await until(lambda: len(beaten) >= 2 and len(failed) >= 2)
    beats.drop(leases[1])
    beats.drop(leases[1])
    beats.close()
    await until(lambda: not [each for each in threading.enumerate() if each.name == "acache-beats"])


# --- a directory that does not answer ----------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch):
    impatient(monkeypatch, 0.1)
    monkeypatch.setattr(_lease, "LOOK_LIMIT", 0.1)


@pytest.mark.parametrize("mode", ["on", "readonly", "refresh", "off"])
async def test_a_hung_directory_costs_a_compile_and_no_more(cache_dir, hasty, mode):
    fs, seen = StubbornFileSystem(), []
    settings = {"max_wait": 0.1, "mode": mode, "memory_bytes": 0}
    with fs.hung():
        async with cache_on(fs, cache_dir, settings=settings, on_event=seen.append) as cache:
            gate = Gate(open=True)
            with anyio.fail_after(HANG):
                assert (await cache.get_or_compile(KEY, gate)).data == b"artifact"
                assert await cache.get(KEY) is None
                await cache.put(KEY, b"x")
                assert await cache.delete(KEY) is False
                assert (fs.calls == 0) == (mode == "off")
                assert (await cache.status(KEY)).state == "absent"
            assert gate.calls == 1
            if mode != "off":
                assert cache.stats().store_errors > 0
                assert any(isinstance(event, events.StoreFault) for event in seen)
            fs.answering.set()
            await until(lambda: fs.waiting == 0)
    await until(lambda: not worker_threads())


async def test_when_every_thread_is_stuck_calls_fail_over_at_once_and_recover(cache_dir, monkeypatch):
    impatient(monkeypatch, 0.05, size=2)
    monkeypatch.setattr(_lease, "LOOK_LIMIT", 0.05)
    fs = StubbornFileSystem()
    async with cache_on(fs, cache_dir, settings={"memory_bytes": 0}) as cache:
        await cache.get_or_compile(KEY, Gate(open=True))
        with fs.hung():
            await until(lambda: len(flights(cache)) == 0)
            for number in range(2):
                assert await cache.get(acache.key(n=number)) is None
            await until(lambda: cache._live.workers._stuck() >= 2)
            calls = fs.calls
            for number in range(20):
                key = acache.key(n=number)
                assert (await cache.get_or_compile(key, Gate(open=True))).data == b"artifact"
            assert fs.calls == calls  # nobody even tried
        await until(lambda: cache._live.workers._stuck() == 0)
        assert (await cache.get_or_compile(KEY, never)).origin is acache.Origin.DISK


async def test_cancellation_is_prompt_while_the_directory_hangs(cache_dir):
    """With the patience of real life: who leaves does not wait for the disk, and nobody else is harmed."""
    fs = StubbornFileSystem()
    async with cache_on(fs, cache_dir) as cache, anyio.create_task_group() as group:
        with fs.hung():
            callers = Callers(cache, Gate(open=True))
            callers.start(group, 3)
            await until(lambda: fs.waiting)
            for call in (cache.get, cache.status):
                with anyio.move_on_after(0.01) as scope:
                    await call(KEY)
                assert scope.cancelled_caught
            with anyio.move_on_after(0.01) as scope:
                await cache.entries()
            assert scope.cancelled_caught
            for scope in callers.scopes[:2]:
                scope.cancel()
            await callers.joined(1)
            assert not fs.answering.is_set()
        await until(lambda: callers.results)
        assert callers.results[2].data == b"artifact"
    assert leftovers(cache_dir) == []


@pytest.mark.parametrize("operation", ["read", "link", "create", "rename"])
async def test_closing_is_bounded_while_the_directory_hangs(cache_dir, monkeypatch, operation):
    monkeypatch.setattr("acache._cache.CLOSING_LIMIT", 0.05)
    fs = StubbornFileSystem((operation,))
    with fs.hung():
        async with anyio.create_task_group() as group:
            async with cache_on(fs, cache_dir) as cache:
                callers = Callers(cache, Gate(open=True))
                callers.start(group, 3)
                await until(lambda: fs.waiting)
            assert not fs.answering.is_set()  # the cache is closed, the disk still hangs
            await until(lambda: len(callers.results) == 3)
        kinds = {type(result) for result in callers.results.values()}
        assert kinds <= {acache.CacheClosedError, acache.Artifact}
    await until(lambda: fs.waiting == 0 and not worker_threads())


async def test_an_interpreter_would_not_be_held_up(cache_dir, hasty):
    """Threads that hang are daemons, all of them."""
    fs = StubbornFileSystem()
    with fs.hung():
        async with cache_on(fs, cache_dir) as cache:
            await cache.get_or_compile(KEY, Gate(open=True))
            assert fs.waiting > 0
            ours = [each for each in threading.enumerate() if each.name.startswith("acache")]
            assert ours
            assert all(thread.daemon for thread in ours)
    await until(lambda: not worker_threads())
