"""The moves of the lease protocol: walk, acquire, release, withdraw, fail, sweep.

Each is a generator of single file operations, so that the simulator can crash between any two. A rule
that a model checker found to be needed is marked with the fault that follows when it is broken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from errno import EACCES, EEXIST, EMLINK, ENOENT, ENOSYS, EOPNOTSUPP, EPERM, EXDEV
from typing import TYPE_CHECKING, Any

from acache._format import RECORD_BYTES, RESIGNED, Record, decode_record, encode_record
from acache._host import judge_identity
from acache._protocol import Chain, Sighting, Slot
from acache._store import (
    GONE,
    Layout,
    Paths,
    Subject,
    again_if_stale,
    file_clock,
    fresh_nonce,
    look,
    mark_cheap,
    publish,
    read_artifact,
    refresh,
    unlink_quietly,
    write_temporary,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from acache._fs import File, Steps
    from acache._models import Buffer

__all__ = [
    "Bequest",
    "Held",
    "Lease",
    "acquire",
    "draw_record",
    "observe",
    "release",
    "settle",
    "sweep",
    "sweep_temporaries",
    "walk",
]

MOST_SLOTS = 64
STALE = 24 * 3600.0
_TEMPORARY = re.compile(r"\.t\.[0-9a-f]{32}")
REFUSED_TO_LOSERS = frozenset({EPERM, EACCES})
"""What some mounts answer instead of EEXIST, sshfs for one: with a slot in place it is somebody else's."""
LINK_REFUSED = frozenset({EPERM, ENOSYS, EOPNOTSUPP, EMLINK, EXDEV})


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot that I hold: behind ``follows`` (None: the root), under a nonce of its own."""

    paths: Paths
    follows: str | None
    nonce: str
    pid: int

    @property
    def slot(self) -> str:
        """The file of my record."""
        return self.paths.slot(self.follows)

    @property
    def successor(self) -> str:
        """The file of whoever takes over from me, or of my own seal."""
        return self.paths.slot(self.nonce)

    @property
    def rival(self) -> bool:
        """Any holder that is not in the root slot."""
        return self.follows is not None


@dataclass(frozen=True, slots=True)
class Held:
    """A lease just taken, and the last look before compiling."""

    lease: Lease
    seen: Sighting


def draw_record(layout: Layout, *, hedge: bool = False, closed: bool = False, **tail: Any) -> Record:
    """Make a record with a fresh nonce: one nonce per process would let a cancelled holder that comes back
    link itself behind its own successor, a cycle for ever.
    """
    identity = layout.identity
    known = {
        "boot_id": identity.boot_id,
        "pidns": identity.pidns,
        "timens": identity.timens,
        "pid": identity.pid,
        "starttime": identity.starttime,
        "host": identity.host,
    }
    return Record(
        nonce=fresh_nonce(),
        ttl_ms=round(layout.ttl * 1000),
        interval_ms=round(layout.interval * 1000),
        hedge=hedge,
        closed=closed,
        tail={**known, **tail},
    )


# --- seeing --------------------------------------------------------------------------------------


def read_slot(paths: Paths, follows: str | None) -> Steps[Record | None]:
    """Read one slot, after ESTALE once more through a new open; None where there is none."""
    path = paths.slot(follows)
    try:
        file: File = yield from again_if_stale("head", path, RECORD_BYTES + 1)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    return decode_record(bytes(file.data), path.rpartition("/")[2])


def walk(layout: Layout, paths: Paths) -> Steps[Chain]:
    """Follow the chain from the root; its last record is the present holder's."""
    slots: list[Slot] = []
    met: set[str] = set()
    follows: str | None = None
    try:
        if layout.network:
            yield from refresh(paths.folder)
        while True:
            record = yield from read_slot(paths, follows)
            if record is None:
                return Chain(tuple(slots))
            if record.nonce in met or len(slots) == MOST_SLOTS:
                return Chain(tuple(slots), broken="the chain of leases does not end")
            slots.append(Slot(follows, record))
            met.add(record.nonce)
            follows = record.nonce
    except OSError as error:
        return Chain(tuple(slots), broken=f"a lease cannot be read: {error.strerror}")


