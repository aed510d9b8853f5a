"""A process that compiles several keys at once, round after round, until its input ends or it is killed.

Each line on stdin names a round: ``DIRECTORY LOG SECONDS NAME...``; the answer is a line of digests.
"""

from __future__ import annotations

import hashlib
import os
import sys

import anyio

import acache
from acache.compilers import Command

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "process", "slow_compiler.py")


async def main() -> None:
    print("ready", flush=True)
    settings = acache.Settings(heartbeat_interval=0.2, lease_ttl=3, max_compiles=8, memory_bytes=0)
    async with acache.Cache(sys.argv[2], settings=settings) as cache:
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            log, seconds, *names = line.split()
            argv = [sys.executable, "-I", "-S", SCRIPT, log, seconds, "ok", "out"]
            compiler = Command(argv, outputs=["out"], toolchain=SCRIPT, env=["ACACHE_TEST_TOKEN"])
            digests = {}

            async def one(name: str, compiler=compiler, digests=digests) -> None:
                artifact = await cache.compile(compiler.request(name))
                digests[name] = hashlib.sha256(artifact.data).hexdigest()

            async with anyio.create_task_group() as group:
                for name in names:
                    group.start_soon(one, name)
            print(*[digests[name] for name in names], flush=True)


if __name__ == "__main__":
    backend, uvloop = sys.argv[1].removesuffix("+uvloop"), sys.argv[1].endswith("+uvloop")
    anyio.run(main, backend=backend, backend_options={"use_uvloop": True} if uvloop else {})
