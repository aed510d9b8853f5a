"""The command line as a whole: help, exit codes, and its absence."""

from __future__ import annotations

import subprocess
import sys

import pytest

import acache as package


def python(*args):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=60, check=False)


def test_version(acache):
    done = acache("--version")
    assert (done.exit_code, done.stdout) == (0, package.__version__ + "\n")


def test_module_and_script_are_one():
    done = python("-m", "acache", "--version")
    assert (done.returncode, done.stdout) == (0, package.__version__ + "\n")


@pytest.mark.parametrize(
    "command", [[], ["demo"], ["ps"], ["ls"], ["show"], ["clear"], ["stats"], ["doctor"]]
)
def test_help_documents_exit_codes(acache, command):
    done = acache(*command, "--help")
    assert done.exit_code == 0
    assert "Exit codes: 0" in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        ["demo", "--processes", "0"],
        ["demo", "--processes", "many"],
        ["demo", "--processes", "513"],
        ["demo", "--kernels", "0"],
        ["demo", "--compiler", "cl.exe"],
        ["ps", "not-hex"],
        ["ps", "a" * 65],
        ["ps", ""],
        ["ps", "abc", "--namespace", "n"],
        ["ps", "--for", "-1"],
        ["ls", "--sort", "colour"],
        ["ls", "--limit", "0"],
        ["ls", "extra"],
        ["show"],
        ["clear", "--namespace", "n", "--all-namespaces", "--yes"],
        ["stats", "--limit", "0"],
        ["doctor", "--timeout", "0"],
        ["doctor", "--no-such-option"],
        ["no-such-command"],
    ],
)
def test_a_wrong_call_is_code_2_and_names_what_is_wrong(acache, wrong):
    done = acache(*wrong)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.strip()


def test_no_command_shows_help(acache):
    done = acache()
    assert "Commands:" in done.output


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_sentence_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; import acache.cli; acache.cli.main()"
    done = python("-c", code)
    assert done.returncode == 2
    assert done.stdout == ""
    assert 'pip install "acache[cli]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_fault_of_our_own_is_not_taken_for_a_missing_extra():
    code = "import sys; sys.modules['acache.cli._text'] = None; import acache.cli; acache.cli.main()"
    done = python("-c", code)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def test_importing_the_library_imports_nothing_of_the_command_line():
    code = "import sys, acache, acache.cli; print(sorted({'typer', 'rich', 'click'} & set(sys.modules)))"
    assert python("-c", code).stdout == "[]\n"
