"""Every class of file, torn, flipped or replaced by oddities: the next call answers, the one after hits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import anyio
import pytest
import xxhash

import acache
from acache import _format, _host, _moves, _policy, _store
from acache._fs import OsFileSystem, perform
from acache._keys import name_of
from tests.backends.worlds import KEY, SHORT, Callers, Gate, leftovers, never, only

LABEL = "softmax"
REFUSED = acache.CompileFailure("diagnostic", "k.x:1:2: error: no", exit_status=1, deterministic=True)
HANG = 20.0


def flip(data):
    """Flip one bit in the middle: of a header, of a part, of a checksum, as it comes."""
    used = [at for at, byte in enumerate(data) if byte]  # between header and parts lies padding
    middle = used[len(used) // 2]
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def flip_first(data):
    return bytes([data[0] ^ 0x80]) + data[1:]


def flip_last(data):
    return data[:-1] + bytes([data[-1] ^ 0x20])


def spoil(path, damage):
    path = Path(path)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))


DAMAGE = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "half": lambda data: data[: len(data) // 2],
    "all but one": lambda data: data[:-1],
    "flipped": flip,
    "flipped first": flip_first,
    "flipped last": flip_last,
    "zeroes": lambda data: bytes(len(data)),
    "too long": lambda data: data + b"\0",
    "something else": lambda data: b"not ours at all\n" * 40,
}


def symlink(path):
    target = path.with_name("elsewhere")
    target.write_bytes(b"not to be followed")
    path.symlink_to(target)


def folder(path):
    path.mkdir()


def full_folder(path):
    path.mkdir()
    (path / "file").write_bytes(b"x")


ODDITIES = {"symlink": symlink, "folder": folder, "full folder": full_folder, "fifo": os.mkfifo}


async def in_each_case(cases, check, directory):
    """Check every case in a folder of its own, all at once: most time goes by in waiting for silence."""

    async def run(case):
        try:
            await check(directory / case.replace(" ", "-"), case)
        except BaseException as error:
            error.add_note(f"in the case {case!r}")
            raise

    async with anyio.create_task_group() as group:
        for case in cases:
            group.start_soon(run, case)


def settings(**values):
    return acache.Settings(**{**SHORT, "poll_max": 0.05, **values})


def layout_of(directory, ttl=SHORT["lease_ttl"]):
    trust = _store.Trust("user", frozenset({os.geteuid()}))
    return _store.Layout(str(directory), trust, _host.my_identity(), ttl=ttl, interval=0.05)


def paths_of(directory):
    return layout_of(directory).paths(name_of(KEY, None))


def write_slot(directory, follows, **values):
    """Put a lease record of another host into a slot, by hand; returns its nonce."""
    layout = layout_of(directory)
    paths = paths_of(directory)
    os.makedirs(paths.folder, exist_ok=True)
    record = _moves.draw_record(layout, **{"boot_id": "another host's", "pid": 1, **values})
    with open(paths.slot(follows), "wb") as file:
        file.write(_format.encode_record(record))
    return record.nonce


async def answers_then_hits(directory, *, label=None, **values):
    """The next call answers with the right artifact; the one after it, in a fresh cache, hits."""
    gate = Gate(open=True)
    with anyio.fail_after(HANG):
        async with acache.Cache(directory, settings=settings(**values)) as cache:
            first = await cache.get_or_compile(KEY, gate, label=label)
            assert first.data == b"artifact"
            stats = cache.stats()
        async with acache.Cache(directory, settings=settings(**values)) as cache:
            assert (await cache.get_or_compile(KEY, never, label=label)).data == b"artifact"
            assert cache.stats().disk_hits == 1
    return gate, stats


async def published(directory, data=b"artifact"):
    async with acache.Cache(directory, settings=settings()) as cache:
        await cache.get_or_compile(KEY, Gate(data, open=True), label=LABEL)
    return only(directory, ".art")


# --- damage ------------------------------------------------------------------------------------------------


async def test_an_entry(cache_dir):
    """B17, B65: a miss that heals, counted, never a wrong artifact."""

    async def check(cache_dir, damage):
        spoil(await published(cache_dir), damage)
        gate, stats = await answers_then_hits(cache_dir)
        assert gate.calls == 1
        assert stats.corrupt == 1
        assert leftovers(cache_dir) == []

    await in_each_case(DAMAGE, check, cache_dir)


async def test_every_single_byte_of_an_entry(cache_dir):
    """Whatever byte is flipped, the answer is the artifact or nothing."""
    entry = await published(cache_dir, b"wxyz")
    whole = entry.read_bytes()
    used = [at for at in range(len(whole)) if at < 600 or at >= 4096]
    async with acache.Cache(cache_dir, settings=settings(memory_bytes=0)) as cache:
        misses = 0
        for at in used:
            entry.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            found = await cache.get(KEY)
            assert found is None or found.data == b"wxyz", at
            misses += found is None
        assert misses > len(used) // 2
        entry.write_bytes(whole)
        assert (await cache.get(KEY)).data == b"wxyz"


async def test_an_entry_of_another_key_or_namespace(cache_dir):
    """B16: an entry describes its key, and is believed for no other."""
    other = acache.key(n="other")
    async with acache.Cache(cache_dir, namespace="other") as cache:
        await cache.put(other, b"wrong")
        await cache.put(KEY, b"wrong")
    wrong = list(cache_dir.rglob("*.art"))
    for path in wrong:
        target = paths_of(cache_dir).art
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(path, target)
        gate, stats = await answers_then_hits(cache_dir)
        assert (gate.calls, stats.corrupt) == (1, 1)


async def test_a_cheap_mark(cache_dir):
    async def check(cache_dir, damage):
        gate = Gate(open=True)
        async with acache.Cache(cache_dir, settings=settings(min_compile_seconds=60)) as cache:
            await cache.get_or_compile(KEY, gate)
        spoil(only(cache_dir, ".art"), damage)
        cheap = settings(min_compile_seconds=60, memory_bytes=0)
        async with acache.Cache(cache_dir, settings=cheap) as cache:
            for _ in range(2):  # compiled each time, for it is cheap; the second time without a lease
                await cache.get_or_compile(KEY, gate)
            assert cache.stats().corrupt == 1
        assert gate.calls == 3
        healed, _ = await answers_then_hits(cache_dir)
        assert healed.calls == 1

    await in_each_case(DAMAGE, check, cache_dir)


async def test_a_remembered_failure(cache_dir):
    async def check(cache_dir, damage):
        async with acache.Cache(cache_dir, settings=settings()) as cache:
            with pytest.raises(acache.CompileError):
                await cache.get_or_compile(KEY, Gate(acache.CompileError(REFUSED), open=True))
        spoil(only(cache_dir, ".err"), damage)
        gate, _ = await answers_then_hits(cache_dir)
        assert gate.calls == 1
        assert leftovers(cache_dir) == []

    await in_each_case(DAMAGE, check, cache_dir)


async def test_the_usual_time_of_a_label(cache_dir):
    async def check(cache_dir, damage):
        await published(cache_dir)
        record = only(cache_dir / "v1" / "usual", ".json")
        spoil(record, damage)
        async with acache.Cache(cache_dir, settings=settings()) as cache:
            await cache.delete(KEY)
        gate, stats = await answers_then_hits(cache_dir, label=LABEL)
        assert (gate.calls, stats.store_errors) == (1, 0)
        assert b"seconds" in record.read_bytes()

    await in_each_case(DAMAGE, check, cache_dir)


@pytest.mark.parametrize("name", ["v1/layout.json", "CACHEDIR.TAG"])
async def test_the_files_that_name_the_directory(cache_dir, name):
    async def check(cache_dir, damage):
        await published(cache_dir)
        spoil(cache_dir / name, damage)
        async with acache.Cache(cache_dir, settings=settings()) as cache:
            assert (await cache.get_or_compile(KEY, never)).data == b"artifact"
            await cache.delete(KEY)
        gate, stats = await answers_then_hits(cache_dir)
        assert (gate.calls, stats.store_errors) == (1, 0)

    await in_each_case(DAMAGE, check, cache_dir)


# --- leases ------------------------------------------------------------------------------------------------


async def test_a_root_slot(cache_dir):
    """Torn by a full disk: silent for the ttl, then taken over; no walk runs for ever."""

    async def check(cache_dir, damage):
        write_slot(cache_dir, None)
        spoil(paths_of(cache_dir).slot(None), damage)
        gate, stats = await answers_then_hits(cache_dir)
        assert (gate.calls, stats.takeovers) == (1, 1)
        assert leftovers(cache_dir) == []

    await in_each_case(DAMAGE, check, cache_dir)


async def test_a_successor_slot(cache_dir):
    """A torn successor hides the live root from those who walk, for the ttl at most."""

    async def check(cache_dir, damage):
        nonce = write_slot(cache_dir, None)
        write_slot(cache_dir, nonce)
        spoil(paths_of(cache_dir).slot(nonce), damage)
        gate, stats = await answers_then_hits(cache_dir)
        assert (gate.calls, stats.takeovers) == (1, 1)
        assert leftovers(cache_dir) == []

    await in_each_case(DAMAGE, check, cache_dir)


async def test_a_slot_torn_under_its_live_holder(cache_dir):
    """The holder publishes all the same, and the torn slot does not outlive the next compile."""
    gate = Gate()
    async with acache.Cache(cache_dir, settings=settings()) as cache, anyio.create_task_group() as group:
        callers = Callers(cache, gate)
        callers.start(group)
        await gate.entered.wait()
        only(cache_dir, ".lease").write_bytes(b"")
        gate.go.set()
    async with acache.Cache(cache_dir, settings=settings()) as cache:
        assert (await cache.get_or_compile(KEY, never)).data == b"artifact"
        await cache.delete(KEY)
    await answers_then_hits(cache_dir)
    assert leftovers(cache_dir) == []


async def test_slots_that_lead_in_a_circle(cache_dir):
    """A walk ends: coordination is over for that call."""
    first = write_slot(cache_dir, None)
    paths = paths_of(cache_dir)
    shutil.copy(paths.slot(None), paths.slot(first))
    gate, stats = await answers_then_hits(cache_dir)
    assert (gate.calls, stats.uncoordinated_compiles) == (1, 1)


async def test_a_chain_longer_than_any(cache_dir):
    follows = None
    for _ in range(80):
        follows = write_slot(cache_dir, follows)
    gate, stats = await answers_then_hits(cache_dir)
    assert (gate.calls, stats.uncoordinated_compiles) == (1, 1)


async def test_a_closed_slot_whose_holder_died_while_leaving(cache_dir):
    nonce = write_slot(cache_dir, None)
    write_slot(cache_dir, nonce, closed=True)
    gate, stats = await answers_then_hits(cache_dir)
    assert (gate.calls, stats.takeovers) == (1, 1)
    assert leftovers(cache_dir) == []


# --- something else in a file's place ----------------------------------------------------------------------


async def test_an_oddity_in_place_of_an_entry(cache_dir):
    async def check(cache_dir, oddity):
        path = await published(cache_dir)
        path.unlink()
        ODDITIES[oddity](path)
        gate, stats = await answers_then_hits(cache_dir)
        assert (gate.calls, stats.corrupt) == (1, 1)
        assert path.is_file()
        assert not path.is_symlink()

    await in_each_case(ODDITIES, check, cache_dir)


async def test_an_oddity_in_place_of_a_mark(cache_dir):
    async def check(cache_dir, oddity):
        path = await published(cache_dir)
        path.unlink()
        ODDITIES[oddity](path)
        gate = Gate(open=True)
        async with acache.Cache(
            cache_dir, settings=settings(min_compile_seconds=60, memory_bytes=0)
        ) as cache:
            for _ in range(2):
                assert (await cache.get_or_compile(KEY, gate)).data == b"artifact"
            assert cache.stats().corrupt == 1
        assert gate.calls == 2
        assert leftovers(cache_dir) == []

    await in_each_case(ODDITIES, check, cache_dir)


async def test_an_oddity_in_place_of_a_failure(cache_dir):
    async def check(cache_dir, oddity):
        path = await published(cache_dir)
        path.unlink()
        err = path.with_suffix(".err")
        ODDITIES[oddity](err)
        gate = Gate(acache.CompileError(REFUSED), open=True)
        async with acache.Cache(cache_dir, settings=settings()) as cache:
            for _ in range(2):
                with pytest.raises(acache.CompileError, match="error: no"):
                    await cache.get_or_compile(KEY, gate)
            assert gate.calls == 1  # remembered: what stood in its place is gone
        assert err.is_file()
        async with acache.Cache(cache_dir, settings=settings()) as cache:
            await cache.put(KEY, b"artifact")
        async with acache.Cache(cache_dir, settings=settings()) as cache:
            assert (await cache.get_or_compile(KEY, never)).data == b"artifact"

    await in_each_case(ODDITIES, check, cache_dir)


@pytest.mark.parametrize("slot", ["root", "successor"])
async def test_an_oddity_in_place_of_a_slot(cache_dir, slot):
    async def check(cache_dir, oddity):
        await published(cache_dir)
        paths = paths_of(cache_dir)
        os.unlink(paths.art)
        follows = write_slot(cache_dir, None) if slot == "successor" else None
        path = only(cache_dir, ".lease") if follows else None
        ODDITIES[oddity](Path(paths.slot(follows)))
        gate, stats = await answers_then_hits(cache_dir)
        assert gate.calls == 1
        assert stats.uncoordinated_compiles == 1
        assert path is None or path.is_file()

    await in_each_case(ODDITIES, check, cache_dir)


async def test_an_oddity_in_place_of_a_shard(cache_dir):
    async def check(cache_dir, oddity):
        await published(cache_dir)
        shard = cache_dir / "v1" / _policy.shard_of(name_of(KEY, None))
        shutil.rmtree(shard)
        ODDITIES[oddity](shard)
        gate = Gate(open=True)
        async with acache.Cache(cache_dir, settings=settings()) as cache:
            assert (await cache.get_or_compile(KEY, gate)).data == b"artifact"
        assert gate.calls == 1

    await in_each_case(ODDITIES, check, cache_dir)


async def test_an_entry_of_a_later_format_is_neither_used_nor_overwritten(cache_dir):
    entry = await published(cache_dir)
    data = bytearray(entry.read_bytes())
    data[8:10] = (2).to_bytes(2, "little")
    data[40:48] = xxhash.xxh3_64_digest(bytes(data[:40]))
    entry.write_bytes(data)
    gate = Gate(open=True)
    async with acache.Cache(cache_dir, settings=settings(memory_bytes=0)) as cache:
        for _ in range(2):
            assert (await cache.get_or_compile(KEY, gate)).data == b"artifact"
        await cache.put(KEY, b"put")
        assert await cache.delete(KEY) is False
        assert cache.stats().uncoordinated_compiles == 2
    assert gate.calls == 2
    assert entry.read_bytes() == data


async def test_a_bad_entry_is_an_error_only_when_asked_for(cache_dir):
    entry = await published(cache_dir)
    entry.write_bytes(b"")
    async with acache.Cache(cache_dir, settings=settings(strict=True)) as cache:
        for call in (cache.get(KEY), cache.get_or_compile(KEY, never)):
            with pytest.raises(acache.CorruptEntryError) as caught:
                await call
            assert caught.value.path == str(entry)


async def test_a_lease_by_hand_is_one_that_the_library_reads(cache_dir):
    """The hand-written records above are what they claim to be."""
    nonce = write_slot(cache_dir, None, label=LABEL)
    chain = perform(_moves.walk(layout_of(cache_dir), paths_of(cache_dir)), OsFileSystem())
    assert [slot.record.nonce for slot in chain.slots] == [nonce]
    assert not chain.tail.record.torn
    async with acache.Cache(cache_dir, settings=settings()) as cache:
        status = await cache.status(KEY)
    assert (status.state, status.label, status.verdict) == ("compiling", LABEL, "unknown")
