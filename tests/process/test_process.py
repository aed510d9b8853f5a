"""Compilers run under the guard: what they are given, how they end, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from acache import _guardlink
from acache._errors import CompilerCrashedError, CompilerNotFoundError, CompileTimeoutError
from acache._models import Workspace
from acache._process import GuardLostError, open_workspace, run_tool
from tests.process.procs import FAKE, HERE, PATIENCE, alive, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")

only_asyncio = pytest.mark.parametrize(
    "anyio_backend",
    [("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})],
    ids=["asyncio", "uvloop"],
)
"""For what trio does not have: cancellation of a task, past every scope."""


@pytest.fixture
def token() -> Iterator[str]:
    """Return a token for the environment of compilers; whoever still has it at the end is killed."""
    token = f"token-{uuid.uuid4().hex}"
    yield token
    for pid in alive(token):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a temporary folder of its own for workspaces."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def env(token: str) -> dict[str, str]:
    return {"ACACHE_TEST_TOKEN": token}


def backend_name(anyio_backend: Any) -> str:
    name, options = anyio_backend
    return f"{name}+uvloop" if options.get("use_uvloop") else name


# -- what a program is given, and what is told of its end


async def test_a_program_is_given_a_private_folder_and_nothing_undeclared(
    temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACACHE_UNDECLARED", "1")
    async with open_workspace(grace=1) as workspace:
        assert isinstance(workspace, Workspace)
        assert workspace.path.parent.parent == temp
        assert workspace.path.stat().st_mode & 0o777 == 0o700
        assert workspace.path.parent.stat().st_mode & 0o777 == 0o700
        done = await workspace.run(
            [sys.executable, "-I", "-S", "-c", "import os; print(os.getcwd(), os.environ)"]
        )
        where, _, variables = done.stdout.decode().partition(" ")
        assert Path(where) == workspace.path
        known = eval(variables, {"environ": dict})
        assert known["TMPDIR"] == str(workspace.path)
        assert known["PATH"] == os.environ["PATH"]
        assert known.keys() <= {"TMPDIR", "PATH", "LC_CTYPE"}  # Python adds the last by itself
        await workspace.run(["/bin/sh", "-c", "echo made > output"])
        assert (workspace.path / "output").read_text() == "made\n"
    assert not workspace.path.exists()


async def test_env_stdin_and_cwd_reach_the_program(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    async with open_workspace(grace=1) as workspace:
        done = await workspace.run(["/bin/cat"], stdin=data)
        assert done.stdout == data
        assert not list(workspace.path.iterdir()), "the file of its input is not among its outputs"
        done = await workspace.run(
            ["/bin/sh", "-c", 'printf "%s|%s|%s" "$A" "$PWD" "$0"', "b\xe4r\nfoo"],
            env={"A": "x=y z\n", "PATH": "/bin"},
            cwd=tmp_path,
        )
        assert done.stdout.decode() == f"x=y z\n|{tmp_path}|b\xe4r\nfoo"
        assert (await workspace.run(["/bin/cat"])).stdout == b""


async def test_signals_are_as_a_program_expects_them() -> None:
    """Python ignores SIGPIPE and the guard ignores TERM; a compiler must not inherit that."""
    async with open_workspace(grace=1) as workspace:
        done = await workspace.run(["/bin/grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"])
    standard = (1 << 31) - 1  # 32 and 33 are glibc's own
    assert [int(line.split()[1], 16) & standard for line in done.stdout.decode().splitlines()] == [0, 0]


async def test_status_signal_seconds_and_cpu_are_told() -> None:
    async with open_workspace(grace=1) as workspace:
        done = await workspace.run([*FAKE, "exit", "7"])
        assert (done.exit_status, done.signal, done.ok) == (7, None, False)
        assert done.argv == (*FAKE, "exit", "7")
        assert 0 < done.cpu_seconds < PATIENCE
        assert 0 < done.seconds < PATIENCE
        done = await workspace.run([*FAKE, "signal", str(int(signal.SIGSEGV))])
        assert (done.exit_status, done.signal) == (None, signal.SIGSEGV)
        assert (await workspace.run(["true"])).ok


async def test_output_is_bounded_and_its_head_and_tail_are_kept() -> None:
    async with open_workspace(grace=1) as workspace:
        done = await workspace.run([*FAKE, "spew", "5000000"])
        for kept, dropped in ((done.stdout, done.stdout_dropped), (done.stderr, done.stderr_dropped)):
            assert len(kept) == 1 << 20
            assert len(kept) + dropped == 5_000_000
            assert kept.startswith(b"000000000\n000000001\n")
            assert kept.endswith(b"000499999\n")
        done = await workspace.run([*FAKE, "spew", "1000000"])
        assert (len(done.stdout), done.stdout_dropped) == (1_000_000, 0)
        done = await workspace.run([*FAKE, "spew", "1000"], output_limit=0)
        assert (done.stdout, done.stdout_dropped) == (b"", 1000)


async def test_the_end_of_the_process_counts_not_the_end_of_its_output(token: str) -> None:
    async with open_workspace(grace=1) as workspace:
        with anyio.fail_after(PATIENCE):
            done = await workspace.run([*FAKE, "grandchild", "600"], env=env(token))
        assert done.stdout == b"before after"
        assert alive(token), "the grandchild lives on until the workspace is left"
    assert not alive(token)


async def test_runs_of_one_workspace_take_turns() -> None:
    results = []
    async with open_workspace(grace=1) as workspace, anyio.create_task_group() as tasks:

        async def run(number: int) -> None:
            done = await workspace.run([*FAKE, "exit", str(number)])
            results.append((number, done.exit_status))

        for number in range(5):
            tasks.start_soon(run, number)
    assert sorted(results) == [(number, number) for number in range(5)]


# -- what cannot be started


async def test_a_missing_program_is_said_to_be_missing(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("not executable")
    async with open_workspace(grace=1) as workspace:
        for name in ("acache-no-such-compiler", str(plain), "/no/such"):
            with pytest.raises(CompilerNotFoundError) as caught:
                await workspace.run([name])
            assert caught.value.failure.reason == "missing"
            assert name in caught.value.failure.text
        assert (await workspace.run(["true"])).ok, "the workspace is as good as before"


async def test_a_program_that_cannot_be_started_is_no_missing_one(tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_bytes(b"\x7fELF but not really")
    odd.chmod(0o755)
    async with open_workspace(grace=1) as workspace:
        attempts: list[tuple[list[str], Any]] = [([str(odd)], None), (["true"], tmp_path / "no such folder")]
        for argv, cwd in [*attempts, (["true", "x" * 4_000_000], None)]:
            with pytest.raises(CompilerCrashedError) as caught:
                await workspace.run(argv, cwd=cwd)
            assert caught.value.failure.reason == "spawn"
            assert argv[0] in caught.value.failure.text
        assert (await workspace.run(["true"])).ok


async def test_what_no_system_can_pass_on_is_refused_at_once() -> None:
    async with open_workspace(grace=1) as workspace:
        for arguments in (
            {"argv": []},
            {"argv": ["true", "a\0b"]},
            {"argv": ["true"], "env": {"A=B": "c"}},
            {"argv": ["true"], "env": {"A": "\0"}},
        ):
            with pytest.raises(ValueError, match=r"argv|NUL|variable"):
                await workspace.run(**arguments)  # type: ignore[arg-type]
        assert (await workspace.run(["true"])).ok


async def test_a_guard_that_cannot_be_started_is_a_spawn_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        with pytest.raises(CompilerCrashedError, match="Resource temporarily"):
            await run_tool(["true"], timeout=PATIENCE)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "")
        with pytest.raises(CompilerCrashedError, match="no Python interpreter"):
            await run_tool(["true"], timeout=PATIENCE)
    with monkeypatch.context() as patch:
        patch.setattr(_guardlink.socket, "socketpair", refuse)
        with pytest.raises(CompilerCrashedError, match="Resource temporarily"):
            await run_tool(["true"], timeout=PATIENCE)


async def test_no_room_for_a_workspace_is_a_spawn_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(CompilerCrashedError) as caught:
        await run_tool(["true"], timeout=PATIENCE)
    assert caught.value.failure.reason == "spawn"
    assert "No such file" in caught.value.failure.text


STRANGER = 54321


def _interpreter_for_strangers() -> tuple[str, dict[str, str]] | None:
    """Return a Python, and its environment, that another user can run (root's own may lie in /root)."""
    path = os.pathsep.join([str(HERE.parents[1]), str(Path(anyio.__file__).parents[1])])
    variables = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with contextlib.suppress(OSError):
            code = "import anyio, acache._process"
            if not subprocess.run(
                [python, "-c", code], user=STRANGER, env=variables, capture_output=True
            ).returncode:
                return python, variables
    return None


@pytest.mark.root
def test_want_of_processes_is_a_spawn_failure(anyio_backend: Any) -> None:
    """PASSIONLab/OpenEquivariance#207: a build died on the limit of processes. Root knows no such limit."""
    if (found := _interpreter_for_strangers()) is None:
        pytest.skip("another user cannot run this Python")
    python, variables = found
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own is closed to others
        os.chmod(folder, 0o777)
        answer = subprocess.run(
            [python, str(HERE / "crowded.py"), backend_name(anyio_backend)],
            user=STRANGER,
            group=STRANGER,
            extra_groups=[],
            env={**variables, "PATH": "/bin", "TMPDIR": folder},
            stdout=subprocess.PIPE,
            timeout=3 * PATIENCE,
            check=True,
        )
        assert not list(Path(folder).glob("*/*"))
    lines = answer.stdout.decode().splitlines()
    assert len(lines) == 12
    assert set(lines) == {"spawn guard", "spawn compiler", "fine"}
    assert lines[-2:] == ["fine", "spawn compiler"]


# -- the end


@pytest.mark.parametrize("mode", ["sleep", "stubborn", "daemon"])
async def test_leaving_by_cancellation_leaves_nothing(mode: str, token: str) -> None:
    async with anyio.create_task_group() as tasks:

        async def compile_() -> None:
            async with open_workspace(grace=0.1) as workspace:
                paths.append(workspace.path)
                await workspace.run([*FAKE, mode, "600"], env=env(token))

        paths: list[Path] = []
        tasks.start_soon(compile_)
        await until(lambda: paths and (paths[0] / "ready").exists())
        tasks.cancel_scope.cancel()
    assert not alive(token)
    assert not paths[0].exists()


async def test_cancelling_one_run_stops_it_before_it_returns(token: str) -> None:
    async with open_workspace(grace=0.1) as workspace:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: workspace.run([*FAKE, "stubborn", "600"], env=env(token)))
            await until(lambda: (workspace.path / "ready").exists())
            tasks.cancel_scope.cancel()
        assert not alive(token)
        with pytest.raises(RuntimeError, match="closed"):
            await workspace.run(["true"])


