"""Entries on a real folder: reading, publishing, marking, deleting, listing, usual times, and the probe."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acache import _store
from acache._format import UnknownVersionError, decode_entry
from acache._fs import File, OsFileSystem
from acache._probe import Level, probe
from acache._protocol import SeenArtifact, Sighting
from acache._store import Layout, Subject, Trust
from tests.sim.values import bytes_of, cheap, do, failed, good, layout_at, subject_in
from tests.unit.test_format import forged

FS = OsFileSystem()


@pytest.fixture
def layout(cache_dir: Path) -> Layout:
    return layout_at(cache_dir)


@pytest.fixture
def subject(layout: Layout) -> Subject:
    return subject_in(layout)


def plant(path: str, data: bytes) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(data)


def seen(layout: Layout, subject: Subject) -> SeenArtifact:
    found = do(_store.read_artifact(layout, subject))
    assert isinstance(found, SeenArtifact)
    return found


def put(layout: Layout, subject: Subject, chunks: list[Any]) -> None:
    do(_store.publish(layout, subject.paths, subject.paths.art, chunks))


def names(subject: Subject) -> list[str]:
    return sorted(os.listdir(subject.paths.folder))


class Refusing(OsFileSystem):
    """The real file system, but some operations fail: the first matching one, or all of them."""

    def __init__(self, *names: str, number: int = errno.ENOSPC, times: int = 1_000_000) -> None:
        self.names, self.number, self.times = names, number, times

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name not in object.__getattribute__(self, "names") or self.times <= 0:
            return object.__getattribute__(self, name)

        def refuse(*arguments: Any) -> None:
            self.times -= 1
            raise OSError(self.number, os.strerror(self.number), arguments[0])

        return refuse


# --- reading ---------------------------------------------------------------------------------------------


def test_where_files_lie(layout: Layout, subject: Subject):
    folder = f"{layout.root}/v1/ab"
    assert subject.paths.art == f"{folder}/{'5c' * 31}.art"
    assert subject.paths.err == f"{folder}/{'5c' * 31}.err"
    assert subject.paths.slot(None) == f"{folder}/{'5c' * 31}.lease"
    assert subject.paths.slot("d" * 32) == f"{folder}/{'5c' * 31}.lease.{'d' * 32}"
    one, two = subject.paths.temporary(), subject.paths.temporary()
    assert one != two
    assert one.startswith(f"{folder}/.t.")
    assert len(one) == len(folder) + 4 + 32


def test_what_was_published_is_read_and_no_temporary_stays(layout: Layout, subject: Subject):
    assert seen(layout, subject).what == "absent"
    put(layout, subject, good(subject, b"payload"))
    found = seen(layout, subject)
    assert found.what == "artifact"
    assert found.entry is not None
    assert found.entry.artifact().data == b"payload"
    assert found.owner == os.geteuid()
    assert found.used == os.stat(subject.paths.art).st_mtime
    assert names(subject) == [os.path.basename(subject.paths.art)]


def test_a_durable_publication_syncs_file_and_folder(
    layout: Layout, subject: Subject, monkeypatch: pytest.MonkeyPatch
):
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    put(replace(layout, durable=True), subject, good(subject))
    assert len(synced) == 2
    assert "/.t." in synced[0]
    assert synced[1] == subject.paths.folder


def damages(data: bytes) -> dict[str, bytes]:
    flipped = bytearray(data)
    flipped[len(data) and 100 % len(data)] ^= 0x20  # in the header; a flip in the padding harms nobody
    return {
        "empty": b"",
        "one": data[:1],
        "half": data[: len(data) // 2],
        "less": data[:-1],
        "more": data + b"x",
        "flipped": bytes(flipped),
        "zeros": bytes(len(data)),
        "foreign": b"#!/bin/sh\n",
    }


@pytest.mark.parametrize("damage", damages(b"data"))
@pytest.mark.parametrize("kind", ["artifact", "cheap", "failure"])
def test_a_damaged_entry_is_a_miss_that_heals(layout: Layout, subject: Subject, kind: str, damage: str):
    make = {"artifact": good, "cheap": cheap, "failure": lambda s: failed(s, "f" * 32)}[kind]
    path = subject.paths.err if kind == "failure" else subject.paths.art
    plant(path, damages(bytes_of(make(subject)))[damage])
    found = do(_store.look(layout, subject, first=True))
    assert (found.artifact.what, found.failure) == ("absent" if kind == "failure" else "bad", None)
    put(layout, subject, good(subject))
    assert do(_store.look(layout, subject)).artifact.what == "artifact"


def test_the_flipped_byte_of_a_part_is_found(layout: Layout, subject: Subject):
    data = bytearray(bytes_of(good(subject, b"A" * 10_000)))
    data[-1] ^= 1
    plant(subject.paths.art, bytes(data))
    assert seen(layout, subject).what == "bad"


def test_an_entry_of_another_key_is_bad(layout: Layout, subject: Subject):
    put(layout, subject, good(replace(subject, key="00" * 32)))
    assert seen(layout, subject).what == "bad"
    put(layout, subject, good(replace(subject, namespace="other")))
    assert seen(layout, subject).what == "bad"


def test_a_failure_in_the_place_of_an_artifact_is_bad_and_the_other_way_round(
    layout: Layout, subject: Subject
):
    plant(subject.paths.art, bytes_of(failed(subject, "f" * 32)))
    plant(subject.paths.err, bytes_of(good(subject)))
    found = do(_store.look(layout, subject))
    assert (found.artifact.what, found.failure) == ("bad", None)


def make_pipe(path: str) -> None:
    os.mkfifo(path)


def make_link(path: str) -> None:
    os.symlink("/etc/passwd", path)


@pytest.mark.parametrize("plant_odd", [make_pipe, make_link, os.mkdir])
def test_what_is_planted_in_an_entrys_place_is_a_miss(layout: Layout, subject: Subject, plant_odd: Any):
    os.makedirs(subject.paths.folder)
    plant_odd(subject.paths.art)
    plant_odd(subject.paths.err)
    found = do(_store.look(layout, subject, first=True))
    assert (found.artifact.what, found.failure) == ("bad", None)


@pytest.mark.parametrize("plant_odd", [make_pipe, make_link])
def test_a_planted_file_is_replaced_and_its_target_is_not_touched(
    layout: Layout, subject: Subject, plant_odd: Any
):
    os.makedirs(subject.paths.folder)
    plant_odd(subject.paths.art)
    put(layout, subject, good(subject))
    assert seen(layout, subject).what == "artifact"
    assert b"acache" not in Path("/etc/passwd").read_bytes()


def test_a_later_format_is_never_replaced_deleted_or_looked_past(layout: Layout, subject: Subject):
    later = forged({}, version=2)
    plant(subject.paths.art, later)
    assert seen(layout, subject).what == "foreign"
    assert do(_store.look(layout, subject)) == Sighting(seen(layout, subject))
    assert do(_store.replace_entry(layout, subject, good(subject))) is False
    assert do(_store.delete(layout, subject)) is False
    do(_store.mark_cheap(layout, subject, cheap(subject)))
    assert do(_store.clear_shard(layout, "ab", None)) == 0
    assert Path(subject.paths.art).read_bytes() == later
    with pytest.raises(UnknownVersionError):
        decode_entry(later, key=None, namespace=None)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ETIMEDOUT])
def test_a_fault_of_the_disk_is_told_and_not_taken_for_a_miss(layout: Layout, subject: Subject, number: int):
    for name in ("read_artifact", "look"):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            do(getattr(_store, name)(layout, subject), Refusing("read", number=number))
        assert caught.value.errno == number


def test_a_stale_handle_is_tried_once_more(layout: Layout, subject: Subject):
    put(layout, subject, good(subject))
    assert do(_store.read_artifact(layout, subject), Refusing("read", number=errno.ESTALE, times=1)).what == (
        "artifact"
    )
    assert do(_store.read_artifact(layout, subject), Refusing("read", number=errno.ESTALE, times=2)).what == (
        "absent"
    )


def test_a_missing_folder_is_a_miss(layout: Layout, subject: Subject):
    assert do(_store.look(replace(layout, network=True), subject, first=True)) == Sighting()


# --- whose files are believed ----------------------------------------------------------------------------


def file_of(uid: int, gid: int) -> File:
    return File(b"", uid, gid, 0.0, 0)


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "believed"),
    [
        ("user", 1000, 9, True),
        ("user", 0, 9, True),
        ("user", 1001, 50, False),
        ("group", 1001, 50, True),
        ("group", 1001, 51, False),
        ("group", 1000, 51, True),
        ("any", 1001, 51, True),
    ],
)
def test_trust_goes_by_the_owner(mode: str, uid: int, gid: int, believed: bool):
    trust = Trust(mode, frozenset({1000}), frozenset({50}))
    assert trust.believes(file_of(uid, gid)) is believed


@pytest.mark.root
def test_an_entry_of_another_owner_is_not_used(layout: Layout, subject: Subject):
    put(layout, subject, good(subject))
    plant(subject.paths.err, bytes_of(failed(subject, "f" * 32)))
    os.chown(subject.paths.art, 12345, 12345)
    os.chown(subject.paths.err, 12345, 12345)
    mine = replace(layout, trust=Trust("user", frozenset({os.geteuid()})))
    found = do(_store.look(mine, subject, first=True))
    assert (found.artifact.what, found.artifact.owner, found.failure) == ("untrusted", 12345, None)
    assert do(_store.list_shard(mine, "ab")) == []
    squashed = replace(layout, trust=Trust("user", frozenset({12345})))
    assert seen(squashed, subject).what == "artifact"
    do(_store.mark_cheap(mine, subject, cheap(subject)))
    assert seen(mine, subject).what == "cheap"


# --- the full look ---------------------------------------------------------------------------------------


class Noting(OsFileSystem):
    """The real file system, with a list of what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def __getattribute__(self, name: str) -> Any:
        what = object.__getattribute__(self, name)
        if name.startswith("_") or name == "asked":
            return what
        return lambda *arguments: (self.asked.append((name, str(arguments[0]))), what(*arguments))[1]


