"""Lower tiers: directories that are only read, such as a cache that was baked into an image.

Nothing is ever written there: no lease, no probe, no recency. They are looked at after a miss in the cache's
own directory, in order, in the same trip to a thread.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from errno import ENOENT
from typing import TYPE_CHECKING

from acache import _events, _host
from acache._errors import StoreError
from acache._store import Layout, Subject, paths_in, read_artifact

if TYPE_CHECKING:
    from collections.abc import Collection

    from acache._fs import Steps
    from acache._keys import Key
    from acache._protocol import SeenArtifact
    from acache._report import Report
    from acache._settings import Settings

__all__ = ["Below", "Tiers"]


@dataclass(slots=True)
class Below:
    """What a look at the lower tiers found: an artifact or None, and what was no good on the way."""

    seen: SeenArtifact | None = None
    layout: Layout | None = None
    subject: Subject | None = None
    """Where it was found."""
    bad: list[tuple[Subject, SeenArtifact]] = field(default_factory=list)
    faults: list[tuple[str, OSError]] = field(default_factory=list)


class Tiers:
    """The lower tiers of one cache. Moves run in worker threads; `tell` belongs to the loop's."""

    def __init__(self, settings: Settings, report: Report) -> None:
        self._roots = [os.fspath(root) for root in settings.read_only_directories]
        self._settings = settings
        self._report = report
        self._layouts: list[Layout] | None = None

    def __bool__(self) -> bool:
        return bool(self._roots)

    def look(self, subject: Subject, *, rejected: Collection[str] = ()) -> Steps[Below]:
        """Look for an artifact, tier by tier; nothing is raised.

        :param subject: the key in the cache's own directory.
        :param rejected: identities that are not taken.
        """
        below = Below()
        if self._layouts is None:
            self._layouts = yield from self._survey(below)
        for layout in self._layouts:
            there = Subject(paths_in(layout.root, subject.paths.name), subject.key, subject.namespace)
            try:
                seen = yield from read_artifact(layout, there)
            except OSError as error:
                below.faults.append((layout.root, error))
                continue
            if seen.what == "artifact" and seen.identity not in rejected:
                below.seen, below.layout, below.subject = seen, layout, there
                break
            if seen.what in ("bad", "untrusted"):
                below.bad.append((there, seen))
        return below

    def _survey(self, below: Below) -> Steps[list[Layout]]:
        """Find out, at the first look, which tiers there are; one that is not there is told once."""
        nobody = _host.Identity(None, None, None, os.getpid(), None, "", False)
        layouts = [Layout.on(os.path.abspath(root), self._settings, None, nobody) for root in self._roots]
        stamps: list[int | None] = [None] * len(layouts)
        with suppress(OSError):
            stamps = yield ("stamps", [layout.base for layout in layouts])
        for layout, stamp in zip(layouts, stamps, strict=True):
            if stamp is None:
                error = OSError(ENOENT, "no cache directory, or one that cannot be read", layout.root)
                below.faults.append((layout.root, error))
        return layouts

    def tell(self, key: Key, below: Below) -> None:
        """Count and tell of what was no good.

        :raises StoreError: only with ``strict``: a tier cannot be read.
        """
        for subject, seen in below.bad:
            if seen.what == "bad":
                bad = _events.CorruptEntry(
                    key=key, path=subject.paths.art, reason="it does not pass its own check"
                )
                self._report.tell(bad, corrupt=1)
            else:
                stranger = _events.UntrustedEntry(key=key, path=subject.paths.art, owner=seen.owner)
                self._report.tell(stranger, untrusted=1)
        for root, error in below.faults:
            why = error.strerror or str(error)
            fault = _events.StoreFault(operation="tier", path=root, errno=error.errno, message=why, key=key)
            self._report.tell(fault, store_errors=1)
            self._report.warn_once(
                root, error.errno, "read-only directory %s: %s; what it has is compiled", root, why
            )
            if self._settings.strict:
                raise StoreError(f"a read-only directory is not usable: {why}", root, error.errno) from error
