"""Single flight inside a process: every rule that was learned the hard way, one test each, on three loops."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import os
import sys
import threading

import anyio
import pytest

import acache
from acache import events
from acache._fs import OsFileSystem
from acache.compilers import Command
from tests.backends.worlds import (
    HANG,
    KEY,
    NATIVE,
    OPERATIONS,
    Callers,
    Gate,
    StubbornFileSystem,
    cache_on,
    flights,
    leftovers,
    never,
    only,
    until,
)
from tests.process.procs import HERE as PROCESS
from tests.process.procs import alive

SLOW = PROCESS / "slow_compiler.py"


def is_asyncio(anyio_backend):
    return anyio_backend[0] == "asyncio"


async def finds(directory, data=b"artifact"):
    """Check that the next process finds the artifact, and that the directory is quiet."""
    async with acache.Cache(directory) as cache:
        assert (await cache.get_or_compile(KEY, never)).data == data
    assert leftovers(directory) == []


# --- who leads, who leaves


async def test_no_caller_is_the_leader(cache_dir):
    """Rule: the cache owns flights; the first caller may be cancelled, and one compile still runs."""
    gate = Gate()
    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, gate)
        callers.start(group, 3, on_abandon="stop")
        await callers.joined(3)
        await gate.entered.wait()
        callers.scopes[0].cancel()
        await callers.joined(2)
        gate.go.set()
        await until(lambda: len(callers.results) == 2)
        assert {artifact.data for artifact in callers.results.values()} == {b"artifact"}
        assert {artifact.origin for artifact in callers.results.values()} == {acache.Origin.COMPILED}
        assert cache.stats().coalesced == 2
    assert (gate.calls, gate.cancelled) == (1, 0)
    await finds(cache_dir)


async def test_an_abandoned_compile_is_finished_and_published(cache_dir):
    """Rule: when the last caller leaves with ``finish``, the compile goes on, and the next call hits."""
    gate, seen = Gate(), []
    async with (
        acache.Cache(cache_dir, on_event=seen.append) as cache,
        anyio.create_task_group() as group,
    ):
        callers = Callers(cache, gate)
        callers.start(group, 2)
        await callers.joined(2)
        await gate.entered.wait()
        for scope in callers.scopes:
            scope.cancel()
        await callers.joined(0)
        callers.start(group)  # a newcomer joins what is still under way
        await callers.joined(1)
        callers.scopes[-1].cancel()
        await callers.joined(0)
        gate.go.set()
        await until(lambda: cache.get_nowait(KEY))
        assert (await cache.get_or_compile(KEY, never)).data == b"artifact"
        assert len(callers.results) == 0
    assert gate.calls == 1
    assert [event.action for event in seen if isinstance(event, events.Abandoned)] == ["finish", "finish"]
    await finds(cache_dir)


async def test_an_abandoned_compile_is_stopped_and_its_lease_is_free(cache_dir):
    """Rule: after the last caller with ``stop``, the compile is cancelled; a newcomer starts afresh."""
    gate = Gate()
    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, gate)
        callers.start(group, 2, on_abandon="stop")
        await callers.joined(2)
        await gate.entered.wait()
        assert len(leftovers(cache_dir)) == 1
        for scope in callers.scopes:
            scope.cancel()
        await until(lambda: gate.cancelled == 1 and not leftovers(cache_dir))
        gate.go.set()
        callers.start(group)
        await until(lambda: callers.results)
    assert gate.calls == 2
    await finds(cache_dir)


async def test_a_newcomer_never_joins_a_dying_flight(cache_dir):
    """Rule: a flight that is to stop is detached from its key before it is cancelled."""
    dying, dead = anyio.Event(), anyio.Event()
    order = []

    async def slow_to_die():
        order.append("begun")
        try:
            await anyio.sleep_forever()
        finally:
            dying.set()
            with anyio.CancelScope(shield=True):
                await dead.wait()
            order.append("dead")

    fresh = Gate(b"fresh", open=True)
    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        first = Callers(cache, slow_to_die)
        first.start(group, on_abandon="stop")
        await until(lambda: order)
        first.scopes[0].cancel()
        await dying.wait()
        second = Callers(cache, fresh)
        second.start(group)
        await second.joined(1)
        assert fresh.calls == 0  # the lease is still held
        dead.set()
        await until(lambda: second.results)
        assert second.results[0].data == b"fresh"
        order.append("fresh")
    assert order == ["begun", "dead", "fresh"]
    await finds(cache_dir, b"fresh")


async def test_the_last_caller_to_leave_decides(cache_dir):
    """Rule: a flight is never detached while others wait, and the last to leave decides."""
    gate = Gate()
    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, gate)
        callers.start(group, on_abandon="stop")
        callers.start(group, on_abandon="finish")
        await callers.joined(2)
        await gate.entered.wait()
        flight = flights(cache).find(KEY)
        callers.scopes[0].cancel()
        await callers.joined(1)
        assert flights(cache).find(KEY) is flight
        callers.scopes[1].cancel()
        await callers.joined(0)
        gate.go.set()
        await until(lambda: cache.get_nowait(KEY))
    assert (gate.calls, gate.cancelled) == (1, 0)
    other = Gate()
    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, other, acache.key(n=1))
        callers.start(group, on_abandon="finish")
        callers.start(group, on_abandon="stop")
        await callers.joined(2)
        await other.entered.wait()
        callers.scopes[0].cancel()
        await callers.joined(1)
        callers.scopes[1].cancel()
        await until(lambda: other.cancelled == 1)
    assert leftovers(cache_dir) == []


async def test_the_setting_decides_where_the_call_says_nothing(cache_dir):
    """Rule: ``on_abandon`` of the call, else of the settings."""
    gate = Gate()
    async with (
        acache.Cache(cache_dir, settings=acache.Settings(on_abandon="stop")) as cache,
        anyio.create_task_group() as group,
    ):
        callers = Callers(cache, gate)
        callers.start(group)
        await gate.entered.wait()
        callers.scopes[0].cancel()
        await until(lambda: gate.cancelled == 1)


# --- what does not leak ------------------------------------------------------------------------------------

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="default")


async def test_a_flight_starts_in_the_cache_s_own_context(cache_dir):
    """Rule: a caller's context variables do not leak into shared work, nor the work's into the caller."""
    seen = []

    async def compile():
        seen.append(VARIABLE.get())
        VARIABLE.set("compile")
        return b"x"

    VARIABLE.set("where the cache was entered")
    async with acache.Cache(cache_dir) as cache:
        VARIABLE.set("caller")
        await cache.get_or_compile(KEY, compile)
        assert VARIABLE.get() == "caller"
        await cache.get_or_compile(acache.key(n=1), compile)
    assert seen == ["where the cache was entered"] * 2


async def test_a_caller_s_deadline_and_scope_do_not_leak(cache_dir):
    """Rule: a caller's deadline and cancel scope end that caller, and neither the compile nor the others."""
    gate, seen = Gate(), []

    async def compile():
        seen.append(anyio.current_effective_deadline() - anyio.current_time())
        return await gate()

    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        others = Callers(cache, compile)
        with anyio.move_on_after(30) as scope:
            group.start_soon(until, lambda: gate.entered.is_set())
            async with anyio.create_task_group() as inner:
                inner.start_soon(cache.get_or_compile, KEY, compile)
                await gate.entered.wait()
                others.start(group)
                await others.joined(2)
                scope.cancel()
        await others.joined(1)
        assert scope.cancelled_caught
        gate.go.set()
        await until(lambda: others.results)
        assert others.results[0].data == b"artifact"
    assert gate.cancelled == 0
    assert 500 < seen[0] <= 600  # compile_timeout, and nothing of the caller's 30 s


