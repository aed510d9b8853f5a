"""N worker processes that start cold together, as an inference server's do: one of them compiles.

    python workers.py [processes]

Where trio is installed, every other worker runs on trio: the workers share the cache, not the event loop.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING

import anyio
import kernels
import smallest

import acache

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

Report = tuple[int, str, str, int]


def request() -> acache.Request:
    """Describe a compile of a second: C++ where there is a compiler for it, else Python to bytecode."""
    if shutil.which(kernels.CXX):
        compiler = acache.compilers.Cc(kernels.CXX, options=kernels.CC_OPTIONS)
        return kernels.catalogue("cc")[0].request(compiler)
    return smallest.request()


async def warm_up(directory: str) -> acache.Artifact:
    """Do what every worker does before it serves."""
    async with acache.Cache(directory) as cache:
        return await cache.compile(request())


def work(directory: str, backend: str, barrier: Barrier) -> Report:
    """Be one worker: wait until all are there, then get the artifact."""
    barrier.wait(timeout=60)
    artifact = anyio.run(warm_up, directory, backend=backend)
    return os.getpid(), backend, str(artifact.origin), len(artifact.data)


def main(count: int) -> int:
    """Start the workers on a cold directory and show where each got its artifact; 0: one compile."""
    backends = ["asyncio", "trio"] if importlib.util.find_spec("trio") else ["asyncio"]
    context = multiprocessing.get_context("spawn")  # a forked worker would inherit what its parent imported
    with (
        tempfile.TemporaryDirectory() as directory,
        context.Manager() as manager,
        context.Pool(count) as pool,
    ):
        barrier = manager.Barrier(count)
        jobs = [(directory, backends[index % len(backends)], barrier) for index in range(count)]
        reports: list[Report] = pool.starmap(work, jobs, chunksize=1)
    for pid, backend, origin, size in reports:
        print(f"worker {pid} on {backend:7}: {size} bytes, from {origin}")
    compiles = [origin for _, _, origin, _ in reports].count("compiled")
    print(f"{count} workers, {compiles} compiled")
    return 0 if compiles == 1 else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
