"""The compilers that acache ships, and the protocol that makes any other program one.

A compiler is a frozen value: making it does no I/O. Its ``request(source, ...)`` makes a `Request`, equally
free of I/O. Three steps turn a request into an artifact, each off the event loop's thread:

1. ``await compiler.prepare(request)`` reads what the request points at (files, a kernel's bytecode,
   preprocessed text, the environment variables on the allow-list) and returns a request that carries it.
   Preparing a prepared request returns it as it is. What is keyed is therefore what is compiled, whatever
   happens to the files meanwhile.
2. ``await compiler.key_fields(prepared)`` names every input of the compile.
3. ``await compiler.compile(prepared, workspace)`` compiles.

``key_fields`` and ``compile`` prepare a request that is not prepared yet, so each works alone; who needs both
to speak of the same content prepares first, as `acache.Cache` does. (Of a compiler of your own, only the last
two are asked: `Compiler`; one that has ``prepare`` as well is a `PreparingCompiler`; one that is hosted by
worker processes, which a cache keeps warm, is a `WarmCompiler`.)
"""

from __future__ import annotations

from acache._models import (
    Compiler,
    Completed,
    PreparingCompiler,
    Request,
    WarmCompiler,
    Worker,
    WorkerProgram,
    Workspace,
)
from acache.compilers._cc import Cc
from acache.compilers._command import Command
from acache.compilers._nvcc import Nvcc
from acache.compilers._nvrtc import Nvrtc
from acache.compilers._tileiras import Tileiras

__all__ = [
    "Cc",
    "Command",
    "Compiler",
    "Completed",
    "Nvcc",
    "Nvrtc",
    "PreparingCompiler",
    "Request",
    "Tileiras",
    "WarmCompiler",
    "Worker",
    "WorkerProgram",
    "Workspace",
]