# --- errors ------------------------------------------------------------------------------------------------


async def test_a_compile_failure_is_a_fresh_exception_for_every_waiter(cache_dir):
    """Rule: a compile failure is stored as data."""
    failure = acache.CompileFailure("diagnostic", "k.x:1: error: no", exit_status=1, deterministic=True)
    gate = Gate(acache.CompileError(failure))
    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, gate)
        callers.start(group, 3)
        await callers.joined(3)
        gate.go.set()
        await until(lambda: len(callers.results) == 3)
        errors = list(callers.results.values())
        assert {type(error) for error in errors} == {acache.CompileError}
        assert {error.failure for error in errors} == {failure}
        assert len({id(error) for error in [*errors, gate.result]}) == 4
    assert gate.calls == 1


async def test_other_exceptions_are_the_same_object_for_every_waiter(cache_dir):
    """Rule: what a caller's own function raises reaches all who joined, and nobody else."""
    gate = Gate(ZeroDivisionError("mine"))
    async with (
        acache.Cache(cache_dir) as cache,
        acache.Cache(cache_dir) as elsewhere,
        anyio.create_task_group() as group,
    ):
        callers = Callers(cache, gate)
        callers.start(group, 3)
        await callers.joined(3)
        await gate.entered.wait()
        waiting = Callers(elsewhere, Gate(b"theirs", open=True))
        waiting.start(group)
        await until(lambda: elsewhere.stats().misses == 1)
        gate.go.set()
        await until(lambda: len(callers.results) == 3)
        assert all(error is gate.result for error in callers.results.values())
        await until(lambda: waiting.results)
        assert waiting.results[0].data == b"theirs"
    assert leftovers(cache_dir) == []
    assert not list(cache_dir.rglob("*.err"))


