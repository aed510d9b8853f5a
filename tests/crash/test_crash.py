"""Real processes, real compilers, real kills, round after round: nothing wrong, no hang, nothing left.

``ACACHE_CRASH_ROUNDS`` says how many rounds (``make soak``: 1,000), ``ACACHE_CRASH_SEED`` which. A seed
repeats who is killed and when it is tried, not what the machine does meanwhile. Reports: B1, B17, B36.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest

import acache
from acache import _moves, _store
from acache._fs import OsFileSystem, perform
from acache._host import my_identity
from acache._store import Layout
from tests.crash.compiler import artifact_of
from tests.crash.crew import Crew, Worker, is_guard
from tests.crash.worker import request
from tests.process.fleet import launches
from tests.process.procs import until_now

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are known through /proc"),
    pytest.mark.slow,
]

ROUNDS = int(os.environ.get("ACACHE_CRASH_ROUNDS", "80"))
SEED = int(os.environ.get("ACACHE_CRASH_SEED", random.randrange(1 << 32)))
CREW = 8
KEYS = 3
DAY = 24 * 3600.0
LONGEST_PATH = 45
"""File operations of three cold compiles at least, and of some looks of those who wait for them."""


class Round:
    """Some workers want the same few keys at once, and some of them, or their guards, are killed."""

    def __init__(self, number: int, dice: random.Random, crew: Crew, folder: Path) -> None:
        self.name = f"round-{number}"
        self.dice = dice
        self.crew = crew
        self.kind = dice.choice(["instant", "instant", "operation", "operation", "hang"])
        self.keys = [f"{self.name}-key-{at}" for at in range(KEYS)]
        self.logs = folder / self.name
        self.logs.mkdir()
        self.seconds = round(dice.uniform(0.02, 0.15), 3)
        self.mode = "hang" if self.kind == "hang" else "ok"
        self.workers = dice.sample(crew.workers, dice.randint(4, CREW))
        self.kills = 0

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {len(self.workers)} workers, {self.kills} kills)"

    def play(self) -> None:
        for worker in self.workers:
            worker.wait_ready()
        orders = {"logs": str(self.logs), "keys": self.keys, "seconds": self.seconds, "mode": self.mode}
        victims = self.dice.sample(self.workers, self.dice.randint(1, 3))
        for worker in self.workers:
            dies = worker in victims and self.kind == "operation"
            how = self.dice.choice(["before", "amid", "after"])
            worker.send({**orders, "die": [self.dice.randrange(LONGEST_PATH), how] if dies else [None, ""]})
            worker.killed |= dies
            self.kills += dies
        if self.kind == "instant":
            self.kill_at_any_moment(victims)
        elif self.kind == "hang":
            self.kill_who_hangs()
        self.check_answers()

    def kill_at_any_moment(self, victims: list[Worker]) -> None:
        began = time.monotonic()
        for at, victim in sorted((self.dice.uniform(0, 0.4), victim) for victim in victims):
            time.sleep(max(0.0, began + at - time.monotonic()))
            guards = victim.guards()
            self.kills += 1
            if guards and self.dice.random() < 0.4:
                self.kill_guard(self.dice.choice(guards))
            else:
                victim.kill()

    def kill_guard(self, guard: psutil.Process) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            guard.kill()

    def kill_who_hangs(self) -> None:
        """The first compiler of each key hangs with a child: neither may outlive whoever is killed above."""
        for key in self.dice.sample(self.keys, KEYS):
            log = self.logs / key
            until_now(lambda log=log: launches(log) >= 1)
            compiler = int(log.read_text().split()[0])
            time.sleep(self.dice.uniform(0, 0.05))
            try:
                guard = psutil.Process(compiler).parent()
                holder = guard and guard.parent()
            except psutil.NoSuchProcess:
                continue  # killed with another key's
            by_pid = {worker.process.pid: worker for worker in self.workers}
            if guard is None or not is_guard(guard) or holder is None or holder.pid not in by_pid:
                continue
            target = self.dice.choice(["worker", "guard", "both"])
            if target != "worker":
                self.kill_guard(guard)
            if target != "guard":
                by_pid[holder.pid].kill()
            self.kills += 1

    def check_answers(self) -> None:
        for worker in self.workers:
            if line := worker.line():
                assert json.loads(line) == {key: digest(key) for key in self.keys}, worker
            else:
                assert worker.killed, f"{worker} ended by itself"
                assert worker.process.returncode == -signal.SIGKILL
        for key in self.keys:
            assert 1 <= launches(self.logs / key) <= 1 + self.kills
        self.crew.replace([worker for worker in self.workers if worker.killed])


def digest(key: str) -> str:
    return hashlib.sha256(artifact_of(key.encode())).hexdigest()


async def without_a_fault(directory: Path, it: Round) -> None:
    """All keys of the round are hits; a new one is compiled, whose guard sweeps what dead ones left."""
    settings = acache.Settings(memory_bytes=0)
    async with acache.Cache(directory, settings=settings) as cache:
        for key in it.keys:
            artifact = await cache.compile(request(str(it.logs / key), it.seconds, it.mode, key))
            assert artifact.origin == "disk"
            assert artifact.data == artifact_of(key.encode())
        new = await cache.compile(request(str(it.logs / "new"), 0.0, "ok", f"{it.name}-new"))
        assert new.origin == "compiled"
        stats = cache.stats()
        assert (stats.corrupt, stats.store_errors, stats.takeovers) == (0, 0, 0)


def left_behind(directory: Path) -> list[Path]:
    """Return leases, seals and temporaries, wherever they lie."""
    return [
        path
        for path in directory.rglob("*")
        if not path.is_dir() and (".lease" in path.name or ".t." in path.name)
    ]


def sweep(directory: Path) -> None:
    """Let a day go by for what was left, and sweep all folders as caches do after they published."""
    layout = Layout.on(str(directory), acache.Settings().resolve(usable_cores=2), None, my_identity())
    for path in left_behind(directory):
        os.utime(path, (time.time() - DAY - 60,) * 2)
    for folder in _store.loose_folders(layout):
        perform(_moves.sweep_temporaries(folder), OsFileSystem())
    for shard in (directory / "v1").iterdir():
        if len(shard.name) == 2:
            perform(_moves.sweep(layout, str(shard)), OsFileSystem())


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    token = f"token-{os.urandom(8).hex()}"
    monkeypatch.setenv("ACACHE_TEST_TOKEN", token)
    return token


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of all workspaces, of the workers and of this process."""
    temp = tmp_path / "temp"
    temp.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    return temp


