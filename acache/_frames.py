"""Frames: how a guard and its parent talk over their socket. No I/O.

A frame is one line, ``<kind> <length> ...``, and then the fields, so that paths, arguments and output may
hold any bytes:

- parent to guard: ``run`` executable, cwd, stdin (a file, unlinked once open; '' = none), limit, argc,
  argv..., NAME=value...; ``serve`` the same, but for the program's input, which is then what ``tell`` order
  gives it, and its output, which is then what ``said`` gives; ``lease`` slot, successor, nonce, interval in
  seconds, folder ('' = none), counter; ``idle``.
- guard to parent: ``ready`` workspace; ``started`` pid, start time; ``said`` some of a serving program's
  output; ``exit`` exit|signal, number, wall and CPU microseconds, bytes dropped of stdout and of stderr,
  stdout, stderr; ``failed`` errno, text (nothing was started); ``oops`` text (the guard itself gives up).
"""

from __future__ import annotations


def encode(kind: str, *fields: bytes) -> bytes:
    """Make one frame of ``kind`` (a word) with any number of fields."""
    head = " ".join([kind, *[str(len(field)) for field in fields]])
    return b"".join([head.encode(), b"\n", *fields])


class Decoder:
    """Takes frames out of a stream of bytes, however it was cut into reads."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[str, list[bytes]]]:
        """Add what was read; return the frames that are now complete."""
        self._data += data
        frames = []
        while (end := self._data.find(b"\n")) >= 0:
            kind, *sizes = self._data[:end].decode().split(" ")
            lengths = [int(size) for size in sizes]
            if len(self._data) < end + 1 + sum(lengths):
                break
            at, fields = end + 1, []
            for length in lengths:
                fields.append(bytes(self._data[at : at + length]))
                at += length
            del self._data[:at]
            frames.append((kind, fields))
        return frames
