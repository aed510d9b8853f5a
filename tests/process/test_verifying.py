"""A directory is verified and repaired while several processes publish into it, and evict."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.process.test_eviction import CAPACITY, crew

PATIENCE = 60


def verify(folder):
    done = subprocess.run(
        [sys.executable, "-m", "acache", "verify", "--repair", "--json", "-d", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_repair_beside_publications_and_evictions_takes_nothing(cache_dir):
    with ThreadPoolExecutor(1) as pool:
        publishers = pool.submit(crew, cache_dir, ["asyncio", "uvloop", "trio"], 150, CAPACITY)
        found = []
        while not publishers.done():
            found.append(verify(cache_dir))
        reports = publishers.result()
    assert sum(report["wrong"] + report["errors"] for report in reports) == 0
    assert sum(report["evicted"] for report in reports) > 0
    assert max(each["artifacts"] for each in found) > 0
    assert {(each["corrupt"], each["repaired"], each["unreadable"]) for each in found} == {(0, 0, 0)}


def test_two_repairs_at_once_remove_what_is_corrupt_once(cache_dir):
    crew(cache_dir, ["asyncio"], 40, CAPACITY)
    entries = sorted(cache_dir.glob("v1/*/*.art"))
    for path in entries[::2]:
        path.write_bytes(b"bad")
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: verify(cache_dir), range(3)))
    assert sum(each["repaired"] for each in found) == len(entries[::2])
    assert [path for path in entries if path.exists()] == entries[1::2]
    assert not list(cache_dir.glob("v1/*/.t.*"))