def test_a_hit_is_one_open(layout: Layout, subject: Subject):
    put(layout, subject, good(subject))
    fs = Noting()
    do(_store.look(replace(layout, network=True), subject, first=True), fs)
    assert fs.asked == [("read", subject.paths.art)]


def test_a_miss_opens_the_folder_then_reads_the_failure_then_the_artifact_again(
    layout: Layout, subject: Subject
):
    os.makedirs(subject.paths.folder)
    fs = Noting()
    do(_store.look(replace(layout, network=True), subject), fs)
    assert fs.asked == [
        ("read", subject.paths.art),
        ("refresh", subject.paths.folder),
        ("read", subject.paths.err),
        ("read", subject.paths.art),
    ]


def test_a_rejected_artifact_is_looked_past(layout: Layout, subject: Subject):
    put(layout, subject, good(subject))
    identity = seen(layout, subject).identity
    plant(subject.paths.err, bytes_of(failed(subject, "f" * 32)))
    assert do(_store.look(layout, subject)).failure is None
    assert do(_store.look(layout, subject, rejected={identity})).failure is not None
    assert do(_store.look(layout, subject, whole=True)).failure is not None


def test_a_failures_age_is_told_by_the_file_systems_own_clock(layout: Layout, subject: Subject):
    plant(subject.paths.err, bytes_of(failed(subject, "f" * 32)))
    info = os.stat(subject.paths.err)
    os.utime(subject.paths.err, (0, info.st_mtime - 50))
    failure = do(_store.look(layout, subject, first=True)).failure
    assert failure is not None
    assert 50 <= failure.age < 50 + 100
    assert names(subject) == [os.path.basename(subject.paths.err)]
    assert do(_store.look(layout, subject)).failure.age is None
    assert do(_store.look(layout, subject, first=True), Refusing("create")).failure.age is None


