"""``acache ls``: what is cached, in the order that was asked for, whatever else lies there."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xxhash

import acache as package
from acache import _format
from acache._fs import OsFileSystem
from acache._models import Artifact, CompileFailure
from acache.cli._entries import Scope, gather

REFUSED = CompileFailure(
    "diagnostic", "a.cc:7:3: error: no kernel\nmore", exit_status=1, seconds=0.5, deterministic=True
)
KILLED = CompileFailure("signal", "", signal=9, seconds=2.0)


@pytest.fixture
def shelf(shelve):
    """Lay three artifacts of which each is first by something else."""
    now = time.time()
    keys = [package.key(number=number) for number in range(3)]
    shelve(keys[0], Artifact.of(b"x" * 9000), label="b", seconds=1, created=now - 7200, used=now - 10)
    shelve(keys[1], label="c", compiler="Cc", seconds=3, created=now - 60, used=now - 60)
    shelve(keys[2], Artifact.of(b"x" * 5000), label="a", seconds=2, created=now - 3600, used=now - 100)
    return keys


def listed(acache, layout, *args):
    done = acache("ls", "--directory", layout.root, "--json", *args)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def labels(acache, layout, *args):
    return "".join(each["label"] for each in listed(acache, layout, *args)["artifacts"])


# --- order, limit, namespaces ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "order"),
    [
        ("used", "bca"),
        ("age", "cab"),
        ("size", "bac"),
        ("seconds", "cab"),
        ("label", "abc"),
    ],
)
@pytest.mark.usefixtures("shelf")
def test_sorts(acache, layout, by, order):
    assert labels(acache, layout, "--sort", by) == order
    assert labels(acache, layout, "--sort", by, "--reverse") == order[::-1]
    assert labels(acache, layout, "--sort", by, "--limit", "2") == order[:2]
    assert labels(acache, layout, "--sort", by, "--reverse", "--limit", "2") == order[::-1][:2]


def test_sorts_by_key_compiler_and_namespace(acache, layout, shelf):
    found = listed(acache, layout, "--sort", "key")["artifacts"]
    assert [each["key"] for each in found] == sorted(key.hex for key in shelf)
    assert labels(acache, layout, "--sort", "compiler")[0] == "c"
    assert len(labels(acache, layout, "--sort", "namespace")) == 3


@pytest.mark.usefixtures("shelf")
def test_a_limit_leaves_the_sums_whole(acache, layout):
    found = listed(acache, layout, "--limit", "1")
    assert (found["entries"], found["compile_seconds"], len(found["artifacts"])) == (3, 6.0, 1)
    shown = acache("ls", "-d", layout.root, "--limit", "1").stdout
    assert "3 artifacts (1 shown)" in shown
    assert "6.0 s of compiling" in shown


def test_json_has_all_that_is_known(acache, layout, shelve):
    key, now = package.key(n=1), time.time()
    path = shelve(
        key, namespace="team", label="gemm", compiler="Tileiras", seconds=1.5, created=now, used=now - 50
    )
    found = listed(acache, layout, "--namespace", "team")
    assert found["artifacts"] == [
        {
            "key": key.hex,
            "name": path.parent.name + path.stem,
            "namespace": "team",
            "label": "gemm",
            "compiler": "Tileiras",
            "size": path.stat().st_size,
            "compile_seconds": 1.5,
            "created": now,
            "used": path.stat().st_mtime,
            "owner": os.geteuid() if hasattr(os, "geteuid") else 0,
            "trusted": True,
        }
    ]


def test_namespaces(acache, layout, shelve):
    for number, namespace in enumerate([None, "team", "team", "other"]):
        shelve(package.key(number=number), namespace=namespace, label=str(namespace))
    assert labels(acache, layout) == "None"
    assert labels(acache, layout, "-n", "team") == "teamteam"
    assert labels(acache, layout, "-A", "--sort", "namespace") == "Noneotherteamteam"
    shown = acache("ls", "-d", layout.root, "-n", "absent").stdout
    assert "No artifacts" in shown
    assert "4 artifacts in other namespaces (none, 'other', 'team')" in shown
    both = acache("ls", "-d", layout.root, "-n", "team", "-A")
    assert both.exit_code == 2


# --- for people --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shelf")
def test_the_table(acache, layout):
    lines = acache("ls", "-d", layout.root, "--sort", "label").stdout.splitlines()
    assert lines[0].split() == ["key", "label", "compiler", "size", "compile", "age", "used"]
    assert lines[1].split()[1:] == ["a", "-", "8.9", "KiB", "2.0", "s", "1", "h", "1", "min"]
    assert lines[3].split()[1:] == ["c", "Cc", "4.0", "KiB", "3.0", "s", "1", "min", "1", "min"]
    assert lines[4].startswith("3 artifacts in ")


def test_columns_stay_columns_with_wide_characters(acache, layout, shelve):
    shelve(package.key(n=1), label="漢字", seconds=3)
    shelve(package.key(n=2), label="four", seconds=2)
    one, two = acache("ls", "-d", layout.root, "--sort", "seconds").stdout.splitlines()[1:3]
    assert one.index("-") + 2 == two.index("-")


def test_a_label_of_a_stranger_cannot_drive_the_terminal(acache, layout, shelve):
    evil = "\x1b]0;owned\x07[red]\u202e\n"
    shelve(package.key(n=1), namespace=evil, label=evil, compiler=evil)
    shelve(package.key(n=1), REFUSED, namespace=evil, label=evil)
    for words in (["-A"], ["-A", "--failures"], ["-A", "--json"], []):
        shown = acache("ls", "-d", layout.root, *words).stdout
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "[red]" in shown


@pytest.mark.usefixtures("only_reads")
def test_a_directory_that_is_not_there_is_said_so_and_not_made(acache, cache_dir):
    done = acache("ls", "-d", str(cache_dir))
    assert done.exit_code == 0
    assert "there is no cache there" in done.stdout
    assert str(cache_dir) in done.stdout
    assert not cache_dir.exists()
    assert json.loads(acache("ls", "-d", str(cache_dir), "--json").stdout)["artifacts"] == []


def test_a_directory_that_cannot_be_read_is_code_1(acache, cache_dir):
    cache_dir.symlink_to(cache_dir)
    done = acache("ls", "-d", str(cache_dir))
    assert done.exit_code == 1
    assert "cannot be read" in done.stderr
    assert "Traceback" not in done.output


# --- failures ----------------------------------------------------------------------------------------------


def test_failures_are_listed_apart(acache, layout, shelve):
    now = time.time()
    shelve(package.key(n=1), label="good")
    shelve(package.key(n=2), REFUSED, label="bad", used=now - 20)
    shelve(package.key(n=3), REFUSED, label="old", used=now - 3600)
    shelve(package.key(n=4), KILLED, label="killed", used=now - 10)
    assert labels(acache, layout) == "good"
    assert "3 failed compiles left for others to see: --failures" in acache("ls", "-d", layout.root).stdout
    found = listed(acache, layout, "--failures")["failures"]
    assert [each["label"] for each in found] == ["killed", "bad", "old"]
    assert found[1]["text"] == REFUSED.text
    assert (found[1]["exit_status"], found[1]["deterministic"]) == (1, True)
    killed, bad, old = acache("ls", "-d", layout.root, "--failures").stdout.splitlines()[1:]
    assert "no kernel" in bad
    assert "more" not in bad.partition("s more")[2]  # the first line only
    assert "s more" in bad
    assert "no more" in old
    assert "signal" in killed
    assert len(listed(acache, layout, "--failures", "--limit", "1")["failures"]) == 1


def test_no_failures(acache, layout, shelve):
    shelve(package.key(n=1))
    assert "No failed compile" in acache("ls", "-d", layout.root, "--failures").stdout


# --- what is no good ---------------------------------------------------------------------------------------


def test_what_is_no_good_is_passed_over_and_counted(acache, layout, shelve):
    shelve(package.key(n=1), label="good")
    torn = shelve(package.key(n=2), label="torn")
    torn.write_bytes(torn.read_bytes()[:100])
    later = shelve(package.key(n=3), label="later")
    later.write_bytes(later_version(later.read_bytes()))
    link = shelve(package.key(n=4))
    link.unlink()
    link.symlink_to("/etc/passwd")
    folder = shelve(package.key(n=5))
    folder.unlink()
    folder.mkdir()
    (folder.parent / "short.art").write_bytes(b"x")
    (folder.parent / ".t.0123").write_bytes(b"x")
    shelve(package.key(n=6), 0.001, label="cheap")
    found = listed(acache, layout)
    assert [each["label"] for each in found["artifacts"]] == ["good"]
    assert found["faults"] == {"corrupt": 3, "later": 1}
    shown = acache("ls", "-d", layout.root).stdout
    assert "3 files that do not pass their own check" in shown
    assert "1 file that is of a later format" in shown


def later_version(data):
    """Return an entry's bytes as a later version would write them."""
    stem = data[:8] + struct.pack("<H", 2) + data[10:40]
    return stem + xxhash.xxh3_64_digest(stem) + data[48:]


