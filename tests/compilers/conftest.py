"""What the compilers' tests share: derive a request's key, and compile it under a real guard."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from acache._keys import key
from acache._process import open_workspace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from acache._keys import Key
    from acache._models import Artifact, Request


@pytest.fixture
def key_of() -> Callable[[Request], Awaitable[Key]]:
    """Return a function that derives a request's key."""

    async def derive(request: Request) -> Key:
        return key(**await request.compiler.key_fields(request))

    return derive


@pytest.fixture
def build() -> Callable[[Request], Awaitable[Artifact]]:
    """Return a function that compiles a request in a workspace of its own."""

    async def compile(request: Request) -> Artifact:
        async with open_workspace(grace=1.0) as workspace:
            return await request.compiler.compile(request, workspace)

    return compile


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return a function that writes an executable shell script."""

    def write(name: str, body: str) -> Path:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        return path

    return write


@pytest.fixture
def overwrite() -> Callable[[Path, bytes], None]:
    """Return a function that rewrites a file in place: same inode, same mtime, as ``cp -p`` does."""

    def rewrite(path: Path, content: bytes) -> None:
        before = path.stat()
        with path.open("r+b") as file:
            file.truncate()
            file.write(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return rewrite
