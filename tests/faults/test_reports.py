"""Field reports that are about files, names and questions rather than about faults of the disk."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import acache
from acache.compilers import Command
from tests.faults import worker
from tests.faults.leases import KEY, make, plant
from tests.process.fleet import Fleet, launches
from tests.process.procs import HERE, PATIENCE, until

STRANGER = 54321


# --- what people ask ------------------------------------------------------------------------------


async def test_status_says_who_compiles(anyio_backend, cache_dir, tmp_path):
    """B2, B42: for watchdogs and operators: host, pid, age, beats; and that the holder is dead."""
    log = tmp_path / "log"
    settings = {"heartbeat_interval": 0.1}
    with Fleet(
        1, anyio_backend, directory=str(cache_dir), log=str(log), mode="hang", label="gemm", settings=settings
    ) as holder:
        async with acache.Cache(cache_dir) as cache:
            script = str(HERE / "slow_compiler.py")
            argv = [sys.executable, "-I", "-S", script, str(log), "0", "hang", "out"]
            request = Command(argv, outputs=["out"], toolchain=script).request("source")
            key = await cache.key_of(request)
            assert (await cache.status(key)).state == "absent"
            holder.release()
            await until(lambda: launches(log) == 1)
            status = await cache.status(key)
            while not status.beats:
                await anyio.sleep(0.02)
                status = await cache.status(key)
            pid = holder.workers[0].process.pid
            assert (status.state, status.verdict, status.label) == ("compiling", "alive", "gemm")
            assert (status.host, status.pid) == (os.uname().nodename, pid)
            assert status.age is not None
            assert status.age > 0
            holder.workers[0].process.kill()
            holder.workers[0].process.wait()
            assert (await cache.status(key)).verdict == "dead"
            assert (await cache.compile(request)).origin == "compiled"
            assert (await cache.status(key)).state == "present"


def test_another_home_changes_nothing(anyio_backend, cache_dir, tmp_path):
    """B44: a cache that was mounted, and recompiled on every start."""
    origins = []
    for name in ("one", "two"):
        env = {"HOME": str(tmp_path / name), "ACACHE_DIR": str(cache_dir)}
        with Fleet(1, anyio_backend, env=env, log=str(tmp_path / "log")) as fleet:
            origins += [fleet.run()[0]["origin"]]
    assert origins == ["compiled", "disk"]
    assert not (tmp_path / "one").exists()


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [-86400, 86400])
async def test_shifted_times_change_no_hit(cache_dir, shift):
    """B29: some file systems return other times than were set. Times are for recency alone."""
    async with acache.Cache(cache_dir) as cache:
        await cache.get_or_compile(KEY, make, label="label")
    for path in [cache_dir, *cache_dir.rglob("*")]:
        now = path.stat().st_mtime
        os.utime(path, (now + shift, now + shift))
    async with acache.Cache(cache_dir) as cache:
        assert (await cache.get_or_compile(KEY, make)).origin == "disk"


async def test_side_files_in_the_working_directory_are_private(cache_dir, tmp_path):
    """B14, B15, B31: a fixed name, written and read back slowly, by compiles that run at once."""
    script = "cat > side; while [ ! -e %s ]; do sleep 0.01; done; cp side ${TMPDIR}/copy; cat copy > out"
    go = tmp_path / "go"
    compiler = Command(["sh", "-c", script % go], outputs=["out"])
    made = {}

    async def one(name: str) -> None:
        made[name] = (await cache.compile(compiler.request(name))).data

    settings = acache.Settings(max_compiles=8)
    async with acache.Cache(cache_dir, settings=settings) as cache, anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(one, f"source {number}")
        await until(lambda: cache.stats().compiles == 6)
        go.touch()
    assert made == {f"source {number}": f"source {number}".encode() for number in range(6)}


async def test_every_call_fails_the_same_way_and_leaves_only_a_record(cache_dir, tmp_path):
    """B22, B62, B63: the compiler's own words, each time, here and elsewhere; no half result."""
    log = tmp_path / "log"
    argv = [sys.executable, "-I", "-S", str(HERE / "slow_compiler.py"), str(log), "0", "fail", "out"]
    request = Command(argv, outputs=["out"]).request("source")
    for _ in range(2):
        async with acache.Cache(cache_dir) as cache:
            for _ in range(3):
                with pytest.raises(acache.CompileError, match="a tile of 17 elements") as caught:
                    await cache.compile(request)
                assert caught.value.failure.deterministic
    assert launches(log) == 1
    shard = {path.suffix for path in cache_dir.rglob("v1/??/*")}
    assert shard == {".err"}


