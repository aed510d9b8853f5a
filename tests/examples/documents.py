"""Runs a document: lays down its files, types its commands into one shell, and compares what they print.

In a document's Markdown

- a ``python`` block that begins with a comment that names a file (``# warm_up.py``) is that file;
- in a ``console`` block, lines that begin with ``$`` are commands, and the others are what they print;
- a block behind ``<!-- not run -->`` is left alone; every other ``python`` or ``console`` block is run.

What differs from run to run is compared by its shape: hexadecimal digits, quantities, and numbers of two
digits or more. A line with such a number is compared by its words, and one without it as it is. A line ``…``
stands for any lines, and at a line's end for its rest.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import acache

DOCS = Path(__file__).resolve().parents[2] / "docs"
PATIENCE = 60.0
"""Seconds until a command counts as hung; no aim."""
_HOME, _HOST = "/home/ada/kernels", "node-7"
"""What the documents call the folder and the host on which they were written."""

_BLOCK = re.compile(r"(<!-- not run -->\n+)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")
_HEX = re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{10,}\b")
_UNIT = r"\d+(?:\.\d+)* (?:%|(?:ms|s|min|h|d|B|KiB|MiB|GiB|bytes)\b)"
_QUANTITY = re.compile(rf"\b{_UNIT}(?: {_UNIT})*")
_NUMBER = re.compile(r"\d+(\.\d+)*|(?<= )-(?= )")
_PLACES = (
    (re.compile(r"^file system .*"), "file system"),
    (re.compile(r"\b(user|group) \d+"), r"\1"),
    (re.compile(r"\bACACHE_DIR=\S*"), "ACACHE_DIR="),
)
_LOOSE = re.compile(r"‹quantity›|\d\.\d|\d\d")
_NOTICE = re.compile(r"^\S*bash: (line \d+: )?\s*\d+ (Killed|Terminated|Stopped)\b.*$", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """One command, and what the document says that it prints."""

    line: str
    output: str


class Document:
    """One page of the documentation, taken apart."""

    def __init__(self, name: str) -> None:
        self.steps: list[tuple[str, str] | Command] = []
        for skip, language, text in _BLOCK.findall((DOCS / name).read_text(encoding="utf-8")):
            if skip or language not in ("python", "console"):
                continue
            if language == "console":
                self.steps += _commands(text)
                continue
            named = _FILE.match(text)
            assert named, f"{name}: a python block is neither named nor marked as not run:\n{text}"
            self.steps.append((named[1], text))

    def run(self, folder: Path) -> str:
        """Do what it says in a folder of its own; returns what its last command printed."""
        shell, said = Shell(folder), ""
        learned: dict[str, str] = {}
        try:
            for step in self.steps:
                if isinstance(step, Command):
                    line = _HEX.sub(lambda found: learned.get(found[0], found[0]), step.line)
                    said = shell.run(line)
                    learned.update(compare(step, said))
                else:
                    (folder / step[0]).write_text(step[1], encoding="utf-8")
        finally:
            shell.close()
        return said


def _commands(text: str) -> list[Command]:
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ""))
        else:
            found[-1] = Command(found[-1].line, f"{found[-1].output}{line}\n")
    return found


def compare(step: Command, said: str) -> dict[str, str]:
    """Compare what a command printed with the document; returns the hexadecimal digits of the document, each
    with those that stand in its place now: later commands that name them mean these.
    """
    shapes = [shape for line in step.output.splitlines() if (shape := shape_of(line))]
    real = [line for line in said.splitlines() if shape_of(line)]
    pattern = "\n".join(_glob(shape) for shape in shapes)
    assert fnmatch.fnmatchcase("\n".join(map(shape_of, real)), pattern), (
        f"$ {step.line}\nprinted\n{said}\nwhich the document shows as\n{step.output}"
    )
    return dict(zip(_HEX.findall(step.output), _HEX.findall("\n".join(real)), strict=False))


def shape_of(line: str) -> str:
    """Return a line without what differs from run to run and from host to host."""
    for pattern, shape in _PLACES:
        line = pattern.sub(shape, line)
    line = _QUANTITY.sub("‹quantity›", _HEX.sub("‹hex›", line))
    if _LOOSE.search(line):
        line = _NUMBER.sub("‹number›", line)
    return " ".join(line.split())


def _glob(shape: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", shape).replace("…", "*")


class Shell:
    """One bash for all commands of a document, with ``python`` and ``acache`` as a user has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        programs = folder.with_name(f"{folder.name}-bin")
        programs.mkdir()
        folder.mkdir()
        for name, command in (("python", ""), ("acache", " -m acache")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{command} "$@"\n')
            program.chmod(0o755)
        env = {name: value for name, value in os.environ.items() if not name.startswith("ACACHE_")}
        env |= {
            "PATH": f"{programs}{os.pathsep}{env['PATH']}",
            "HOME": str(folder),
            "COLUMNS": "130",
            "TERM": "dumb",
            "PYTHONPATH": str(Path(acache.__file__).parents[1]),
        }
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, line: str) -> str:
        """Type a line; returns what was printed until the prompt would come back."""
        assert self._bash.stdin
        assert self._bash.stdout
        alarm = threading.Timer(PATIENCE, self._kill)
        alarm.start()
        try:
            self._bash.stdin.write(f"{line}\necho; echo =prompt=\n")
            self._bash.stdin.flush()
            said = ""
            for printed in self._bash.stdout:
                if printed == "=prompt=\n":
                    return _NOTICE.sub("", said.replace(str(self._folder), _HOME)).replace(
                        socket.gethostname(), _HOST
                    )
                said += printed
            raise AssertionError(f"$ {line}\ndid not end, and printed\n{said}")
        finally:
            alarm.cancel()
            alarm.join()

    def _kill(self) -> None:
        os.killpg(self._bash.pid, 9)

    def close(self) -> None:
        """End it, and what still runs in the background."""
        assert self._bash.stdin
        assert self._bash.stdout
        self._kill()
        self._bash.wait()
        self._bash.stdin.close()
        self._bash.stdout.close()
