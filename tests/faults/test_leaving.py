"""Leaving a lease where no seal can be written, and marks for what could not be kept."""

from __future__ import annotations

import errno

import acache
from acache import _moves, _store
from acache._fs import OsFileSystem, perform
from acache._host import my_identity
from acache._store import Layout

KEY = acache.key(number=1)
PATIENT = acache.Settings(memory_bytes=0, max_wait=60)
"""With the ttl of real life: a newcomer that waited for silence would take 15 s."""


class Full(OsFileSystem):
    """A disk that is full, or is not."""

    full = False

    def create(self, path, chunks, durable):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().create(path, chunks, durable)


async def test_a_disk_that_fills_up_during_a_compile_makes_nobody_wait(cache_dir):
    fs = Full()

    async def compile() -> bytes:
        fs.full = True
        return b"artifact"

    for number in range(3):
        seen = []
        cache = acache.Cache(cache_dir, settings=PATIENT, on_event=seen.append)
        cache._fs = fs
        async with cache:
            artifact = await cache.get_or_compile(KEY, compile)
            assert artifact.data == b"artifact"
            assert not any(isinstance(event, acache.events.Waiting) for event in seen)
            assert cache.stats().compiles == 1
            assert cache.stats().uncoordinated_compiles == (number > 0)
    fs.full = False

    async def healthy() -> bytes:
        return b"artifact"

    async with acache.Cache(cache_dir, settings=PATIENT) as cache:
        await cache.get_or_compile(KEY, healthy)
        assert cache.stats().takeovers == 1  # of the lease that could not be sealed
        assert cache.stats().published == 1
    assert [path.name for path in cache_dir.rglob("*.lease*")] == []


async def test_a_mark_of_a_full_disk_binds_only_those_who_waited(cache_dir):
    class Narrow(Full):
        def create(self, path, chunks, durable):
            if self.full and sum(map(len, chunks)) > 4096:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            OsFileSystem.create(self, path, chunks, durable)

    fs = Narrow()
    fs.full = True

    async def compile() -> bytes:
        return b"artifact" * 1000

    cache = acache.Cache(cache_dir, settings=PATIENT)
    cache._fs = fs
    async with cache:
        await cache.get_or_compile(KEY, compile)
        assert cache.stats().published == 0
    assert list(cache_dir.rglob("*.art"))  # the mark
    async with acache.Cache(cache_dir, settings=PATIENT) as cache:
        await cache.get_or_compile(KEY, compile)
        assert cache.stats().published == 1
        assert cache.stats().uncoordinated_compiles == 0


def test_a_claim_whose_slot_cannot_be_read_after_link_said_yes_is_mine(tmp_path):
    class Blind(OsFileSystem):
        blind = False

        def link(self, source, target):
            super().link(source, target)
            self.blind = True

        def head(self, path, count):
            if self.blind:
                raise OSError(errno.EMFILE, "Too many open files", path)
            return super().head(path, count)

    fs = Blind()
    layout = Layout.on(str(tmp_path), acache.Settings(), None, my_identity())
    paths = layout.paths("ab" * 32)
    record = _moves.draw_record(layout)
    assert perform(_moves.claim(layout, paths, None, record), fs)
    fs.blind = False
    assert perform(_moves.read_slot(paths, None), fs).nonce == record.nonce


def test_an_entry_of_a_later_format_that_appeared_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    layout = Layout.on(str(tmp_path), acache.Settings(), None, my_identity())
    subject = _store.Subject(layout.paths("ab" * 32), KEY.hex, None)
    seen = []

    class Later(OsFileSystem):
        def rename(self, source, target):
            seen.append(target)
            super().rename(source, target)

    def foreign():
        if False:
            yield
        return _store.SeenArtifact("foreign")

    monkeypatch.setattr(_moves, "read_artifact", lambda *_: foreign())
    bequest = _moves.Bequest(artifact=(b"chunk",))
    assert perform(_moves.settle(layout, subject, None, bequest), Later()) is None
    assert seen == []
