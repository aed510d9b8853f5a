"""A cache directory examined: where and on what it is, what it can do, and what stands in the way."""

from __future__ import annotations

import difflib
import os
import platform
import stat
import threading
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from acache import _host, _policy
from acache._fs import OsFileSystem, perform
from acache._probe import Level, Probe, probe
from acache._settings import Settings, variable_of
from acache._store import FORMAT
from acache.cli._place import Place, place_of, where
from acache.cli._text import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Diagnosis", "FileSystem", "Folder", "Space", "examine"]

Found: TypeAlias = Literal["missing", "folder", "other"]

_LEAST_BYTES = 16 << 20
_LEAST_INODES = len(_policy.SHARDS)
"""Below these a cache is as good as full: room for some artifacts, and for its own folders."""

_WITHOUT_FIELD = frozenset({"ACACHE_DIR", "ACACHE_TEST_REQUIRE"})

_STEPS = {
    Level.LINKLESS: "leases are made by exclusive create instead of hard link",
    Level.PROCESS: "processes cannot coordinate there, so each compiles for itself",
    Level.NONE: "nothing can be cached there",
}


@dataclass(frozen=True, slots=True)
class FileSystem:
    """What the directory lies on."""

    type: str | None
    mount: str | None
    source: str | None
    kind: _policy.MountKind
    """``network`` also where the mount is not known; ``denied`` never has leases."""
    read_only: bool


@dataclass(frozen=True, slots=True)
class Folder:
    """The directory itself, or what stands in its place, before the probe; numbers as in stat(2)."""

    found: Found
    owner: int | None = None
    group: int | None = None
    mode: str | None = None
    """As ``drwxr-xr-x``."""
    readable: bool = False
    writable: bool = False
    writable_by_others: bool = False


@dataclass(frozen=True, slots=True)
class Space:
    """What is left for this user; None where the platform does not say."""

    free_bytes: int | None = None
    free_inodes: int | None = None


@dataclass(slots=True)
class Diagnosis:
    """What `examine` found. ``problems`` cost something now; ``notes`` are worth knowing."""

    version: str
    python: str
    directory: str
    why: str
    coordination: Level | None = None
    """What the probe gave; None: the directory did not answer."""
    reason: str | None = None
    errno: int | None = None
    file_system: FileSystem | None = None
    folder: Folder | None = None
    space: Space = field(default_factory=Space)
    user: int | None = None
    owner_of_new_files: int | None = None
    trust: str = "user"
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Nothing costs anything: leases are shared, and there are no problems."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {"healthy": self.healthy, **asdict(self)}


@dataclass(frozen=True, slots=True)
class _Look:
    """All that was read from the disk, in one go."""

    place: Place
    folder: Folder
    probe: Probe
    space: Space
    unusable: Sequence[str]
    """Read-only directories that cannot be read."""


def examine(
    directory: str | None, *, version: str, timeout: float = 10.0, environ: Mapping[str, str] | None = None
) -> Diagnosis:
    """Examine a cache directory; makes it if it does not exist, as a cache would, and leaves no other trace.

    :param directory: None: where a cache goes when nobody says otherwise.
    :param timeout: seconds after which a directory that does not answer (a hung mount) is given up.
    :param environ: where ``ACACHE_*`` is looked up; None: this process's environment.
    """
    environ = os.environ if environ is None else environ
    root, why = where(directory, environ)
    found = Diagnosis(version=version, python=platform.python_version(), directory=root, why=why)
    settings = _settings(found, environ)
    found.trust = settings.trust
    found.user = os.geteuid() if hasattr(os, "geteuid") else None
    look = _bounded(root, settings, timeout)
    if look is None:
        found.reason = f"the directory did not answer within {timeout:g} s"
        found.problems.append(f"{found.reason}: each process compiles for itself, and waits for this first")
        return found
    _take(found, look)
    _judge(found, look, settings)
    return found


# --- the environment ----------------------------------------------------------------------------------------


