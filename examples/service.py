"""A service that compiles inside a request, for clients that do not wait for it. One file, two event loops:

    uvicorn --workers 4 --loop uvloop service:app
    hypercorn --workers 4 --worker-class trio service:app

(pip install starlette uvicorn uvloop, or starlette "hypercorn[trio]".) Then, while the compiler takes three
seconds:

    curl --max-time 1 localhost:8000/kernels/softmax    gives up; the compile goes on
    curl localhost:8000/kernels/softmax?wait=0.5        503: who compiles it, for how long, when to come back
    curl localhost:8000/kernels/softmax                 the kernel; whichever worker answers, it compiled once
    curl localhost:8000/health                          answers all the while

All workers share one cache folder (ACACHE_DIR, else the user's cache folder). SERVICE_SECONDS says how long
the compiler takes, SERVICE_COMPILER names another script in its place.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import acache

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

KERNELS = {
    "softmax": "def softmax(x):\n    e = [2.718281828 ** v for v in x]\n    return [v / sum(e) for v in e]\n",
    "scale": "def scale(x, by):\n    return [v * by for v in x]\n",
    "broken": "def broken(x:\n",
}
SCRIPT = Path(os.environ.get("SERVICE_COMPILER", Path(__file__).with_name("slow_compiler.py")))

# Put your own compiler here: Nvrtc, Nvcc, Tileiras, Cc, or any program. The script of this one is an input
# any other, so a key holds its content and not its place.
COMPILER = acache.compilers.Command(
    [
        sys.executable,
        "-I",
        "-S",
        "compiler.py",
        os.environ.get("SERVICE_SECONDS", "3"),
        "kernel.py",
        "kernel",
    ],
    inputs=["compiler.py", "kernel.py"],
    outputs=["kernel"],
)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, acache.Cache]]:
    """Open one cache per worker process. Closing it stops what still compiles, so nothing is left behind."""
    async with acache.Cache() as cache:
        yield {"cache": cache}


async def kernel(request: Request) -> Response:
    """Answer with the compiled kernel, or with 503 when that takes longer than ``?wait=`` seconds."""
    cache: acache.Cache = request.state.cache
    name = request.path_params["name"]
    if name not in KERNELS:
        return PlainTextResponse(f"no kernel {name!r}; there are {', '.join(KERNELS)}\n", 404)
    wanted = COMPILER.request({"compiler.py": SCRIPT, "kernel.py": KERNELS[name]}, label=name)
    match await compiled(cache, wanted, request, float(request.query_params.get("wait", "60"))):
        case acache.Artifact() as artifact:
            return Response(artifact.data, headers={"X-Origin": str(artifact.origin)})
        case acache.CompileError() as error:  # the compiler's own words; shared by all who asked for it
            return PlainTextResponse(f"{error}\n", 422)
        case None:
            return await busy(cache, wanted)


async def compiled(
    cache: acache.Cache, wanted: acache.Request, request: Request, seconds: float
) -> acache.Artifact | acache.CompileError | None:
    """Get the artifact, or the compiler's error; None after so many seconds, or when the client has gone.

    Whoever leaves only takes itself off: by default (``on_abandon="finish"``) the compile goes on and is
    published even without a caller, so that the next request is a hit.
    """
    outcome: acache.Artifact | acache.CompileError | None = None
    async with anyio.create_task_group() as group:

        async def until_client_leaves() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(until_client_leaves)
        with anyio.move_on_after(seconds):
            try:
                outcome = await cache.compile(wanted)
            except acache.CompileError as error:
                outcome = error
        group.cancel_scope.cancel()
    return outcome


async def busy(cache: acache.Cache, wanted: acache.Request) -> Response:
    """Say who compiles it, in whichever process of whichever host, and when to come back."""
    status = await cache.status(await cache.key_of(wanted))
    left = 1.0 if status.usual is None or status.age is None else max(1.0, status.usual - status.age)
    seen = {"state": status.state, "host": status.host, "pid": status.pid, "age": status.age}
    return JSONResponse(seen, 503, headers={"Retry-After": str(math.ceil(left))})


async def health(request: Request) -> Response:
    """Answer at once, also while this very process compiles: nothing of that runs on the event loop."""
    stats = request.state.cache.stats()
    return JSONResponse(
        {"pid": os.getpid(), "compiles": stats.compiles, "hits": stats.disk_hits + stats.memory_hits}
    )


app = Starlette(routes=[Route("/kernels/{name}", kernel), Route("/health", health)], lifespan=lifespan)
