"""The pass-through in front of a compiler: what it counts, and that it changes nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from acache.cli._counting import Counter, LaunchLog

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")


@pytest.fixture
def counter(tmp_path):
    """Return a counter in front of a program that shows its arguments, or does what they say."""
    folder = tmp_path / "it's a folder"  # quotes and blanks must survive the script
    folder.mkdir()
    program = folder / "real compiler"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        "fail) echo no >&2; exit 3 ;;\n"
        "die) kill -9 $$ ;;\n"
        "burn) i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; exit 0 ;;\n"
        "esac\n"
        'cat; for each do printf "<%s>" "$each"; done\n'
    )
    program.chmod(0o755)
    return Counter(folder, str(program), "-c")


def run(counter, *args, **options):
    return subprocess.run(
        [counter.executable, *args], capture_output=True, text=True, timeout=60, check=False, **options
    )


def test_counts_only_what_emits_an_object(counter):
    assert counter.launches() == 0
    run(counter, "-E", "a.cc", stdin=subprocess.DEVNULL)
    run(counter, "--version", stdin=subprocess.DEVNULL)
    assert counter.launches() == 0
    run(counter, "-O2", "-c", "a.cc", stdin=subprocess.DEVNULL)
    assert counter.launches() == 1


@pytest.mark.parametrize("flag", ["-c", "-E"])
def test_passes_arguments_and_input_through(counter, flag):
    done = run(counter, "two words", "", "$HOME", "it's", flag, input="text\n")
    assert done.stdout == f"text\n<two words><><$HOME><it's><{flag}>"
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("flag", ["-c", "-E"])
def test_passes_failure_through(counter, flag):
    done = run(counter, "fail", flag)
    assert (done.returncode, done.stderr) == (3, "no\n")


@pytest.mark.parametrize("flag", ["-c", "-E"])
def test_passes_death_by_a_signal_through(counter, flag):
    assert run(counter, "die", flag).returncode == -signal.SIGKILL


def test_a_failed_launch_is_a_launch(counter):
    run(counter, "fail", "-c")
    run(counter, "die", "-c")
    assert counter.launches() == 2


def test_no_launch_is_lost_among_many(counter):
    processes = [
        subprocess.Popen([counter.executable, "fail", "-c"], stderr=subprocess.DEVNULL) for _ in range(24)
    ]
    assert {process.wait(60) for process in processes} == {3}
    assert counter.launches() == 24


def test_cpu_seconds_are_those_of_the_launches(counter):
    assert counter.cpu_seconds() == 0
    run(counter, "burn", "-E")
    assert counter.cpu_seconds() == 0
    run(counter, "burn", "-c")
    once = counter.cpu_seconds()
    assert once > 0
    run(counter, "burn", "-c")
    assert counter.cpu_seconds() > once


def test_a_log_of_launches_is_counted_by_lines(tmp_path):
    log = LaunchLog(tmp_path)
    assert log.launches() == 0
    for pid in (1, 2):
        with log.path.open("a") as file:
            file.write(f"nvrtc {pid} kernel.cu\n")
    assert log.launches() == 2
