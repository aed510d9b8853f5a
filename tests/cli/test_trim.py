"""``acache trim``: a size, an age, and what is said about it."""

from __future__ import annotations

import json
import os

import pytest

import acache as package
from acache._fs import OsFileSystem
from acache._models import Artifact

SIZE = 8192
"""Bytes of the smallest artifact's file."""


@pytest.fixture
def shelf(shelve):
    """Lay four artifacts in two namespaces, last used 3, 2, 1 and 0 days ago."""
    paths = [
        shelve(package.key(n=number), Artifact.of(b"x"), namespace="team" if number == 2 else None)
        for number in range(4)
    ]
    for number, path in enumerate(paths):
        then = path.stat().st_mtime - (3 - number) * 86400
        os.utime(path, (then, then))
    return paths


def there(shelf):
    return [number for number, path in enumerate(shelf) if path.exists()]


def test_down_to_a_size(acache, layout, shelf):
    size = sum(path.stat().st_size for path in shelf)
    done = acache("trim", "-d", layout.root, "--max-bytes", str(size // 2))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("2 files (")
    assert "removed, 2 files (" in done.stdout
    assert there(shelf) == [2, 3]


@pytest.mark.parametrize("age", ["36h", "1.5d", "129600", "2160min", "129600s", "0.214w"])
def test_down_to_an_age(acache, layout, shelf, age):
    done = acache("trim", "-d", layout.root, "--max-age", age, "--json")
    assert done.exit_code == 0
    assert there(shelf) == [2, 3]
    found = json.loads(done.stdout)
    assert (found["files"], found["evicted"], found["kept"], found["dry_run"]) == (4, 2, 2, False)
    assert found["size"] == found["kept_size"] + found["evicted_size"]
    assert found["directory"] == layout.root


def test_a_dry_run_only_says(acache, layout, shelf, monkeypatch):
    done = acache("trim", "-d", layout.root, "--max-bytes", "0", "--dry-run")
    assert done.exit_code == 0
    assert done.stdout.startswith("4 files (")
    assert "would be removed, 0 files" in done.stdout
    assert there(shelf) == [0, 1, 2, 3]
    monkeypatch.setenv("ACACHE_MODE", "readonly")
    refused = acache("trim", "-d", layout.root, "--max-bytes", "0")
    assert (refused.exit_code, there(shelf)) == (1, [0, 1, 2, 3])
    assert "ACACHE_MODE is readonly" in refused.stderr
    assert acache("trim", "-d", layout.root, "--max-bytes", "0", "--dry-run").exit_code == 0


def test_without_options_the_settings_of_the_environment_hold(acache, layout, shelf, monkeypatch):
    assert acache("trim", "-d", layout.root).stdout.startswith("0 files")
    monkeypatch.setenv("ACACHE_MAX_ENTRIES", "1")
    assert acache("trim", "-d", layout.root).exit_code == 0
    assert there(shelf) == [3]


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--max-bytes", "much", "'much' is no size; say 500MiB, 2GiB"),
        ("--max-bytes", "-1", "'-1' is no size"),
        ("--max-age", "7 moons", "'7 moons' is no length of time; say 90min, 12h, 7d, 4w"),
        ("--max-age", "-1d", "is no length of time"),
        ("--max-age", "9" * 40, "is no length of time"),
    ],
)
def test_wrong_words(acache, layout, shelf, option, text, said):
    done = acache("trim", "-d", layout.root, f"{option}={text}")
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert there(shelf) == [0, 1, 2, 3]


def test_what_cannot_be_removed_is_said(acache, layout, shelf, monkeypatch):
    def refuse(self, path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(OsFileSystem, "unlink", refuse)
    done = acache("trim", "-d", layout.root, "--max-bytes", "0")
    assert done.exit_code == 1
    assert done.stdout.startswith("0 files (0 B) removed, 4 files")
    assert f"4 could not be read or removed, the first is {shelf[0]}: Permission denied" in done.stderr


def test_what_is_used_meanwhile_stays(acache, layout, shelf, monkeypatch):
    head = OsFileSystem.head

    def used(self, path, count):
        os.utime(shelf[0])
        return head(self, path, count)

    monkeypatch.setattr(OsFileSystem, "head", used)
    done = acache("trim", "-d", layout.root, "--max-age", "36h")
    assert done.exit_code == 0
    assert there(shelf) == [0, 2, 3]
    assert "1 file spared" in done.stdout


def test_a_directory_that_nobody_used_yet(acache, tmp_path):
    done = acache("trim", "-d", str(tmp_path / "none"), "--max-age", "1d", "--json")
    assert (done.exit_code, json.loads(done.stdout)["files"]) == (0, 0)
    assert not (tmp_path / "none").exists()
