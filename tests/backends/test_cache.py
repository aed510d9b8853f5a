"""The public calls of a Cache on three loops: what each returns, counts, tells, refuses and leaves behind."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pickle
import sys
from pathlib import Path

import anyio
import pytest

import acache
from acache import events
from acache.compilers import Command
from tests.backends.worlds import KEY, Callers, Gate, environment, leftovers, never, only, until

COPY = Command(["cp", "in", "out"], inputs=["in"], outputs=["out"])
REFUSED = acache.CompileFailure("diagnostic", "k.x:1:2: error: no", exit_status=1, deterministic=True)
STARVED = acache.CompileFailure("memory", "out of memory", exit_status=1)
HERE = Path(__file__).parent


def settings(**values):
    return acache.Settings(**values)


# --- hits, misses, origins -------------------------------------------------------------------------------


async def test_a_miss_is_compiled_then_served_from_memory_then_from_disk(cache_dir):
    gate = Gate(open=True)
    async with acache.Cache(cache_dir) as cache:
        first = await cache.get_or_compile(KEY, gate, label="softmax")
        second = await cache.get_or_compile(KEY, never)
    async with acache.Cache(cache_dir) as later:
        third = await later.get_or_compile(KEY, never)
        fourth = await later.get(KEY)
    assert gate.calls == 1
    assert first == second == third == fourth
    assert first.data == b"artifact"
    origins = [each.origin for each in (first, second, third, fourth)]
    assert origins == ["compiled", "memory", "disk", "memory"]
    assert first._identity == second._identity == third._identity is not None
    assert leftovers(cache_dir) == []


async def test_parts_and_metadata_come_back_as_they_were(cache_dir):
    parts = {"cubin": b"\x7fELF" * 3000, "ptx": b"", "log": b"x"}
    made = acache.Artifact(parts, {"regs": 40, "n": {"a": [1]}})
    async with acache.Cache(cache_dir) as cache:
        await cache.get_or_compile(KEY, Gate(made, open=True))
    async with acache.Cache(cache_dir) as cache:
        found = await cache.get(KEY)
    assert found == made
    assert list(found.parts) == ["cubin", "ptx", "log"]
    assert bytes(found.view("ptx")) == b""
    assert found.metadata["n"] == {"a": [1]}


async def test_bytes_like_results_are_artifacts(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        for number, result in enumerate([b"abc", bytearray(b"abc"), memoryview(b"abc")]):
            artifact = await cache.get_or_compile(acache.key(n=number), Gate(result, open=True))
            assert artifact.data == b"abc"


async def test_get_finds_what_is_there_and_never_compiles(cache_dir):
    seen = []
    async with acache.Cache(cache_dir, on_event=seen.append) as cache:
        assert await cache.get(KEY) is None
        assert cache.get_nowait(KEY) is None
        await cache.put(KEY, b"made elsewhere", label="softmax")
    async with acache.Cache(cache_dir) as cache:
        assert cache.get_nowait(KEY) is None  # memory only
        found = await cache.get(KEY)
        assert (found.data, found.origin) == (b"made elsewhere", acache.Origin.DISK)
        assert cache.get_nowait(KEY).origin is acache.Origin.MEMORY
        stats = cache.stats()
    assert (stats.disk_hits, stats.memory_hits, stats.misses, stats.compiles) == (1, 1, 0, 0)
    assert [type(event) for event in seen] == [events.Miss, events.Published]


async def test_reading_a_missing_directory_does_not_make_it(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        assert await cache.get(KEY) is None
        assert (await cache.status(KEY)).state == "absent"
        assert await cache.entries() == []
        assert await cache.clear() == 0
        assert await cache.delete(KEY) is False
    assert not cache_dir.exists()


async def test_put_replaces_and_clears_a_remembered_failure(cache_dir):
    async with acache.Cache(cache_dir, settings=settings(memory_bytes=0)) as cache:
        with pytest.raises(acache.CompileError):
            await cache.get_or_compile(KEY, Gate(acache.CompileError(REFUSED), open=True))
        assert only(cache_dir, ".err")
        await cache.put(KEY, acache.Artifact.of(b"one"))
        assert not list(cache_dir.rglob("*.err"))
        await cache.put(KEY, b"two")
        assert (await cache.get_or_compile(KEY, never)).data == b"two"


async def test_put_while_a_compile_is_under_way_answers_its_callers(cache_dir):
    gate = Gate(b"compiled")
    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, gate)
        callers.start(group, 2)
        await gate.entered.wait()
        await cache.put(KEY, b"put")
        await until(lambda: len(callers.results) == 2)
        assert [artifact.data for artifact in callers.results.values()] == [b"put", b"put"]
        assert gate.cancelled == 1
    assert leftovers(cache_dir) == []


async def test_delete_says_whether_there_was_an_artifact(cache_dir):
    gate = Gate(open=True)
    async with acache.Cache(cache_dir) as cache:
        assert await cache.delete(KEY) is False
        await cache.get_or_compile(KEY, gate)
        assert await cache.delete(KEY) is True
        assert await cache.delete(KEY) is False
        assert await cache.get(KEY) is None
        await cache.get_or_compile(KEY, gate)
    assert gate.calls == 2


async def test_status_tells_absent_compiling_and_present(cache_dir):
    gate = Gate()
    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        assert await cache.status(KEY) == acache.Status("absent")
        Callers(cache, gate).start(group, label="softmax")
        await gate.entered.wait()
        status = await cache.status(KEY)
        assert (status.state, status.pid, status.label) == ("compiling", os.getpid(), "softmax")
        assert status.verdict in ("alive", "unknown")  # unknown before its first beat
        gate.go.set()
        await until(lambda: cache.get_nowait(KEY))
        assert await cache.status(KEY) == acache.Status("present")


async def test_entries_describe_what_is_there(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        named = acache.key(kernel="softmax", n=3)
        await cache.get_or_compile(
            named, Gate(acache.Artifact({"a": b"12", "b": b"345"}, {"regs": 4}), open=True), label="softmax"
        )
        await cache.put(KEY, b"x")
        entries = {entry.key: entry for entry in await cache.entries()}
    assert set(entries) == {named, KEY}
    entry = entries[named]
    assert (entry.label, entry.namespace, entry.metadata) == ("softmax", None, {"regs": 4})
    assert entry.parts == {"a": 2, "b": 3}
    sizes = {path.stat().st_size for path in cache_dir.rglob("*.art")}
    assert {entry.size for entry in entries.values()} == sizes
    assert entry.key.fields == named.fields


async def test_clear_removes_entries_failures_and_memory(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        for number in range(5):
            await cache.put(acache.key(n=number), b"x")
        with pytest.raises(acache.CompileError):
            await cache.get_or_compile(KEY, Gate(acache.CompileError(REFUSED), open=True))
        assert await cache.clear() == 5
        assert await cache.entries() == []
        assert cache.get_nowait(acache.key(n=0)) is None
        await cache.get_or_compile(KEY, Gate(open=True))


async def test_write_to_leaves_a_whole_file_and_no_temporary(cache_dir, tmp_path):
    async with acache.Cache(cache_dir) as cache:
        artifact = await cache.get_or_compile(KEY, Gate(acache.Artifact({"a": b"1", "b": b"2"}), open=True))
    target = tmp_path / "out" / "kernel.so"
    target.parent.mkdir()
    await artifact.write_to(target)
    await artifact.write_to(target, "b")
    assert target.read_bytes() == b"2"
    assert os.listdir(target.parent) == ["kernel.so"]
    with pytest.raises(OSError, match="No such file"):
        await artifact.write_to(tmp_path / "missing" / "kernel.so")


# --- requests ----------------------------------------------------------------------------------------------


async def test_a_request_is_keyed_compiled_and_reused(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        request = COPY.request("source text", label="copy")
        key = await cache.key_of(request)
        made = await cache.compile(request)
        again = await cache.compile(COPY.request("source text"))  # a label is never key material
        assert (made.parts, made.origin) == ({"out": b"source text"}, acache.Origin.COMPILED)
        assert again.origin is acache.Origin.MEMORY
        assert await cache.key_of(COPY.request("other text")) != key
        (entry,) = await cache.entries()
    assert (entry.key, entry.label) == (key, "copy")
    assert leftovers(cache_dir) == []


async def test_a_missing_compiler_names_itself(cache_dir):
    missing = Command(["no-such-compiler", "in"], inputs=["in"], outputs=["out"])
    async with acache.Cache(cache_dir) as cache:
        for call in (cache.key_of, cache.compile):
            with pytest.raises(acache.CompilerNotFoundError, match="no-such-compiler"):
                await call(missing.request("source"))


# --- namespaces --------------------------------------------------------------------------------------------


async def test_namespaces_are_separate_worlds_in_one_directory(cache_dir):
    async with (
        acache.Cache(cache_dir) as plain,
        acache.Cache(cache_dir, namespace="one") as one,
        acache.Cache(cache_dir, namespace="two") as two,
    ):
        await plain.put(KEY, b"plain")
        await one.put(KEY, b"one")
        assert await two.get(KEY) is None
        await two.get_or_compile(KEY, Gate(b"two", open=True))
        assert len(list(cache_dir.rglob("*.art"))) == 3
        assert [entry.namespace for entry in await one.entries()] == ["one"]
        assert await one.clear() == 1
        assert await one.get(KEY) is None
        assert await one.delete(KEY) is False
    async with acache.Cache(cache_dir) as plain, acache.Cache(cache_dir, namespace="two") as two:
        assert (await plain.get(KEY)).data == b"plain"
        assert (await two.get(KEY)).data == b"two"


@pytest.mark.parametrize("namespace", ["", 7, b"bytes"])
def test_a_namespace_is_a_non_empty_str(namespace, cache_dir):
    with pytest.raises(ValueError, match="namespace must be a non-empty str or None"):
        acache.Cache(cache_dir, namespace=namespace)


def test_settings_are_settings(cache_dir):
    with pytest.raises(TypeError, match=r"settings must be acache\.Settings, not dict"):
        acache.Cache(cache_dir, settings={"mode": "off"})


# --- modes -------------------------------------------------------------------------------------------------


async def test_mode_off_just_compiles(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        await cache.put(KEY, b"old")
    before = sorted((path, path.stat().st_mtime_ns) for path in cache_dir.rglob("*"))
    gate = Gate(b"new", open=True)
    async with acache.Cache(cache_dir, settings=settings(mode="off")) as cache:
        assert (await cache.get_or_compile(KEY, gate)).data == b"new"
        assert (await cache.get_or_compile(KEY, gate)).origin is acache.Origin.COMPILED
        assert await cache.get(KEY) is None
        assert cache.get_nowait(KEY) is None
        await cache.put(KEY, b"put")
        assert cache.get_nowait(KEY) is None
        assert await cache.delete(KEY) is False
        assert await cache.clear() == 0
        assert (cache.stats().compiles, cache.stats().published) == (2, 0)
    assert gate.calls == 2
    assert sorted((path, path.stat().st_mtime_ns) for path in cache_dir.rglob("*")) == before


async def test_mode_off_still_joins_callers_in_this_process(cache_dir):
    gate = Gate()
    async with (
        acache.Cache(cache_dir, settings=settings(mode="off")) as cache,
        anyio.create_task_group() as group,
    ):
        callers = Callers(cache, gate)
        callers.start(group, 4)
        await callers.joined(4)
        gate.go.set()
    assert gate.calls == 1
    assert not cache_dir.exists()


async def test_mode_readonly_reads_and_writes_nothing(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        await cache.put(KEY, b"old")
        with pytest.raises(acache.CompileError):
            await cache.get_or_compile(acache.key(n=2), Gate(acache.CompileError(REFUSED), open=True))
    os.utime(only(cache_dir, ".art"), (1, 1))
    before = sorted((path, path.stat().st_mtime_ns) for path in cache_dir.rglob("*"))
    async with acache.Cache(cache_dir, settings=settings(mode="readonly")) as cache:
        assert (await cache.get_or_compile(KEY, never)).data == b"old"
        other = acache.key(n=1)
        assert (await cache.get_or_compile(other, Gate(b"mine", open=True))).data == b"mine"
        assert (await cache.get_or_compile(other, never)).origin is acache.Origin.MEMORY
        await cache.put(KEY, b"put")
        assert cache.get_nowait(KEY).data == b"put"
        assert await cache.delete(KEY) is True  # from memory
        assert (await cache.get(KEY)).data == b"old"
        assert await cache.clear() == 0
        with pytest.raises(acache.CompileError):
            await cache.get_or_compile(acache.key(n=3), Gate(acache.CompileError(REFUSED), open=True))
    assert sorted((path, path.stat().st_mtime_ns) for path in cache_dir.rglob("*")) == before


async def test_mode_refresh_compiles_once_and_replaces(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        await cache.put(KEY, b"old")
    gate = Gate(b"new")
    async with (
        acache.Cache(cache_dir, settings=settings(mode="refresh")) as cache,
        anyio.create_task_group() as group,
    ):
        callers = Callers(cache, gate)
        callers.start(group, 3)
        await callers.joined(3)
        gate.go.set()
        await until(lambda: len(callers.results) == 3)
        assert {artifact.data for artifact in callers.results.values()} == {b"new"}
    assert gate.calls == 1
    async with acache.Cache(cache_dir) as cache:
        assert (await cache.get_or_compile(KEY, never)).data == b"new"


async def test_refresh_clears_a_remembered_failure(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(acache.CompileError):
            await cache.get_or_compile(KEY, Gate(acache.CompileError(REFUSED), open=True))
    async with acache.Cache(cache_dir, settings=settings(mode="refresh")) as cache:
        assert (await cache.get_or_compile(KEY, Gate(b"new", open=True))).data == b"new"
    async with acache.Cache(cache_dir, settings=settings(memory_bytes=0)) as cache:
        assert (await cache.get_or_compile(KEY, never)).data == b"new"


async def test_the_operator_switches_a_program_with_partial_settings(cache_dir, monkeypatch):
    monkeypatch.setenv("ACACHE_MODE", "off")
    monkeypatch.setenv("ACACHE_MAX_WAIT", "7")
    gate = Gate(open=True)
    cache = acache.Cache(cache_dir, settings=settings(max_wait=3))
    async with cache:
        await cache.get_or_compile(KEY, gate)
        await cache.get_or_compile(KEY, gate)
        assert (cache._live.settings.mode, cache._live.settings.max_wait) == ("off", 3)
    assert gate.calls == 2
    assert not cache_dir.exists()
    async with acache.Cache(cache_dir, settings=settings(mode="on")) as explicit:  # what is passed wins
        await explicit.get_or_compile(KEY, gate)
    assert only(cache_dir, ".art")


async def test_a_bad_variable_is_told_on_entering_and_the_directory_comes_from_the_environment(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("ACACHE_DIR", str(tmp_path / "from-env"))
    async with acache.Cache() as cache:
        await cache.put(KEY, b"x")
    assert only(tmp_path / "from-env", ".art")
    monkeypatch.setenv("ACACHE_MODE", "sometimes")
    with pytest.raises(ValueError, match="ACACHE_MODE"):
        async with acache.Cache():
            pass


# --- trust -------------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize(
    ("trust", "gid", "believed"),
    [
        ("user", 0, False),
        ("user", 12345, False),
        ("group", 12345, False),
        ("group", 0, True),
        ("any", 12345, True),
    ],
)
async def test_entries_of_another_owner_are_believed_as_trust_says(cache_dir, trust, gid, believed):
    async with acache.Cache(cache_dir) as cache:
        await cache.put(KEY, b"theirs")
    entry = only(cache_dir, ".art")
    os.chown(entry, 12345, gid)
    seen = []
    gate = Gate(b"mine", open=True)
    async with acache.Cache(cache_dir, settings=settings(trust=trust), on_event=seen.append) as cache:
        if believed:
            assert (await cache.get(KEY)).data == b"theirs"
            assert cache.stats().untrusted == 0
            return
        assert await cache.get(KEY) is None
        assert cache.stats().untrusted == 1
        assert (await cache.get_or_compile(KEY, gate)).data == b"mine"
        assert cache.stats().untrusted == 2
        told = [event for event in seen if isinstance(event, events.UntrustedEntry)]
        assert [(event.owner, event.path) for event in told] == [(12345, str(entry))] * 2
    assert entry.stat().st_uid == os.geteuid()
    async with acache.Cache(cache_dir, settings=settings(trust=trust)) as cache:
        assert (await cache.get_or_compile(KEY, never)).data == b"mine"


@pytest.mark.root
async def test_readonly_writes_nothing_to_find_out_whom_to_trust(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        await cache.put(KEY, b"theirs")
    os.chown(only(cache_dir, ".art"), 12345, 12345)
    before = sorted((path, path.stat().st_mtime_ns) for path in cache_dir.rglob("*"))
    async with acache.Cache(cache_dir, settings=settings(mode="readonly")) as cache:
        assert await cache.get(KEY) is None
        assert (await cache.get_or_compile(KEY, Gate(b"mine", open=True))).data == b"mine"
        assert cache.stats().untrusted == 2
    assert sorted((path, path.stat().st_mtime_ns) for path in cache_dir.rglob("*")) == before


@pytest.mark.root
async def test_a_failure_of_another_owner_is_not_believed(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(acache.CompileError):
            await cache.get_or_compile(KEY, Gate(acache.CompileError(REFUSED), open=True))
    os.chown(only(cache_dir, ".err"), 12345, 12345)
    async with acache.Cache(cache_dir) as cache:
        assert (await cache.get_or_compile(KEY, Gate(open=True))).data == b"artifact"


# --- what is kept ------------------------------------------------------------------------------------------


async def test_cheap_compiles_leave_a_mark_and_no_entry(cache_dir):
    gate = Gate(open=True)
    seen = []
    quick = settings(min_compile_seconds=60, memory_bytes=0)
    async with acache.Cache(cache_dir, settings=quick, on_event=seen.append) as cache:
        await cache.get_or_compile(KEY, gate)
        await cache.get_or_compile(KEY, gate)
        assert cache.stats().published == 0
        assert (await cache.get(KEY)) is None
        assert await cache.entries() == []
    assert gate.calls == 2
    started = [event.reason for event in seen if isinstance(event, events.CompileStarted)]
    assert started == ["missing", "cheap"]
    async with acache.Cache(cache_dir) as lower:  # persists over the mark
        await lower.get_or_compile(KEY, gate)
        assert (gate.calls, lower.stats().published) == (3, 1)
    async with acache.Cache(cache_dir, settings=quick) as cache:
        assert (await cache.get_or_compile(KEY, never)).origin is acache.Origin.DISK
    assert leftovers(cache_dir) == []


async def test_what_is_too_large_is_not_kept_and_nobody_queues_for_it(cache_dir):
    gate = Gate(bytes(5000), open=True)
    seen = []
    small = settings(max_entry_bytes=4096, memory_bytes=0)
    async with acache.Cache(cache_dir, settings=small, on_event=seen.append) as cache:
        assert (await cache.get_or_compile(KEY, gate)).data == bytes(5000)
        told = [event for event in seen if isinstance(event, events.Oversized)]
        assert [(event.size, event.limit) for event in told] == [(5000, 4096)]
        with pytest.raises(ValueError, match="5000 bytes; max_entry_bytes allows 4096"):
            await cache.put(KEY, bytes(5000))
        assert (cache.stats().published, cache.stats().store_errors) == (0, 0)
    slow = Gate(bytes(5000))
    async with (  # as two processes would: both compile at once
        acache.Cache(cache_dir, settings=small) as one,
        acache.Cache(cache_dir, settings=small) as two,
        anyio.create_task_group() as group,
    ):
        Callers(one, slow).start(group)
        Callers(two, slow).start(group)
        await until(lambda: slow.running == 2)
        slow.go.set()
    assert leftovers(cache_dir) == []


async def test_memory_is_bounded_and_may_be_off(cache_dir):
    async with acache.Cache(cache_dir, settings=settings(memory_bytes=1000)) as cache:
        for number in range(3):
            await cache.put(acache.key(n=number), bytes(400))
        assert [cache.get_nowait(acache.key(n=n)) is None for n in range(3)] == [True, False, False]
        await cache.put(KEY, bytes(1001))
        assert cache.get_nowait(KEY) is None
        assert len((await cache.get(KEY)).data) == 1001


# --- failures ----------------------------------------------------------------------------------------------


async def test_a_deterministic_failure_is_remembered_until_put_or_delete(cache_dir):
    gate = Gate(acache.CompileError(REFUSED), open=True)
    seen = []
    async with acache.Cache(cache_dir, on_event=seen.append) as cache:
        for _ in range(3):
            with pytest.raises(acache.CompileError) as caught:
                await cache.get_or_compile(KEY, gate)
            assert dataclasses.replace(caught.value.failure, seconds=0.0) == REFUSED
        assert gate.calls == 1
        assert cache.stats().compile_failures == 1
        assert len([event for event in seen if isinstance(event, events.FailureShared)]) == 2
        assert await cache.delete(KEY) is False
        with pytest.raises(acache.CompileError):
            await cache.get_or_compile(KEY, gate)
        assert gate.calls == 2
    async with acache.Cache(cache_dir, settings=settings(failure_ttl=0)) as cache:  # only within one wait
        with pytest.raises(acache.CompileError):
            await cache.get_or_compile(KEY, gate)
    assert gate.calls == 3
    assert leftovers(cache_dir) == []


async def test_a_failure_of_circumstances_is_not_remembered(cache_dir):
    gate = Gate(acache.CompileError(STARVED), open=True)
    async with acache.Cache(cache_dir) as cache:
        for _ in range(2):
            with pytest.raises(acache.CompileError, match="out of memory"):
                await cache.get_or_compile(KEY, gate)
    assert gate.calls == 2
    assert leftovers(cache_dir) == []


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("diagnostic", acache.CompileError),
        ("signal", acache.CompilerCrashedError),
        ("spawn", acache.CompilerCrashedError),
        ("missing", acache.CompilerNotFoundError),
        ("timeout", acache.CompileTimeoutError),
    ],
)
async def test_a_failure_is_raised_as_the_error_of_its_reason(cache_dir, reason, kind):
    failure = acache.CompileFailure(reason, "its own words")
    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(kind, match="its own words") as caught:
            await cache.get_or_compile(KEY, Gate(acache.CompileError(failure), open=True))
    assert type(caught.value) is kind
    assert pickle.loads(pickle.dumps(caught.value)).failure == caught.value.failure


async def test_a_compile_that_takes_too_long_is_stopped(cache_dir):
    gate = Gate()
    async with acache.Cache(cache_dir, settings=settings(compile_timeout=0.05)) as cache:
        with pytest.raises(acache.CompileTimeoutError, match=r"compile_timeout allows no more"):
            await cache.get_or_compile(KEY, gate)
        assert gate.cancelled == 1
        with pytest.raises(TimeoutError):
            await cache.get_or_compile(KEY, gate)  # a time-out is no property of the input
    assert gate.calls == 2
    assert leftovers(cache_dir) == []


# --- events and counters -----------------------------------------------------------------------------------


async def test_events_and_counters_agree(cache_dir):
    seen = []
    gate = Gate()
    async with acache.Cache(cache_dir, on_event=seen.append) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, gate)
        callers.start(group, 3, label="softmax")
        await callers.joined(3)
        gate.go.set()
        await until(lambda: len(callers.results) == 3)
        await cache.get(KEY)
        await cache.get(acache.key(n=1))
        with pytest.raises(ValueError, match="mine"):
            await cache.get_or_compile(acache.key(n=2), Gate(ValueError("mine"), open=True))
        with pytest.raises(acache.CompileError):
            await cache.get_or_compile(acache.key(n=3), Gate(acache.CompileError(REFUSED), open=True))
        await cache.put(acache.key(n=4), b"x")
        stats = cache.stats()
    told = [type(event) for event in seen]
    assert stats.misses == told.count(events.Miss) == 4
    assert stats.compiles == told.count(events.CompileStarted) == told.count(events.CompileFinished) == 3
    failed = [event for event in seen if isinstance(event, events.CompileFinished) and not event.ok]
    assert stats.compile_failures == len(failed) == 2
    assert stats.coalesced == told.count(events.Coalesced) == 2
    assert [event.callers for event in seen if isinstance(event, events.Coalesced)] == [2, 3]
    assert stats.published == told.count(events.Published) == 2
    assert stats.bytes_written == sum(e.size for e in seen if isinstance(e, events.Published))
    assert stats.bytes_written == sum(path.stat().st_size for path in cache_dir.rglob("*.art"))
    assert stats.memory_hits == told.count(events.Hit) == 1
    assert stats.store_errors == told.count(events.StoreFault) == 0
    finished = [event.seconds for event in seen if isinstance(event, events.CompileFinished)]
    assert stats.compile_seconds == pytest.approx(sum(finished))
    assert {event.label for event in seen if isinstance(event, events.Coalesced)} == {"softmax"}
    assert all(pickle.loads(pickle.dumps(event)) == event for event in seen)
    assert cache.stats().memory_hits == 1  # also after closing


async def test_every_compile_that_starts_is_told_to_have_finished(cache_dir):
    """Stopped ones too: by cancellation, by closing, by somebody else's artifact."""
    seen = []
    gate = Gate()
    async with (
        anyio.create_task_group() as group,
        acache.Cache(cache_dir, settings=settings(max_compiles=3), on_event=seen.append) as cache,
    ):
        stopped = Callers(cache, gate, acache.key(n=1))
        stopped.start(group, on_abandon="stop")
        superseded = Callers(cache, gate, acache.key(n=2))
        superseded.start(group)
        closed = Callers(cache, gate, acache.key(n=3))
        closed.start(group)
        await until(lambda: gate.running == 3)
        stopped.scopes[0].cancel()
        await cache.put(acache.key(n=2), b"put")
        await until(lambda: gate.running == 1)
    ended = {event.key: event for event in seen if isinstance(event, events.CompileFinished)}
    assert len(ended) == len([event for event in seen if isinstance(event, events.CompileFinished)]) == 3
    assert {(event.ok, event.failure) for event in ended.values()} == {(False, None)}
    assert cache.stats().compile_failures == 0
    abandoned = [(event.key, event.action) for event in seen if isinstance(event, events.Abandoned)]
    assert abandoned == [(acache.key(n=1), "stop")]
    assert isinstance(closed.results[0], acache.CacheClosedError)


