"""The loop is never stalled: its lag while 64 keys compile, and no file operation on its thread."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import anyio

import acache
from acache.compilers import Command
from tests.backends.worlds import HANG, environment, leftovers, until

HERE = Path(__file__).parent
TICK = 0.01


async def test_the_loop_s_lag_while_64_keys_compile(cache_dir, anyio_backend, request):
    """B41: a server's health endpoint answers while kernels compile. The lag is printed, not judged."""
    copy = Command(["cp", "in", "out"], inputs=["in"], outputs=["out"])
    lags: list[float] = []
    done: list[acache.Artifact] = []

    async def tick():
        while True:
            began = anyio.current_time()
            await anyio.sleep(TICK)
            lags.append(anyio.current_time() - began - TICK)

    async def compile(number):
        await anyio.sleep(0.05)
        return number.to_bytes(4, "little") * (1 << 16)

    async def coroutine(cache, number):
        key = acache.key(n=number)
        done.append(await cache.get_or_compile(key, functools.partial(compile, number), label="coroutine"))

    async def command(cache, number):
        done.append(await cache.compile(copy.request(f"source {number}", label="command")))

    async with (
        acache.Cache(cache_dir, settings=acache.Settings(max_compiles=8)) as cache,
        anyio.create_task_group() as group,
    ):
        group.start_soon(tick)
        await until(lambda: lags)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as compiles:
                for number in range(64):
                    compiles.start_soon(coroutine if number % 4 else command, cache, number)
        group.cancel_scope.cancel()
        assert cache.stats().compiles == cache.stats().published == 64
    assert len({artifact.data for artifact in done}) == 64
    lags.sort()
    print(
        f"\n{request.node.name}: of {len(lags)} ticks of {TICK * 1000:.0f} ms, "
        f"median lag {lags[len(lags) // 2] * 1000:.1f} ms, largest {lags[-1] * 1000:.1f} ms"
    )
    assert lags[-1] < HANG
    assert leftovers(cache_dir) == []


async def test_every_file_operation_runs_off_the_loop_s_thread(tmp_path, anyio_backend):
    """Through the seam and through an audit hook, in a process of its own: such a hook cannot be removed."""
    done = await anyio.run_process(
        [sys.executable, str(HERE / "watched.py"), json.dumps(anyio_backend), str(tmp_path)],
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert report["missed"] == 0  # the net catches what it is made for
    assert report["catch"] == {}
    assert report["on_loop"] == []
    assert report["elsewhere"] > 100
    assert len(report["steps"]) == 26