@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize(
    "kind", [ValueError, ExceptionGroup, SystemExit, KeyboardInterrupt, OSError, TimeoutError]
)
async def test_a_flight_never_kills_the_cache(cache_dir, kind, mode):
    """Rule: a flight never raises into the task group; its callers are given what it raised."""
    error = kind("mine", [ValueError()]) if kind is ExceptionGroup else kind("mine")
    async with acache.Cache(cache_dir, settings=acache.Settings(mode=mode)) as cache:
        with pytest.raises(kind) as caught:
            await cache.get_or_compile(KEY, Gate(error, open=True))
        assert caught.value is error
        assert (await cache.get_or_compile(KEY, Gate(open=True))).data == b"artifact"
        await anyio.lowlevel.checkpoint()
    assert leftovers(cache_dir) == []


async def test_an_error_after_the_last_caller_left_is_logged(cache_dir, caplog):
    """Rule: no exception is lost: what nobody is there to be given goes to the log."""
    gate = Gate(ValueError("nobody hears me"))
    with caplog.at_level(logging.ERROR, logger="acache"):
        async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
            callers = Callers(cache, gate)
            callers.start(group)
            await gate.entered.wait()
            callers.scopes[0].cancel()
            await callers.joined(0)
            gate.go.set()
            await until(lambda: not len(flights(cache)))
            assert (await cache.get_or_compile(KEY, Gate(open=True))).data == b"artifact"
    assert "after its last caller had left" in caplog.text
    assert "nobody hears me" in caplog.text


@NATIVE
async def test_a_compile_cancelled_from_inside_fails_alone(cache_dir):
    """Rule: a compile that ends in a cancellation of its own (asyncio lets it) fails alone."""

    async def awaits_a_cancelled_task():
        task = asyncio.ensure_future(asyncio.sleep(HANG))
        task.cancel()
        await task

    async def cancels_itself():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async with acache.Cache(cache_dir) as cache:
        for number, compile in enumerate([awaits_a_cancelled_task, cancels_itself]):
            key = acache.key(n=number)
            with pytest.raises(RuntimeError, match="cancelled from inside"):
                await cache.get_or_compile(key, compile)
            assert (await cache.get_or_compile(key, Gate(open=True))).data == b"artifact"
    assert leftovers(cache_dir) == []


async def test_a_compile_may_use_cancellation_of_its_own(cache_dir):
    """Rule: cancel scopes inside a compile are its own business."""

    async def compile():
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep_forever()
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            group.cancel_scope.cancel()
        return b"x"

    async with acache.Cache(cache_dir) as cache:
        assert (await cache.get_or_compile(KEY, compile)).data == b"x"


