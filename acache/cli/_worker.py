"""One process of the demo: imports all it needs, says that it is ready, waits for the release, compiles.

It reads its orders and the release as lines on stdin, and writes what it has to say as JSON lines on stdout.
The end of stdin at any time means that whoever started it is gone: it stops, and its compiler with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio

from acache import Cache, Settings
from acache.cli import _choice, _kernels
from acache.compilers._nvrtc import LAUNCH_LOG

if TYPE_CHECKING:
    from acache import Artifact, Request

__all__ = ["BOOT", "Orders", "main"]

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop());"
    " from acache.cli._worker import main; sys.exit(main())"
)
"""What a fresh interpreter runs; the last argument is the parent's module path, as multiprocessing hands it
over: the worker then imports the very same acache, be it installed, editable or a folder."""

_STDIN, _STDOUT = 0, 1


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is to do."""

    directory: str
    coordinate: bool
    compiler: Literal["tileiras", "nvrtc", "cc"]
    executable: str
    """What runs: the counting pass-through."""
    toolchain: str
    """The compiler behind it, which is what the keys speak of."""
    kernels: int
    """How many of the catalogue, from its beginning."""
    launch_log: str | None = None
    """The file in which a compiler that is a library notes its launches."""

    def line(self) -> bytes:
        """Return the orders as the worker reads them."""
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> int:
    """Run one worker; returns its exit code: 0 done, 1 failed (and said why), 2 left alone."""
    line = _first_line()
    if not line:
        return 2
    orders = Orders(**json.loads(line))
    if orders.launch_log is not None:
        os.environ[LAUNCH_LOG] = orders.launch_log
    compiler = _choice.build(orders.compiler, orders.executable, orders.toolchain)
    # Making the requests imports the kernels, and with them cuda.tile.
    requests = [kernel.request(compiler) for kernel in _kernels.kernels(orders.compiler)[: orders.kernels]]
    return anyio.run(_serve, orders, requests)


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(_STDIN, 1)  # no more than the line: the release must stay in the pipe
        if not piece:
            return b""
        line += piece
    return line


async def _serve(orders: Orders, requests: list[Request]) -> int:
    _say(ready=True)
    await anyio.wait_readable(_STDIN)
    if not os.read(_STDIN, 1):
        return 2
    code = 2
    async with anyio.create_task_group() as group:
        group.start_soon(_watch, group.cancel_scope)
        try:
            artifacts = await _compile(orders, requests)
        except Exception as error:
            _say(error="\n".join(_reasons(error)))
            code = 1
        else:
            digests = {name: _digest(artifact) for name, artifact in artifacts.items()}
            spent = os.times()
            _say(digests=digests, children_cpu_s=spent.children_user + spent.children_system)
            code = 0
        group.cancel_scope.cancel()
    return code


async def _watch(scope: anyio.CancelScope) -> None:
    """Stop everything when stdin ends; nothing else comes on it."""
    await anyio.wait_readable(_STDIN)
    scope.cancel()


async def _compile(orders: Orders, requests: list[Request]) -> dict[str, Artifact]:
    """Ask for all kernels at once, as a server does that warms up."""
    found: dict[str, Artifact] = {}
    settings = Settings(coordinate=orders.coordinate)
    async with Cache(orders.directory, settings=settings) as cache, anyio.create_task_group() as group:
        for request in requests:
            group.start_soon(partial(_one, cache, request, found))
    return found


async def _one(cache: Cache, request: Request, found: dict[str, Artifact]) -> None:
    found[str(request.label)] = await cache.compile(request)


def _digest(artifact: Artifact) -> str:
    """Return a digest of all parts, their names and order."""
    running = hashlib.sha256()
    for name in artifact.parts:
        part = artifact.view(name)
        running.update(f"{name}\0{len(part)}\0".encode())
        running.update(part)
    return running.hexdigest()


def _reasons(error: BaseException) -> list[str]:
    """Return the errors in a tree of exception groups, each by its own words."""
    if isinstance(error, BaseExceptionGroup):
        return [reason for each in error.exceptions for reason in _reasons(each)]
    return [f"{type(error).__name__}: {error}"]


def _say(**what: Any) -> None:
    """Write one line; a pipe that nobody reads any more is no error of ours."""
    data = json.dumps(what).encode() + b"\n"
    while data:
        try:
            data = data[os.write(_STDOUT, data) :]
        except BrokenPipeError:
            return


if __name__ == "__main__":
    sys.exit(main())
