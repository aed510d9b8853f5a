"""Eviction as moves, on a disk in memory: what is kept, what it costs, what it survives."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

import pytest
import xxhash

from acache._capacity import Limits
from acache._evict import Capacity, grouping, within
from acache._format import MAGIC, PREAMBLE, VERSION
from acache._fs import perform
from acache._store import Trust, paths_in, publish
from tests.traces import LAYOUT, ROOT, Blob, Disk, Program, compare, named, zipf

MIB = 1 << 20
ROOMY = Limits(256 * MIB, None, 32 * MIB)


@pytest.mark.parametrize("skew", [0.7, 0.9, 1.1])
@pytest.mark.parametrize("entry", [8, 64])
def test_hit_rates_are_within_two_points_of_a_global_lru_and_bytes_within_the_capacity(skew, entry):
    limits = Limits(512 * MIB, None, entry * MIB)
    found = compare(limits, list(zipf(int(10 * skew), 4000, 12_000, skew)))
    assert 0.1 < found.best < 0.9  # a trace that says something
    assert found.ours > found.best - 0.02
    assert 0.9 * limits.max_bytes < found.fullest <= limits.max_bytes


def test_several_programs_on_one_disk_agree_on_who_goes():
    limits = Limits(256 * MIB, None, 32 * MIB)
    found = compare(limits, list(zipf(3, 3000, 8000, 0.9)), programs=4)
    assert found.ours > found.best - 0.02
    assert 0.9 * limits.max_bytes < found.fullest <= limits.max_bytes


def test_a_count_limits_as_well():
    disk = Disk()
    program = Program(disk, Limits(256 * MIB, 100, MIB))
    for number in range(1000):
        disk.now += 1
        program.makes(named(number), 10)
        assert sum(1 for _ in disk.entries()) <= 100
    assert sum(1 for _ in disk.entries()) > 90


def test_the_largest_entry_pushes_out_half_of_its_group_at_most():
    disk = Disk()
    program = Program(disk, ROOMY)
    for number in range(2000):
        disk.now += 1
        program.makes(named(number), MIB // 2)
    before = sum(1 for _ in disk.entries())
    disk.now += 1
    room = program.makes(named(2000), 32 * MIB)
    assert 60 <= room.entries <= 64
    assert sum(1 for _ in disk.entries()) == before + 1 - room.entries
    assert disk.bytes() <= ROOMY.max_bytes


def test_an_entry_that_is_wanted_again_is_not_the_one_that_goes():
    disk = Disk()
    program = Program(disk, Limits(MIB, None, MIB))  # one group, room for four
    for number in range(4):
        disk.now += 1
        program.makes(named(number), MIB // 4)
    disk.now += 1
    assert program.wants(named(0), 0)  # by its mtime alone: the account is not told
    disk.now += 1
    assert program.makes(named(4), MIB // 4).entries == 1
    assert [program.disk.exists(paths_in(ROOT, named(number)).art) for number in range(5)] == [
        True,
        False,
        True,
        True,
        True,
    ]


def test_the_entry_just_written_stays_even_where_it_has_no_room():
    disk = Disk()
    Program(disk, Limits(MIB, None, MIB)).makes(named(0), MIB // 2)
    program = Program(disk, Limits(100, None, 100))
    assert program.makes(named(1), MIB // 2).entries == 1
    assert disk.bytes() == MIB // 2
    assert disk.exists(paths_in(ROOT, named(1)).art)


def test_what_is_on_its_way_to_those_who_wait_stays():
    disk = Disk()
    program = Program(disk, Limits(MIB, None, MIB))
    program.makes(named(0), MIB // 2)
    disk.create(paths_in(ROOT, named(0)).slot(None), (b"a lease",), False)
    disk.now += 1
    assert program.makes(named(1), MIB).entries == 0
    disk.now += 100  # a lease that somebody left behind
    assert program.makes(named(2), MIB // 4).entries == 2


def test_a_time_to_come_protects_nothing_for_ever():
    disk = Disk()
    program = Program(disk, Limits(MIB, None, MIB))
    program.makes(named(0), MIB // 2)
    disk.touch(paths_in(ROOT, named(0)).art)
    disk._find(paths_in(ROOT, named(0)).art).mtime = disk.now + 1e7
    disk.create(paths_in(ROOT, named(0)).slot(None), (b"a lease",), False)
    disk.now += 1
    program.makes(named(1), MIB // 2)
    disk.now += 1
    assert program.makes(named(2), MIB).entries == 2
    assert disk.bytes() == MIB


def test_failures_and_marks_take_room_and_leases_and_temporaries_none():
    disk = Disk()
    program = Program(disk, Limits(100, None, 100))
    paths = paths_in(ROOT, named(0))
    perform(publish(LAYOUT, paths, paths.err, (Blob(90),)), disk)
    disk.create(paths.slot(None), (b"x" * 512,), False)
    disk.create(paths.temporary(), (b"x" * 512,), False)
    disk.now += 1000
    room = program.makes(named(1), 20)
    assert (room.entries, room.bytes) == (0, 90)
    assert not disk.exists(paths.err)
    assert disk.exists(paths.slot(None))


def test_entries_that_vanish_are_not_counted():
    disk = Disk()
    program = Program(disk, Limits(MIB, None, MIB))
    program.makes(named(0), MIB // 2)
    folder, _, name = paths_in(ROOT, named(0)).art.rpartition("/")
    del disk.folders[folder][name]  # and the folder's stamp tells nothing
    disk.now += 1
    assert program.makes(named(1), MIB).entries == 0


def test_a_later_format_is_neither_evicted_nor_counted():
    disk = Disk()
    program = Program(disk, Limits(MIB, None, MIB))
    paths = paths_in(ROOT, named(0))
    later = PREAMBLE.pack(MAGIC, VERSION + 1, 0, 0, bytes(16), 0, bytes(8))
    later = PREAMBLE.pack(MAGIC, VERSION + 1, 0, 0, bytes(16), 0, xxhash.xxh3_64_digest(later[:40]))
    perform(publish(LAYOUT, paths, paths.art, (later, Blob(2 * MIB))), disk)
    for number in range(1, 9):
        disk.now += 1
        program.makes(named(number), MIB // 4)
    assert disk.exists(paths.art)
    assert sum(1 for _ in disk.entries()) == 5


# --- cost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [Limits(1 << 50, None, MIB), Limits(1 << 40, None, 1 << 37)])
def test_a_put_costs_as_many_operations_beside_100_000_entries_as_beside_1000(limits):
    costs = {}
    for count in (1000, 100_000):
        disk = Disk()
        program = Program(disk, limits)
        for shard in range(256):
            disk.mkdir(f"{ROOT}/v1/{shard:02x}")
        for number in range(count):
            paths = paths_in(ROOT, named(number))
            disk.create(paths.art, (b"",), False)
        for shard in range(256):
            program.makes(f"{shard:02x}" + "e" * 62, 10)  # each group is read once by each process
        disk.counts.clear()
        disk.examined = 0
        for number in range(100):
            program.makes(named(count + number), 10)
        costs[count] = sum(disk.counts.values())
        assert disk.examined == 0
    assert costs[100_000] == costs[1000]


def test_what_others_write_is_read_again_and_nothing_else():
    disk = Disk()
    limits = Limits(1 << 30, None, 2 << 20)  # a group is the shard
    mine, theirs = Program(disk, limits), Program(disk, limits)
    for number in range(1000):
        mine.makes("00" + named(number)[2:], 10)
        mine.makes("01" + named(number)[2:], 10)
    disk.examined = 0
    mine.makes("00" + named(1000)[2:], 10)
    assert disk.examined == 0
    theirs.makes("00" + named(1001)[2:], 10)
    disk.examined = 0
    mine.makes("00" + named(1002)[2:], 10)
    assert 1000 < disk.examined < 1010
    account = mine.capacity.account(("00",))
    assert account.entries == 1003


# --- the layout file ---------------------------------------------------------------------------------------

PATH = f"{ROOT}/v1/layout.json"


def agreed(disk: Disk) -> object:
    return json.loads(disk.read(PATH, 0).data)


def test_the_first_program_says_how_shards_are_grouped():
    disk = Disk()
    Program(disk, ROOMY).makes(named(0), 1)
    assert agreed(disk) == {"format": 1, "shards": 256, "shards_per_group": 64}
    program = Program(disk, Limits(1 << 40, None, 1))  # alone it would take single shards
    program.makes(named(1), 1)
    assert program.capacity.count == 64


def test_a_program_that_needs_larger_groups_says_so():
    disk = Disk()
    Program(disk, Limits(1 << 40, None, 1)).makes(named(0), 1)
    assert agreed(disk) == {"format": 1, "shards": 256, "shards_per_group": 1}
    Program(disk, ROOMY).makes(named(1), 1)
    assert agreed(disk) == {"format": 1, "shards": 256, "shards_per_group": 64}


DAMAGED = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b"[" * 4000,
    b'{"format": 1}',
    b'{"format": 1, "shards": 256}',  # as versions wrote it that evicted nothing
    b'{"format": 1, "shards": 256, "shards_per_group": 3}',
    b'{"format": 1, "shards": 256, "shards_per_group": true}',
    b'{"format": 1, "shards": 256, "shards_per_group": 1e400}',
]
LATER = [
    b'{"format": 2, "shards": 256, "shards_per_group": 256}',
    b'{"format": "x", "shards": 256}',
    b'{"format": 1, "shards": 4096, "shards_per_group": 1}',
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_or_silent_layout_file_heals(text):
    disk = Disk()
    disk.mkdir(f"{ROOT}/v1")
    disk.create(PATH, (text,), False)
    assert perform(grouping(LAYOUT, ROOMY), disk) == 64
    assert agreed(disk) == {"format": 1, "shards": 256, "shards_per_group": 64}


@pytest.mark.parametrize("text", LATER)
def test_a_later_layout_file_is_left_alone(text):
    disk = Disk()
    disk.mkdir(f"{ROOT}/v1")
    disk.create(PATH, (text,), False)
    assert perform(grouping(LAYOUT, ROOMY), disk) == 64
    assert disk.read(PATH, 0).data == text


def test_a_layout_file_of_a_stranger_says_nothing():
    disk = Disk()
    disk.mkdir(f"{ROOT}/v1")
    disk.create(PATH, (b'{"format": 1, "shards": 256, "shards_per_group": 256}',), False)
    wary = replace(LAYOUT, trust=Trust("user", frozenset({1000})))
    disk_of_stranger = StrangersDisk(disk)
    assert perform(grouping(wary, ROOMY), disk_of_stranger) == 64
    assert agreed(disk) == {"format": 1, "shards": 256, "shards_per_group": 256}


class StrangersDisk:
    """Somebody else's disk: files belong to user 4711."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name):
        return getattr(self._disk, name)

    def read(self, path, limit, *more):
        return replace(self._disk.read(path, limit), uid=4711)