async def test_a_compile_that_swallows_cancellation_is_waited_for(cache_dir):
    """Rule: a compile that returns in spite of its cancellation ends; nothing hangs and nothing is left."""
    entered, result = anyio.Event(), []

    async def stubborn():
        entered.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            result.append("swallowed")
        return b"stubborn"

    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, stubborn)
        callers.start(group, on_abandon="stop")
        await entered.wait()
        callers.scopes[0].cancel()
        await until(lambda: result and not leftovers(cache_dir))
    assert result == ["swallowed"]


async def test_a_compile_that_fails_when_it_is_superseded_fails_nobody(cache_dir):
    """Rule: an artifact that appears beats whatever the compile it stops has to say."""
    entered = anyio.Event()

    async def sulky():
        entered.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            raise ValueError("I was not done") from None

    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, sulky)
        callers.start(group)
        await entered.wait()
        await cache.put(KEY, b"put")
        await until(lambda: callers.results)
        assert getattr(callers.results[0], "data", callers.results[0]) == b"put"


# --- deadlines ---------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def held_elsewhere(directory, gate):
    """Let another cache of the same directory, as another process would, hold the lease of the key."""
    async with acache.Cache(directory) as holder, anyio.create_task_group() as group:
        holding = Callers(holder, gate)
        holding.start(group)
        await gate.entered.wait()
        yield holding
        gate.go.set()
        await until(lambda: holding.results)


async def test_the_earliest_deadline_of_present_callers_rules(cache_dir):
    """Rule: a flight's deadline is the earliest of its present callers'; then it compiles locally."""
    theirs, mine = Gate(b"theirs"), Gate(b"mine", open=True)
    async with (
        held_elsewhere(cache_dir, theirs) as holding,
        acache.Cache(cache_dir) as cache,
        anyio.create_task_group() as group,
    ):
        callers = Callers(cache, mine)
        callers.start(group, max_wait=500)
        await callers.joined(1)
        flight = flights(cache).find(KEY)
        patient = flight.deadline
        callers.start(group, max_wait=200)
        await callers.joined(2)
        assert flight.deadline < patient
        callers.scopes[1].cancel()
        await callers.joined(1)
        assert flight.deadline == patient  # who has left has no say
        assert mine.calls == 0
        callers.start(group, max_wait=0.05)  # joins late, with an earlier deadline
        await until(lambda: len(callers.results) == 2)
        assert {artifact.data for artifact in callers.results.values()} == {b"mine"}
        assert cache.stats().deadline_compiles == cache.stats().compiles == 1
        await until(lambda: holding.results)  # the holder stops, for the artifact is there
        assert holding.results[0].data == b"mine"
    assert theirs.cancelled == 1
    await finds(cache_dir, b"mine")


async def test_a_flight_past_its_deadline_goes_on_watching(cache_dir):
    """Rule: on reaching its deadline the flight compiles locally and goes on watching."""
    theirs, mine = Gate(b"theirs"), Gate(b"mine")
    async with (
        held_elsewhere(cache_dir, theirs),
        acache.Cache(cache_dir) as cache,
        anyio.create_task_group() as group,
    ):
        callers = Callers(cache, mine)
        callers.start(group, max_wait=0)
        await mine.entered.wait()
        theirs.go.set()
        await until(lambda: callers.results)
        assert (callers.results[0].data, callers.results[0].origin) == (b"theirs", acache.Origin.PEER)
        assert cache.stats().peer_hits == 1
    assert mine.cancelled == 1
    await finds(cache_dir, b"theirs")


async def test_max_wait_zero_still_hits(cache_dir):
    """Rule: a deadline bounds the wait for somebody else's compile, not the look at the disk."""
    async with acache.Cache(cache_dir) as cache:
        await cache.put(KEY, b"there")
    async with acache.Cache(cache_dir) as cache:
        assert (await cache.get_or_compile(KEY, never, max_wait=0)).data == b"there"


