"""One process of a fleet: reads its orders, says ready, waits for the release, compiles, and reports.

Orders are one line of JSON on stdin, the release a second line; the report is one line of JSON on stdout.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import resource
import sys
import time

import anyio

import acache
from acache.compilers import Cc, Command, Nvrtc, Tileiras


def request_of(orders):
    kind = orders.get("compiler", "slow")
    if kind == "slow":
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slow_compiler.py")
        words = [orders["log"], str(orders.get("seconds", 0)), orders.get("mode", "ok"), "out"]
        argv = [sys.executable, "-I", "-S", script, *words]
        token = ("ACACHE_TEST_TOKEN",) if "ACACHE_TEST_TOKEN" in os.environ else ()
        return Command(argv, outputs=["out"], toolchain=script, env=token).request(
            orders.get("source", "source"), label=orders.get("label")
        )
    if kind == "nvrtc":
        return Nvrtc("sm_90").request(orders["source"], label=orders.get("label"))
    from examples.kernels import CC_OPTIONS, GPU_NAME, catalogue

    where = {"executable": orders["executable"], "toolchain": orders["toolchain"]}
    compiler = Cc(options=CC_OPTIONS, **where) if kind == "cc" else Tileiras(GPU_NAME, **where)
    return next(each for each in catalogue(kind) if each.name == orders["kernel"]).request(compiler)


async def work(orders):
    settings = acache.Settings(**orders.get("settings", {}))
    events = []
    report = {"pid": os.getpid()}

    def on_event(event):
        events.append(type(event).__name__)

    async with acache.Cache(orders.get("directory"), settings=settings, on_event=on_event) as cache:
        request = request_of(orders)
        await cache.key_of(request)  # the toolchain is read before the release
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        began = time.time()
        for attempt in range(orders.get("calls", 1)):
            try:
                artifact = await cache.compile(request, max_wait=orders.get("max_wait"))
            except acache.CompileError as error:
                report["error"] = {
                    "type": type(error).__name__,
                    "text": error.failure.text,
                    "reason": error.failure.reason,
                    "deterministic": error.failure.deterministic,
                }
            else:
                report["origin"] = artifact.origin.value
                report["digest"] = hashlib.sha256(artifact.data).hexdigest()
            report.setdefault("at", time.time())
            report["attempts"] = attempt + 1
        report["seconds"] = report["at"] - began
        stats = cache.stats()
        report["stats"] = {name: getattr(stats, name) for name in stats.__dataclass_fields__}
        report["events"] = events
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # guards, and what they waited for
    report["children_cpu"] = used.ru_utime + used.ru_stime
    print(json.dumps(report), flush=True)


def main():
    orders = json.loads(sys.stdin.readline())
    backend, options = orders["backend"]
    anyio.run(functools.partial(work, orders), backend=backend, backend_options=options)


if __name__ == "__main__":
    main()
