"""What is done to the cache directory, as moves that yield one file operation at a time.

Here: looking at entries, publishing, deleting, listing. The moves of the lease protocol are in `_moves`, the
trial of what a directory can do in `_probe`. Nothing here knows a clock, a loop or a thread.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from errno import EEXIST, EFBIG, EINVAL, EISDIR, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY, ESTALE
from typing import TYPE_CHECKING

from acache import _policy
from acache._format import Entry, FormatError, Kind, UnknownVersionError, decode_entry, header_span
from acache._host import my_owners
from acache._protocol import ABSENT, SeenArtifact, SeenFailure, Sighting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from acache._fs import File, Steps
    from acache._host import Identity, Mount
    from acache._models import Buffer
    from acache._protocol import Seen
    from acache._settings import Settings

__all__ = [
    "Layout",
    "Paths",
    "Subject",
    "Trust",
    "clear_shard",
    "delete",
    "discard",
    "fresh_nonce",
    "kind_of",
    "list_shard",
    "list_shards",
    "look",
    "loose_folders",
    "mark_cheap",
    "paths_in",
    "publish",
    "read_artifact",
    "read_header",
    "read_usual",
    "remove_if",
    "replace_entry",
    "touch",
    "touch_many",
    "unlink_quietly",
    "write_usual",
]

ENTRY_LIMIT = 4 << 30
FAILURE_LIMIT = 1 << 20
HEAD = 16 << 10
FORMAT = "v1"
GONE = frozenset({ENOENT, ESTALE, ENOTDIR})
ODD = frozenset({ELOOP, EFBIG, EINVAL, EISDIR})
"""What a planted link, folder, pipe or monster answers: a bad entry, not a broken disk."""
FOLDER = frozenset({EISDIR, ENOTEMPTY, EEXIST})
"""What a rename over a folder answers. Such a folder is moved aside, never emptied: nobody here made it."""


def fresh_nonce() -> str:
    """Draw 128 random bits as 32 hex digits: anew for every temporary, publication and link attempt."""
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose files are believed, by their owner: ``user`` (me or root), ``group`` (also my groups), ``any``.

    ``me`` grows by the owner that the directory gives to files I make (a squashed mount).
    """

    mode: str
    me: frozenset[int]
    groups: frozenset[int] = frozenset()

    def believes(self, file: File) -> bool:
        """Whether an entry of that file's owner may be used."""
        return self.covers(file.uid, file.gid)

    def covers(self, uid: int, gid: int) -> bool:
        """Whether files of that user and group id are believed."""
        if self.mode == "any" or uid in self.me or uid == 0:
            return True
        return self.mode == "group" and gid in self.groups


@dataclass(frozen=True, slots=True)
class Paths:
    """Where one key lives: all its files share one folder, so that making one refreshes the view of all."""

    folder: str
    stem: str

    @property
    def name(self) -> str:
        """The 64 hex digits that name an entry, in any root."""
        return self.folder[-2:] + self.stem

    @property
    def art(self) -> str:
        """The entry."""
        return f"{self.folder}/{self.stem}.art"

    @property
    def err(self) -> str:
        """The remembered failure."""
        return f"{self.folder}/{self.stem}.err"

    def slot(self, follows: str | None) -> str:
        """Return the root slot (None), or the only successor slot of the holder with that nonce."""
        return f"{self.folder}/{self.stem}.lease" + (f".{follows}" if follows else "")

    def temporary(self) -> str:
        """Return a name that nobody ever used."""
        return f"{self.folder}/.t.{fresh_nonce()}"


def paths_in(root: str, name: str) -> Paths:
    """Return where the key with that file name (64 hex digits) lives under a root."""
    return Paths(f"{root}/{FORMAT}/{_policy.shard_of(name)}", _policy.stem_of(name))


@dataclass(frozen=True, slots=True)
class Subject:
    """One key in one directory: where it lives, and what its entries must describe."""

    paths: Paths
    key: str
    namespace: str | None


def loose_folders(layout: Layout) -> tuple[str, ...]:
    """Return the folders beside the shards in which files are written, and so may be left half-written."""
    return layout.root, layout.base, f"{layout.base}/usual", f"{layout.base}/stats"


def kind_of(mount: Mount | None) -> _policy.MountKind:
    """Say how a mount is to be used."""
    return _policy.classify_mount(mount.fstype, mount.source) if mount else "network"


