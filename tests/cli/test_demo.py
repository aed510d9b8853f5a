"""``acache demo``: real processes, counted launches, and nothing left behind however it ends."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import anyio
import psutil
import pytest
from rich.console import Console

from acache.cli import _choice, _demo, _demo_view
from acache.cli._crew import CrewError, open_crew
from acache.cli._worker import Orders
from acache.compilers._nvrtc_library import Installed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")

HANGS = 60.0
"""Seconds after which something hangs; not an aim."""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Give the demo a temporary folder of its own, and see that it leaves nothing there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert [path.name for path in folder.iterdir() if path.name.startswith("acache-demo-")] == []


def wait_until(condition, what):
    deadline = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


# --- the arms ----------------------------------------------------------------------------------------------


def check_shape(found, compiler, processes, kernels):
    assert list(found) == [
        "compiler",
        "processes",
        "kernels",
        "solo",
        "uncoordinated",
        "coordinated",
        "artifacts_identical",
    ]
    assert (found["compiler"], found["processes"], found["kernels"]) == (compiler, processes, kernels)
    for arm in ("solo", "uncoordinated", "coordinated"):
        assert set(found[arm]) == {"launches", "wall_s", "cpu_s"}
        assert found[arm]["wall_s"] > 0
    assert found["artifacts_identical"] is True


@pytest.mark.gcc
@pytest.mark.slow
def test_real_gcc_is_launched_once_per_kernel(acache):
    done = acache("demo", "--compiler", "cc", "--processes", "3", "--kernels", "1", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    check_shape(found, "cc", 3, 1)
    assert [found[arm]["launches"] for arm in _demo.ARMS] == [1, 3, 1]
    assert found["uncoordinated"]["cpu_s"] > found["coordinated"]["cpu_s"] > 0


@pytest.mark.tileiras
@pytest.mark.slow
def test_real_tileiras_is_launched_once_per_kernel(acache):
    done = acache("demo", "--processes", "4", "--kernels", "2", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    check_shape(found, "tileiras", 4, 2)
    assert found["solo"]["launches"] == found["coordinated"]["launches"] == 2
    assert 2 < found["uncoordinated"]["launches"] <= 8  # one that comes late finds what is there by then


@pytest.mark.nvrtc
@pytest.mark.slow
def test_real_nvrtc_is_launched_once_per_kernel(acache):
    done = acache("demo", "--compiler", "nvrtc", "--processes", "2", "--kernels", "2", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    check_shape(found, "nvrtc", 2, 2)
    assert found["solo"]["launches"] == found["coordinated"]["launches"] == 2
    assert 2 < found["uncoordinated"]["launches"] <= 4
    assert found["uncoordinated"]["cpu_s"] > found["coordinated"]["cpu_s"] > 0
    assert "libnvrtc" in done.stderr


def test_the_table_and_the_progress(acache, fake_cxx):
    done = acache("demo", "--compiler", "cc", "--processes", "2")
    assert done.exit_code == 0, done.stderr
    for word in ("compiled by cc", "alone", "uncoordinated", "with acache", "identical in all processes"):
        assert word in done.stdout
    assert "2 processes with acache: compiling" in done.stderr
    assert f"compiler: cc ({fake_cxx}/g++)" in done.stderr


def test_progress_on_a_terminal_is_written_over(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(_demo_view, "Console", lambda **_: console)
    with _demo_view.progress() as watch:
        watch(_demo.Look("solo", 1, ready=0, finished=0, launches=0, released=False))
        watch(_demo.Look("coordinated", 8, ready=8, finished=2, launches=1, released=True))
    shown = screen.getvalue()
    assert "8 processes with acache: compiling, 2 of 8 done, 1 launch" in shown
    assert "\x1b[2K" in shown


def test_settings_of_the_operator_do_not_change_it(acache, fake_cxx, monkeypatch, cache_dir):
    monkeypatch.setenv("ACACHE_MODE", "off")
    monkeypatch.setenv("ACACHE_DIR", str(cache_dir))
    done = acache("demo", "--compiler", "cc", "--processes", "2", "--kernels", "1", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["coordinated"]["launches"] == 1
    assert not cache_dir.exists()


def test_a_broken_promise_is_code_1_and_said(capsys):
    arm = _demo.Arm(launches=1, wall_s=1.0, cpu_s=1.0)
    twice = _demo.Arm(launches=2, wall_s=1.0, cpu_s=2.0)
    good = _demo.Outcome("cc", 2, 1, arm, twice, arm, artifacts_identical=True)
    assert good.kept
    doubled = _demo.Outcome("cc", 2, 1, arm, twice, twice, artifacts_identical=True)
    assert not doubled.kept
    differing = _demo.Outcome("cc", 2, 1, arm, twice, arm, artifacts_identical=False)
    assert not differing.kept
    _demo_view.show(doubled)
    assert "Expected 1 launch with acache, counted 2." in capsys.readouterr().out
    _demo_view.show(differing)
    assert "NOT identical" in capsys.readouterr().out


# --- which compiler ----------------------------------------------------------------------------------------


@pytest.fixture
def no_tileiras(monkeypatch):
    """Hide the tileiras of this environment."""

    def missing(location):
        raise _choice.not_found("'tileiras' was not found: pip install \"acache[tile]\"")

    monkeypatch.setattr(_choice, "find_tileiras", missing)


@pytest.fixture
def no_nvrtc(monkeypatch):
    """Hide the NVRTC of this environment."""

    def missing():
        raise _choice.not_found('cuda.bindings is not installed: pip install "acache[cuda]"')

    monkeypatch.setattr(_choice, "find_nvrtc", missing)


def installed(monkeypatch, release):
    found = Installed(("/site",), "/lib/libnvrtc.so.13", (f"/lib/libnvrtc-builtins.so.{release}",))
    monkeypatch.setattr(_choice, "find_nvrtc", lambda: found)


def test_auto_without_both_of_nvidias_takes_cc_and_says_why(acache, fake_cxx, no_tileiras, no_nvrtc):
    done = acache("demo", "--processes", "1", "--kernels", "1", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["compiler"] == "cc"
    assert "for want of tileiras: " in done.stderr
    assert 'pip install "acache[tile]"' in done.stderr
    assert "for want of NVRTC: " in done.stderr
    assert 'pip install "acache[cuda]"' in done.stderr


def test_auto_without_tileiras_takes_nvrtc_and_says_why(monkeypatch, no_tileiras):
    installed(monkeypatch, "13.5")
    choice = _choice.choose("auto")
    assert (choice.name, choice.program, choice.flag) == ("nvrtc", "/lib/libnvrtc.so.13", None)
    assert choice.why.startswith("for want of tileiras: ")
    assert _choice.choose("nvrtc").why == "as asked"


def test_an_nvrtc_without_headers_is_not_taken(acache, monkeypatch, fake_cxx, no_tileiras):
    installed(monkeypatch, "13.4")
    assert _choice.choose("auto").name == "cc"
    done = acache("demo", "--compiler", "nvrtc")
    assert done.exit_code == 1
    assert "NVRTC 13.4 does not bring the headers" in done.stderr
    assert "pip install --upgrade nvidia-cuda-nvrtc" in done.stderr


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("tileiras", ["acache[tile]"]),
        ("nvrtc", ["acache[cuda]"]),
        ("cc", ["no C++ compiler", "install"]),
        ("auto", ["acache[tile]", "acache[cuda]", "no C++ compiler"]),
    ],
)
def test_no_compiler_is_code_1_and_says_what_to_install(
    acache, monkeypatch, tmp_path, no_tileiras, no_nvrtc, asked, words
):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = acache("demo", "--compiler", asked)
    assert done.exit_code == 1
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr


def test_more_kernels_than_there_are_is_code_2(acache, fake_cxx):
    done = acache("demo", "--compiler", "cc", "--kernels", "99")
    assert done.exit_code == 2
    assert "--kernels" in done.stderr


# --- failure -----------------------------------------------------------------------------------------------


def test_a_compile_error_is_code_1_with_the_compilers_own_words(acache, fake_cxx):
    (fake_cxx / "refuse").touch()
    done = acache("demo", "--compiler", "cc", "--processes", "2", "--kernels", "1", "--json")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "a.cc:7:3: error: no such thing as 'kernel'" in done.stderr


def test_a_compiler_that_crashes_is_code_1(acache, fake_cxx):
    (fake_cxx / "die").touch()
    done = acache("demo", "--compiler", "cc", "--processes", "2", "--kernels", "1")
    assert done.exit_code == 1
    assert "signal 9" in done.stderr


def test_a_temporary_folder_that_cannot_be_made_is_code_1(acache, fake_cxx, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    done = acache("demo", "--compiler", "cc")
    assert done.exit_code == 1
    assert "missing" in done.stderr


def orders(folder, **changes):
    plain = {
        "directory": str(folder / "cache"),
        "coordinate": True,
        "compiler": "cc",
        "executable": "/bin/false",
        "toolchain": "/bin/false",
        "kernels": 1,
    }
    return Orders(**{**plain, **changes})


async def test_a_worker_that_cannot_import_is_reported_with_its_own_words(tmp_path):
    with pytest.raises(CrewError, match="worker 1 ended with status 1") as caught:
        async with open_crew(1, orders(tmp_path, compiler="fortran"), tmp_path) as crew:
            await crew.assemble()
    assert "Traceback" in str(caught.value)


async def test_a_worker_that_is_killed_ends_the_crew(tmp_path, fake_cxx):
    (fake_cxx / "hang").touch()
    cxx = str(fake_cxx / "g++")
    before = set(psutil.Process().children())

    async def lose_one():
        async with open_crew(3, orders(tmp_path, executable=cxx, toolchain=cxx), tmp_path) as crew:
            await crew.assemble()
            assert crew.ready == 3
            (set(psutil.Process().children()) - before).pop().kill()
            await crew.run()

    with pytest.raises(CrewError, match="ended with status -9"):
        await lose_one()
    assert set(psutil.Process().children()) == before


async def test_a_cancelled_crew_is_gone(tmp_path):
    before = set(psutil.Process().children())
    with anyio.CancelScope() as scope:
        async with open_crew(3, orders(tmp_path), tmp_path) as crew:
            await crew.assemble()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert set(psutil.Process().children()) == before


async def test_a_process_that_cannot_be_started_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(CrewError, match="worker 1 of 2 cannot be started"):
        async with open_crew(2, orders(tmp_path), tmp_path):
            pytest.fail("nothing can have started")


# --- stopping ----------------------------------------------------------------------------------------------


def compilers(fake_cxx):
    """Return the pids of the fake compilers that hang now."""
    asleep = fake_cxx / "asleep"
    alive = []
    for pid in asleep.read_text().split() if asleep.exists() else []:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE:
                alive.append(pid)
    return alive


@pytest.fixture
def running(fake_cxx, tmp_path):
    """Start a demo whose compilers hang, and wait until some of them run."""
    (fake_cxx / "hang").touch()
    with open(tmp_path / "output", "wb") as output:
        demo = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "acache",
                "demo",
                "--compiler",
                "cc",
                "--processes",
                "3",
                "--kernels",
                "1",
            ],
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: compilers(fake_cxx) or demo.poll() is not None, "no compiler runs")
        assert demo.poll() is None, (tmp_path / "output").read_text()
        yield demo
    finally:
        demo.kill()
        demo.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_stop_leaves_no_process(running, fake_cxx, number):
    running.send_signal(number)
    assert running.wait(HANGS) == 128 + number
    assert compilers(fake_cxx) == []


def test_a_demo_that_is_killed_takes_its_workers_with_it(running, fake_cxx, temporary):
    workers = psutil.Process(running.pid).children()
    assert workers
    running.kill()
    running.wait(HANGS)
    _, alive = psutil.wait_procs(workers, timeout=HANGS)
    assert alive == []
    wait_until(lambda: not compilers(fake_cxx), "compilers outlive the demo")
    for folder in temporary.glob("acache-demo-*"):  # nobody was left to remove it
        shutil.rmtree(folder)
