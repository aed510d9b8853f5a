"""Host: deaths of real processes, mounts and quotas on made-up ``/proc`` trees, the default folder."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import platformdirs
import pytest

from acache._host import (
    Identity,
    Mount,
    ProcessState,
    _identify,
    _is_honest,
    _parse_stat,
    _time_namespace,
    default_directory,
    judge_identity,
    mount_of,
    my_identity,
    process_state,
    usable_cores,
)

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the real /proc")

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@contextlib.contextmanager
def python(code):
    """Run a Python child that lives until it is killed; it prints one line when ready."""
    child = subprocess.Popen(
        [sys.executable, "-c", code], env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.communicate()


IDLE = "print('ready', flush=True); input()"


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.005)


# --- Identity ----------------------------------------------------------------------------------------------


@linux
def test_who_i_am():
    mine = my_identity()
    assert mine.pid == os.getpid()
    assert mine.host == socket.gethostname()
    assert mine.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert mine.pidns == os.stat("/proc/self/ns/pid").st_ino
    assert mine.starttime == process_state(os.getpid()).starttime
    assert mine.as_record() == {
        name: getattr(mine, name) for name in ("boot_id", "pidns", "timens", "pid", "starttime", "host")
    }
    assert my_identity() is mine


@linux
def test_a_forked_child_is_somebody_else():
    code = """
import os
from acache._host import my_identity
before = my_identity()
read, write = os.pipe()
if os.fork() == 0:
    after = my_identity()
    verdicts = after.pid == os.getpid(), after.pid != before.pid, after.starttime is not None
    os.write(write, " ".join(map(str, verdicts)).encode())
    os._exit(0)
os.wait()
print(os.read(read, 100).decode(), my_identity() == before)
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True"] * 4, done.stderr


def fake_proc(tmp_path, *, nspid=None, pid=None, time_namespace="time:[4026531834]", boot_id="aaaa-bbbb\n"):
    """Make a ``/proc`` of just what is read of it."""
    pid = os.getpid() if pid is None else pid
    proc = tmp_path / "proc"
    stat = f"{pid} (python) S " + " ".join(["0"] * 16) + f" 1 0 4242 {' '.join(['0'] * 30)}\n"
    for name in ("self", str(os.getpid())):
        (proc / name / "ns").mkdir(parents=True, exist_ok=True)
        (proc / name / "stat").write_text(stat)
        (proc / name / "status").write_text(f"Name:\tpython\nNSpid:\t{pid if nspid is None else nspid}\n")
    (proc / "self" / "ns" / "pid").symlink_to("pid:[4026531836]")
    if time_namespace:
        (proc / "self" / "ns" / "time").symlink_to(time_namespace)
    if boot_id is not None:
        (proc / "sys/kernel/random").mkdir(parents=True)
        (proc / "sys/kernel/random/boot_id").write_text(boot_id)
    return proc


def test_identity_of_a_made_up_proc(tmp_path):
    assert _identify(fake_proc(tmp_path)) == Identity(
        boot_id="aaaa-bbbb",
        pidns=4026531836,
        timens=4026531834,
        pid=os.getpid(),
        starttime=4242,
        host=my_identity().host,
        proc_honest=True,
    )


def test_without_proc_all_is_unknown(tmp_path):
    mine = _identify(tmp_path / "none")
    assert mine.as_record() == {
        "boot_id": None,
        "pidns": None,
        "timens": None,
        "pid": os.getpid(),
        "starttime": None,
        "host": mine.host,
    }
    assert not mine.proc_honest


@pytest.mark.parametrize("nspid", ["7\t1", "", "99999999"])
def test_a_proc_of_another_pid_namespace_is_not_honest(tmp_path, nspid):
    assert not _is_honest(fake_proc(tmp_path, nspid=nspid), os.getpid())


def test_a_proc_whose_self_is_somebody_else_is_not_honest(tmp_path):
    proc = fake_proc(tmp_path, pid=os.getpid() + 1, nspid=os.getpid())
    assert not _is_honest(proc, os.getpid())
    assert _identify(proc).starttime is None


def test_a_proc_that_hides_us_is_not_honest(tmp_path):
    proc = fake_proc(tmp_path)
    (proc / str(os.getpid()) / "stat").unlink()
    assert not _is_honest(proc, os.getpid())


def test_a_kernel_without_time_namespaces_has_one_for_all(tmp_path):
    assert _time_namespace(fake_proc(tmp_path, time_namespace=None)) == 0


