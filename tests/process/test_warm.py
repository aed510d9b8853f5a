"""Warm workers: reused, replaced, stopped and counted, with a worker that does whatever it is told to."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest

import acache
from acache import Artifact, _warm
from acache._errors import CompileError, CompilerCrashedError, CompilerNotFoundError, CompileTimeoutError
from acache._guardlink import GuardLostError
from acache._warm import WarmWorkers
from acache.compilers import Request, WarmCompiler, Worker, WorkerProgram
from tests.process.procs import HERE, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from acache._warm import WarmWorker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")

HELLO = '{"ready": true}'


def program(log: Path, greeting: str = HELLO, **limits: int) -> WorkerProgram:
    argv = (sys.executable, "-I", "-S", str(HERE / "fake_worker.py"), str(log), greeting)
    return WorkerProgram(argv, {"DECLARED": "1"}, **limits)


@dataclass(frozen=True)
class Parrot:
    """A compiler of our own that is hosted by workers: its source is an order, its artifact the answer."""

    program: WorkerProgram

    def request(self, *, label: str | None = None, **order: Any) -> Request:
        return Request(self, json.dumps(order), label)

    async def fingerprint(self) -> str:
        return "parrot/1"

    async def key_fields(self, request: Request) -> dict[str, object]:
        return {"order": request.source}

    async def worker(self) -> WorkerProgram:
        return self.program

    async def compile_with(self, request: Request, worker: Worker) -> Artifact:
        assert isinstance(worker, Worker)
        assert isinstance(request.source, str)
        answer = await worker.ask(json.loads(request.source))
        if "error" in answer:
            raise CompileError(acache.CompileFailure("diagnostic", str(answer["error"]), deterministic=True))
        return Artifact.of(json.dumps(answer).encode())

    async def compile(self, request: Request, workspace: object) -> Artifact:
        raise AssertionError("a cache asks a worker")


def told(artifact: Artifact) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(artifact.data)
    return found


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a temporary folder of its own for workspaces."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
async def cache(cache_dir: Path) -> AsyncIterator[acache.Cache]:
    async with acache.Cache(cache_dir, settings=acache.Settings(max_compiles=2, kill_grace=0.1)) as cache:
        yield cache


def done(log: Path) -> list[str]:
    """Return what workers were ordered to do."""
    return log.read_text().split() if log.exists() else []


def pool_of(cache: acache.Cache) -> WarmWorkers:
    assert cache._live is not None
    return cache._live.warm


def workers_below() -> list[int]:
    """Return the workers that run below this process."""
    below = psutil.Process().children(recursive=True)
    return [each.pid for each in below if str(HERE / "fake_worker.py") in each.cmdline()]


def guard_of(pid: int) -> psutil.Process:
    parent = psutil.Process(pid).parent()
    assert parent is not None
    assert "acache-guard" in parent.cmdline()
    return parent


# -- reuse


async def test_one_worker_serves_compile_after_compile(cache: acache.Cache, log: Path, temp: Path) -> None:
    parrot = Parrot(program(log))
    assert isinstance(parrot, WarmCompiler)
    answers = [told(await cache.compile(parrot.request(do="echo", number=number))) for number in range(5)]
    assert [answer["number"] for answer in answers] == list(range(5))
    assert len({answer["pid"] for answer in answers}) == 1
    assert [answer["files"] for answer in answers] == [
        []
    ] * 5  # what a compile leaves is gone before the next
    assert pool_of(cache).idle == 1
    await cache.__aexit__(None, None, None)
    assert not psutil.pid_exists(answers[0]["pid"])
    assert not os.listdir(temp / f"acache-work-{os.geteuid()}")


async def test_a_worker_that_calls_an_answer_its_last_is_gone_with_it(cache: acache.Cache, log: Path) -> None:
    parrot = Parrot(program(log))
    first = told(await cache.compile(parrot.request(do="echo", last=True)))
    assert not psutil.pid_exists(first["pid"])
    second = told(await cache.compile(parrot.request(do="echo", last="not at all")))
    assert psutil.pid_exists(second["pid"])
    assert pool_of(cache).idle == 1


async def test_a_worker_is_given_a_private_folder_and_nothing_undeclared(
    cache: acache.Cache, log: Path, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACACHE_UNDECLARED", "1")
    found = told(await cache.compile(Parrot(program(log)).request(do="environment")))
    assert found["environment"].keys() <= {"DECLARED", "TMPDIR", "PATH", "LC_CTYPE"}
    assert found["environment"]["TMPDIR"] == found["folder"]
    assert Path(found["folder"]).parent.parent == temp
    assert found["argv"][1:] == [str(log), HELLO]


async def test_the_last_come_serves_first_and_compiles_run_side_by_side(
    cache: acache.Cache, log: Path, tmp_path: Path
) -> None:
    parrot = Parrot(program(log))
    heavy = parrot.request(do="sleep", seconds=600, began=str(tmp_path / "began"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cache.compile, heavy)
        await until((tmp_path / "began").exists)
        answers = [told(await cache.compile(parrot.request(do="echo", n=n))) for n in range(3)]
        tasks.cancel_scope.cancel()
    assert len({answer["pid"] for answer in answers}) == 1


async def test_equal_programs_share_workers_and_others_do_not(cache: acache.Cache, log: Path) -> None:
    first, second = Parrot(program(log)), Parrot(program(log))
    other = Parrot(replace(first.program, env={"DECLARED": "2"}))
    pids = [
        told(await cache.compile(parrot.request(do="echo", n=n)))["pid"]
        for n, parrot in enumerate([first, second, other, first, other])
    ]
    assert pids[0] == pids[1] == pids[3] != pids[2] == pids[4]


async def test_idle_workers_are_bounded_and_the_longest_idle_goes(cache: acache.Cache, log: Path) -> None:
    parrots = [Parrot(replace(program(log), env={"DECLARED": str(n)})) for n in range(3)]
    pids = [
        told(await cache.compile(parrot.request(do="echo", n=n)))["pid"] for n, parrot in enumerate(parrots)
    ]
    assert pool_of(cache).idle == 2
    assert [psutil.pid_exists(pid) for pid in pids] == [False, True, True]


async def test_idle_workers_are_let_go_in_time(log: Path) -> None:
    pool = WarmWorkers(8, 0.1, idle_seconds=0.05)
    wanted, other = program(log), replace(program(log), env={})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pool.run)
        assert await pool.start(wanted, 2) == 2
        async with pool.lend(other, None), pool.lend(other, None):
            assert pool.idle == 2
        await until(lambda: pool.idle == 2)  # those that somebody asked for stay
        assert {each.program for each in pool._idle if each.program == other} == set()
        tasks.cancel_scope.cancel()
    await pool.close()
    assert pool.idle == 0


async def test_a_worker_serves_so_many_compiles(cache: acache.Cache, log: Path) -> None:
    parrot = Parrot(program(log, max_compiles=2))
    pids = [told(await cache.compile(parrot.request(do="echo", n=n)))["pid"] for n in range(5)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    assert [psutil.pid_exists(pid) for pid in pids] == [False] * 4 + [True]


async def test_a_worker_that_grows_is_replaced(cache: acache.Cache, log: Path) -> None:
    parrot = Parrot(program(log, max_growth=16 << 20))
    orders = [1 << 10, 1 << 10, 40 << 20, 1 << 10]
    pids = [
        told(await cache.compile(parrot.request(do="grow", bytes=size, n=n)))["pid"]
        for n, size in enumerate(orders)
    ]
    assert pids[0] == pids[1] == pids[2] != pids[3]


# -- started ahead


async def test_workers_are_started_before_they_are_needed(cache: acache.Cache, log: Path) -> None:
    parrot = Parrot(program(log))
    assert await cache.start_workers(parrot) == 1
    (ahead,) = pool_of(cache)._idle
    assert await cache.start_workers(parrot, 1) == 1
    assert pool_of(cache)._idle == [ahead]
    assert await cache.start_workers(parrot, 5) == 2  # no more ever compile at once: max_compiles
    answer = told(await cache.compile(parrot.request(do="echo")))
    assert answer["pid"] in {each._workspace.pid for each in pool_of(cache)._idle}
    assert pool_of(cache).idle == 2


async def test_what_start_workers_refuses(cache: acache.Cache, log: Path) -> None:
    with pytest.raises(TypeError, match=r"Command runs a program per compile .* Nvrtc has"):
        await cache.start_workers(acache.compilers.Command(["true"], outputs=["out"]))  # type: ignore[arg-type]
    for count in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="count must be a whole number"):
            await cache.start_workers(Parrot(program(log)), count)  # type: ignore[arg-type]
    with pytest.raises(CompilerNotFoundError):
        await cache.start_workers(Parrot(WorkerProgram(("acache-no-such-worker",))))
    await cache.__aexit__(None, None, None)
    with pytest.raises(acache.CacheClosedError):
        await cache.start_workers(Parrot(program(log)))


async def test_a_start_that_is_cancelled_leaves_nothing(cache: acache.Cache, log: Path, temp: Path) -> None:
    with anyio.move_on_after(0.3) as scope:
        await cache.start_workers(Parrot(program(log, "hush")), 2)
    assert scope.cancelled_caught
    assert pool_of(cache).idle == 0
    assert not os.listdir(temp / f"acache-work-{os.geteuid()}")


async def test_closing_the_cache_stops_a_start(cache_dir: Path, log: Path, temp: Path) -> None:
    ends: list[Exception] = []

    async def start(cache: acache.Cache) -> None:
        try:
            await cache.start_workers(Parrot(program(log, "hush")), 2)
        except acache.CacheClosedError as error:
            ends.append(error)

    cache = acache.Cache(cache_dir, settings=acache.Settings(max_compiles=2))
    async with anyio.create_task_group() as tasks, cache:
        tasks.start_soon(start, cache)
        await until(lambda: len(workers_below()) == 2)
    assert [str(end) for end in ends] == ["the cache was closed while workers were started"]
    assert not workers_below()
    assert not os.listdir(temp / f"acache-work-{os.geteuid()}")


async def test_a_start_for_which_there_is_no_thread(
    cache: acache.Cache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise OSError(errno.EAGAIN, "no worker thread can be started")

    monkeypatch.setattr(_warm, "_empty", refuse)
    for call in (
        cache.compile(Parrot(program(log)).request(do="echo")),
        cache.start_workers(Parrot(program(log))),
    ):
        with pytest.raises(CompilerCrashedError, match="no worker thread") as caught:
            await call
        assert caught.value.failure.reason == "spawn"
    assert not workers_below()


# -- workers that do not do well


async def test_a_failure_of_the_input_costs_no_worker(cache: acache.Cache, log: Path) -> None:
    parrot = Parrot(program(log))
    before = told(await cache.compile(parrot.request(do="echo")))
    with pytest.raises(CompileError, match="bad input"):
        await cache.compile(parrot.request(do="echo", error="bad input"))
    assert told(await cache.compile(parrot.request(do="echo", n=2)))["pid"] == before["pid"]


@pytest.mark.parametrize(
    ("order", "reason", "said"),
    [
        ({"do": "exit"}, "exit", r"ended \(exit status 7\) instead of answering\nso much for that"),
        ({"do": "signal", "number": int(signal.SIGSEGV)}, "signal", r"ended \(signal 11\)"),
        ({"do": "rush"}, "spawn", "without the empty line"),
        ({"do": "say", "text": "not JSON"}, "exit", "answer is no JSON"),
        ({"do": "say", "text": "[]"}, "exit", "answer is no JSON object"),
        ({"do": "say", "text": "[" * 200_000}, "exit", "answer is no JSON"),
    ],
)
async def test_a_crash_fails_only_its_own_key(
    cache: acache.Cache, log: Path, tmp_path: Path, order: dict[str, Any], reason: str, said: str
) -> None:
    parrot = Parrot(program(log))
    other = parrot.request(do="burn", seconds=0.2)
    landed: list[Artifact] = []

    async def compile_other() -> None:
        landed.append(await cache.compile(other))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(compile_other)
        with pytest.raises(CompileError, match=said) as caught:
            await cache.compile(parrot.request(**order))
    assert caught.value.failure.reason == reason
    assert isinstance(caught.value, CompilerCrashedError) == (reason != "exit")
    assert not caught.value.failure.deterministic
    assert len(landed) == 1
    assert told(await cache.compile(parrot.request(do="echo")))["files"] == []
    assert cache.stats().compile_failures == 1


async def test_a_worker_that_is_killed_in_a_compile_fails_it(
    cache: acache.Cache, log: Path, tmp_path: Path
) -> None:
    parrot, began = Parrot(program(log)), tmp_path / "began"
    async with anyio.create_task_group() as tasks:

        async def kill() -> None:
            await until(lambda: began.exists() and began.read_text())
            os.kill(int(began.read_text()), signal.SIGKILL)

        tasks.start_soon(kill)
        with pytest.raises(CompilerCrashedError) as caught:
            await cache.compile(parrot.request(do="sleep", seconds=600, began=str(began)))
    assert caught.value.failure.signal == signal.SIGKILL
    assert (await cache.compile(parrot.request(do="echo"))).data


async def test_a_guard_that_is_killed_in_a_compile_costs_a_second_try(
    cache: acache.Cache, log: Path, tmp_path: Path
) -> None:
    parrot, began = Parrot(program(log)), tmp_path / "began"
    async with anyio.create_task_group() as tasks:

        async def kill() -> None:
            await until(lambda: began.exists() and began.read_text())
            worker = psutil.Process(int(began.read_text()))
            guard_of(worker.pid).kill()
            await until(lambda: not worker.is_running())  # swept, for nobody supervises it any more

        tasks.start_soon(kill)
        await cache.compile(parrot.request(do="sleep", seconds=600, began=str(began)))
    assert done(log) == ["sleep"] * 2
    assert cache.stats().compiles == 2


@pytest.mark.parametrize("who", ["worker", "guard"])
async def test_a_worker_that_dies_unnoticed_is_replaced(cache: acache.Cache, log: Path, who: str) -> None:
    parrot = Parrot(program(log))
    for number in range(3):
        answer = told(await cache.compile(parrot.request(do="echo", n=number)))
        guard = guard_of(answer["pid"])
        os.kill(answer["pid"] if who == "worker" else guard.pid, signal.SIGKILL)
    assert told(await cache.compile(parrot.request(do="echo", n=-1)))["pid"] != answer["pid"]
    assert cache.stats().compile_failures == 0
    assert done(log) == ["echo"] * 4


@pytest.mark.parametrize("then", ["die", "chatter"])
async def test_a_worker_that_does_more_than_answer_is_not_asked_again(
    cache: acache.Cache, log: Path, then: str
) -> None:
    parrot = Parrot(program(log))
    pids = [told(await cache.compile(parrot.request(do="echo", then=then, n=n)))["pid"] for n in range(3)]
    assert len(set(pids)) == 3
    assert cache.stats().compile_failures == 0


async def test_an_order_that_a_dead_worker_never_heard_goes_to_another(log: Path) -> None:
    """It dies between the look at it and the order, unseen by its guard."""
    pool = WarmWorkers(2, 0.1)
    async with pool.lend(program(log), None) as loan:
        seen: list[int] = []

        async def compile_(worker: WarmWorker) -> dict[str, Any]:
            pid = worker._workspace.pid
            if not seen:
                os.kill(pid, signal.SIGKILL)
            seen.append(pid)
            return await worker.ask({"do": "echo"})

        answer = await loan.use(compile_)
        assert answer["pid"] == seen[-1]
        assert len(seen) == 2
    assert done(log) == ["echo"]
    await pool.close()


async def test_workers_that_never_listen_are_a_fault(log: Path) -> None:
    pool = WarmWorkers(2, 0.1)
    deaf = replace(program(log), argv=(sys.executable, "-I", "-S", "-c", "print('{}')"))
    asked = 0

    async def ask(worker: WarmWorker) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return await worker.ask({"do": "echo"})

    async with pool.lend(deaf, None) as loan:
        with pytest.raises(CompileError, match="exit status 0"):
            await loan.use(ask)
    assert asked == 3
    assert pool.idle == 0


@pytest.mark.parametrize(
    ("greeting", "error", "said"),
    [
        ('{"missing": "install this"}', CompilerNotFoundError, "install this"),
        ("die", CompileError, r"ended \(exit status 3\).*\ndead before a word"),
        ("what?", CompileError, "no JSON"),
    ],
)
async def test_a_worker_that_does_not_become_ready(
    cache: acache.Cache, log: Path, greeting: str, error: type[CompileError], said: str
) -> None:
    parrot = Parrot(program(log, greeting))
    with pytest.raises(error, match=said):
        await cache.compile(parrot.request(do="echo"))
    with pytest.raises(error, match=said):
        await cache.start_workers(parrot)
    assert done(log) == []


async def test_a_worker_that_is_never_ready_is_not_waited_for(
    cache: acache.Cache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_warm, "START_SECONDS", 0.3)
    with pytest.raises(CompilerCrashedError, match=r"not ready within 0\.3 s"):
        await cache.compile(Parrot(program(log, "hush")).request(do="echo"))


async def test_an_answer_without_end_is_cut_off(
    cache: acache.Cache, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acache._process.ANSWER_LIMIT", 100_000)
    with pytest.raises(CompilerCrashedError, match="more than 100000 bytes"):
        await cache.compile(Parrot(program(log)).request(do="say", text="x" * 300_000))


async def test_long_orders_and_answers(cache: acache.Cache, log: Path) -> None:
    text = "äöü\n" * 500_000
    answer = told(await cache.compile(Parrot(program(log)).request(do="echo", text=text)))
    assert answer["text"] == text


# -- the end of a compile


@pytest.mark.parametrize("how", ["timeout", "abandon", "close"])
async def test_stopping_a_compile_stops_its_worker(
    cache_dir: Path, log: Path, tmp_path: Path, temp: Path, how: str
) -> None:
    settings = acache.Settings(compile_timeout=0.3 if how == "timeout" else 60, kill_grace=0.1)
    began = tmp_path / "began"
    request = Parrot(program(log)).request(do="sleep", seconds=600, began=str(began))
    ends: list[Exception] = []
    async with anyio.create_task_group() as tasks:
        async with acache.Cache(cache_dir, settings=settings) as cache:
            scope = anyio.CancelScope()

            async def compile_() -> None:
                with scope:
                    try:
                        await cache.compile(request, on_abandon="stop")
                    except (CompileError, acache.CacheClosedError) as error:
                        ends.append(error)

            tasks.start_soon(compile_)
            await until(lambda: began.exists() and began.read_text())
            pid = int(began.read_text())
            if how == "abandon":
                scope.cancel()
            if how == "timeout":
                await until(lambda: ends)
            if how != "close":
                await until(lambda: not psutil.pid_exists(pid))
        assert not psutil.pid_exists(pid)
    kinds = {"timeout": [CompileTimeoutError], "abandon": [], "close": [acache.CacheClosedError]}
    assert [type(end) for end in ends] == kinds[how]
    assert not os.listdir(temp / f"acache-work-{os.geteuid()}")


async def test_a_warm_workers_progress_shows_in_the_lease(cache_dir: Path, log: Path) -> None:
    """The guard measures what runs below it, whoever started it and whenever."""
    settings = acache.Settings(heartbeat_interval=0.02, lease_ttl=15)
    parrot = Parrot(program(log))
    async with acache.Cache(cache_dir, settings=settings) as cache, anyio.create_task_group() as tasks:
        await cache.compile(parrot.request(do="echo"))
        request = parrot.request(do="burn", seconds=0.6)
        key = await cache.key_of(request)
        seen: set[tuple[int, int]] = set()
        done = anyio.Event()

        async def watch() -> None:
            while not done.is_set():
                status = await cache.status(key)
                if status.beats and status.progress is not None:
                    seen.add((status.beats, status.progress))
                await anyio.sleep(0.01)

        tasks.start_soon(watch)
        await cache.compile(request)
        done.set()
    assert len({beats for beats, _ in seen}) > 3
    assert max(progress for _, progress in seen) >= 300
    assert [pair[1] for pair in sorted(seen)] == sorted(pair[1] for pair in seen)


async def test_two_caches_of_one_folder_compile_once(cache_dir: Path, log: Path) -> None:
    request = Parrot(program(log)).request(do="burn", seconds=0.3)
    async with (
        acache.Cache(cache_dir) as one,
        acache.Cache(cache_dir) as two,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(one.compile, request)
        tasks.start_soon(two.compile, request)
    assert done(log) == ["burn"]


async def test_without_coordination_workers_serve_all_the_same(cache_dir: Path, log: Path) -> None:
    pids = []
    for settings in (acache.Settings(coordinate=False), acache.Settings(mode="off")):
        async with acache.Cache(cache_dir, settings=settings) as cache:
            for number in range(2):
                request = Parrot(program(log)).request(do="echo", n=number, mode=settings.mode)
                pids.append(told(await cache.compile(request))["pid"])
    assert pids[0] == pids[1] != pids[2] == pids[3]


async def test_a_guard_that_is_lost_is_told_to_the_job(log: Path) -> None:
    """Which then tries once more, under the same lease."""
    pool = WarmWorkers(2, 0.1)

    async def compile_(worker: WarmWorker) -> dict[str, Any]:
        guard_of(worker._workspace.pid).kill()
        return await worker.ask({"do": "sleep", "seconds": 600, "began": "none"})

    async with pool.lend(program(log), None) as loan:
        with pytest.raises(GuardLostError):
            await loan.use(compile_)
    assert pool.idle == 0
