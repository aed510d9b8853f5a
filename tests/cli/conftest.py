"""What the tests of the command line share: a runner, leases laid by hand, and a fake C++ compiler."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from acache._format import (
    Caption,
    Record,
    encode_artifact,
    encode_cheap,
    encode_failure,
    encode_record,
)
from acache._fs import OsFileSystem
from acache._keys import Key, name_of
from acache._models import Artifact, CompileFailure
from acache._settings import Settings
from acache._store import fresh_nonce
from acache.cli._app import app
from acache.cli._place import place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from acache._store import Layout

NAME = "ab" * 32
NONCE = "0f" * 16

# Preprocesses to a line that names the file, and "compiles" its standard input by copying it. Files in its
# folder change that: with `refuse` it reports a compile error, with `die` it ends by a signal, with `hang` it
# sleeps and notes its pid in `asleep`.
_FAKE_CXX = """\
#!/bin/sh
here=${0%/*}
mode= out= source=
while [ $# -gt 0 ]; do
    case $1 in
    -E | -c) mode=$1 ;;
    -o) out=$2; shift ;;
    -print-prog-name=*) exit 0 ;;
    *) source=$1 ;;
    esac
    shift
done
case $mode in
-E) echo "# 1 \\"$source\\"" >"$out" ;;
-c)
    [ ! -e "$here/die" ] || kill -9 $$
    [ ! -e "$here/hang" ] || { echo $$ >>"$here/asleep"; exec /bin/sleep 600; }
    [ ! -e "$here/refuse" ] || { echo "a.cc:7:3: error: no such thing as 'kernel'" >&2; exit 1; }
    while read -r line; do echo "$line"; done >"$out"
    ;;
esac
"""


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what would change the commands' answers: settings, and the width of the terminal."""
    for name in list(os.environ):
        if name.startswith("ACACHE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture
def acache() -> Callable[..., Result]:
    """Run the command line in this process."""

    def invoke(*args: str) -> Result:
        return CliRunner().invoke(app, list(args), prog_name="acache", catch_exceptions=False)

    return invoke


@pytest.fixture
def layout(cache_dir: Path) -> Layout:
    """Return the layout of the test's cache folder."""
    return place_of(str(cache_dir), Settings()).layout


@pytest.fixture
def lay(layout: Layout) -> Callable[..., Path]:
    """Lay a lease record as a holder would, and return its file."""

    def write(name: str = NAME, follows: str | None = None, nonce: str = NONCE, **fields: Any) -> Path:
        tail = fields.pop("tail", {})
        record = Record(nonce, ttl_ms=15000, interval_ms=2000, tail=tail, **fields)
        slot = Path(layout.paths(name).slot(follows))
        slot.parent.mkdir(parents=True, exist_ok=True)
        slot.write_bytes(encode_record(record))
        return slot

    return write


@pytest.fixture
def shelve(layout: Layout) -> Callable[..., Path]:
    """Lay an artifact, a cheap mark or a failure as a cache would, and return its file."""

    def write(
        key: Key,
        content: Artifact | CompileFailure | float | None = None,
        *,
        namespace: str | None = None,
        label: str | None = None,
        compiler: str | None = None,
        seconds: float = 1.0,
        created: float = 0.0,
        used: float | None = None,
    ) -> Path:
        caption = Caption(
            key.hex, namespace, fresh_nonce(), label, key.fields, created or time.time(), compiler
        )
        paths = layout.paths(name_of(key, namespace))
        path = Path(paths.err if isinstance(content, CompileFailure) else paths.art)
        if isinstance(content, CompileFailure):
            chunks = encode_failure(caption, content, NONCE)
        elif isinstance(content, float):
            chunks = encode_cheap(caption, content)
        else:
            chunks = encode_artifact(caption, content or Artifact.of(b"artifact"), seconds)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(chunks))
        if used is not None:
            os.utime(path, (used, used))
        return path

    return write


WRITES = ("create", "link", "rename", "unlink", "mkdir", "touch", "open_rw", "pwrite", "sync_folder")


@pytest.fixture
def only_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail every operation that would change a cache directory."""
    for name in WRITES:

        def refuse(*arguments: object, name: str = name) -> None:
            raise AssertionError(f"a command that only reads called {name}{arguments}")

        monkeypatch.setattr(OsFileSystem, name, refuse)


@pytest.fixture
def fake_cxx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a fake ``g++`` where alone programs are looked up, and return its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "g++"
    program.write_text(_FAKE_CXX)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))
    return folder
