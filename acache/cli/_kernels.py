"""Where the demo's kernels are: in the installed package, or beside it in a checkout."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from acache._models import Request

__all__ = ["Kernel", "cc_options", "cuda_options", "cuda_target", "gpu_name", "kernels"]

_NAME = "acache.cli.kernels"
_CHECKOUT = Path(__file__).resolve().parents[2] / "examples" / "kernels"


class Kernel(Protocol):
    """One thing to compile, from the catalogue in ``examples/kernels``."""

    @property
    def name(self) -> str:
        """What people call it; unique in its catalogue."""
        ...

    def request(self, compiler: Any) -> Request:
        """Make the request for it."""
        ...


def _catalogue() -> Any:
    """Import the catalogue under one name, wherever it lies.

    A wheel holds it as a package of this one; an editable install and a checkout have it in
    ``examples/kernels``.

    :raises ModuleNotFoundError: it is at neither place.
    """
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    try:
        return importlib.import_module(_NAME)
    except ModuleNotFoundError as error:
        if error.name != _NAME:
            raise
    found = importlib.util.spec_from_file_location(
        _NAME, _CHECKOUT / "__init__.py", submodule_search_locations=[str(_CHECKOUT)]
    )
    if found is None or found.loader is None or not (_CHECKOUT / "__init__.py").is_file():
        raise ModuleNotFoundError(f"the demo's kernels are neither in {_NAME} nor in {_CHECKOUT}", name=_NAME)
    module = importlib.util.module_from_spec(found)
    sys.modules[_NAME] = (
        module  # before it runs, as the import system does: it imports its own modules by name
    )
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[_NAME]
        raise
    return module


def kernels(compiler: str) -> Sequence[Kernel]:
    """Return the kernels for one compiler (``tileiras``, ``nvrtc`` or ``cc``), the cheapest first."""
    found: Sequence[Kernel] = _catalogue().catalogue(compiler)
    return found


def gpu_name() -> str:
    """Return the target that the cuTile kernels are compiled for."""
    return str(_catalogue().GPU_NAME)


def cuda_target() -> str:
    """Return the target that the CUDA C++ files are compiled for."""
    return str(_catalogue().CUDA_ARCH)


def cuda_options() -> tuple[str, ...]:
    """Return the options that the CUDA C++ files are compiled with."""
    return tuple(_catalogue().CUDA_OPTIONS)


def cc_options() -> tuple[str, ...]:
    """Return the options that the C++ files are compiled with."""
    return tuple(_catalogue().CC_OPTIONS)
