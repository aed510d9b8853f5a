"""The cache: key → memory → disk → single flight → lease → compile in a subprocess → publish."""

from __future__ import annotations

import os
import random
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, final

import anyio
from anyio import lowlevel

from acache import _events, _host, _keys, _policy
from acache._checks import (
    check_abandon,
    check_bytes,
    check_directory,
    check_key,
    check_label,
    check_seconds,
    prepared,
)
from acache._errors import (
    CacheClosedError,
    CompileError,
    CompilerCrashedError,
    CompilerNotFoundError,
    CompileTimeoutError,
)
from acache._fs import OsFileSystem
from acache._jobs import CoroutineJob, RequestJob
from acache._live import Live
from acache._models import (
    Artifact,
    CompileFailure,
    EntryInfo,
    Request,
    Status,
    TrimReport,
    VerifyReport,
    WarmCompiler,
)
from acache._report import Report
from acache._settings import Settings
from acache._threads import Crew, NoThreadError, Workers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType

    from acache._build import Landing
    from acache._events import Event, Stats
    from acache._flight import Flight
    from acache._fs import FileSystem
    from acache._jobs import Job
    from acache._keys import Key
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
        self._live: Live | None = None
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
        self._live = Live(
            root,
            settings,
            self._namespace,
            group=group,
            workers=workers,
            report=self._report,
            fs=self._fs,
            abandoned=self._abandoned,
        )
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
        end = anyio.current_time() + CLOSING_LIMIT
        try:
            live.flights.close()
            live.workers.hurry(CLOSING_LIMIT)
            live.group.cancel_scope.cancel()
            await live.group.__aexit__(None, None, None)
        except BaseException:
            if error is None or broken:
                raise
        finally:
            try:
                await live.warm.close()
                await live.leave_record(end - anyio.current_time())
            finally:
                live.close()

    def _open(self) -> Live:
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

    def _open_here(self) -> Live:
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
        job = RequestJob(request, settings.kill_grace, settings.heartbeat_interval, live.warm)
        return await self._obtain(live, key, job, max_wait, on_abandon)

    async def start_workers(self, compiler: WarmCompiler, count: int = 1) -> int:
        """Start worker processes of a compiler before they are needed, and return how many stand ready.

        A compiler such as `acache.compilers.Nvrtc` compiles in worker processes, whose start costs some
        tenths of a second. Without this they are started by the first compiles that need one. Idle workers
        are let go after a minute, but for as many as are asked for here: those stay until the cache closes.

        Cancellation stops those that are not ready yet.

        :param count: how many shall stand ready, those that idle already included. More than the setting
            ``max_compiles`` never compile at once, so they are not started.
        :raises TypeError: the compiler has no workers.
        :raises ValueError: ``count`` is no positive whole number.
        :raises CompilerNotFoundError: the compiler is not installed; says what to install.
        :raises CompilerCrashedError: a worker could not be started; the others stand ready.
        :raises CacheClosedError: the cache was closed meanwhile; no worker of it is left.
        """
        live = self._open_here()
        if not isinstance(compiler, WarmCompiler):
            raise TypeError(
                f"{type(compiler).__name__} runs a program per compile and has no workers to start; "
                "Nvrtc has, and every acache.compilers.WarmCompiler"
            )
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"count must be a whole number of workers, at least 1, not {count!r}")
        await lowlevel.checkpoint_if_cancelled()
        return await live.warm.start(await compiler.worker(), count)

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
        self, live: Live, key: Key, job: Job, max_wait: float | None, on_abandon: OnAbandon | None
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
        deadline = anyio.current_time() + _policy.deadline_of(limit, random.random())
        while True:
            landing = await live.flights.join(
                key,
                partial(self._fly, live, key, job, above),
                deadline=deadline,
                on_abandon=on_abandon or settings.on_abandon,
            )
            if isinstance(landing, CompileFailure):
                raise error_for(landing)
            if landing._identity not in live.rejected:
                return landing
            # It was rejected while that flight was under way; the next one knows, and does not take it.

    async def _fly(
        self, live: Live, key: Key, job: Job, above: tuple[Key, ...], flight: Flight[Landing]
    ) -> Landing:
        _above.set((*above, key))  # in the flight's own context
        subject = live.shelf.subject(key)
        landing = await live.coordinator.obtain(key, subject, job, flight, nested=bool(above))
        if (
            isinstance(landing, Artifact)
            and live.settings.mode != "off"
            and landing._identity not in live.rejected  # while this flight was under way
        ):
            live.memory.put(key, landing, landing.size)
        return landing

    def _abandoned(self, key: Key, action: OnAbandon) -> None:
        self._report.tell(_events.Abandoned(key=key, action=action))

    # --- single entries ------------------------------------------------------------------------

    def get_nowait(self, key: Key) -> Artifact | None:
        """Return what this process has in memory, or None; never touches the disk."""
        live = self._open()
        check_key(key)
        return live.shelf.get_nowait(key)

    async def get(self, key: Key) -> Artifact | None:
        """Return the artifact from memory or disk, or None; never waits for a compile.

        Cancellation leaves at once.
        """
        live = self._open_here()
        check_key(key)
        return await live.shelf.get(key)

    async def get_many(self, keys: Iterable[Key]) -> dict[Key, Artifact]:
        """Return those artifacts that are in memory or on disk, in the order asked for.

        One trip to a worker thread for some hundred keys, so for many this costs far less than a `get` for
        each. What one key's file is like concerns no other. Cancellation leaves at once.

        :raises TypeError: one of them is no `Key`; nothing was looked up.
        """
        live = self._open_here()
        wanted = list(keys)
        for key in wanted:
            check_key(key)
        return await live.shelf.get_many(wanted)

    async def put(self, key: Key, artifact: Artifact | bytes, *, label: str | None = None) -> None:
        """Publish an artifact, replacing what is there and clearing a remembered failure.

        A fault of the disk costs an event and a warning (``strict``: `StoreError`); memory has it anyway.
        Cancellation waits for the write to end.

        :raises ValueError: larger than ``max_entry_bytes``, or metadata beyond 16 MiB.
        """
        live = self._open_here()
        check_key(key)
        check_label(label)
        whole = artifact if isinstance(artifact, Artifact) else Artifact.of(artifact)
        await live.shelf.put(key, whole, label)

    async def delete(self, key: Key) -> bool:
        """Remove a key from memory and disk, a remembered failure too; True when there was an artifact."""
        live = self._open_here()
        check_key(key)
        return await live.shelf.delete(key)

    async def invalidate(self, key: Key, artifact: Artifact) -> bool:
        """Reject an artifact, because its loader did: exactly this one goes, from memory and disk.

        This cache does not serve it again, also where a read-only directory still holds it: the next
        `get_or_compile` compiles, once among all processes, and what it publishes goes before any read-only
        directory. An artifact that somebody published in the meantime stays, so all processes that loaded a
        bad one may call this, and the first compile serves them all. A process that neither calls this nor
        has seen the new one goes on with what a read-only directory holds.

        Cancellation waits for the removal to end.

        :return: True when it was there: in memory, on disk or in a read-only directory.
        :raises ValueError: an artifact that no cache handed out.
        """
        live = self._open_here()
        check_key(key)
        if not isinstance(artifact, Artifact):
            raise TypeError(f"artifact must be an acache.Artifact, not {type(artifact).__name__}")
        if artifact.origin is None:
            raise ValueError("this artifact was built by hand; invalidate takes what a cache handed out")
        return await live.shelf.invalidate(key, artifact)

    async def status(self, key: Key) -> Status:
        """Say what is known of a key now: absent, present, or who compiles it.

        Cancellation leaves at once.
        """
        live = self._open_here()
        check_key(key)
        return await live.shelf.status(key)

    # --- the whole directory -------------------------------------------------------------------

    async def entries(self) -> list[EntryInfo]:
        """Return what every readable entry of this namespace says of itself.

        Cancellation leaves at once.
        """
        return await self._open_here().upkeep.entries()

    async def clear(self) -> int:
        """Remove all entries of this cache's own namespace; returns how many artifacts went.

        Compiles under way go on. Cancellation leaves the rest in place.
        """
        return await self._open_here().upkeep.clear()

    async def trim(self, *, max_bytes: int | None = None, max_age: float | None = None) -> TrimReport:
        """Bring the whole directory, all namespaces, down to a size and an age: least recently used first.

        Publications keep each group of shards within its budget anyway; this is for what they cannot know: a
        smaller size than before, or files that nobody needs any more. What somebody reads meanwhile stays,
        as does what is on its way to those who wait. Memory keeps what it has. With ``mode`` ``readonly`` or
        ``off`` nothing is removed, and the report says what would have been.

        Cancellation leaves the rest in place.

        :param max_bytes: what may stay; None: the setting, as ``max_entries`` always is.
        :param max_age: seconds since the last use, by the file system's clock; None: any. Uses are noted to
            within ``recency_grain``.
        """
        live = self._open_here()
        check_bytes("max_bytes", max_bytes)
        if max_age is not None:
            check_seconds("max_age", max_age)
        return await live.upkeep.trim(max_bytes, max_age)

    async def verify(self, *, repair: bool = False) -> VerifyReport:
        """Read every file of the directory, all namespaces, and check all of it.

        A bad entry is a miss that heals anyway; this is for who wants to know, or has a disk in doubt. With
        ``repair`` the corrupt ones are removed; those of later formats, of strangers, and those that cannot
        be read stay. With ``mode`` ``readonly`` or ``off`` nothing is removed.

        Takes as long as the disk needs for all bytes. Cancellation leaves between batches of files.
        """
        return await self._open_here().upkeep.verify(repair=repair)

    def stats(self) -> Stats:
        """Return the counters as they are now; works also before entering and after closing."""
        return self._report.counters.snapshot()
