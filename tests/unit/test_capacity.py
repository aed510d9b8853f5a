"""Budgets, groups of shards, accounts: who goes first, and how much stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acache._capacity import (
    SIZES,
    Account,
    Limits,
    Row,
    Share,
    group_of,
    shards_per_group,
    share_of,
)
from acache._policy import SHARDS
from acache._settings import Settings

COUNTS = st.sampled_from(SIZES)
LIMITS = st.builds(
    Limits, st.integers(1, 1 << 44), st.none() | st.integers(1, 10**6), st.integers(1, 1 << 32)
)
EVERYTHING, NOTHING = Share(1 << 62, None), Share(0, None)


def row(path: str, size: int = 1, used: float = 0.0) -> Row:
    return Row(path, size, used)


def limits_of(settings: Settings) -> Limits:
    return Limits(settings.max_bytes, settings.max_entries, settings.max_entry_bytes)


# --- groups ------------------------------------------------------------------------------------------------


def test_with_the_defaults_four_groups_have_room_for_two_of_the_largest_entries_each():
    limits = limits_of(Settings())
    assert shards_per_group(limits) == 64
    assert share_of(limits, 64) == Share(512 << 20, None)


def test_where_a_256th_is_ample_the_group_is_the_shard():
    assert shards_per_group(Limits(256 << 20, None, 512 << 10)) == 1
    assert shards_per_group(Limits(256 << 20, None, (512 << 10) + 1)) == 2


def test_a_count_needs_groups_too():
    assert shards_per_group(Limits(1 << 40, 256 * 8, 1)) == 1
    assert shards_per_group(Limits(1 << 40, 8, 1)) == 256
    assert shards_per_group(Limits(1 << 40, 1, 1)) == 256


@given(LIMITS)
def test_a_group_has_room_for_what_it_must_hold_or_is_everything(limits):
    count = shards_per_group(limits)
    share = share_of(limits, count)
    roomy = share.bytes >= 2 * limits.max_entry_bytes and (share.entries is None or share.entries >= 8)
    assert roomy or count == len(SHARDS)


@given(LIMITS, COUNTS)
def test_all_groups_together_are_within_the_limits(limits, count):
    share, groups = share_of(limits, count), len(SHARDS) // count
    assert share.bytes * groups <= limits.max_bytes
    if limits.max_entries is not None:
        assert share.entries * groups <= limits.max_entries


@given(COUNTS, COUNTS)
def test_groups_part_the_shards_and_nest(fine, coarse):
    groups = {group_of(shard, fine) for shard in SHARDS}
    assert sorted(shard for group in groups for shard in group) == list(SHARDS)
    if fine <= coarse:
        for shard in SHARDS:
            assert set(group_of(shard, fine)) <= set(group_of(shard, coarse))


# --- accounts ----------------------------------------------------------------------------------------------


def drain(account: Account, share: Share, spare: set[str] = frozenset()) -> list[str]:
    found = []
    while (victim := account.victim(share, spare)) is not None:
        found.append(victim.path)
    return found


def test_the_least_recently_used_goes_first_and_names_break_ties():
    account = Account()
    for each in (row("00/c", used=2), row("01/b", used=1), row("00/a", used=1), row("02/d", used=0)):
        account.note(each)
    assert drain(account, NOTHING) == ["02/d", "00/a", "01/b", "00/c"]
    assert (account.bytes, account.entries) == (0, 0)


def test_nothing_goes_while_there_is_room():
    account = Account()
    for number in range(10):
        account.note(row(f"00/{number}", size=10, used=number))
    assert drain(account, Share(100, None)) == []
    assert drain(account, Share(99, None)) == ["00/0"]
    assert drain(account, Share(99, 9)) == []
    assert drain(account, Share(99, 7)) == ["00/1", "00/2"]


def test_what_is_spared_stays_in_line():
    account = Account()
    for number in range(3):
        account.note(row(f"00/{number}", used=number))
    assert drain(account, NOTHING, {"00/0"}) == ["00/1", "00/2"]
    assert account.entries == 1
    assert drain(account, NOTHING) == ["00/0"]


def test_a_newer_note_replaces_an_older_one():
    account = Account()
    account.note(row("00/a", size=5, used=0))
    account.note(row("00/b", size=5, used=1))
    account.note(row("00/a", size=7, used=2))
    assert (account.bytes, account.entries) == (12, 2)
    assert drain(account, NOTHING) == ["00/b", "00/a"]


def test_a_shard_is_replaced_alone():
    account = Account()
    account.note(row("00/a"))
    account.note(row("01/b"))
    account.replace("00", [row("00/c", size=3)])
    assert (account.bytes, account.entries) == (4, 2)
    assert sorted(drain(account, NOTHING)) == ["00/c", "01/b"]


NAMES = st.sampled_from([f"{shard}/{name}" for shard in ("00", "01") for name in "abcde"])
CHANGES = st.lists(
    st.tuples(st.sampled_from(["note", "drop", "victim"]), NAMES, st.integers(0, 9), st.integers(0, 9))
)


@given(CHANGES)
def test_an_account_adds_up(changes):
    account, model = Account(), {}
    for what, path, size, used in changes:
        if what == "note":
            account.note(row(path, size, used))
            model[path] = (used, size)
        elif what == "drop":
            account.drop(path)
            model.pop(path, None)
        else:
            victim = account.victim(Share(20, 4), ())
            over = sum(size for _, size in model.values()) > 20 or len(model) > 4
            assert (victim is not None) == over
            if victim is not None:
                assert victim.path == min(model, key=lambda path: (model[path][0], path))
                del model[victim.path]
    assert account.entries == len(model)
    assert account.bytes == sum(size for _, size in model.values())
    assert drain(account, NOTHING) == [] or account.bytes == 0


def test_many_notes_of_few_files_take_no_room():
    account = Account()
    for number in range(10_000):
        account.note(row("00/a", used=number))
    assert len(account._heap) < 100
    assert account.victim(EVERYTHING, ()) is None


# --- settings ----------------------------------------------------------------------------------------------


def test_the_largest_entry_is_an_eighth_of_the_capacity():
    assert Settings().max_entry_bytes == 256 << 20
    assert Settings(max_bytes=800).max_entry_bytes == 100
    assert Settings(max_bytes=1).max_entry_bytes == 1
    assert Settings(max_bytes=800, max_entry_bytes=7).max_entry_bytes == 7
    assert Settings().resolve({"ACACHE_MAX_BYTES": "8MiB"}).max_entry_bytes == 1 << 20


def test_an_entry_larger_than_everything_is_a_mistake():
    with pytest.raises(ValueError, match="max_entry_bytes=9 must not be above max_bytes=8; lower"):
        Settings(max_bytes=8, max_entry_bytes=9)
    with pytest.raises(ValueError, match="ACACHE_MAX_ENTRY_BYTES=9 must not be above max_bytes=8"):
        Settings(max_bytes=8).resolve({"ACACHE_MAX_ENTRY_BYTES": "9"})
    with pytest.raises(ValueError, match="max_entries=0"):
        Settings(max_entries=0)
