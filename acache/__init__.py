"""acache: the compile cache for async inference servers. N cold processes, one compile.

Names are imported when they are first used, so that ``import acache`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acache import compilers, events
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
    from acache._models import (
        Artifact,
        CompileFailure,
        EntryInfo,
        Origin,
        Request,
        Status,
        TrimReport,
        VerifyReport,
    )
    from acache._settings import Settings

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
    "TrimReport",
    "VerifyReport",
    "__version__",
    "compilers",
    "events",
    "key",
]

_ROOMS = {
    "_cache": ["Cache"],
    "_errors": [name for name in __all__ if name.endswith("Error")],
    "_events": ["Stats"],
    "_keys": ["Key", "key"],
    "_models": [
        "Artifact",
        "CompileFailure",
        "EntryInfo",
        "Origin",
        "Request",
        "Status",
        "TrimReport",
        "VerifyReport",
    ],
    "_settings": ["Settings"],
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use; it then says that it lives here, and not in which room."""
    if name in ("compilers", "events"):
        return importlib.import_module(f"acache.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'acache' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"acache.{_HOME[name]}"), name)
    value.__module__ = "acache"
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