async def test_on_event_that_raises_is_logged_and_does_no_harm(cache_dir, caplog):
    def on_event(event):
        raise RuntimeError("from the user's own code")

    with caplog.at_level(logging.ERROR, logger="acache"):
        async with acache.Cache(cache_dir, on_event=on_event) as cache:
            assert (await cache.get_or_compile(KEY, Gate(open=True))).data == b"artifact"
            assert (await cache.get(KEY)).data == b"artifact"
            assert await cache.delete(KEY) is True
    assert "on_event raised on Miss" in caplog.text
    assert "from the user's own code" in caplog.text


async def test_events_come_on_the_loop_s_thread_and_in_order(cache_dir):
    import threading

    seen = []
    async with acache.Cache(
        cache_dir, on_event=lambda event: seen.append((type(event), threading.get_ident()))
    ) as cache:
        await cache.get_or_compile(KEY, Gate(open=True))
        await cache.get_or_compile(KEY, never)
    assert {thread for _, thread in seen} == {threading.get_ident()}
    kinds = [kind for kind, _ in seen]
    assert kinds == [
        events.Miss,
        events.CompileStarted,
        events.CompileFinished,
        events.Published,
        events.Hit,
    ]


# --- refusals ----------------------------------------------------------------------------------------------

CALLS = {
    "get_or_compile": lambda cache: cache.get_or_compile(KEY, Gate(open=True)),
    "compile": lambda cache: cache.compile(COPY.request("x")),
    "key_of": lambda cache: cache.key_of(COPY.request("x")),
    "get": lambda cache: cache.get(KEY),
    "put": lambda cache: cache.put(KEY, b"x"),
    "delete": lambda cache: cache.delete(KEY),
    "status": lambda cache: cache.status(KEY),
    "entries": lambda cache: cache.entries(),
    "clear": lambda cache: cache.clear(),
}