def observe(
    layout: Layout,
    subject: Subject,
    *,
    first: bool = False,
    whole: bool = False,
    rejected: Collection[str] = (),
) -> Steps[Sighting]:
    """Look for a result, and without one walk the leases and judge the tail by identity."""
    seen = yield from look(layout, subject, first=first, whole=whole, rejected=rejected)
    art = seen.artifact
    if art.what == "foreign" or (art.what == "artifact" and art.identity not in rejected and not whole):
        return seen
    chain = yield from walk(layout, subject.paths)
    if chain.tail is not None and chain.broken is None:
        dead = yield from is_dead(layout, chain.tail.record)
        chain = replace(chain, tail_is_dead=dead)
    return replace(seen, chain=chain)


def is_dead(layout: Layout, record: Record) -> Steps[bool]:
    """Whether identity proves a holder dead, on this host and in this container; it never proves life."""
    pid = record.tail.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return False
    if record.tail.get("boot_id") != layout.identity.boot_id:
        return False
    state = yield ("process", pid)
    return judge_identity(layout.identity, record.tail, state)


# --- taking --------------------------------------------------------------------------------------


def claim(layout: Layout, paths: Paths, follows: str | None, record: Record) -> Steps[bool]:
    """Try to put my record into a slot; whatever link answers, reading the slot decides.

    A lost NFS reply reports EEXIST to the winner; sshfs answers EPERM to losers.

    :raises OSError: the slot is nobody's and cannot be made.
    """
    data = encode_record(record)
    if layout.linkless:
        return (yield from claim_exclusively(layout, paths, follows, data))
    temporary = yield from write_temporary(layout, paths, (data,))
    refused: OSError | None = None
    try:
        yield ("link", temporary, paths.slot(follows))
    except OSError as error:
        refused = error
    yield from unlink_quietly(temporary)
    try:
        there = yield from read_slot(paths, follows)
    except OSError:
        if refused is None:
            return True  # link said yes, and nobody says otherwise: a lease that nobody owns would be worse
        raise
    if there is not None:
        return there.nonce == record.nonce
    if refused is not None and refused.errno in LINK_REFUSED:
        return (yield from claim_exclusively(layout, paths, follows, data))
    if refused is not None and refused.errno not in (EEXIST, *GONE):
        raise refused
    return False


def claim_exclusively(layout: Layout, paths: Paths, follows: str | None, data: bytes) -> Steps[bool]:
    """Make a slot without link; whoever made one and cannot write it unlinks it at once."""
    path = paths.slot(follows)
    try:
        yield ("create", path, (data,), False)
    except OSError as error:
        if error.errno == ENOENT:
            yield ("mkdir", paths.folder)
            return False  # the folder is there now: the next look acquires
        there = yield from read_slot(paths, follows)
        if there is not None and not there.torn:
            return there.nonce == record_nonce(data)
        if error.errno == EEXIST or (there is not None and error.errno in REFUSED_TO_LOSERS):
            return False
        if there is not None:
            yield from unlink_quietly(path)  # an exclusive create that failed otherwise was mine
        raise
    there = yield from read_slot(paths, follows)
    return there is not None and there.nonce == record_nonce(data)


def record_nonce(data: bytes) -> str:
    """Return the nonce of a record that I encoded myself."""
    return decode_record(data, "").nonce


def acquire(
    layout: Layout,
    subject: Subject,
    follows: str | None,
    record: Record,
    *,
    whole: bool = False,
    rejected: Collection[str] = (),
) -> Steps[Held | None]:
    """Take a slot, check that the root still leads to the predecessor, and look once more.

    None: somebody else has it, or the chain went away under us (then withdrawn, seal included, for
    nobody may follow me unseen).

    :raises OSError: the directory does not let anybody coordinate.
    """
    if not (yield from claim(layout, subject.paths, follows, record)):
        return None
    lease = Lease(subject.paths, follows, record.nonce, layout.identity.pid)
    if follows is not None and not (yield from leads_to(layout, subject.paths, follows)):
        yield from release(layout, subject, lease, withdraw=True)
        return None
    try:
        seen = yield from look(layout, subject, whole=whole, rejected=rejected)
    except OSError:
        yield from release(layout, subject, lease, withdraw=True)
        raise
    return Held(lease, seen)


