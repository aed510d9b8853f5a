"""What a closing cache leaves for ``acache stats``: when, what, and that it never costs anybody anything."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import acache
from acache import _host, _ledger, _live
from acache._fs import OsFileSystem, perform
from acache.cli._place import place_of
from acache.compilers import Command
from tests.backends.worlds import (
    HANG,
    KEY,
    OPERATIONS,
    Gate,
    StubbornFileSystem,
    cache_on,
    environment,
    never,
    only,
    until,
)

HERE = Path(__file__).parent
NFS = _host.Mount("/", "nfs4", "server:/export", ("rw",), read_only=False)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Let a slow machine lose no record."""
    monkeypatch.setattr(_live, "RECORD_LIMIT", HANG)


def read(directory):
    layout = place_of(str(directory), acache.Settings()).layout
    return perform(_ledger.read_ledger(layout), OsFileSystem())


def rows(directory):
    return {tag[:2]: row for tag, row in read(directory).tally.rows.items()}


def records(directory):
    folder = Path(directory, "v1", "stats")
    return sorted(os.listdir(folder)) if folder.exists() else []


def backend_name(anyio_backend):
    return "uvloop" if anyio_backend[1].get("use_uvloop") else anyio_backend[0]


async def slow():
    """Compile for a time that any loop's clock can tell from none."""
    await anyio.sleep(0.01)
    return b"artifact"


async def leave(directory, compile=None, **settings):
    async with acache.Cache(directory, settings=acache.Settings(**settings)) as cache:
        return await cache.get_or_compile(KEY, compile or Gate(open=True), label="softmax")


# --- what is in it -----------------------------------------------------------------------------------------


async def test_hits_launches_and_seconds_by_label_and_compiler(cache_dir):
    compiler = Command(["cp", "in", "out"], inputs=["in"], outputs=["out"])
    request = compiler.request("source", label="copy")
    async with acache.Cache(cache_dir) as cache:
        await cache.get_or_compile(KEY, slow, label="softmax")
        for _ in range(3):
            await cache.get_or_compile(KEY, never, label="softmax")
        await cache.compile(request)
        await cache.compile(request)
        took = {info.label: info.compile_seconds for info in await cache.entries()}
        compilers = {info.label: info.compiler for info in await cache.entries()}
    assert compilers == {"softmax": None, "copy": "Command"}
    first = rows(cache_dir)
    assert set(first) == {("softmax", None), ("copy", "Command")}
    softmax, copy = first["softmax", None], first["copy", "Command"]
    assert (softmax["memory_hits"], softmax["misses"], softmax["compiles"]) == (3, 1, 1)
    assert softmax["memory_saved"] == pytest.approx(3 * took["softmax"])
    assert (copy["memory_hits"], copy["misses"], copy["compiles"]) == (1, 1, 1)
    assert copy["compile_seconds"] >= took["copy"] > 0
    assert "disk_hits" not in softmax | copy

    async with acache.Cache(cache_dir) as cache:
        await cache.get(KEY)  # the label and the compiler are those of the entry
        await cache.compile(request)
        await cache.get(await cache.key_of(request))
    second = rows(cache_dir)
    assert (second["softmax", None]["disk_hits"], second["copy", "Command"]["disk_hits"]) == (1, 1)
    assert second["copy", "Command"]["disk_saved"] == took["copy"]
    assert second["copy", "Command"]["memory_hits"] == 2
    assert read(cache_dir).tally.processes == 2


async def test_failures_are_counted(cache_dir):
    compiler = Command(["false"], outputs=["out"])
    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(acache.CompileError):
            await cache.compile(compiler.request("x", label="bad"))
    row = rows(cache_dir)["bad", "Command"]
    assert (row["compiles"], row["compile_failures"]) == (1, 1)


async def test_waiting_for_a_peer_is_counted_with_what_it_saved(cache_dir):
    gate = Gate()
    async with acache.Cache(cache_dir) as holder, anyio.create_task_group() as group:

        async def hold():
            await holder.get_or_compile(KEY, gate, label="softmax")

        async def wait():
            async with acache.Cache(cache_dir, on_event=seen.append) as peer:
                artifact = await peer.get_or_compile(KEY, never, label="softmax")
                assert artifact.origin is acache.Origin.PEER

        seen = []
        group.start_soon(hold)
        await until(gate.entered.is_set)
        group.start_soon(wait)
        await until(lambda: any(isinstance(each, acache.events.Waiting) for each in seen))
        gate.go.set()
    row = rows(cache_dir)["softmax", None]
    assert row["peer_hits"] == 1
    assert row["wait_seconds"] > 0
    assert row["peer_saved"] > 0


