"""The exception tree: every error acache raises, picklable and with fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acache._models import CompileFailure

__all__ = [
    "AcacheError",
    "CacheClosedError",
    "CompileError",
    "CompileTimeoutError",
    "CompilerCrashedError",
    "CompilerNotFoundError",
    "CorruptEntryError",
    "KeyDerivationError",
    "StoreError",
]


class AcacheError(Exception):
    """Base of every error that acache raises on purpose."""


class KeyDerivationError(AcacheError, ValueError):
    """A value has no canonical form, so no key can be made of it (NaN, an open file, a cycle)."""


class CompileError(AcacheError):
    """The compiler refused the input, or could not finish.

    ``failure`` is the record that all waiters share: the compiler's own text, its exit status, and
    whether another attempt could end differently.
    """

    def __init__(self, failure: CompileFailure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        """Say the reason in one line, then the compiler's own words."""
        text = self.failure.text.strip()
        return f"{self.failure.summary}\n{text}" if text else self.failure.summary


class CompileTimeoutError(CompileError, TimeoutError):
    """One compile took longer than ``compile_timeout`` and was stopped."""


class CompilerCrashedError(CompileError):
    """The compiler was killed by a signal, or could not be started for want of processes or memory."""


class CompilerNotFoundError(CompileError):
    """The compiler is not installed; the text names the extra or the program to install."""


class StoreError(AcacheError):
    """The cache directory failed and ``strict=True`` asked to hear of it."""

    def __init__(self, message: str, path: str | None = None, errno: int | None = None) -> None:
        super().__init__(message, path, errno)
        self.message = message
        self.path = path
        self.errno = errno

    def __str__(self) -> str:
        """Name the fault and the path."""
        return self.message if self.path is None else f"{self.message}: {self.path}"


class CorruptEntryError(StoreError):
    """An entry does not pass its own check; reading it is a miss that heals, unless ``strict=True``."""


class CacheClosedError(AcacheError, RuntimeError):
    """The cache was used before it was entered, after it was closed, from another loop or after a fork."""
