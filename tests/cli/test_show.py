"""``acache show``: one entry, found by the beginning of its key; two keys compared; parts extracted."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import acache as package
from acache._keys import name_of
from acache._models import Artifact
from tests.cli.test_ls import KILLED, REFUSED, later_version

KEY = package.key(source="a", options=["-O3"], arch="sm_90")
OTHER = package.key(source="b", options=["-O3"], toolchain="9")
TWO_PARTS = Artifact({"cubin": b"\x00\xffELF", "ptx": b"ptx"}, {"arch": "sm_90", "log": "warning: slow\n"})


def shown(acache, layout, *args):
    done = acache("show", *args, "-d", layout.root, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


# --- what is shown -----------------------------------------------------------------------------------------


def test_json_has_all_that_is_known(acache, layout, shelve):
    path = shelve(KEY, TWO_PARTS, namespace="team", label="gemm", compiler="Nvcc", seconds=2.5, created=5.0)
    found = shown(acache, layout, KEY.hex[:10])
    artifact = found["artifact"]
    assert (found["key"], found["path"], found["label"]) == (KEY.hex, str(path), "gemm")
    assert (found["namespace"], found["name"]) == ("team", name_of(KEY, "team"))
    assert found["fields"] == dict(KEY.fields)
    assert (found["failure"], found["cheap_seconds"]) == (None, None)
    assert (artifact["compiler"], artifact["compile_seconds"], artifact["created"]) == ("Nvcc", 2.5, 5.0)
    assert [(part["name"], part["size"]) for part in artifact["parts"]] == [("cubin", 5), ("ptx", 3)]
    assert (artifact["metadata"], artifact["log"]) == ({"arch": "sm_90"}, "warning: slow\n")
    assert len(artifact["identity"]) == 32


def test_people_see_header_parts_fields_and_log(acache, layout, shelve):
    path = shelve(KEY, TWO_PARTS, label="gemm", compiler="Nvcc")
    text = acache("show", KEY.hex, "-d", layout.root).stdout
    for words in (KEY.hex, str(path), "gemm", "Nvcc", "cubin", "5 B", '"sm_90"', "warning: slow", "passed"):
        assert words in text
    for name, digest in KEY.fields.items():
        assert any(line.split() == [name, digest] for line in text.splitlines())


def test_a_failure_is_shown_with_the_compilers_words(acache, layout, shelve):
    shelve(KEY, REFUSED, label="bad")
    found = shown(acache, layout, KEY.hex)
    assert found["artifact"] is None
    assert (found["failure"]["text"], found["failure"]["exit_status"]) == (REFUSED.text, 1)
    text = acache("show", KEY.hex, "-d", layout.root).stdout
    assert REFUSED.text in text
    assert "refused the input" in text
    assert "s more" in text
    shelve(OTHER, KILLED)
    assert "not certain to fail again" in acache("show", OTHER.hex, "-d", layout.root).stdout


def test_a_cheap_mark_is_explained(acache, layout, shelve):
    shelve(KEY, 0.004)
    assert shown(acache, layout, KEY.hex)["cheap_seconds"] == 0.004
    assert "min_compile_seconds" in acache("show", KEY.hex, "-d", layout.root).stdout
    assert acache("show", KEY.hex[:8], "-d", layout.root).exit_code == 1  # it is no entry to look for


def test_text_of_a_stranger_cannot_drive_the_terminal(acache, layout, shelve):
    evil = "\x1b[2J[red]\u202e"
    key = package.Key(bytes(KEY), {evil: evil})
    artifact = Artifact({evil: b"x"}, {evil: evil, "log": evil})
    shelve(key, artifact, namespace=evil, label=evil, compiler=evil)
    shelve(OTHER, Artifact.of(b"x"), label=evil)
    for words in (
        [KEY.hex],
        [KEY.hex, "--json"],
        [KEY.hex, "--against", OTHER.hex],
        [KEY.hex, "--part", "x", "-o", "-"],
    ):
        done = acache("show", *words, "-d", layout.root)
        assert "\x1b" not in done.output
        assert "\u202e" not in done.output


# --- finding -----------------------------------------------------------------------------------------------


def test_a_key_a_name_and_the_beginning_of_either(acache, layout, shelve):
    shelve(KEY, label="meant")
    shelve(OTHER, label="other")
    name = name_of(KEY, None)
    for text in (KEY.hex, KEY.hex[:6], KEY.hex[:6].upper(), name, name[:6]):
        assert shown(acache, layout, text)["label"] == "meant"


def test_a_whole_key_without_a_namespace_is_the_plain_one_first(acache, layout, shelve):
    shelve(KEY, label="team", namespace="team")
    assert shown(acache, layout, KEY.hex)["label"] == "team"
    shelve(KEY, label="plain")
    assert shown(acache, layout, KEY.hex)["label"] == "plain"
    assert shown(acache, layout, KEY.hex, "-n", "team")["label"] == "team"
    assert shown(acache, layout, KEY.hex[:9], "-n", "team")["label"] == "team"
    assert acache("show", KEY.hex, "-n", "nobody", "-d", layout.root).exit_code == 1


def test_what_may_mean_several_lists_them(acache, layout, shelve):
    shelve(KEY, label="one")
    shelve(KEY, label="two", namespace="team")
    done = acache("show", KEY.hex[:8], "-d", layout.root)
    assert (done.exit_code, done.stdout) == (1, "")
    for words in ("2 entries", "label one", "namespace team", name_of(KEY, "team")[:12]):
        assert words in done.stderr


def test_many_candidates_are_not_all_listed(acache, layout, shelve):
    first = [package.key(number=number) for number in range(400)]
    digit = first[0].hex[0]
    alike = [key for key in first if key.hex[0] == digit]
    for key in alike:
        shelve(key)
    done = acache("show", digit, "-d", layout.root)
    assert f"{len(alike)} entries" in done.stderr
    assert f"and {len(alike) - 10} more" in done.stderr


@pytest.mark.usefixtures("only_reads")
def test_what_is_not_there_is_code_1_and_says_where_to_look(acache, cache_dir):
    done = acache("show", "abc", "-d", str(cache_dir))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "`acache ls`" in done.stderr
    assert not cache_dir.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        ["nothex"],
        [""],
        ["a" * 65],
        [KEY.hex, "--part", "x"],
        [KEY.hex, "-o", "-", "--json"],
        [KEY.hex, "-o", "x", "--against", KEY.hex],
        [KEY.hex, "--against", "nothex"],
    ],
    ids=lambda words: " ".join(words)[-20:],
)
def test_wrong_calls(acache, layout, shelve, wrong):
    shelve(KEY)
    done = acache("show", *wrong, "-d", layout.root)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr


# --- what is no good ---------------------------------------------------------------------------------------


def test_a_part_that_fails_its_check_is_said_and_never_written(acache, layout, shelve, tmp_path):
    path = shelve(KEY, TWO_PARTS)
    data = bytearray(path.read_bytes())
    data[4096] ^= 1
    path.write_bytes(data)
    for words in ([KEY.hex], [KEY.hex[:8]], [name_of(KEY, None)], [KEY.hex, "-o", str(tmp_path / "out")]):
        done = acache("show", *words, "-d", layout.root)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "'cubin'" in done.stderr
        assert str(path) in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_torn_entry_is_found_by_its_name(acache, layout, shelve):
    path = shelve(KEY)
    path.write_bytes(path.read_bytes()[:70])
    done = acache("show", name_of(KEY, None)[:8], "-d", layout.root)
    assert done.exit_code == 1
    assert "own check" in done.stderr


def test_an_entry_of_a_later_format_is_left_alone(acache, layout, shelve):
    path = shelve(KEY)
    path.write_bytes(later_version(path.read_bytes()))
    done = acache("show", KEY.hex, "-d", layout.root)
    assert done.exit_code == 1
    assert "later format" in done.stderr


def test_a_torn_failure_hides_no_artifact_and_a_torn_artifact_is_said(acache, layout, shelve):
    art, err = shelve(KEY, label="good"), shelve(KEY, REFUSED)
    whole = err.read_bytes()
    err.write_bytes(whole[:80])
    assert shown(acache, layout, KEY.hex)["label"] == "good"
    err.write_bytes(whole)
    art.write_bytes(b"torn")
    done = acache("show", KEY.hex, "-d", layout.root)
    assert done.exit_code == 1
    assert str(art) in done.stderr


@pytest.mark.root
def test_an_entry_of_somebody_else_is_shown_and_not_extracted(acache, layout, shelve, tmp_path, monkeypatch):
    path = shelve(KEY)
    os.chown(path, 65534, 65534)
    assert shown(acache, layout, KEY.hex)["artifact"]["trusted"] is False
    assert "user 65534" in acache("show", KEY.hex, "-d", layout.root).stdout
    done = acache("show", KEY.hex, "-d", layout.root, "-o", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert "ACACHE_TRUST" in done.stderr
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("ACACHE_TRUST", "any")
    assert acache("show", KEY.hex, "-d", layout.root, "-o", str(tmp_path / "out")).exit_code == 0


# --- why did it miss ---------------------------------------------------------------------------------------


def test_two_keys_compared(acache, layout, shelve):
    shelve(KEY)
    shelve(OTHER)
    done = acache("show", KEY.hex[:8], "--against", OTHER.hex[:8], "-d", layout.root)
    assert done.exit_code == 0
    verdicts = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    assert list(verdicts)[-1] == "options"  # what differs comes first
    assert "differs" in verdicts["source"]
    assert "only here" in verdicts["arch"]
    assert "only there" in verdicts["toolchain"]
    assert "same" in verdicts["options"]
    found = shown(acache, layout, KEY.hex, "--against", OTHER.hex)
    assert (found["here"], found["there"]) == (KEY.hex, OTHER.hex)
    assert {each["field"]: each["verdict"] for each in found["fields"]} == {
        "arch": "only here",
        "source": "differs",
        "toolchain": "only there",
        "options": "same",
    }


def test_a_key_without_fields_and_a_key_with_itself(acache, layout, shelve):
    shelve(KEY)
    shelve(package.Key.from_hex(OTHER.hex))
    against = acache("show", KEY.hex, "--against", OTHER.hex, "-d", layout.root)
    assert (against.exit_code, "has no fields" in against.stdout) == (0, True)
    itself = acache("show", KEY.hex, "--against", KEY.hex, "-d", layout.root)
    assert (itself.exit_code, "the same key" in itself.stdout) == (0, True)


def test_a_failed_compile_can_be_compared_with_a_good_one(acache, layout, shelve):
    shelve(KEY, REFUSED)
    shelve(OTHER)
    assert shown(acache, layout, KEY.hex, "--against", OTHER.hex)["fields"]


# --- extracting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "data"), [([], b"\x00\xffELF"), (["--part", "ptx"], b"ptx")], ids=["first", "named"]
)
def test_a_part_is_written(acache, layout, shelve, tmp_path, part, data):
    shelve(KEY, TWO_PARTS)
    out = tmp_path / "out"
    out.write_bytes(b"older and longer than the new one")
    done = acache("show", KEY.hex, *part, "-o", str(out), "-d", layout.root)
    assert (done.exit_code, done.output) == (0, "")
    assert out.read_bytes() == data
    assert sorted(os.listdir(tmp_path)) == ["cache", "out"]
    found = shown(acache, layout, KEY.hex, *part, "-o", str(out))
    assert found == {"key": KEY.hex, "part": (part or ["", "cubin"])[1], "size": len(data), "file": str(out)}


def test_stdout_gets_the_bytes_and_nothing_else(layout, shelve):
    shelve(KEY, TWO_PARTS)
    words = [sys.executable, "-m", "acache", "show", KEY.hex, "-o", "-", "-d", layout.root]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\x00\xffELF", b"")


def test_no_such_part_names_those_that_there_are(acache, layout, shelve, tmp_path):
    shelve(KEY, TWO_PARTS)
    done = acache("show", KEY.hex, "--part", "sass", "-o", str(tmp_path / "out"), "-d", layout.root)
    assert done.exit_code == 1
    assert "'cubin', 'ptx'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_failure_has_no_parts(acache, layout, shelve, tmp_path):
    shelve(KEY, REFUSED)
    done = acache("show", KEY.hex, "-o", str(tmp_path / "out"), "-d", layout.root)
    assert (done.exit_code, "no artifact" in done.stderr) == (1, True)


@pytest.mark.parametrize("where", ["missing/out", ".", "cache"])
def test_a_file_that_cannot_be_written_is_code_1_and_leaves_nothing(acache, layout, shelve, tmp_path, where):
    shelve(KEY)
    before = sorted(os.listdir(tmp_path))
    done = acache("show", KEY.hex, "-o", str(tmp_path / where), "-d", layout.root)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "cannot be written" in done.stderr
    assert sorted(os.listdir(tmp_path)) == before


def test_a_pipe_is_written_into_and_stays_one(acache, layout, shelve, tmp_path):
    shelve(KEY, TWO_PARTS)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDWR), "rb", buffering=0) as reader:
        assert acache("show", KEY.hex, "-o", str(pipe), "-d", layout.root).exit_code == 0
        assert reader.read(100) == b"\x00\xffELF"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_only_reads(acache, layout, shelve, request):
    shelve(KEY, TWO_PARTS)
    shelve(OTHER, REFUSED)
    request.getfixturevalue("only_reads")
    for words in ([KEY.hex], [KEY.hex[:6]], [OTHER.hex], [KEY.hex, "--against", OTHER.hex]):
        assert acache("show", *words, "-d", layout.root).exit_code == 0
    assert Path(layout.root).exists()
