"""The kernels that the demo compiles: they compile, by the compiler that the catalogue names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from acache.compilers import Cc, Nvcc, Nvrtc, Tileiras

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from acache._models import Artifact
    from acache.compilers import Request

    Build = Callable[[Request], Awaitable[Artifact]]

FOLDER = Path(__file__).parents[2] / "examples" / "kernels"


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the catalogue as the package that it is."""
    name = "acache_test_kernels"
    spec = importlib.util.spec_from_file_location(
        name, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_the_catalogue(kernels: Any) -> None:
    for compiler in ("tileiras", "nvrtc", "nvcc", "cc"):
        found = kernels.catalogue(compiler)
        assert len({kernel.name for kernel in found}) == 3
        assert all(kernel.source.is_file() and kernel.compiler == compiler for kernel in found)


@pytest.mark.gcc
@pytest.mark.parametrize(("index", "anyio_backend"), [(0, "asyncio"), (1, "trio"), (2, "asyncio")])
async def test_the_cpp_files_compile_without_a_warning(
    kernels: Any, index: int, anyio_backend: str, build: Build
) -> None:
    kernel = kernels.catalogue("cc")[index]
    compiler = Cc(kernels.CXX, options=[*kernels.CC_OPTIONS, "-Wall", "-Wextra", "-Werror"])
    artifact = await build(kernel.request(compiler))
    assert artifact.parts["object"].startswith(b"\x7fELF")


@pytest.mark.tileiras
@pytest.mark.parametrize(("index", "anyio_backend"), [(0, "trio"), (1, "asyncio"), (2, "trio")])
async def test_the_cutile_kernels_compile(kernels: Any, index: int, anyio_backend: str, build: Build) -> None:
    kernel = kernels.catalogue("tileiras")[index]
    artifact = await build(kernel.request(Tileiras(kernels.GPU_NAME)))
    assert artifact.parts["cubin"].startswith(b"\x7fELF")
    assert kernel.name.encode() in artifact.data


@pytest.mark.nvrtc
@pytest.mark.parametrize(("index", "anyio_backend"), [(0, "asyncio"), (1, "trio"), (2, "asyncio")])
async def test_the_cuda_files_compile_by_nvrtc(
    kernels: Any, index: int, anyio_backend: str, build: Build
) -> None:
    kernel = kernels.catalogue("nvrtc")[index]
    artifact = await build(kernel.request(Nvrtc(kernels.CUDA_ARCH, options=kernels.CUDA_OPTIONS)))
    assert artifact.parts["cubin"].startswith(b"\x7fELF")
    assert kernel.name.encode() in artifact.data
    assert "log" not in artifact.metadata


@pytest.mark.nvcc
@pytest.mark.parametrize(("index", "anyio_backend"), [(0, "trio"), (1, "asyncio"), (2, "trio")])
async def test_the_cuda_files_compile_by_nvcc(
    kernels: Any, index: int, anyio_backend: str, build: Build
) -> None:
    kernel = kernels.catalogue("nvcc")[index]
    options = [*kernels.CUDA_OPTIONS, "-Werror=all-warnings"]
    artifact = await build(kernel.request(Nvcc(kernels.CUDA_ARCH, options=options)))
    assert artifact.parts["cubin"].startswith(b"\x7fELF")
    assert kernel.name.encode() in artifact.data
