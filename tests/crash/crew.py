"""A crew of real processes that compile together, and how they are killed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.process.fleet import SOURCE
from tests.process.procs import alive

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE = Path(__file__).parent
PATIENCE = 40.0
"""Seconds until an answer counts as a hang; no aim."""
LOOPS = ("asyncio", "asyncio+uvloop", "trio")


class Worker:
    """One process of a crew, started at once and ready a little later."""

    def __init__(self, loop: str, directory: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), loop, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCE), **env},
        )
        self.loop = loop
        self.killed = False
        self._ready = False
        self._said = b""

    def __repr__(self) -> str:
        return f"<worker {self.process.pid} on {self.loop}>"

    def send(self, orders: dict[str, Any]) -> None:
        """Begin a round; a worker that died meanwhile does not hear it."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(orders).encode() + b"\n")
            self.process.stdin.flush()

    def line(self) -> bytes:
        """Wait for the next line; b"" once the process has ended."""
        assert self.process.stdout
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._said:
            left = deadline - time.monotonic()
            assert left > 0, f"{self} hangs"
            if select.select([self.process.stdout], [], [], left)[0]:
                if not (more := os.read(self.process.stdout.fileno(), 1 << 16)):
                    self.process.wait(PATIENCE)
                    return b""
                self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return line

    def wait_ready(self) -> None:
        if not self._ready:
            assert self.line() == b"ready"
            self._ready = True

    def guards(self) -> list[psutil.Process]:
        """Return the guards of its compiles, as far as they can be seen."""
        with contextlib.suppress(psutil.Error):
            return [each for each in psutil.Process(self.process.pid).children() if is_guard(each)]
        return []

    def kill(self) -> None:
        """Kill it, as the machine's OOM killer does."""
        self.killed = True
        self.process.kill()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


def is_guard(process: psutil.Process) -> bool:
    """Whether a process supervises a compiler."""
    with contextlib.suppress(psutil.Error):
        return "acache-guard" in process.cmdline()
    return False


class Crew:
    """Some workers, on all loops in turn; the dead are replaced. Use as a context manager."""

    def __init__(self, count: int, directory: Path, temp: Path, token: str) -> None:
        self._directory = directory
        self._env = {"ACACHE_TEST_TOKEN": token, "TMPDIR": str(temp)}
        self._token = token
        self._started = 0
        self.workers = [self._start() for _ in range(count)]

    def _start(self) -> Worker:
        self._started += 1
        return Worker(LOOPS[self._started % len(LOOPS)], self._directory, self._env)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()
        for pid in alive(self._token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def replace(self, dead: Iterable[Worker]) -> None:
        """Bury the dead and start others in their place."""
        for worker in dead:
            worker.close()
            self.workers[self.workers.index(worker)] = self._start()

    def strays(self) -> list[int]:
        """Return the processes of this test that are no workers: guards, compilers and what they started."""
        workers = {worker.process.pid for worker in self.workers}
        return [pid for pid in alive(self._token) if pid not in workers]
