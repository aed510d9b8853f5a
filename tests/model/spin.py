"""Runs spin on the model: translate, compile, search, and read what the search says."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).parent / "lease.pml"
PATIENCE = 300
"""Seconds until a search counts as hung; no aim."""
MEMORY = 6000
"""MiB that a search may take at most."""
CLAIM = "everybody_ends"


@dataclass(frozen=True, slots=True)
class Search:
    """What one exhaustive search found."""

    errors: int
    states: int
    depth: int
    complete: bool
    """Whether all of it was searched: nothing ran out, and nothing was cut off."""
    unreached: tuple[str, ...]
    """Lines of the model's processes that no run ever came to."""
    violation: str | None
    """The claim that does not hold."""
    text: str


def search(folder: Path, *options: str) -> Search:
    """Search all that can happen under these ``-D`` options."""
    live = "LIVE" in options
    defines = [f"-D{option}" for option in options]
    subprocess.run(["spin", "-a", *defines, str(MODEL)], cwd=folder, check=True, capture_output=True)
    kind = ["-DNFAIR=3"] if live else ["-DSAFETY", "-DNOCLAIM"]
    limits = [f"-DMEMLIM={MEMORY}", "-DVECTORSZ=1024", "-DCOLLAPSE"]
    subprocess.run(["cc", "-O2", "-w", *limits, *kind, "-o", "pan", "pan.c"], cwd=folder, check=True)
    walk = ["-a", "-f", "-N", CLAIM] if live else []
    done = subprocess.run(
        ["./pan", "-m200000", "-w24", *walk],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return read(done.stdout + done.stderr)


def read(text: str) -> Search:
    """Take a search's report apart.

    :raises ValueError: it is none.
    """
    counted = re.search(r"depth reached (\d+), errors: (\d+)", text)
    stored = re.search(r"^\s*(\d+) states, stored", text, re.MULTILINE)
    if counted is None or stored is None:
        raise ValueError(f"spin's search said nothing that can be counted:\n{text[-2000:]}")
    wrong = re.search(r"^pan:\d+: (.*?)(?: \(at depth \d+\))?$", text, re.MULTILINE)
    cut = re.search(r"Search not completed|out of memory|max search depth too small|truncated", text)
    return Search(
        errors=int(counted[2]),
        states=int(stored[1]),
        depth=int(counted[1]),
        complete=cut is None,
        unreached=tuple(re.findall(r"^\s+\S+\.pml:(\d+), state \d+, .*$", text, re.MULTILINE)),
        violation=wrong[1] if wrong else None,
        text=text,
    )
