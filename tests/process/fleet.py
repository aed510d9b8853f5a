"""A fleet of real processes that start cold together, as the ranks of an inference server do."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import acache

HERE = Path(__file__).parent
PATIENCE = 90.0
"""Seconds until a fleet counts as hung; no aim."""
SOURCE = Path(acache.__file__).parent.parent


class Worker:
    """One process of a fleet, ready but not released."""

    def __init__(self, orders: dict[str, Any], env: dict[str, str] | None, prefix: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), **(env or {})}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(HERE / "fleet_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self.errors = b""
        self._ready = False
        self._drain = threading.Thread(target=self._read_errors, daemon=True)
        self._drain.start()
        self._send(json.dumps(orders))

    def _read_errors(self) -> None:
        assert self.process.stderr
        self.errors = self.process.stderr.read()

    def _send(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def _line(self) -> bytes:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(PATIENCE)
            self._drain.join(PATIENCE)
            raise AssertionError(f"a worker ended with {self.process.returncode}: {self.errors.decode()}")
        return line

    def wait_ready(self) -> None:
        if not self._ready:
            assert self._line() == b"ready\n"
            self._ready = True

    def release(self) -> None:
        self._send("go")

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self._line())
        self.process.wait(PATIENCE)
        self._drain.join(PATIENCE)
        report["log"] = self.errors.decode()
        return report

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self._drain.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                stream and stream.close()


class Fleet:
    """N workers; use as a context manager, which leaves none behind."""

    def __init__(
        self,
        count: int,
        backend: Any,
        *,
        env: dict[str, str] | None = None,
        prefix: list[str] | None = None,
        **orders: Any,
    ) -> None:
        orders = {"backend": backend, **orders}
        self.workers = [Worker(orders, env, prefix or []) for _ in range(count)]
        self._alarm = threading.Timer(PATIENCE, self._kill)

    def _kill(self) -> None:
        for worker in self.workers:
            worker.process.kill()

    def __enter__(self) -> Fleet:
        self._alarm.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._alarm.cancel()
        for worker in self.workers:
            worker.close()
        self._alarm.join()

    def wait_ready(self) -> None:
        for worker in self.workers:
            worker.wait_ready()

    def release(self) -> None:
        self.wait_ready()
        for worker in self.workers:
            worker.release()

    def run(self) -> list[dict[str, Any]]:
        """Release all together and return their reports."""
        self.release()
        return [worker.report() for worker in self.workers]


def launches(log: Path) -> int:
    """Return how many times the compiler was started."""
    return log.read_bytes().count(b"\n") if log.exists() else 0
