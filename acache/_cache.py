"""The cache: key → memory → disk → single flight → lease → compile in a subprocess → publish."""

from __future__ import annotations

import os
import random
import time
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, final

import anyio
from anyio import lowlevel

from acache import _events, _host, _keys, _moves, _policy, _store
from acache._beats import Beats
from acache._build import Builder
from acache._checks import check_abandon, check_directory, check_key, check_label, check_seconds, prepared
from acache._describe import entry_info, status_of
from acache._directory import Directory
from acache._errors import (
    CacheClosedError,
    CompileError,
    CompilerCrashedError,
    CompilerNotFoundError,
    CompileTimeoutError,
)
from acache._flight import Flights
from acache._format import Caption, encode_artifact
from acache._fs import OsFileSystem
from acache._jobs import CoroutineJob, RequestJob
from acache._lease import Coordinator
from acache._memory import Memory
from acache._models import (
    Artifact,
    CompileFailure,
    EntryInfo,
    Origin,
    Request,
    Status,
)
from acache._poller import Poller
from acache._report import Report
from acache._settings import Settings
from acache._slots import Slots
from acache._store import Subject, fresh_nonce
from acache._threads import Crew, NoThreadError, Workers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from acache._build import Landing
    from acache._events import Event, Stats
    from acache._flight import Flight
    from acache._fs import FileSystem
    from acache._jobs import Job
    from acache._keys import Key
    from acache._protocol import Sighting
    from acache._settings import OnAbandon

__all__ = ["Cache"]

_ERRORS: dict[str, type[CompileError]] = {
    "timeout": CompileTimeoutError,
    "signal": CompilerCrashedError,
    "spawn": CompilerCrashedError,
    "missing": CompilerNotFoundError,
}

CLOSING_LIMIT = 5.0
"""Seconds that a move in the directory may still take once the cache is closing."""
_above: ContextVar[tuple[Key, ...]] = ContextVar("acache_above", default=())
"""The keys whose compiles this code runs in, outermost first."""

_hashers = Crew("acache_hashers", 4)


def error_for(failure: CompileFailure) -> CompileError:
    """Make a fresh exception of a failure that is shared as data."""
    return _ERRORS.get(failure.reason, CompileError)(failure)


