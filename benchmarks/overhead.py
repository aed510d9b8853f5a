"""What acache adds: a guard per compile, and its import; ratios against the bare thing in the same run.

``python benchmarks/overhead.py [ROUNDS]``; medians of paired rounds, on asyncio and on trio.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import anyio

from acache._process import run_tool


async def guard(rounds: int) -> None:
    bare, guarded = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        await anyio.run_process(["/bin/true"])
        middle = time.perf_counter()
        await run_tool(["/bin/true"], timeout=60)
        bare.append(middle - began)
        guarded.append(time.perf_counter() - middle)
    extra = statistics.median(g - b for g, b in zip(guarded, bare, strict=True))
    one, other = statistics.median(bare) * 1e3, statistics.median(guarded) * 1e3
    print(f"  /bin/true bare {one:.2f} ms, guarded {other:.2f} ms, paired difference {extra * 1e3:.2f} ms")


def imports(rounds: int) -> None:
    names = ["anyio", "anyio, acache", "anyio, acache; acache.Cache"]
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            code = f"import time; t = time.process_time(); import {name}; print(time.process_time() - t)"
            times[name].append(float(subprocess.check_output([sys.executable, "-c", code])))
    base = statistics.median(times["anyio"])
    for name in names:
        median = statistics.median(times[name])
        print(f"  import {name}: {median * 1e3:.1f} ms CPU, {median / base:.2f} x anyio")


def main(rounds: int = 30) -> None:
    print("a guard per compile:")
    for backend in ("asyncio", "trio"):
        print(f" {backend}")
        anyio.run(guard, rounds, backend=backend)
    print("imports:")
    imports(rounds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
