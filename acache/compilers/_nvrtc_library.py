"""Where NVRTC is: the bindings, the library and its built-ins, found without importing or loading any.

A program on a GPU may have an NVRTC of its own loaded, and a worker is told by path which to load: so what is
fingerprinted is what compiles.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from acache.compilers._toolchain import not_found

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Installed", "find_nvrtc"]

_HINT: Final = 'pip install "acache[cuda]"'
_VERSION: Final = re.compile(r"cuda_bindings-(\d+)\.")
_LIBRARY: Final = re.compile(r"libnvrtc\.so\.(\d+)(?:\.\d+)*")
_VARIABLES: Final = ("CUDA_PATH", "CUDA_HOME", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Installed:
    """What a worker needs of the NVRTC that is installed."""

    folders: tuple[str, ...]
    """Entries of ``sys.path`` that hold the ``cuda`` packages."""
    libnvrtc: str
    builtins: tuple[str, ...]
    """The libraries that it loads when it compiles: they lie beside it."""


_found: dict[tuple[str, ...], Installed] = {}


def find_nvrtc(path: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Installed:
    """Find the bindings on ``sys.path``, and a library of the same major version. Blocks.

    The library is looked for in the Python packages, in the environment's own ``lib`` (conda), below
    ``CUDA_PATH`` and ``CUDA_HOME``, on ``LD_LIBRARY_PATH``, and where toolkits are usually put. What was
    found is remembered in this process for as long as it is there.

    :raises CompilerNotFoundError: either is missing; the text names what to install.
    """
    path = sys.path if path is None else path
    environ = os.environ if environ is None else environ
    where = (*path, *(f"{name}={environ.get(name)}" for name in _VARIABLES))
    known = _found.get(where)
    if known is None or not all(map(os.path.isfile, (known.libnvrtc, *known.builtins))):
        known = _found[where] = _find(path, environ)
    return known


def _find(path: Sequence[str], environ: Mapping[str, str]) -> Installed:
    entries = [entry for entry in dict.fromkeys(path) if os.path.isabs(entry)]
    folders = tuple(entry for entry in entries if os.path.isdir(os.path.join(entry, "cuda")))
    home = next((entry for entry in folders if _has_bindings(Path(entry))), None)
    if home is None:
        raise not_found(f"cuda.bindings is not installed: {_HINT}")
    found = [match[1] for name in _listed(Path(home)) if (match := _VERSION.match(name))]
    wanted = int(found[0]) if found else None
    for place in _places(entries, environ, wanted):
        candidates = [
            (int(match[1]), name)
            for name in _listed(place)
            if (match := _LIBRARY.fullmatch(name)) and wanted in (None, int(match[1]))
        ]
        if candidates:
            library = os.path.realpath(place / max(candidates)[1])
            beside = Path(library).parent
            # one per version; the names of one version are links to one file
            builtins = {os.path.realpath(each) for each in beside.glob("libnvrtc-builtins.so.*")}
            return Installed(folders, library, tuple(sorted(builtins)))
    release = f" {wanted}" if wanted else ""
    raise not_found(f"NVRTC{release} (libnvrtc.so) is not installed: {_HINT}")


def _has_bindings(entry: Path) -> bool:
    return any(name.startswith("nvrtc.") for name in _listed(entry / "cuda" / "bindings"))


def _places(entries: Sequence[str], environ: Mapping[str, str], major: int | None) -> Iterator[Path]:
    """Yield the folders in which the library may be, the best first."""
    for entry in entries:
        nvidia = Path(entry, "nvidia")
        yield nvidia / f"cu{major or ''}" / "lib"
        yield nvidia / "cuda_nvrtc" / "lib"
    yield Path(sys.prefix, "lib")
    for name in _VARIABLES[:2]:
        if toolkit := environ.get(name):
            yield from (Path(toolkit, "lib64"), Path(toolkit, "lib"))
    yield from map(Path, filter(None, environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    toolkits = sorted(Path("/usr/local").glob(f"cuda-{major or ''}*"), reverse=True)
    for root in [Path("/usr/local/cuda"), *toolkits]:
        yield from (Path(root, "lib64"), Path(root, "lib"))
    yield from sorted(Path("/usr/lib").glob("*-linux-gnu"))
    yield Path("/usr/lib64")


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
