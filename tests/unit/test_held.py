"""Parts of entries, held open: only whole and right ones, whatever a header under a good checksum says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acache import _format
from acache._format import Caption, encode_artifact, encode_cheap, encode_failure
from acache._fs import OsFileSystem, perform
from acache._held import Handover, hold
from acache._host import my_identity
from acache._keys import key, name_of
from acache._models import Artifact, CompileFailure
from acache._settings import Settings
from acache._store import Layout, Subject

FS = OsFileSystem()
KEY = key(kernel="softmax")
CAPTION = Caption(KEY.hex, None, "0f" * 16, "softmax")
WHOLE = Artifact({"cubin": b"x" * 5000, "map": b"a map"}, {"registers": 40})


@pytest.fixture
def place(tmp_path: Path) -> tuple[Layout, Subject]:
    layout = Layout.on(str(tmp_path), Settings(), None, my_identity())
    subject = Subject(layout.paths(name_of(KEY, None)), KEY.hex, None)
    Path(subject.paths.folder).mkdir(parents=True)
    return layout, subject


def written(place: tuple[Layout, Subject], chunks: Any, part: str | None = None) -> Any:
    """Write an entry, and hold one of its parts."""
    layout, subject = place
    Path(subject.paths.art).write_bytes(b"".join(chunks))
    return perform(hold(layout, subject, part, Handover()), FS)


@pytest.mark.parametrize(("part", "body"), [(None, b"x" * 5000), ("cubin", b"x" * 5000), ("map", b"a map")])
def test_a_part_is_held_at_its_first_byte(place, part, body):
    held = written(place, encode_artifact(CAPTION, WHOLE, 1.5), part)
    with held.stream:
        assert held.stream.read(held.size) == body
    assert (held.name, held.size) == (part or "cubin", len(body))
    assert (held.metadata, held.entry.label, held.entry.seconds) == ({"registers": 40}, "softmax", 1.5)
    assert held.path == place[1].paths.art


@pytest.mark.parametrize(
    "chunks",
    [
        encode_cheap(CAPTION, 0.1),
        encode_failure(CAPTION, CompileFailure("diagnostic", "no"), "0f" * 16),
        encode_artifact(Caption("ab" * 32, None, "0f" * 16), WHOLE, 1.0),
        encode_artifact(Caption(KEY.hex, "elsewhere", "0f" * 16), WHOLE, 1.0),
        [b"torn"],
    ],
    ids=["cheap", "failure", "another key", "another namespace", "torn"],
)
def test_what_is_no_artifact_of_that_key_is_none(place, chunks):
    assert written(place, chunks) is None


@pytest.mark.parametrize(
    "table",
    [
        [["cubin", -4096, 5, "00" * 16]],
        [["cubin", 0, -1, "00" * 16]],
        [["cubin", 0, 1 << 40, "00" * 16]],
        [["cubin", 1 << 40, 0, "00" * 16]],
        [["cubin", 0.5, 5, "00" * 16]],
        [["cubin", "0", 5, "00" * 16]],
        [[7, 0, 5, "00" * 16]],
        [["cubin", 0, 5]],
        [["cubin", 0, 5, None]],
        ["cubin"],
        7,
    ],
)
def test_a_table_that_makes_no_sense_is_none(place, table):
    header = {**CAPTION.header(), "seconds": 1.0, "metadata": {}, "parts": table}
    assert written(place, _format._assemble(_format.Kind.ARTIFACT, header, [b"x" * 5000])) is None


def test_the_same_table_with_the_right_numbers_is_an_artifact(place):
    good = list(encode_artifact(CAPTION, Artifact.of(b"x" * 5000), 1.0))
    header = {**CAPTION.header(), "seconds": 1.0, "metadata": {}}
    header["parts"] = [["data", 0, 5000, _format.xxhash.xxh3_128_hexdigest(b"x" * 5000)]]
    for chunks in (good, _format._assemble(_format.Kind.ARTIFACT, header, [b"x" * 5000])):
        held = written(place, chunks)
        with held.stream:
            assert held.size == 5000


def test_nothing_there_is_none(place):
    layout, subject = place
    assert perform(hold(layout, subject, None, Handover()), FS) is None


def test_an_unknown_part_is_an_error_and_leaves_no_file_open(place):
    with pytest.raises(KeyError, match="no part 'ptx'; this artifact has 'cubin', 'map'"):
        written(place, encode_artifact(CAPTION, WHOLE, 1.0), "ptx")


def test_who_has_left_leaves_no_file_open(place):
    layout, subject = place
    Path(subject.paths.art).write_bytes(b"".join(encode_artifact(CAPTION, WHOLE, 1.0)))
    late, early = Handover(), Handover()
    early.leave()
    held = perform(hold(layout, subject, None, early), FS)
    assert held is not None
    assert held.stream.closed
    held = perform(hold(layout, subject, None, late), FS)
    assert held is not None
    assert not held.stream.closed
    late.leave()
    assert held.stream.closed
