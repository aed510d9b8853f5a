"""Take the folder of the source out of cuTile bytecode, so that two checkouts share artifacts. Pure.

The exporter writes absolute paths into the debug section, twice: the folder of a ``DIFile`` and the file name
of a ``DILoc``. They end up in no cubin, as long as neither ``--lineinfo`` nor ``--device-debug`` is given (a
test holds this against the real compiler), but they are bytes of the input, and would part the keys of equal
kernels. The layout read here is what the exporter of cuda-tile writes (``cuda/tile/_bytecode/writer.py`` and
``debug_info.py``). Bytecode that does not look so to the last byte is returned as it is: a longer key, never
a wrong one.
"""

from __future__ import annotations

import ntpath
import posixpath
from dataclasses import dataclass
from typing import Final

__all__ = ["MAGIC", "without_folders"]

MAGIC: Final = b"\x7fTileIR\x00"
_VERSIONS: Final = {(13, minor) for minor in range(1, 6)}
_HEADER: Final = 12
_END, _STRINGS, _DEBUG = 0, 1, 3
_FILE, _LOCATION = 2, 4
_PAD: Final = 0xCB


class _UnknownLayoutError(Exception):
    """The bytecode is not laid out as this module knows it."""


@dataclass(slots=True)
class _Reader:
    data: bytes
    at: int = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise _UnknownLayoutError
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise _UnknownLayoutError

    def align(self, to: int) -> None:
        if self.take(-self.at % to).strip(bytes([_PAD])):
            raise _UnknownLayoutError

    def table(self) -> list[bytes]:
        """Read a count, offsets of four bytes each, and the items, which reach to the end."""
        count = self.varint()
        self.align(4)
        offsets = [int.from_bytes(self.take(4), "little") for _ in range(count)]
        items = self.take(len(self.data) - self.at)
        bounds = [*offsets, len(items)]
        if offsets[:1] not in ([], [0]) or bounds != sorted(bounds) or (not offsets and items):
            raise _UnknownLayoutError
        return [items[start:end] for start, end in zip(offsets, bounds[1:], strict=True)]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sections(data: bytes) -> dict[int, tuple[int, int, int]]:
    """Return where each section begins (its header), where its content begins, and where that ends."""
    reader = _Reader(data)
    if reader.take(len(MAGIC)) != MAGIC or tuple(reader.take(2)) not in _VERSIONS:
        raise _UnknownLayoutError
    reader.at = _HEADER
    found: dict[int, tuple[int, int, int]] = {}
    while True:
        start = reader.at
        tag = reader.take(1)[0]
        if tag == _END:
            break
        length = reader.varint()
        if tag & 0x80:
            alignment = reader.varint()
            if alignment not in (1, 2, 4, 8, 16):
                raise _UnknownLayoutError
            reader.align(alignment)
        content = reader.at
        reader.take(length)
        if tag & 0x7F in found:
            raise _UnknownLayoutError
        found[tag & 0x7F] = (start, content, reader.at)
    if reader.at != len(data) or not {_STRINGS, _DEBUG} <= found.keys():
        raise _UnknownLayoutError
    if found[_STRINGS][2] != len(data) - 1:  # nothing may follow whose alignment would shift
        raise _UnknownLayoutError
    return found


def _debug_attributes(section: bytes) -> list[bytes]:
    reader = _Reader(section)
    functions = reader.varint()
    reader.align(4)
    reader.take(4 * functions)
    operations = reader.varint()
    reader.align(8)
    reader.take(8 * operations)
    return reader.table()


def _is_absolute(name: bytes) -> bool:
    text = name.decode("utf-8", "surrogateescape")
    return posixpath.isabs(text) or ntpath.splitdrive(text)[0] != ""


def _rewritten(data: bytes) -> bytes:
    sections = _sections(data)
    start, content, end = sections[_STRINGS]
    strings = _Reader(data[content:end]).table()
    folders: set[int] = set()
    files: set[int] = set()
    for attribute in _debug_attributes(data[sections[_DEBUG][1] : sections[_DEBUG][2]]):
        reader = _Reader(attribute)
        tag = reader.take(1)[0]
        if tag == _FILE:  # name, folder
            reader.varint()
            folders.add(reader.varint())
        elif tag == _LOCATION:  # scope, file name, line, column
            reader.varint()
            files.add(reader.varint())
    for index in folders | files:
        if index >= len(strings):
            raise _UnknownLayoutError
        # No symbol, type or attribute is spelled like an absolute path, so nothing else can mean this string.
        if _is_absolute(strings[index]):
            name = strings[index].decode("utf-8", "surrogateescape")
            base = ntpath.basename(name) if ntpath.splitdrive(name)[0] else posixpath.basename(name)
            strings[index] = b"." if index in folders else base.encode("utf-8", "surrogateescape")
    table = bytearray(_varint(len(strings)))
    table += bytes([_PAD]) * (-len(table) % 4)
    offset = 0
    for item in strings:
        table += offset.to_bytes(4, "little")
        offset += len(item)
    table += b"".join(strings)
    out = bytearray(data[:start])
    out.append(data[start])
    out += _varint(len(table))
    if data[start] & 0x80:
        out += _varint(4)
        out += bytes([_PAD]) * (-len(out) % 4)
    return bytes(out + table) + bytes([_END])


def without_folders(bytecode: bytes) -> bytes:
    """Return the bytecode with base names for absolute source paths; unchanged if its layout is not known."""
    try:
        return _rewritten(bytecode)
    except _UnknownLayoutError:
        return bytecode
