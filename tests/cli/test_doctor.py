"""``acache doctor``: what it finds in healthy and in broken directories, and the exit code that follows."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from acache import _host
from acache._fs import OsFileSystem
from acache._host import Mount
from acache.cli import _doctor

NOBODY = 65534


def diagnose(directory, environ=None, **options):
    environ = {} if environ is None else environ
    return _doctor.examine(
        None if directory is None else str(directory), version="1", environ=environ, **options
    )


# --- health ------------------------------------------------------------------------------------------------


def test_a_fresh_directory_is_healthy_and_left_clean(cache_dir):
    found = diagnose(cache_dir)
    assert found.healthy
    assert found.coordination == "shared"
    assert found.folder.found == "missing"
    assert sorted(path.name for path in (cache_dir / "v1").iterdir()) == ["layout.json"]


def test_it_knows_what_the_directory_lies_on(cache_dir):
    found = diagnose(cache_dir)
    mount = _host.mount_of(cache_dir)
    assert (found.file_system.type, found.file_system.mount) == (mount.fstype, mount.point)
    assert found.space.free_bytes > 0
    assert found.owner_of_new_files == found.user == os.geteuid()


def test_it_describes_the_folder_as_it_was(cache_dir):
    cache_dir.mkdir(mode=0o750)
    folder = diagnose(cache_dir).folder
    assert (folder.found, folder.mode, folder.owner) == ("folder", "drwxr-x---", os.geteuid())
    assert folder.readable
    assert folder.writable
    assert not folder.writable_by_others


def test_the_command_prints_it_for_people(acache, cache_dir):
    done = acache("doctor", "--directory", str(cache_dir))
    assert done.exit_code == 0
    for word in (
        str(cache_dir),
        "--directory is given",
        "shared",
        "healthy",
        _host.mount_of(cache_dir).fstype,
    ):
        assert word in done.stdout


def test_the_command_prints_it_for_programs(acache, cache_dir):
    done = acache("doctor", "--directory", str(cache_dir), "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["healthy"] is True
    assert found["coordination"] == "shared"
    assert found["problems"] == []
    assert found["settings"]["lease_ttl"] == 15
    assert set(found["file_system"]) == {"type", "mount", "source", "kind", "read_only"}
    assert set(found["space"]) == {"free_bytes", "free_inodes"}


# --- which directory, and why ------------------------------------------------------------------------------


def test_why_it_is_this_directory(cache_dir):
    assert diagnose(cache_dir).why == "--directory is given"
    found = diagnose(None, {"ACACHE_DIR": str(cache_dir)})
    assert (found.directory, found.why) == (str(cache_dir), "ACACHE_DIR is set")


def test_without_any_name_it_is_the_users_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = diagnose(None)
    assert found.directory == str(tmp_path / "acache")
    assert "cache folder" in found.why


# --- settings ----------------------------------------------------------------------------------------------


def test_settings_of_the_environment_are_shown_and_count(cache_dir):
    found = diagnose(cache_dir, {"ACACHE_MAX_WAIT": "5", "ACACHE_TRUST": "group", "OTHER": "x"})
    assert found.environment == {"ACACHE_MAX_WAIT": "5", "ACACHE_TRUST": "group"}
    assert (found.settings["max_wait"], found.trust) == (5.0, "group")
    assert found.healthy


def test_a_misspelled_setting_is_a_problem_with_a_hint(cache_dir):
    found = diagnose(cache_dir, {"ACACHE_MAXWAIT": "5"})
    assert not found.healthy
    assert found.problems == ["ACACHE_MAXWAIT is no setting of acache; did you mean ACACHE_MAX_WAIT?"]


def test_a_refused_setting_is_a_problem(cache_dir):
    found = diagnose(cache_dir, {"ACACHE_LEASE_TTL": "1"})
    assert not found.healthy
    assert "ACACHE_LEASE_TTL" in found.problems[0]
    assert found.coordination == "shared"  # all else is still examined


def test_what_the_operator_switched_off_is_a_note(cache_dir):
    found = diagnose(cache_dir, {"ACACHE_MODE": "off", "ACACHE_COORDINATE": "0"})
    assert found.healthy
    assert len(found.notes) == 2


# --- broken directories ------------------------------------------------------------------------------------


def test_a_file_in_its_place_is_code_1(acache, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    done = acache("doctor", "-d", str(path), "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["healthy"], found["coordination"], found["folder"]["found"]) == (False, "none", "other")
    assert "no folder" in acache("doctor", "-d", str(path)).stdout


@pytest.fixture
def open_folder():
    """Return a folder that every user can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.root