@pytest.mark.timeout(60 + 6 * ROUNDS)
def test_kills_at_random_cost_compiles_and_nothing_else(cache_dir, tmp_path, temp, token):
    """Holders, waiters and guards, at any moment and at any file operation; three loops, one folder."""
    print(f"ACACHE_CRASH_SEED={SEED} ACACHE_CRASH_ROUNDS={ROUNDS}")
    dice = random.Random(SEED)
    logs = tmp_path / "logs"
    logs.mkdir()
    counts: dict[str, int] = {}
    left = swept = 0
    it: Any = None
    began = time.monotonic()
    with Crew(CREW, cache_dir, temp, token) as crew:
        try:
            for number in range(ROUNDS):
                it = Round(number, dice, crew, logs)
                it.play()
                anyio.run(without_a_fault, cache_dir, it)
                until_now(lambda: not crew.strays())
                counts[it.kind] = counts.get(it.kind, 0) + it.kills
                if number % 10 == 9 or number == ROUNDS - 1:
                    left += len(left_behind(cache_dir))
                    sweep(cache_dir)
                    assert left_behind(cache_dir) == []
                    swept += 1
        except BaseException as error:
            error.add_note(f"seed {SEED}, {it}")
            raise
    print(f"{ROUNDS} rounds in {time.monotonic() - began:.0f} s; kills {counts}; {left} files swept")
    homes = list(temp.glob("acache-work-*"))
    assert len(homes) == 1
    anyio.run(sweep_workspaces, cache_dir, logs, homes[0])


async def sweep_workspaces(directory: Path, logs: Path, home: Path) -> None:
    """Guards remove what dead ones left of their workspaces; each takes a limited number."""
    async with acache.Cache(directory) as cache:
        with anyio.fail_after(30):
            number = 0
            while list(home.iterdir()):  # noqa: ASYNC240
                number += 1
                await cache.compile(request(str(logs / "last"), 0.2, "ok", f"last {number}"))
