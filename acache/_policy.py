"""Policy: small decisions without I/O: shards, kinds of mounts, recency, backoff, deadlines, usual times."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

__all__ = [
    "NETWORK_GRAIN",
    "SHARDS",
    "MountKind",
    "classify_mount",
    "deadline_of",
    "is_name",
    "needs_touch",
    "next_delay",
    "shard_of",
    "stem_of",
    "usual_after",
]

# --- Names -----------------------------------------------------------------------------------------------

SHARDS: tuple[str, ...] = tuple(f"{number:02x}" for number in range(256))
"""All folders that entries live in: one flat folder meets the limits of directory indexes, 256 do not."""

_NAME = re.compile("[0-9a-f]{64}")


def shard_of(name: str) -> str:
    """Return the folder of an entry: the first two of its 64 digits.

    :raises ValueError: not the digest that names an entry.
    """
    _check_name(name)
    return name[:2]


def stem_of(name: str) -> str:
    """Return the 62 digits that an entry's files begin with, in its shard.

    :raises ValueError: not the digest that names an entry.
    """
    _check_name(name)
    return name[2:]


def is_name(text: str) -> bool:
    """Whether that is the digest that names an entry."""
    return _NAME.fullmatch(text) is not None


def _check_name(name: str) -> None:
    # Names become paths, so nothing but digits may pass.
    if not is_name(name):
        raise ValueError(f"an entry is named by 64 lowercase hex digits, not {name!r}")


# --- Mounts ----------------------------------------------------------------------------------------------

MountKind: TypeAlias = Literal["local", "network", "denied"]
"""How a folder's file system is used: as it is; with a fresh look at the folder first, coarser recency and
grace looks; or without any leases."""

# File systems over object stores and HDFS: a rename is a copy, there are no hard links, an exclusive create
# is decided by one client alone, or files are only written from front to back. A probe by one client cannot
# see that. FUSE file systems are listed as "fuse.<subtype>" (mount.fuse(8)); those without a subtype are
# known by their source: mountpoint-s3 mounts as "fuse" from "mountpoint-s3" (its cli.rs), HDFS's helper as
# "fuse.fuse_dfs", or as "fuse" from "fuse_dfs".
_DENIED = frozenset(
    {
        "s3fs",
        "gcsfuse",
        "mountpoint-s3",
        "goofys",
        "rclone",
        "hdfs",
        "fuse_dfs",
    }
)

# File systems that other hosts, or the host of this guest, may change behind the kernel's back. The names are
# those of /proc/filesystems: for the kernel's own, Documentation/filesystems in its source (9p, afs, ceph,
# cifs, coda, gfs2, nfs, ocfs2, orangefs, virtiofs); for others, their mount helpers' manuals: lustre, gpfs
# (Storage Scale, also mmfs), beegfs, wekafs, panfs, and the shared folders of hypervisors (vboxsf, vmhgfs,
# prl_fs, drvfs). macOS and the BSDs say smbfs, afpfs, webdav.
_NETWORK = frozenset(
    {
        "9p",
        "afpfs",
        "afs",
        "auristorfs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "drvfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "mmfs",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "prl_fs",
        "pvfs2",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
        "webdav",
        "wekafs",
    }
)

# FUSE, but with one kernel as the only writer: a block device (ntfs-3g), and the union mount of rootless
# containers.
_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs"})


def classify_mount(fstype: str | None, source: str = "") -> MountKind:
    """Say how a file system is to be used.

    A FUSE file system that is not known counts as a network one, and so does a folder whose type cannot be
    told (no ``/proc``): a needless fresh look costs microseconds, a missing one up to a minute.

    :param fstype: the type as in ``/proc/self/mountinfo``; None: unknown.
    :param source: what is mounted, as in the same line; tells FUSE file systems without a subtype apart.
    """
    if fstype is None:
        return "network"
    fstype = fstype.lower()
    base, _, subtype = fstype.partition(".")
    fuse = base in ("fuse", "fuse3", "macfuse", "osxfuse")
    if (fuse and (subtype or source.lower()) in _DENIED) or fstype in _DENIED:
        return "denied"
    if fstype in _LOCAL_FUSE:
        return "local"
    return "network" if fuse or base in _NETWORK else "local"


# --- Recency ---------------------------------------------------------------------------------------------

NETWORK_GRAIN = 3600.0
"""Seconds: on network mounts a hit writes at most once an hour, as Go's build cache does on all of them."""


def needs_touch(age: float, grain: float, network: bool) -> bool:
    """Say whether a hit should refresh an entry's mtime.

    :param age: seconds since that mtime. One far in the future (a clock was wrong) is refreshed as well, or
        the entry would count as just used until then.
    :param grain: ``recency_grain``, in seconds.
    :param network: on network mounts the grain is at least `NETWORK_GRAIN`.
    """
    return abs(age) > (max(grain, NETWORK_GRAIN) if network else grain)


# --- Waiting ---------------------------------------------------------------------------------------------

_SHARE_OF_WAIT = 0.03
"""Looks cost at most about this share of the time waited in added latency (LEASE_PROTOCOL, Waiting)."""
_SPREAD = 0.25
_DEADLINE_JITTER = 0.1


def next_delay(waited: float, previous: float, poll_min: float, poll_max: float, jitter: float) -> float:
    """Return the seconds until the next look.

    Doubles from ``poll_min``; bounded by ``poll_max`` and by about 3 % of the time waited, but never below
    ``poll_min``; then spread by a quarter up and down within ``poll_min`` and ``poll_max``, so that many
    waiters do not look in step.

    :param waited: seconds since the wait began.
    :param previous: the delay before this look; 0 at the first.
    :param jitter: a random number in [0, 1).
    """
    delay = max(poll_min, min(2 * previous, poll_max, _SHARE_OF_WAIT * waited))
    low = max(poll_min, delay * (1 - _SPREAD))
    high = min(poll_max, delay * (1 + _SPREAD))
    return low + (high - low) * jitter


def deadline_of(max_wait: float, jitter: float) -> float:
    """Return how long this wait lasts at most: ``max_wait`` less up to 10 %.

    N waiters that began together do not all start to compile at one moment, and "longest wait" stays true.

    :param jitter: a random number in [0, 1).
    """
    return max_wait * (1 - _DEADLINE_JITTER * jitter)


# --- Usual times -----------------------------------------------------------------------------------------

_FADE = 0.8


def usual_after(previous: float | None, seconds: float) -> float:
    """Return what a label usually takes, after one more compile; seconds.

    Rises at once and falls slowly: too low an estimate starts rivals beside healthy compiles, too high a one
    only lets a hung holder live a little longer.
    """
    return seconds if previous is None else max(seconds, _FADE * previous + (1 - _FADE) * seconds)
