"""Shards, mounts, recency, backoff, deadlines, usual times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acache._keys import key, name_of
from acache._policy import (
    SHARDS,
    classify_mount,
    deadline_of,
    needs_touch,
    next_delay,
    shard_of,
    stem_of,
    usual_after,
)

JITTER = st.floats(0, 1, exclude_max=True)


def test_a_name_is_its_shard_and_its_stem():
    name = name_of(key(n=1), None)
    assert shard_of(name) + stem_of(name) == name
    assert len(stem_of(name)) == 62
    assert shard_of(name) in SHARDS


def test_there_are_256_shards():
    assert len(set(SHARDS)) == 256
    assert (SHARDS[0], SHARDS[10], SHARDS[255]) == ("00", "0a", "ff")


@pytest.mark.parametrize("name", ["", "ab", "A" * 64, "../" + "a" * 61, "a" * 64 + "\n", "a" * 65, "٠" * 64])
def test_what_is_no_digest_never_becomes_a_path(name):
    with pytest.raises(ValueError, match="64 lowercase hex digits"):
        shard_of(name)
    with pytest.raises(ValueError, match="64 lowercase hex digits"):
        stem_of(name)


@pytest.mark.parametrize(
    ("fstype", "source", "kind"),
    [
        ("ext4", "/dev/vda", "local"),
        ("xfs", "/dev/sda1", "local"),
        ("tmpfs", "tmpfs", "local"),
        ("overlay", "overlay", "local"),
        ("apfs", "/dev/disk1s1", "local"),
        ("fuseblk", "/dev/sdb1", "local"),
        ("fuse.fuse-overlayfs", "fuse-overlayfs", "local"),
        ("nfs", "server:/export", "network"),
        ("nfs4", "server:/export", "network"),
        ("cifs", "//server/share", "network"),
        ("smb3", "//server/share", "network"),
        ("smbfs", "//server/share", "network"),
        ("9p", "drvfs", "network"),
        ("afs", "AFS", "network"),
        ("ceph", "10.0.0.1:/", "network"),
        ("fuse.ceph", "ceph-fuse", "network"),
        ("lustre", "mgs@tcp:/lfs", "network"),
        ("gpfs", "fs1", "network"),
        ("beegfs", "beegfs_nodev", "network"),
        ("fuse.glusterfs", "host:/v", "network"),
        ("fuse.sshfs", "host:/", "network"),
        ("orangefs", "tcp://host", "network"),
        ("ocfs2", "/dev/drbd0", "network"),
        ("gfs2", "/dev/drbd0", "network"),
        ("virtiofs", "share", "network"),
        ("fuse", "somebody", "network"),
        ("fuse.never-heard-of", "x", "network"),
        ("FUSE.SSHFS", "host:/", "network"),
        (None, "", "network"),
        ("fuse.s3fs", "s3fs", "denied"),
        ("fuse.gcsfuse", "bucket", "denied"),
        ("fuse", "mountpoint-s3", "denied"),
        ("fuse.mountpoint-s3", "bucket", "denied"),
        ("fuse.goofys", "bucket", "denied"),
        ("fuse.rclone", "remote:path", "denied"),
        ("fuse.fuse_dfs", "fuse_dfs", "denied"),
        ("fuse", "fuse_dfs", "denied"),
        ("fuse.hdfs", "hdfs://name", "denied"),
        ("hdfs", "hdfs://name", "denied"),
        # The source of a file system that is not FUSE is anybody's to name.
        ("ext4", "rclone", "local"),
        ("fuse.sshfs", "s3fs", "network"),
    ],
)
def test_mounts(fstype, source, kind):
    assert classify_mount(fstype, source) == kind


@pytest.mark.parametrize(
    ("age", "grain", "network", "touch"),
    [
        (59, 60, False, False),
        (60, 60, False, False),
        (61, 60, False, True),
        (3599, 60, True, False),
        (3601, 60, True, True),
        (3601, 7200, True, False),
        (7201, 7200, True, True),
        (0.5, 0, False, True),
        (-30, 60, False, False),  # a little skew between clocks writes nothing
        (-86400, 60, False, True),  # an mtime in the future would keep the entry for ever
    ],
)
def test_recency(age, grain, network, touch):
    assert needs_touch(age, grain, network) is touch


@given(
    waited=st.floats(0, 1e6),
    previous=st.floats(0, 1e3),
    low=st.floats(0.001, 1),
    factor=st.floats(1, 100),
    jitter=JITTER,
)
def test_every_delay_is_within_its_bounds(waited, previous, low, factor, jitter):
    high = low * factor
    delay = next_delay(waited, previous, low, high, jitter)
    assert low <= delay <= high
    # No later than about 3 % of the wait, unless poll_min itself is longer.
    assert delay <= max(1.25 * low, 0.0376 * waited)
    # At most two doublings' worth beyond the delay before.
    assert delay <= max(1.25 * low, 2.5 * previous)


def test_delays_grow_to_poll_max_and_differ_between_waiters():
    for jitter in (0.0, 0.5, 0.999):
        waited, delay, delays = 0.0, 0.0, []
        while waited < 120:
            delay = next_delay(waited, delay, 0.02, 1.0, jitter)
            waited += delay
            delays.append(delay)
        assert delays[0] < 0.03
        assert 0.75 <= delays[-1] <= 1.0
        assert len(delays) < 400
    for waited, previous in ((0.1, 0.02), (10.0, 0.3), (500.0, 1.0)):
        assert next_delay(waited, previous, 0.02, 1.0, 0.1) < next_delay(waited, previous, 0.02, 1.0, 0.9)


@given(max_wait=st.floats(0, 1e6), jitter=JITTER)
def test_jitter_only_shortens_a_deadline(max_wait, jitter):
    assert 0.9 * max_wait <= deadline_of(max_wait, jitter) <= max_wait


def test_the_usual_time_rises_at_once_and_falls_slowly():
    assert usual_after(None, 3.0) == 3.0
    assert usual_after(3.0, 10.0) == 10.0
    usual = 10.0
    for _ in range(3):
        after = usual_after(usual, 1.0)
        assert usual * 0.79 < after < usual
        usual = after
    for _ in range(60):
        usual = usual_after(usual, 1.0)
    assert usual == pytest.approx(1.0, abs=0.01)