async def test_leaving_normally_and_by_exception_sweeps_daemons(token: str) -> None:
    async with open_workspace(grace=0.1) as workspace:
        done = await workspace.run([*FAKE, "daemon-and-exit", "600"], env=env(token))
        assert done.ok
        assert alive(token)
    assert not alive(token)
    with pytest.raises(KeyError):  # noqa: PT012
        async with open_workspace(grace=0.1) as workspace:
            await workspace.run([*FAKE, "daemon-and-exit", "600"], env=env(token))
            raise KeyError
    assert not alive(token)
    assert not workspace.path.exists()


async def test_it_works_without_pidfds(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old kernel, or a sandbox that refuses the call: everything is polled for instead."""
    monkeypatch.delattr(os, "pidfd_open")
    boot = "import posix\ndel posix.pidfd_open\n" + _guardlink.BOOT
    monkeypatch.setattr(_guardlink, "BOOT", boot)
    async with open_workspace(grace=0.1) as workspace:
        assert (await workspace.run(["/bin/cat"], stdin=b"x")).stdout == b"x"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: workspace.run([*FAKE, "stubborn", "600"], env=env(token)))
            await until(lambda: (workspace.path / "ready").exists())
            tasks.cancel_scope.cancel()
        assert not alive(token)
        assert not workspace.path.exists()


async def test_a_program_has_the_grace_to_clean_up(token: str, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.touch()
    with anyio.move_on_after(PATIENCE) as scope:
        async with open_workspace(grace=PATIENCE) as workspace, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: workspace.run([*FAKE, "tidy", "600", str(scratch)], env=env(token)))
            await until(lambda: (workspace.path / "ready").exists())
            tasks.cancel_scope.cancel()
    assert not scope.cancelled_caught, "no need to wait the grace out"
    assert not scratch.exists()
    assert not alive(token)


async def test_a_workspace_that_was_left_is_closed() -> None:
    async with open_workspace(grace=1) as workspace:
        pass
    with pytest.raises((RuntimeError, CompilerCrashedError)):
        await workspace.run(["true"])


async def test_read_only_folders_are_removed_and_links_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    async with open_workspace(grace=1) as workspace:
        script = 'mkdir -p a/b/c; touch a/b/c/f; ln -s "$0" a/b/l; ln -s "$0" top; chmod 0 a/b/c; chmod 500 a'
        assert (await workspace.run(["/bin/sh", "-c", script, str(precious)])).ok
    assert not workspace.path.exists()
    assert (precious / "file").exists()


@only_asyncio
async def test_native_cancellation_twice_in_a_row_leaves_nothing(token: str) -> None:
    for pauses in range(4):  # the second cancellation meets the wait at another point each time
        paths: list[Path] = []

        async def compile_(paths: list[Path] = paths) -> None:
            async with open_workspace(grace=0.1) as workspace:
                paths.append(workspace.path)
                await workspace.run([*FAKE, "stubborn", "600"], env=env(token))

        task = asyncio.ensure_future(compile_())
        await until(lambda paths=paths: paths and (paths[0] / "ready").exists())
        task.cancel()
        for _ in range(pauses):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda paths=paths: not alive(token) and not paths[0].exists())


@only_asyncio
async def test_native_cancellation_at_any_point_of_the_start_leaves_nothing(temp: Path) -> None:
    for pauses in range(12):

        async def compile_() -> None:
            async with open_workspace(grace=0.1) as workspace:
                await workspace.run(["true"])

        task = asyncio.ensure_future(compile_())
        for _ in range(pauses):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    home = temp / f"acache-work-{os.geteuid()}"
    await until(lambda: not home.exists() or not list(home.iterdir()))


# -- deaths


def _hold(
    anyio_backend: Any, temp: Path, token: str, mode: str, *fork: str
) -> tuple[subprocess.Popen[bytes], Path, int, int]:
    path = os.pathsep.join([str(HERE.parents[1]), *sys.path])
    holder = subprocess.Popen(
        [sys.executable, str(HERE / "holder.py"), backend_name(anyio_backend), token, mode, *fork],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temp), "PYTHONPATH": path},
    )
    assert holder.stdout is not None
    workspace, guard, child = holder.stdout.readline().split()
    holder.stdout.close()
    return holder, Path(os.fsdecode(workspace)), int(guard), int(child)


@pytest.mark.parametrize("fork", [("fork",), ("alone",), ("fork", "no-pidfd")], ids="-".join)
@pytest.mark.parametrize("mode", ["sleep", "stubborn", "daemon"])
async def test_parent_killed(
    anyio_backend: Any,
    temp: Path,
    token: str,
    mode: str,
    fork: tuple[str, ...],
) -> None:
    """GridTools/gt4py#2870: compilers outlived the SIGKILL of their parent."""
    holder, workspace, _, child = _hold(anyio_backend, temp, token, mode, *fork)
    try:
        await until(lambda: (workspace / "ready").exists())
        assert alive(token)
        holder.kill()
        began = time.monotonic()
        holder.wait()
        await until(lambda: not alive(token))
        print(f"nothing left after {time.monotonic() - began:.3f} s")
        await until(lambda: not workspace.exists())
    finally:
        holder.kill()
        holder.wait()
        if child:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("mode", ["sleep", "stubborn", "daemon"])
async def test_guard_killed(mode: str, token: str) -> None:
    async with open_workspace(grace=0.1) as workspace:
        guard = int(workspace.path.name.split("-")[0])
        failures = []

        async def compile_() -> None:
            try:
                await workspace.run([*FAKE, mode, "600"], env=env(token))
            except GuardLostError as error:
                failures.append(error)
                assert not alive(token)
                assert not workspace.path.exists()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compile_)
            await until(lambda: (workspace.path / "ready").exists())
            os.kill(guard, signal.SIGKILL)
        assert "status -9" in str(failures[0])


