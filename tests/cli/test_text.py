"""Text for terminals: strangers' text is harmless, numbers are short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acache.cli._text import ago, amount, duration, one_line, plain, size


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("softmax", "softmax"),
        ("größe ≥ 3 漢字", "größe ≥ 3 漢字"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("a\rb", r"a\rb"),
        ("\x9b31m", r"\x9b31m"),  # the one-byte form of ESC [
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\udc80", r"\udc80"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
    ],
)
def test_plain_spells_what_a_terminal_would_obey(text, shown):
    assert plain(text) == shown


@given(st.text())
def test_one_line_is_one_harmless_line(text):
    line = one_line(text, 40)
    assert len(line) <= 40
    assert line.isprintable()


@given(st.text())
def test_plain_keeps_what_is_printable(text):
    assert all(each.isprintable() or each in "\n\t" for each in plain(text))
    if text.isprintable():
        assert plain(text) == text


def test_one_line_says_that_it_was_cut():
    assert one_line("x" * 100, 10) == "xxxxxxx..."
    assert one_line("a\nb") == r"a\nb"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (12.3, "12 s"),
        (59.9, "60 s"),
        (61, "1 min 1 s"),
        (7260, "2 h 1 min"),
    ],
)
def test_duration(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (256 << 20, "256 MiB"),
        (3 << 50, "3.0 PiB"),
    ],
)
def test_size(count, shown):
    assert size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (7300, "2 h"),
        (86400 * 400, "400 d"),
    ],
)
def test_ago(seconds, shown):
    assert ago(seconds) == shown


def test_amount():
    assert amount(1, "kernel") == "1 kernel"
    assert amount(0, "kernel") == "0 kernels"
    assert amount(8, "process", "processes") == "8 processes"
