"""Holders that die, hang, are stopped or were never there: how waiters find out, and what is left behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest

import acache
from acache import _host
from acache._format import encode_beat
from tests.faults import worker
from tests.faults.leases import KEY, leftovers, make, plant
from tests.process.fleet import SOURCE, Fleet, launches
from tests.process.procs import HERE, PATIENCE, alive, until, until_now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are known through /proc")


@pytest.fixture
def token() -> Iterator[str]:
    """Return a token for the environment of workers; whoever still has it at the end is killed."""
    token = f"token-{os.urandom(8).hex()}"
    yield token
    for pid in alive(token):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def guard_of(pid: int) -> psutil.Process:
    """Return the guard of a worker's compile."""
    (guard,) = [child for child in psutil.Process(pid).children() if "acache-guard" in child.cmdline()]
    return guard


# --- killed ---------------------------------------------------------------------------------------


def test_a_killed_holder_whose_descriptors_a_child_still_holds(anyio_backend, cache_dir, tmp_path, token):
    """B1, B36: a data loader forked meanwhile keeps the guard's socket open; the guard sees the death all
    the same, leaves no compiler, and a waiter takes over at once.
    """
    log, fork = tmp_path / "log", tmp_path / "fork"
    env = {"ACACHE_TEST_TOKEN": token}
    orders = {"directory": str(cache_dir), "log": str(log), "mode": "stubborn", "job": "command"}
    with (
        Fleet(1, anyio_backend, env=env, prefix=worker.COMMAND, fork=str(fork), **orders) as holder,
        Fleet(2, anyio_backend, env=env, prefix=worker.COMMAND, **orders) as waiters,
    ):
        waiters.wait_ready()  # or they come late
        holder.release()
        until_now(lambda: launches(log) == 1 and fork.exists())
        child = int(fork.read_text())
        waiters.release()
        victim = holder.workers[0].process
        before = set(alive(token)) - {child, victim.pid, *(each.process.pid for each in waiters.workers)}
        assert len(before) >= 2  # the compiler and its daemon
        victim.kill()
        until_now(lambda: not before & set(alive(token)))
        reports = [each.report() for each in waiters.workers]
        os.kill(child, 0)  # it was there all the time
        os.kill(child, signal.SIGKILL)
    assert launches(log) == 2
    assert [report["errors"] for report in reports] == [[], []]
    assert sum(report["stats"]["takeovers"] for report in reports) == 1
    assert leftovers(cache_dir) == []


def test_a_killed_guard_costs_its_holder_one_more_launch(anyio_backend, cache_dir, tmp_path, token):
    """A guard's death (the OOM killer's choice) is no compile failure, and nobody takes over."""
    log = tmp_path / "log"
    orders = {"directory": str(cache_dir), "log": str(log), "mode": "stubborn", "seconds": 0.5}
    with (
        Fleet(1, anyio_backend, env={"ACACHE_TEST_TOKEN": token}, **orders) as holder,
        Fleet(2, anyio_backend, env={"ACACHE_TEST_TOKEN": token}, **orders) as waiters,
    ):
        waiters.wait_ready()  # or they come late
        holder.release()
        until_now(lambda: launches(log) == 1)
        waiters.release()
        guard_of(holder.workers[0].process.pid).kill()
        reports = [each.report() for each in holder.workers + waiters.workers]
    assert launches(log) == 2
    assert reports[0]["origin"] == "compiled"
    assert "GuardLost" in reports[0]["events"]
    assert [report["origin"] for report in reports[1:]] == ["peer", "peer"]
    assert sum(report["stats"]["takeovers"] for report in reports) == 0
    until_now(lambda: not alive(token))
    assert leftovers(cache_dir) == []


