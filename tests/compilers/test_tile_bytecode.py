"""Bytecode without the folder of its source: only those bytes go, and an unknown layout is left alone."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from acache.compilers._tile_bytecode import MAGIC, without_folders

PAD = b"\xcb"


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def padded(data: bytes, to: int) -> bytes:
    return data + PAD * (-len(data) % to)


def table(items: list[bytes]) -> bytes:
    out = padded(varint(len(items)), 4)
    offset = 0
    for item in items:
        out += offset.to_bytes(4, "little")
        offset += len(item)
    return out + b"".join(items)


def bytecode(
    strings: list[bytes],
    attributes: list[bytes],
    *,
    function: bytes = b"body",
    minor: int = 3,
    tail: bytes = b"\0",
) -> bytes:
    """Write what the exporter writes: function, debug, type and string sections, in this order."""
    out = MAGIC + bytes([13, minor, 0, 0])
    debug = padded(varint(1), 4) + (0).to_bytes(4, "little")
    debug = (
        padded(debug + varint(2), 8) + b"".join(n.to_bytes(8, "little") for n in (1, 2)) + table(attributes)
    )
    for section, alignment, content in (
        (2, 8, function),
        (3, 8, debug),
        (5, 4, table([b"\x01"])),
        (1, 4, table(strings)),
    ):
        out += bytes([section | 0x80]) + varint(len(content)) + varint(alignment)
        out = padded(out, alignment) + content
    return out + tail


def debug_attributes(name: int, folder: int, path: int) -> list[bytes]:
    file = b"\x02" + varint(name) + varint(folder)
    unit = b"\x01" + varint(1)
    location = b"\x04" + varint(3) + varint(path) + varint(20) + varint(300)
    return [file, unit, location]


def kernel(folder: bytes, **others: bytes) -> bytes:
    strings = [b"softmax_kernel", b"kernel.py", folder, folder + b"/kernel.py"]
    return bytecode(strings, debug_attributes(1, 2, 3), **others)  # type: ignore[arg-type]


def test_checkouts_agree_whatever_the_length_of_their_paths() -> None:
    short, long = kernel(b"/a"), kernel(b"/home/somebody/checkouts/" + b"deep/" * 40 + b"end")
    assert short != long
    assert without_folders(short) == without_folders(long)
    assert b"/a" not in without_folders(short)


def test_only_the_paths_go() -> None:
    expected = bytecode([b"softmax_kernel", b"kernel.py", b".", b"kernel.py"], debug_attributes(1, 2, 3))
    assert without_folders(kernel(b"/src")) == expected


def test_what_differs_otherwise_still_differs() -> None:
    assert without_folders(kernel(b"/a")) != without_folders(kernel(b"/a", function=b"other"))


def test_doing_it_twice_changes_nothing() -> None:
    once = without_folders(kernel(b"/a"))
    assert without_folders(once) == once


def test_windows_paths() -> None:
    strings = [b"f", b"kernel.py", b"C:\\src", b"C:\\src\\kernel.py"]
    expected = bytecode([b"f", b"kernel.py", b".", b"kernel.py"], debug_attributes(1, 2, 3))
    assert without_folders(bytecode(strings, debug_attributes(1, 2, 3))) == expected


def test_a_path_that_is_no_debug_information_stays() -> None:
    code = bytecode(
        [b"/weights/in/a/string", b"kernel.py", b"rel", b"rel/kernel.py"], debug_attributes(1, 2, 3)
    )
    assert without_folders(code) == code


def test_bytecode_of_another_kind_is_left_alone() -> None:
    good = kernel(b"/src")
    for other in (
        b"",
        b"junk",
        MAGIC,
        good.replace(MAGIC, b"\x7fTileXX\0"),
        kernel(b"/src", minor=9),  # type: ignore[arg-type]
        kernel(b"/src", tail=b"\0\0"),
        kernel(b"/src", tail=b""),
        bytecode([b"f", b"kernel.py", b"/src"], debug_attributes(1, 2, 99)),
    ):
        assert without_folders(other) == other


@given(st.integers(0, 400), st.binary(max_size=4))
@example(0, b"")
def test_damage_is_passed_on_to_the_compiler(at: int, junk: bytes) -> None:
    """Cut or changed anywhere: an answer without an exception, and what is still well-formed loses paths."""
    good = kernel(b"/src/of/somebody")
    for damaged in (good[:at], good[:at] + junk + good[at + len(junk) :]):
        seen = without_folders(damaged)
        assert seen == damaged or without_folders(seen) == seen


@given(
    st.lists(
        st.binary(min_size=1, max_size=300).filter(lambda name: name[:1] != b"/" and b":" not in name),
        max_size=40,
    )
)
def test_other_strings_are_kept_whatever_they_are(others: list[bytes]) -> None:
    count = len(others)
    attributes = debug_attributes(count, count + 1, count + 2)
    paths = [b"kernel.py", b"/some/where", b"/some/where/kernel.py"]
    expected = bytecode([*others, b"kernel.py", b".", b"kernel.py"], attributes)
    assert without_folders(bytecode([*others, *paths], attributes)) == expected
