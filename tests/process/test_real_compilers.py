"""The main job with real compilers: 8 cold processes, one kernel each of tileiras and gcc, one launch."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from acache.compilers._tileiras import find_tileiras
from tests.process.fleet import Fleet, launches

if TYPE_CHECKING:
    from pathlib import Path

COUNTING = """#!/bin/sh
# Passes through; writes a line for each invocation that emits an object.
for word in "$@"; do
    case "$word" in -E|-###|--version|-print-*) exec "{real}" "$@";; esac
done
echo "$$" >> "{log}"
exec "{real}" "$@"
"""


def counting(folder: Path, real: str) -> tuple[Path, Path]:
    """Make a wrapper that counts the launches of a compiler; return it and its log."""
    script, log = folder / real.rpartition("/")[2], folder / "launches"
    script.write_text(COUNTING.format(real=real, log=log))
    script.chmod(0o755)
    return script, log


def check(reports: list[dict], log: Path) -> None:
    assert launches(log) == 1
    assert len({report["digest"] for report in reports}) == 1
    origins = [report["origin"] for report in reports]
    assert origins.count("compiled") == 1
    assert sum(origin in ("peer", "disk") for origin in origins) == 7
    assert sum(report["stats"]["compiles"] for report in reports) == 1


@pytest.mark.gcc
def test_eight_cold_processes_and_gcc(anyio_backend, cache_dir, tmp_path):
    real = shutil.which("g++")
    script, log = counting(tmp_path, real)
    orders = {"compiler": "cc", "kernel": "sampler", "executable": str(script), "toolchain": real}
    with Fleet(8, anyio_backend, directory=str(cache_dir), **orders) as fleet:
        check(fleet.run(), log)


@pytest.mark.tileiras
def test_eight_cold_processes_and_tileiras(anyio_backend, cache_dir, tmp_path):
    real = find_tileiras(None)
    script, log = counting(tmp_path, real)
    orders = {"compiler": "tileiras", "kernel": "softmax", "executable": str(script), "toolchain": real}
    with Fleet(8, anyio_backend, directory=str(cache_dir), **orders) as fleet:
        check(fleet.run(), log)
