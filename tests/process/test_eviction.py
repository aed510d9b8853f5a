"""Several processes publish into one directory that is far too small for what they make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import acache
from tests.process.evicting import taken
from tests.process.fleet import SOURCE

HERE = Path(__file__).parent
PATIENCE = 90
CAPACITY, SIZE, ENTRY = 4 << 20, 32 << 10, 36 << 10
"""Bytes of the directory, of an artifact, and of its file."""


def crew(folder, loops, count, capacity=CAPACITY):
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                str(HERE / "evicting.py"),
                str(folder),
                loop,
                str(place * count // 2),  # neighbours ask for the same keys
                str(count),
                str(SIZE),
                str(capacity),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        for place, loop in enumerate(loops)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        return [json.loads(process.communicate(timeout=PATIENCE)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_the_capacity_holds_for_all_together(cache_dir):
    loops = ["asyncio", "uvloop", "trio", "asyncio"]
    reports = crew(cache_dir, loops, 200)
    assert sum(report["wrong"] for report in reports) == 0
    assert sum(report["errors"] for report in reports) == 0
    assert max(report["fullest"] for report in reports) <= CAPACITY + len(loops) * ENTRY
    left = taken(str(cache_dir))
    assert 0.7 * CAPACITY < left <= CAPACITY + len(loops) * ENTRY
    # Whatever was published is still there, or was evicted by exactly one of them, or was replaced.
    published, evicted = (sum(report[name] for report in reports) for name in ("published", "evicted"))
    files = sum(1 for _ in Path(cache_dir).glob("v1/*/*.art"))
    assert 0 <= published - evicted - files <= len(loops)
    assert json.loads((cache_dir / "v1" / "layout.json").read_text())["shards_per_group"] == 64


def test_processes_with_other_limits_share_a_directory(cache_dir):
    crew(cache_dir, ["asyncio", "trio"], 60, 8 * CAPACITY)
    before = taken(str(cache_dir))
    assert before > CAPACITY / 2
    crew(cache_dir, ["trio"], 150, CAPACITY // 2)
    assert taken(str(cache_dir)) <= CAPACITY // 2 + ENTRY


@pytest.mark.slow
async def test_100_000_entries_of_which_a_publication_finds_its_room(cache_dir):
    """B51: both limits hold, with one file per entry, however many there are."""
    settings = acache.Settings(max_entries=99_000, memory_bytes=0)
    async with acache.Cache(cache_dir, settings=settings) as cache:
        await cache.put(acache.key(model=True), b"x")
        (model,) = cache_dir.glob("v1/*/*.art")
        sources = []
        for number in range(100_000):
            if number % 50_000 == 0:  # ext4 allows 65,000 names of one file
                sources.append(cache_dir / f"source{number}")
                sources[-1].write_bytes(model.read_bytes())
                os.utime(sources[-1], (1000.0, 1000.0))
            name = os.urandom(31).hex()
            shard = cache_dir / "v1" / f"{number % 256:02x}"
            if number < 256:
                shard.mkdir(exist_ok=True)
            os.link(sources[-1], f"{shard}/{name}.art")
        for number in range(512):
            await cache.put(acache.key(number=number), b"y")
        assert cache.stats().evicted >= 1000
        assert cache.stats().store_errors == 0
        total = sum(len(os.listdir(cache_dir / "v1" / f"{shard:02x}")) for shard in range(256))
        assert total <= 99_000
        for number in range(0, 512, 50):
            assert await cache.get(acache.key(number=number)) is not None
        assert (await cache.trim(max_bytes=0)).kept <= 512  # what was just written may be on its way
