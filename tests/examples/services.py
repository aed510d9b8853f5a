"""What the tests of the example services share: a service run as a user would, and what is left of it."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import acache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HANG = 30.0
"""Seconds until something counts as hung; no aim."""

# A pass-through in front of the compiler: says that it was launched, then waits for the gate.
_PASS_THROUGH = """\
import os, runpy, sys, time
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
os.write(log, b"%d\\n" % os.getpid())
os.close(log)
while not os.path.exists({gate!r}):
    time.sleep(0.005)
runpy.run_path({real!r}, run_name="__main__")
"""


def until(fact: Callable[[], Any], what: str) -> Any:
    """Poll until a fact holds; fail when it does not for long."""
    deadline = time.monotonic() + HANG
    while not (answer := fact()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)
    return answer


def remains(folder: Path) -> list[str]:
    """Return the living processes that know of a folder, by their environment or command line."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            said = Path("/proc", name, "cmdline").read_bytes()
            if os.fsencode(folder) in said + Path("/proc", name, "environ").read_bytes():
                found.append(f"{name}: {said.replace(bytes(1), b' ').decode()}")
    return found


@dataclass(frozen=True)
class Answer:
    """What a client was told."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Compiler:
    """The slow compiler behind a pass-through that counts its launches and holds them at a gate."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "pass_through.py"
        self._log, self._gate = folder / "launches", folder / "gate"
        real = str(EXAMPLES / "slow_compiler.py")
        self.script.write_text(_PASS_THROUGH.format(log=str(self._log), gate=str(self._gate), real=real))

    @property
    def launches(self) -> list[int]:
        """The pids of all that were launched."""
        return [int(line) for line in self._log.read_text().split()] if self._log.exists() else []

    def go(self) -> None:
        """Let them compile."""
        self._gate.touch()


class Service:
    """A service in processes of its own, on a port of its own; leaves none of them behind.

    :param folder: all that it writes lies here, and all its processes are told of it.
    """

    def __init__(self, folder: Path, argv: list[str], **environ: str) -> None:
        self.folder = folder
        (folder / "tmp").mkdir()
        env = {name: value for name, value in os.environ.items() if not name.startswith("ACACHE_")}
        env |= {
            "ACACHE_DIR": str(folder / "cache"),
            "TMPDIR": str(folder / "tmp"),
            "PYTHONPATH": str(Path(acache.__file__).parents[1]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            **environ,
        }
        self.process = subprocess.Popen(
            [sys.executable, *argv],
            cwd=EXAMPLES,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        self.lines.extend(self.process.stdout)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(HANG)
        for line in remains(self.folder):
            with contextlib.suppress(OSError):
                os.kill(int(line.partition(":")[0]), signal.SIGKILL)
        self._reader.join(HANG)
        assert self.process.stdout
        self.process.stdout.close()

    @property
    def log(self) -> str:
        """What it printed so far."""
        return "".join(self.lines)

    def port(self) -> int:
        """Return its port, once it says it."""

        def said() -> int | None:
            assert self.process.poll() is None, self.log
            found = re.search(r"unning on http://127\.0\.0\.1:(\d+)", self.log)
            return int(found[1]) if found else None

        port: int = until(said, "the service says its port")
        return port

    def get(self, path: str, *, timeout: float = HANG) -> Answer:
        """Ask it.

        :raises OSError: it did not answer in time, or not at all.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=timeout)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return Answer(response.status, {**response.headers}, response.read())
        finally:
            connection.close()

    def wait_ready(self, path: str = "/health") -> None:
        """Wait until it answers."""

        def answers() -> bool:
            with contextlib.suppress(OSError):
                return self.get(path).status < 500
            return False

        until(answers, "the service is ready")

    def stop(self) -> int:
        """Ask it to end, as init systems do, and return its exit code once nothing of it is left."""
        self.process.terminate()
        code = self.process.wait(HANG)
        until(lambda: not remains(self.folder), f"nothing is left of {remains(self.folder)}")
        return code
