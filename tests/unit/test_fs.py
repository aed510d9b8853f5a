"""The file operations on a real folder, and the executor that runs a move whole."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from acache._fs import FileSystem, OsFileSystem, perform

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

FS = OsFileSystem()


def raised(what: Any, *arguments: Any) -> int | None:
    """Return the errno that the call raises."""
    with pytest.raises(OSError) as caught:  # noqa: PT011  # the number is what the caller compares
        what(*arguments)
    return caught.value.errno


def test_the_real_one_has_every_operation_of_the_protocol():
    names = {name for name in vars(FileSystem) if not name.startswith("_")}
    assert len(names) == 20
    assert all(callable(getattr(FS, name)) for name in names)


def test_a_file_is_written_whole_and_read_with_what_is_known_of_it(tmp_path: Path):
    path = str(tmp_path / "file")
    FS.create(path, (b"one", bytearray(b""), memoryview(b"two"), memoryview(b"abcdefgh").cast("I")), True)
    file = FS.read(path, 14)
    assert bytes(file.data) == b"onetwoabcdefgh"
    info = os.stat(path)
    assert (file.uid, file.gid, file.mtime, file.size) == (info.st_uid, info.st_gid, info.st_mtime, 14)


def test_what_a_stranger_planted_is_judged_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 1 << 40)  # sparse: to read it, or to make room for it, would be the end
    asked: list[tuple[int, int]] = []

    def covers(uid: int, gid: int) -> bool:
        asked.append((uid, gid))
        return False

    monkeypatch.setattr(os, "read", lambda *_: pytest.fail("it was read"))
    file = FS.read(str(path), 1 << 60, covers)
    assert (file.data, file.size) == (b"", 1 << 40)
    assert asked == [(file.uid, file.gid)] == [(os.getuid(), path.stat().st_gid)]


def test_files_honour_the_umask(tmp_path: Path):
    path = str(tmp_path / "file")
    before = os.umask(0o027)
    try:
        FS.create(path, (b"x",), False)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640


def test_files_of_a_setgid_folder_belong_to_its_group(tmp_path: Path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o2775)
    FS.mkdir(str(folder / "deep" / "deeper"))
    assert os.stat(folder / "deep" / "deeper").st_mode & stat.S_ISGID


def test_head_reads_the_beginning_and_tells_the_size(tmp_path: Path):
    path = str(tmp_path / "file")
    FS.create(path, (b"0123456789",), False)
    assert (bytes(FS.head(path, 4).data), FS.head(path, 4).size) == (b"0123", 10)
    assert bytes(FS.head(path, 100).data) == b"0123456789"
    assert (bytes(FS.head(path, 0).data), FS.head(path, 0).size) == (b"", 10)


def test_a_held_file_stays_what_it_was(tmp_path: Path):
    path = str(tmp_path / "file")
    FS.create(path, (b"0123456789",), False)
    info = os.stat(path)
    file = FS.hold(path, 10)
    FS.unlink(path)
    with file.stream:
        assert (file.uid, file.gid, file.mtime, file.size) == (info.st_uid, info.st_gid, info.st_mtime, 10)
        assert file.stream.read() == b"0123456789"


def test_a_file_larger_than_the_limit_is_not_read(tmp_path: Path):
    path = str(tmp_path / "file")
    FS.create(path, (b"0123456789",), False)
    assert raised(FS.read, path, 9) == errno.EFBIG
    assert raised(FS.hold, path, 9) == errno.EFBIG


def test_an_empty_file_reads_as_nothing(tmp_path: Path):
    (tmp_path / "file").touch()
    assert bytes(FS.read(str(tmp_path / "file"), 100).data) == b""


@pytest.mark.parametrize("read", [FS.read, FS.head, FS.hold])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path, read: Any):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "target").write_bytes(b"secret")
    (tmp_path / "planted").symlink_to(tmp_path / "target")
    assert raised(read, str(tmp_path / "pipe"), 10) == errno.EINVAL
    assert raised(read, str(tmp_path / "folder"), 10) == errno.EINVAL
    assert raised(read, str(tmp_path / "planted"), 10) == errno.ELOOP
    assert raised(read, str(tmp_path / "absent"), 10) == errno.ENOENT


def test_a_file_that_shrinks_while_it_is_read_shows_as_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    real = os.read

    def shrinking(fd: int, count: int) -> bytes:
        data = real(fd, min(count, 3))
        os.truncate(path, 5)
        return data

    monkeypatch.setattr(os, "read", shrinking)
    assert bytes(FS.read(str(path), 100).data) == b"01234"


def test_creation_is_exclusive_and_follows_no_link(tmp_path: Path):
    path = tmp_path / "file"
    FS.create(str(path), (b"first",), False)
    assert raised(FS.create, str(path), (b"second",), False) == errno.EEXIST
    assert path.read_bytes() == b"first"
    (tmp_path / "planted").symlink_to(tmp_path / "elsewhere")
    assert raised(FS.create, str(tmp_path / "planted"), (b"x",), False) == errno.EEXIST
    assert not (tmp_path / "elsewhere").exists()


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Let no file grow beyond that many bytes; for one call only, since it holds for pytest's own log too."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_write_that_fails_half_way_is_told_and_leaks_no_descriptor(tmp_path: Path):
    path = tmp_path / "file"
    with no_file_beyond(4096):
        answer = raised(FS.create, str(path), (bytes(4096), b"more"), False)
    assert answer == errno.EFBIG
    assert path.stat().st_size == 4096  # torn; whoever made it unlinks it


def test_link_rename_and_unlink(tmp_path: Path):
    one, two, three = (str(tmp_path / name) for name in ("one", "two", "three"))
    FS.create(one, (b"one",), False)
    FS.link(one, two)
    assert os.stat(one).st_nlink == 2
    FS.create(three, (b"three",), False)
    assert raised(FS.link, one, three) == errno.EEXIST
    FS.unlink(one)
    assert not FS.exists(one)
    FS.rename(two, three)
    assert bytes(FS.read(three, 10).data) == b"one"
    assert raised(FS.unlink, two) == errno.ENOENT
    assert raised(FS.rename, two, three) == errno.ENOENT
    assert raised(FS.link, two, one) == errno.ENOENT


def test_folders(tmp_path: Path):
    folder = str(tmp_path / "a" / "b")
    FS.mkdir(folder)
    FS.mkdir(folder)
    FS.refresh(folder)
    FS.sync_folder(folder)
    FS.create(f"{folder}/x", (), False)
    assert FS.listdir(folder) == ["x"]
    assert raised(FS.refresh, f"{folder}/x") == errno.ENOTDIR
    assert raised(FS.refresh, f"{folder}/none") == errno.ENOENT
    assert raised(FS.listdir, f"{folder}/none") == errno.ENOENT
    assert raised(FS.mkdir, f"{folder}/x") == errno.EEXIST
    assert raised(FS.mkdir, f"{folder}/x/y") == errno.ENOTDIR


def test_touch_sets_the_time_and_follows_no_link(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"")
    os.utime(path, (1, 1))
    (tmp_path / "planted").symlink_to(path)
    FS.touch(str(tmp_path / "planted"))
    assert path.stat().st_mtime == 1
    FS.touch(str(path))
    assert path.stat().st_mtime > 1


def test_a_record_is_rewritten_in_place_and_never_created(tmp_path: Path):
    path = str(tmp_path / "file")
    assert raised(FS.open_rw, path) == errno.ENOENT
    FS.create(path, (b"0123456789",), False)
    inode = os.stat(path).st_ino
    fd = FS.open_rw(path)
    assert FS.pread(fd, 4, 2) == b"2345"
    assert FS.pwrite(fd, b"ab", 3) == 2
    FS.close(fd)
    assert bytes(FS.read(path, 10).data) == b"012ab56789"
    assert os.stat(path).st_ino == inode
    (tmp_path / "planted").symlink_to(path)
    assert raised(FS.open_rw, str(tmp_path / "planted")) == errno.ELOOP


def test_only_absence_says_that_a_file_does_not_exist(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "planted").symlink_to(tmp_path / "nowhere")
    assert FS.exists(str(tmp_path / "file"))
    assert not FS.exists(str(tmp_path / "absent"))
    assert raised(FS.exists, str(tmp_path / "planted")) == errno.ELOOP
    assert raised(FS.exists, str(tmp_path / "file" / "below")) == errno.ENOTDIR


@pytest.mark.parametrize(("number", "answer"), [(errno.ESTALE, False), (errno.EACCES, None)])
def test_a_stale_handle_is_absence_and_a_locked_door_is_not(
    monkeypatch: pytest.MonkeyPatch, number: int, answer: bool | None
):
    def refuse(path: str, flags: int) -> int:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "open", refuse)
    if answer is None:
        assert raised(FS.exists, "/x") == number
    else:
        assert FS.exists("/x") is answer


def test_processes_are_looked_up_on_this_host():
    assert FS.process(os.getpid()).exists is True
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    child.wait()
    assert FS.process(child.pid).exists is False


# --- the executor ----------------------------------------------------------------------------------------


class Scripted:
    """Answers from a table, and notes what was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> Any:
            self.asked.append((name, *arguments))
            found = self.answers[name]
            if isinstance(found, BaseException):
                raise found
            return found

        return answer


