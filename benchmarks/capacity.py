"""Eviction by groups of shards beside a global LRU, and what a put costs in a full directory.

``python benchmarks/capacity.py [FOLDER]``. Hit rates are of traces that are played on a disk in memory, with
a clock of their own and a recency grain of zero; costs are real, in FOLDER (default: the temporary folder).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import anyio

import acache
from acache._capacity import Limits
from acache._keys import name_of
from tests.traces import compare, zipf

MIB = 1 << 20
PUTS = 400


def hit_rates() -> None:
    print("hit rates in % (ours / global LRU / points behind), most bytes over capacity")
    for capacity, keys, requests in ((128, 5000, 20_000), (512, 5000, 30_000), (2048, 10_000, 60_000)):
        for skew in (0.7, 0.9, 1.1):
            limits = Limits(capacity * MIB, None, capacity * MIB // 8)
            for programs in (1, 8):
                found = compare(limits, list(zipf(1, keys, requests, skew)), programs=programs)
                behind = 100 * (found.best - found.ours)
                print(
                    f"  {capacity:5} MiB, Zipf {skew}, {programs} programs:"
                    f" {100 * found.ours:5.1f} / {100 * found.best:5.1f} / {behind:5.2f},"
                    f" {found.fullest / limits.max_bytes:.3f}"
                )


def fill(folder: Path, first: int, last: int) -> None:
    """Lay out entries quickly: many names of few files, which eviction cannot tell from others."""
    model = next(folder.rglob("*.art"))
    source = folder / "source"
    for number in range(first, last):
        if (number - first) % 30_000 == 0:  # ext4 allows 65,000 names of one file
            source.unlink(missing_ok=True)
            source.write_bytes(model.read_bytes())
        name = name_of(acache.key(filled=number), None)
        target = folder / "v1" / name[:2]
        target.mkdir(exist_ok=True)
        os.link(source, target / f"{name[2:]}.art")
    source.unlink(missing_ok=True)


async def timed_puts(folder: Path, settings: acache.Settings, start: int) -> list[float]:
    times = []
    async with acache.Cache(folder, settings=settings) as cache:
        for number in range(start, start + 256):
            await cache.put(acache.key(warm=number), b"x" * 4096)
        for number in range(start, start + PUTS):
            key = acache.key(n=number)
            began = time.perf_counter()
            await cache.put(key, b"x" * 4096)
            times.append(time.perf_counter() - began)
    return times


async def costs(where: str | None) -> None:
    print("seconds of a put (median), beside 1,000 and beside 100,000 entries")
    for title, settings in (
        ("nothing to evict", acache.Settings(memory_bytes=0)),
        ("each put evicts", None),
    ):
        times: dict[int, list[float]] = {1000: [], 100_000: []}
        with tempfile.TemporaryDirectory(dir=where) as name:
            for count in times:
                folder = Path(name, str(count))
                async with acache.Cache(folder) as cache:
                    await cache.put(acache.key(first=count), b"x" * 4096)
                fill(folder, 0, count)
            for round_ in range(3):
                for count, found in times.items():
                    limit = settings or acache.Settings(memory_bytes=0, max_entries=count)
                    found += await timed_puts(Path(name, str(count)), limit, round_ * 1000)
        few, many = (statistics.median(found) for found in times.values())
        print(f"  {title}: {few * 1e6:.0f} us, {many * 1e6:.0f} us, ratio {many / few:.2f}")


if __name__ == "__main__":
    hit_rates()
    anyio.run(costs, sys.argv[1] if len(sys.argv) > 1 else None)
