"""The documents tell the truth: their commands are typed, and print what the documents say."""

from __future__ import annotations

import json
import re

import pytest

from tests.examples.documents import DOCS, Command, Document, Shell, compare

PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.gcc
@pytest.mark.parametrize("name", ["keys.md", "waiting.md"])
def test_a_document_is_true(name, tmp_path):
    Document(name).run(tmp_path / "kernels")


@pytest.mark.gcc
def test_the_tutorial_is_true_and_compiles_as_often_as_it_says(tmp_path):
    tutorial = Document("tutorial.md")
    tutorial.steps.append(Command("acache stats --json", "…\n"))
    totals = json.loads(tutorial.run(tmp_path / "kernels"))["totals"]
    # the first process's, one for all the eight, and that of the broken source
    assert (totals["launches"], totals["failures"]) == (3, 1)
    assert sum(totals["hits"].values()) == 9


@pytest.mark.parametrize("page", [*PAGES, DOCS.parent / "README.md"], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


# --- the way in which documents are compared ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("243688 bytes, from compiled, after 3.4 s", "99 bytes, from compiled, after 1 min 2 s"),
        ("8 processes, 1 compiled", "8 processes, 1 compiled"),
        ("key          label  size", "key           label       size   "),
        ("first\n…\nlast", "first\nsecond\nthird\nlast"),
        ("file /home/ada/…", "file /home/ada/kernels/cache"),
        ("what [is] this? *", "what [is] this? *"),
        ("", "\n\n"),
    ],
)
def test_what_differs_from_run_to_run_is_the_same(shown, printed):
    compare(Command("", shown), printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("243688 bytes, from compiled, after 3.4 s", "243688 bytes, from disk, after 3.4 s"),
        ("8 processes, 1 compiled", "8 processes, 2 compiled"),
        ("first\nlast", "first\nsecond\nlast"),
        ("first\n…\nlast", "first\nsecond"),
        ("", "something"),
        ("something", ""),
        ("what * this", "what is this"),
    ],
)
def test_what_a_document_says_wrongly_is_found(shown, printed):
    with pytest.raises(AssertionError, match="which the document shows as"):
        compare(Command("", shown), printed)


def test_digits_are_learned_and_meant_by_later_commands(tmp_path):
    learned = compare(Command("", "key 13c3eed2ac43 is there"), "key 246e3f72ce75 is there")
    assert learned == {"13c3eed2ac43": "246e3f72ce75"}


def test_a_shell_tells_what_was_printed_on_both_streams(tmp_path):
    shell = Shell(tmp_path / "kernels")
    try:
        assert shell.run("x=1; echo one; echo two >&2").split() == ["one", "two"]
        assert shell.run("echo $x; pwd").split() == ["1", "/home/ada/kernels"]
    finally:
        shell.close()
