"""Programs that end in the middle of a compile: no orphans, no hang, and the next compiles at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.leases import leftovers
from tests.process.fleet import SOURCE, Fleet, launches
from tests.process.procs import HERE, PATIENCE, alive, until_now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are known through /proc")


def name_of(backend: Any) -> str:
    return backend[0] + ("+uvloop" if backend[1].get("use_uvloop") else "")


class Program:
    """A process of ``interrupted.py``, whose compile is under way."""

    def __init__(self, backend: Any, ending: str, cache_dir: Path, tmp_path: Path, mode: str) -> None:
        self.token = f"token-{os.urandom(8).hex()}"
        self.log = tmp_path / "log"
        self.mode = mode
        script = str(HERE.parent / "faults" / "interrupted.py")
        self.process = subprocess.Popen(
            [sys.executable, script, name_of(backend), ending, str(cache_dir), str(self.log), mode],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "ACACHE_TEST_TOKEN": self.token},
            stderr=subprocess.PIPE,
        )

    def end(self) -> tuple[int, str]:
        """Wait for its end and for that of all its compilers; return its status and what it said."""
        _, said = self.process.communicate(timeout=PATIENCE)
        until_now(lambda: not alive(self.token))
        return self.process.returncode, said.decode()

    def close(self) -> None:
        self.process.kill()
        with contextlib.suppress(ValueError):
            self.process.communicate(timeout=PATIENCE)
        for pid in alive(self.token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def program(anyio_backend: Any, cache_dir: Path, tmp_path: Path) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def start(ending: str, mode: str = "hang") -> Program:
            started = Program(anyio_backend, ending, cache_dir, tmp_path, mode)
            stack.callback(started.close)
            return started

        yield start


def check_next_compiles_at_once(backend: Any, cache_dir: Path, it: Program) -> dict[str, Any]:
    """Whatever the other left, nobody waits for its ttl: it is known to be dead."""
    settings = {"lease_ttl": 3600, "hedge_after": None}
    orders = {"directory": str(cache_dir), "log": str(it.log), "mode": it.mode, "settings": settings}
    with Fleet(1, backend, env={"ACACHE_TEST_TOKEN": it.token}, **orders) as fleet:
        (report,) = fleet.run()
    assert report["origin"] == "compiled"
    assert launches(it.log) == 2
    assert leftovers(cache_dir) == []
    return report


def test_an_interrupt_stops_the_compile_and_gives_the_lease_back(anyio_backend, program, cache_dir):
    """Ctrl-C, KeyboardInterrupt."""
    it = program("waits")
    until_now(lambda: launches(it.log) == 1)
    it.process.send_signal(signal.SIGINT)
    status, said = it.end()
    assert status == -signal.SIGINT
    assert "KeyboardInterrupt" in said
    assert "never retrieved" not in said
    assert leftovers(cache_dir) == []
    report = check_next_compiles_at_once(anyio_backend, cache_dir, it)
    assert report["stats"]["takeovers"] == 0


def test_impatient_interrupts_leave_nothing_either(anyio_backend, program, cache_dir):
    """Ctrl-C again while a compiler that ignores TERM, and its daemon, are being stopped."""
    it = program("waits", "stubborn")
    until_now(lambda: launches(it.log) == 1)
    for _ in range(3):
        it.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            it.process.wait(0.2)
    status, _ = it.end()
    assert status != 0
    check_next_compiles_at_once(anyio_backend, cache_dir, it)


def test_a_termination_leaves_no_compiler(anyio_backend, program, cache_dir):
    """SIGTERM ends a Python program on the spot, with no clean-up: the guard sees it."""
    it = program("waits", "stubborn")
    until_now(lambda: launches(it.log) == 1)
    it.process.terminate()
    status, _ = it.end()
    assert status == -signal.SIGTERM
    report = check_next_compiles_at_once(anyio_backend, cache_dir, it)
    assert report["stats"]["takeovers"] == 1


@pytest.mark.parametrize(
    ("ending", "expected", "released"), [("sys.exit", 3, True), ("os._exit", 3, False), ("raises", 1, True)]
)
def test_leaving_the_program_in_the_middle(anyio_backend, program, cache_dir, ending, expected, released):
    it = program(ending)
    status, said = it.end()
    assert status == expected
    assert ("ZeroDivisionError" in said) == (ending == "raises")
    assert (leftovers(cache_dir) == []) == released
    report = check_next_compiles_at_once(anyio_backend, cache_dir, it)
    assert report["stats"]["takeovers"] == (not released)


LOOPS = [("asyncio", {}), ("asyncio", {"use_uvloop": True})]
"""trio has no such ends: a nursery that is not left is an error there."""


@pytest.mark.parametrize("anyio_backend", LOOPS, ids=["asyncio", "uvloop"])
def test_a_cache_that_is_never_left_holds_up_no_exit(anyio_backend, program, cache_dir):
    it = program("never-leaves")
    it.end()
    check_next_compiles_at_once(anyio_backend, cache_dir, it)


@pytest.mark.parametrize("anyio_backend", LOOPS, ids=["asyncio", "uvloop"])
def test_a_loop_closed_in_the_middle_holds_up_no_exit(anyio_backend, program, cache_dir):
    """Worker threads that are not daemons would be waited for, for ever."""
    it = program("stops-the-loop")
    status, _ = it.end()
    assert status == 0
    report = check_next_compiles_at_once(anyio_backend, cache_dir, it)
    assert report["stats"]["takeovers"] == 1
