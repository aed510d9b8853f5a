"""A process that compiles some keys at once, round after round, until it is killed or kills itself.

Run as ``python worker.py BACKEND DIRECTORY``. Each line on stdin is a round, in JSON: the folder of the
``logs``, the ``keys``, ``seconds`` and ``mode`` of the compiler, and how to ``die``: the number of a file
operation, counted from here, at which the process kills itself (null: none), and whether ``before``, ``amid``
or ``after`` it. The answer is a line of digests, in JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from typing import Any

import anyio

import acache
from acache._fs import OsFileSystem
from acache.compilers import Command

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compiler.py")
OPERATIONS = [name for name in dir(OsFileSystem) if not name.startswith("_") and name != "process"]


def request(log: str, seconds: float, mode: str, key: str) -> acache.Request:
    """Return what every process of the test asks for."""
    argv = [sys.executable, "-I", "-S", SCRIPT, log, str(seconds), mode, "out"]
    command = Command(argv, outputs=["out"], toolchain=SCRIPT, env=["ACACHE_TEST_TOKEN"])
    return command.request(key, label=key)


class Mortal:
    """The real file system; the process dies at one of its operations, with no clean-up whatever."""

    def __init__(self) -> None:
        self._real = OsFileSystem()
        self._lock = threading.Lock()
        self._left: int | None = None
        self._how = ""
        self.process = self._real.process
        for name in OPERATIONS:
            setattr(self, name, self._mortal(name))

    def arm(self, number: int | None, how: str) -> None:
        """Die at the so many-th operation from now on; None: at none."""
        with self._lock:
            self._left, self._how = number, how

    def _mortal(self, name: str) -> Any:
        real = getattr(self._real, name)

        def operation(*arguments: Any) -> Any:
            with self._lock:
                if self._left is not None:
                    self._left -= 1
                    if self._left < 0:
                        self._die(name, arguments)
            return real(*arguments)

        return operation

    def _die(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self._how == "amid" and name == "create":
            whole = b"".join(bytes(chunk) for chunk in arguments[1])
            self._real.create(arguments[0], [whole[: len(whole) // 2]], False)
        elif self._how == "after":
            getattr(self._real, name)(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    fs = Mortal()
    cache = acache.Cache(sys.argv[2], settings=acache.Settings(max_compiles=8, memory_bytes=0))
    cache._fs = fs  # type: ignore[assignment]
    async with cache:
        print("ready", flush=True)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            orders = json.loads(line)
            digests = {}
            fs.arm(*orders["die"])

            async def one(key: str, orders=orders, digests=digests) -> None:
                log = os.path.join(orders["logs"], key)
                artifact = await cache.compile(request(log, orders["seconds"], orders["mode"], key))
                digests[key] = hashlib.sha256(artifact.data).hexdigest()

            async with anyio.create_task_group() as group:
                for key in orders["keys"]:
                    group.start_soon(one, key)
            print(json.dumps(digests), flush=True)


if __name__ == "__main__":
    backend, uvloop = sys.argv[1].removesuffix("+uvloop"), sys.argv[1].endswith("+uvloop")
    anyio.run(main, backend=backend, backend_options={"use_uvloop": True} if uvloop else {})
