"""The records on disk: left, folded and read, with a crash or somebody else between any two operations."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from acache import _ledger
from acache._fs import OsFileSystem, perform
from acache._host import my_identity
from acache._ledger import fold, leave_record, read_ledger
from acache._store import Layout, Trust
from acache._tally import Tally, encode_tally

FS = OsFileSystem()


@pytest.fixture
def layout(cache_dir):
    """Return a layout of a cache that somebody has used."""
    trust = Trust("user", frozenset({os.geteuid()}))
    layout = Layout(str(cache_dir), trust, my_identity())
    Path(layout.base).mkdir(parents=True)
    return layout


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch):
    monkeypatch.setattr(_ledger, "FOLD_AT", 3)


def tally(number=1, label="softmax"):
    made = Tally()
    made.count(label, "Cc", {"compiles": number})
    made.processes, made.first, made.last = 1, 100.0 + number, 200.0 + number
    return made


def lay(layout, count):
    """Lay records by hand, with the sum 1 + 2 + ... + count."""
    for number in range(1, count + 1):
        folder = Path(layout.base, "stats")
        folder.mkdir(exist_ok=True)
        (folder / f"{number:032x}.json").write_bytes(encode_tally(tally(number)))
    return count * (count + 1) // 2, count


def read(layout):
    ledger = perform(read_ledger(layout), FS)
    return ledger.tally.totals().get("compiles", 0), ledger.tally.processes


def files(layout):
    return sorted(os.listdir(f"{layout.base}/stats"))


def stepwise(steps, fs=FS):
    """Turn a move into an iterator that does one operation each time."""
    try:
        operation = next(steps)
        while True:
            yield operation
            try:
                result = getattr(fs, operation[0])(*operation[1:])
            except OSError as error:
                operation = steps.throw(error)
            else:
                operation = steps.send(result)
    except StopIteration:
        return


# --- leaving and reading -----------------------------------------------------------------------------------


def test_a_record_is_left_and_read(layout):
    assert perform(leave_record(layout, tally(3)), FS)
    ledger = perform(read_ledger(layout), FS)
    assert ledger.tally.rows == {("softmax", "Cc", False): {"compiles": 3}}
    assert (ledger.tally.processes, ledger.tally.first, ledger.tally.last) == (1, 103.0, 203.0)
    assert (ledger.records, ledger.corrupt, ledger.untrusted, ledger.later) == (1, 0, 0, 0)


def test_where_no_cache_is_nothing_is_begun(layout):
    os.rmdir(layout.base)
    assert not perform(leave_record(layout, tally()), FS)
    assert not os.path.exists(layout.base)
    assert read(layout) == (0, 0)


def test_many_starts_leave_few_files(layout):
    most = 0
    for number in range(1, 101):
        perform(leave_record(layout, tally(number)), FS)
        most = max(most, len(files(layout)))
    assert read(layout) == (5050, 100)
    assert most <= 4


def test_labels_of_many_processes_are_bounded_in_a_record(layout, monkeypatch):
    monkeypatch.setattr(_ledger, "RECORD_ROWS", 5)
    for number in range(40):
        perform(leave_record(layout, tally(1, f"label {number}")), FS)
    assert read(layout) == (40, 40)
    for name in files(layout):
        assert len(_ledger.decode_tally(Path(layout.base, "stats", name).read_bytes()).rows) <= 6


def test_what_is_no_good_is_passed_over_and_counted(layout):
    total = lay(layout, 2)
    folder = Path(layout.base, "stats")
    (folder / f"{'a' * 32}.json").write_bytes(b"{torn")
    (folder / f"{'b' * 32}.json").write_bytes(b'{"format": 9}')
    (folder / f"{'c' * 32}.json").symlink_to("/etc/passwd")
    (folder / f"{'d' * 32}.json").mkdir()
    (folder / "notes.txt").write_text("not ours")
    ledger = perform(read_ledger(layout), FS)
    assert (ledger.records, ledger.corrupt, ledger.later) == (2, 3, 1)
    assert read(layout) == total


def test_folding_removes_what_is_corrupt_and_leaves_the_future_and_strangers_alone(layout):
    total = lay(layout, 4)
    folder = Path(layout.base, "stats")
    (folder / f"{'a' * 32}.json").write_bytes(b"{torn")
    (folder / f"{'b' * 32}.json").write_bytes(b'{"format": 9}')
    (folder / "notes.txt").write_text("not ours")
    assert perform(fold(layout), FS) == 4
    assert read(layout) == total
    left = files(layout)
    assert len(left) == 3
    assert {f"{'b' * 32}.json", "notes.txt"} < set(left)


@pytest.mark.root
def test_records_of_others_are_neither_read_nor_folded(layout):
    total = lay(layout, 4)
    theirs = Path(layout.base, "stats", f"{'e' * 32}.json")
    theirs.write_bytes(encode_tally(tally(1000)))
    os.chown(theirs, 65534, 65534)
    assert perform(read_ledger(layout), FS).untrusted == 1
    assert perform(fold(layout), FS) == 4
    assert read(layout) == total
    assert theirs.exists()
    everybody = replace(layout, trust=Trust("any", frozenset()))
    assert read(everybody) == (total[0] + 1000, 5)


# --- crashes -----------------------------------------------------------------------------------------------


def test_a_crash_between_any_two_operations_loses_and_doubles_nothing(layout):
    for number in itertools.count(1):
        total = lay(layout, 5)
        steps = stepwise(fold(layout))
        done = sum(1 for _ in itertools.islice(steps, number))
        steps.close()
        assert read(layout) == total, f"after a crash before operation {number}"
        perform(fold(layout), FS)
        assert read(layout) == total, f"after a crash before operation {number}, and a fold"
        shutil.rmtree(f"{layout.base}/stats")
        if done < number:
            break
    assert number > 20  # it did fold: each of five is read, claimed, touched and unlinked


def test_after_a_crash_the_next_who_folds_tidies_up(layout):
    total = lay(layout, 5)
    steps = stepwise(fold(layout))
    assert any(operation[0] == "unlink" for operation in steps)  # the sum is written; one claim is gone
    steps.close()
    assert any(name.count(".") == 1 and not name.endswith(".json") for name in files(layout))
    more = 0
    while any(not name.endswith(".json") for name in files(layout)):
        perform(leave_record(layout, tally(7)), FS)
        more += 1
    assert read(layout) == (total[0] + 7 * more, total[1] + more)
    assert more <= 4


def crashed_with_claims(layout):
    """Fold up to the point where all is claimed and nothing is written."""
    steps = stepwise(fold(layout))
    assert any(operation[0] == "create" for operation in steps)
    steps.close()
    return [Path(layout.base, "stats", name) for name in files(layout) if not name.endswith(".json")]


def test_claims_count_until_somebody_has_added_them_up(layout):
    total = lay(layout, 5)
    assert len(crashed_with_claims(layout)) == 5
    assert read(layout) == total


def test_claims_that_nobody_finished_become_records_again_after_a_day(layout):
    total = lay(layout, 5)
    claims = crashed_with_claims(layout)
    lay_more = [perform(leave_record(layout, tally(1)), FS) for _ in range(5)]
    assert all(claim.exists() for claim in claims)  # their owner may be at it still
    for claim in claims:
        os.utime(claim, (1, 1))
    for _ in range(4):
        perform(leave_record(layout, tally(1)), FS)
    assert not any(claim.exists() for claim in claims)
    assert read(layout) == (total[0] + len(lay_more) + 4, total[1] + len(lay_more) + 4)


def test_stale_temporaries_are_swept_and_fresh_ones_left(layout):
    lay(layout, 4)
    old, new = (Path(layout.base, "stats", f".t.{digit * 32}") for digit in "ab")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    perform(fold(layout), FS)
    assert (old.exists(), new.exists()) == (False, True)


class Full(OsFileSystem):
    """A disk that takes no new file."""

    def create(self, path, chunks, durable):
        raise OSError(28, "No space left on device", path)


def test_a_full_disk_leaves_all_records_as_they_were(layout):
    total = lay(layout, 5)
    before = files(layout)
    assert perform(fold(layout), Full()) == 0
    assert files(layout) == before
    assert read(layout) == total
    with pytest.raises(OSError, match="No space"):
        perform(leave_record(layout, tally()), Full())
    assert files(layout) == before


class Lying(OsFileSystem):
    """A disk that renames, and reports that it could not."""

    def rename(self, source, target):
        super().rename(source, target)
        if target.endswith(".json") and "/.t." in source:
            raise OSError(5, "Input/output error", target)


def test_a_lost_answer_doubles_nothing(layout):
    total = lay(layout, 5)
    assert perform(fold(layout), Lying()) == 5
    assert read(layout) == total
    assert len(files(layout)) == 1


class Clinging(OsFileSystem):
    """A disk on which claims cannot be unlinked."""

    def unlink(self, path):
        if not path.endswith(".json") and ".t." not in path:
            raise OSError(13, "Permission denied", path)
        super().unlink(path)


def test_a_sum_is_not_folded_while_a_claim_of_its_is_left(layout):
    total = lay(layout, 5)
    assert perform(fold(layout), Clinging()) == 5
    assert read(layout) == total
    for number in range(5):
        perform(leave_record(layout, tally(1)), Clinging())
        assert read(layout) == (total[0] + number + 1, total[1] + number + 1)
    for _ in range(4):
        perform(leave_record(layout, tally(1)), FS)  # now they go
    assert read(layout) == (total[0] + 9, total[1] + 9)
    assert all(name.endswith(".json") for name in files(layout))


class Passing(OsFileSystem):
    """A folder whose first listing had passed the places of the claims when they were made."""

    listings = 0

    def listdir(self, folder):
        self.listings += 1
        return [name for name in super().listdir(folder) if self.listings > 1 or name.endswith(".json")]


def test_a_listing_that_missed_the_claims_is_no_leave_to_fold_their_sum(layout):
    total = lay(layout, 5)
    perform(fold(layout), Clinging())
    total = (total[0] + 9, total[1] + 3)
    folder = Path(layout.base, "stats")
    for digit in "abc":
        (folder / f"{digit * 32}.json").write_bytes(encode_tally(tally(3)))
    steps = stepwise(fold(layout), Passing())
    assert any(operation[0] == "create" for operation in steps)
    steps.close()  # killed when all was claimed
    assert read(layout) == total


# --- many at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_whoever_folds_and_crashes_at_once_nothing_is_lost_or_doubled(layout, seed):
    """Leave, fold, crash and read in a random order of single operations."""
    chance = random.Random(seed)
    total, processes = lay(layout, 6)
    running = [stepwise(fold(layout)) for _ in range(3)]
    left = 6
    while running:
        at = chance.randrange(len(running))
        if next(running[at], None) is None:
            del running[at]
        elif chance.random() < 0.01:
            running.pop(at).close()  # it is killed
        if left and chance.random() < 0.1:
            left -= 1
            number = chance.randrange(1, 50)
            perform(leave_record(layout, tally(number)), FS)
            total, processes = total + number, processes + 1
            running.append(stepwise(fold(layout)))
        if chance.random() < 0.2:
            assert read(layout) == (total, processes)
    assert read(layout) == (total, processes)


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_never_counts_twice_while_others_fold(layout, seed):
    chance = random.Random(seed)
    total, processes = lay(layout, 8)
    reading = read_ledger(layout)
    folding = [stepwise(fold(layout)) for _ in range(2)]
    try:
        operation = next(reading)
        while True:
            for each in folding:
                for _ in range(chance.randrange(4)):
                    next(each, None)
            try:
                result = getattr(FS, operation[0])(*operation[1:])
            except OSError as error:
                operation = reading.throw(error)
            else:
                operation = reading.send(result)
    except StopIteration as end:
        seen = end.value.tally
    assert seen.totals()["compiles"] <= total
    assert seen.processes <= processes
    for each in folding:
        for _ in each:
            continue
    assert read(layout) == (total, processes)
