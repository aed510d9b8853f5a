"""The counters behind ``acache stats``: bounded, mergeable, and checked when they are read."""

from __future__ import annotations

import json

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from acache import _tally
from acache._tally import COUNTS, SECONDS, Tag, Tally, TallyError, decode_tally, encode_tally

NAMES = st.none() | st.text(max_size=5)
AMOUNTS = st.integers(1, 10**6)
ROWS = st.lists(st.tuples(NAMES, NAMES, st.dictionaries(st.sampled_from(COUNTS + SECONDS), AMOUNTS)))


def tally_of(rows, most=_tally.PROCESS_ROWS):
    tally = Tally(most)
    for label, compiler, counts in rows:
        tally.count(label, compiler, counts)
    tally.processes, tally.first, tally.last = 1, 10.0, 20.5
    return tally


def state(tally):
    return tally.rows, tally.processes, tally.first, tally.last


def sums(*rows):
    total = {}
    for _, _, counts in (each for some in rows for each in some):
        for name, amount in counts.items():
            total[name] = total.get(name, 0) + amount
    return total


# --- counting ----------------------------------------------------------------------------------------------


def test_counts_by_label_and_compiler():
    tally = Tally()
    tally.count("a", "Cc", {"disk_hits": 1, "disk_saved": 2.5, "bytes_read": 4096})
    tally.count("a", "Cc", {"disk_hits": 1})
    tally.count("a", None, {"misses": 1})
    assert tally.rows == {
        ("a", "Cc", False): {"disk_hits": 2, "disk_saved": 2.5},
        ("a", None, False): {"misses": 1},
    }


def test_what_is_not_kept_by_label_makes_no_row():
    tally = Tally()
    tally.count(None, None, {"store_errors": 1, "corrupt": 1, "misses": 0})
    assert tally.rows == {}


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf"), 1e300])
def test_an_amount_that_a_planted_header_claims_counts_nothing(amount):
    tally = Tally()
    tally.count("a", None, {"disk_hits": 1, "disk_saved": amount})
    assert tally.rows == {("a", None, False): {"disk_hits": 1}}


def test_labels_beyond_the_bound_are_counted_as_the_rest_of_their_compiler():
    tally = Tally(most=3)
    for number in range(10):
        tally.count(f"label {number}", "Cc" if number % 2 else "Nvcc", {"compiles": 1})
    tally.count("label 0", "Nvcc", {"compiles": 1})
    assert len(tally.rows) == 5
    assert tally.rows[Tag("label 0", "Nvcc")] == {"compiles": 2}
    assert tally.rows[Tag(None, "Nvcc", rest=True)] == {"compiles": 3}
    assert tally.rows[Tag(None, "Cc", rest=True)] == {"compiles": 4}
    assert tally.by_compiler() == {"Nvcc": {"compiles": 6}, "Cc": {"compiles": 5}}


def test_the_rest_is_no_label_of_that_name():
    tally = Tally(most=1)
    tally.count(None, "Cc", {"compiles": 1})
    tally.count("x", "Cc", {"compiles": 2})
    assert tally.by_label() == {(None, False): {"compiles": 1}, (None, True): {"compiles": 2}}


def test_compilers_are_bounded_too():
    tally = Tally(most=1)
    for number in range(1000):
        tally.count("x", f"Compiler{number}", {"compiles": 1})
    assert len(tally.rows) <= 1 + _tally._COMPILERS + 1
    assert tally.totals() == {"compiles": 1000}


def test_long_names_are_cut_and_found_again():
    tally = Tally()
    for _ in range(2):
        tally.count("l" * 1000, "c" * 1000, {"misses": 1})
    ((tag, row),) = tally.rows.items()
    assert (len(tag.label), len(tag.compiler), row) == (120, 60, {"misses": 2})


# --- adding ------------------------------------------------------------------------------------------------


@given(ROWS, ROWS, st.integers(0, 4))
def test_adding_and_shrinking_lose_nothing(one, two, most):
    total = Tally(most=10**6)
    total.absorb(tally_of(one))
    total.absorb(tally_of(two, most=2))
    assert total.totals() == sums(one, two)
    total.shrink(most)
    assert sum(not tag.rest for tag in total.rows) <= most
    assert total.totals() == sums(one, two)
    assert (total.processes, total.first, total.last) == (2, 10.0, 20.5)


def test_shrinking_keeps_what_weighs_most():
    tally = tally_of([("cheap", None, {"compile_seconds": 1}), ("dear", None, {"disk_saved": 100})])
    tally.shrink(1)
    assert set(tally.rows) == {("dear", None, False), (None, None, True)}
    tally.count("new", None, {"misses": 1})  # there is room again only for what was let go
    assert len(tally.rows) == 3


# --- bytes -------------------------------------------------------------------------------------------------


@given(ROWS)
def test_a_record_comes_back_as_it_was(rows):
    tally = tally_of(rows)
    tally.shrink(3)
    assert state(decode_tally(encode_tally(tally))) == state(tally)


def test_seconds_survive_to_the_last_digit():
    tally = tally_of([("a", None, {"compile_seconds": 0.1 + 0.2})])
    assert decode_tally(encode_tally(tally)).totals() == {"compile_seconds": 0.1 + 0.2}


def test_counters_of_a_later_version_are_kept():
    tally = tally_of([("a", None, {"misses": 1})])
    tally.rows["a", None, False]["moons"] = 3
    total = Tally()
    total.absorb(decode_tally(encode_tally(tally)))
    assert decode_tally(encode_tally(total)).totals() == {"misses": 1, "moons": 3}


def test_any_flipped_byte_is_found():
    data = encode_tally(tally_of([("a", "Cc", {"misses": 1})]))
    for at in range(len(data) - 1):  # the last is a newline
        bad = bytearray(data)
        bad[at] ^= 1
        with pytest.raises(TallyError):
            decode_tally(bad)


def test_any_torn_record_is_found():
    data = encode_tally(tally_of([("a", "Cc", {"misses": 1})]))
    for length in range(len(data) - 1):
        with pytest.raises(TallyError):
            decode_tally(data[:length])


@pytest.mark.parametrize(
    "change",
    [
        {"processes": -1},
        {"processes": True},
        {"first": None},
        {"first": 1e300},
        {"rows": [["a", None, False, {"misses": -1}]]},
        {"rows": [["a", None, False, {"misses": "1"}]]},
        {"rows": [["a", None, 0, {"misses": 1}]]},
        {"rows": [[["a"], None, False, {"misses": 1}]]},
        {"rows": [["a", None, False]]},
        {"rows": [["a", None, False, [1]]]},
        {"rows": [["a", None, False, {str(number): 1 for number in range(100)}]]},
        {"rows": 3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_nonsense_under_a_good_check_is_found(change):
    body = {"processes": 1, "first": 1, "last": 2, "rows": [], **change}
    good = {"format": 1, "tally": body, "check": xxhash.xxh3_128_hexdigest(_tally._canonical(body).encode())}
    with pytest.raises(TallyError) as caught:
        decode_tally(json.dumps(good).encode())
    assert not caught.value.later


def test_a_later_format_is_told_apart_from_a_bad_record():
    with pytest.raises(TallyError) as caught:
        decode_tally(b'{"format": 2, "whatever": 1}')
    assert caught.value.later


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000, b'{"format":1}'])
def test_what_is_no_record_at_all(data):
    with pytest.raises(TallyError):
        decode_tally(data)
