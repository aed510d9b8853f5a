"""Keys: one canonical, length-framed, labelled encoding of all that a compile depends on, and its digest."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import io
import math
import os
import string
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import total_ordering
from itertools import pairwise
from types import MappingProxyType
from typing import NoReturn, final

from acache._errors import KeyDerivationError

__all__ = ["Key", "key", "name_of"]

# The first bytes of every digest made here: no other use of sha256, and no later version of this
# encoding, can be mistaken for it.
_FIELD_DOMAIN = b"acache field v1\n"
_KEY_DOMAIN = b"acache key v1\n"
_NAME_DOMAIN = b"acache name v1\n"

_DIGEST_SIZE = 32
_FIELD_DIGITS = 16
"""Hex digits kept of a field's digest: 64 bits say reliably whether one field changed."""
_MAX_DEPTH = 64
"""Deeper nesting than any compile's options; it also ends every cycle long before Python's own limit."""
_EMPTY: Mapping[str, str] = MappingProxyType({})


@final
@total_ordering
class Key:
    """The identity of one compile: a sha256 digest, made by `acache.key`.

    Immutable, hashable, ordered by its digest, picklable. ``bytes(key)`` has 32 bytes.

    :param digest: 32 bytes.
    :param fields: what `Key.fields` shows; never part of equality, order or hash.
    :raises ValueError: ``digest`` is not 32 bytes.
    """

    __slots__ = ("_digest", "_fields")

    _digest: bytes
    _fields: Mapping[str, str]

    def __init__(self, digest: bytes, fields: Mapping[str, str] | None = None) -> None:
        if not isinstance(digest, bytes) or len(digest) != _DIGEST_SIZE:
            raise ValueError(f"a Key is made of {_DIGEST_SIZE} bytes, not {_short(digest)}; see acache.key()")
        object.__setattr__(self, "_digest", digest)
        object.__setattr__(self, "_fields", MappingProxyType(dict(fields)) if fields else _EMPTY)

    @classmethod
    def from_hex(cls, text: str) -> Key:
        """Make the key whose `Key.hex` is ``text``; its ``fields`` are empty.

        :raises ValueError: ``text`` is not 64 lowercase hexadecimal digits.
        """
        if (
            not isinstance(text, str)
            or len(text) != 2 * _DIGEST_SIZE
            or not set(text) <= set(string.digits + "abcdef")
        ):
            raise ValueError(f"a key in hex is {2 * _DIGEST_SIZE} lowercase hex digits, not {_short(text)}")
        return cls(bytes.fromhex(text))

    @property
    def hex(self) -> str:
        """The digest as 64 lowercase hexadecimal digits."""
        return self._digest.hex()

    @property
    def fields(self) -> Mapping[str, str]:
        """Label to short digest of each field, to answer "why did it miss?".

        Two keys that differ show by it in which fields. Read-only, in order of label; empty on a key
        made by `Key.from_hex`.
        """
        return self._fields

    def __bytes__(self) -> bytes:
        return self._digest

    def __eq__(self, other: object) -> bool:
        return self._digest == other._digest if isinstance(other, Key) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._digest < other._digest if isinstance(other, Key) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"Key.from_hex({self.hex!r})"

    def __str__(self) -> str:
        return self.hex

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Key cannot be changed: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Key cannot be changed: {name}")

    def __reduce__(self) -> tuple[type[Key], tuple[bytes, dict[str, str]]]:
        return Key, (self._digest, dict(self._fields))


def key(**fields: object) -> Key:
    """Derive the key of a compile from everything its result depends on, as labelled fields.

    No two different inputs share an encoding, and the key is the same in every process, on every
    machine, under any ``PYTHONHASHSEED``. What counts as the same input:

    - ``None``, bool, int, float, str and bytes are told apart by type: ``1``, ``1.0``, ``True``, ``"1"`` and
      ``b"1"`` all differ. A subclass counts as its base type, by value (a ``StrEnum`` member is its str).
    - bytes, bytearray and a memoryview of plain bytes are the same.
    - floats are told apart by their bits: ``0.0`` and ``-0.0`` differ (compilers fold constants), infinities
      are values; NaN is refused.
    - a str may hold lone surrogates (what Python makes of undecodable bytes in arguments and file names).
    - a path (`os.PathLike`) is the path as it is spelled, and differs from the str. Its file is not read:
      hand the content over where the content matters.
    - sequences: list, tuple and any other are the same, by their elements in order.
    - mappings: the same in any order; keys may be of any type named here.
    - sets: the same in any order; set and frozenset are the same.
    - a `Key` is itself.

    The order of the fields does not matter; their labels do.

    :raises KeyDerivationError: a value has no canonical form (NaN, an object of another type, a cycle,
        nesting over 64 levels), or there are no fields. The message names the place, as in
        ``options[2]``, and the way out.
    """
    if not fields:
        raise KeyDerivationError(
            "key() without fields would be the same for every compile; name the inputs: key(source=...)"
        )
    whole = hashlib.sha256(_KEY_DOMAIN)
    short: dict[str, str] = {}
    for label in sorted(fields):
        digest = hashlib.sha256(_FIELD_DOMAIN)
        for piece in _encode(fields[label], label, 0):
            digest.update(piece)
        # A field goes in by its digest, so that large sources are hashed once and the short digests
        # in `Key.fields` speak of exactly what the key is made of.
        whole.update(_framed(b"f", _text(label)))
        whole.update(digest.digest())
        short[label] = digest.hexdigest()[:_FIELD_DIGITS]
    return Key(whole.digest(), short)


