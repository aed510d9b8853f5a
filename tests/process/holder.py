"""A process with a workspace, meant to be killed: ``holder.py BACKEND TOKEN MODE FORK [no-pidfd]``.

Prints the workspace, the guard's pid and the pid of an unrelated forked child (0 for none), then compiles.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import anyio

from acache import _guardlink
from acache._process import open_workspace

FAKE = Path(__file__).with_name("fake_compiler.py")


def idle_for_ever() -> None:
    """Be like a data loader: inherit every descriptor, and know nothing."""
    while True:
        time.sleep(60)


async def main(token: str, mode: str, fork: bool) -> None:
    async with open_workspace(grace=1.0) as workspace:
        child = 0
        if fork:
            child = os.fork()
            if child == 0:
                idle_for_ever()
        print(workspace.path, workspace.path.name.split("-")[0], child, flush=True)
        await workspace.run(
            [sys.executable, "-I", "-S", str(FAKE), mode, "600"], env={"ACACHE_TEST_TOKEN": token}
        )


if __name__ == "__main__":
    if sys.argv[5:] == ["no-pidfd"]:  # an old kernel, or a sandbox
        del os.pidfd_open
        _guardlink.BOOT = "import posix\ndel posix.pidfd_open\n" + _guardlink.BOOT
    backend, uvloop = sys.argv[1].removesuffix("+uvloop"), sys.argv[1].endswith("+uvloop")
    anyio.run(
        main,
        sys.argv[2],
        sys.argv[3],
        sys.argv[4] == "fork",
        backend=backend,
        backend_options={"use_uvloop": True} if uvloop else {},
    )
