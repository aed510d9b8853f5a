"""Runs a tool under one limit after the other on this user's processes, then under a guard that alone is
limited; prints how each attempt ended.
"""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING

import anyio

from acache._errors import CompilerCrashedError
from acache._process import open_workspace, run_tool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from acache._models import Completed

ECHO = ["/bin/echo", "fine"]


async def attempt(run: Callable[[], Awaitable[Completed]]) -> None:
    try:
        done = await run()
    except CompilerCrashedError as error:
        whose = "guard" if "guard" in error.failure.text else "compiler"
        print(f"{error.failure.reason} {whose}", flush=True)
    else:
        print(done.stdout.decode().strip(), flush=True)


async def under_a_limited_guard() -> Completed:
    async with open_workspace(grace=1) as workspace:
        resource.prlimit(int(workspace.path.name.split("-")[0]), resource.RLIMIT_NPROC, (1, 1))
        return await workspace.run(ECHO)


async def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    for limit in [*range(1, 11), 200]:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, hard))
        await attempt(lambda: run_tool(ECHO, timeout=30))
    await attempt(under_a_limited_guard)


if __name__ == "__main__":
    backend, uvloop = sys.argv[1].removesuffix("+uvloop"), sys.argv[1].endswith("+uvloop")
    anyio.run(main, backend=backend, backend_options={"use_uvloop": True} if uvloop else {})