def test_a_time_namespace_that_cannot_be_read_is_unknown(tmp_path):
    assert _time_namespace(fake_proc(tmp_path, time_namespace="garbage")) is None


# --- Processes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["python", "a b", "a) Z 1 (b", "((", "))", ") Z 9 9", "", "new\nline"])
def test_a_name_cannot_forge_the_fields_after_it(name):
    line = f"12 ({name}) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 3 18 4242 20 21\n".encode()
    stat = _parse_stat(line)
    assert (stat.pid, stat.state, stat.threads, stat.starttime) == (12, "S", 3, 4242)


@pytest.mark.parametrize("data", [b"", b"12", b"12 (x", b"12 x) S", b"12 (x) S 1 2", b"x (x) S" + b" y" * 30])
def test_what_is_no_stat_line(data):
    assert _parse_stat(data) is None


@linux
def test_a_live_process_with_a_nasty_name():
    code = "open('/proc/self/comm', 'w').write(') Z 1 (x'); " + IDLE
    with python(code) as child:
        state = process_state(child.pid)
    assert state.exists
    assert not state.zombie
    assert state.starttime >= my_identity().starttime


@linux
def test_a_zombie_is_seen_and_then_gone():
    with python(IDLE) as child:
        started = process_state(child.pid).starttime
        child.kill()
        wait_until(lambda: process_state(child.pid).zombie)
        assert process_state(child.pid) == ProcessState(exists=True, starttime=started, zombie=True)
    assert process_state(child.pid) == ProcessState(exists=False)