async def test_a_cache_that_is_not_open_says_what_to_do(cache_dir):
    cache = acache.Cache(cache_dir)
    for call in CALLS.values():
        with pytest.raises(acache.CacheClosedError, match=r"not entered; use it inside: async with"):
            await call(cache)
    with pytest.raises(acache.CacheClosedError, match="not entered"):
        cache.get_nowait(KEY)
    assert "not entered" in repr(cache)
    async with cache:
        assert "(open)" in repr(cache)
    for call in CALLS.values():
        with pytest.raises(acache.CacheClosedError, match=r"closed; make a new one"):
            await call(cache)
    with pytest.raises(RuntimeError, match="closed"):
        cache.get_nowait(KEY)
    assert cache.stats().compiles == 0
    assert "(closed)" in repr(cache)


async def test_a_cache_is_entered_once(cache_dir):
    cache = acache.Cache(cache_dir)
    async with cache:
        with pytest.raises(acache.CacheClosedError, match="entered once; make a new one"):
            await cache.__aenter__()
        assert await cache.get(KEY) is None
    with pytest.raises(acache.CacheClosedError, match="entered once"):
        async with cache:
            pass


async def test_a_cache_is_entered_by_one_of_two_tasks(cache_dir):
    cache = acache.Cache(cache_dir)
    refused, entered = [], []

    async def enter():
        try:
            async with cache:
                entered.append(1)
                await until(lambda: refused)
        except acache.CacheClosedError as error:
            refused.append(str(error))

    async with anyio.create_task_group() as group:
        group.start_soon(enter)
        group.start_soon(enter)
    assert len(entered) == len(refused) == 1
    assert "entered once" in refused[0]


