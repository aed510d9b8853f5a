"""The smallest program: ask for a compiled artifact. Run it twice, and the second run finds the first one's.

python smallest.py [asyncio|trio]
"""

from __future__ import annotations

import shutil
import sys

import anyio

import acache

C_SOURCE = """
float dot(const float *a, const float *b, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}
"""
PYTHON_SOURCE = "def dot(a, b):\n    return sum(x * y for x, y in zip(a, b))\n"
PY_COMPILE = "import py_compile; py_compile.compile('dot.py', 'dot.pyc', doraise=True, invalidation_mode=2)"


def request() -> acache.Request:
    """Describe what to compile: C where there is a compiler for it, else Python to bytecode."""
    if shutil.which("cc"):
        return acache.compilers.Cc("cc", options=["-O3"]).request(C_SOURCE, label="dot")
    python = acache.compilers.Command(
        [sys.executable, "-I", "-S", "-c", PY_COMPILE], inputs=["dot.py"], outputs=["dot.pyc"]
    )
    return python.request(PYTHON_SOURCE, label="dot")


async def main() -> None:
    """Get the artifact from wherever it is, or compile it."""
    async with acache.Cache() as cache:
        artifact = await cache.compile(request())
    print(f"{len(artifact.data)} bytes, from {artifact.origin}")


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