async def test_an_artifact_that_was_put_saves_nothing(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        made = await cache.get_or_compile(KEY, Gate(open=True), label="compiled")
        await cache.put(acache.key(n=2), made, label="handed in")
        await cache.get(acache.key(n=2))
    row = rows(cache_dir)["handed in", None]
    assert row == {"memory_hits": 1}


async def test_what_is_counted_of_an_artifact_is_not_pickled(cache_dir):
    made = await leave(cache_dir)
    assert made._about[0] == "softmax"
    assert pickle.loads(pickle.dumps(made))._about == (None, None, 0.0)


async def test_events_name_the_compiler_and_what_a_hit_saved(cache_dir):
    seen = []
    compiler = Command(["cp", "in", "out"], inputs=["in"], outputs=["out"])
    async with acache.Cache(cache_dir, on_event=seen.append) as cache:
        await cache.compile(compiler.request("x"))
        await cache.compile(compiler.request("x"))
    kinds = (
        acache.events.Miss,
        acache.events.CompileStarted,
        acache.events.CompileFinished,
        acache.events.Hit,
    )
    assert {type(each): each.compiler for each in seen if isinstance(each, kinds)} == dict.fromkeys(
        kinds, "Command"
    )
    (hit,) = (each for each in seen if isinstance(each, acache.events.Hit))
    assert hit.saved > 0


# --- when there is none ------------------------------------------------------------------------------------


async def test_nothing_counted_leaves_nothing(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        await cache.put(KEY, b"x")
    assert records(cache_dir) == []


async def test_a_directory_that_nobody_used_stays_untouched(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        assert await cache.get(KEY) is None
    assert not cache_dir.exists()


@pytest.mark.parametrize(
    "settings", [{"mode": "off"}, {"mode": "readonly"}, {"record_stats": False}], ids=str
)
async def test_switches_that_leave_none(cache_dir, settings):
    await leave(cache_dir)
    before = records(cache_dir)
    await leave(cache_dir, **settings)
    assert records(cache_dir) == before
    assert len(before) == 1


async def test_none_on_a_network_mount_unless_asked_for(cache_dir, monkeypatch):
    monkeypatch.setattr(_host, "mount_of", lambda path: NFS)
    await leave(cache_dir)
    assert records(cache_dir) == []
    await leave(cache_dir, record_stats=True)
    assert len(records(cache_dir)) == 1


async def test_the_environment_asks_for_it_too(cache_dir, monkeypatch):
    monkeypatch.setattr(_host, "mount_of", lambda path: NFS)
    monkeypatch.setenv("ACACHE_RECORD_STATS", "yes")
    await leave(cache_dir)
    assert len(records(cache_dir)) == 1


async def test_a_forked_child_leaves_none(cache_dir, anyio_backend):
    code = """
import os, sys
import anyio, acache
async def compile(): return b"x"
async def main():
    async with acache.Cache(sys.argv[1]) as cache:
        await cache.get_or_compile(acache.key(n=1), compile)
        child = os.fork()
        if child == 0:
            leaving = cache.__aexit__(None, None, None)
            try:
                leaving.send(None)
            except StopIteration:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert not os.path.exists(sys.argv[1] + "/v1/stats")
anyio.run(main, backend=sys.argv[2], backend_options={"use_uvloop": True} if sys.argv[3] == "uvloop" else {})
"""
    words = [sys.executable, "-c", code, str(cache_dir), anyio_backend[0], backend_name(anyio_backend)]
    done = await anyio.run_process(words, check=False, env=environment())
    assert done.returncode == 0, done.stderr.decode()
    assert read(cache_dir).tally.processes == 1


# --- what it costs -----------------------------------------------------------------------------------------


async def test_one_file_and_no_locks(cache_dir):
    """Closing is a creation and a rename, whatever was used before: no lease is touched (B9)."""
    await leave(cache_dir)
    calls = []

    class Watched(OsFileSystem):
        def __getattribute__(self, name):
            if name in OPERATIONS:
                calls.append(name)
            return super().__getattribute__(name)

    async with acache.Cache(cache_dir) as cache:
        cache._live.directory.fs = Watched()
        for _ in range(100):
            await cache.get_or_compile(KEY, never)
        await until(lambda: calls)
        calls.clear()
    assert calls == ["exists", "create", "rename", "listdir"]


async def test_a_disk_that_hangs_delays_closing_no_longer_than_its_limit(cache_dir, monkeypatch):
    monkeypatch.setattr(_live, "RECORD_LIMIT", 0.05)
    await leave(cache_dir, record_stats=False)
    fs = StubbornFileSystem()
    cache = cache_on(fs, cache_dir)
    with anyio.fail_after(HANG):
        await cache.__aenter__()
        await cache.get_or_compile(KEY, never)
        with fs.hung():
            await cache.__aexit__(None, None, None)
            assert fs.waiting
    await until(lambda: records(cache_dir))  # what was begun is done when the disk answers


@pytest.mark.parametrize("operation", ["exists", "create", "rename", "listdir", "mkdir"])
async def test_a_fault_of_the_disk_is_nobodys_business(cache_dir, operation, caplog):
    seen = []
    async with acache.Cache(cache_dir, on_event=seen.append) as cache:
        await cache.get_or_compile(KEY, Gate(open=True), label="softmax")
        await until(lambda: (cache_dir / "v1" / "usual").exists())
        before = len(seen)

        class Broken(OsFileSystem):
            def __getattribute__(self, name):
                if name == operation:
                    raise OSError(5, "Input/output error")
                return super().__getattribute__(name)

        cache._live.directory.fs = Broken()
    assert seen[before:] == []
    assert cache.stats().store_errors == 0
    assert caplog.records == []


async def test_a_cancelled_scope_still_leaves_a_record(cache_dir):
    with anyio.CancelScope() as scope:
        async with acache.Cache(cache_dir) as cache:
            await cache.get_or_compile(KEY, Gate(open=True))
            scope.cancel()
            await anyio.sleep(HANG)
    assert scope.cancelled_caught
    assert read(cache_dir).tally.processes == 1


async def test_the_bodys_exception_leaves_as_itself_and_the_record_is_there(cache_dir):
    async def body():
        async with acache.Cache(cache_dir) as cache:
            await cache.get_or_compile(KEY, Gate(open=True))
            raise LookupError

    with pytest.raises(LookupError):
        await body()
    assert read(cache_dir).tally.processes == 1


# --- many processes ----------------------------------------------------------------------------------------


async def test_many_processes_that_close_at_once_lose_and_double_nothing(cache_dir, anyio_backend):
    count, times = 4, 12
    words = [sys.executable, str(HERE / "leaver.py"), backend_name(anyio_backend), str(cache_dir), str(times)]

    def run():
        with contextlib.ExitStack() as stack:
            crew = [
                stack.enter_context(
                    subprocess.Popen(
                        [*words, str(number)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        env=environment(),
                    )
                )
                for number in range(count)
            ]
            assert [each.stdout.readline() for each in crew] == [b"ready\n"] * count
            for each in crew:
                each.stdin.write(b"go\n")
                each.stdin.flush()
            return [each.wait(HANG) for each in crew]

    with anyio.fail_after(3 * HANG):
        assert await anyio.to_thread.run_sync(run) == [0] * count
    ledger = read(cache_dir)
    assert (ledger.tally.processes, ledger.corrupt) == (count * times, 0)
    assert len(records(cache_dir)) < count * times / 2  # they were folded
    for number in range(count):
        row = ledger.tally.rows[f"leaver {number}", None, False]
        assert (row["compiles"], row["disk_hits"]) == (1, times - 1)


async def test_a_record_is_json_that_people_can_read(cache_dir):
    await leave(cache_dir)
    record = json.loads(only(cache_dir / "v1" / "stats", ".json").read_text())
    assert record["format"] == 1
    assert record["tally"]["processes"] == 1
    assert 0 < record["tally"]["first"] <= record["tally"]["last"]