@linux
def test_a_leader_that_ended_before_its_threads_is_no_zombie():
    code = """
import ctypes, threading, time
def live_on():
    print("ready", flush=True)
    time.sleep(600)
threading.Thread(target=live_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    with python(code) as child:
        leader = Path(f"/proc/{child.pid}/stat")
        wait_until(lambda: leader.read_bytes().rpartition(b")")[2].split()[0] == b"Z")
        state = process_state(child.pid)
        assert state.exists
        assert not state.zombie


@pytest.mark.parametrize("pid", [0, -1, -os.getpid(), 1 << 70])
def test_a_number_that_is_no_pid_signals_nobody_and_proves_nothing(pid):
    assert process_state(pid) == ProcessState(exists=None)


@pytest.mark.parametrize(
    ("error", "exists"),
    [
        (PermissionError(errno.EPERM, ""), True),
        (ProcessLookupError(errno.ESRCH, ""), False),
        (OSError(errno.EINVAL, ""), None),
        (OverflowError(), None),
    ],
    ids=["EPERM", "ESRCH", "EINVAL", "overflow"],
)
def test_only_esrch_means_gone(monkeypatch, tmp_path, error, exists):
    def kill(pid, number):
        assert number == 0
        raise error

    monkeypatch.setattr(os, "kill", kill)
    assert process_state(12, proc=tmp_path) == ProcessState(exists=exists)


def test_a_hidden_proc_entry_proves_nothing(tmp_path):
    assert process_state(os.getpid(), proc=tmp_path) == ProcessState(exists=True)


def test_windows_is_never_asked(monkeypatch):
    def kill(pid, number):
        raise AssertionError("os.kill ends processes there")

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(sys, "platform", "win32")
    assert process_state(12) == ProcessState(exists=None)


# --- The verdict -------------------------------------------------------------------------------------------

MINE = Identity("boot", 10, 20, 100, 1000, "here", proc_honest=True)
THEIRS = {"boot_id": "boot", "pidns": 10, "timens": 20, "pid": 7, "starttime": 500, "host": "here"}
GONE = ProcessState(exists=False)
ALIVE = ProcessState(exists=True, starttime=500)
RECYCLED = ProcessState(exists=True, starttime=501)
ZOMBIE = ProcessState(exists=True, starttime=500, zombie=True)
HIDDEN = ProcessState(exists=True)
UNKNOWN = ProcessState(exists=None)


@pytest.mark.parametrize(
    ("state", "dead"),
    [(GONE, True), (RECYCLED, True), (ZOMBIE, True), (ALIVE, False), (HIDDEN, False), (UNKNOWN, False)],
)
def test_the_verdict(state, dead):
    assert judge_identity(MINE, THEIRS, state) is dead


@pytest.mark.parametrize("state", [GONE, RECYCLED, ZOMBIE])
@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": "other"},
        {"boot_id": None},
        {"pidns": 11},
        {"pidns": None},
        {"pidns": "10"},
        {"timens": 21},
        {"timens": None},
        {"pid": None},
        {"pid": 0},
        {"pid": -1},
        {"pid": True},
        {"pid": "7"},
        {"pid": 7.0},
    ],
    ids=str,
)
def test_a_record_that_does_not_match_proves_nothing(state, change):
    assert not judge_identity(MINE, {**THEIRS, **change}, state)


@pytest.mark.parametrize("missing", ["boot_id", "pidns", "timens", "pid"])
def test_a_record_with_a_gap_proves_nothing(missing):
    assert not judge_identity(MINE, {name: THEIRS[name] for name in THEIRS if name != missing}, GONE)


@pytest.mark.parametrize(
    "change",
    [{"proc_honest": False}, {"boot_id": None}, {"pidns": None}, {"timens": None}],
    ids=str,
)
def test_one_who_does_not_know_himself_accuses_nobody(change):
    mine = dataclasses.replace(MINE, **change)
    theirs = {**THEIRS, **{name: value for name, value in change.items() if name in THEIRS}}
    for state in (GONE, RECYCLED, ZOMBIE):
        assert not judge_identity(mine, theirs, state)


@pytest.mark.parametrize("started", [None, "500", True, 500.5])
def test_a_start_time_that_is_none_proves_nothing(started):
    assert not judge_identity(MINE, {**THEIRS, "starttime": started}, RECYCLED)
    assert judge_identity(MINE, {**THEIRS, "starttime": started}, GONE)


def test_namespaces_may_be_numbered_one():
    mine = dataclasses.replace(MINE, pidns=1, timens=1)
    assert judge_identity(mine, {**THEIRS, "pidns": 1, "timens": 1}, GONE)
    assert not judge_identity(mine, {**THEIRS, "pidns": True, "timens": 1}, GONE)


@linux
def test_the_whole_way_on_real_processes():
    mine = my_identity()
    if not mine.proc_honest:
        pytest.skip("this /proc is of another pid namespace")
    code = "from acache._host import my_identity; import json; print('ready', flush=True)"
    code += "; print(json.dumps(my_identity().as_record()), flush=True); input()"
    with python(code) as child:
        theirs = json.loads(child.stdout.readline())
        assert theirs["pid"] == child.pid
        assert not judge_identity(mine, theirs, process_state(child.pid))
        recycled = {**theirs, "starttime": theirs["starttime"] - 1}
        assert judge_identity(mine, recycled, process_state(child.pid))
        child.send_signal(signal.SIGKILL)
        wait_until(lambda: judge_identity(mine, theirs, process_state(child.pid)))
    assert judge_identity(mine, theirs, process_state(child.pid))
    assert not judge_identity(mine, mine.as_record(), process_state(mine.pid))


# --- Mounts ------------------------------------------------------------------------------------------------


def write_mounts(tmp_path, *lines):
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "self" / "mountinfo").write_text("".join(f"{line}\n" for line in lines))
    return proc


ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw"


def test_the_longest_point_counts(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    proc = write_mounts(
        tmp_path,
        f"30 22 0:9 / {inner} rw shared:2 master:1 - nfs4 server:/x rw,vers=4.2",
        ROOT,
        f"31 22 0:8 / {tmp_path / 'a'} rw - xfs /dev/sdb rw",
    )
    assert mount_of(inner, proc=proc).fstype == "nfs4"
    assert mount_of(inner / "not" / "yet", proc=proc).fstype == "nfs4"
    assert mount_of(tmp_path / "a", proc=proc).fstype == "xfs"
    assert mount_of(tmp_path / "ab", proc=proc).fstype == "ext4"  # no prefix of names, of folders only
    assert mount_of(inner, proc=proc) == Mount(
        str(inner), "nfs4", "server:/x", ("rw", "rw", "vers=4.2"), read_only=False
    )


def test_the_last_on_one_point_covers_the_others(tmp_path):
    proc = write_mounts(
        tmp_path,
        ROOT,
        f"30 22 0:9 / {tmp_path} rw - xfs /dev/x rw",
        f"31 30 0:8 / {tmp_path} rw - tmpfs t rw",
    )
    assert mount_of(tmp_path, proc=proc).fstype == "tmpfs"


def test_octal_escapes(tmp_path):
    folder = tmp_path / "with blank\tand\\134"
    folder.mkdir()
    point = str(folder).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
    proc = write_mounts(tmp_path, ROOT, f"30 22 0:9 /sub\\040dir {point} rw - fuse.sshfs host:/my\\040dir rw")
    mount = mount_of(folder / "x", proc=proc)
    assert (mount.point, mount.source, mount.root) == (str(folder), "host:/my dir", "/sub dir")


@pytest.mark.parametrize(
    ("own", "whole", "read_only"), [("rw", "rw", False), ("ro", "rw", True), ("rw", "ro", True)]
)
def test_read_only_by_the_mount_or_the_file_system(tmp_path, own, whole, read_only):
    proc = write_mounts(tmp_path, f"22 1 8:1 / / {own},relatime - ext4 /dev/root {whole},errors=remount-ro")
    assert mount_of(tmp_path, proc=proc).read_only is read_only


def test_links_are_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    proc = write_mounts(tmp_path, ROOT, f"30 22 0:9 / {tmp_path / 'real'} rw - xfs /dev/x rw")
    assert mount_of(tmp_path / "link" / "x", proc=proc).fstype == "xfs"
    assert mount_of(tmp_path / "loop", proc=proc).fstype == "ext4"


def test_lines_that_are_none_are_passed_over(tmp_path):
    proc = write_mounts(tmp_path, "", "nonsense", "1 2 3 - x", "22 1 8:1 / / rw - ext4", ROOT)
    assert mount_of(tmp_path, proc=proc).source == "/dev/root"


def test_without_proc_no_mount_is_known(tmp_path):
    assert mount_of(tmp_path, proc=tmp_path / "none") is None
    assert mount_of(tmp_path, proc=write_mounts(tmp_path)) is None


@linux
def test_real_mounts():
    assert mount_of("/proc/self").fstype == "proc"
    assert mount_of("/").point == "/"


# --- Cores -------------------------------------------------------------------------------------------------


@pytest.fixture
def many_cores(monkeypatch):
    """Let the affinity mask have eight cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def write_groups(tmp_path, group, mount_root="/", *, version, files):
    """Make a cgroup hierarchy; ``files`` maps folders below its mount to (quota, period)."""
    top = tmp_path / "cgroup"
    for folder, (quota, period) in files.items():
        (top / folder).mkdir(parents=True, exist_ok=True)
        if version == 2:
            (top / folder / "cpu.max").write_text(f"{quota} {period}\n")
        else:
            (top / folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
            (top / folder / "cpu.cfs_period_us").write_text(f"{period}\n")
    top.mkdir(exist_ok=True)
    kind, options = ("cgroup2", "rw") if version == 2 else ("cgroup", "rw,cpu,cpuacct")
    proc = write_mounts(
        tmp_path,
        ROOT,
        f"40 22 0:30 / {tmp_path / 'memory'} rw - cgroup memory rw,memory",
        f"41 22 0:31 {mount_root} {top} rw - {kind} {kind} {options}",
    )
    line = f"0::{group}" if version == 2 else f"9:memory:/elsewhere\n4:cpu,cpuacct:{group}\n1:name=systemd:/"
    (proc / "self" / "cgroup").write_text(f"{line}\n")
    return proc


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"a/b": (200000, 100000)}, 2),
        ({"a/b": (150000, 100000)}, 2),  # a part of a core counts
        ({"a/b": (5000, 100000)}, 1),
        ({"a/b": (1600000, 100000)}, 8),  # more than the mask has
        ({"a/b": (400000, 100000), "a": (300000, 100000)}, 3),  # a parent bounds its children
        ({"a/b": (400000, 100000), ".": (250000, 50000)}, 4),
        ({"a/c": (100000, 100000)}, 8),  # somebody else's
        ({"a/b": (0, 100000)}, 8),
        ({"a/b": (100000, 0)}, 8),
    ],
)
@pytest.mark.usefixtures("many_cores")
def test_quotas(tmp_path, version, files, cores):
    proc = write_groups(tmp_path, "/a/b", version=version, files=files)
    assert usable_cores(proc=proc) == cores