def _settings(found: Diagnosis, environ: Mapping[str, str]) -> Settings:
    """Read the settings as a cache would; what is wrong with them is a problem, and the defaults are used."""
    found.environment = {name: environ[name] for name in sorted(environ) if name.startswith("ACACHE_")}
    names = [each.name for each in fields(Settings) if not each.name.startswith("_")]
    known = {variable_of(name): name for name in names}
    for name in found.environment:
        if name not in known and name not in _WITHOUT_FIELD:
            close = difflib.get_close_matches(name, [*known, "ACACHE_DIR"], n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            found.problems.append(f"{name} is no setting of acache{hint}")
    try:
        settings = Settings().resolve(environ, usable_cores=_host.usable_cores())
    except ValueError as error:
        found.problems.append(f"the settings in the environment are refused: {error}")
        settings = Settings().resolve({}, usable_cores=_host.usable_cores())
    found.settings = {name: getattr(settings, name) for name in names}
    if settings.mode != "on":
        found.notes.append(f"mode is {settings.mode} (ACACHE_MODE)")
    if not settings.coordinate:
        found.notes.append("leases are switched off (ACACHE_COORDINATE): each process compiles for itself")
    return settings


# --- the disk -----------------------------------------------------------------------------------------------


def _bounded(root: str, settings: Settings, timeout: float) -> _Look | None:
    """Look at the disk in a daemon thread: one that hangs is left behind, also when this process ends."""
    results: list[_Look] = []
    faults: list[BaseException] = []

    def work() -> None:
        try:
            results.append(_look(root, settings))
        except BaseException as error:  # raised again below, in the thread that asked
            faults.append(error)

    thread = threading.Thread(target=work, name="acache-doctor", daemon=True)
    thread.start()
    thread.join(timeout)
    if faults:
        raise faults[0]
    return results[0] if results else None


def _look(root: str, settings: Settings) -> _Look:
    place = place_of(root, settings)
    folder = _folder(root)  # before the probe makes it
    if place.kind == "denied":
        found = Probe(Level.PROCESS, "file systems of this type do not keep the promises that leases need")
    else:
        try:
            found = perform(probe(place.layout), OsFileSystem())
        except OSError as error:
            found = Probe(Level.NONE, error.strerror or str(error), error.errno)
    lower = [os.fspath(path) for path in settings.read_only_directories]
    unusable = [path for path in lower if not os.access(f"{path}/{FORMAT}", os.R_OK | os.X_OK)]
    return _Look(place, folder, found, _space(root), unusable)


def _folder(root: str) -> Folder:
    try:
        info = os.stat(root)
    except OSError:
        return Folder("missing")
    return Folder(
        found="folder" if stat.S_ISDIR(info.st_mode) else "other",
        owner=info.st_uid,
        group=info.st_gid,
        mode=stat.filemode(info.st_mode),
        readable=os.access(root, os.R_OK | os.X_OK),
        writable=os.access(root, os.W_OK | os.X_OK),
        writable_by_others=bool(info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)),
    )


def _space(root: str) -> Space:
    """Ask the nearest folder that exists; one that says 0 of 0 inodes has no limit on them."""
    if not hasattr(os, "statvfs"):
        return Space()
    path = root
    while True:
        try:
            found = os.statvfs(path)
        except OSError:
            parent = os.path.dirname(path)
            if parent == path:
                return Space()
            path = parent
        else:
            return Space(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


# --- judgement ----------------------------------------------------------------------------------------------


def _take(found: Diagnosis, look: _Look) -> None:
    mount = look.place.mount
    found.file_system = FileSystem(
        type=mount.fstype if mount else None,
        mount=mount.point if mount else None,
        source=mount.source if mount else None,
        kind=look.place.kind,
        read_only=mount.read_only if mount else False,
    )
    found.folder = look.folder
    found.space = look.space
    found.coordination = look.probe.level
    found.reason = look.probe.reason or None
    found.errno = look.probe.errno
    found.owner_of_new_files = look.probe.owner


def _judge(found: Diagnosis, look: _Look, settings: Settings) -> None:
    level, folder, space = look.probe.level, look.folder, look.space
    if level is not Level.SHARED:
        found.problems.append(f"{look.probe.reason}: {_STEPS[level]}")
    if folder.found == "other":
        found.problems.append("what stands there is no folder")
    found.problems += [
        f"{path}: no cache directory, or one that cannot be read (ACACHE_READ_ONLY_DIRECTORIES)"
        for path in look.unusable
    ]
    if space.free_bytes is not None and space.free_bytes < _LEAST_BYTES:
        found.problems.append(f"the file system is full: {size(space.free_bytes)} are free")
    elif space.free_bytes is not None and space.free_bytes < settings.max_entry_bytes:
        found.notes.append(
            f"{size(space.free_bytes)} are free; one artifact may take {size(settings.max_entry_bytes)}"
            " (ACACHE_MAX_ENTRY_BYTES)"
        )
    if space.free_inodes is not None and space.free_inodes < _LEAST_INODES:
        found.problems.append(f"the file system is out of inodes: {space.free_inodes} are free")
    if folder.writable_by_others and settings.trust == "any":
        found.problems.append(
            "others may write there and ACACHE_TRUST is any: whoever can, chooses what you run"
        )
    elif folder.writable_by_others and settings.trust == "user":
        found.notes.append("others may write there; only entries of your own and of root are believed")
    if look.probe.owner is not None and found.user is not None and look.probe.owner != found.user:
        found.notes.append(
            f"files that you make there come to belong to user {look.probe.owner} (a squashed mount)"
        )
    if look.place.kind == "network" and look.place.mount is not None:
        found.notes.append("the file system may be shared with other hosts, so looks go to the server")
    elif look.place.mount is None:
        found.notes.append("the mount is not known, so the directory is taken for one on the network")
