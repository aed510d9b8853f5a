"""Runs a tool under one limit after the other on this user's processes; prints how each attempt ended."""

from __future__ import annotations

import resource
import sys

import anyio

from acache._errors import CompilerCrashedError
from acache._process import run_tool


async def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    for limit in [*range(1, 12), 200]:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, hard))
        try:
            done = await run_tool(["/bin/echo", "fine"], timeout=30)
        except CompilerCrashedError as error:
            whose = "guard" if "guard" in error.failure.text else "compiler"
            print(f"{error.failure.reason} {whose}", flush=True)
        else:
            print(done.stdout.decode().strip(), flush=True)


if __name__ == "__main__":
    backend, uvloop = sys.argv[1].removesuffix("+uvloop"), sys.argv[1].endswith("+uvloop")
    anyio.run(main, backend=backend, backend_options={"use_uvloop": True} if uvloop else {})
