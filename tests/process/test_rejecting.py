"""Many processes that hold the same artifact, and all want another: rejected by the loader, or refreshed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import acache
from tests.process.fleet import SOURCE, Fleet, launches
from tests.process.rejecting import KEY

HERE = Path(__file__).parent
PATIENCE = 60
LOOPS = ["asyncio", "uvloop", "trio", "asyncio", "uvloop", "trio", "asyncio", "trio"]


def publish(folder, data):
    async def put():
        async with acache.Cache(folder) as cache:
            await cache.put(KEY, data)

    anyio.run(put)


def crew(loops, **orders):
    """Let all load what there is, then all go on at once; return what each says."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "rejecting.py"), loop, json.dumps(orders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        for loop in loops
    ]
    try:
        loaded = [json.loads(process.stdout.readline()) for process in processes]
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        return loaded, [json.loads(process.communicate(timeout=PATIENCE)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("where", ["directory", "tier"])
def test_eight_processes_reject_what_they_loaded_and_one_compiles(tmp_path, where):
    directory, tier, log = tmp_path / "cache", tmp_path / "image", tmp_path / "log"
    publish(tier if where == "tier" else directory, b"bad")
    orders = {"directory": str(directory), "log": str(log), "tiers": [str(tier)] if where == "tier" else []}
    loaded, found = crew(LOOPS, **orders)
    assert loaded == ["bad"] * 8
    assert launches(log) == 1
    assert [(data, again) for data, _, _, again in found] == [("good", "good")] * 8
    origins = [origin for _, origin, _, _ in found]
    assert origins.count("compiled") == 1
    assert set(origins) <= {"compiled", "peer", "disk"}
    assert any(rejected for _, _, rejected, _ in found)
    if where == "tier":  # and who comes later, and rejects nothing, is served from the directory
        _, found = crew(["trio"], **orders, reject=False)
        assert found == [["good", "memory", None, "good"]]
        assert len(list(tier.glob("v1/*/*.art"))) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"])
def test_processes_that_refresh_together_compile_once(tmp_path, anyio_backend):
    directory, log = tmp_path / "cache", tmp_path / "log"
    publish(directory, b"old")
    orders = {"directory": str(directory), "log": str(log), "tiers": [], "mode": "refresh", "reject": False}
    loaded, found = crew([anyio_backend] * 6, **orders)
    assert loaded == ["old"] * 6
    assert {data for data, _, _, _ in found} == {"good"}
    # Who looks for the first time when the new one is there already was told to make a newer one.
    origins = [origin for _, origin, _, _ in found]
    assert origins.count("compiled") == launches(log)
    assert launches(log) < 6
    _, (late,) = crew([anyio_backend], **orders)
    assert late[:2] == ["good", "compiled"]


BACKEND = {
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@pytest.mark.parametrize("loop", BACKEND)
def test_a_compiler_s_refresh_by_a_fleet_runs_it_once(tmp_path, loop):
    """All look before the compile ends, since it takes longer than they take to start together."""
    directory, log = tmp_path / "cache", tmp_path / "log"
    orders = {"directory": str(directory), "log": str(log), "seconds": 2}
    with Fleet(1, BACKEND[loop], **orders) as fleet:
        (old,) = fleet.run()
    with Fleet(6, BACKEND[loop], settings={"mode": "refresh"}, **orders) as fleet:
        reports = fleet.run()
    assert launches(log) == 2
    assert {report["digest"] for report in reports} == {old["digest"]}
    assert sorted(report["origin"] for report in reports) == ["compiled"] + ["peer"] * 5


def test_processes_that_refresh_a_failing_compile_fail_once(tmp_path):
    directory, log = tmp_path / "cache", tmp_path / "log"
    orders = {"directory": str(directory), "log": str(log), "seconds": 2, "mode": "fail"}
    with Fleet(5, BACKEND["asyncio"], settings={"mode": "refresh"}, **orders) as fleet:
        reports = fleet.run()
    assert launches(log) == 1
    assert all(report["error"]["reason"] == reports[0]["error"]["reason"] for report in reports)


def test_a_cache_that_was_baked_into_an_image_works_at_another_path(tmp_path):
    """B47: built here, copied there, made read-only, and read by processes with a directory of their own."""
    built, image, log = tmp_path / "built", tmp_path / "elsewhere" / "image", tmp_path / "log"
    orders = {"log": str(log), "source": "baked"}
    with Fleet(1, BACKEND["trio"], directory=str(built), **orders) as fleet:
        (first,) = fleet.run()
    shutil.copytree(built, image)
    shutil.rmtree(built)
    before = {path: path.stat().st_mtime_ns for path in image.rglob("*")}
    for path in [image, *image.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    settings = {"read_only_directories": [str(image)], "recency_grain": 0}
    with Fleet(4, BACKEND["asyncio"], directory=str(tmp_path / "own"), settings=settings, **orders) as fleet:
        reports = fleet.run()
    assert launches(log) == 1
    assert {(report["origin"], report["digest"]) for report in reports} == {("disk", first["digest"])}
    assert {path: path.stat().st_mtime_ns for path in image.rglob("*")} == before
    assert not (tmp_path / "own").exists() or not list((tmp_path / "own").rglob("*.art"))
