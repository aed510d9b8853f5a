"""Whose fault was it? A table of what real compilers said, with how each must be judged."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from acache._errors import CompileError, CompilerCrashedError
from acache._models import Completed
from acache.compilers._diagnostics import TEXT_LIMIT, classify, error_of, plain_text


def ended(stderr: str = "", status: int | None = 1, killed: int | None = None, stdout: str = "") -> Completed:
    return Completed(
        argv=("cc",),
        exit_status=None if killed else status,
        signal=killed,
        stdout=stdout.encode(),
        stderr=stderr.encode(),
        seconds=0.5,
        cpu_seconds=0.5,
    )


INPUT = {
    "gcc": "x.c: In function 'f':\nx.c:1:17: error: 'g' undeclared (first use in this function)",
    "gcc, no column": "x.f:12: Error: Unclassifiable statement",
    "gcc, missing header": "<stdin>:1:10: fatal error: nope.h: No such file or directory\n"
    "compilation terminated.",
    "clang": "/src/x.cpp:3:5: error: use of undeclared identifier 'y'\n    3 |     y\n1 error generated.",
    "gas": "x.s:1: Error: no such instruction: `frob'",
    "nvcc": 'k.cu(4): error: identifier "foo" is undefined',
    "nvcc, catastrophic": 'k.cu(1): catastrophic error: cannot open source file "nope.h"',
    "nvcc, target": "nvcc fatal   : Unsupported gpu architecture 'sm_20'",
    "nvcc, option": "nvcc fatal   : Unknown option '-foo'",
    "nvcc, value": "nvcc fatal   : Value 'c++99' is not defined for option 'std'",
    "nvcc, options at odds": (
        "nvcc fatal   : Option '-dlto' cannot generate '--cubin' intermediate at compile time"
    ),
    "nvcc, no value": "nvcc fatal   : '-cubin': expected true or false",
    "ptxas, a line": (
        "ptxas tmpxft_000043ad_00000000-6_k.ptx, line 27; error   : Unknown modifier '.bar'\n"
        "ptxas fatal   : Ptx assembly aborted due to errors"
    ),
    "ptxas, a kernel": (
        "ptxas error   : Entry function '_Z1kPi' uses too much shared data (0x61a80 bytes, 0xc000 max)"
    ),
    "ptxas, a symbol": "ptxas fatal   : Unresolved extern function '_Z5otheri'",
    "ptxas, registers": (
        "ptxas fatal   : (C7600) Register allocation failed with register count of '16'."
        " Compile the program with a higher register target"
    ),
    "ptxas, option": "ptxas fatal   : Unknown option 'foo'",
    "msvc": "k.cpp(4,7): fatal error C1083: Cannot open include file",
    "tileiras, refused": (
        '#cuda_tile.di_loc<loc("k.py":20:9) in #cuda_tile.di_subprogram<file = <"k.py" in ".">, line = 19>>: '
        "error: Incompatibility with architecture 'sm_80': unsupported type 'f8E4M3FN'\n"
        "error: failed to compile Tile IR program"
    ),
    "tileiras, plain location": 'loc("k.py":3:4): error: failed to legalize operation',
    "tileiras, not bytecode": "error: input does not correspond to Tile IR bytecode",
    "tileiras, truncated": "error: error at offset 298: section length 483 exceeds remaining data size 402",
    "tileiras, architecture": "tileiras: for the --gpu-name option: Cannot find option named 'sm_42'!",
}

MACHINE = {
    "gcc: no memory": ("cc1plus: out of memory allocating 65536 bytes after a total of 9 bytes", "memory"),
    "as: no memory": ("virtual memory exhausted: Cannot allocate memory", "memory"),
    "clang: no memory": ("LLVM ERROR: out of memory\nPLEASE submit a bug report", "memory"),
    "C++: no memory": ("terminate called after throwing an instance of 'std::bad_alloc'", "memory"),
    "ptxas: no memory": ("ptxas fatal   : Memory allocation failure", "memory"),
    "nvcc: no memory": ("nvcc fatal   : Memory allocation failure", "memory"),
    "cicc: no memory": (
        "/usr/include/c++/12/bits/shared_ptr.h(869): catastrophic error: out of memory\n"
        '1 catastrophic error detected in the compilation of "k.cu".',
        "memory",
    ),
    "no memory, with a position": ("x.c:3:1: fatal error: Cannot allocate memory", "memory"),
    "gcc: no disk": ("x.c:9:1: fatal error: error writing to cc1.s: No space left on device", "disk"),
    "tileiras: no disk": ("LLVM ERROR: IO failure on output stream: No space left on device", "disk"),
    "as: quota": ("cc1.s: Fatal error: can't write 11 bytes: Disk quota exceeded", "disk"),
    "gcc: child killed": ("gcc: fatal error: Killed signal terminated program cc1plus\nstopped.", "signal"),
    "gcc: child crashed": ("gcc: fatal error: Segmentation fault signal terminated program cc1", "signal"),
    "gcc 9: child killed": ("g++: internal compiler error: Killed (program cc1plus)", "signal"),
    "clang: child killed": ("clang: error: unable to execute command: Killed", "signal"),
    "nvcc: child killed": ("nvcc error   : 'ptxas' died due to signal 9 (Kill signal)", "signal"),
    "collect2": ("collect2: fatal error: ld terminated with signal 9 [Killed]", "signal"),
    "gcc: no process": (
        "gcc: fatal error: cannot execute cc1: vfork: Resource temporarily unavailable",
        "spawn",
    ),
}

NOBODY_KNOWS = {
    "silent": "",
    "internal error": "x.c:5:1: internal compiler error: in expand_call, at calls.cc:3210",
    "loader": "cc1: error while loading shared libraries: libc.so.6: failed to map segment",
    "tileiras, whatever befell its ptxas": "error: failed to compile Tile IR program",
    "ptxas, a file": "ptxas fatal   : Could not open output file 'k.cubin'",
    "nvcc, a file": "nvcc fatal   : Could not open output file '/tmp/tmpxft_00002428'",
    "a warning": "x.c:1:2: warning: unused variable 'error'",
    "a position in passing": "ran 3:4 tests, error rate 0",
}


@pytest.mark.parametrize("text", INPUT.values(), ids=INPUT)
def test_a_diagnostic_about_the_input_is_deterministic(text: str) -> None:
    failure = classify(ended(text), text)
    assert (failure.reason, failure.deterministic) == ("diagnostic", True)
    assert failure.text == text
    assert failure.exit_status == 1
    assert failure.seconds == 0.5


@pytest.mark.parametrize(("text", "reason"), MACHINE.values(), ids=MACHINE)
def test_the_machines_fault_is_not(text: str, reason: str) -> None:
    failure = classify(ended(text), text)
    assert (failure.reason, failure.deterministic) == (reason, False)


@pytest.mark.parametrize(("text", "reason"), MACHINE.values(), ids=MACHINE)
def test_the_machines_fault_wins_over_a_diagnostic_beside_it(text: str, reason: str) -> None:
    both = f"{INPUT['gcc']}\n{text}"
    failure = classify(ended(both), both)
    assert (failure.reason, failure.deterministic) == (reason, False)


@pytest.mark.parametrize("text", NOBODY_KNOWS.values(), ids=NOBODY_KNOWS)
def test_an_exit_that_nobody_recognises_is_not_deterministic(text: str) -> None:
    failure = classify(ended(text, status=5), text)
    assert (failure.reason, failure.deterministic, failure.exit_status) == ("exit", False, 5)


def test_quoted_source_is_not_the_compilers_word() -> None:
    text = """x.c:1:7: error: static assertion failed
        1 | static_assert(0, "No space left on device");
          | ^"""
    assert classify(ended(text), text).reason == "diagnostic"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_signal(number: signal.Signals) -> None:
    failure = classify(ended(killed=number), "")
    assert (failure.reason, failure.signal, failure.exit_status) == ("signal", number, None)
    assert not failure.deterministic


def test_a_signal_that_a_wrapper_reports() -> None:
    failure = classify(ended(status=137), "")
    assert (failure.reason, failure.signal) == ("signal", 9)
    assert "out of memory" in failure.summary


def test_a_status_beyond_all_signals_is_a_status() -> None:
    failure = classify(ended(status=255), "")
    assert (failure.reason, failure.exit_status, failure.signal) == ("exit", 255, None)


def test_a_signal_with_a_reason_has_that_reason() -> None:
    text = "LLVM ERROR: out of memory"
    assert classify(ended(text, killed=signal.SIGABRT), text).reason == "memory"
    assert classify(ended(killed=signal.SIGXFSZ), "").reason == "disk"


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (ended(killed=9), CompilerCrashedError),
        (ended("gcc: fatal error: Killed signal terminated program as"), CompilerCrashedError),
        (ended(INPUT["gcc"]), CompileError),
        (ended("who knows"), CompileError),
        (ended("virtual memory exhausted: Cannot allocate memory"), CompileError),
    ],
)
def test_the_exception(run: Completed, kind: type[CompileError]) -> None:
    error = error_of(run)
    assert type(error) is kind
    assert run.stderr.decode() in str(error)


def test_the_text_names_no_workspace() -> None:
    folder = Path("/tmp/acache-0/17-4711")
    text = plain_text(ended(f"{folder}/in.x:1:2: error: bad\n(in {folder})"), folder)
    assert text == "in.x:1:2: error: bad\n(in .)"


def test_the_text_has_both_streams() -> None:
    assert plain_text(ended("from stderr\n", stdout="from stdout\n")) == "from stderr\nfrom stdout"
    assert plain_text(ended("\n", stdout="only this")) == "only this"
    assert plain_text(ended("bad bytes \udcff".encode("utf-8", "replace").decode())) == "bad bytes ?"


def test_the_text_is_bounded_and_keeps_both_ends() -> None:
    text = plain_text(ended("first" + "x" * (3 * TEXT_LIMIT) + "last"))
    assert len(text) < TEXT_LIMIT + 100
    assert text.startswith("first")
    assert text.endswith("last")
    assert "left out" in text
