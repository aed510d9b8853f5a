"""Fingerprints see content: a compiler swapped in place, version, size and mtime kept, is another one."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from acache._errors import CompilerNotFoundError
from acache.compilers import _toolchain
from acache.compilers._toolchain import (
    check_env,
    digest_files,
    environment,
    find_program,
    passed,
    read_source,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_fingerprint_is_the_content_of_all_files(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    both = digest_files([str(one), str(two)])
    assert len(both) == 64
    assert both == digest_files([str(two), str(one), str(one)]), "the order does not matter"
    assert both != digest_files([str(one)])
    assert both != digest_files([str(one), str(two)], "name")
    two.write_bytes(b"3")
    assert both != digest_files([str(one), str(two)])
    two.write_bytes(b"2")
    assert both == digest_files([str(one), str(two)])


def test_the_same_toolchain_elsewhere_has_the_same_fingerprint(tmp_path: Path) -> None:
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
        (folder / "cc").write_bytes(b"compiler")
    here, there = [digest_files([str(folder / "cc")]) for folder in folders]
    assert here == there


def test_swapped_in_place_with_size_and_mtime_kept(
    tmp_path: Path, overwrite: Callable[[Path, bytes], None]
) -> None:
    """Field report B57: the upgrade that nobody's key noticed."""
    program = tmp_path / "cc"
    program.write_bytes(b"release 1")
    before, stamp = digest_files([str(program)]), program.stat()
    overwrite(program, b"release 2")
    now = program.stat()
    assert (now.st_ino, now.st_size, now.st_mtime_ns) == (stamp.st_ino, stamp.st_size, stamp.st_mtime_ns)
    assert digest_files([str(program)]) != before


def test_replaced_by_rename(tmp_path: Path) -> None:
    program, other = tmp_path / "cc", tmp_path / "new"
    program.write_bytes(b"release 1")
    before = digest_files([str(program)])
    other.write_bytes(b"release 2")
    shutil.copystat(program, other)
    other.rename(program)
    assert digest_files([str(program)]) != before


def test_an_unchanged_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "cc"
    program.write_bytes(b"release 1")
    first = digest_files([str(program)])

    def refuse() -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(_toolchain.xxhash, "xxh3_128", refuse)
    assert digest_files([str(program)]) == first


def test_a_file_written_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "cc"
    program.write_bytes(b"half-way through an upgrade")
    real, changes = _toolchain.identity, iter([b"still not done", b"done"])

    def changing(path: str) -> tuple[int, int, int, int, int]:
        found = real(path)
        if (content := next(changes, None)) is not None:
            program.write_bytes(content)
        return found

    monkeypatch.setattr(_toolchain, "identity", changing)
    torn = digest_files([str(program)])
    monkeypatch.setattr(_toolchain, "identity", real)
    assert torn == digest_files([str(program)])
    assert program.read_bytes() == b"done"


def test_finding_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Callable[[str, str], Path]
) -> None:
    path = script("mytool", "exit 0")
    with pytest.raises(CompilerNotFoundError, match="install the tool") as caught:
        find_program("mytool", "install the tool")
    assert caught.value.failure.reason == "missing"
    monkeypatch.setenv("PATH", str(path.parent))
    assert find_program("mytool", "") == str(path)
    assert find_program(path, "") == str(path)
    monkeypatch.chdir(path.parent)
    assert find_program("./mytool", "") == str(path)
    path.chmod(0o644)
    with pytest.raises(CompilerNotFoundError):
        find_program(path, "")


def test_reading_sources(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\x00file")
    assert read_source("täxt") == "täxt".encode()
    assert read_source(b"\xff") == b"\xff"
    assert read_source(tmp_path / "file") == b"\x00file"
    assert read_source(os.fsdecode(b"caf\xe9")) == b"caf\xe9"
    with pytest.raises(FileNotFoundError):
        read_source(tmp_path / "nothing")
    with pytest.raises(TypeError, match="not int"):
        read_source(1)


def test_the_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_env(["B", "A", "B"]) == ("A", "B")
    for wrong in (["A=1"], [""], ["1A"], ["A B"], ["TMPDIR"]):
        with pytest.raises(ValueError, match=r"environment variables|private"):
            check_env(wrong)
    with pytest.raises(TypeError, match="not one string"):
        check_env("PATH")
    monkeypatch.setenv("ACACHE_TEST_SET", "")
    monkeypatch.delenv("ACACHE_TEST_UNSET", raising=False)
    seen = environment(("ACACHE_TEST_SET", "ACACHE_TEST_UNSET"))
    assert seen == {"ACACHE_TEST_SET": "", "ACACHE_TEST_UNSET": None}
    assert passed(seen) == {"ACACHE_TEST_SET": ""}
