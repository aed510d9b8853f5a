"""Real kernels for the demo and the tests: what to compile, by which compiler, from which file."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from acache.compilers import Cc, Nvcc, Nvrtc, Request, Tileiras

__all__ = [
    "CC_OPTIONS",
    "CUDA_ARCH",
    "CUDA_OPTIONS",
    "CXX",
    "FOLDER",
    "GPU_NAME",
    "Kernel",
    "Name",
    "catalogue",
]

Name: TypeAlias = Literal["tileiras", "nvrtc", "nvcc", "cc"]

FOLDER: Final = Path(__file__).resolve().parent
GPU_NAME: Final = "sm_100"
"""The target of the cuTile kernels; compiling for it needs no GPU."""
CUDA_ARCH: Final = "sm_90"
"""The target of the CUDA C++ kernels, for which no GPU is needed either."""
CUDA_OPTIONS: Final = ("-std=c++17",)
CXX: Final = "g++"
CC_OPTIONS: Final = ("-O2", "-std=c++20")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One thing to compile: the function ``name`` of a cuTile module, or a whole file of (CUDA) C++."""

    name: str
    compiler: Name
    source: Path

    def request(self, compiler: Cc | Nvcc | Nvrtc | Tileiras) -> Request:
        """Make the request for this kernel; for cuTile this imports ``cuda.tile``.

        :param compiler: the one that ``self.compiler`` names.
        """
        chosen: Any = compiler
        if self.compiler == "tileiras":
            module = importlib.import_module(f"{__name__}.{self.source.stem}")
            signature = module.signatures()[self.name]
            return chosen.request(getattr(module, self.name), signature=signature, label=self.name)
        if self.compiler == "nvrtc":
            return chosen.request(self.source, label=self.name)
        # A relative path, so that checkouts in different folders have equal keys.
        return chosen.request(Path(self.source.name), label=self.name, directory=self.source.parent)


def catalogue(compiler: Name) -> list[Kernel]:
    """Return the kernels for one compiler, the cheapest first."""
    if compiler == "tileiras":
        return [Kernel(name, compiler, FOLDER / "cutile.py") for name in ("vector_add", "softmax", "gemm")]
    if compiler == "cc":
        return [Kernel(name, compiler, FOLDER / f"{name}.cc") for name in ("sampler", "merges", "tokenize")]
    return [Kernel(name, compiler, FOLDER / f"{name}.cu") for name in ("vector_add", "softmax", "top_k")]
