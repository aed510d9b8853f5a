"""Folders that another user can reach, and mounts that are gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.process.procs import HERE, alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def place() -> Iterator[Path]:
    """Return an empty folder that every user may enter and read (pytest's own are closed to others)."""
    folder = Path(tempfile.mkdtemp(prefix="acache-faults-"))
    folder.chmod(0o755)
    for parent in folder.parents:
        if not parent.stat().st_mode & 0o001:
            folder.rmdir()
            pytest.skip(f"other users cannot enter {parent}")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def mount(place: Path) -> Iterator[Callable[..., Path]]:
    """Return ``mount(type, options, source)``, which mounts on a new folder below `place`."""
    with contextlib.ExitStack() as stack:

        def do(kind: str, options: str, source: str | Path = "none") -> Path:
            target = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=place))
            target.chmod(0o755)
            kind_words = ["-t", kind] if kind != "bind" else []
            done = subprocess.run(
                ["mount", *kind_words, "-o", options, str(source), str(target)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                pytest.skip(f"cannot mount {kind} here: {done.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", str(target)], check=True)
            return target

        yield do


@pytest.fixture
def token() -> Iterator[str]:
    """Return a token for the environment of workers; whoever still has it at the end is killed."""
    token = f"token-{os.urandom(8).hex()}"
    yield token
    for pid in alive(token):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def interpreter() -> str:
    """Return an interpreter that another user may run, if possible this one."""
    readable = all(parent.stat().st_mode & 0o005 == 0o005 for parent in [HERE, *HERE.parents])
    for path in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        if path is None or not readable:
            continue
        probe = ["-I", "-S", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        script = 'exec "$0" "$@"'  # a shell of that user: setpriv itself may still reach what it may not
        words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", script]
        if subprocess.run([*words, path, *probe], capture_output=True, check=False).returncode == 0:
            return path
    pytest.skip("another user cannot run this interpreter, or read this checkout")