@dataclass(frozen=True, slots=True)
class Layout:
    """The directory as one program sees it: where files go, how they are made, who is believed.

    ``network``: folders are opened first, so that a client's stale view is refreshed. ``linkless``: slots
    are made by exclusive create. ``ttl`` and ``interval`` (seconds) go into lease records.
    """

    root: str
    trust: Trust
    identity: Identity
    network: bool = False
    linkless: bool = False
    durable: bool = False
    ttl: float = 15.0
    interval: float = 2.0

    @classmethod
    def on(cls, root: str, settings: Settings, mount: Mount | None, identity: Identity) -> Layout:
        """Lay a directory out as settings and mount want it; an unknown mount counts as a network's."""
        users, groups = my_owners()
        return cls(
            root=root,
            trust=Trust(settings.trust, users, groups),
            identity=identity,
            network=kind_of(mount) != "local",
            durable=settings.durable,
            ttl=settings.lease_ttl,
            interval=settings.heartbeat_interval,
        )

    @property
    def base(self) -> str:
        """The folder of this format version."""
        return f"{self.root}/{FORMAT}"

    def paths(self, name: str) -> Paths:
        """Return where the key with that file name (64 hex digits) lives."""
        return paths_in(self.root, name)


# --- looking -------------------------------------------------------------------------------------


def again_if_stale(operation: str, path: str, *more: object) -> Steps[File]:
    """Read; after ESTALE once more, through a new open."""
    try:
        file: File = yield (operation, path, *more)
    except OSError as error:
        if error.errno != ESTALE:
            raise
        file = yield (operation, path, *more)
    return file


def read_artifact(layout: Layout, subject: Subject) -> Steps[SeenArtifact]:
    """Open ``K.art`` and say what it is; only faults of the disk itself are raised."""
    return (yield from read_artifact_at(layout, subject, subject.paths.art))


def read_artifact_at(layout: Layout, subject: Subject, path: str) -> Steps[SeenArtifact]:
    """Open a file that may be the key's entry, wherever it lies."""
    try:
        file = yield from again_if_stale("read", path, ENTRY_LIMIT, layout.trust.covers)
    except OSError as error:
        if error.errno in GONE:
            return ABSENT
        if error.errno in ODD:
            return SeenArtifact("bad")
        raise
    if not layout.trust.believes(file):
        return SeenArtifact("untrusted", owner=file.uid)
    try:
        entry = decode_entry(file.data, key=subject.key, namespace=subject.namespace)
    except UnknownVersionError:
        return SeenArtifact("foreign", owner=file.uid)
    except FormatError:
        return SeenArtifact("bad", owner=file.uid)
    if entry.kind is Kind.FAILURE:
        return SeenArtifact("bad", owner=file.uid)
    what: Seen = "artifact" if entry.kind is Kind.ARTIFACT else "cheap"
    return SeenArtifact(what, entry.identity, entry.seconds, entry, file.uid, file.mtime)


def read_failure(layout: Layout, subject: Subject, *, with_age: bool) -> Steps[SeenFailure | None]:
    """Read ``K.err``; ``with_age`` also measures its age by the file system's own clock."""
    try:
        file = yield from again_if_stale("read", subject.paths.err, FAILURE_LIMIT, layout.trust.covers)
        if not layout.trust.believes(file):
            return None
        entry = decode_entry(file.data, key=subject.key, namespace=subject.namespace)
    except OSError as error:
        if error.errno in GONE or error.errno in ODD:
            return None
        raise
    except FormatError:
        return None
    if entry.kind is not Kind.FAILURE:
        return None
    failure, age = entry.failure, None
    if with_age and failure.deterministic:
        now = yield from file_clock(subject.paths)
        age = None if now is None else now - file.mtime
    return SeenFailure(entry.identity, entry.holder, failure.deterministic, age, entry)


def file_clock(paths: Paths) -> Steps[float | None]:
    """Ask the file system for its time: the mtime of a temporary, made, closed and opened again."""
    temporary, mtime = paths.temporary(), None
    try:
        yield ("create", temporary, (b"?",), False)
        file: File = yield ("head", temporary, 0)
        mtime = file.mtime
    except OSError:
        pass  # no temporary possible: no age, so nothing remembered is honoured by it
    yield from unlink_quietly(temporary)
    return mtime


def look(
    layout: Layout,
    subject: Subject,
    *,
    first: bool = False,
    whole: bool = False,
    rejected: Collection[str] = (),
) -> Steps[Sighting]:
    """Look for a result: one open for a hit, the full look for a miss.

    The order is a rule: the failure is read before the artifact's second look, so that an artifact that
    follows a failure wins. ``whole`` looks at everything even when there is an artifact.
    """
    art = yield from read_artifact(layout, subject)
    if art.what == "foreign" or (art.what == "artifact" and not whole and art.identity not in rejected):
        return Sighting(art)
    if layout.network:
        yield from refresh(subject.paths.folder)
    failure = yield from read_failure(layout, subject, with_age=first)
    art = yield from read_artifact(layout, subject)
    return Sighting(art, failure)


