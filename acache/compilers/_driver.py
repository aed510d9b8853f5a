"""What a gcc-like driver runs and loads: asked of it and of the dynamic loader, and remembered."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING, Final

from acache._process import run_tool
from acache.compilers._diagnostics import error_of
from acache.compilers._toolchain import digest_files, identity, in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

__all__ = ["ASK_SECONDS", "fingerprint_of", "parts_of"]

ASK_SECONDS: Final = 120.0
"""A driver that takes this long to answer is stuck, on a network mount or a pipe it should not read."""
_SCRIPT: Final = """
driver=$1; names=$2; shift 2
ldd "$driver" 2>/dev/null || :
for name in $names; do
    found=$("$driver" "$@" -print-prog-name=$name 2>/dev/null) && found=$(command -v "$found") || continue
    echo "program $found"
    ldd "$found" 2>/dev/null || :
done
"""
_SYSTEM_LIBRARY: Final = re.compile(r"(?:ld-linux.*|ld-musl.*|libc|libdl|libpthread|librt)\.so")
"""The C library generates no code, and would part hosts of different patch levels that could share."""

_toolchains: dict[tuple[str, ...], tuple[tuple[int, ...], tuple[str, ...]]] = {}


async def parts_of(
    driver: str, options: Sequence[str], programs: Sequence[str], *, env: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the files that do a driver's work: itself, the programs named, and the libraries of all these.

    :param driver: gcc, clang, or what answers ``-print-prog-name`` as they do; an absolute path.
    :param options: those that decide which programs it runs (``-B``, ``-m32``).
    :param env: what `acache.compilers.Workspace.run` takes.
    :raises CompileError: the driver cannot be asked.
    """
    argv = ["/bin/sh", "-c", _SCRIPT, "sh", driver, " ".join(programs), *options]
    completed = await run_tool(argv, env=env, cwd="/", timeout=ASK_SECONDS)
    if not completed.ok:
        raise error_of(completed)
    return await in_thread(_files, driver, completed.stdout.decode("utf-8", "surrogateescape"))


def _files(driver: str, report: str) -> tuple[str, ...]:
    """Read the answer of the script: ``program PATH`` lines, and ldd's ``name => path (address)``."""
    files = {os.path.realpath(driver)}
    for line in report.splitlines():
        words = line.split()
        if line.startswith("program "):
            path = shutil.which(line.removeprefix("program "))
        elif "=>" in words and len(words) >= 3 and not _SYSTEM_LIBRARY.match(words[0]):
            path = words[2] if words[2].startswith("/") else None
        else:
            path = None
        if path is not None and os.path.isfile(path):
            files.add(os.path.realpath(path))
    return tuple(sorted(files))


async def fingerprint_of(
    driver: str, question: Sequence[str], ask: Callable[[str], Awaitable[tuple[str, ...]]], name: str
) -> str:
    """Return a digest of the content of what a driver runs and loads, and of a name.

    Which files these are is asked once in a process, and again when the driver changes or one of them is
    gone; their content is looked at each time.

    :param driver: an absolute path.
    :param question: what else the answer depends on, besides the ``PATH``.
    :param ask: finds the files.
    """
    whole = (driver, os.environ.get("PATH", ""), *question)
    now = await in_thread(identity, driver)
    known = _toolchains.get(whole)
    if known is None or known[0] != now:
        known = _toolchains[whole] = (now, await ask(driver))
    try:
        return await in_thread(digest_files, known[1], name)
    except FileNotFoundError:  # a part moved: ask again
        known = _toolchains[whole] = (now, await ask(driver))
        return await in_thread(digest_files, known[1], name)
