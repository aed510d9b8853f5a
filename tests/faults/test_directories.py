"""Directories that cannot be used cost a warning, a counter and a compile, and never an exception.

Real faults, met by real processes of another user where root would not be refused. Reports: B28, B46, B47,
B49 (folders that cannot be written), B45 (no passwd entry), T3 (refusals taken for "busy").
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import acache
from tests.faults.worker import COMMAND
from tests.process.fleet import Fleet, launches
from tests.process.procs import until_now

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = {"uid": 65534}
UNKNOWN = {"uid": 54321}
"""A user whom no passwd entry names."""


def meet(backend: Any, directory: Path | None, count: int = 1, env: Any = None, **orders: Any) -> list[Any]:
    """Let processes meet a directory, and check what must hold anywhere: the artifact, no exception."""
    orders["directory"] = None if directory is None else str(directory)
    with Fleet(count, backend, env=env, prefix=COMMAND, **orders) as fleet:
        reports = fleet.run()
    for report in reports:
        assert report["uid"] == orders.get("uid", os.getuid())
        assert report["errors"] == []
    assert len({report["digest"] for report in reports}) == 1
    return reports


def check_degraded(report: dict[str, Any], named: str) -> None:
    """One warning, which names the folder; and a counter says so."""
    assert len(report["warnings"]) == 1
    assert named in report["warnings"][0]
    assert report["stats"]["store_errors"] + report["stats"]["uncoordinated_compiles"] > 0


def check_strict(backend: Any, directory: Path, **orders: Any) -> None:
    """With ``strict`` every call says what is wrong, and not only the first."""
    orders |= {"directory": str(directory), "settings": {"strict": True}, "calls": 2}
    with Fleet(1, backend, prefix=COMMAND, **orders) as fleet:
        (report,) = fleet.run()
    assert len(report["errors"]) == 2
    assert {error.partition(":")[0] for error in report["errors"]} <= {"StoreError", "CorruptEntryError"}


# --- folders that this user may not use -----------------------------------------------------------


def unwritable(place: Path) -> Path:
    (place / "cache").mkdir(mode=0o555)
    return place / "cache"


def closed(place: Path) -> Path:
    (place / "cache").mkdir(mode=0o000)
    return place / "cache"


def below_closed(place: Path) -> Path:
    return closed(place) / "below"


def without_parent(place: Path) -> Path:
    return place / "no" / "such" / "folder"


def a_file(place: Path) -> Path:
    (place / "cache").touch()
    return place / "cache"


def below_a_file(place: Path) -> Path:
    return a_file(place) / "below"


def a_dangling_link(place: Path) -> Path:
    (place / "cache").symlink_to(place / "nowhere" / "at all")
    return place / "cache"


def a_loop_of_links(place: Path) -> Path:
    (place / "cache").symlink_to(place / "cache")
    return place / "cache"


def of_too_long_a_name(place: Path) -> Path:
    return place / ("x" * 300)


def made_by_root(place: Path) -> Path:
    """B49: the folder and its shards came with the image."""
    (place / "cache" / "v1").mkdir(parents=True)
    for number in range(256):
        (place / "cache" / "v1" / f"{number:02x}").mkdir()
    return place / "cache"


UNUSABLE = [
    unwritable,
    closed,
    below_closed,
    without_parent,
    a_file,
    below_a_file,
    a_dangling_link,
    a_loop_of_links,
    of_too_long_a_name,
    made_by_root,
]


BACKENDS = [("asyncio", {}), ("asyncio", {"use_uvloop": True}), ("trio", {})]
ON_SOME_LOOP = pytest.mark.parametrize(
    ("make", "anyio_backend"),
    [
        pytest.param(make, BACKENDS[number % 3], id=f"{make.__name__}-{number % 3}")
        for number, make in enumerate(UNUSABLE)
    ],
)
"""The loops by turns: what differs here is the disk."""


@pytest.mark.root
@ON_SOME_LOOP
def test_an_unusable_directory_costs_a_warning_and_a_compile(anyio_backend, place, make):
    directory = make(place)
    (report,) = meet(anyio_backend, directory, calls=2, **NOBODY)
    assert len(report["spans"]) == 1  # the second call is served from memory
    check_degraded(report, str(directory))


@pytest.mark.root
@pytest.mark.parametrize(
    "make", [unwritable, closed, a_file, a_loop_of_links], ids=lambda make: make.__name__
)
@pytest.mark.parametrize("anyio_backend", [BACKENDS[0]], ids=["asyncio"])
def test_an_unusable_directory_is_an_error_only_when_strict(anyio_backend, place, make):
    check_strict(anyio_backend, make(place), **NOBODY)


@pytest.mark.root
def test_processes_without_a_directory_do_not_queue(anyio_backend, place):
    reports = meet(anyio_backend, unwritable(place), 4, seconds=1, **NOBODY)
    assert sum(len(report["spans"]) for report in reports) == 4
    assert in_a_row(reports) == 1


@pytest.mark.root
def test_a_readable_directory_is_read(anyio_backend, place):
    """B47: what root compiled into it is a hit for those who may only read, and nothing is written."""
    directory = place / "cache"
    meet(anyio_backend, directory)
    before = sorted((path, path.stat().st_mtime_ns) for path in directory.rglob("*"))
    (report,) = meet(anyio_backend, directory, settings={"recency_grain": 0}, **NOBODY)
    assert report["origin"] == "disk"
    assert report["warnings"] == []
    assert sorted((path, path.stat().st_mtime_ns) for path in directory.rglob("*")) == before


# --- no home, no name -----------------------------------------------------------------------------

NO_HOME = ["HOME", "XDG_CACHE_HOME", "ACACHE_DIR"]


@pytest.mark.root
def test_a_user_without_passwd_entry_and_home_has_a_cache_of_its_own(anyio_backend, place):
    """B45: the temporary folder serves, by uid."""
    place.chmod(0o1777)
    for origin in ("compiled", "disk"):
        (report,) = meet(anyio_backend, None, env={"TMPDIR": str(place)}, unset=NO_HOME, **UNKNOWN)
        assert report["origin"] == origin
        assert report["warnings"] == []
    assert (place / "acache-54321" / "v1").is_dir()


@pytest.mark.root
@pytest.mark.parametrize("who", [NOBODY, UNKNOWN], ids=["nobody", "unknown"])
def test_a_home_that_is_not_there_costs_a_warning(anyio_backend, place, who):
    """B46: HOME=/nonexistent, as in many images."""
    env = {"HOME": str(place / "nonexistent")}
    (report,) = meet(anyio_backend, None, env=env, unset=NO_HOME[1:], **who)
    check_degraded(report, str(place / "nonexistent" / ".cache" / "acache"))


async def test_a_working_directory_that_is_gone_costs_a_warning(tmp_path, monkeypatch, caplog):
    for number, variable in enumerate((None, "ACACHE_DIR")):
        gone = tmp_path / str(number)
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        monkeypatch.setenv("ACACHE_DIR", "relative")
        caplog.clear()
        async with acache.Cache(None if variable else "relative") as cache:
            assert (await cache.get_or_compile(acache.key(x=1), compile_it)).data == b"made"
            assert cache.stats().uncoordinated_compiles == 1
        assert [record.levelname for record in caplog.records if record.name == "acache"].count(
            "WARNING"
        ) == 1


async def compile_it() -> bytes:
    return b"made"


# --- file systems that refuse ---------------------------------------------------------------------


def test_refused_links_still_mean_one_compile(anyio_backend, place):
    reports = meet(anyio_backend, place / "cache", 4, linkless=True, seconds=0.5)
    assert sum(len(report["spans"]) for report in reports) == 1
    said = [report["warnings"] for report in reports if report["warnings"]]  # by all who tried to acquire
    assert said
    assert all(len(warnings) == 1 and "hard links are refused" in warnings[0] for warnings in said)
    left = [path.name for path in (place / "cache").rglob("*") if ".lease" in path.name or ".t." in path.name]
    assert left == []


@pytest.mark.root
def test_a_read_only_mount_is_read_and_not_written(anyio_backend, place, mount):
    directory = place / "cache"
    meet(anyio_backend, directory)
    target = mount("bind", "bind", directory)
    subprocess.run(["mount", "-o", "remount,ro,bind", str(target)], check=True)
    (report,) = meet(anyio_backend, target, settings={"recency_grain": 0})
    assert (report["origin"], report["warnings"]) == ("disk", [])
    (report,) = meet(anyio_backend, target, source="another")
    check_degraded(report, str(target))
    assert "Read-only" in report["warnings"][0]
    check_strict(anyio_backend, target, source="another")


@pytest.mark.root
def test_a_mount_that_becomes_read_only_meanwhile(anyio_backend, place, mount):
    """A file system with an error is remounted read-only by the kernel, in the middle of the compile."""
    target = mount("tmpfs", "size=1m,mode=1777")
    log = place / "log"
    orders = {"directory": str(target), "job": "command", "seconds": 1, "log": str(log)}
    with Fleet(3, anyio_backend, prefix=COMMAND, **orders) as fleet:
        fleet.release()
        until_now(lambda: launches(log) == 1)
        # Files that are open for writing refuse the remount; the holder has none open between its beats.
        subprocess.run(["mount", "-o", "remount,ro", str(target)], check=True)
        reports = [worker.report() for worker in fleet.workers]
    assert len({report["digest"] for report in reports}) == 1
    assert [report["errors"] for report in reports] == [[], [], []]
    assert sum(report["stats"]["store_errors"] for report in reports) > 0
    assert all(len(report["warnings"]) <= 1 for report in reports)


FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IMMUTABLE_FL = 0x80086601, 0x40086602, 0x10
"""ioctl_iflags(2)."""


def immutable(folder: Path, on: bool) -> bool:
    """Do what chattr(1) does; False where the file system has no such flag."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        (flags,) = struct.unpack("l", fcntl.ioctl(fd, FS_IOC_GETFLAGS, struct.pack("l", 0)))
        flags = flags | FS_IMMUTABLE_FL if on else flags & ~FS_IMMUTABLE_FL
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("l", flags))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


