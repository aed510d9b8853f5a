"""A deterministic compiler of some size; run as ``python -I -S compiler.py LOG SECONDS MODE OUT < SOURCE``.

It appends its pid to LOG before anything else, so that a launch counts even when it is killed. In MODE
``hang`` the first launch of a log never ends; later ones, and those of mode ``ok``, take SECONDS. The output
is made of the source alone, a piece at a time and with a child of its own, as drivers of compilers do.
"""

from __future__ import annotations

import os
import sys
import time

PIECE = 4096


def artifact_of(source: bytes) -> bytes:
    """Return what is compiled from a source: between 4 KiB and 1 MiB, different for every source."""
    pieces = 1 << (sum(source) % 9)
    return b"".join((b"%06d " % number + source).ljust(PIECE, b".")[:PIECE] for number in range(pieces))


def main(log: str, seconds: float, mode: str, output: str) -> int:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(fd, b"%d\n" % os.getpid())
    os.close(fd)
    with open(log, "rb") as file:
        first = file.read().count(b"\n") == 1
    child = os.fork()
    if child == 0:  # it would be an orphan, were only its parent killed
        time.sleep(3600 if mode == "hang" and first else seconds)
        os._exit(0)
    os.waitpid(child, 0)
    data = artifact_of(sys.stdin.buffer.read())
    with open(output, "wb", buffering=0) as file:
        for at in range(0, len(data), PIECE):
            file.write(data[at : at + PIECE])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4]))