def test_a_failure_that_says_nothing_about_the_input_has_no_age(layout: Layout, subject: Subject):
    plant(subject.paths.err, bytes_of(failed(subject, "f" * 32, deterministic=False)))
    failure = do(_store.look(layout, subject, first=True)).failure
    assert (failure.deterministic, failure.age, failure.holder) == (False, None, "f" * 32)


# --- publishing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["create", "rename", "mkdir"])
def test_a_publication_that_fails_changes_nothing(layout: Layout, subject: Subject, operation: str):
    if operation != "mkdir":
        put(layout, subject, good(subject, b"old"))
    with pytest.raises(OSError, match="No space"):
        do(
            _store.publish(layout, subject.paths, subject.paths.art, good(subject, b"new")),
            Refusing(operation),
        )
    if operation == "mkdir":
        assert not os.path.exists(subject.paths.folder)
    else:
        assert names(subject) == [os.path.basename(subject.paths.art)]
        assert seen(layout, subject).entry.artifact().data == b"old"  # type: ignore[union-attr]


def test_a_temporary_that_cannot_be_removed_harms_nothing(layout: Layout, subject: Subject):
    with pytest.raises(OSError, match="No space"):
        do(
            _store.publish(layout, subject.paths, subject.paths.art, good(subject)),
            Refusing("rename", "unlink"),
        )
    assert names(subject) == [] or all(name.startswith(".t.") for name in names(subject))
    assert seen(layout, subject).what == "absent"


