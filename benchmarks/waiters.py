"""How late do waiters get the artifact? acache's beside a bare poller's, in the same run.

``python benchmarks/waiters.py [PROCESSES [SECONDS]]`` starts PROCESSES cold processes per arm, releases them
together when all are ready, and prints how long after its publication each has the artifact of one compile of
SECONDS. The bare poller is the least that any waiter can do: it opens the file every 50 ms and does nothing
else; one of its processes writes the file (temp + rename) after SECONDS.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

import acache

if TYPE_CHECKING:
    from collections.abc import Callable

POLL = 0.05


async def wait_with_acache(folder: str, seconds: float, hold_release: Callable[[], None]) -> float:
    async def compile() -> bytes:
        await anyio.sleep(seconds)
        return b"x" * 65536

    async with acache.Cache(folder) as cache:
        await anyio.to_thread.run_sync(hold_release)
        artifact = await cache.get_or_compile(acache.key(benchmark="waiters"), compile)
        return time.time() if artifact.origin is not acache.Origin.COMPILED else 0.0


def wait_bare(folder: str, seconds: float, hold_release: Callable[[], None], *, leader: bool) -> float:
    path = Path(folder, "artifact.art")
    hold_release()
    if leader:
        time.sleep(seconds)
        Path(folder, "temporary").write_bytes(b"x" * 65536)
        os.replace(Path(folder, "temporary"), path)
        return 0.0
    while True:
        try:
            path.read_bytes()
        except FileNotFoundError:
            time.sleep(POLL)
        else:
            return time.time()


def worker(arm: str, folder: str, seconds: float, leader: bool) -> None:
    def hold_release() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    if arm == "acache":
        at = anyio.run(functools.partial(wait_with_acache, folder, seconds, hold_release))
    else:
        at = wait_bare(folder, seconds, hold_release, leader=leader)
    print(json.dumps(at), flush=True)


def run_arm(arm: str, processes: int, seconds: float) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        fleet = [
            subprocess.Popen(
                [sys.executable, __file__, "worker", arm, folder, str(seconds), str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for number in range(processes)
        ]
        for process in fleet:
            process.stdout.readline()
        for process in fleet:
            process.stdin.write(b"go\n")
            process.stdin.flush()
        times = [json.loads(process.stdout.readline()) for process in fleet]
        for process in fleet:
            process.communicate()
        (entry,) = Path(folder).rglob("*.art")
        published = entry.stat().st_mtime
    return sorted(at - published for at in times if at)


def main(processes: int = 64, seconds: float = 2.0) -> None:
    print(f"{processes} processes, one compile of {seconds:g} s; seconds after its publication")
    print(f"{'':12}{'waiters':>8}{'median':>9}{'p99':>9}{'largest':>9}")
    medians = {}
    for arm in ("bare poller", "acache"):
        late = run_arm(arm, processes, seconds)
        p99 = late[min(len(late) - 1, round(0.99 * (len(late) - 1)))]
        medians[arm] = statistics.median(late)
        print(f"{arm:12}{len(late):8}{medians[arm]:9.3f}{p99:9.3f}{late[-1]:9.3f}")
    print(f"median, acache / bare poller: {medians['acache'] / medians['bare poller']:.2f}")
    print(f"aim: 5 % of the compile + 0.1 s = {0.05 * seconds + 0.1:.2f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5] == "0")
    else:
        main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False)))
