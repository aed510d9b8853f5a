"""``acache stats``: what all processes counted, from the records that they left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import acache as package
from acache import _host
from acache._tally import Tally, encode_tally
from acache.compilers import Command


@pytest.fixture
def record(layout):
    """Lay a record as a closing process would."""
    numbers = iter(range(1, 10**6))

    def write(*rows, processes=1, most=256):
        tally = Tally(most)
        for label, compiler, counts in rows:
            tally.count(label, compiler, counts)
        tally.processes, tally.first, tally.last = processes, 1000.0, 2000.0
        folder = Path(layout.base, "stats")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{next(numbers):032x}.json"
        path.write_bytes(encode_tally(tally))
        return path

    return write


SOFTMAX = ("softmax", "Cc", {"compiles": 2, "compile_seconds": 5.0, "disk_hits": 6, "disk_saved": 15.0})
GEMM = ("gemm", "Nvcc", {"peer_hits": 1, "peer_saved": 40.0, "wait_seconds": 30.0, "misses": 1})
MEMORY = (None, None, {"memory_hits": 1000, "memory_saved": 3000.0, "compile_failures": 1, "compiles": 1})


def test_json_has_sums_by_label_and_compiler(acache, layout, record):
    record(SOFTMAX, GEMM)
    record(SOFTMAX, MEMORY, processes=9)
    done = acache("stats", "-d", layout.root, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert (found["processes"], found["first"], found["last"]) == (10, 1000.0, 2000.0)
    assert found["totals"] == {
        "hits": {"memory": 1000, "disk": 12, "peer": 1, "remote": 0},
        "misses": 1,
        "launches": 5,
        "failures": 1,
        "compile_seconds": 10.0,
        "wait_seconds": 30.0,
        "saved_seconds": {"memory": 3000.0, "disk": 30.0, "peer": 40.0, "remote": 0.0},
    }
    assert [each["label"] for each in found["labels"]] == ["gemm", "softmax", None]
    assert [each["compiler"] for each in found["compilers"]] == ["Nvcc", "Cc", None]
    assert found["labels"][1]["hits"]["disk"] == 12
    assert found["records"] == {"read": 2, "corrupt": 0, "untrusted": 0, "later": 0}


def test_people_see_what_it_was_good_for(acache, layout, record):
    record(SOFTMAX, GEMM, MEMORY, processes=3)
    text = acache("stats", "-d", layout.root).stdout
    assert "3 closed caches" in text
    assert "7 hits (70 %) on disk, of peers or remote saved 55 s of compiling; 3 launches took 5.0 s" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["softmax"] == ["softmax", "0", "6", "0", "2", "0", "5.0", "s", "0.0", "s", "15", "s"]
    assert rows["Nvcc"] == ["Nvcc", "0", "0", "1", "0", "0", "0.0", "s", "30", "s", "40", "s"]
    assert rows["-"][1] == "1000"


def test_what_never_happened_takes_no_room_on_a_narrow_terminal(acache, layout, record, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    label = "attention with a mask"
    record((label, "Tileiras", {"compiles": 1, "compile_seconds": 2.0}))
    text = acache("stats", "-d", layout.root).stdout
    assert "remote " not in text.splitlines()[3]
    assert "failed" not in text
    assert "waiting" not in text
    assert any(line.startswith(label) for line in text.splitlines())
    record((label, "Tileiras", {"compile_failures": 1, "remote_hits": 1}))
    text = acache("stats", "-d", layout.root).stdout
    assert {"remote", "failed"} <= set(text.splitlines()[3].split())
    assert "compiler " in text


def test_a_hit_in_memory_saves_no_seconds(acache, layout, record):
    record(MEMORY)
    assert "saved 0.0 s of compiling" in acache("stats", "-d", layout.root).stdout


def test_many_labels(acache, layout, record):
    record(*((f"label {number}", "Cc", {"disk_saved": 1.0 + number}) for number in range(300)))
    text = acache("stats", "-d", layout.root, "--limit", "3").stdout
    assert "(all other labels)" in text  # a process tells 256 apart
    assert "label 255" in text
    assert "and 254 more labels: --limit" in text


@pytest.mark.usefixtures("only_reads")
def test_no_records_says_how_they_come_about(acache, cache_dir):
    done = acache("stats", "-d", str(cache_dir))
    assert done.exit_code == 0
    assert "leaves one when it closes its Cache" in done.stdout
    assert not cache_dir.exists()
    assert json.loads(acache("stats", "-d", str(cache_dir), "--json").stdout)["processes"] == 0


def test_no_records_on_a_network_mount_says_what_to_set(acache, cache_dir, monkeypatch):
    mount = _host.Mount("/", "nfs4", "server:/export", (), read_only=False)
    monkeypatch.setattr(_host, "mount_of", lambda path: mount)
    text = acache("stats", "-d", str(cache_dir)).stdout
    assert "network mount" in text
    assert "ACACHE_RECORD_STATS" in text


def test_what_is_no_good_is_passed_over_and_said(acache, layout, record):
    record(SOFTMAX)
    record(SOFTMAX).write_bytes(b"{torn")
    record(SOFTMAX).write_bytes(b'{"format": 7}')
    text = acache("stats", "-d", layout.root).stdout
    assert "1 record passed over: not readable, or with a failed check" in text
    assert "1 record passed over: of a later format" in text
    assert "6 hits" in text


@pytest.mark.root
def test_records_of_others_are_passed_over(acache, layout, record, monkeypatch):
    record(SOFTMAX)
    os.chown(record(SOFTMAX), 65534, 65534)
    found = json.loads(acache("stats", "-d", layout.root, "--json").stdout)
    assert (found["totals"]["hits"]["disk"], found["records"]["untrusted"]) == (6, 1)
    assert "ACACHE_TRUST" in acache("stats", "-d", layout.root).stdout
    monkeypatch.setenv("ACACHE_TRUST", "any")
    assert json.loads(acache("stats", "-d", layout.root, "--json").stdout)["totals"]["hits"]["disk"] == 12


def test_a_label_of_a_stranger_cannot_drive_the_terminal(acache, layout, record):
    record(("\x1b[2J[red]\u202e", "\x1b[2J", {"disk_hits": 1}))
    for words in ([], ["--json"]):
        text = acache("stats", "-d", layout.root, *words).stdout
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "[red]" in text


def test_only_reads(acache, layout, record, request):
    for _ in range(100):  # many, and a reader folds none of them
        record(SOFTMAX)
    request.getfixturevalue("only_reads")
    assert "100 closed caches" in acache("stats", "-d", layout.root).stdout


def test_a_folder_that_cannot_be_read_is_code_1(acache, layout):
    folder = Path(layout.base, "stats")
    folder.parent.mkdir(parents=True)
    folder.symlink_to(folder)
    done = acache("stats", "-d", layout.root)
    assert (done.exit_code, "cannot be read" in done.stderr) == (1, True)


async def test_with_a_real_cache(acache, cache_dir):
    request = Command(["cp", "in", "out"], inputs=["in"], outputs=["out"]).request("x", label="copy")
    for _ in range(3):
        async with package.Cache(cache_dir) as cache:
            await cache.compile(request)
            await cache.compile(request)
    found = json.loads(acache("stats", "-d", str(cache_dir), "--json").stdout)
    assert found["processes"] == 3
    (label,) = found["labels"]
    assert (label["label"], label["launches"]) == ("copy", 1)
    assert label["hits"] == {"memory": 3, "disk": 2, "peer": 0, "remote": 0}
    assert found["compilers"][0]["compiler"] == "Command"
    assert found["totals"]["saved_seconds"]["disk"] > 0
