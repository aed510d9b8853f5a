"""Which compiler the demo runs: found on this machine, or a sentence that says what to install."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from acache._errors import CompilerNotFoundError
from acache.cli import _kernels
from acache.compilers import Cc, Tileiras
from acache.compilers._tileiras import find_tileiras
from acache.compilers._toolchain import not_found

if TYPE_CHECKING:
    from acache.compilers import Compiler

__all__ = ["Choice", "Name", "build", "choose"]

Name: TypeAlias = Literal["tileiras", "cc"]

_FLAGS: dict[Name, str] = {"tileiras": "-o", "cc": "-c"}
"""The argument of every invocation that emits an object: the preprocessor and the questions of a fingerprint
have no ``-c``, and tileiras is only ever asked to compile."""
_CXX = ("g++", "c++", "clang++")


@dataclass(frozen=True, slots=True)
class Choice:
    """A compiler that is there."""

    name: Name
    program: str
    """Its absolute path."""
    why: str
    """One clause for people: how it came to be this one."""

    @property
    def flag(self) -> str:
        """The argument by which a launch that emits an object is told from others."""
        return _FLAGS[self.name]


def choose(asked: Name | Literal["auto"]) -> Choice:
    """Find the compiler that was asked for; ``auto`` takes tileiras, else a C++ compiler. Blocks.

    :raises CompilerNotFoundError: there is none; says what to install.
    """
    if asked == "cc":
        return _cxx("as asked")
    try:
        return _tileiras("as asked" if asked == "tileiras" else "found on this machine")
    except CompilerNotFoundError as error:
        if asked == "tileiras":
            raise
        try:
            return _cxx(f"for want of tileiras: {error.failure.text}")
        except CompilerNotFoundError as second:
            raise not_found(f"{error.failure.text}\n{second.failure.text}") from None


def _tileiras(why: str) -> Choice:
    program = find_tileiras(None)
    try:
        found = importlib.util.find_spec("cuda.tile")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise not_found(
            'the kernels are written in cuda-tile, which is not installed: pip install "acache[tile]"'
        )
    return Choice("tileiras", program, why)


def _cxx(why: str) -> Choice:
    for name in _CXX:
        program = shutil.which(name)
        if program is not None:
            return Choice("cc", program, why)
    raise not_found(
        f"no C++ compiler ({', '.join(_CXX)}) is on PATH: install one (Debian, Ubuntu: apt-get install g++)"
    )


def build(name: Name, executable: str, toolchain: str) -> Compiler:
    """Make the compiler that runs ``executable`` and is keyed by ``toolchain``, with the kernels' options."""
    if name == "tileiras":
        return Tileiras(_kernels.gpu_name(), executable=executable, toolchain=toolchain)
    return Cc(executable, options=_kernels.cc_options(), toolchain=toolchain)
