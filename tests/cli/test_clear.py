"""``acache clear``: one namespace goes, after a question, and nothing else."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

import acache as package
from acache._fs import OsFileSystem
from acache._models import Artifact
from acache.cli._app import app
from tests.cli.test_ls import REFUSED, later_version


@pytest.fixture
def shelf(shelve):
    """Lay two artifacts, a mark and a failure without a namespace, and one artifact in another."""
    return {
        "one": shelve(package.key(n=1), Artifact.of(b"x" * 100)),
        "two": shelve(package.key(n=2)),
        "mark": shelve(package.key(n=3), 0.01),
        "failure": shelve(package.key(n=4), REFUSED),
        "team": shelve(package.key(n=1), namespace="team"),
    }


def there(shelf):
    return {name for name, path in shelf.items() if path.exists()}


def answer(monkeypatch, layout, text, *args):
    """Run ``clear`` at a terminal, where somebody answers."""
    monkeypatch.setattr("acache.cli.commands.clear._somebody_is_there", lambda: True)
    return CliRunner().invoke(app, ["clear", "-d", layout.root, *args], input=text, catch_exceptions=False)


def test_what_has_no_namespace_goes_and_nothing_else(acache, layout, shelf):
    done = acache("clear", "--yes", "-d", layout.root)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("2 artifacts (8.1 KiB), 1 mark, 1 failed compile removed from ")
    assert there(shelf) == {"team"}
    again = acache("clear", "--yes", "-d", layout.root)
    assert (again.exit_code, again.stdout.startswith("Nothing removed")) == (0, True)


def test_a_namespace_goes_alone(acache, layout, shelf):
    assert acache("clear", "-y", "-n", "team", "-d", layout.root).exit_code == 0
    assert there(shelf) == {"one", "two", "mark", "failure"}


def test_all_namespaces(acache, layout, shelf):
    size = sum(shelf[name].stat().st_size for name in ("one", "two", "team"))
    done = acache("clear", "-y", "-A", "-d", layout.root, "--json")
    assert json.loads(done.stdout) == {
        "directory": layout.root,
        "namespace": None,
        "all_namespaces": True,
        "artifacts": 3,
        "size": size,
        "marks": 1,
        "failures": 1,
        "untrusted": 0,
        "refused": 0,
        "why": None,
    }
    assert there(shelf) == set()


def test_asks_first_and_says_what_would_go(layout, shelf, monkeypatch):
    done = answer(monkeypatch, layout, "n\n")
    assert done.exit_code == 1
    assert "Remove 2 artifacts (8.1 KiB), 1 mark, 1 failed compile from" in done.stderr
    assert "nothing was removed" in done.stderr
    assert len(there(shelf)) == 5
    assert answer(monkeypatch, layout, "y\n").exit_code == 0
    assert there(shelf) == {"team"}


def test_no_question_where_there_is_nothing_to_remove(layout, shelf, monkeypatch):
    done = answer(monkeypatch, layout, "", "-n", "absent")
    assert (done.exit_code, "Remove" in done.stderr) == (0, False)
    assert len(there(shelf)) == 5


def test_json_is_alone_on_stdout_also_after_a_question(layout, shelf, monkeypatch):
    done = answer(monkeypatch, layout, "y\n", "--json")
    assert json.loads(done.stdout)["artifacts"] == 2
    assert there(shelf) == {"team"}


def test_where_nobody_can_be_asked_nothing_goes(acache, layout, shelf):
    done = acache("clear", "-d", layout.root)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--yes" in done.stderr
    assert len(there(shelf)) == 5


def test_an_end_of_input_is_no(layout, shelf, monkeypatch):
    done = answer(monkeypatch, layout, "")
    assert done.exit_code == 1
    assert len(there(shelf)) == 5


def test_readonly_mode_removes_nothing(acache, layout, shelf, monkeypatch):
    monkeypatch.setenv("ACACHE_MODE", "readonly")
    done = acache("clear", "-y", "-d", layout.root)
    assert done.exit_code == 1
    assert "ACACHE_MODE" in done.stderr
    assert len(there(shelf)) == 5


def test_a_directory_that_is_not_there_is_not_made(acache, cache_dir):
    assert acache("clear", "-y", "-d", str(cache_dir)).exit_code == 0
    assert not cache_dir.exists()


def test_what_is_no_entry_and_what_is_of_a_later_format_stays(acache, layout, shelf):
    shelf["one"].write_bytes(later_version(shelf["one"].read_bytes()))
    shelf["two"].write_bytes(b"torn")
    assert acache("clear", "-y", "-d", layout.root).exit_code == 0
    assert there(shelf) == {"one", "two", "team"}


def test_what_cannot_be_removed_is_said_and_the_rest_goes(acache, layout, shelf, monkeypatch):
    unlink = OsFileSystem.unlink

    def refuse(self, path):
        if path == str(shelf["one"]):
            raise PermissionError(13, "Permission denied", path)
        unlink(self, path)

    monkeypatch.setattr(OsFileSystem, "unlink", refuse)
    done = acache("clear", "-y", "-d", layout.root)
    assert done.exit_code == 1
    assert "1 file left" in done.stderr
    assert str(shelf["one"]) in done.stderr
    assert there(shelf) == {"one", "team"}


def test_what_went_meanwhile_is_no_error(acache, layout, shelf, monkeypatch):
    unlink = OsFileSystem.unlink

    def twice(self, path):
        os.unlink(path)
        unlink(self, path)

    monkeypatch.setattr(OsFileSystem, "unlink", twice)
    assert acache("clear", "-y", "-d", layout.root).exit_code == 0
    assert there(shelf) == {"team"}


@pytest.mark.root
def test_entries_of_others_stay(acache, layout, shelf):
    os.chown(shelf["one"], 65534, 65534)
    done = acache("clear", "-y", "-d", layout.root)
    assert done.exit_code == 0
    assert "1 file of owners whom ACACHE_TRUST does not cover: left" in done.stdout
    assert there(shelf) == {"one", "team"}


async def test_what_is_cleared_is_compiled_again_and_only_that(acache, cache_dir):
    async def compile():
        calls.append(1)
        return b"x"

    calls = []
    key = package.key(n=1)
    for namespace in (None, "team"):
        async with package.Cache(cache_dir, namespace=namespace) as cache:
            await cache.get_or_compile(key, compile)
    assert acache("clear", "-y", "-n", "team", "-d", str(cache_dir)).exit_code == 0
    origins = []
    for namespace in (None, "team"):
        async with package.Cache(cache_dir, namespace=namespace) as cache:
            origins.append((await cache.get_or_compile(key, compile)).origin)
    assert origins == [package.Origin.DISK, package.Origin.COMPILED]
    assert len(calls) == 3


def test_a_namespace_of_a_stranger_cannot_drive_the_terminal(acache, layout, shelve):
    shelve(package.key(n=1), namespace="\x1b[2J")
    assert "\x1b" not in acache("clear", "-y", "-n", "\x1b[2J", "-d", layout.root).output
