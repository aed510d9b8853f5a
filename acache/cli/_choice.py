"""Which compiler the demo runs: found on this machine, or a sentence that says what to install."""

from __future__ import annotations

import importlib.util
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from acache._errors import CompilerNotFoundError
from acache._process import open_workspace
from acache.cli import _kernels
from acache.compilers import Cc, Nvrtc, Tileiras
from acache.compilers._nvrtc_library import find_nvrtc
from acache.compilers._tileiras import find_tileiras
from acache.compilers._toolchain import not_found

if TYPE_CHECKING:
    from collections.abc import Callable

    from acache.compilers import Compiler

__all__ = ["Choice", "Name", "build", "choose", "warm_up"]

Name: TypeAlias = Literal["tileiras", "nvrtc", "cc"]

_FLAGS: dict[Name, str | None] = {"tileiras": "-o", "nvrtc": None, "cc": "-c"}
"""The argument of every invocation that emits an object: the preprocessor and the questions of a fingerprint
have no ``-c``, and tileiras is only ever asked to compile. NVRTC is no program."""
_CALLED: dict[Name, str] = {"tileiras": "tileiras", "nvrtc": "NVRTC", "cc": "a C++ compiler"}
_CXX = ("g++", "c++", "clang++")
_BUILTINS: Final = re.compile(r"libnvrtc-builtins\.so\.(\d+)\.(\d+)")
_HAS_HEADERS: Final = (13, 5)
"""The release from which on NVRTC brings CUB, which the kernels include."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A compiler that is there."""

    name: Name
    program: str
    """Its absolute path; of NVRTC, the library's."""
    why: str
    """One clause for people: how it came to be this one."""

    @property
    def flag(self) -> str | None:
        """The argument by which a launch that emits an object is told from others; None: it is a library."""
        return _FLAGS[self.name]


def choose(asked: Name | Literal["auto"]) -> Choice:
    """Find the compiler that was asked for; ``auto`` takes tileiras, else NVRTC, else a C++ compiler. Blocks.

    :raises CompilerNotFoundError: there is none; says what to install.
    """
    find: dict[Name, Callable[[], str]] = {"tileiras": _tileiras, "nvrtc": _nvrtc, "cc": _cxx}
    if asked != "auto":
        return Choice(asked, find[asked](), "as asked")
    missing: dict[Name, str] = {}
    for name, finder in find.items():
        try:
            program = finder()
        except CompilerNotFoundError as error:
            missing[name] = error.failure.text
            continue
        wanted = [f"for want of {_CALLED[other]}: {text}" for other, text in missing.items()]
        return Choice(name, program, "; ".join(wanted) or "found on this machine")
    raise not_found("\n".join(missing.values()))


def _tileiras() -> str:
    program = find_tileiras(None)
    try:
        found = importlib.util.find_spec("cuda.tile")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise not_found(
            'the kernels are written in cuda-tile, which is not installed: pip install "acache[tile]"'
        )
    return program


def _nvrtc() -> str:
    installed = find_nvrtc()
    for path in installed.builtins:
        match = _BUILTINS.search(path)
        if match is not None and (int(match[1]), int(match[2])) < _HAS_HEADERS:
            raise not_found(
                f"NVRTC {match[1]}.{match[2]} does not bring the headers that the kernels include, as it "
                'does from 13.5 on: pip install --upgrade nvidia-cuda-nvrtc "acache[cuda]"'
            )
    return installed.libnvrtc


def _cxx() -> str:
    for name in _CXX:
        program = shutil.which(name)
        if program is not None:
            return program
    raise not_found(
        f"no C++ compiler ({', '.join(_CXX)}) is on PATH: install one (Debian, Ubuntu: apt-get install g++)"
    )


def build(name: Name, executable: str, toolchain: str) -> Compiler:
    """Make the compiler that runs ``executable`` and is keyed by ``toolchain``, with the kernels' options.

    NVRTC finds itself.
    """
    if name == "tileiras":
        return Tileiras(_kernels.gpu_name(), executable=executable, toolchain=toolchain)
    if name == "nvrtc":
        return Nvrtc(_kernels.cuda_target(), options=_kernels.cuda_options())
    return Cc(executable, options=_kernels.cc_options(), toolchain=toolchain)


async def warm_up(choice: Choice) -> None:
    """Do what a machine does once: else whoever came first would pay for it.

    That brings the toolchain into the page cache, and lays out NVRTC's own headers.

    :raises CompileError: the compiler vanished meanwhile, or cannot be used.
    """
    compiler: Any = build(choice.name, choice.program, choice.program)
    await compiler.fingerprint()
    if choice.name == "nvrtc":
        source = '#include <cuda/std/version>\nextern "C" __global__ void nothing() {}\n'
        async with open_workspace(grace=1.0) as workspace:
            await compiler.compile(compiler.request(source), workspace)