@final
class Cache:
    """A compile cache in one directory, for one event loop.

    Enter it with ``async with`` and use it from any task of that loop; leave it in the task that entered it.
    Making one touches no disk.

    :param directory: where entries live; None: ``ACACHE_DIR``, else the platform's cache folder.
    :param settings: what differs from the environment and the defaults.
    :param namespace: key material: a separate world in the same directory, purgeable alone.
    :param on_event: is called on the loop's thread with each event of `acache.events`; what it raises is
        logged.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        settings: Settings | None = None,
        namespace: str | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> None:
        if namespace is not None and (not isinstance(namespace, str) or not namespace):
            raise ValueError(f"namespace must be a non-empty str or None, not {namespace!r}")
        if settings is not None and not isinstance(settings, Settings):
            raise TypeError(f"settings must be acache.Settings, not {type(settings).__name__}")
        self._given_directory = None if directory is None else check_directory(directory)
        self._given_settings = settings or Settings()
        self._namespace = namespace
        self._report = Report(on_event)
        self._fs: FileSystem = OsFileSystem()
        self._live: _Live | None = None
        self._entering = False
        self._over = False

    def __repr__(self) -> str:
        state = "open" if self._live else "closed" if self._over else "not entered"
        return f"<acache.Cache {str(self._given_directory or 'default')!r} ({state})>"

    # --- entering and leaving ------------------------------------------------------------------

    async def __aenter__(self) -> Cache:
        """Resolve settings and directory, and open the task group that owns all compiles.

        :raises CacheClosedError: it was entered before; make a new one.
        :raises ValueError: a setting in the environment is no good.
        """
        if self._entering or self._live is not None or self._over:
            raise CacheClosedError("a Cache is entered once; make a new one: async with acache.Cache(...)")
        self._entering = True
        workers = Workers()
        try:
            try:
                settings, root = await workers.run(self._resolve, abandon=True)
            except OSError:  # no thread to be had, or none that answers
                settings, root = self._resolve()
            group = anyio.create_task_group()
            await group.__aenter__()
        except BaseException:
            workers.close()
            raise
        finally:
            self._entering = False
        self._live = _Live(self, root, settings, group, workers)
        return self

    def _resolve(self) -> tuple[Settings, str]:
        """Read the environment, the core quota and, if need be, where caches go (in a worker thread)."""
        settings = self._given_settings.resolve(usable_cores=_host.usable_cores())
        root = self._given_directory
        if root is None:
            root = os.fspath(_host.default_directory(os.environ).path)
        try:
            return settings, os.path.abspath(root)
        except OSError:  # a relative path, and the working directory is gone: the cache will say so
            return settings, root

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Refuse new calls, stop compiles, wake waiters with `CacheClosedError`, give leases back.

        Bounded: a hung disk is waited for at most some seconds. The body's own exception leaves as itself,
        but for a cancellation that only says that something in here broke: then that leaves.
        """
        live, self._live, self._over = self._live, None, True
        if live is None or live.pid != os.getpid():
            return  # a forked child owns nothing of it
        broken = live.group.cancel_scope.cancel_called and isinstance(error, anyio.get_cancelled_exc_class())
        try:
            live.flights.close()
            live.workers.hurry(CLOSING_LIMIT)
            live.group.cancel_scope.cancel()
            await live.group.__aexit__(None, None, None)
        except BaseException:
            if error is None or broken:
                raise
        finally:
            live.close()

    def _open(self) -> _Live:
        live = self._live
        if live is None:
            if self._over:
                raise CacheClosedError("this Cache is closed; make a new one: async with acache.Cache(...)")
            raise CacheClosedError(
                "this Cache is not entered; use it inside: async with acache.Cache(...) as cache"
            )
        if os.getpid() != live.pid:
            raise CacheClosedError(
                "this Cache was made before fork(); make one in the child: async with acache.Cache(...)"
            )
        return live

    def _open_here(self) -> _Live:
        live = self._open()
        if lowlevel.current_token().native_token is not live.loop:
            raise CacheClosedError("this Cache belongs to another event loop; make one Cache per event loop")
        return live

    # --- the main job --------------------------------------------------------------------------

    async def get_or_compile(
        self,
        key: Key,
        compile: Callable[[], Awaitable[bytes | Artifact]],
        *,
        label: str | None = None,
        max_wait: float | None = None,
        on_abandon: OnAbandon | None = None,
    ) -> Artifact:
        """Return the artifact for ``key``: from memory, from disk, from whoever compiles it right now, or by
        calling ``compile``.

        ``compile`` runs in the cache's own task and context, at most once at a time per key in this process,
        and among processes that share the directory as the settings say. Callers who join share the result.

        Cancellation takes this caller off; when it was the last, ``on_abandon`` says whether the compile
        goes on and is published (``finish``) or is stopped (``stop``).

        :param label: what people call it (also for the usual compile time); never key material.
        :param max_wait: seconds to wait for somebody else's compile before compiling here; None: the
            setting.
        :raises CompileError: the compile failed, here or with the holder that we waited for.
        :raises CacheClosedError: the cache is not open here, or was closed meanwhile.
        :raises RuntimeError: ``compile`` asks for its own key. (It may ask for others: those need no slot.)
        :raises Exception: what ``compile`` raised, the same object for every caller who joined.
        """
        live = self._open_here()
        check_key(key)
        check_label(label)
        if not callable(compile):
            raise TypeError(
                "compile must be an async function without arguments; wrap arguments with functools.partial"
            )
        job = CoroutineJob(compile, label, live.beats)
        return await self._obtain(live, key, job, max_wait, on_abandon)

    async def compile(
        self, request: Request, *, max_wait: float | None = None, on_abandon: OnAbandon | None = None
    ) -> Artifact:
        """Return the artifact for a compiler's request, compiling it in a subprocess if need be.

        The key is derived from the request (`key_of`). All else is as in `get_or_compile`.

        :raises CompilerNotFoundError: the compiler is not installed; says what to install.
        """
        live = self._open_here()
        if max_wait is not None:
            check_seconds("max_wait", max_wait)
        check_abandon(on_abandon)
        request = await prepared(request)
        key = await self.key_of(request)
        settings = live.settings
        job = RequestJob(request, settings.kill_grace, settings.heartbeat_interval)
        return await self._obtain(live, key, job, max_wait, on_abandon)

    async def key_of(self, request: Request) -> Key:
        """Derive a request's key: reads files and fingerprints the toolchain, off the loop.

        :raises CompilerNotFoundError: there is no toolchain to fingerprint.
        :raises KeyDerivationError: an input has no canonical form.
        """
        self._open_here()
        request = await prepared(request)
        fields = await request.compiler.key_fields(request)
        derive = partial(_keys.key, **fields)
        try:
            return await _hashers.run(derive)
        except NoThreadError:  # a key is worth a pause of the loop
            return derive()

    async def _obtain(
        self, live: _Live, key: Key, job: Job, max_wait: float | None, on_abandon: OnAbandon | None
    ) -> Artifact:
        settings = live.settings
        limit = settings.max_wait if max_wait is None else check_seconds("max_wait", max_wait)
        check_abandon(on_abandon)
        if settings.mode in ("on", "readonly"):
            kept = self.get_nowait(key)
            if kept is not None:
                await lowlevel.checkpoint()
                return kept
        above = _above.get()
        if key in above:
            raise RuntimeError("a compile asks for its own key, and would wait for itself")
        present = live.flights.find(key)
        if present is not None:
            event = _events.Coalesced(key=key, label=job.label, callers=present.callers + 1)
            self._report.tell(event, coalesced=1)
        landing = await live.flights.join(
            key,
            partial(self._fly, live, key, job, above),
            deadline=anyio.current_time() + _policy.deadline_of(limit, random.random()),
            on_abandon=on_abandon or settings.on_abandon,
        )
        if isinstance(landing, CompileFailure):
            raise error_for(landing)
        return landing

    async def _fly(
        self, live: _Live, key: Key, job: Job, above: tuple[Key, ...], flight: Flight[Landing]
    ) -> Landing:
        _above.set((*above, key))  # in the flight's own context
        subject = live.subject(key)
        landing = await live.coordinator.obtain(key, subject, job, flight, nested=bool(above))
        if isinstance(landing, Artifact) and live.settings.mode != "off":
            live.memory.put(key, landing, landing.size)
        return landing

    def _abandoned(self, key: Key, action: OnAbandon) -> None:
        self._report.tell(_events.Abandoned(key=key, action=action))

    # --- single entries ------------------------------------------------------------------------

    def get_nowait(self, key: Key) -> Artifact | None:
        """Return what this process has in memory, or None; never touches the disk."""
        live = self._open()
        check_key(key)
        if live.settings.mode == "off":
            return None
        kept = live.memory.get(key)
        if kept is None:
            return None
        self._report.tell(_events.Hit(key=key, origin=Origin.MEMORY), memory_hits=1)
        return kept._stamped(Origin.MEMORY, kept._identity)

    async def get(self, key: Key) -> Artifact | None:
        """Return the artifact from memory or disk, or None; never waits for a compile.

        Cancellation leaves at once.
        """
        live = self._open_here()
        kept = self.get_nowait(key)
        if kept is not None or live.settings.mode == "off":
            await lowlevel.checkpoint()
            return kept
        subject = live.subject(key)
        directory = live.directory
        try:
            seen = await directory.run(_store.read_artifact(await directory.layout(), subject), abandon=True)
            seen = await directory.believed(subject, seen)
        except OSError as error:
            directory.fault("get", error, key)
            seen = None
        if seen is not None:
            directory.note(key, subject, seen)
        if seen is None or seen.what != "artifact" or seen.entry is None:
            self._report.tell(_events.Miss(key=key), misses=1)
            return None
        entry = seen.entry
        event = _events.Hit(key=key, label=entry.label, origin=Origin.DISK)
        self._report.tell(event, disk_hits=1, bytes_read=entry.size)
        await directory.touch(subject, seen)
        artifact = entry.artifact()._stamped(Origin.DISK, entry.identity)
        live.memory.put(key, artifact, artifact.size)
        return artifact

    async def put(self, key: Key, artifact: Artifact | bytes, *, label: str | None = None) -> None:
        """Publish an artifact, replacing what is there and clearing a remembered failure.

        A fault of the disk costs an event and a warning (``strict``: `StoreError`); memory has it anyway.
        Cancellation waits for the write to end.

        :raises ValueError: larger than ``max_entry_bytes``, or metadata beyond 16 MiB.
        """
        live = self._open_here()
        check_key(key)
        check_label(label)
        if not isinstance(artifact, Artifact):
            artifact = Artifact.of(artifact)
        if artifact.size > live.settings.max_entry_bytes:
            raise ValueError(
                f"the artifact has {artifact.size} bytes; "
                f"max_entry_bytes allows {live.settings.max_entry_bytes}"
            )
        if live.settings.mode == "off":
            await lowlevel.checkpoint()
            return
        caption = live.caption(key, label)
        kept = artifact._stamped(artifact.origin or Origin.COMPILED, caption.nonce)
        chunks = encode_artifact(caption, artifact, 0.0)
        await lowlevel.checkpoint_if_cancelled()
        live.memory.put(key, kept, artifact.size)
        if live.settings.mode == "readonly":
            await lowlevel.checkpoint()
            return
        directory = live.directory
        try:
            written = await directory.run(
                _store.replace_entry(await directory.layout(), live.subject(key), chunks)
            )
        except OSError as error:
            directory.fault("put", error, key)
        else:
            if written:
                size = sum(len(chunk) for chunk in chunks)
                self._report.tell(
                    _events.Published(key=key, label=label, size=size, seconds=0.0),
                    published=1,
                    bytes_written=size,
                )

    async def delete(self, key: Key) -> bool:
        """Remove a key from memory and disk, a remembered failure too; True when there was an artifact."""
        live = self._open_here()
        check_key(key)
        await lowlevel.checkpoint_if_cancelled()
        kept = live.memory.discard(key)
        if live.settings.mode in ("off", "readonly"):
            await lowlevel.checkpoint()
            return kept
        directory = live.directory
        try:
            return await directory.run(_store.delete(await directory.layout(), live.subject(key))) or kept
        except OSError as error:
            directory.fault("delete", error, key)
            return kept

    async def status(self, key: Key) -> Status:
        """Say what is known of a key now: absent, present, or who compiles it.

        Cancellation leaves at once.
        """
        live = self._open_here()
        check_key(key)
        directory = live.directory
        try:
            move = _moves.observe(await directory.layout(), live.subject(key))
            seen = await directory.run(move, abandon=True)
        except OSError as error:
            directory.fault("status", error, key)
            return Status("absent")
        return status_of(seen)

    # --- the whole directory -------------------------------------------------------------------

    async def entries(self) -> list[EntryInfo]:
        """Return what every readable entry of this namespace says of itself.

        Cancellation leaves at once.
        """
        live = self._open_here()
        directory = live.directory
        layout = await directory.layout()
        found: list[EntryInfo] = []
        for shard in await live.shards():
            try:
                listed = await directory.run(_store.list_shard(layout, shard), abandon=True)
            except OSError as error:
                directory.fault("entries", error)
                continue
            found += [
                info for item in listed if (info := entry_info(item)) and info.namespace == self._namespace
            ]
        return found

    async def clear(self) -> int:
        """Remove all entries of this cache's own namespace; returns how many artifacts went.

        Compiles under way go on. Cancellation leaves the rest in place.
        """
        live = self._open_here()
        await lowlevel.checkpoint_if_cancelled()
        live.memory.clear()
        if live.settings.mode in ("off", "readonly"):
            await lowlevel.checkpoint()
            return 0
        directory = live.directory
        layout = await directory.layout()
        cleared = 0
        for shard in await live.shards():
            try:
                cleared += await directory.run(_store.clear_shard(layout, shard, self._namespace))
            except OSError as error:
                directory.fault("clear", error)
            await lowlevel.checkpoint()
        return cleared

    def stats(self) -> Stats:
        """Return the counters as they are now; works also before entering and after closing."""
        return self._report.counters.snapshot()


