"""Judge how a compiler ended: was it the input's fault, or the machine's? Pure, and tested by a table."""

from __future__ import annotations

import re
import signal as signals
from typing import TYPE_CHECKING, Final

from acache._errors import CompileError, CompilerCrashedError
from acache._models import CompileFailure

if TYPE_CHECKING:
    from pathlib import Path

    from acache._models import Completed, FailureReason

__all__ = ["TEXT_LIMIT", "classify", "error_of", "plain_text", "unfinished"]

TEXT_LIMIT: Final = 64 * 1024
"""Characters of the compiler's text that a failure keeps: the first half and the last half."""

_SOURCE_LINE = re.compile(r"^\s*\d*\s*\|")
"""A line in which gcc, clang or cuTile quote the source: its words are the user's, not the compiler's."""

_NO_MEMORY = re.compile(
    r"out of memory allocating \d+ bytes"  # gcc (libiberty xmalloc)
    r"|virtual memory exhausted"  # gcc (libiberty), as
    r"|LLVM ERROR: out of memory"  # clang, tileiras
    r"|std::bad_alloc"
    r"|Cannot allocate memory"  # strerror(ENOMEM)
    r"|(?:nvcc|ptxas|nvlink|fatbinary) fatal\s*:.*[Mm]emory allocation failure"
    r"|catastrophic error: out of memory"  # cicc, cudafe++
    r"|memory exhausted",  # ld, bison-made parsers
)
_NO_DISK = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_NO_PROCESS = re.compile(r"Resource temporarily unavailable|Too many open files")
_CHILD_KILLED = re.compile(
    r"\w signal terminated program"  # gcc: "Killed signal terminated program cc1plus"
    r"|internal compiler error: (?:Killed|Terminated) \(program"  # gcc before 10
    r"|terminated (?:with|by) signal \d+"  # collect2, make
    r"|command failed due to signal"  # clang
    r"|unable to execute command: (?:Killed|Terminated|Segmentation fault|Aborted)"  # clang
    r"|nvcc error\s*: '[^'\n]*' died due to signal \d+",
)
_POSITIONED = (
    # gcc, clang, rustc --error-format=short, and most others: file:line[:column]: [fatal ]error:
    re.compile(r"^(?!\s)[^\n]*?:\d+(?::\d+)?:\s*(?:fatal |syntax )?error\b", re.IGNORECASE),
    # nvcc, cl: file(line): error
    re.compile(r"^(?!\s)[^\n]*?\(\d+(?:,\d+)?\)\s*:\s*(?:fatal |catastrophic )?error\b", re.IGNORECASE),
    # ptxas: of a line of PTX; of a kernel as a whole; of options, which nvcc passes on as they are
    re.compile(r"^ptxas [^\n]*, line \d+; (?:error|fatal)\s*:"),
    re.compile(r"^ptxas error\s*: "),
    re.compile(
        r"^ptxas fatal\s*: (?:\(C\d+\) )?(?:Unresolved extern |Unknown option |Value '[^'\n]*' is not )"
    ),
    re.compile(r"^ptxas fatal\s*: (?:\(C\d+\) )?Register allocation failed"),
    # nvcc, of its options
    re.compile(
        r"^nvcc fatal\s*: (?:Unsupported gpu architecture|Unknown option|Value '[^'\n]*' is not defined"
        r"|Option '[^'\n]*' |'[^'\n]*': expected )"
    ),
    # tileiras: loc("file":line:column) ... : error:
    re.compile(r"\bloc\((?:[^\n]*\[)?\"[^\"\n]*\":\d+:\d+\]?\)[^\n]*: error: "),
    # tileiras, of bytecode that does not parse or verify (exit status 3)
    re.compile(r"^error: (?:error at offset \d+:|input does not correspond to Tile IR bytecode)"),
    # tileiras, of an architecture it does not know (exit status 1)
    re.compile(r"^tileiras: for the --[a-z-]+ option: Cannot find option named "),
)


def plain_text(completed: Completed, workspace: Path | None = None) -> str:
    """Return what the compiler said, bounded, without the name of the private workspace.

    Standard error comes first; standard output follows where it says anything, since some compilers report
    there.
    """
    pieces = [
        stream.decode("utf-8", "replace").strip("\n") for stream in (completed.stderr, completed.stdout)
    ]
    text = "\n".join(piece for piece in pieces if piece.strip())
    if workspace is not None:
        text = text.replace(f"{workspace}/", "").replace(str(workspace), ".")
    if len(text) > TEXT_LIMIT:
        half = TEXT_LIMIT // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    return text


def classify(completed: Completed, text: str) -> CompileFailure:
    """Say why a run gave no artifact.

    A failure is *deterministic* only when the text holds a diagnostic about the input: an error with a
    position in it. Want of memory, disk or processes, a signal (also one that a wrapper reports as 128 + n),
    a killed child and an exit that nobody recognises are not. The machine's faults are looked for first,
    since compilers give them a source position as well; a mistake in that direction costs a compile, the
    other one poisons every waiter.
    """
    said = "\n".join(line for line in text.splitlines() if not _SOURCE_LINE.match(line))
    status, signal = completed.exit_status, completed.signal
    if signal is None and status is not None and 128 < status <= 128 + max(signals.Signals):
        signal, status = status - 128, None
    deterministic = False
    reason: FailureReason
    if _NO_MEMORY.search(said):
        reason = "memory"
    elif _NO_DISK.search(said) or signal == getattr(signals, "SIGXFSZ", -1):
        reason = "disk"
    elif signal is not None or _CHILD_KILLED.search(said):
        reason = "signal"
    elif _NO_PROCESS.search(said):
        reason = "spawn"
    elif any(pattern.search(line) for line in said.splitlines() for pattern in _POSITIONED):
        reason, deterministic = "diagnostic", True
    else:
        reason = "exit"
    return CompileFailure(
        reason=reason,
        text=text,
        exit_status=status,
        signal=signal,
        seconds=completed.seconds,
        deterministic=deterministic,
    )


def error_of(completed: Completed, workspace: Path | None = None) -> CompileError:
    """Make the exception for a run that failed: `CompilerCrashedError` when it died, else `CompileError`."""
    failure = classify(completed, plain_text(completed, workspace))
    kind = CompilerCrashedError if failure.reason in {"signal", "spawn"} else CompileError
    return kind(failure)


def unfinished(completed: Completed, text: str, reason: FailureReason = "exit") -> CompileError:
    """Make the exception for a run that ended well, and yet did not do what it says."""
    return CompileError(
        CompileFailure(reason=reason, text=text.rstrip(), exit_status=0, seconds=completed.seconds)
    )