@pytest.mark.parametrize(("mode", "level"), [(0o555, "process"), (0o000, "none")])
def test_permissions_that_are_missing(open_folder, mode, level):
    """As another user: root ignores modes."""
    cache = open_folder / "cache"
    (cache / "v1").mkdir(parents=True)
    (cache / "v1").chmod(mode)
    code = (  # all is imported first: the interpreter itself may lie where only root can read
        "import json, os, sys; sys.path[:] = json.loads(sys.argv.pop()); from acache.cli import _doctor;"
        f" os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY});"
        f" print(json.dumps(_doctor.examine({str(cache)!r}, version='1').as_json()))"
    )
    command = [sys.executable, "-c", code, json.dumps(sys.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["healthy"], found["coordination"], found["errno"]) == (False, level, errno.EACCES)
    assert found["user"] == NOBODY


@pytest.mark.root
def test_a_full_file_system(tmp_path):
    """A real one of 64 KiB, in a mount namespace of its own where that is allowed."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    try:
        (small / "ballast").write_bytes(bytes(40 << 10))
        found = diagnose(small / "cache")
    finally:
        subprocess.run(["umount", small], check=True)
    assert not found.healthy
    assert found.file_system.type == "tmpfs"
    assert any("is full" in problem for problem in found.problems)


def test_a_read_only_mount_is_shown(cache_dir, monkeypatch):
    mount = Mount("/", "squashfs", "/dev/loop0", ("ro",), read_only=True)
    monkeypatch.setattr(_host, "mount_of", lambda path: mount)
    assert diagnose(cache_dir).file_system.read_only


def test_file_systems_that_cannot_hold_leases_are_not_even_tried(cache_dir, monkeypatch):
    mount = Mount("/", "fuse.s3fs", "s3fs", (), read_only=False)
    monkeypatch.setattr(_host, "mount_of", lambda path: mount)
    found = diagnose(cache_dir)
    assert not found.healthy
    assert (found.coordination, found.file_system.kind) == ("process", "denied")
    assert not cache_dir.exists()


def test_an_unknown_mount_is_taken_for_a_network(cache_dir, monkeypatch):
    monkeypatch.setattr(_host, "mount_of", lambda path: None)
    found = diagnose(cache_dir)
    assert found.healthy
    assert found.file_system.kind == "network"
    assert any("not known" in note for note in found.notes)


def test_a_disk_without_hard_links_is_a_step_down(cache_dir, monkeypatch):
    def link(self, source, target):
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(OsFileSystem, "link", link)
    found = diagnose(cache_dir)
    assert not found.healthy
    assert found.coordination == "linkless"


def test_a_directory_that_hangs_is_given_up(acache, cache_dir, monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr(_host, "mount_of", lambda path: answered.wait())
    try:
        done = acache("doctor", "-d", str(cache_dir), "--timeout", "0.1", "--json")
    finally:
        answered.set()
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["healthy"], found["coordination"], found["file_system"]) == (False, None, None)
    assert "did not answer" in found["problems"][0]


def test_a_fault_of_our_own_is_not_swallowed_by_the_thread(cache_dir, monkeypatch):
    def broken(path):
        raise ZeroDivisionError

    monkeypatch.setattr(_host, "mount_of", broken)
    with pytest.raises(ZeroDivisionError):
        diagnose(cache_dir)


def test_a_file_system_without_inodes_left(cache_dir, monkeypatch):
    real = os.statvfs(cache_dir.parent)
    few = os.statvfs_result((*real[:7], 3, *real[8:]))  # f_favail
    monkeypatch.setattr(os, "statvfs", lambda path: few)
    found = diagnose(cache_dir)
    assert not found.healthy
    assert found.problems == ["the file system is out of inodes: 3 are free"]


def test_room_for_less_than_one_artifact_is_a_note(cache_dir):
    found = diagnose(cache_dir, {"ACACHE_MAX_BYTES": str(1 << 60), "ACACHE_MAX_ENTRY_BYTES": str(1 << 60)})
    assert found.healthy
    assert any("ACACHE_MAX_ENTRY_BYTES" in note for note in found.notes)


def test_a_read_only_directory_that_is_none_is_a_problem(cache_dir, tmp_path):
    """B28: several directories, of which one is not what it is meant to be."""
    baked, gone = tmp_path / "baked", tmp_path / "gone"
    (baked / "v1").mkdir(parents=True)
    found = diagnose(cache_dir, {"ACACHE_READ_ONLY_DIRECTORIES": os.pathsep.join([str(baked), str(gone)])})
    assert found.problems == [
        f"{gone}: no cache directory, or one that cannot be read (ACACHE_READ_ONLY_DIRECTORIES)"
    ]
    assert not gone.exists()


def test_a_mount_that_changes_owners_is_a_note(cache_dir, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(cache_dir.parent).st_uid + 1)
    found = diagnose(cache_dir)
    assert found.healthy
    assert any("squashed" in note for note in found.notes)


# --- who else may write ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trust", "healthy"), [("user", True), ("group", True), ("any", False)])
def test_a_folder_that_others_may_write(cache_dir, trust, healthy):
    cache_dir.mkdir()
    cache_dir.chmod(0o777)
    found = diagnose(cache_dir, {"ACACHE_TRUST": trust})
    assert found.folder.writable_by_others
    assert found.healthy is healthy


def test_names_cannot_drive_the_terminal(acache, tmp_path, monkeypatch):
    monkeypatch.setenv("ACACHE_EVIL", "\x1b[2J[bold]")
    done = acache("doctor", "-d", str(tmp_path / "\x1b]0;owned\x07"))
    assert done.exit_code == 1
    assert "\x1b" not in done.stdout
    assert "[bold]" in done.stdout


def test_missing_parents_are_made_as_a_cache_would(tmp_path):
    deep = Path(tmp_path, "a", "b", "c")
    assert diagnose(deep).healthy
    assert deep.is_dir()