def leads_to(layout: Layout, paths: Paths, nonce: str) -> Steps[bool]:
    """Whether the root's chain meets that holder."""
    chain = yield from walk(layout, paths)
    return any(slot.record.nonce == nonce for slot in chain.slots)


# --- giving back ---------------------------------------------------------------------------------


def release(
    layout: Layout,
    subject: Subject,
    lease: Lease,
    *,
    withdraw: bool = False,
    failure: Sequence[Buffer] | None = None,
) -> Steps[bool]:
    """Give a lease back: seal first, then unlink what is mine; False when I was superseded.

    The seal decides: once my successor slot holds it, nobody can take over from me unseen; if it holds
    somebody else, I am superseded and delete nothing. Without seal and walk a late release deletes the
    live root of a stranger.

    :param withdraw: I leave without a result. A rival then unlinks only its own slot: a root-first
        release would evict the healthy original.
    :param failure: the chunks of ``K.err``, written only while the root leads to me.
    """
    try:
        if not (yield from seal(layout, lease)):
            return False
    except OSError:
        yield from resign(lease)
        return False
    if not (withdraw and lease.rival):
        chain = yield from walk(layout, lease.paths)
        nonces = [slot.record.nonce for slot in chain.slots]
        if lease.nonce in nonces:
            if failure is not None:
                yield from record_failure(layout, subject, failure)
            for slot in chain.slots[: nonces.index(lease.nonce) + 1]:
                yield from unlink_quietly(lease.paths.slot(slot.follows))
        else:
            yield from unlink_own(lease)
    else:
        yield from unlink_own(lease)
    yield from unlink_quietly(lease.successor)
    return True


def seal(layout: Layout, lease: Lease) -> Steps[bool]:
    """Close my successor slot; False: somebody else holds it.

    :raises OSError: it cannot be written.
    """
    return (yield from claim(layout, lease.paths, lease.nonce, draw_record(layout, closed=True)))


def resign(lease: Lease) -> Steps[None]:
    """Say in place that I have left, where no seal can be written: a full disk still takes that.

    Otherwise my record would look alive until its silence is long enough, and every newcomer would wait.
    Whoever comes takes over from me as from the dead; I touch nothing after this.
    """
    try:
        fd: int = yield ("open_rw", lease.slot)
    except OSError:
        return
    try:
        data: bytes = yield ("pread", fd, RECORD_BYTES, 0)
        if decode_record(data, "").nonce == lease.nonce:
            yield ("pwrite", fd, b"%020d" % RESIGNED, 0)
    except OSError:
        pass  # then silence has to say it
    try:
        yield ("close", fd)
    except OSError:
        pass


def unlink_own(lease: Lease) -> Steps[None]:
    """Unlink my slot only if it still holds my nonce: it may be the root of a stranger by now."""
    try:
        there = yield from read_slot(lease.paths, lease.follows)
    except OSError:
        return
    if there is not None and there.nonce == lease.nonce:
        yield from unlink_quietly(lease.slot)


def record_failure(layout: Layout, subject: Subject, chunks: Sequence[Buffer]) -> Steps[None]:
    """Write ``K.err``, and take it back if an artifact is there: an artifact beats a failure."""
    try:
        yield from publish(layout, subject.paths, subject.paths.err, chunks)
        seen = yield from read_artifact(layout, subject)
    except OSError:
        return  # a failure that nobody can remember is compiled again: no worse than no cache
    if seen.what == "artifact":
        yield from unlink_quietly(subject.paths.err)


@dataclass(frozen=True, slots=True)
class Bequest:
    """What a compile leaves behind, ready to be written: chunks of files, None for what is not left.

    ``unkept`` is the mark for an artifact that could not be published: whoever waits for it then compiles at
    once and in parallel, instead of one after the other.
    """

    artifact: Sequence[Buffer] | None = None
    unkept: Sequence[Buffer] | None = None
    cheap: Sequence[Buffer] | None = None
    failure: Sequence[Buffer] | None = None
    withdraw: bool = False

    @property
    def writes(self) -> bool:
        """Whether a file is written that stays."""
        return not (self.artifact is self.unkept is self.cheap is self.failure is None)