def test_a_move_is_sent_results_and_thrown_errors():
    def move() -> Generator[tuple[Any, ...], Any, list[Any]]:
        seen = [(yield ("exists", "a"))]
        try:
            yield ("unlink", "b")
        except OSError as error:
            seen.append(error.errno)
        seen.append((yield ("pread", 7, 4, 0)))
        return seen

    fs = Scripted(exists=True, unlink=OSError(errno.EBUSY, "busy"), pread=b"data")
    assert perform(move(), fs) == [True, errno.EBUSY, b"data"]
    assert fs.asked == [("exists", "a"), ("unlink", "b"), ("pread", 7, 4, 0)]


def test_an_error_that_the_move_does_not_expect_comes_out():
    def move() -> Generator[tuple[Any, ...], Any, None]:
        yield ("unlink", "b")

    assert raised(perform, move(), Scripted(unlink=OSError(errno.EIO, "broken"))) == errno.EIO


def test_a_move_without_operations_just_returns():
    def move() -> Generator[tuple[Any, ...], Any, str]:
        return "done"
        yield ("never",)

    assert perform(move(), Scripted()) == "done"


def test_an_interrupt_leaves_without_asking_the_move():
    asked = []

    def move() -> Generator[tuple[Any, ...], Any, None]:
        try:
            yield ("unlink", "b")
        except Exception as error:
            asked.append(error)

    with pytest.raises(KeyboardInterrupt):
        perform(move(), Scripted(unlink=KeyboardInterrupt()))
    assert asked == []
