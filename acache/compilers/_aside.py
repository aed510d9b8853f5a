"""Run a program that writes one file, beside any compile: a preprocessor, whose text may be of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acache._process import aside
from acache.compilers._toolchain import in_thread

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from acache._models import Completed
    from acache._process import GuardedWorkspace

__all__ = ["run_aside"]


async def run_aside(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: bytes | None,
    cwd: str | os.PathLike[str],
    seconds: float,
) -> tuple[Completed, bytes]:
    """Run a program in a throw-away workspace; return how it ended and what it wrote to ``{output}``.

    The argument ``{output}`` stands for a file in the workspace; nothing written there is an empty file. If
    the guard is killed, the program runs once more. Cancellation stops it and all that it started.

    :param seconds: how long it may take, the guard's start included.
    :raises CompileTimeoutError: it took longer.
    :raises CompilerNotFoundError: there is no such program.
    :raises CompilerCrashedError: it, or its guard, could not be started, or two guards were killed.
    """

    async def run(workspace: GuardedWorkspace) -> tuple[Completed, bytes]:
        output = workspace.path / "output"
        words = [str(output) if word == "{output}" else word for word in argv]
        completed = await workspace.run(words, env=env, stdin=stdin, cwd=cwd)
        return completed, await in_thread(_content, output)

    return await aside(run, name=argv[0], timeout=seconds)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