def settle(layout: Layout, subject: Subject, lease: Lease | None, bequest: Bequest) -> Steps[OSError | None]:
    """Publish before release, in one move; returns the fault that prevented a publication."""
    fault: OSError | None = None
    try:
        if (yield from read_artifact(layout, subject)).what == "foreign":
            bequest = Bequest(withdraw=True)  # a later format's entry appeared: it is never overwritten
        if bequest.artifact is not None:
            yield from publish(layout, subject.paths, subject.paths.art, bequest.artifact)
        elif bequest.cheap is not None:
            yield from mark_cheap(layout, subject, bequest.cheap)
    except OSError as error:
        fault = error
    if bequest.unkept is not None and (fault is not None or bequest.artifact is None):
        try:
            yield from mark_cheap(layout, subject, bequest.unkept)
        except OSError:
            pass  # not even room for a mark: then there is none for leases either
    if lease is not None:
        yield from release(layout, subject, lease, withdraw=bequest.withdraw, failure=bequest.failure)
    return fault


# --- housekeeping --------------------------------------------------------------------------------


def sweep(layout: Layout, folder: str) -> Steps[int]:
    """Remove from one shard what nobody wrote for 24 h by the file system's own clock; returns how many.

    Temporaries, failures and unreachable slots are unlinked. A chain is removed by taking over its dead
    tail and releasing that: judging and then unlinking would be the stranger's-root fault again.
    """
    try:
        names: list[str] = yield ("listdir", folder)
        now = yield from file_clock(Paths(folder, ""))
    except OSError:
        return 0
    if now is None:
        return 0
    swept = 0
    stems = {name.partition(".lease")[0] for name in names if ".lease" in name}
    for stem in sorted(stems):
        swept += yield from sweep_chain(layout, Paths(folder, stem), names, now)
    for name in names:
        if name.startswith(".t.") or name.endswith(".err"):
            swept += yield from unlink_if_stale(f"{folder}/{name}", now)
    return swept


def sweep_temporaries(folder: str) -> Steps[int]:
    """Remove temporaries that nobody wrote for 24 h from a folder that is no shard; returns how many.

    Nothing else is touched: the root is a folder of the user's own.
    """
    try:
        names: list[str] = yield ("listdir", folder)
    except OSError:
        return 0
    left = [name for name in names if _TEMPORARY.fullmatch(name)]
    now = (yield from file_clock(Paths(folder, ""))) if left else None
    swept = 0
    if now is not None:
        for name in left:
            swept += yield from unlink_if_stale(f"{folder}/{name}", now)
    return swept


def sweep_chain(layout: Layout, paths: Paths, names: list[str], now: float) -> Steps[int]:
    """Release a chain whose tail is stale, and unlink its stale slots that no root leads to."""
    chain = yield from walk(layout, paths)
    if chain.broken is not None:
        return 0
    reachable = {paths.slot(slot.follows) for slot in chain.slots}
    swept = 0
    for name in names:
        path = f"{paths.folder}/{name}"
        if name.startswith(f"{paths.stem}.lease.") and path not in reachable:
            swept += yield from unlink_if_stale(path, now)
    tail = chain.tail
    if tail is not None and (yield from is_stale(paths.slot(tail.follows), now)):
        record = draw_record(layout)
        try:
            if (yield from claim(layout, paths, tail.record.nonce, record)):
                lease = Lease(paths, tail.record.nonce, record.nonce, layout.identity.pid)
                subject = Subject(paths, "", None)
                if (yield from leads_to(layout, paths, tail.record.nonce)):
                    yield from release(layout, subject, lease)
                    swept += len(chain.slots)
                else:
                    yield from release(layout, subject, lease, withdraw=True)
        except OSError:
            return swept
    return swept


def is_stale(path: str, now: float) -> Steps[bool]:
    """Whether a file was last written more than 24 h before ``now``, its file system's time."""
    try:
        file: File = yield ("head", path, 0)
    except OSError:
        return False
    return now - file.mtime > STALE


def unlink_if_stale(path: str, now: float) -> Steps[bool]:
    """Unlink a file that nobody wrote for 24 h."""
    if not (yield from is_stale(path, now)):
        return False
    return (yield from unlink_quietly(path))
