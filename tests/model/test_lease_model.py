"""The lease protocol, searched exhaustively; and broken on purpose, which the search must find."""

from __future__ import annotations

import pytest

from tests.model.spin import MODEL, read, search

pytestmark = [pytest.mark.spin, pytest.mark.timeout(400)]

TROUBLE = ("CRASH", "SUSPEND", "STALE", "STALL", "QUIT", "LOST", "FULL")

HOLDS = {
    "no fault": (("TIDY",), 1_000),
    "any one fault": (("FAULTS=1", *TROUBLE), 10_000_000),
    "any two faults of two processes": (("N=2", "FAULTS=2", *TROUBLE), 100_000),
    "two crashes, hangs, quits or full disks": (("FAULTS=2", "CRASH", "STALL", "QUIT", "FULL"), 1_000_000),
    "nothing is left behind or taken from others": (
        ("FAULTS=1", "CRASH", "STALE", "STALL", "LOST", "FULL", "TIDY"),
        100_000,
    ),
    "a compile that fails, and any one fault": (
        ("FAIL", "FAULTS=1", "CRASH", "STALE", "SUSPEND", "STALL", "FULL"),
        100_000,
    ),
    "everybody comes to an end": (("LIVE", "FAULTS=1", "CRASH", "STALL", "FULL"), 10_000),
    "everybody hears of a failure": (("LIVE", "FAIL", "FAULTS=1", "CRASH"), 10_000),
}
"""What is claimed under which options, and how many states the search has at least: none can be empty."""

BROKEN = {
    "NO_SEAL": ("FAULTS=1", "STALL", "TIDY"),
    "NO_WALK": ("FAULTS=1", "STALL", "TIDY"),
    "ROOT_FIRST_RIVAL": ("FAULTS=2", "STALL", "QUIT"),
    "NO_LAST_LOOK": (),
    "ONE_NONCE": ("FAULTS=2", "SUSPEND", "QUIT"),
    "HEDGED_HEDGE": ("FAULTS=1", "STALL"),
    "NO_REREAD": ("FAULTS=1", "LOST", "TIDY"),
    "ERR_OF_SUPERSEDED": ("FAULTS=2", "STALL", "QUIT"),
    "ART_ONLY_LAST_LOOK": ("FAIL",),
    "EARLY_RELEASE": (),
}
"""Rules of the protocol undone, and the least trouble under which the search must find what comes of it; with
all rules in place it finds nothing under the same trouble."""


@pytest.mark.parametrize("claim", HOLDS)
def test_what_is_claimed_holds(claim, tmp_path):
    options, least = HOLDS[claim]
    found = search(tmp_path, *options)
    assert found.violation is None, found.text
    assert (found.errors, found.complete) == (0, True)
    assert found.states >= least
    print(f"{claim}: {found.states:,} states, depth {found.depth}")


@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_that_is_undone_is_missed(rule, tmp_path):
    found = search(tmp_path, rule, *BROKEN[rule])
    assert found.errors == 1
    assert found.violation is not None


def test_each_rule_that_the_model_can_undo_is_undone_here():
    text = MODEL.read_text()
    begin = text.index("Broken on purpose")
    listed = text[begin : text.index("*/", begin)].partition(":")[2]
    assert sorted(BROKEN) == sorted(word.strip(" .*\n") for word in listed.split(","))
    assert all(rule in text[text.index("*/") :] for rule in BROKEN)


def test_a_search_that_says_nothing_is_no_success():
    with pytest.raises(ValueError, match="nothing that can be counted"):
        read("spin: error")
