"""What the process tests share: finding processes by a token in their environment, and waiting for a fact."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
FAKE = [sys.executable, "-I", "-S", str(HERE / "fake_compiler.py")]
PATIENCE = 20.0
"""Seconds until a wait counts as hung; no aim."""


def alive(token: str) -> list[int]:
    """Return the living processes that have ``token`` in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if token.encode() in Path("/proc", name, "environ").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


async def until(fact: Callable[[], Any]) -> Any:
    """Poll until ``fact`` returns something true; fail when it does not for long."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := fact()):
        assert time.monotonic() < deadline, f"waited in vain for {fact}"
        await anyio.sleep(0.005)
    return answer


def until_now(fact: Callable[[], Any]) -> Any:
    """Do the same without a loop."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := fact()):
        assert time.monotonic() < deadline, f"waited in vain for {fact}"
        time.sleep(0.005)
    return answer
