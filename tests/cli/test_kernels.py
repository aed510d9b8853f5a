"""The demo's kernels are found in a checkout and in an installed package alike."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import acache
from acache.cli import _kernels

PACKAGE = Path(acache.__file__).parent
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "kernels"


def test_each_compiler_has_kernels_with_names_of_their_own():
    for compiler in ("tileiras", "nvrtc", "cc"):
        names = [kernel.name for kernel in _kernels.kernels(compiler)]
        assert names
        assert len(set(names)) == len(names)


def test_what_they_are_compiled_for_is_part_of_the_catalogue():
    assert _kernels.gpu_name().startswith("sm_")
    assert _kernels.cuda_target().startswith("sm_")
    assert _kernels.cuda_options()
    assert _kernels.cc_options()


@pytest.fixture
def installed(tmp_path):
    """Return a folder to import from, where acache lies alone, as a wheel lays it."""
    shutil.copytree(PACKAGE, tmp_path / "acache", ignore=shutil.ignore_patterns("__pycache__", "kernels"))
    return tmp_path


def ask(folder, what):
    code = f"from acache.cli import _kernels as k; {what}"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)


def test_an_installed_package_has_its_own(installed):
    shutil.copytree(EXAMPLES, installed / "acache" / "cli" / "kernels")
    done = ask(installed, "kernel = k.kernels('cc')[0]; print(kernel.source)")
    assert done.returncode == 0, done.stderr
    source = Path(done.stdout.strip())
    assert source.is_file()
    assert installed / "acache" in source.parents


def test_kernels_that_are_nowhere_are_reported_with_both_places(installed):
    done = ask(installed, "k.kernels('cc')")
    assert done.returncode == 1
    assert "acache.cli.kernels" in done.stderr
    assert str(Path("examples", "kernels")) in done.stderr