@pytest.mark.parametrize(
    "change",
    [
        {"created": 10**400},
        {"created": "soon"},
        {"namespace": ["x"]},
        {"parts": [["a"]]},
        {"key": "zz"},
        {"fields": 3},
        {"seconds": -1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_nonsense_under_a_good_check_is_no_traceback(acache, layout, shelve, change):
    """Whoever may write in the folder may write any header, with its check."""
    path = shelve(package.key(n=1))
    header = {"key": package.key(n=1).hex, "nonce": "x", "namespace": None, "parts": [["a", 0, 0, ""]]}
    path.write_bytes(b"".join(_format._assemble(_format.Kind.ARTIFACT, {**header, **change}, ())))
    shelve(package.key(n=2), label="good")
    for words in (["ls", "-A"], ["ls", "-A", "--json"], ["ls", "-A", "--failures"]):
        done = acache(*words, "-d", layout.root)
        assert (done.exit_code, done.stderr) == (0, "")
    assert "good" in acache("ls", "-A", "-d", layout.root).stdout


def test_an_entry_that_vanishes_while_it_is_listed_is_not_there(layout, shelve):
    kept, gone = shelve(package.key(n=1), label="kept"), shelve(package.key(n=2), label="gone")

    class Vanishing(OsFileSystem):
        def head(self, path, count):
            if path == str(gone):
                gone.unlink(missing_ok=True)
            return super().head(path, count)

    listing = gather(layout, Scope(), fs=Vanishing())
    assert [row.label for row in listing.rows] == ["kept"]
    assert listing.faults == {}
    assert kept.exists()


def test_a_shard_that_cannot_be_read_hides_no_other(acache, layout, shelve):
    shelve(package.key(n=1), label="good")
    shard = Path(layout.base, "00")
    shard.symlink_to(shard)
    found = listed(acache, layout)
    assert (len(found["artifacts"]), found["faults"]) == (1, {"unreadable": 1})


@pytest.mark.root
def test_entries_of_others_are_shown_as_not_trusted(acache, layout, shelve):
    shelve(package.key(n=1), label="mine")
    theirs = shelve(package.key(n=2), label="theirs")
    os.chown(theirs, 65534, 65534)
    found = {each["label"]: each["trusted"] for each in listed(acache, layout)["artifacts"]}
    assert found == {"mine": True, "theirs": False}
    shown = acache("ls", "-d", layout.root).stdout
    assert "user 65534, not trusted" in shown
    assert "1 artifact of owners whom ACACHE_TRUST does not cover" in shown


# --- as a user runs it -------------------------------------------------------------------------------------


def test_only_reads(acache, layout, shelve, request):
    shelve(package.key(n=1))
    shelve(package.key(n=2), REFUSED)
    shelve(package.key(n=3)).write_bytes(b"torn")
    request.getfixturevalue("only_reads")
    for words in ([], ["-A"], ["--failures"], ["--json"]):
        assert acache("ls", "-d", layout.root, *words).exit_code == 0


def test_a_reader_that_has_had_enough_is_no_traceback(layout, shelve):
    for number in range(3000):
        shelve(package.key(number=number))
    for extra in ([], ["--json"]):
        words = [sys.executable, "-m", "acache", "ls", "-d", layout.root, *extra]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
            done.stdout.readline()
            done.stdout.close()
            assert b"Traceback" not in done.stderr.read()
            assert done.wait(60) in (0, 1)


def test_a_terminal_that_cannot_show_a_label_is_no_error(layout, shelve):
    shelve(package.key(n=1), label="größe")
    words = [sys.executable, "-m", "acache", "ls", "-d", layout.root]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"gr\xf6\xdfe" in done.stdout
