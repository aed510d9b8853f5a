"""The examples run as they are, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import acache

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
IMPORTABLE = str(Path(acache.__file__).parents[1])


@pytest.fixture
def example(tmp_path):
    """Run an example with a cache folder of the test's own; returns the lines that it printed."""

    def run(name, *args, **environ):
        env = {name: value for name, value in os.environ.items() if not name.startswith("ACACHE_")}
        env |= {
            "ACACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": IMPORTABLE,
            "PYTHONWARNINGS": "error",
            **environ,
        }
        done = subprocess.run(
            [sys.executable, EXAMPLES / name, *args],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env=env,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


@pytest.fixture(params=["compiler", "no compiler"])
def path(request, tmp_path):
    """Return a PATH with this machine's C compiler, and one with none."""
    if request.param == "no compiler":
        return str(tmp_path)
    if shutil.which("cc") is None or shutil.which("g++") is None:
        pytest.skip("no C compiler on PATH")
    return os.environ["PATH"]


@pytest.mark.parametrize("backends", [("asyncio", "trio"), ("trio", "asyncio")])
def test_smallest_compiles_once_for_both_event_loops(example, path, backends):
    first, second = backends
    (compiled,) = example("smallest.py", first, PATH=path)
    (found,) = example("smallest.py", second, PATH=path)
    assert compiled.endswith("from compiled")
    assert found == compiled.replace("from compiled", "from disk")


def test_workers_compile_once(example, path):
    *workers, last = example("workers.py", "3", PATH=path)
    assert last == "3 workers, 1 compiled"
    origins = [line.rpartition(" ")[2] for line in workers]
    assert origins.count("compiled") == 1
    assert set(origins) <= {"compiled", "peer", "disk"}
    assert {line.split(" on ")[1].split(":")[0].strip() for line in workers} == {"asyncio", "trio"}