class _Live:
    """All that exists only while a cache is open."""

    def __init__(
        self, cache: Cache, root: str, settings: Settings, group: TaskGroup, workers: Workers
    ) -> None:
        self.settings = settings
        self.group = group
        self.pid = os.getpid()
        self.loop = lowlevel.current_token().native_token
        self.namespace = cache._namespace
        self.workers = workers
        self.memory: Memory[Artifact] = Memory(settings.memory_bytes)
        self.flights: Flights[Landing] = Flights(group, copy_context(), cache._abandoned)
        self.directory = Directory(root, settings, self.workers, cache._report, cache._fs)
        self.beats = Beats(cache._fs, settings.heartbeat_interval)
        poller: Poller[Sighting] = Poller(self.workers)
        group.start_soon(poller.run)
        builder = Builder(self.directory, settings, cache._report, poller, group, self.namespace)
        slots = Slots(settings.max_compiles)
        self.coordinator = Coordinator(self.directory, settings, cache._report, poller, slots, builder)

    def subject(self, key: Key) -> Subject:
        name = _keys.name_of(key, self.namespace)
        return Subject(_store.paths_in(self.directory.root, name), key.hex, self.namespace)

    async def shards(self) -> list[str]:
        """Return the shards that there are; none, and one fault, where that cannot be seen."""
        try:
            return await self.directory.run(_store.list_shards(await self.directory.layout()), abandon=True)
        except OSError as error:
            self.directory.fault("list", error)
            return []

    def caption(self, key: Key, label: str | None) -> Caption:
        return Caption(key.hex, self.namespace, fresh_nonce(), label, key.fields, time.time())

    def close(self) -> None:
        self.beats.close()
        self.workers.close()