def test_a_cheap_mark_never_replaces_an_artifact(layout: Layout, subject: Subject):
    put(layout, subject, good(subject))
    do(_store.mark_cheap(layout, subject, cheap(subject)))
    assert seen(layout, subject).what == "artifact"
    assert len(names(subject)) == 1


@pytest.mark.parametrize("linkless", [False, True])
def test_a_cheap_mark_lands_where_nothing_or_a_bad_entry_is(layout: Layout, subject: Subject, linkless: bool):
    layout = replace(layout, linkless=linkless)
    do(_store.mark_cheap(layout, subject, cheap(subject, 0.5)))
    assert (seen(layout, subject).what, seen(layout, subject).seconds) == ("cheap", 0.5)
    plant(subject.paths.art, b"junk")
    do(_store.mark_cheap(layout, subject, cheap(subject, 0.25)))
    assert (seen(layout, subject).what, seen(layout, subject).seconds) == ("cheap", 0.25)
    put(layout, subject, good(subject))
    assert seen(layout, subject).what == "artifact"
    assert len(names(subject)) == 1


@pytest.mark.parametrize("operation", ["create", "link"])
def test_a_mark_that_cannot_be_made_is_told_and_leaves_nothing(
    layout: Layout, subject: Subject, operation: str
):
    os.makedirs(subject.paths.folder)
    with pytest.raises(OSError, match="No space"):
        do(_store.mark_cheap(layout, subject, cheap(subject)), Refusing(operation))
    assert names(subject) == []


def test_replacing_clears_a_remembered_failure(layout: Layout, subject: Subject):
    plant(subject.paths.err, bytes_of(failed(subject, "f" * 32)))
    assert do(_store.replace_entry(layout, subject, good(subject))) is True
    assert do(_store.look(layout, subject, whole=True)).failure is None


def test_deleting_removes_entry_and_failure(layout: Layout, subject: Subject):
    assert do(_store.delete(layout, subject)) is False
    put(layout, subject, good(subject))
    plant(subject.paths.err, bytes_of(failed(subject, "f" * 32)))
    assert do(_store.delete(layout, subject)) is True
    assert names(subject) == []
    do(_store.mark_cheap(layout, subject, cheap(subject)))
    assert do(_store.delete(layout, subject)) is False
    assert names(subject) == []


def test_what_cannot_be_deleted_is_told(layout: Layout, subject: Subject):
    put(layout, subject, good(subject))
    with pytest.raises(OSError, match="not permitted"):
        do(_store.delete(layout, subject), Refusing("unlink", number=errno.EPERM))
    assert do(_store.unlink_quietly(subject.paths.art), Refusing("unlink", number=errno.EPERM)) is False
    assert do(_store.unlink_quietly(subject.paths.err)) is True


# --- listing ---------------------------------------------------------------------------------------------


def others(layout: Layout) -> tuple[Subject, Subject]:
    return (
        subject_in(layout, "ab" + "0" * 62, "01" * 32, "space"),
        subject_in(layout, "ab" + "1" * 62, "02" * 32),
    )


