"""A compiler that misbehaves on request; run as ``python -I -S fake_compiler.py MODE [NUMBER]``.

It leaves a file ``ready`` in its TMPDIR once it is in the state that its mode names.
"""

from __future__ import annotations

import os
import signal
import sys
import time


def ready() -> None:
    with open(os.path.join(os.environ["TMPDIR"], "ready"), "w", encoding="ascii") as file:
        file.write(str(os.getpid()))


def fork_sleeper(seconds: float, *, session: bool) -> None:
    """Leave a child that sleeps on, re-parented, with this process's pipes."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        if session:
            os.setsid()
        if os.fork() == 0:
            os.write(writer, b".")
            os.close(writer)
            time.sleep(seconds)
        os._exit(0)
    os.wait()
    os.read(reader, 1)


def main(mode: str, number: float) -> int:
    match mode:
        case "exit":
            return int(number)
        case "signal":
            os.kill(os.getpid(), int(number))
        case "sleep":
            ready()
            time.sleep(number)
        case "busy":
            ready()
            while True:
                pass
        case "stubborn":  # ignores TERM, and so do its children
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            fork_sleeper(number, session=False)
            ready()
            time.sleep(number)
        case "daemon":  # a daemon in a session of its own, which ignores TERM; goes on itself
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            fork_sleeper(number, session=True)
            ready()
            time.sleep(number)
        case "daemon-and-exit":
            fork_sleeper(number, session=True)
        case "grandchild":  # ends, while a grandchild holds its pipes
            os.write(1, b"before")
            fork_sleeper(number, session=False)
            os.write(1, b" after")
        case "spew":
            chunk = b"".join(b"%09d\n" % line for line in range(int(number) // 10))
            for fd in (1, 2):
                sent = 0
                while sent < len(chunk):
                    sent += os.write(fd, chunk[sent:])
        case "tidy":  # cleans up when told to stop
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0 if os.unlink(sys.argv[3]) is None else 1))
            ready()
            time.sleep(number)
        case _:
            raise ValueError(mode)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0))
