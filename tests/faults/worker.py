"""One process of a fleet that meets a hostile directory: run it as ``Fleet(..., prefix=COMMAND)``.

Speaks like ``fleet_worker.py`` (orders, ``ready``, release, report: lines of JSON), and can besides become
another user once everything is imported, lose variables of its environment, set its umask, refuse links,
be short of processes, fork a child in the middle of a compile, and compile in a coroutine of its own, which
needs no other program that the user could execute.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import json
import logging
import os
import resource
import sys
import time
from importlib import import_module

import anyio
import platformdirs  # noqa: F401  (what is imported late could not be read by another user)

import acache
from acache._fs import OsFileSystem
from acache.compilers import Command

COMMAND = [sys.executable, os.path.abspath(__file__)]
"""What a `Fleet` takes as its prefix; the worker that it would have run is ignored."""
PR_SET_DUMPABLE = 4


class Linkless(OsFileSystem):
    """A file system without hard links (vfat, exFAT)."""

    def link(self, source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source)


class Memory(logging.Handler):
    """Keeps what is said at WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def become(orders) -> None:
    """Turn into the process that the orders describe."""
    for name in orders.get("unset", ()):
        os.environ.pop(name, None)
    if "umask" in orders:
        os.umask(orders["umask"])
    if "uid" in orders:
        os.setgroups(orders.get("groups", []))
        os.setresgid(*[orders.get("gid", orders["uid"])] * 3)
        os.setresuid(*[orders["uid"]] * 3)
        # Else /proc/self belongs to root, as no process's does that was started by this user.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        if orders.get("interpreter"):
            sys.executable = orders["interpreter"]
    if "processes" in orders:
        resource.setrlimit(resource.RLIMIT_NPROC, (orders["processes"],) * 2)


async def fork_when_launched(orders) -> None:
    """Be like a program that starts a data loader: the child inherits every descriptor, and knows nothing."""
    while not os.path.exists(orders["log"]):  # noqa: ASYNC110, ASYNC240
        await anyio.sleep(0.01)
    child = os.fork()
    if child == 0:
        for fd in range(3):  # but for what would make this very test wait
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        while True:
            time.sleep(60)  # noqa: ASYNC251
    with open(orders["fork"] + ".new", "w", encoding="ascii") as file:  # noqa: ASYNC230
        file.write(str(child))
    os.rename(orders["fork"] + ".new", orders["fork"])


def compile_of(orders, report, key):
    payload = hashlib.sha256(bytes(key)).digest() * (orders.get("size", 4096) // 32)

    async def compile() -> bytes:
        began = time.monotonic()
        await anyio.sleep(orders.get("seconds", 0))
        report["spans"].append([began, time.monotonic()])
        return payload

    return compile


def request_of(orders):
    script = os.path.join(os.path.dirname(COMMAND[1]), os.pardir, "process", "slow_compiler.py")
    words = [orders["log"], str(orders.get("seconds", 0)), orders.get("mode", "ok"), "out"]
    argv = [sys.executable, "-I", "-S", script, *words]
    token = ("ACACHE_TEST_TOKEN",) if "ACACHE_TEST_TOKEN" in os.environ else ()
    return Command(argv, outputs=["out"], toolchain=script, env=token).request(
        orders.get("source", "source"), label=orders.get("label")
    )


async def work(orders) -> None:
    said = Memory()
    logger = logging.getLogger("acache")
    logger.addHandler(said)
    logger.propagate = False
    report = {"pid": os.getpid(), "spans": [], "warnings": said.said, "errors": []}
    # The loop is imported and running by now, so nothing more has to be read from this user's folders.
    import_module("acache._sweep")
    become(orders)
    report["uid"] = os.getuid()
    events = []
    settings = acache.Settings(**orders.get("settings", {}))
    cache = acache.Cache(
        orders.get("directory"), settings=settings, on_event=lambda event: events.append(type(event).__name__)
    )
    if orders.get("linkless"):
        cache._fs = Linkless()
    key = acache.key(source=orders.get("source", "source"))
    async with cache, anyio.create_task_group() as group:
        print("ready", flush=True)
        sys.stdin.readline()  # on the loop: who is short of processes has no thread for it
        if "fork" in orders:
            group.start_soon(fork_when_launched, orders)
        for _ in range(orders.get("calls", 1)):
            try:
                if orders.get("job") == "command":
                    artifact = await cache.compile(request_of(orders), max_wait=orders.get("max_wait"))
                else:
                    artifact = await cache.get_or_compile(
                        key, compile_of(orders, report, key), max_wait=orders.get("max_wait")
                    )
            except Exception as error:
                report["errors"].append(f"{type(error).__name__}: {error}")
            else:
                report["origin"] = artifact.origin.value
                report["digest"] = hashlib.sha256(artifact.data).hexdigest()
            report.setdefault("at", time.time())
        stats = cache.stats()
        report["stats"] = {name: getattr(stats, name) for name in stats.__dataclass_fields__}
        report["events"] = events
    print(json.dumps(report), flush=True)


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    backend, options = orders["backend"]
    anyio.run(functools.partial(work, orders), backend=backend, backend_options=options)


if __name__ == "__main__":
    main()
