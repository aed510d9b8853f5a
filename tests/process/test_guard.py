"""The guard by itself: frames, beats, progress, what it sweeps, and what cannot stop it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acache import _beat, _sweep
from acache._beat import RECORD_SIZE, beat, drive, perform
from acache._frames import Decoder, encode
from acache._guardlink import BOOT, GuardLostError
from acache._process import LeaseOrders, open_workspace
from tests.process.procs import FAKE, PATIENCE, alive, until, until_now

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")

MINE, OTHER = "1" * 32, "2" * 32
INTERVAL = 0.02


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a temporary folder of its own for workspaces."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def token() -> Iterator[str]:
    """Return a token for the environment of compilers; whoever still has it at the end is killed."""
    token = f"token-{uuid.uuid4().hex}"
    yield token
    for pid in alive(token):
        os.kill(pid, signal.SIGKILL)


def record(nonce: str = MINE, counter: int = 0, progress: int = 0) -> bytes:
    head = b"%020d%020d" % (counter, progress) + b"acachelk0001" + nonce.encode()
    return head + b"-" * (RECORD_SIZE - len(head) - 1) + b"\n"


class Slot:
    """A lease slot in a real file."""

    def __init__(self, folder: Path, name: str = "k.lease", nonce: str = MINE) -> None:
        self.path = folder / name
        self.successor = folder / f"{name}.{nonce}"
        self.path.write_bytes(record(nonce))

    @property
    def counter(self) -> int:
        return int(self.path.read_bytes()[:20])

    @property
    def progress(self) -> int:
        return int(self.path.read_bytes()[20:40])

    def orders(self, **changes: Any) -> LeaseOrders:
        facts = {"interval": INTERVAL, "folder": None, "nonce": MINE, **changes}
        return LeaseOrders(slot=str(self.path), successor=str(self.successor), **facts)


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return Slot(tmp_path)


# -- frames


@given(
    st.lists(st.tuples(st.sampled_from(["run", "idle", "x"]), st.lists(st.binary(max_size=50), max_size=5))),
    st.integers(1, 20),
)
def test_frames_survive_any_cut(frames: list[tuple[str, list[bytes]]], size: int) -> None:
    stream = b"".join(encode(kind, *fields) for kind, fields in frames)
    decoder = Decoder()
    seen = []
    for at in range(0, len(stream), size):
        seen += decoder.feed(stream[at : at + size])
    assert seen == frames


# -- the beat, as a generator


def operations(steps: Any, answers: dict[str, Any]) -> tuple[list[Any], Any]:
    """Drive a beat with canned answers; an answer that is an exception is thrown."""
    done: list[Any] = []

    def answer(operation: tuple[Any, ...]) -> Any:
        done.append(operation)
        result = answers.get(operation[0])
        if isinstance(result, OSError):
            raise result
        return result

    try:
        return done, drive(steps, answer)
    except OSError as error:
        return done, error


GOOD = {"open_rw": 7, "pread": record(), "exists": False, "pwrite": 40}


def test_a_beat_is_these_operations_in_this_order() -> None:
    done, outcome = operations(beat("slot", "next", MINE, 5, 12, "folder"), GOOD)
    assert outcome == "beaten"
    assert done == [
        ("refresh", "folder"),
        ("open_rw", "slot"),
        ("pread", 7, 512, 0),
        ("exists", "next"),
        ("pwrite", 7, b"0" * 19 + b"5" + b"0" * 18 + b"12", 0),
        ("close", 7),
    ]
    assert operations(beat("slot", "next", MINE, 5, 12), GOOD)[0] == done[1:]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"pread": record(OTHER)}, "foreign"),
        ({"pread": b""}, "foreign"),
        ({"pread": record()[:80]}, "foreign"),
        ({"exists": True}, "superseded"),
        ({"open_rw": FileNotFoundError(errno.ENOENT, "gone")}, "gone"),
        ({"open_rw": OSError(errno.ESTALE, "stale")}, "gone"),
    ],
)
def test_a_beat_that_must_not_write_does_not(change: dict[str, Any], expected: str) -> None:
    done, outcome = operations(beat("slot", "next", MINE, 1, 0), {**GOOD, **change})
    assert outcome == expected
    assert "pwrite" not in [operation[0] for operation in done]
    assert ("close", 7) in done or expected == "gone"


@pytest.mark.parametrize("failing", ["refresh", "open_rw", "pread", "exists", "pwrite", "close"])
def test_a_failing_operation_is_told_and_the_descriptor_closed(failing: str) -> None:
    fault = OSError(errno.EIO, failing)
    done, outcome = operations(beat("slot", "next", MINE, 1, 0, "folder"), {**GOOD, failing: fault})
    assert outcome is fault
    opened = "open_rw" in [operation[0] for operation in done] and failing != "open_rw"
    assert done.count(("close", 7)) == opened


def test_the_first_error_is_the_one_told() -> None:
    first, second = OSError(errno.EIO, "first"), OSError(errno.EIO, "second")
    assert operations(beat("s", "n", MINE, 1, 0), {**GOOD, "pwrite": first, "close": second})[1] is first


def test_an_abandoned_beat_does_not_complain() -> None:
    """The simulator crashes a holder between any two operations."""
    for steps_done in range(1, 6):
        steps = beat("slot", "next", MINE, 1, 0, "folder")
        operation = next(steps)
        for _ in range(steps_done - 1):
            operation = steps.send(GOOD.get(operation[0]))
        steps.close()


def test_a_real_beat_rewrites_forty_bytes_and_creates_nothing(slot: Slot, tmp_path: Path) -> None:
    before = slot.path.read_bytes()
    inode = slot.path.stat().st_ino
    assert drive(beat(str(slot.path), str(slot.successor), MINE, 3, 4, str(tmp_path))) == "beaten"
    after = slot.path.read_bytes()
    assert after[:40] == b"%020d%020d" % (3, 4)
    assert after[40:] == before[40:]
    assert slot.path.stat().st_ino == inode
    slot.path.unlink()
    assert drive(beat(str(slot.path), str(slot.successor), MINE, 4, 4)) == "gone"
    assert list(tmp_path.glob("k.lease*")) == []
    with pytest.raises(ValueError, match="unheard"):
        perform(("unheard of",))


# -- beats of a real guard


async def beats(slot: Slot, number: int) -> None:
    """Wait for so many further beats."""
    goal = slot.counter + number
    await until(lambda: slot.counter >= goal)


async def test_a_guard_beats_only_while_and_what_it_is_told(slot: Slot, tmp_path: Path) -> None:
    other = Slot(tmp_path, "other.lease", OTHER)
    immutable = slot.path.read_bytes()[40:]
    async with open_workspace(grace=1, lease=slot.orders(counter=41, folder=str(tmp_path))) as workspace:
        await until(lambda: slot.counter >= 44)
        assert slot.path.read_bytes()[40:] == immutable
        await workspace.idle()
        await workspace.hold(other.orders(nonce=OTHER))
        await beats(other, 1)
        stood = slot.counter
        await beats(other, 3)
        assert slot.counter == stood


async def test_beats_stop_for_a_successor_and_go_on_without(slot: Slot, tmp_path: Path) -> None:
    clock = Slot(tmp_path, "clock.lease")
    async with open_workspace(grace=1, lease=slot.orders()), open_workspace(grace=1, lease=clock.orders()):
        await beats(slot, 2)
        slot.successor.write_bytes(record(OTHER))
        await beats(clock, 2)  # one may have been under way
        stood = slot.counter
        await beats(clock, 4)
        assert slot.counter == stood
        slot.successor.unlink()
        await beats(slot, 2)


async def test_a_stranger_in_the_slot_is_left_alone(slot: Slot, tmp_path: Path) -> None:
    clock = Slot(tmp_path, "clock.lease")
    async with open_workspace(grace=1, lease=slot.orders()), open_workspace(grace=1, lease=clock.orders()):
        await beats(slot, 2)
        foreign = tmp_path / "foreign"
        foreign.write_bytes(record(OTHER, counter=7))
        foreign.rename(slot.path)
        await beats(clock, 4)
        assert slot.path.read_bytes() == record(OTHER, counter=7)
        slot.path.unlink()
        await beats(clock, 4)
        assert not slot.path.exists()


async def test_progress_grows_for_a_busy_compiler_and_stands_still_for_a_sleeping_one(
    slot: Slot, token: str
) -> None:
    async with open_workspace(grace=0.1, lease=slot.orders()) as workspace:
        env = {"ACACHE_TEST_TOKEN": token}

        async def during(mode: str) -> None:
            await workspace.run([*FAKE, mode, "600"], env=env)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(during, "busy")
            await until(lambda: (workspace.path / "ready").exists())
            began = slot.progress
            await until(lambda: slot.progress >= began + 50)
            os.kill(alive(token)[0], signal.SIGKILL)
        (workspace.path / "ready").unlink()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(during, "sleep")
            await until(lambda: (workspace.path / "ready").exists())
            pid = alive(token)[0]
            await until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")
            await beats(slot, 2)
            stood = slot.progress
            await beats(slot, 5)
            assert slot.progress == stood
            tasks.cancel_scope.cancel()


async def test_output_is_progress_and_progress_never_falls(slot: Slot) -> None:
    async with open_workspace(grace=0.1, lease=slot.orders()) as workspace:
        before = 0
        for _ in range(3):
            await workspace.run([*FAKE, "spew", "100000"])
            await beats(slot, 2)
            assert slot.progress >= before + 200_000
            before = slot.progress


async def test_a_beat_that_hangs_holds_up_nothing_else(slot: Slot) -> None:
    """A network mount that hangs: here a FIFO, whose opening waits for a writer."""
    os.mkfifo(slot.successor)
    async with open_workspace(grace=1, lease=slot.orders()) as workspace:
        threads = Path("/proc", workspace.path.name.split("-")[0], "task")
        await until(lambda: len(os.listdir(threads)) == 2)  # the beating one has begun
        with anyio.fail_after(PATIENCE):
            assert (await workspace.run(["true"])).ok
    assert slot.counter == 0


def test_without_a_thread_to_be_had_the_guard_beats_all_the_same(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_beat._thread, "start_new_thread", refuse)
    beater = _beat.Beater()
    for counter in (1, 2):
        beater.hand((str(slot.path), str(slot.successor), MINE, counter, 9))
        assert (slot.counter, slot.progress) == (counter, 9)
    slot.path.unlink()
    slot.path.mkdir()
    beater.hand((str(slot.path), str(slot.successor), MINE, 3, 9))  # EISDIR is swallowed
    slot.path.rmdir()
    slot.path.write_bytes(record())
    beater.hand((str(slot.path), str(slot.successor), MINE, 4, 9))
    assert slot.counter == 4


async def test_a_parent_that_does_not_listen_holds_up_nothing(slot: Slot) -> None:
    async with open_workspace(grace=0.1, lease=slot.orders()) as workspace:
        argv = [os.fsencode(word) for word in [*FAKE, "spew", "1000000"]]
        cwd = os.fsencode(workspace.path)
        await workspace._guard.send(
            encode("run", argv[0], cwd, b"", b"1000000", b"%d" % len(argv), *argv, b"TMPDIR=" + cwd)
        )
        await until(lambda: slot.progress >= 2_000_000)
        await beats(slot, 5)
        kinds = [(await workspace._guard.receive()) for _ in range(2)]
        assert [kind for kind, _ in kinds] == ["started", "exit"]
        assert len(kinds[1][1][6]) == 1_000_000


# -- faults of the guard itself, and of its surroundings


async def test_a_request_that_it_does_not_know_ends_the_guard_in_good_order() -> None:
    async with open_workspace(grace=1) as workspace:
        await workspace._guard.send(encode("dance"))
        with pytest.raises(GuardLostError, match="dance"):
            await workspace.run(["true"])
    assert not workspace.path.exists()


def test_a_guard_whose_parent_is_another_ends_at_once(temp: Path) -> None:
    near, far = os.pipe()
    package = str(Path(_sweep.__file__).parent)
    arguments = [str(near), "1", "0.1", os.fsencode(temp).hex()]
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BOOT, "acache-guard", package, *arguments],
        pass_fds=(near,),
        timeout=PATIENCE,
        check=False,
    )
    os.close(near)
    os.close(far)
    assert ended.returncode == 0
    assert not list(temp.glob("*/*"))


def test_the_guard_imports_nothing_slow() -> None:
    package = str(Path(_sweep.__file__).parent)
    code = BOOT.replace("main(sys.argv[3:])", "print(*sys.modules)")
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, "acache-guard", package], capture_output=True, check=True
    )
    loaded = set(answer.stdout.decode().split())
    assert "acache._guard" in loaded
    assert not loaded & {"os", "re", "enum", "signal", "threading", "ctypes", "anyio", "subprocess"} - _bare()


def _bare() -> set[str]:
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import sys; print(*sys.modules)"], capture_output=True, check=True
    )
    return set(answer.stdout.decode().split())


@pytest.mark.parametrize("taken", ["link", "open", "file"])
async def test_a_home_that_others_prepared_is_not_used(temp: Path, tmp_path: Path, taken: str) -> None:
    """A folder with a name that can be foretold lies in a place where everybody may write."""
    home = temp / f"acache-work-{os.geteuid()}"
    trap = tmp_path / "trap"
    trap.mkdir(0o700)
    if taken == "link":
        home.symlink_to(trap)
    elif taken == "open":
        home.mkdir()
        home.chmod(0o777)
    else:
        home.touch()
    async with open_workspace(grace=1) as workspace:
        assert workspace.path.parent != home
        assert workspace.path.parent.stat().st_mode & 0o777 == 0o700
        assert (await workspace.run(["true"])).ok
    assert os.listdir(trap) == []
    assert os.listdir(temp) == [home.name], "its own home is gone with it"


# -- dead workspaces


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    process.wait()
    return process.pid


async def test_a_guard_sweeps_the_dead_and_leaves_the_living(temp: Path) -> None:
    home = temp / f"acache-work-{os.geteuid()}"
    home.mkdir(0o700)
    mine = _sweep.start_time(os.getpid())
    assert mine > 0
    dead = [home / f"{dead_pid()}-123", home / f"{os.getpid()}-{mine - 1}", home / f"{dead_pid()}-5-abc"]
    kept = [home / f"{os.getpid()}-{mine}", home / "foreign", home / "12-x", home / f"{dead_pid()}-77"]
    for folder in [*dead, *kept]:
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "file").touch()
    held = os.open(
        kept[-1], os.O_RDONLY
    )  # a guard of another container: its process cannot be seen from here
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        async with open_workspace(grace=1), open_workspace(grace=1):
            await until(lambda: not any(folder.exists() for folder in dead))
    finally:
        os.close(held)
    assert all((folder / "sub" / "file").exists() for folder in kept)


def test_sweep_kills_what_names_the_workspace_and_a_group_only_if_it_is_the_same(tmp_path: Path) -> None:
    workspace = tmp_path / "1-1"
    workspace.mkdir()
    (workspace / "file").touch()
    sleep = [sys.executable, "-I", "-S", "-c", "import time; print(flush=True); time.sleep(600)"]

    def start(env: dict[str, str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(sleep, start_new_session=True, env=env, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        return process

    marked = start({"TMPDIR": str(workspace)})
    similar = start({"TMPDIR": str(workspace) + "0"})
    group = start({})
    try:
        _sweep.sweep(str(workspace), group.pid, _sweep.start_time(group.pid) + 1)
        assert similar.poll() is None
        assert group.poll() is None, "that number belonged to another process then"
        until_now(lambda: marked.poll() is not None)
        assert not workspace.exists()
        _sweep.sweep(str(workspace), group.pid, _sweep.start_time(group.pid))
        until_now(lambda: group.poll() is not None)
        assert similar.poll() is None
    finally:
        for process in (marked, similar, group):
            process.kill()
            process.wait()


def test_descendants_are_found_with_and_without_the_kernels_list(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=1); p.wait()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.stdout.close()
    try:
        assert set(_sweep.descendants(os.getpid())) >= {parent.pid, child}
        assert _sweep.descendants(parent.pid) == [child]

        def no_list(path: object, *_: object, **__: object) -> None:
            raise FileNotFoundError(errno.ENOENT, "no CONFIG_PROC_CHILDREN", path)

        with monkeypatch.context() as patch:
            patch.setattr(_sweep.posix, "stat", no_list)
            assert _sweep.descendants(parent.pid) == [child]
    finally:
        os.kill(child, signal.SIGKILL)
        parent.wait()


def test_a_deep_tree_is_removed_without_end_of_descriptors(tmp_path: Path) -> None:
    workspace = tmp_path / "1-1"
    here = workspace
    for _ in range(60):
        here = here / "d"
    here.mkdir(parents=True)
    began = len(os.listdir("/proc/self/fd"))
    for _ in _sweep.remove(os.fsencode(workspace)):
        assert len(os.listdir("/proc/self/fd")) < began + 70
    assert not workspace.exists()
    assert len(os.listdir("/proc/self/fd")) == began
    assert list(_sweep.remove(os.fsencode(workspace))) == []


def test_start_time_is_that_of_the_process() -> None:
    assert _sweep.start_time(dead_pid()) == 0
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 < _sweep.start_time(os.getpid()) / os.sysconf("SC_CLK_TCK") <= uptime + 1