def test_workers_killed_at_random_harm_nobody_else(cache_dir, tmp_path, token):
    """Twelve processes on three loops, six keys a round, and every round some are killed at any moment."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    names = iter(["asyncio", "asyncio+uvloop", "trio"] * 100)
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "ACACHE_TEST_TOKEN": token}
    right = {}

    def start() -> subprocess.Popen[bytes]:
        script = str(HERE.parent / "faults" / "churn.py")
        words = [sys.executable, script, next(names), str(cache_dir)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

    def end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.communicate(timeout=PATIENCE)

    workers = [start() for _ in range(12)]
    alarm = threading.Timer(90, lambda: [each.kill() for each in workers])
    alarm.start()
    try:
        for number in range(15):
            for each in workers:
                if each.poll() is None and not hasattr(each, "is_ready"):
                    assert each.stdout.readline() == b"ready\n"
                    each.is_ready = True
            keys = [f"round-{number}-key-{at}" for at in range(6)]
            right = [hashlib.sha256(b"compiled " * 1000 + key.encode()).hexdigest() for key in keys]
            line = " ".join([str(tmp_path / f"log-{number}"), "0.1", *keys]) + "\n"
            for each in workers:
                each.stdin.write(line.encode())
                each.stdin.flush()
            victims = dice.sample(workers, 2)
            for victim in victims:
                time.sleep(dice.uniform(0, 0.15))  # any moment is a good one
                victim.kill()
            for each in workers:
                answer = each.stdout.readline().decode().split()
                if each not in victims or answer:
                    assert answer == right
            for victim in victims:
                end(victim)
                workers[workers.index(victim)] = start()
            compiles = launches(tmp_path / f"log-{number}")
            assert 6 <= compiles <= 6 + 6 * len(victims)  # each victim held six leases at the most
    finally:
        alarm.cancel()
        for each in workers:
            end(each)
        alarm.join()
    until_now(lambda: not alive(token))


# --- found on the disk ----------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Return a live process that has nothing to do with any cache."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"])
    yield process
    process.kill()
    process.wait()


def start_time(pid: int) -> int:
    started = _host.process_state(pid).starttime
    assert started is not None
    return started


async def take_over(directory: Path, **settings: Any) -> str:
    """Compile despite the planted lease; return how its holder was found to be dead."""
    verdicts = []

    def on_event(event: acache.events.Event) -> None:
        if isinstance(event, acache.events.Takeover):
            verdicts.append(event.verdict)

    settings = {"heartbeat_interval": 0.1, "lease_ttl": 0.4, "hedge_after": None, **settings}
    with anyio.fail_after(PATIENCE):
        async with acache.Cache(directory, settings=acache.Settings(**settings), on_event=on_event) as cache:
            assert (await cache.get_or_compile(KEY, make)).data == b"made"
            assert cache.stats().takeovers == 1
    assert leftovers(directory) == []
    (verdict,) = verdicts
    return verdict


NEVER = {"lease_ttl": 3600}
"""Silence takes too long to prove anything in a test."""


async def test_the_lease_of_a_dead_process_is_taken_over_at_once(cache_dir, sleeper):
    """B3: a runner is used again after a job was killed."""
    started = start_time(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    plant(cache_dir, pid=sleeper.pid, starttime=started)
    assert await take_over(cache_dir, **NEVER) == "identity"


async def test_the_lease_of_a_recycled_pid_is_taken_over_at_once(cache_dir, sleeper):
    """B3: the pid lives, but belongs to somebody else by now."""
    plant(cache_dir, pid=sleeper.pid, starttime=start_time(sleeper.pid) - 1)
    assert await take_over(cache_dir, **NEVER) == "identity"


async def test_the_lease_of_a_zombie_is_taken_over_at_once(cache_dir, sleeper):
    """In a container nobody may reap for a long time."""
    started = start_time(sleeper.pid)
    sleeper.kill()
    await until(lambda: _host.process_state(sleeper.pid).zombie)
    plant(cache_dir, pid=sleeper.pid, starttime=started)
    assert await take_over(cache_dir, **NEVER) == "identity"


async def test_a_silent_lease_of_a_live_process_is_taken_over_after_its_ttl(cache_dir, sleeper):
    """A live pid proves nothing: its release may be broken."""
    plant(cache_dir, pid=sleeper.pid, starttime=start_time(sleeper.pid))
    assert await take_over(cache_dir) == "silence"


@pytest.mark.parametrize("fact", ["boot_id", "pidns", "timens"])
async def test_of_another_host_or_container_only_silence_tells(cache_dir, sleeper, fact):
    """Its pid is no pid of ours, dead or alive."""
    started = start_time(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    other = {"boot_id": "another-boot", "pidns": 1, "timens": 1}[fact]
    plant(cache_dir, **{"pid": sleeper.pid, "starttime": started, fact: other})
    assert await take_over(cache_dir) == "silence"


async def test_a_beating_lease_of_another_host_is_waited_for(cache_dir):
    """B5, B42: for as long as the caller allows; then it compiles, and nothing of the holder's is touched."""
    slot, _ = plant(cache_dir, boot_id="another-boot", host="far-away", pid=7, label="softmax")
    done = anyio.Event()

    async def beat() -> None:
        beats = 0
        while not done.is_set():
            beats += 1
            with slot.open("r+b") as file:
                file.write(encode_beat(beats, beats))
            await anyio.sleep(0.05)

    settings = acache.Settings(heartbeat_interval=0.1, lease_ttl=0.6, hedge_after=None)
    async with anyio.create_task_group() as group, acache.Cache(cache_dir, settings=settings) as cache:
        group.start_soon(beat)
        artifact = await cache.get_or_compile(KEY, make, max_wait=2)
        assert artifact.origin == "compiled"
        stats = cache.stats()
        assert (stats.takeovers, stats.hedges, stats.deadline_compiles) == (0, 0, 1)
        assert slot.exists()
        done.set()