@pytest.mark.parametrize(("version", "none"), [(1, -1), (2, "max")])
@pytest.mark.usefixtures("many_cores")
def test_no_quota(tmp_path, version, none):
    proc = write_groups(tmp_path, "/a", version=version, files={"a": (none, 100000)})
    assert usable_cores(proc=proc) == 8


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.usefixtures("many_cores")
def test_a_container_that_sees_a_part_of_the_hierarchy(tmp_path, version):
    files = {".": (400000, 100000), "inner": (300000, 100000)}
    for group, mount_root, cores in (
        ("/docker/abc/inner", "/docker/abc", 3),
        ("/docker/abc", "/docker/abc", 4),
        ("/docker/abcdef", "/docker/abc", 4),  # another's path: the top of the mount is what is known
        ("/../outside", "/", 4),
    ):
        proc = write_groups(tmp_path, group, mount_root, version=version, files=files)
        assert usable_cores(proc=proc) == cores


@pytest.mark.usefixtures("many_cores")
def test_quota_files_that_say_nothing(tmp_path):
    proc = write_groups(tmp_path, "/a", version=2, files={"a": ("", "")})
    assert usable_cores(proc=proc) == 8
    (proc / "self" / "cgroup").write_text("garbage\n")
    assert usable_cores(proc=proc) == 8
    assert usable_cores(proc=tmp_path / "none") == 8


