"""Hands artifacts out of a cache folder, to machines that do not share it: aiohttp and aiofiles.

    python downloads.py DIRECTORY [HOST [PORT]]

    curl --remote-name localhost:8080/artifacts/KEY     the first part
    curl localhost:8080/artifacts/KEY/map               a part by name

(pip install "acache[aiofiles]" aiohttp.) An artifact is read as fast as its client takes it, in chunks that
are never all in memory. The folder is only read here; others compile into it, and may evict or replace what
is being sent.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aiohttp import web

import acache
from acache.integrations.aiofiles import open_part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DIRECTORY = web.AppKey("directory", str)
CACHE = web.AppKey("cache", acache.Cache)


async def open_cache(app: web.Application) -> AsyncIterator[None]:
    """Keep a cache open as long as the service runs."""
    async with acache.Cache(app[DIRECTORY], settings=acache.Settings(mode="readonly")) as cache:
        app[CACHE] = cache
        yield


async def download(request: web.Request) -> web.StreamResponse:
    """Stream one part. What is announced by its size is checked; a transfer that fails ends short of it."""
    try:
        key = acache.Key.from_hex(request.match_info["key"])
        async with open_part(request.app[CACHE], key, request.match_info.get("part")) as part:
            if part is None:
                raise web.HTTPNotFound(text="no such artifact\n")
            response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
            response.content_length = part.size
            await response.prepare(request)
            async for chunk in part:
                await response.write(chunk)  # waits for a slow client; raises when it has gone
            await response.write_eof()
            return response
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from None
    except KeyError as error:
        raise web.HTTPNotFound(text=f"{error.args[0]}\n") from None


def application(directory: str) -> web.Application:
    """Put the service together."""
    app = web.Application()
    app[DIRECTORY] = directory
    app.cleanup_ctx.append(open_cache)
    app.add_routes(
        [
            web.get("/artifacts/{key}", download, allow_head=False),
            web.get("/artifacts/{key}/{part}", download, allow_head=False),
        ]
    )
    return app


if __name__ == "__main__":
    directory, *place = sys.argv[1:]
    host, port = [*place, *["127.0.0.1", "8080"][len(place) :]]
    web.run_app(application(directory), host=host, port=int(port))