# --- stopped --------------------------------------------------------------------------------------


def test_a_stopped_holder_is_hedged_and_harms_nobody_when_it_goes_on(anyio_backend, cache_dir, tmp_path):
    """Its guard beats on for a compile that is over: no progress, so one waiter starts a rival."""
    log = tmp_path / "log"
    settings = {"hedge_after": 0.5, "heartbeat_interval": 0.1}
    orders = {"directory": str(cache_dir), "log": str(log), "seconds": 0.3, "settings": settings}
    with Fleet(1, anyio_backend, **orders) as holder, Fleet(2, anyio_backend, **orders) as waiters:
        waiters.wait_ready()  # or they come late
        holder.release()
        until_now(lambda: launches(log) == 1)
        os.kill(holder.workers[0].process.pid, signal.SIGSTOP)
        try:
            reports = waiters.run()
        finally:
            os.kill(holder.workers[0].process.pid, signal.SIGCONT)
        reports += [holder.workers[0].report()]
    assert launches(log) == 2
    assert sum(report["stats"]["hedges"] for report in reports) == 1
    assert len({report["digest"] for report in reports}) == 1
    assert leftovers(cache_dir) == []


def test_a_holder_stopped_with_its_guard_is_silent_and_deletes_nothing_later(
    anyio_backend, cache_dir, tmp_path
):
    """A suspended container: the lease is taken over after its ttl; whoever wakes up late is superseded."""
    log = tmp_path / "log"
    settings = {"lease_ttl": 1, "heartbeat_interval": 0.1, "hedge_after": None}
    orders = {"directory": str(cache_dir), "log": str(log), "mode": "hang", "settings": settings}
    with Fleet(1, anyio_backend, **orders) as holder, Fleet(2, anyio_backend, **orders) as waiters:
        waiters.wait_ready()  # or they come late
        holder.release()
        until_now(lambda: launches(log) == 1)
        pid = holder.workers[0].process.pid
        stopped = [pid, guard_of(pid).pid]
        for each in stopped:
            os.kill(each, signal.SIGSTOP)
        try:
            reports = waiters.run()
            assert leftovers(cache_dir) == []  # the takeover released the whole chain
        finally:
            for each in reversed(stopped):
                os.kill(each, signal.SIGCONT)
        reports += [holder.workers[0].report()]
    assert launches(log) == 2
    assert sum(report["stats"]["takeovers"] for report in reports) == 1
    assert [report["stats"]["published"] for report in reports].count(1) == 1
    assert len({report["digest"] for report in reports}) == 1
    assert "Superseded" in reports[-1]["events"]
    assert leftovers(cache_dir) == []