def test_without_an_affinity_mask_all_cores_count(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores(proc=tmp_path) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(proc=tmp_path) == 1


@linux
def test_the_real_mask_is_counted():
    code = """
import os
from acache._host import usable_cores
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(usable_cores())
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, timeout=60)
    assert done.stdout == "1\n", done.stderr
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


# --- The default folder ------------------------------------------------------------------------------------


@pytest.fixture
def homeless(monkeypatch, tmp_path):
    """Take away home, cache folder and the entry in the password file; return the temporary folder."""

    def getpwuid(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME", "ACACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_acache_dir_wins(tmp_path):
    found = default_directory({"ACACHE_DIR": str(tmp_path / "x")})
    assert (found.path, found.why) == (tmp_path / "x", "ACACHE_DIR is set")
    assert not found.path.exists()


def test_acache_dir_may_be_relative_or_name_a_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_directory({"ACACHE_DIR": "x/y"}).path == tmp_path / "x" / "y"
    assert default_directory({"ACACHE_DIR": "~/y"}).path == tmp_path / "home" / "y"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the rules of XDG")
def test_the_user_s_cache_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("ACACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = default_directory()
    assert (found.path, found.why) == (tmp_path / ".cache" / "acache", "the user's cache folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_directory().path == tmp_path / "xdg" / "acache"
    monkeypatch.setenv("ACACHE_DIR", " ")
    assert default_directory().path == tmp_path / "xdg" / "acache"


def test_no_home_and_no_password_entry(homeless):
    found = default_directory()
    assert found.path == homeless / f"acache-{os.getuid()}"
    assert found.why == "the temporary folder, since neither ACACHE_DIR nor a home folder is set"


def test_a_home_that_is_not_known_makes_no_folder_of_that_name(homeless):
    found = default_directory({"ACACHE_DIR": "~/cache"})
    assert found.path == homeless / f"acache-{os.getuid()}"
    assert "ACACHE_DIR=~/cache needs a home folder" in found.why


@pytest.mark.usefixtures("homeless")
def test_no_temporary_folder_either(monkeypatch):
    def gettempdir():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", gettempdir)
    assert default_directory().path == Path(f"/tmp/acache-{os.getuid()}")


@pytest.mark.parametrize("answer", ["~/.cache/acache", "relative/acache", RuntimeError, OSError, KeyError])
def test_whatever_the_platform_says_without_a_home(homeless, monkeypatch, answer):
    def user_cache_dir(name, appauthor):
        if isinstance(answer, str):
            return answer
        raise answer

    monkeypatch.setattr(platformdirs, "user_cache_dir", user_cache_dir)
    assert default_directory().path == homeless / f"acache-{os.getuid()}"


def test_a_relative_cache_home_is_not_followed(homeless, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_directory().path == homeless / f"acache-{os.getuid()}"


@linux
@pytest.mark.root
def test_a_real_uid_without_password_entry(tmp_path):
    # The user is changed inside the child, after the imports: this interpreter may be out of others' reach.
    uid = 3141592
    code = f"""
import os
from acache._host import default_directory, my_identity, process_state, usable_cores
default_directory()
os.setgroups([])
os.setgid({uid})
os.setuid({uid})
assert usable_cores() >= 1
assert my_identity().proc_honest
assert process_state(os.getppid()).exists  # EPERM, not ESRCH
print(default_directory().path)
"""
    env = {name: value for name, value in ENV.items() if name not in ("HOME", "XDG_CACHE_HOME", "ACACHE_DIR")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    folder = Path(done.stdout.strip())
    assert folder.name == f"acache-{uid}", done.stderr
    assert folder.parent == Path(tempfile.gettempdir())
    assert not folder.exists()
    assert not list(tmp_path.iterdir())  # no folder named "~", nor any other


def test_the_platform_s_rules_are_loaded_only_when_asked_for():
    code = """
import sys
from acache._host import default_directory
default_directory({"ACACHE_DIR": "/x"})
print("platformdirs" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
