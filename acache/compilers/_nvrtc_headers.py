"""NVRTC's own headers: laid out once per toolchain and user, and whole whenever they are used.

Runs in a worker, with nothing but the standard library. The folder lies in the system's temporary folder,
where cleaners remove single files after some days, and where others may have planted something: it must be
ours and closed to others, what is in it is checked against a list, and what is not whole is laid out anew.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DEEP", "DEPTH", "laid_out", "stamps", "unchanged", "whole"]

DEPTH = 16
"""Whoever installs the headers puts them so many steps down in their folder (`DEEP`): a name that leads out
again (``../../x.h``) must not lead to a file that no key covers.
"""
DEEP = "/".join(["_"] * DEPTH)

_LIST = ".acache-list"
_PATIENCE = 20.0
"""Seconds to wait for another process that lays the same headers out; then it is done privately."""
_PAUSE = 0.01
_UNUSED_SECONDS = 30 * 24 * 3600
"""Headers of another toolchain that nobody has used for so long are removed."""


def laid_out(home: str, name: str, private: str, install: Callable[[str], None]) -> str:
    """Return a folder with the headers, after ``install(folder)`` if need be. Blocks.

    :param home: the folder of this user that holds them, one folder per toolchain.
    :param name: the toolchain's folder in it.
    :param private: where to put them instead if that cannot be used (somebody else's, another's lock that
        does not end); it must not exist.
    :raises OSError: there is no room.
    """
    folder = os.path.join(home, name)
    if not _private(home):
        _install(private, install)
        return private
    if whole(folder):
        with contextlib.suppress(OSError):
            os.utime(os.path.join(folder, _LIST))  # it is in use
        return folder
    with _locked(home) as locked:
        if not locked:
            _install(private, install)
            return private
        if not whole(folder):
            _sweep(home, name)
            fresh = os.path.join(home, f".new-{os.getpid()}")
            _install(fresh, install)
            if os.path.lexists(folder):
                os.rename(folder, os.path.join(home, f".old-{os.getpid()}"))
            os.rename(fresh, folder)
            _sweep(home, name)
    return folder


def whole(folder: str) -> bool:
    """Whether a folder has every file on its list, as it was written."""
    try:
        with open(os.path.join(folder, _LIST), encoding="utf-8", errors="surrogateescape") as file:
            first, *lines = file.read().split("\n")
        if int(first) != len(lines):
            return False
        for line in lines:
            size, mtime, name = line.split(" ", 2)
            found = os.stat(os.path.join(folder, name), follow_symlinks=False)
            same = (found.st_size, found.st_mtime_ns) == (int(size), int(mtime))
            if not same or not stat.S_ISREG(found.st_mode):
                return False
    except (OSError, ValueError):
        return False
    return True


def stamps(folder: str) -> dict[str, int]:
    """Return what `unchanged` compares: the change time of every folder within.

    One changes when a file is removed from it or put into it, and no cleaner can give it its old one back.
    """
    return {path: os.stat(path).st_ctime_ns for path, _, _ in os.walk(folder)}


def unchanged(stamps: dict[str, int]) -> bool:
    """Whether nothing was removed since; costs a thirtieth of what `whole` does, which reads every file's."""
    try:
        return all(os.stat(path).st_ctime_ns == stamp for path, stamp in stamps.items())
    except OSError:
        return False


def _install(folder: str, install: Callable[[str], None]) -> None:
    """Lay the headers out in a new folder, and list them."""
    os.mkdir(folder, 0o700)
    install(folder)
    lines = []
    for path, _, names in os.walk(folder):
        for name in names:
            file = os.path.join(path, name)
            facts = os.stat(file, follow_symlinks=False)
            lines.append(f"{facts.st_size} {facts.st_mtime_ns} {os.path.relpath(file, folder)}")
    with open(os.path.join(folder, _LIST), "x", encoding="utf-8", errors="surrogateescape") as listed:
        listed.write("\n".join([str(len(lines)), *lines]))


def _private(home: str) -> bool:
    """Make the folder, if need be; tell whether it is a real one, ours, and closed to others."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(home, 0o700)
    facts = os.stat(home, follow_symlinks=False)
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o077


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[bool]:
    """Lock a folder against other processes, with patience; the lock ends with its holder."""
    import fcntl  # not everywhere to be had

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline, locked = time.monotonic() + _PATIENCE, False
        while not locked and time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
            except BlockingIOError:
                time.sleep(_PAUSE)
            except OSError:  # no locks on this file system
                break
        yield locked
    finally:
        os.close(descriptor)


def _sweep(home: str, name: str) -> None:
    """Under the lock: remove what a killed process left half done, and toolchains that nobody uses."""
    for other in os.listdir(home):
        path = os.path.join(home, other)
        with contextlib.suppress(OSError):
            unused = time.time() - os.stat(os.path.join(path, _LIST)).st_mtime if other[0] != "." else 0.0
            if other[0] == "." or (other != name and unused > _UNUSED_SECONDS):
                shutil.rmtree(path)
