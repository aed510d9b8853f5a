"""NVRTC as servers use it: many processes, heavy kernels beside tiny ones, workers that are killed."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest

import acache
from acache._errors import CompileError, CompilerCrashedError
from acache.compilers import Nvrtc, _nvrtc
from tests.process.fleet import Fleet, launches
from tests.process.procs import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.nvrtc,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc"),
]

SORTS = """\
#include <cub/block/block_radix_sort.cuh>
template <typename Key, int Threads> __device__ void sort(Key *keys) {
    using Sort = cub::BlockRadixSort<Key, Threads, 4>;
    __shared__ typename Sort::TempStorage storage;
    Key own[4];
    for (int i = 0; i < 4; ++i) own[i] = keys[4 * threadIdx.x + i];
    Sort(storage).Sort(own);
    for (int i = 0; i < 4; ++i) keys[4 * threadIdx.x + i] = own[i];
}
__global__ void sorts(int *a, float *b) { sort<int, 128>(a); sort<float, 256>(b); }
"""
"""Takes NVRTC seconds."""


def tiny(number: int = 0) -> str:
    return f"__global__ void tiny(int *out) {{ *out = {number}; }}\n"


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """Return a temporary folder for what all tests may share, so that headers are laid out once."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a temporary folder of its own for workspaces."""
    folder = tmp_path / "temp"
    folder.mkdir()
    home = str(shared / f"acache-nvrtc-{os.geteuid()}")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(_nvrtc, "headers_home", lambda: home)
    return folder


