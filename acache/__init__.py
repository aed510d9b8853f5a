"""acache: the compile cache for async inference servers. N cold processes, one compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from acache import events
from acache._cache import Cache
from acache._errors import (
    AcacheError,
    CacheClosedError,
    CompileError,
    CompilerCrashedError,
    CompilerNotFoundError,
    CompileTimeoutError,
    CorruptEntryError,
    KeyDerivationError,
    StoreError,
)
from acache._events import Stats
from acache._keys import Key, key
from acache._models import Artifact, CompileFailure, EntryInfo, Origin, Request, Status
from acache._settings import Settings

if TYPE_CHECKING:
    from acache import compilers

__version__ = "0.1.0"

__all__ = [
    "AcacheError",
    "Artifact",
    "Cache",
    "CacheClosedError",
    "CompileError",
    "CompileFailure",
    "CompileTimeoutError",
    "CompilerCrashedError",
    "CompilerNotFoundError",
    "CorruptEntryError",
    "EntryInfo",
    "Key",
    "KeyDerivationError",
    "Origin",
    "Request",
    "Settings",
    "Stats",
    "Status",
    "StoreError",
    "__version__",
    "compilers",
    "events",
    "key",
]

# Public names say where they are imported from, not where they are written.
for _name in __all__:
    _value = globals().get(_name)
    if getattr(_value, "__module__", "").startswith("acache._"):
        _value.__module__ = "acache"
del _name, _value


def __getattr__(name: str) -> Any:
    """Import `acache.compilers` on first use: it costs more than all the rest."""
    if name == "compilers":
        import importlib

        return importlib.import_module("acache.compilers")
    raise AttributeError(f"module 'acache' has no attribute {name!r}")
