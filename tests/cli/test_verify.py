"""``acache verify``: what is said of good and bad files, and what it exits with."""

from __future__ import annotations

import json

import pytest

import acache as package
from acache._fs import OsFileSystem
from acache._models import Artifact
from tests.cli.test_ls import REFUSED, later_version


@pytest.fixture
def shelf(shelve):
    """Lay an artifact, one in a namespace, a mark and a failure."""
    return {
        "one": shelve(package.key(n=1), Artifact.of(b"x" * 100)),
        "team": shelve(package.key(n=1), namespace="team"),
        "mark": shelve(package.key(n=3), 0.01),
        "failure": shelve(package.key(n=4), REFUSED),
    }


def test_all_is_well(acache, layout, shelf):
    done = acache("verify", "-d", layout.root)
    assert (done.exit_code, done.stderr) == (0, "")
    size = sum(shelf[name].stat().st_size for name in ("one", "team"))
    assert done.stdout.startswith(f"2 artifacts ({size / 1024:.1f} KiB) good, 1 mark, 1 failed compile: ")


def test_what_is_corrupt_is_named_and_repaired(acache, layout, shelf):
    shelf["one"].write_bytes(b"bad")
    done = acache("verify", "-d", layout.root)
    assert done.exit_code == 1
    assert "1 artifact (" in done.stdout
    assert "1 corrupt file" in done.stdout
    assert f"  {shelf['one']}: shorter than a preamble" in done.stdout
    done = acache("verify", "--repair", "-d", layout.root, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert (found["ok"], found["corrupt"], found["repaired"], found["artifacts"]) == (True, 1, 1, 1)
    assert found["faults"] == [{"path": str(shelf["one"]), "why": "shorter than a preamble"}]
    assert not shelf["one"].exists()
    assert acache("verify", "-d", layout.root).exit_code == 0


def test_a_later_format_is_counted_and_left(acache, layout, shelf):
    shelf["one"].write_bytes(later_version(shelf["one"].read_bytes()))
    done = acache("verify", "--repair", "-d", layout.root)
    assert done.exit_code == 0
    assert "1 of a later format" in done.stdout
    assert shelf["one"].exists()


def test_what_cannot_be_read_or_removed_is_said(acache, layout, shelf, monkeypatch):
    shelf["one"].write_bytes(b"bad")

    def refuse(self, source, target):
        raise PermissionError(13, "Permission denied", source)

    monkeypatch.setattr(OsFileSystem, "rename", refuse)
    done = acache("verify", "--repair", "-d", layout.root)
    assert done.exit_code == 1
    assert "shorter than a preamble; it cannot be removed: Permission denied" in done.stdout


def test_a_reader_repairs_nothing(acache, layout, shelf, monkeypatch):
    monkeypatch.setenv("ACACHE_MODE", "readonly")
    assert acache("verify", "-d", layout.root).exit_code == 0
    done = acache("verify", "--repair", "-d", layout.root)
    assert done.exit_code == 1
    assert "nothing is repaired" in done.stderr


def test_a_directory_that_nobody_used_yet(acache, tmp_path):
    done = acache("verify", "-d", str(tmp_path / "none"), "--json")
    assert (done.exit_code, json.loads(done.stdout)["ok"]) == (0, True)
    assert not (tmp_path / "none").exists()
