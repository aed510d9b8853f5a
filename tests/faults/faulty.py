"""A file system that fails when told to: the Nth operation, or all from the Nth on."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Any

from acache._fs import OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

ERRNOS: dict[str, tuple[str, ...]] = {
    "read": ("EIO", "ESTALE", "EACCES", "EMFILE", "ENOENT", "ENAMETOOLONG", "ELOOP"),
    "head": ("EIO", "ESTALE", "EACCES", "EMFILE", "ENOENT"),
    "exists": ("EIO", "EACCES", "EMFILE"),
    "create": ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EACCES", "EMFILE", "EEXIST", "ENOENT", "ENAMETOOLONG"),
    "link": ("EEXIST", "EPERM", "EIO", "ENOSPC", "EMLINK", "ENOENT", "ESTALE", "EROFS", "EOPNOTSUPP"),
    "rename": ("EBUSY", "ENOENT", "EIO", "ENOSPC", "EACCES", "EROFS", "ESTALE", "EEXIST", "ENOTEMPTY"),
    "unlink": ("EBUSY", "ENOENT", "ENOTEMPTY", "EIO", "EACCES", "EROFS", "ESTALE"),
    "mkdir": ("EACCES", "EROFS", "ENOSPC", "EDQUOT", "EIO", "EEXIST"),
    "open_rw": ("EIO", "EACCES", "EROFS", "ENOENT", "ESTALE"),
    "pread": ("EIO", "ESTALE"),
    "pwrite": ("EIO", "ENOSPC", "EDQUOT", "ENOLCK"),
    "close": ("EIO", "ENOSPC"),
    "listdir": ("EACCES", "EIO", "ESTALE", "ENOENT"),
    "survey": ("EACCES", "EIO", "ESTALE", "EMFILE"),
    "stamps": ("EIO",),
    "touch": ("EPERM", "EROFS", "EIO", "ENOENT"),
    "refresh": ("EIO", "ENOENT", "ESTALE"),
    "sync_folder": ("EIO", "EINVAL"),
}
"""What each operation is known to answer somewhere: a sample of errno(3)."""

CHANGES = ("create", "link", "rename", "unlink", "touch", "pwrite")
"""Operations that may have been done although an error is reported: a reply that was lost (NFS)."""


class Faulty:
    """The real file system, but for the faults that it is told to have; used from several threads.

    :param at: the number of the first operation that fails; None: none does.
    :param code: the errno's name.
    :param done: the operation is done all the same, and then reported as failed.
    :param lasting: every later operation fails as well.
    """

    def __init__(
        self, at: int | None = None, code: str = "EIO", *, done: bool = False, lasting: bool = False
    ) -> None:
        self._real = OsFileSystem()
        self._at = at
        self._code = getattr(errno, code)
        self._done = done
        self._lasting = lasting
        self._lock = threading.Lock()
        self.seen: list[str] = []
        self.failed: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = getattr(self._real, name)
        if name not in ERRNOS:
            return real

        def operation(*arguments: Any) -> Any:
            with self._lock:
                number = len(self.seen)
                self.seen.append(name)
                fails = self._at is not None and (
                    number == self._at or (self._lasting and number >= self._at)
                )
                if fails:
                    self.failed.append(name)
            if not fails:
                return real(*arguments)
            if self._done or name == "close":  # a close that reports an error has closed: close(2)
                real(*arguments)
            raise OSError(self._code, os.strerror(self._code), str(arguments[0]))

        return operation