async def test_guard_killed_between_two_runs(token: str) -> None:
    with pytest.raises(GuardLostError):  # noqa: PT012
        async with open_workspace(grace=0.1) as workspace:
            await workspace.run([*FAKE, "grandchild", "600"], env=env(token))
            os.kill(int(workspace.path.name.split("-")[0]), signal.SIGKILL)
            await until(lambda: alive(token))
            await workspace.run(["true"])
    assert not alive(token)
    assert not workspace.path.exists()


async def test_guard_killed_and_nobody_asks(token: str) -> None:
    async with open_workspace(grace=0.1) as workspace:
        await workspace.run([*FAKE, "grandchild", "600"], env=env(token))
        os.kill(int(workspace.path.name.split("-")[0]), signal.SIGKILL)
    assert not alive(token)
    assert not workspace.path.exists()


async def test_a_stopped_guard_is_killed_and_swept(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that no longer does its work does not hold up those who leave."""
    monkeypatch.setattr(_guardlink, "_PATIENCE", 0.2)
    async with open_workspace(grace=0.1) as workspace:
        await workspace.run([*FAKE, "grandchild", "600"], env=env(token))
        os.kill(int(workspace.path.name.split("-")[0]), signal.SIGSTOP)
    assert not alive(token)
    assert not workspace.path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_guard_does_not_heed_other_signals(number: signal.Signals) -> None:
    async with open_workspace(grace=0.1) as workspace:
        os.kill(int(workspace.path.name.split("-")[0]), number)
        assert (await workspace.run(["true"])).ok


async def test_holder_and_guard_killed_a_later_guard_sweeps(
    anyio_backend: Any, temp: Path, token: str
) -> None:
    holder, workspace, guard, _ = _hold(anyio_backend, temp, token, "stubborn", "alone")
    try:
        await until(lambda: (workspace / "ready").exists())
        os.kill(guard, signal.SIGSTOP)  # or it might be the quicker
        holder.kill()
        holder.wait()
        os.kill(guard, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{guard}").exists() or _zombie(guard))
        assert alive(token)
        assert workspace.exists()
        async with open_workspace(grace=0.1):
            await until(lambda: not alive(token) and not workspace.exists())
    finally:
        holder.kill()
        holder.wait()


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


# -- run_tool


async def test_run_tool_runs_and_stops_in_time(temp: Path, token: str) -> None:
    assert (await run_tool(["/bin/cat"], stdin=b"x", timeout=PATIENCE)).stdout == b"x"
    with pytest.raises(CompileTimeoutError) as caught:
        await run_tool([*FAKE, "stubborn", "600"], env=env(token), timeout=0.5, grace=0.1)
    assert caught.value.failure.reason == "timeout"
    assert caught.value.failure.seconds >= 0.5
    assert not alive(token)
    assert not os.listdir(temp / f"acache-work-{os.geteuid()}")


async def test_run_tool_once_more_when_its_guard_is_killed(token: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    script = f'echo >> {marks}; [ "$(wc -l < {marks})" = 1 ] && kill -9 $PPID; exit 0'
    assert (await run_tool(["/bin/sh", "-c", script], env=env(token), timeout=PATIENCE)).ok
    assert marks.read_text() == "\n\n"
    with pytest.raises(CompilerCrashedError, match="twice"):
        await run_tool(["/bin/sh", "-c", "kill -9 $PPID; sleep 600"], env=env(token), timeout=PATIENCE)
    assert not alive(token)


async def test_many_guards_leak_no_descriptor() -> None:
    await run_tool(["true"], timeout=PATIENCE)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        await run_tool(["true"], timeout=PATIENCE)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_many_guards_at_once() -> None:
    ended = []
    async with anyio.create_task_group() as tasks:

        async def compile_(number: int) -> None:
            done = await run_tool([*FAKE, "exit", str(number)], timeout=3 * PATIENCE)
            ended.append(done.exit_status)

        for number in range(32):
            tasks.start_soon(compile_, number)
    assert sorted(ended) == list(range(32))