# --- faults ------------------------------------------------------------------------------------------------


class Failing:
    """Fails one kind of operation each time, once the entry has been published."""

    def __init__(self, disk: Disk, operation: str, code: int) -> None:
        self._disk, self._operation, self._code = disk, operation, code
        self.armed = False

    def __getattr__(self, name):
        real = getattr(self._disk, name)
        if name != self._operation:
            return real

        def operation(*arguments):
            if self.armed:
                raise OSError(self._code, os.strerror(self._code), str(arguments[0]))
            return real(*arguments)

        return operation


@pytest.mark.parametrize("operation", ["survey", "head", "exists", "unlink", "read", "link", "create"])
@pytest.mark.parametrize(
    "code", ["EACCES", "EPERM", "EIO", "ESTALE", "EROFS", "EBUSY", "EMFILE", "ENOENT", "EISDIR"]
)
def test_no_fault_of_an_eviction_is_one_of_the_publication(operation, code):
    disk = Disk()
    disk.mkdir(f"{ROOT}/v1")
    failing = Failing(disk, operation, getattr(errno, code))
    limits = Limits(100, None, 100)
    names = [named(number) for number in range(5)]
    for name in names[:3]:
        perform(publish(LAYOUT, paths_in(ROOT, name), paths_in(ROOT, name).art, (Blob(40),)), disk)
    capacity = Capacity(limits)

    def arm(name):
        paths = paths_in(ROOT, name)
        yield from publish(LAYOUT, paths, paths.art, (Blob(40),))
        failing.armed = True
        return "published"

    paths = paths_in(ROOT, names[3])
    result, _ = perform(within(capacity, LAYOUT, paths, arm(names[3])), failing)
    assert result == "published"
    assert disk.exists(paths.art)
    failing.armed = False
    disk.now += 1
    Program(disk, limits).makes(names[4], 40)
    assert disk.bytes() <= 100
