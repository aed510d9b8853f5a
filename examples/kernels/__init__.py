"""Real kernels for the demo and the tests: what to compile, by which compiler, from which file."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from acache.compilers import Cc, Request, Tileiras

__all__ = ["CC_OPTIONS", "CXX", "FOLDER", "GPU_NAME", "Kernel", "catalogue"]

FOLDER: Final = Path(__file__).resolve().parent
GPU_NAME: Final = "sm_100"
"""The target of the cuTile kernels; compiling for it needs no GPU."""
CXX: Final = "g++"
CC_OPTIONS: Final = ("-O2", "-std=c++20")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One thing to compile: the function ``name`` of a cuTile module, or a whole C++ file."""

    name: str
    compiler: Literal["tileiras", "cc"]
    source: Path

    def request(self, compiler: Cc | Tileiras) -> Request:
        """Make the request for this kernel; for cuTile this imports ``cuda.tile``.

        :param compiler: a `Tileiras` or a `Cc`, as ``self.compiler`` says.
        """
        if self.compiler == "cc":
            # A relative path, so that checkouts in different folders have equal keys.
            return compiler.request(Path(self.source.name), label=self.name, directory=self.source.parent)
        module = importlib.import_module(f"{__name__}.{self.source.stem}")
        signature = module.signatures()[self.name]
        return compiler.request(getattr(module, self.name), signature=signature, label=self.name)


def catalogue(compiler: Literal["tileiras", "cc"]) -> list[Kernel]:
    """Return the kernels for one compiler, the cheapest first."""
    if compiler == "tileiras":
        return [Kernel(name, compiler, FOLDER / "cutile.py") for name in ("vector_add", "softmax", "gemm")]
    return [Kernel(name, compiler, FOLDER / f"{name}.cc") for name in ("sampler", "merges", "tokenize")]
