"""Headers that are laid out once: by whoever comes first, whole, and never where others may write."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acache.compilers import _nvrtc_headers
from acache.compilers._nvrtc_headers import laid_out, whole

pytestmark = pytest.mark.skipif(os.name != "posix", reason="locks and owners as POSIX has them")

ROOT = Path(__file__).parents[2]

LAYER = """\
import sys, time
from acache.compilers._nvrtc_headers import laid_out, whole
def install(folder):
    with open(sys.argv[2], "a") as log:
        log.write("installed\\n")
    for number in range(50):
        with open(f"{folder}/{number}.h", "w") as file:
            file.write(str(number))
        time.sleep(0.002)
sys.stdin.readline()
folder = laid_out(sys.argv[1], "toolchain", "private", install)
assert whole(folder), folder
print(folder)
"""


class Installer:
    """Lays out two files, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, folder: str) -> None:
        self.times += 1
        (Path(folder) / "deep").mkdir()
        (Path(folder) / "deep" / "a.h").write_text("a")
        (Path(folder) / "b.h").write_text("b")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def lay(home: Path, install: Installer, name: str = "toolchain") -> Path:
    return Path(laid_out(str(home), name, str(home.with_name("private")), install))


def test_they_are_laid_out_once(home: Path) -> None:
    install = Installer()
    folder = lay(home, install)
    assert lay(home, install) == folder == home / "toolchain"
    assert (folder / "deep" / "a.h").read_text() == "a"
    assert home.stat().st_mode & 0o777 == 0o700
    assert install.times == 1
    assert os.listdir(home) == ["toolchain"]


@pytest.mark.parametrize(
    "harm", ["removed", "all removed", "cut", "touched", "a link", "list removed", "list cut"]
)
def test_what_is_not_whole_is_laid_out_anew(home: Path, tmp_path: Path, harm: str) -> None:
    install = Installer()
    folder = lay(home, install)
    file = folder / "deep" / "a.h"
    match harm:
        case "removed":
            file.unlink()
        case "all removed":
            for path in (file, folder / "b.h", folder / ".acache-list"):
                path.unlink()
        case "cut":
            file.write_text("")
        case "touched":
            os.utime(file, (1, 1))
        case "a link":
            (tmp_path / "x").write_text("a")
            file.unlink()
            file.symlink_to(tmp_path / "x")
        case "list removed":
            (folder / ".acache-list").unlink()
        case "list cut":
            text = (folder / ".acache-list").read_text()
            (folder / ".acache-list").write_text(text[: text.rindex("\n")])
    assert not whole(str(folder))
    assert lay(home, install) == folder
    assert whole(str(folder))
    assert file.read_text() == "a"
    assert install.times == 2
    assert os.listdir(home) == ["toolchain"]


def test_eight_cold_processes_lay_them_out_once(home: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    argv = [sys.executable, "-c", LAYER, str(home), str(log)]
    processes = [
        subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    folders = {process.communicate(timeout=60)[0].decode().strip() for process in processes}
    assert folders == {str(home / "toolchain")}
    assert log.read_text() == "installed\n"


@pytest.mark.parametrize("how", ["open to others", "a link", "a file"])
def test_where_others_may_write_they_are_not_looked_for(home: Path, tmp_path: Path, how: str) -> None:
    install = Installer()
    if how == "open to others":
        home.mkdir()
        home.chmod(0o777)
    elif how == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        home.symlink_to(tmp_path / "elsewhere")
    else:
        home.write_text("")
    assert lay(home, install) == tmp_path / "private"
    assert whole(str(tmp_path / "private"))
    assert how == "a file" or not os.listdir(home)


@pytest.mark.root
def test_a_strangers_folder_is_not_used(home: Path, tmp_path: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, 54321, 54321)
    assert lay(home, Installer()) == tmp_path / "private"


def test_a_lock_that_does_not_end_is_not_waited_for(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nvrtc_headers, "_PATIENCE", 0.05)
    home.mkdir(mode=0o700)
    descriptor = os.open(home, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert lay(home, Installer()) == tmp_path / "private"
    finally:
        os.close(descriptor)


def test_what_a_killed_process_left_and_old_toolchains_go(home: Path) -> None:
    lay(home, Installer(), "old")
    lay(home, Installer(), "used")
    listed = home / "old" / ".acache-list"
    os.utime(listed, (time.time() - 31 * 24 * 3600,) * 2)
    (home / ".new-1").mkdir()
    (home / ".new-1" / "a.h").write_text("half")
    lay(home, Installer())
    assert sorted(os.listdir(home)) == ["toolchain", "used"]


def test_a_failed_layout_is_tried_again(home: Path) -> None:
    def fail(folder: str) -> None:
        raise OSError(28, "No space left on device")

    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            laid_out(str(home), "toolchain", str(home.with_name("private")), fail)
    assert lay(home, Installer()) == home / "toolchain"
    assert os.listdir(home) == ["toolchain"]
