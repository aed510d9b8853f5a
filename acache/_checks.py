"""What callers pass to a cache, checked at the door: clear errors that name the argument and the way out."""

from __future__ import annotations

import os

from acache._keys import Key
from acache._models import PreparingCompiler, Request

__all__ = [
    "check_abandon",
    "check_bytes",
    "check_directory",
    "check_key",
    "check_label",
    "check_seconds",
    "prepared",
]

LONGEST_LABEL = 1000
LONGEST_WAIT = 1e8
"""Seconds, as in the settings: nobody waits without a bound."""


async def prepared(request: Request) -> Request:
    """Let the compiler read what the request refers to, once for its key and its compile.

    :raises TypeError: not a request.
    """
    if not isinstance(request, Request):
        raise TypeError(f"make a Request with a compiler's .request(...), not {type(request).__name__}")
    check_label(request.label)
    if isinstance(request.compiler, PreparingCompiler):
        return await request.compiler.prepare(request)
    return request


def check_seconds(name: str, value: float) -> float:
    """Refuse what is no length of time.

    :raises ValueError: names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_WAIT:
        raise ValueError(f"{name} must be seconds, 0 or more and at most {LONGEST_WAIT:g}, not {value!r}")
    return value


def check_bytes(name: str, value: object) -> None:
    """Refuse what is no number of bytes; None is none.

    :raises ValueError: names the argument.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{name} must be a whole number of bytes, 0 or more, or None, not {value!r}")


def check_abandon(value: object) -> None:
    """Refuse what says nothing about an abandoned compile.

    :raises ValueError: says what there is.
    """
    if value not in (None, "finish", "stop"):
        raise ValueError(f"on_abandon must be 'finish' or 'stop', not {value!r}")


def check_label(label: object) -> None:
    """Refuse what is not a label.

    :raises TypeError: names the argument.
    :raises ValueError: longer than any name.
    """
    if label is not None and not isinstance(label, str):
        raise TypeError(f"label must be a str or None, not {type(label).__name__}")
    if label is not None and len(label) > LONGEST_LABEL:
        raise ValueError(f"label has {len(label)} characters; {LONGEST_LABEL} are enough for people")


def check_key(key: object) -> None:
    """Refuse what is not a key.

    :raises TypeError: says how to make one.
    """
    if not isinstance(key, Key):
        raise TypeError(f"key must be an acache.Key, made by acache.key(...), not {type(key).__name__}")


def check_directory(directory: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """Return a directory as text.

    :raises ValueError: no path can be that.
    """
    path = os.fsdecode(directory)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        path = ""
    if not path or "\0" in path:
        raise ValueError(f"directory must be a path, not {directory!r}; None means the default one")
    return path