@pytest.fixture
def own_headers(temp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for headers that this test alone uses; it is not there yet."""
    home = temp / f"acache-nvrtc-{os.geteuid()}"
    monkeypatch.setattr(_nvrtc, "headers_home", lambda: str(home))
    return home


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "launches"
    monkeypatch.setenv("ACACHE_LAUNCH_LOG", str(path))
    return path


def began(log: Path, name: str) -> list[int]:
    """Return the workers that began to compile a source of that name."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [int(line.split()[1]) for line in lines if line.endswith(f" {name}")]


async def test_a_tiny_kernel_does_not_wait_behind_a_heavy_one_which_then_stops_at_once(
    cache_dir: Path, log: Path, temp: Path
) -> None:
    nvrtc = Nvrtc("sm_90")
    settings = acache.Settings(max_compiles=2)
    async with acache.Cache(cache_dir, settings=settings) as cache, anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()
        ended = anyio.Event()

        async def heavy() -> None:
            with scope:
                await cache.compile(nvrtc.request(SORTS, name="heavy.cu"), on_abandon="stop")
            ended.set()

        tasks.start_soon(heavy)
        (worker,) = await until(lambda: began(log, "heavy.cu"))
        assert (await cache.compile(nvrtc.request(tiny()))).data.startswith(b"\x7fELF")
        assert not ended.is_set()
        assert psutil.pid_exists(worker)
        scope.cancel()
        await until(lambda: not psutil.pid_exists(worker))
        assert scope.cancelled_caught
        assert began(log, "kernel.cu") != [worker]
    assert not os.listdir(temp / f"acache-work-{os.geteuid()}")


async def test_a_worker_that_is_killed_fails_only_its_own_key(cache_dir: Path, log: Path) -> None:
    nvrtc = Nvrtc("sm_90")
    settings = acache.Settings(max_compiles=2)
    async with acache.Cache(cache_dir, settings=settings) as cache, anyio.create_task_group() as tasks:

        async def kill() -> None:
            (worker,) = await until(lambda: began(log, "heavy.cu"))
            assert (await cache.compile(nvrtc.request(tiny()))).data
            os.kill(worker, signal.SIGKILL)

        tasks.start_soon(kill)
        with pytest.raises(CompilerCrashedError) as caught:
            await cache.compile(nvrtc.request(SORTS, name="heavy.cu"))
        assert caught.value.failure.signal == signal.SIGKILL
        assert not caught.value.failure.deterministic
        for number in range(3):
            assert (await cache.compile(nvrtc.request(tiny(number)))).data
        assert cache.stats().compile_failures == 1


async def test_a_launch_log_that_cannot_be_written_says_so_and_heals(cache_dir: Path, log: Path) -> None:
    os.mkdir(log)
    request = Nvrtc("sm_90").request(tiny(), name="add.cu")
    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(CompileError, match=f"Is a directory: '{log}'") as caught:
            await cache.compile(request)
        assert not caught.value.failure.deterministic  # nothing that anybody should remember
        os.rmdir(log)
        assert (await cache.compile(request)).origin is acache.Origin.COMPILED
    assert len(began(log, "add.cu")) == 1


async def test_want_of_memory_is_no_fault_of_the_source(cache_dir: Path, log: Path) -> None:
    """NVRTC calls it a compile error, with a position; nobody remembers it, nor asks that worker again."""
    request = Nvrtc("sm_90").request(SORTS)
    async with acache.Cache(cache_dir) as cache:
        await cache.start_workers(request.compiler)  # type: ignore[arg-type]
        (worker,) = cache._live.warm._idle  # type: ignore[union-attr]
        pid = worker._workspace.pid
        limit = psutil.Process(pid).memory_info().vms + (10 << 20)
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        with pytest.raises(CompileError, match="out of memory") as caught:
            await cache.compile(request)
        assert caught.value.failure.reason == "memory", caught.value.failure
        assert not caught.value.failure.deterministic
        assert psutil.pid_exists(pid) is False
        assert await cache.start_workers(request.compiler) == 1  # type: ignore[arg-type]


async def test_headers_at_any_depth(cache_dir: Path, log: Path, tmp_path: Path) -> None:
    """Edited: a miss; edited and restored: a hit; one that newly exists nearer is seen."""
    near, far = tmp_path / "near", tmp_path / "far"
    for folder in (near, far):
        folder.mkdir()
    (far / "outer.h").write_text('#include "inner.h"\n')
    (far / "inner.h").write_text("#define VALUE 1\n")
    compiler = Nvrtc("sm_90", include_paths=[near, far])
    request = compiler.request(
        "#include <outer.h>\n__global__ void k(int *a) { *a = VALUE; }\n", output="ptx"
    )
    async with acache.Cache(cache_dir, settings=acache.Settings(memory_bytes=0)) as cache:

        async def compiled() -> tuple[bytes, str]:
            artifact = await cache.compile(request)
            assert artifact.origin is not None
            return artifact.data, artifact.origin.value

        before = await compiled()
        (far / "inner.h").write_text("#define VALUE 2\n")
        edited = await compiled()
        (far / "inner.h").write_text("#define VALUE 1\n")
        restored = await compiled()
        (near / "outer.h").write_text("#define VALUE 3\n")
        shadowed = await compiled()
    assert [origin for _, origin in (before, edited, restored, shadowed)] == [
        "compiled", "compiled", "disk", "compiled",
    ]  # fmt: skip
    assert restored[0] == before[0]
    assert len({before[0], edited[0], shadowed[0]}) == 3
    assert launches(log) == 3


def clean(folder: Path, name: str) -> Path:
    """Remove one file as systemd-tmpfiles(8) does, which gives its folder the old times back."""
    (file,) = folder.rglob(name)
    times = file.parent.stat()
    file.unlink()
    os.utime(file.parent, ns=(times.st_atime_ns, times.st_mtime_ns))
    return file


async def test_headers_that_a_cleaner_took_are_laid_out_again(cache_dir: Path, own_headers: Path) -> None:
    """By a worker that has used them before; also where the compile went well without one.

    For ``__has_include`` chooses by the headers that are there, and the key says that all of them are.
    """
    source = "#include <cuda_fp16.h>\n#if !__has_include(<cuda_fp8.h>)\n__device__ int gone;\n#endif\n"
    request = Nvrtc("sm_90").request(source + tiny(), output="ptx")
    async with acache.Cache(cache_dir, settings=acache.Settings(mode="off")) as cache:
        before = (await cache.compile(request)).data
        for taken in ("cuda_fp16.h", "cuda_fp8.h"):
            header = clean(own_headers, taken)
            assert (await cache.compile(request)).data == before
            assert header.exists()
        assert cache.stats().compile_failures == 0
    assert b"gone" not in before


async def test_planted_headers_are_not_used(cache_dir: Path, own_headers: Path) -> None:
    """The folder's name can be foreseen, and the temporary folder belongs to all."""
    os.mkdir(own_headers)
    os.chmod(own_headers, 0o777)
    request = Nvrtc("sm_90").request("#include <cuda_fp16.h>\n" + tiny())
    async with acache.Cache(cache_dir) as cache:
        assert (await cache.compile(request)).data
    assert not os.listdir(own_headers)


@pytest.mark.timeout(240)
async def test_compiles_in_a_row_leave_memory_and_descriptors_level(cache_dir: Path) -> None:
    count = 200
    settings = acache.Settings(max_compiles=1, coordinate=False, memory_bytes=0)
    own = psutil.Process()
    facts: list[tuple[int, int, int, int, int]] = []
    async with acache.Cache(cache_dir, settings=settings) as cache:

        async def compile_(number: int) -> None:
            assert (await cache.compile(Nvrtc("sm_90").request(tiny(number)))).data

        for number in range(10):
            await compile_(-1 - number)
        (worker,) = cache._live.warm._idle  # type: ignore[union-attr]
        process = psutil.Process(worker._workspace.pid)

        def measure() -> None:
            guard = process.parent()
            assert guard is not None
            facts.append((
                process.num_fds(),
                guard.num_fds(),
                own.num_fds(),
                process.memory_info().rss,
                own.memory_info().rss,
            ))  # fmt: skip

        measure()
        for number in range(count):
            await compile_(number)
        measure()
        assert cache._live.warm._idle == [worker]  # type: ignore[union-attr]
        assert cache.stats().compiles == count + 10
        await until(lambda: own.num_fds() <= facts[0][2])  # but for threads that are about to end
    before, after = facts
    assert before[:2] == after[:2]
    assert after[3] - before[3] < 16 << 20
    assert after[4] - before[4] < 16 << 20


def test_eight_cold_processes_compile_once(
    anyio_backend: object, cache_dir: Path, log: Path, shared: Path
) -> None:
    env = {"TMPDIR": str(shared), "ACACHE_LAUNCH_LOG": str(log)}
    orders = {"compiler": "nvrtc", "source": SORTS, "label": "sorts"}
    with Fleet(1, anyio_backend, directory=str(cache_dir.with_name("solo")), env=env, **orders) as fleet:
        (solo,) = fleet.run()
    with Fleet(8, anyio_backend, directory=str(cache_dir), env=env, **orders) as fleet:
        reports = fleet.run()
    assert launches(log) == 2
    assert {report["digest"] for report in reports} == {solo["digest"]}
    origins = [report["origin"] for report in reports]
    assert origins.count("compiled") == 1
    assert sum(origin in ("peer", "disk") for origin in origins) == 7
    # One worker was started, by whoever compiled; the guards' own milliseconds are all that comes on top.
    ratio = sum(report["children_cpu"] for report in reports) / solo["children_cpu"]
    print(f"CPU of the compilers of all eight, over that of one alone: {ratio:.2f}")
    assert sum(report["children_cpu"] > 0.25 * solo["children_cpu"] for report in reports) == 1
