"""Models: artifacts are values whose buffers are shared, failures say what happened in one line."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import pytest

from acache import _models
from acache._models import Artifact, CompileFailure, Completed, EntryInfo, Origin, Request, Status, Workspace


def test_the_first_part_is_the_data():
    artifact = Artifact({"cubin": b"first", "log": b"second"}, {"arch": "sm_90"})
    assert artifact.data == b"first"
    assert list(artifact.parts) == ["cubin", "log"]
    assert dict(artifact.parts) == {"cubin": b"first", "log": b"second"}
    assert artifact.metadata == {"arch": "sm_90"}
    assert artifact.origin is None
    assert artifact.size == 11


def test_of_makes_one_part_named_data():
    artifact = Artifact.of(b"x", {"a": 1})
    assert artifact == Artifact({"data": b"x"}, {"a": 1})


def test_views_are_read_only_and_copy_nothing():
    buffer = bytearray(b"abc")
    artifact = Artifact({"data": buffer, "other": b"x"})
    view = artifact.view()
    assert view.readonly
    assert view.obj is buffer
    assert bytes(artifact.view("other")) == b"x"
    with pytest.raises(KeyError, match="nothing"):
        artifact.view("nothing")
    with pytest.raises(TypeError):
        view[0] = 1


def test_bytes_are_made_once():
    artifact = Artifact.of(memoryview(bytearray(b"abc")))
    assert artifact.data == b"abc"
    assert artifact.data is artifact.data is artifact.parts["data"]


@pytest.mark.parametrize("empty", [{}, None])
def test_an_artifact_has_at_least_one_part(empty):
    with pytest.raises(ValueError, match="at least one part"):
        Artifact(empty)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"data": "text"}, "part 'data' must be bytes-like, not str"),
        ({"data": None}, "part 'data' must be bytes-like, not NoneType"),
        ({1: b""}, "part names are str, not int"),
    ],
)
def test_parts_are_named_bytes(parts, complaint):
    with pytest.raises(TypeError, match=complaint):
        Artifact(parts)


def endless():
    cycle = {}
    cycle["self"] = cycle
    return cycle


@pytest.mark.parametrize("metadata", [{"x": b"bytes"}, {"x": math.nan}, {"x": object()}, endless()])
def test_metadata_is_json(metadata):
    with pytest.raises(TypeError, match="metadata must be JSON"):
        Artifact({"data": b""}, metadata)


def test_metadata_is_a_copy_and_read_only():
    given = {"list": [1]}
    artifact = Artifact({"data": b""}, given)
    given["list"].append(2)
    assert artifact.metadata == {"list": [1]}
    with pytest.raises(TypeError):
        artifact.metadata["list"] = []


def test_equality_is_of_content():
    one = Artifact({"a": b"1", "b": b"2"}, {"x": 1})
    assert one == Artifact({"a": bytearray(b"1"), "b": memoryview(b"2")}, {"x": 1})
    assert hash(one) == hash(Artifact({"a": bytearray(b"1"), "b": memoryview(b"2")}, {"x": 1}))
    assert one == one._stamped(Origin.DISK, "nonce")
    assert one != Artifact({"b": b"2", "a": b"1"}, {"x": 1})  # the first part is another
    assert one != Artifact({"a": b"1", "b": b"3"}, {"x": 1})
    assert one != Artifact({"a": b"1", "b": b"2"}, {"x": 2})
    assert one != b"1"


def test_a_stamped_twin_shares_the_buffers():
    buffer = bytearray(b"abc")
    one = Artifact.of(buffer)
    twin = one._stamped(Origin.PEER, "nonce")
    assert (twin.origin, twin._identity) == (Origin.PEER, "nonce")
    assert (one.origin, one._identity) == (None, None)
    assert twin.view().obj is buffer


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_artifact_travels(protocol):
    one = Artifact({"a": memoryview(b"1"), "b": bytearray(b"2")}, {"x": [None, 1.5]})._stamped(
        Origin.DISK, "n"
    )
    for twin in (pickle.loads(pickle.dumps(one, protocol)), copy.deepcopy(one)):
        assert twin == one
        assert (twin.origin, twin._identity) == (Origin.DISK, "n")
        assert twin.metadata == {"x": [None, 1.5]}


def test_a_repr_shows_sizes_and_no_bytes():
    text = repr(Artifact({"cubin": b"secret" * 100})._stamped(Origin.COMPILED, None))
    assert "cubin" in text
    assert "600 bytes" in text
    assert "origin=compiled" in text
    assert "secret" not in text


async def test_write_to_hands_one_part_to_the_lent_writer(tmp_path, monkeypatch):
    calls = []

    async def writer(path, data):
        calls.append((path, bytes(data), data.readonly))

    monkeypatch.setattr(_models, "_write_file", _models._write_file)  # restored after the test
    _models.lend_writer(writer)
    artifact = Artifact({"so": b"elf", "log": b"text"})
    await artifact.write_to(tmp_path / "k.so")
    await artifact.write_to(tmp_path / "k.log", "log")
    assert calls == [(tmp_path / "k.so", b"elf", True), (tmp_path / "k.log", b"text", True)]
    with pytest.raises(KeyError):
        await artifact.write_to(tmp_path / "x", "nothing")


async def test_write_to_without_a_writer_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(_models, "_write_file", _models._no_threads)
    with pytest.raises(RuntimeError, match="import acache"):
        await Artifact.of(b"x").write_to(tmp_path / "x")


@pytest.mark.parametrize(
    ("failure", "summary"),
    [
        (CompileFailure("diagnostic", exit_status=1), "the compiler refused the input (exit status 1)"),
        (CompileFailure("exit", exit_status=3), "the compiler failed with exit status 3"),
        (CompileFailure("signal", signal=11), "the compiler was killed by signal 11"),
        (CompileFailure("signal", signal=9), "the compiler was killed by signal 9, probably out of memory"),
        (CompileFailure("timeout", seconds=2.04), "the compiler was stopped after 2.0 s (compile_timeout)"),
        (CompileFailure("spawn"), "the compiler could not be started"),
        (CompileFailure("missing"), "the compiler is not installed"),
        (CompileFailure("memory"), "the compiler ran out of memory"),
        (CompileFailure("disk"), "the compiler ran out of disk space"),
    ],
)
def test_a_failure_in_one_line(failure, summary):
    assert failure.summary == summary
    assert not failure.deterministic
    assert pickle.loads(pickle.dumps(failure)) == failure


def test_a_run_is_ok_with_status_zero_only():
    def run(status, signal=None):
        return Completed(("cc",), status, signal, b"", b"", 1.0, 0.5)

    assert run(0).ok
    assert not run(1).ok
    assert not run(None, 9).ok


def test_origins_are_plain_words():
    assert [str(origin) for origin in Origin] == ["memory", "disk", "peer", "compiled", "remote"]
    assert pickle.loads(pickle.dumps(Origin.PEER)) is Origin.PEER


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Request(None, "source"), "source"),
        (Status("absent"), "state"),
        (CompileFailure("exit"), "reason"),
        (Completed(("cc",), 0, None, b"", b"", 1.0, 0.5), "argv"),
        (EntryInfo(None, None, None, 1, {}, 0.0, 0.0, 0.0, {}), "size"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_are_frozen(value, name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, None)
    assert dataclasses.replace(value) == value


def test_a_workspace_is_known_by_what_it_does(tmp_path):
    class Folder:
        path = tmp_path

        async def run(self, argv, *, env=None, stdin=None, cwd=None):
            """Never called here: the names are what it is known by."""

    assert isinstance(Folder(), Workspace)
    assert not isinstance(object(), Workspace)