async def test_a_cache_belongs_to_one_loop(cache_dir, anyio_backend):
    backend, options = anyio_backend
    async with acache.Cache(cache_dir) as cache:

        async def calls():
            for call in CALLS.values():
                with pytest.raises(acache.CacheClosedError, match="another event loop; make one Cache per"):
                    await call(cache)
            return "refused"

        def elsewhere():
            return anyio.run(calls, backend=backend, backend_options=options)

        assert await anyio.to_thread.run_sync(elsewhere) == "refused"


async def test_a_cache_does_not_survive_a_fork(cache_dir, anyio_backend):
    done = await anyio.run_process(
        [sys.executable, str(HERE / "forked.py"), json.dumps(anyio_backend), str(cache_dir)],
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert set(report) == {*CALLS, "get_nowait"} - {"compile"}
    for sentence in report.values():
        assert "made before fork(); make one in the child" in sentence


BAD_ARGUMENTS = [
    ({"key": "softmax"}, TypeError, r"key must be an acache\.Key, made by acache\.key.*, not str"),
    ({"key": b"x" * 32}, TypeError, "not bytes"),
    ({"compile": b"bytes"}, TypeError, r"async function without arguments; wrap .* functools\.partial"),
    ({"label": 7}, TypeError, "label must be a str or None, not int"),
    ({"label": b"x"}, TypeError, "label must be a str or None, not bytes"),
    ({"max_wait": -1}, ValueError, "max_wait must be seconds"),
    ({"max_wait": float("nan")}, ValueError, "max_wait must be seconds"),
    ({"max_wait": float("inf")}, ValueError, "max_wait must be seconds"),
    ({"max_wait": "5"}, ValueError, "max_wait must be seconds"),
    ({"max_wait": True}, ValueError, "max_wait must be seconds"),
    ({"on_abandon": "leave"}, ValueError, "on_abandon must be 'finish' or 'stop', not 'leave'"),
]


async def test_arguments_are_checked_with_a_sentence(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        for change, kind, sentence in BAD_ARGUMENTS:
            arguments = {"key": KEY, "compile": never, **change}
            with pytest.raises(kind, match=sentence):
                await cache.get_or_compile(arguments.pop("key"), arguments.pop("compile"), **arguments)
        assert cache.stats() == acache.Stats()
    assert not cache_dir.exists()


async def test_other_calls_check_their_arguments_too(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        for call in (cache.get, cache.delete, cache.status):
            with pytest.raises(TypeError, match="key must be"):
                await call("softmax")
        with pytest.raises(TypeError, match="key must be"):
            cache.get_nowait("softmax")
        with pytest.raises(TypeError, match="key must be"):
            await cache.put("softmax", b"x")
        with pytest.raises(TypeError, match="bytes-like, not str"):
            await cache.put(KEY, "text")
        with pytest.raises(TypeError, match="label must be a str or None"):
            await cache.put(KEY, b"x", label=7)
        for call in (cache.compile, cache.key_of):
            with pytest.raises(TypeError, match=r"make a Request with a compiler's \.request"):
                await call("source")
        with pytest.raises(ValueError, match="on_abandon"):
            await cache.compile(COPY.request("x"), on_abandon="leave")
        with pytest.raises(ValueError, match="max_wait"):
            await cache.compile(COPY.request("x"), max_wait=-1)
        with pytest.raises(TypeError, match="label must be a str or None"):
            await cache.compile(COPY.request("x", label=7))
    assert not cache_dir.exists()


async def test_what_compile_returns_must_be_bytes_or_an_artifact(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        for result in ("text", None, 7, ["list"]):
            with pytest.raises(TypeError, match=r"compile must return bytes or an Artifact, not"):
                await cache.get_or_compile(KEY, Gate(result, open=True))
        assert await cache.get(KEY) is None
        assert (await cache.get_or_compile(KEY, Gate(open=True))).data == b"artifact"
    assert leftovers(cache_dir) == []


async def test_a_plain_function_is_not_a_compile(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(TypeError, match="compile must be an async function; it returned bytes"):
            await cache.get_or_compile(KEY, lambda: b"x")


# --- checkpoints -------------------------------------------------------------------------------------------

HITS = {
    "memory hit": lambda cache: cache.get_or_compile(acache.key(n="hit"), never),
    "get from memory": lambda cache: cache.get(acache.key(n="hit")),
    **CALLS,  # the last of which clears all
}


@pytest.mark.parametrize("mode", ["on", "off", "readonly", "refresh"])
async def test_every_call_is_a_checkpoint(cache_dir, mode):
    async with acache.Cache(cache_dir) as warm:
        await warm.put(acache.key(n="hit"), b"hit")
    async with acache.Cache(cache_dir, settings=settings(mode=mode)) as cache:
        calls = {**HITS, "write_to": lambda _: acache.Artifact.of(b"x").write_to(cache_dir / "file")}
        if mode in ("off", "refresh"):
            del calls["memory hit"], calls["get from memory"]
        else:
            await cache.get(acache.key(n="hit"))
        for name, call in calls.items():
            with anyio.CancelScope() as scope:
                scope.cancel()
                await call(cache)
            assert scope.cancelled_caught, name
        assert not (cache_dir / "file").exists()
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await anyio.lowlevel.checkpoint()
            for name, call in calls.items():
                before = ticks
                for _ in range(3):
                    await call(cache)
                assert ticks > before, name
            group.cancel_scope.cancel()


async def test_a_cancelled_write_did_not_begin(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        await cache.put(KEY, b"old")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await cache.put(KEY, b"new")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await cache.delete(KEY)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await cache.clear()
    async with acache.Cache(cache_dir) as cache:
        assert (await cache.get(KEY)).data == b"old"