def name_of(key: Key, namespace: str | None) -> str:
    """Return the 64 hex digits that name an entry's files: a digest of namespace and key.

    A namespace is a world of its own in the same folder; None and ``""`` are different ones.
    """
    digest = hashlib.sha256(_NAME_DOMAIN)
    digest.update(b"n" if namespace is None else _framed(b"s", _text(namespace)))
    digest.update(bytes(key))
    return digest.hexdigest()


# --- The encoding. Each value is a tag of one byte and then, where its size varies, a count of eight bytes:
# bytes for scalars, elements for containers. So no encoding is a prefix of another, and a row of them can be
# read back in one way only.


def _framed(tag: bytes, payload: bytes) -> bytes:
    return tag + len(payload).to_bytes(8, "big") + payload


def _text(value: str) -> bytes:
    # Generalised UTF-8: surrogates are encoded one by one, so that each str has its own bytes.
    return str.encode(value, "utf-8", "surrogatepass")


def _encode(value: object, path: str, depth: int) -> Iterator[bytes]:
    """Yield the pieces of a value's encoding; ``path`` says where it stands, for messages."""
    if depth > _MAX_DEPTH:
        _refuse(path, "is nested too deeply, or contains itself", f"at most {_MAX_DEPTH} levels have a key")
    if value is None:
        yield b"N"
    elif isinstance(value, bool):
        yield b"T" if value else b"F"
    elif isinstance(value, int):
        length = int.bit_length(value) // 8 + 1  # one bit more than the magnitude, for the sign
        yield _framed(b"i", int.to_bytes(value, length, "big", signed=True))
    elif isinstance(value, float):
        if math.isnan(value):
            _refuse(path, "is NaN, which equals nothing", "hand over a str that says what you mean by it")
        yield b"d" + struct.pack(">d", value)
    elif isinstance(value, str):
        yield _framed(b"s", _text(value))
    elif isinstance(value, bytes | bytearray | memoryview):
        yield from _encode_bytes(value, path)
    elif isinstance(value, Key):
        yield b"K" + bytes(value)
    elif isinstance(value, os.PathLike):
        spelled = os.fspath(value)
        if isinstance(spelled, bytes):
            spelled = spelled.decode("utf-8", "surrogateescape")
        yield _framed(b"p", _text(spelled))
    elif isinstance(value, Mapping):
        pairs = []
        for name, item in value.items():
            frame = b"".join(_encode(name, f"{path}.keys()", depth + 1))
            pairs.append((frame, b"".join(_encode(item, f"{path}[{_short(name)}]", depth + 1))))
        yield from _unordered(b"m", pairs, path)
    elif isinstance(value, Set):
        elements = [(b"".join(_encode(item, f"{path}{{}}", depth + 1)), b"") for item in value]
        yield from _unordered(b"e", elements, path)
    elif isinstance(value, Sequence):
        items = list(value)
        yield b"l" + len(items).to_bytes(8, "big")
        for index, item in enumerate(items):
            yield from _encode(item, f"{path}[{index}]", depth + 1)
    else:
        _refuse(path, f"is of type {type(value).__qualname__}, which has no canonical form", _way_out(value))


def _encode_bytes(value: bytes | bytearray | memoryview, path: str) -> Iterator[bytes]:
    if isinstance(value, memoryview) and (value.format != "B" or value.ndim != 1):
        _refuse(path, f"is a memoryview of {value.format!r}", "cast it to bytes: view.cast('B')")
    yield b"b" + len(value).to_bytes(8, "big")
    yield bytes(value)


def _unordered(tag: bytes, frames: list[tuple[bytes, bytes]], path: str) -> Iterator[bytes]:
    frames.sort()
    for (before, _), (after, _) in pairwise(frames):
        if before == after:
            what = "keys" if tag == b"m" else "elements"
            _refuse(path, f"holds two {what} with the same canonical form", "drop one of them")
    yield tag + len(frames).to_bytes(8, "big")
    for frame in frames:
        yield from frame


def _refuse(path: str, what: str, way_out: str) -> NoReturn:
    raise KeyDerivationError(f"{path} {what}; {way_out}")


def _way_out(value: object) -> str:
    """Say what to hand over in place of a value that has no canonical form."""
    if isinstance(value, enum.Enum):
        return "hand over its .value or .name"
    if isinstance(value, type) or callable(value):
        return "hand over what identifies it: its source text, or a name and a version"
    if dataclasses.is_dataclass(value):
        return "hand over dataclasses.asdict(...) of it"
    if isinstance(value, io.IOBase):
        return "hand over its content, or its path if only the name matters"
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):
        if getattr(value, "shape", None) == ():
            return "hand over value.item()"
        return "hand over .tobytes(), .shape and str(.dtype)"
    if isinstance(value, Iterable):
        return "hand over a list of its elements"
    return "hand over a str, bytes, number, bool, None or path, or a list, dict or set of these"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"