def refresh(folder: str) -> Steps[None]:
    """Open and close a folder, so that what a network client remembers of it is asked again."""
    try:
        yield ("refresh", folder)
    except OSError as error:
        if error.errno not in GONE:
            raise


def unlink_quietly(path: str) -> Steps[bool]:
    """Remove a name; False when something other than its absence prevented it: clean-up never fails work."""
    try:
        yield ("unlink", path)
    except OSError as error:
        return error.errno in GONE
    return True


# --- publishing ----------------------------------------------------------------------------------


def write_temporary(
    layout: Layout, paths: Paths, chunks: Sequence[Buffer], *, durable: bool = False
) -> Steps[str]:
    """Write a whole temporary beside its target, making the folder if need be, and return its path."""
    temporary = paths.temporary()
    try:
        yield ("create", temporary, chunks, durable)
        return temporary
    except OSError as error:
        if error.errno != ENOENT:
            yield from unlink_quietly(temporary)
            raise
    yield ("mkdir", paths.folder)
    temporary = paths.temporary()
    try:
        yield ("create", temporary, chunks, durable)
    except OSError:
        yield from unlink_quietly(temporary)
        raise
    return temporary


def publish(layout: Layout, paths: Paths, target: str, chunks: Sequence[Buffer]) -> Steps[None]:
    """Put a whole file in place: written beside, renamed over whatever stands there.

    :raises OSError: nothing was changed, and no temporary is left (unless the disk refuses that too).
    """
    temporary = yield from write_temporary(layout, paths, chunks, durable=layout.durable)
    try:
        try:
            yield ("rename", temporary, target)
        except OSError as error:
            if error.errno not in FOLDER:
                raise
            yield ("rename", target, paths.temporary())
            yield ("rename", temporary, target)
    except OSError:
        yield from unlink_quietly(temporary)
        raise
    if layout.durable:
        yield ("sync_folder", paths.folder)


def mark_cheap(layout: Layout, subject: Subject, chunks: Sequence[Buffer]) -> Steps[None]:
    """Leave a cheap mark: linked, never renamed, for it must not replace an artifact."""
    yield from make_way(layout, subject)
    temporary = yield from write_temporary(layout, subject.paths, chunks)
    refused: OSError | None = None
    try:
        if layout.linkless:
            yield ("create", subject.paths.art, chunks, False)
        else:
            yield ("link", temporary, subject.paths.art)
    except OSError as error:
        refused = error
    yield from unlink_quietly(temporary)
    if refused is not None and refused.errno != EEXIST:
        raise refused


def make_way(layout: Layout, subject: Subject) -> Steps[None]:
    """Unlink an entry that reads as bad, or no mark could ever be linked in its place, and every caller would
    take the lease and compile, one after the other.
    """
    present = yield from read_artifact(layout, subject)
    passing = present.what == "cheap" and present.seconds < 0  # a mark of what could not be kept is renewed
    if not (passing or present.what in ("bad", "untrusted")):
        return
    if not (yield from unlink_quietly(subject.paths.art)):
        try:
            yield ("rename", subject.paths.art, subject.paths.temporary())  # a folder
        except OSError:
            pass  # the link will say what is wrong


def replace_entry(layout: Layout, subject: Subject, chunks: Sequence[Buffer]) -> Steps[bool]:
    """Publish over what is there and clear a remembered failure; False: a later format stands there."""
    if (yield from read_artifact(layout, subject)).what == "foreign":
        return False
    yield from publish(layout, subject.paths, subject.paths.art, chunks)
    yield from unlink_quietly(subject.paths.err)
    return True


def delete(layout: Layout, subject: Subject) -> Steps[bool]:
    """Remove a key's entry and remembered failure; True when there was an artifact."""
    seen = yield from read_artifact(layout, subject)
    if seen.what == "foreign":
        return False
    yield from remove(subject.paths.err)
    if seen.what != "absent":
        yield from remove(subject.paths.art)
    return seen.what == "artifact"


def discard(layout: Layout, subject: Subject, identity: str) -> Steps[bool]:
    """Remove exactly the artifact of that identity; False: another stands there, or none.

    :raises OSError: it cannot be read, or is still there.
    """

    def is_it(path: str) -> Steps[bool]:
        seen = yield from read_artifact_at(layout, subject, path)
        return seen.what == "artifact" and seen.identity == identity

    return (yield from remove_if(layout, subject.paths, subject.paths.art, is_it))