def test_a_shard_is_listed_by_its_headers(layout: Layout, subject: Subject):
    spaced, plain = others(layout)
    put(layout, subject, good(subject, bytes(100_000), label="l" * 20_000))
    put(layout, spaced, cheap(spaced))
    plant(plain.paths.err, bytes_of(failed(plain, "f" * 32)))
    plant(f"{subject.paths.folder}/junk.art", b"junk")
    plant(f"{subject.paths.folder}/.t.{'0' * 32}", bytes_of(good(subject)))
    os.mkdir(f"{subject.paths.folder}/folder.art")
    listed = do(_store.list_shard(layout, "ab"))
    assert [item.entry.header["key"] for item in listed] == [spaced.key, subject.key]
    assert listed[1].entry.size == os.stat(subject.paths.art).st_size
    assert listed[1].path == subject.paths.art
    assert len(do(_store.list_shard(layout, "ab", (".art", ".err")))) == 3
    assert do(_store.list_shard(layout, "ac")) == []


def test_clearing_touches_only_its_own_namespace(layout: Layout, subject: Subject):
    spaced, plain = others(layout)
    put(layout, subject, good(subject))
    put(layout, spaced, good(spaced))
    plant(plain.paths.err, bytes_of(failed(plain, "f" * 32)))
    plant(subject.paths.slot(None), b"a lease")
    assert do(_store.clear_shard(layout, "ab", None)) == 1
    assert names(subject) == sorted(
        os.path.basename(path) for path in (spaced.paths.art, subject.paths.slot(None))
    )
    assert do(_store.clear_shard(layout, "ab", "space")) == 1
    assert do(_store.clear_shard(layout, "ff", None)) == 0


def test_a_shard_that_cannot_be_listed_is_told(layout: Layout):
    with pytest.raises(OSError, match="denied"):
        do(_store.list_shard(layout, "ab"), Refusing("listdir", number=errno.EACCES))


# --- usual times -----------------------------------------------------------------------------------------


def test_usual_times_rise_at_once_and_fall_slowly(layout: Layout):
    assert do(_store.read_usual(layout, "softmax")) is None
    do(_store.write_usual(layout, "softmax", 10.0))
    assert do(_store.read_usual(layout, "softmax")) == 10.0
    do(_store.write_usual(layout, "softmax", 20.0))
    assert do(_store.read_usual(layout, "softmax")) == 20.0
    do(_store.write_usual(layout, "softmax", 10.0))
    assert do(_store.read_usual(layout, "softmax")) == 18.0
    assert do(_store.read_usual(layout, "other")) is None
    do(_store.write_usual(layout, "odd \udcff /../ label", 1.0))
    assert do(_store.read_usual(layout, "odd \udcff /../ label")) == 1.0
    assert len(os.listdir(f"{layout.base}/usual")) == 2


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"seconds":"x"}',
        b'{"seconds":-1}',
        b'{"seconds":NaN}',
        b"[" * 4000,
        b'{"seconds":1e99}',
        b"x" * 5000,
        b"\xff",
    ],
)
def test_a_spoilt_usual_time_is_unknown_and_heals(layout: Layout, text: bytes):
    do(_store.write_usual(layout, "softmax", 10.0))
    (path,) = Path(f"{layout.base}/usual").iterdir()
    path.write_bytes(text)
    assert do(_store.read_usual(layout, "softmax")) is None
    do(_store.write_usual(layout, "softmax", 3.0))
    assert do(_store.read_usual(layout, "softmax")) == 3.0


def test_a_usual_time_that_cannot_be_written_bothers_nobody(layout: Layout):
    do(_store.write_usual(layout, "softmax", 10.0), Refusing("create"))
    assert do(_store.read_usual(layout, "softmax")) is None


# --- what a directory can do -----------------------------------------------------------------------------


def test_a_good_directory_is_prepared_and_left_tidy(layout: Layout):
    found = do(probe(layout))
    assert (found.level, found.owner, found.errno) == (Level.SHARED, os.geteuid(), None)
    assert sorted(os.listdir(layout.root)) == ["CACHEDIR.TAG", "v1"]
    assert os.listdir(layout.base) == ["layout.json"]
    assert (
        Path(layout.root, "CACHEDIR.TAG")
        .read_bytes()
        .startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
    )
    assert json.loads(Path(layout.base, "layout.json").read_bytes()) == {"format": 1, "shards": 256}
    before = os.stat(f"{layout.base}/layout.json")
    assert do(probe(layout)).level is Level.SHARED
    assert os.stat(f"{layout.base}/layout.json").st_ino == before.st_ino


