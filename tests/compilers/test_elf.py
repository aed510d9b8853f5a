"""An ELF file that is cut short anywhere is not whole."""

from __future__ import annotations

import struct
from pathlib import Path
from sys import executable

import pytest

from acache.compilers._elf import is_whole


def elf(*sections: tuple[int, int, int]) -> bytes:
    """Lay out a file: header, 100 bytes of content, a table of sections (type, offset, size)."""
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 190, 1, 0, 0, 164, 0, 64, 56, 0, 64, len(sections), 0
    )
    table = [
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, 0, 0, 0, 0) for kind, offset, size in sections
    ]
    return header + bytes(100) + b"".join(table)


def test_a_whole_file() -> None:
    assert is_whole(elf((0, 0, 0), (1, 64, 100), (8, 64, 1 << 40)))
    assert is_whole(elf())


def test_every_shorter_one_is_not() -> None:
    data = elf((0, 0, 0), (1, 64, 100))
    assert [size for size in range(len(data)) if is_whole(data[:size])] == []


def test_a_section_beyond_the_end() -> None:
    assert not is_whole(elf((1, 64, 1000)))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh" * 100, elf()[:4] + b"\x01" + elf()[5:]])
def test_what_is_none(data: bytes) -> None:
    assert not is_whole(data)


@pytest.mark.skipif(not Path("/proc/self/exe").exists(), reason="no ELF programs here")
def test_a_program() -> None:
    data = Path(executable).resolve().read_bytes()
    assert is_whole(data)
    assert not is_whole(data[: len(data) - 100])
