"""A compiler of known cost; run as ``python -I -S slow_compiler.py LOG SECONDS MODE OUTPUT``.

It appends a line to LOG before anything else, so that a launch counts even when it fails. Then MODE: ``ok``
sleeps, ``busy`` burns CPU; ``fail`` reports a diagnostic, ``crash`` dies by a signal, ``oom`` and ``full``
say that memory or disk ran out; ``hang`` and ``stubborn`` never end on their first launch (and are ``ok`` on
later ones), the latter also ignores TERM and starts a daemon in a session of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time


def main(log: str, seconds: float, mode: str, output: str) -> int:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(fd, b"%d %f\n" % (os.getpid(), time.time()))
    os.close(fd)
    with open(log, "rb") as file:
        first = file.read().count(b"\n") == 1
    if first and mode in ("hang", "stubborn"):
        if mode == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
        time.sleep(3600)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if mode == "busy":
            sum(range(1000))
        else:
            time.sleep(min(0.05, max(0.0, end - time.monotonic())))
    if mode == "fail":
        sys.stderr.write("kernel.x:3:7: error: a tile of 17 elements\n")
        return 1
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "oom":
        sys.stderr.write("virtual memory exhausted: Cannot allocate memory\n")
        return 1
    if mode == "full":
        sys.stderr.write("cannot write output: No space left on device\n")
        return 1
    with open(output, "wb") as file:
        file.write(b"compiled " * 1000 + sys.stdin.buffer.read())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4]))