@pytest.mark.root
def test_an_immutable_folder_refuses_even_root(anyio_backend, place):
    directory = place / "cache"
    directory.mkdir()
    if not immutable(directory, True):
        pytest.skip("no immutable flag here")
    try:
        (report,) = meet(anyio_backend, directory)
        check_degraded(report, str(directory))
        check_strict(anyio_backend, directory)
    finally:
        immutable(directory, False)


@pytest.mark.root
@pytest.mark.parametrize("anyio_backend", [BACKENDS[2]], ids=["trio"])
def test_one_immutable_shard_degrades_nothing_else(anyio_backend, place):
    directory = place / "cache"
    meet(anyio_backend, directory)
    (shard,) = {path.parent for path in directory.rglob("*.art")}
    shutil.rmtree(shard)
    shard.mkdir()
    if not immutable(shard, True):
        pytest.skip("no immutable flag here")
    try:
        (report,) = meet(anyio_backend, directory)
        check_degraded(report, str(directory))
        for origin in ("compiled", "disk"):
            (report,) = meet(anyio_backend, directory, source="another")
            assert (report["origin"], report["warnings"]) == (origin, [])
    finally:
        immutable(shard, False)


@pytest.mark.root
@pytest.mark.parametrize("anyio_backend", [BACKENDS[1]], ids=["uvloop"])
def test_an_overlay_works_like_any_disk(anyio_backend, place, mount):
    base = mount("tmpfs", "size=8m")  # an overlay's upper layer may not itself be an overlay
    for name in ("lower", "upper", "work"):
        (base / name).mkdir()
    meet(anyio_backend, base / "lower", source="baked")
    target = mount("overlay", f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work")
    (report,) = meet(anyio_backend, target, source="baked")
    assert (report["origin"], report["warnings"]) == ("disk", [])
    reports = meet(anyio_backend, target, 4, seconds=0.5)
    assert sum(len(report["spans"]) for report in reports) == 1
    assert [report["warnings"] for report in reports] == [[]] * 4


# --- full disks -----------------------------------------------------------------------------------

PAGE = os.sysconf("SC_PAGE_SIZE")


def in_a_row(reports: list[dict[str, Any]]) -> int:
    """Return how many compiles ran one after the other, at the most."""
    count, free = 0, 0.0
    for ended, began in sorted((ended, began) for report in reports for began, ended in report["spans"]):
        if began >= free:
            count, free = count + 1, ended
    return count


@pytest.mark.root
@pytest.mark.parametrize("free", [0, 4, 16])
@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
def test_a_full_disk_makes_nobody_queue(anyio_backend, mount, free):
    """Eight processes and an artifact that does not fit: with room for leases one compiles, tells the others
    that it cannot be kept, and all of them compile at once; without, all do from the start.
    """
    target = mount("tmpfs", f"size={16 * PAGE},mode=1777")
    (target / "others").write_bytes(bytes((16 - free) * PAGE))
    reports = meet(anyio_backend, target, 8, seconds=0.7, size=20 * PAGE)
    for report in reports:
        assert len(report["spans"]) == 1
        check_degraded(report, str(target))
        assert "No space left" in report["warnings"][0]
    assert in_a_row(reports) <= 2


@pytest.mark.root
@pytest.mark.parametrize("anyio_backend", [BACKENDS[2]], ids=["trio"])
def test_a_full_disk_of_64_kib(anyio_backend, mount):
    target = mount("tmpfs", "size=64k,mode=1777")
    (report,) = meet(anyio_backend, target, size=1 << 20, calls=2)
    check_degraded(report, str(target))
    assert report["stats"]["published"] == 0
    for origin in ("compiled", "disk"):  # another that fits
        (report,) = meet(anyio_backend, target, source="another", size=8192)
        assert (report["origin"], report["warnings"]) == (origin, [])
    check_strict(anyio_backend, target, size=1 << 20)


@pytest.mark.root
@pytest.mark.parametrize("anyio_backend", [BACKENDS[1]], ids=["uvloop"])
def test_once_there_is_room_a_mark_of_what_could_not_be_kept_binds_nobody(anyio_backend, mount):
    target = mount("tmpfs", "size=64k,mode=1777")
    meet(anyio_backend, target, size=1 << 20)
    subprocess.run(["mount", "-o", "remount,size=8m", str(target)], check=True)
    for origin in ("compiled", "disk"):
        (report,) = meet(anyio_backend, target, size=1 << 20)
        assert (report["origin"], report["warnings"]) == (origin, [])


@pytest.mark.root
@pytest.mark.parametrize("inodes", [1, 6])
@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
def test_a_disk_without_inodes(anyio_backend, mount, inodes):
    """B51: small files exhaust the inodes first. A handful is enough for a probe, but not for leases."""
    target = mount("tmpfs", f"nr_inodes={inodes},mode=1777")
    reports = meet(anyio_backend, target, 4, seconds=0.5)
    for report in reports:
        assert len(report["warnings"]) <= 1
        assert not report["warnings"] or "No space left" in report["warnings"][0]
        if report["origin"] == "compiled" and not report["stats"]["published"]:
            check_degraded(report, str(target))
    assert in_a_row(reports) == 1


# --- with a real compiler under the guard ---------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("make", [unwritable, closed, a_file], ids=lambda make: make.__name__)
def test_a_compiler_under_its_guard_runs_all_the_same(anyio_backend, place, interpreter, make):
    directory = make(place)
    (place / "log").touch(mode=0o666)
    (place / "log").chmod(0o666)
    (place / "temp").mkdir()
    (place / "temp").chmod(0o1777)
    orders = {"job": "command", "log": str(place / "log"), "interpreter": interpreter, **NOBODY}
    (report,) = meet(anyio_backend, directory, env={"TMPDIR": str(place / "temp")}, **orders)
    assert launches(place / "log") == 1
    check_degraded(report, str(directory))
    assert not any((place / "temp").glob("acache-*/*"))
