"""Launches of a compiler, counted from outside: by a pass-through in front of it, or by a log of launches.

From outside, because a counter inside a program cannot tell "never ran" from "ran and failed".
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Counter", "LaunchLog"]

# A launch is one append of a few bytes to a file opened with O_APPEND, which is atomic among processes of one
# host. An invocation that emits nothing (a version, a preprocessor run) is replaced by the compiler itself.
# Death by a signal is passed on as such. `times` (POSIX) reports the CPU time of all children waited for;
# each launch writes its own file, since two lines need not be one write.
_SCRIPT = """\
#!/bin/sh
for argument do
    if [ "$argument" = {flag} ]; then
        echo launch >>{launches}
        {program} "$@"
        status=$?
        times >>{times}.$$
        [ $status -le 128 ] || kill -$((status - 128)) $$ 2>/dev/null
        exit $status
    fi
done
exec {program} "$@"
"""
_TIME = re.compile(r"(\d+)m(\d+)[.,](\d+)s")


@final
class LaunchLog:
    """Counts the lines of a file to which a compiler that is a library adds one before each compile."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "launches"

    def launches(self) -> int:
        """Return how many launches began so far."""
        try:
            return self.path.read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


@final
class Counter:
    """Counts what one compiler does that is a program.

    :param folder: where its files go; it exists, and all who compile may write there.
    :param program: the absolute path of the real compiler.
    :param flag: the argument that every invocation which emits an object has.
    """

    def __init__(self, folder: Path, program: str, flag: str) -> None:
        self._log = LaunchLog(folder)
        self._times = folder / "times"
        self.executable = folder / "compiler"
        """What to run in place of the compiler."""
        words = {"program": program, "flag": flag, "launches": self._log.path, "times": self._times}
        text = _SCRIPT.format(**{name: shlex.quote(str(word)) for name, word in words.items()})
        self.executable.write_text(text, encoding="utf-8", errors="surrogateescape")
        self.executable.chmod(0o755)

    def launches(self) -> int:
        """Return how many launches began so far."""
        return self._log.launches()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds (user and system) of all launches that have ended, and of what they ran."""
        total = 0.0
        for name in os.listdir(self._times.parent):
            if name.startswith(self._times.name + "."):
                total += sum(map(_children, (self._times.parent / name).read_text().splitlines()[1::2]))
        return total


def _children(line: str) -> float:
    """Read the second line of ``times``: user and system time of the children, as in ``0m1.25s 0m0.10s``."""
    return sum(60 * int(m) + float(f"{s}.{fraction}") for m, s, fraction in _TIME.findall(line))
