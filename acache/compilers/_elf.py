"""Whether an ELF file is whole: on a full disk ptxas leaves a part of one, and ends well. Pure."""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["BROKEN", "is_whole"]

BROKEN: Final = "the compiler ended well but left a broken cubin: is the temporary folder's disk full?"

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
"""The header of a 64-bit little-endian file (elf(5): Elf64_Ehdr)."""
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_NO_BITS: Final = 8
"""The type of a section that takes no room in the file (SHT_NOBITS)."""


def is_whole(data: bytes) -> bool:
    """Say whether the data is a 64-bit little-endian ELF file with all that its headers speak of."""
    if len(data) < _HEADER.size or not data.startswith(b"\x7fELF\x02\x01"):
        return False
    header = _HEADER.unpack_from(data)
    programs, sections = header[5], header[6]
    program_size, program_count, section_size, section_count = header[9:13]
    if max(programs + program_size * program_count, sections + section_size * section_count) > len(data):
        return False
    if section_count and section_size < _SECTION.size:
        return False
    for number in range(section_count):
        section = _SECTION.unpack_from(data, sections + number * section_size)
        kind, offset, size = section[1], section[4], section[5]
        if kind not in {0, _NO_BITS} and offset + size > len(data):
            return False
    return True
