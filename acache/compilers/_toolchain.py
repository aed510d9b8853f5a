"""What the compilers share: finding programs, digesting toolchains, reading inputs, the environment.

Everything that reads a file runs on worker threads of a limiter of its own, so that a slow disk holds up
neither the event loop nor the application's threads. The reads are local and short; cancellation waits for
them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import xxhash

from acache._errors import CompilerNotFoundError
from acache._models import CompileFailure
from acache._threads import Crew, NoThreadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "Location",
    "check_env",
    "check_location",
    "digest_files",
    "environment",
    "find_packaged",
    "find_program",
    "in_thread",
    "not_found",
    "passed",
    "read_source",
    "strings",
]

T = TypeVar("T")
Location: TypeAlias = "str | os.PathLike[str]"

_CHUNK: Final = 1 << 20
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_crew: Final = Crew("acache_compilers_threads", 4)


async def in_thread(function: Callable[..., T], *args: object) -> T:
    """Call a blocking function in a worker thread, a few at most at once; cancellation waits for it.

    Where there is no thread to be had, it holds up the loop: better than no kernel.
    """
    try:
        return await _crew.run(function, *args)
    except NoThreadError:
        return function(*args)


# --- checking arguments -------------------------------------------------------------------------------------


def strings(what: str, values: Iterable[str]) -> tuple[str, ...]:
    """Return the values as a tuple.

    :raises TypeError: a lone string, or an element that is not a str.
    :raises ValueError: an element holds a NUL byte, which no argument of a program can.
    """
    if isinstance(values, str | bytes):
        raise TypeError(f"{what} must be a sequence of strings, not one string: [{values!r}]")
    found = tuple(values)
    for index, value in enumerate(found):
        if not isinstance(value, str):
            raise TypeError(f"{what}[{index}] must be a str, not {type(value).__name__}")
        if "\0" in value:
            raise ValueError(f"{what}[{index}] holds a NUL byte")
    return found


def check_env(names: Iterable[str]) -> tuple[str, ...]:
    """Return an allow-list of environment variables, sorted and without repetition.

    :raises ValueError: a name that no variable can have; ``TMPDIR``, which is the workspace.
    """
    found = strings("env", names)
    for name in found:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"env lists names of environment variables, and {name!r} is none")
        if name == "TMPDIR":
            raise ValueError("TMPDIR cannot be passed on: every compile has a private one")
    return tuple(sorted(set(found)))


def check_location(what: str, value: object) -> None:
    """Refuse what names no program.

    :raises TypeError: neither str nor a path.
    :raises ValueError: empty, or with a NUL byte.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{what} must be a str or a path, not {type(value).__name__}")
    text = os.fspath(value)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"{what} must name a program, and {value!r} does not")


# --- the environment ----------------------------------------------------------------------------------------


def environment(names: Sequence[str]) -> dict[str, str | None]:
    """Return the present values of the variables on an allow-list; None for one that is not set."""
    return {name: os.environ.get(name) for name in names}


def passed(variables: Mapping[str, str | None]) -> dict[str, str]:
    """Return what a program is given of it: only what is set."""
    return {name: value for name, value in variables.items() if value is not None}


# --- files --------------------------------------------------------------------------------------------------


def find_program(location: Location, hint: str) -> str:
    """Return the absolute path of a program: looked up on PATH, or a path if it has a separator. Blocks.

    Symbolic links are kept, since some compilers act by the name they are called by.

    :raises CompilerNotFoundError: there is none; ``hint`` says what to install.
    """
    name = os.fspath(location)
    found = shutil.which(name)
    if found is None:
        raise not_found(f"{name!r} was not found: {hint}")
    return os.path.abspath(found)


def find_packaged(name: str) -> str | None:
    """Return the path of a program of NVIDIA's Python packages, of the newest release that has it. Blocks."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except ValueError:  # somebody put a module without a spec there
        spec = None
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        releases = Path(folder).glob("cu[0-9]*")
        for release in sorted(releases, key=lambda path: (len(path.name), path.name), reverse=True):
            if os.access(release / "bin" / name, os.X_OK):
                return str(release / "bin" / name)
    return None


def not_found(text: str) -> CompilerNotFoundError:
    """Make the error for a compiler that is not installed."""
    return CompilerNotFoundError(CompileFailure(reason="missing", text=text))


def read_source(source: object) -> bytes:
    """Return the content of a source: text as UTF-8, bytes as they are, a path's file. Blocks for a path.

    :raises OSError: the file cannot be read.
    """
    if isinstance(source, str):
        return source.encode("utf-8", "surrogateescape")
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, os.PathLike):
        return Path(source).read_bytes()
    raise TypeError(f"a source is str, bytes or a path, not {type(source).__name__}")


# --- fingerprints -------------------------------------------------------------------------------------------

_Identity: TypeAlias = tuple[int, int, int, int, int]
_digests: dict[str, tuple[_Identity, str]] = {}
_digests_lock = threading.Lock()


def identity(path: str) -> _Identity:
    """Return what changes whenever a file's content may have changed.

    Device, inode, size and mtime tell a replaced or rewritten file; the change time, which no program can
    set, tells one that was rewritten in place and given its old mtime back (``cp -p`` over a compiler).
    """
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(path: str) -> str:
    known = _digests.get(path)
    before = identity(path)
    while known is None or known[0] != before:
        running = xxhash.xxh3_128()
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                running.update(chunk)
        after = identity(path)
        if after == before:  # else it was written while we read it: a mixture, which names nothing
            known = (after, running.hexdigest())
            with _digests_lock:
                _digests[path] = known
        before = after
    return known[1]


def digest_files(paths: Iterable[str], name: str = "") -> str:
    """Return one digest of the content of a toolchain's files (and of a name, where that matters). Blocks.

    Each file's content is digested by xxh3-128, as fast as the page cache gives it (a toolchain has some 200
    MB, and sha256 would cost as much as a small compile); nobody gains by forging it who can replace the
    compiler anyway. Digests are remembered in this process by the file's `identity`. The list of them is
    digested by sha256, by base name and not by folder, so that the same toolchain in another place has the
    same fingerprint.

    :raises OSError: a file cannot be read.
    """
    lines = sorted({f"{os.path.basename(path)}\0{_digest(os.path.realpath(path))}" for path in paths})
    return hashlib.sha256("\n".join([name, *lines]).encode("utf-8", "surrogateescape")).hexdigest()