def remove_if(layout: Layout, paths: Paths, path: str, is_it: Callable[[str], Steps[bool]]) -> Steps[bool]:
    """Remove a file if it is the one that is meant; False: it is another, or not there.

    Between a look and an unlink another may be renamed in. So the file is moved aside first, and looked at
    there; one that is not meant is linked back, unless there is a newer one by then. Who looks in between
    finds a miss.

    :raises OSError: it cannot be read, or is still there.
    """
    if not (yield from is_it(path)):
        return False
    aside = paths.temporary()
    try:
        yield ("rename", path, aside)
    except OSError as error:
        if error.errno in GONE:
            return False
        raise
    meant = False
    try:
        meant = yield from is_it(aside)
        if not meant:
            yield from put_back(layout, aside, path)
    except OSError:
        pass  # an artifact that is lost here is compiled again
    yield from unlink_quietly(aside)
    return meant


def put_back(layout: Layout, aside: str, path: str) -> Steps[None]:
    """Give a file that was moved aside its name again, unless somebody else has it.

    :raises OSError: somebody has it, or it cannot be done.
    """
    if not layout.linkless:
        try:
            yield ("link", aside, path)
        except OSError as error:
            if error.errno == EEXIST:
                raise
        else:
            return
    if not (yield ("exists", path)):
        yield ("rename", aside, path)


def remove(path: str) -> Steps[None]:
    """Remove a name, absent or not.

    :raises OSError: it is still there.
    """
    try:
        yield ("unlink", path)
    except OSError as error:
        if error.errno not in GONE:
            raise


def touch(path: str) -> Steps[None]:
    """Refresh an entry's recency; an entry that I may not touch is not worth a word."""
    try:
        yield ("touch", path)
    except OSError:
        return


def touch_many(paths: Sequence[str]) -> Steps[None]:
    """Refresh the recency of several entries."""
    for path in paths:
        yield from touch(path)


# --- listing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of a shard, decoded as far as its header."""

    path: str
    entry: Entry
    used: float


def list_shards(layout: Layout) -> Steps[list[str]]:
    """Return the shards that exist, in order."""
    try:
        names: list[str] = yield ("listdir", layout.base)
    except OSError as error:
        if error.errno in GONE:
            return []
        raise
    return sorted(set(names).intersection(_policy.SHARDS))


def read_header(path: str) -> Steps[tuple[File, Entry]]:
    """Read a file as far as its header, whoever owns it; FormatError: it is no entry of this version."""
    file: File = yield ("head", path, HEAD)
    span = header_span(bytes(file.data[:64]))
    if span > len(file.data):
        file = yield ("head", path, span)
    return file, decode_entry(file.data, key=None, namespace=None, parts=False)


def list_shard(layout: Layout, shard: str, suffixes: tuple[str, ...] = (".art",)) -> Steps[list[Listed]]:
    """Read the headers in one shard; what vanishes meanwhile, is bad or not believed is left out."""
    folder = f"{layout.base}/{shard}"
    found: list[Listed] = []
    try:
        names: list[str] = yield ("listdir", folder)
    except OSError as error:
        if error.errno in GONE:
            return found
        raise
    for name in sorted(names):
        if not name.endswith(suffixes) or name.startswith("."):
            continue
        path = f"{folder}/{name}"
        try:
            file, entry = yield from read_header(path)
            if layout.trust.believes(file):
                found.append(Listed(path, entry, file.mtime))
        except (OSError, FormatError):
            continue
    return found


def clear_shard(layout: Layout, shard: str, namespace: str | None) -> Steps[int]:
    """Remove the entries, marks and failures of one namespace in one shard; returns how many artifacts."""
    cleared = 0
    for item in (yield from list_shard(layout, shard, (".art", ".err"))):
        if item.entry.header.get("namespace") == namespace:
            yield from remove(item.path)
            cleared += item.entry.kind is Kind.ARTIFACT
    return cleared


# --- usual times ---------------------------------------------------------------------------------


def _usual_paths(layout: Layout, label: str) -> tuple[Paths, str]:
    digest = hashlib.sha256(label.encode("utf-8", "surrogatepass")).hexdigest()
    paths = Paths(f"{layout.base}/usual", digest)
    return paths, f"{paths.folder}/{paths.stem}.json"


def read_usual(layout: Layout, label: str) -> Steps[float | None]:
    """Return the seconds that compiles of that label usually take; None where nothing is known."""
    try:
        file: File = yield ("read", _usual_paths(layout, label)[1], 4096)
        seconds = json.loads(bytes(file.data))["seconds"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e7 else None


def write_usual(layout: Layout, label: str, seconds: float) -> Steps[None]:
    """Remember a compile's time for its label; best effort."""
    usual = _policy.usual_after((yield from read_usual(layout, label)), seconds)
    paths, target = _usual_paths(layout, label)
    text = json.dumps({"label": label[:200], "seconds": round(usual, 3)}).encode()
    try:
        yield from publish(replace(layout, durable=False), paths, target, (text,))
    except OSError:
        return  # without it a hedge waits a little longer: no reason to bother anybody