async def test_max_wait_does_not_bound_one_s_own_compile(cache_dir):
    """Rule: who holds the lease is not its own waiter: no second compile at the deadline."""
    gate = Gate()
    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, gate)
        callers.start(group, max_wait=0)
        await gate.entered.wait()
        callers.start(group, max_wait=0)
        await callers.joined(2)
        await cache.get(acache.key(n="some trip to the disk"))
        gate.go.set()
        await until(lambda: len(callers.results) == 2)
    assert gate.calls == 1


# --- native cancellation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("on_abandon", ["finish", "stop"])
@NATIVE
async def test_native_cancellation_of_callers(cache_dir, times, on_abandon):
    """Rule: a native ``Task.cancel()``, once or twice in a row, takes a caller off like any other."""
    gate = Gate()
    async with acache.Cache(cache_dir) as cache:
        tasks = [
            asyncio.create_task(cache.get_or_compile(KEY, gate, on_abandon=on_abandon)) for _ in range(3)
        ]
        await gate.entered.wait()
        await until(lambda: flights(cache).find(KEY).callers == 3)
        for _ in range(times):
            tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert gate.running == 1
        for task in tasks[1:]:
            for _ in range(times):
                task.cancel()
        done, _ = await asyncio.wait(tasks)
        assert all(task.cancelled() for task in done)
        if on_abandon == "stop":
            await until(lambda: gate.cancelled == 1 and not leftovers(cache_dir))
            return
        gate.go.set()
        await until(lambda: cache.get_nowait(KEY))
    assert gate.calls == 1
    await finds(cache_dir)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("on_abandon", ["finish", "stop"])
async def test_cancellation_while_the_flight_publishes(cache_dir, anyio_backend, times, on_abandon):
    """Rule: leaving while the artifact is being written harms neither the artifact nor the lease."""
    fs = StubbornFileSystem(("rename",))
    gate = Gate()
    async with cache_on(fs, cache_dir) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, gate)
        callers.start(group, 2, on_abandon=on_abandon)
        await callers.joined(2)
        await gate.entered.wait()
        with fs.hung():
            gate.go.set()
            await until(lambda: fs.waiting)
            if is_asyncio(anyio_backend):
                task = asyncio.create_task(cache.get_or_compile(KEY, never, on_abandon=on_abandon))
                await callers.joined(3)
                for scope in callers.scopes:
                    scope.cancel()
                await callers.joined(1)
                for _ in range(times):
                    task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                for scope in callers.scopes:
                    scope.cancel()
                await until(lambda: flights(cache).find(KEY) is None or not flights(cache).find(KEY).callers)
        await until(lambda: not leftovers(cache_dir) and list(cache_dir.rglob("*.art")))
    assert gate.calls == 1
    await finds(cache_dir)


@pytest.mark.parametrize("times", [1, 2])
@NATIVE
async def test_native_cancellation_of_the_task_that_holds_the_cache(cache_dir, times):
    """Rule: closing under a native cancellation, twice too, stops compiles and gives leases back."""
    gate = Gate()

    async def program():
        async with acache.Cache(cache_dir) as cache:
            await cache.get_or_compile(KEY, gate)

    task = asyncio.create_task(program())
    await gate.entered.wait()
    for _ in range(times):
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.cancelled == 1
    await until(lambda: not leftovers(cache_dir))


# --- closing -----------------------------------------------------------------------------------------------


async def test_closing_wakes_waiters_and_refuses_new_calls(cache_dir):
    """Rule: closing refuses new calls, stops flights, and wakes waiters with ``CacheClosedError``."""
    gate = Gate()
    refused = []
    async with anyio.create_task_group() as group:

        async def call_while_closing():
            await until(lambda: gate.cancelled)
            try:
                await cache.get_or_compile(KEY, never)
            except acache.CacheClosedError as error:
                refused.append(error)

        async with acache.Cache(cache_dir) as cache:
            callers = Callers(cache, gate)
            callers.start(group, 3)
            await callers.joined(3)
            await gate.entered.wait()
            group.start_soon(call_while_closing)
    assert {type(error) for error in callers.results.values()} == {acache.CacheClosedError}
    assert "closed while this compile was under way" in str(callers.results[0])
    assert len(callers.results) == 3
    assert len(refused) == 1
    assert gate.cancelled == 1
    assert leftovers(cache_dir) == []