class Explosive:
    """What a hostile pickle is."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("suffix", [".art", ".err", ".lease"])
async def test_a_planted_pickle_is_not_run(cache_dir, tmp_path, suffix):
    """B64: who can write the folder must not thereby run code in every reader."""
    import pickle

    slot, _ = plant(cache_dir)
    planted = slot.with_suffix(suffix)
    slot.unlink()
    planted.write_bytes(pickle.dumps(Explosive(str(tmp_path / "exploded"))).ljust(512, b"\n"))
    settings = acache.Settings(heartbeat_interval=0.05, lease_ttl=0.3)
    for origin in ("compiled", "disk"):
        async with acache.Cache(cache_dir, settings=settings) as cache:
            with anyio.fail_after(PATIENCE):
                assert (await cache.get_or_compile(KEY, make)).origin == origin
    assert not (tmp_path / "exploded").exists()


async def test_readers_of_an_entry_that_is_replaced_see_one_or_the_other(cache_dir):
    """B10, B23: replaced by rename, so that a reader has the whole old one or the whole new one."""
    parts = [{"a": bytes([n]) * 70_000, "b": bytes([n]) * 3000} for n in range(40)]
    done = anyio.Event()
    settings = acache.Settings(memory_bytes=0)

    async def replace_it() -> None:
        async with acache.Cache(cache_dir, settings=settings) as cache:
            for each in parts * 3:
                await cache.put(KEY, acache.Artifact(each))
        done.set()

    async def read_it() -> None:
        async with acache.Cache(cache_dir, settings=settings) as cache:
            while not done.is_set():
                artifact = await cache.get(KEY)
                assert artifact is None or dict(artifact.parts) in parts
            assert cache.stats().corrupt == 0
            assert cache.stats().disk_hits > 0

    async with anyio.create_task_group() as group:
        group.start_soon(replace_it)
        for _ in range(3):
            group.start_soon(read_it)


@pytest.mark.root
def test_a_group_shares_a_setgid_folder(anyio_backend, place):
    """T5: temporaries with a mode of their own, renamed in, are unreadable to the rest of the group."""
    group = 54322
    directory = place / "cache"
    directory.mkdir()
    os.chown(directory, STRANGER, group)
    directory.chmod(0o2775)
    orders = {"directory": str(directory), "groups": [group], "umask": 0o002}
    with Fleet(1, anyio_backend, prefix=worker.COMMAND, uid=STRANGER, **orders) as fleet:
        (report,) = fleet.run()
    assert (report["origin"], report["warnings"]) == ("compiled", [])
    for path in directory.rglob("*"):
        facts = path.stat()
        assert facts.st_gid == group
        assert stat.S_IMODE(facts.st_mode) == (0o2775 if path.is_dir() else 0o664)
    settings = {"trust": "group"}
    for source, origin in (("source", "disk"), ("another", "compiled")):
        with Fleet(
            1, anyio_backend, prefix=worker.COMMAND, uid=54323, settings=settings, source=source, **orders
        ) as fleet:
            (report,) = fleet.run()
        assert (report["origin"], report["warnings"]) == (origin, [])


async def test_temporary_names_say_nothing_of_the_process(cache_dir, monkeypatch):
    """T4: names of pid and thread collide between containers that share a folder."""
    names = []
    link = os.link

    def noting(source: str, *rest: Any, **options: Any) -> None:
        names.append(Path(source).name)
        link(source, *rest, **options)

    monkeypatch.setattr(os, "link", noting)
    async with acache.Cache(cache_dir) as cache:
        for number in range(5):
            await cache.get_or_compile(acache.key(number=number), make)
    assert len(set(names)) >= 5
    assert all(len(name) == 35 and name.startswith(".t.") for name in names)
