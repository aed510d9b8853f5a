"""A compiler that takes its time: a Python source to bytecode, after some seconds of work.

    python slow_compiler.py SECONDS SOURCE OUTPUT

It stands in for the compilers that keep services waiting, on machines that have none.
"""

from __future__ import annotations

import marshal
import sys
import time


def main(seconds: float, source: str, output: str) -> int:
    """Compile; an error in the source is reported as compilers do, with its place."""
    with open(source, encoding="utf-8") as file:
        text = file.read()
    try:
        code = compile(text, source, "exec")
    except SyntaxError as error:
        print(f"{source}:{error.lineno}:{error.offset}: error: {error.msg}", file=sys.stderr)
        return 1
    while time.process_time() < seconds:
        sum(range(10_000))
    with open(output, "wb") as file:
        file.write(marshal.dumps(code))
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2], sys.argv[3]))