@pytest.mark.parametrize("error", [ValueError("body"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
async def test_the_body_s_own_exception_leaves_as_itself(cache_dir, error):
    """Rule: the body's own exception is not wrapped in a group, compiles under way or not."""
    gate = Gate()
    async with anyio.create_task_group() as group:

        async def program():
            async with acache.Cache(cache_dir) as cache:
                Callers(cache, gate).start(group)
                await gate.entered.wait()
                raise error

        with pytest.raises(type(error)) as caught:
            await program()
        assert caught.value is error
    assert gate.cancelled == 1
    assert leftovers(cache_dir) == []


async def test_an_outer_cancellation_closes_the_cache(cache_dir):
    """Rule: a cancelled program closes its cache; who waited from outside the scope is woken."""
    gate = Gate()
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with acache.Cache(cache_dir) as cache:
                callers = Callers(cache, gate)
                callers.start(group, 2)
                await callers.joined(2)
                await gate.entered.wait()
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        await until(lambda: len(callers.results) == 2)
        assert {type(error) for error in callers.results.values()} == {acache.CacheClosedError}
    assert gate.cancelled == 1
    assert leftovers(cache_dir) == []


async def test_calls_under_way_end_when_the_cache_is_closed(cache_dir):
    """Rule: closing leaves nobody waiting: calls that make many trips to the disk end as well."""
    ended = []
    fs = StubbornFileSystem(("listdir",))

    async def call(function):
        try:
            await function()
        except acache.CacheClosedError:
            ended.append("closed")
        else:
            ended.append("done")

    async with anyio.create_task_group() as group:
        async with cache_on(fs, cache_dir) as cache:
            for number in range(32):  # in many shards, each of which is a trip
                await cache.put(acache.key(number=number), b"x")
            with fs.hung():
                group.start_soon(call, cache.entries)
                group.start_soon(call, cache.clear)
                await until(lambda: fs.waiting == 2)
        await until(lambda: len(ended) == 2)  # refused on the way, or done if they were quick


async def test_closing_stops_a_compiler_and_leaves_no_process_and_no_lease(cache_dir, tmp_path, monkeypatch):
    """Rule: closing stops all, the compiler's processes too, and gives the lease back."""
    token = f"token-{os.urandom(8).hex()}"
    monkeypatch.setenv("ACACHE_TEST_TOKEN", token)
    argv = [sys.executable, "-I", "-S", str(SLOW), str(tmp_path / "log"), "0", "stubborn", "out"]
    compiler = Command(argv, outputs=["out"], toolchain=SLOW, env=("ACACHE_TEST_TOKEN",))
    settings = acache.Settings(kill_grace=0.1)
    async with anyio.create_task_group() as group:
        async with acache.Cache(cache_dir, settings=settings) as cache:
            results = []

            async def call():
                try:
                    await cache.compile(compiler.request("source"))
                except acache.CacheClosedError:
                    results.append("closed")

            group.start_soon(call)
            await until(lambda: (tmp_path / "log").exists() and len(alive(token)) >= 2)
            assert only(cache_dir, ".lease")
        assert alive(token) == []
        assert leftovers(cache_dir) == []
    assert results == ["closed"]


async def test_a_second_close_does_nothing(cache_dir):
    """Rule: leaving is idempotent."""
    async with acache.Cache(cache_dir) as cache:
        pass
    await cache.__aexit__(None, None, None)


# --- slots -------------------------------------------------------------------------------------------------


async def test_so_many_compiles_run_at_once(cache_dir):
    """Rule: a local slot first, then the lease; ``max_compiles`` at once, first come, first served."""
    gate = Gate()
    order = []

    def compile(number):
        async def run():
            order.append(number)
            return await gate()

        return run

    async with (
        acache.Cache(cache_dir, settings=acache.Settings(max_compiles=2)) as cache,
        anyio.create_task_group() as group,
    ):
        for number in range(6):
            Callers(cache, compile(number), acache.key(n=number)).start(group)
            await until(lambda number=number: cache.stats().misses == number + 1)
        await until(lambda: gate.running == 2)
        assert len(list(cache_dir.rglob("*.lease"))) == 2  # who queues holds no lease
        gate.go.set()
    assert (gate.calls, gate.most) == (6, 2)
    assert set(order[:2]) == {0, 1}
    assert sorted(order) == list(range(6))


async def test_who_queues_for_a_slot_takes_what_a_peer_publishes(cache_dir):
    """Rule: who waits for a slot goes on looking for somebody else's result."""
    gate = Gate()
    async with (
        acache.Cache(cache_dir, settings=acache.Settings(max_compiles=1)) as cache,
        acache.Cache(cache_dir) as peer,
        anyio.create_task_group() as group,
    ):
        Callers(cache, gate, acache.key(n=1)).start(group)
        await gate.entered.wait()
        queueing = Callers(cache, never)
        queueing.start(group)
        await until(lambda: cache.stats().misses == 2)
        await peer.get_or_compile(KEY, Gate(b"peer", open=True))
        await until(lambda: queueing.results)
        assert queueing.results[0].data == b"peer"
        gate.go.set()


async def test_no_slot_is_held_while_waiting_for_another_process(cache_dir):
    """Rule: no queue behind an idle holder."""
    theirs = Gate(b"theirs")
    async with (
        held_elsewhere(cache_dir, theirs),
        acache.Cache(cache_dir, settings=acache.Settings(max_compiles=1)) as cache,
        anyio.create_task_group() as group,
    ):
        waiting = Callers(cache, never)
        waiting.start(group)
        await until(lambda: cache.stats().misses == 1)
        for number in range(3):
            await cache.get_or_compile(acache.key(n=number), Gate(open=True))
        assert not waiting.results
        theirs.go.set()
        await until(lambda: waiting.results)
        assert waiting.results[0].data == b"theirs"


async def test_deadline_compiles_bypass_the_slots(cache_dir):
    """Rule: no unbounded queue: past the deadline a compile needs no slot."""
    gate, mine = Gate(), Gate(open=True)
    for mode in ("on", "off", "readonly"):
        settings = acache.Settings(max_compiles=1, mode=mode)
        async with (
            acache.Cache(cache_dir / mode, settings=settings) as cache,
            anyio.create_task_group() as group,
        ):
            busy = Callers(cache, gate, acache.key(n=1))
            busy.start(group, on_abandon="stop")
            await until(lambda: gate.running == 1)
            assert (await cache.get_or_compile(KEY, mine, max_wait=0.02)).data == b"artifact"
            assert cache.stats().deadline_compiles == 1
            busy.scopes[0].cancel()
            await until(lambda: gate.running == 0)
    assert mine.calls == 3


async def test_a_caller_that_leaves_the_queue_gives_its_place_up(cache_dir):
    """Rule: every claim is given back, granted or not."""
    gate = Gate()
    async with (
        acache.Cache(cache_dir, settings=acache.Settings(max_compiles=1)) as cache,
        anyio.create_task_group() as group,
    ):
        Callers(cache, gate, acache.key(n=1)).start(group)
        await gate.entered.wait()
        leaving = Callers(cache, never, acache.key(n=2))
        leaving.start(group, on_abandon="stop")
        await until(lambda: cache.stats().misses == 2)
        leaving.scopes[0].cancel()
        await until(lambda: flights(cache).find(acache.key(n=2)) is None)
        gate.go.set()
        assert (await cache.get_or_compile(KEY, Gate(open=True))).data == b"artifact"


# --- cancellation everywhere


class HaltingFileSystem(OsFileSystem):
    """The real one, but its n-th operation waits until it may go on: a place to cancel at."""

    def __init__(self, halt_at: int) -> None:
        self.count = 0
        self.reached = threading.Event()
        self.resume = threading.Event()
        self._halt_at = halt_at
        self._lock = threading.Lock()
        for name in OPERATIONS:
            setattr(self, name, self._wrap(name, getattr(super(), name)))

    def _wrap(self, name, operation):
        def perform(*arguments):
            with self._lock:
                number, self.count = self.count, self.count + 1
            if number == self._halt_at:
                self.reached.set()
                self.resume.wait(HANG)
            return operation(*arguments)

        return perform


def last_operation():
    """More than a cold miss with its publication takes; the tests stop earlier, when nothing is reached."""
    return 100


async def _one_of_three(fs, cache, group, callers):
    callers.start(group, 3, on_abandon="stop")
    await until(lambda: fs.reached.is_set() or len(callers.results) == 3)
    if len(callers.results) < 3:
        callers.scopes[0].cancel()
        await until(lambda: (flight := flights(cache).find(KEY)) is None or flight.callers == 2)
    fs.resume.set()
    await until(lambda: callers.results.keys() >= {1, 2})
    assert {getattr(result, "data", result) for result in callers.results.values()} == {b"artifact"}


async def _all_three(fs, cache, group, callers):
    callers.start(group, 3, on_abandon="stop")
    await until(lambda: fs.reached.is_set() or len(callers.results) == 3)
    for scope in callers.scopes:
        scope.cancel()
    newcomer = Callers(cache, Gate(open=True))
    newcomer.start(group)
    await anyio.lowlevel.checkpoint()
    fs.resume.set()
    await until(lambda: newcomer.results)
    assert newcomer.results[0].data == b"artifact"


async def _closing(fs, cache, group, callers):
    callers.start(group, 3)
    await until(lambda: fs.reached.is_set() or len(callers.results) == 3)

    async def resume():
        await until(lambda: cache._live is None)
        fs.resume.set()

    group.start_soon(resume)
    await cache.__aexit__(None, None, None)
    await until(lambda: len(callers.results) == 3)
    kinds = {type(result) for result in callers.results.values()}
    assert kinds <= {acache.Artifact, acache.CacheClosedError}


@pytest.mark.parametrize("scenario", [_one_of_three, _all_three, _closing])
async def test_cancellation_at_every_file_operation(tmp_path, scenario):
    """Wherever a flight is cancelled: no hang, no lost caller, no lease left, nothing half-written."""
    for number in range(last_operation()):
        directory = tmp_path / str(number)
        fs, gate = HaltingFileSystem(number), Gate(open=True)
        with anyio.fail_after(HANG):
            async with anyio.create_task_group() as group:
                cache = cache_on(fs, directory)
                await cache.__aenter__()
                try:
                    await scenario(fs, cache, group, Callers(cache, gate))
                finally:
                    fs.resume.set()
                    await cache.__aexit__(None, None, None)
        assert leftovers(directory) == [], number
        async with acache.Cache(directory) as later:
            assert (await later.get_or_compile(KEY, Gate(open=True))).data == b"artifact"
        if not fs.reached.is_set():
            break
    else:
        raise AssertionError("a cold miss takes more operations than this test knows of")
    assert number > 15


async def test_nothing_is_left_to_the_garbage_collector(cache_dir, anyio_backend):
    """No task, no un-awaited coroutine, no exception that nobody retrieves outlives the cache."""
    complaints = []
    if is_asyncio(anyio_backend):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        before = asyncio.all_tasks()
    gate = Gate(ValueError("mine"))
    async with anyio.create_task_group() as group, acache.Cache(cache_dir) as cache:
        failing = Callers(cache, gate)
        failing.start(group, 3)
        await failing.joined(3)
        failing.scopes[0].cancel()
        gate.go.set()
        await until(lambda: len(failing.results) == 2)
        Callers(cache, Gate(), acache.key(n=1)).start(group, 2)
        await until(lambda: len(flights(cache)) == 1)
    failing.results.clear()
    gc.collect()
    await anyio.lowlevel.checkpoint()
    assert complaints == []
    if is_asyncio(anyio_backend):
        assert asyncio.all_tasks() == before
