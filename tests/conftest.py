"""What every test shares: three event loops, a fresh cache folder, hygiene, and skips that CI does not take.

The three loops are asyncio (in debug mode), asyncio on uvloop, and trio: a plain ``async def test_...`` runs
on each. After every test the pytest process must have as many children, threads and file descriptors as
before it.

A test marked ``gcc``, ``tileiras``, ``nvrtc``, ``nvcc``, ``spin`` or ``root`` is skipped where that is not to
be had, and *fails* there when ``ACACHE_TEST_REQUIRE`` names the marker (a list with commas) or, that being
unset, when ``CI`` is true: a skip must never hide that a suite did not run.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import shutil
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LINGER = 10.0
"""Seconds within which what a test left behind must be gone; a bound for hangs, not an aim."""

PROC_FD = Path("/proc/self/fd")


def _backends() -> list[Any]:
    backends = [pytest.param(("asyncio", {"debug": True, "use_uvloop": False}), id="asyncio")]
    if sys.platform != "win32" and sys.implementation.name == "cpython":
        backends.append(pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"))
    return [*backends, pytest.param(("trio", {}), id="trio")]


@pytest.fixture(params=_backends())
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Run an async test on each of the three event loops."""
    return request.param


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """Return a folder for one cache: not there yet, in a fresh temporary folder."""
    return tmp_path / "cache"


# --- what a test may leave behind: nothing -----------------------------------------------------------------


def _children() -> dict[int, str]:
    """Return the living and the unreaped children of this process, multiprocessing's own helper left out."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    helper = getattr(tracker, "_pid", None)
    found = {}
    for child in psutil.Process().children(recursive=True):
        if child.pid != helper:
            try:
                found[child.pid] = f"process {child.pid} ({child.status()}): {' '.join(child.cmdline())}"
            except psutil.NoSuchProcess:
                continue
            except (psutil.AccessDenied, psutil.ZombieProcess):
                found[child.pid] = f"process {child.pid} (zombie)"
    return found


def _threads() -> dict[int, str]:
    """Return the threads of this process, without those that a library keeps on purpose.

    trio keeps idle workers for ten seconds, for all loops of the process; pytest-timeout has a timer thread.
    """
    return {
        id(thread): f"thread {thread.name}"
        for thread in threading.enumerate()
        if not thread.name.startswith(("Trio thread", "pytest_timeout"))
    }


def _descriptors() -> dict[int, str]:
    """Return the open file descriptors and what they lead to; nothing where there is no /proc."""
    found: dict[int, str] = {}
    try:
        names = os.listdir(PROC_FD)
    except OSError:
        return found
    for name in names:
        try:
            found[int(name)] = f"descriptor {name} -> {os.readlink(PROC_FD / name)}"
        except FileNotFoundError:  # the descriptor that listed the folder
            continue
    return found


def _leftovers(before: list[dict[int, str]]) -> list[str]:
    now = [_children(), _threads(), _descriptors()]
    return [what for old, new in zip(before, now, strict=True) for key, what in new.items() if key not in old]


@pytest.fixture(scope="session", autouse=True)
def _libuv_started() -> None:
    """Let libuv open the signal pipe, kept for the whole process, before any test counts descriptors."""
    if any(backend.id == "uvloop" for backend in _backends()):
        anyio.run(
            anyio.run_process, [sys.executable, "-I", "-S", "-c", ""], backend_options={"use_uvloop": True}
        )


@pytest.fixture(autouse=True)
def _hygiene(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a child process, a thread or a file descriptor behind."""
    before = [_children(), _threads(), _descriptors()]
    yield
    deadline = time.monotonic() + LINGER
    left = _leftovers(before)
    while left and time.monotonic() < deadline:
        gc.collect()
        left = _leftovers(before)
        if left:
            time.sleep(0.01)
    if left:
        for pid in _children().keys() - before[0].keys():  # or they disturb every test that follows
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        pytest.fail(f"{request.node.name} left behind:\n  " + "\n  ".join(left), pytrace=False)


# --- skips that CI does not take ----------------------------------------------------------------------------


def _lacks_gcc() -> str | None:
    missing = [name for name in ("gcc", "g++") if shutil.which(name) is None]
    return f"no {' and no '.join(missing)} on PATH" if missing else None


def _lacks_tileiras() -> str | None:
    site = Path(sysconfig.get_path("platlib"), "nvidia", "cu13", "bin", "tileiras")
    if site.exists() or shutil.which("tileiras"):
        return None
    return 'no tileiras (pip install "acache[tile]")'


def _lacks_nvrtc() -> str | None:
    try:
        bindings = importlib.util.find_spec("cuda.bindings")
    except ModuleNotFoundError:
        bindings = None
    library = next(Path(sysconfig.get_path("platlib"), "nvidia").glob("*/lib/libnvrtc.so.*"), None)
    return None if bindings and library else 'no NVRTC (pip install "acache[cuda]")'


def _lacks_nvcc() -> str | None:
    return None if shutil.which("nvcc") else "no nvcc on PATH"


def _lacks_spin() -> str | None:
    missing = [name for name in ("spin", "cc") if shutil.which(name) is None]
    return f"no {' and no '.join(missing)} on PATH" if missing else None


def _lacks_root() -> str | None:
    return None if hasattr(os, "geteuid") and os.geteuid() == 0 else "not root"


NEEDS: dict[str, Callable[[], str | None]] = {
    "gcc": _lacks_gcc,
    "tileiras": _lacks_tileiras,
    "nvrtc": _lacks_nvrtc,
    "nvcc": _lacks_nvcc,
    "root": _lacks_root,
    "spin": _lacks_spin,
}


def _required() -> set[str]:
    listed = os.environ.get("ACACHE_TEST_REQUIRE")
    if listed is not None:
        names = {name.strip() for name in listed.split(",")} - {""}
        if unknown := names - set(NEEDS):
            raise pytest.UsageError(f"ACACHE_TEST_REQUIRE names {sorted(unknown)}; known are {sorted(NEEDS)}")
        return names
    return set(NEEDS) if os.environ.get("CI", "").lower() in {"true", "1"} else set()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose needs are not met here, or fail it where they are required."""
    for marker, lacks in NEEDS.items():
        if item.get_closest_marker(marker) is None:
            continue
        if (why := lacks()) is not None:
            if marker in _required():
                pytest.fail(f"this test needs {marker!r}, which is required here: {why}", pytrace=False)
            pytest.skip(f"needs {marker!r}: {why}")
