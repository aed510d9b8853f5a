"""Verifies a directory, file by file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acache import _store, _verify
from acache._fs import OsFileSystem, perform

if TYPE_CHECKING:
    from acache._fs import FileSystem
    from acache._models import VerifyReport
    from acache._store import Layout

__all__ = ["verify"]


def verify(layout: Layout, *, repair: bool, fs: FileSystem | None = None) -> VerifyReport:
    """Check every file, and remove what is corrupt if asked. Blocks.

    :raises OSError: the directory is there and cannot be listed.
    """
    fs = OsFileSystem() if fs is None else fs
    findings = _verify.Findings()
    for shard in perform(_store.list_shards(layout), fs):
        try:
            for names in _verify.batches(perform(_verify.files(layout, shard), fs)):
                perform(_verify.verify(layout, shard, names, findings, repair=repair), fs)
        except OSError as error:
            findings.counts["unreadable"] += 1
            findings.fault(f"{layout.base}/{shard}", error.strerror or str(error))
    return findings.report()