class Lying(OsFileSystem):
    """A file system that breaks one promise."""

    def __init__(self, lie: str) -> None:
        self.lie = lie
        self.old: dict[str, File] = {}

    def create(self, path: str, chunks: Any, durable: bool) -> None:
        if self.lie == "create" and os.path.exists(path):
            return
        super().create(path, chunks, durable)

    def link(self, source: str, target: str) -> None:
        if self.lie == "link says yes":
            if not os.path.exists(target):
                super().link(source, target)
        elif self.lie != "link does nothing":
            super().link(source, target)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        if self.lie == "rewrite fails":
            raise OSError(errno.EOPNOTSUPP, "append only")
        return len(data) if self.lie == "rewrite unseen" else super().pwrite(fd, data, offset)

    def rename(self, source: str, target: str) -> None:
        if self.lie == "rename" and "/.t." in target:
            os.unlink(source)
        else:
            super().rename(source, target)

    def unlink(self, path: str) -> None:
        if self.lie != "unlink":
            super().unlink(path)


@pytest.mark.parametrize(
    ("lie", "level", "reason"),
    [
        ("create", Level.PROCESS, "two exclusive creates"),
        ("link says yes", Level.PROCESS, "two links"),
        ("link does nothing", Level.PROCESS, "two links"),
        ("rewrite fails", Level.PROCESS, "cannot be rewritten"),
        ("rewrite unseen", Level.PROCESS, "not seen by a fresh open"),
        ("rename", Level.PROCESS, "a rename over a file"),
        ("unlink", Level.PROCESS, "still there"),
    ],
)
def test_a_directory_that_breaks_a_promise_is_not_coordinated_in(
    layout: Layout, lie: str, level: Level, reason: str
):
    found = do(probe(layout), Lying(lie))
    assert found.level is level
    assert reason in found.reason
    if lie != "unlink":
        assert os.listdir(layout.base) == ["layout.json"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_links_slots_are_created(layout: Layout, number: int):
    found = do(probe(layout), Refusing("link", number=number))
    assert (found.level, found.owner) == (Level.LINKLESS, os.geteuid())
    assert os.listdir(layout.base) == ["layout.json"]


def test_a_full_disk_is_still_read(layout: Layout):
    found = do(probe(layout), Refusing("create"))
    assert (found.level, found.errno) == (Level.PROCESS, errno.ENOSPC)


def test_a_file_in_the_place_of_the_root_is_no_cache(layout: Layout):
    Path(layout.root).write_bytes(b"")
    found = do(probe(layout))
    assert (found.level, found.errno) == (Level.NONE, errno.ENOTDIR)


@pytest.mark.root
@pytest.mark.parametrize(
    ("mode", "prepared", "level"),
    [(0o755, True, Level.PROCESS), (0o755, False, Level.NONE), (0o000, True, Level.NONE)],
)
def test_another_user_finds_out_what_is_possible(tmp_path: Path, mode: int, prepared: bool, level: Level):
    """In a folder that only root can write, or nobody else may enter (root itself ignores modes)."""
    layout = layout_at(tmp_path / "cache")
    os.mkdir(layout.root)
    if prepared:
        do(probe(layout))
    os.chmod(layout.root, mode)
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        parent.chmod(parent.stat().st_mode | 0o011)
    os.seteuid(65534)
    try:
        found = do(probe(layout))
    finally:
        os.seteuid(0)
    assert (found.level, found.errno) == (level, errno.EACCES)


@pytest.mark.root
def test_a_read_only_entry_is_served_without_a_write(layout: Layout, subject: Subject):
    put(layout, subject, good(subject))
    for folder in (layout.root, layout.base, subject.paths.folder):
        os.chmod(folder, 0o555)
    for parent in list(Path(layout.root).parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    os.seteuid(65534)
    try:
        assert do(_store.look(layout, subject)).artifact.what == "artifact"
        do(_store.touch(subject.paths.art))
    finally:
        os.seteuid(0)
