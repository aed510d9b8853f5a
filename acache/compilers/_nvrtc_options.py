"""NVRTC's options: what acache itself says to NVRTC, what it must not be told, and what names folders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Sorted", "check_arch", "sort_options"]

_ARCH: Final = re.compile(r"(?:sm|compute)_\d{2,3}[af]?")
_WAY_OUT: Final = "give 'sm_90' or the like (real: for a cubin), or 'compute_90' (virtual: for PTX)"

_REFUSED: Final = {
    "arch": "the target is the argument arch=",
    "gpu-architecture": "the target is the argument arch=",
    "dlto": "ask for it with request(..., output='ltoir')",
    "dlink-time-opt": "ask for it with request(..., output='ltoir')",
    "optix-ir": "OptiX IR is no output that acache knows: 'cubin', 'ptx' or 'ltoir'",
    "fdevice-syntax-only": "it makes NVRTC write nothing, and a cache has nothing to keep then",
    "time": "it makes NVRTC write a file that no artifact holds",
    "fdevice-time-trace": "it makes NVRTC write a file that no artifact holds",
    "device-time-trace": "it makes NVRTC write a file that no artifact holds",
    "include": "write the #include into the source, where the key covers it",
    "pre-include": "write the #include into the source, where the key covers it",
    "use-bundled-headers": "NVRTC's own headers are always there, behind the include paths",
    "Xcudafe": "it speaks to a part of NVRTC past what acache can judge, as in naming files to read",
    "Xopt": "it speaks to a part of NVRTC past what acache can judge, as in naming files to write",
    "Xllc": "it speaks to a part of NVRTC past what acache can judge, as in naming files to write",
    "preinclude": "write the #include into the source, where the key covers it",
    "pch": "precompiled headers are files that no key covers",
    "create-pch": "precompiled headers are files that no key covers",
    "use-pch": "precompiled headers are files that no key covers",
    "pch-dir": "precompiled headers are files that no key covers",
}
_WITH_VALUE: Final = frozenset({
    "D", "define-macro", "U", "undefine-macro", "I", "include-path", "std", "maxrregcount", "Xptxas",
    "ptxas-options", "diag-error", "diag-suppress", "diag-warn", "rdc", "relocatable-device-code", "ftz",
    "prec-sqrt", "prec-div", "fmad", "dopt", "Ofc", "Ofast-compile", "optimization-info", "split-compile",
})  # fmt: skip
"""Options whose value may be an argument of its own, which must not be taken for an option."""
_PTXAS_FILES: Final = re.compile(r"(?:^|[\s,=])-{1,2}(?:o|output-file|optf|options-file)(?:[\s,=]|$)")


@dataclass(frozen=True, slots=True)
class Sorted:
    """Options by what becomes of them."""

    compiling: tuple[str, ...]
    """What NVRTC is given, in order; a value of its own is joined to its option where that is one letter."""
    include_paths: tuple[str, ...]
    """The folders that ``-I`` names, in order."""
    search_source: bool
    """Whether the source's own folder is searched (no ``--no-source-include``)."""


def check_arch(arch: object) -> str:
    """Return the target.

    :raises TypeError: it is no str.
    :raises ValueError: it is missing, or has another form.
    """
    if arch is None or arch == "":
        raise ValueError(f"arch is missing, and NVRTC would choose an old target by itself: {_WAY_OUT}")
    if not isinstance(arch, str):
        raise TypeError(f"arch must be a str such as 'sm_90', not {type(arch).__name__}")
    if not _ARCH.fullmatch(arch):
        raise ValueError(f"arch names a target, and {arch!r} does not: {_WAY_OUT}")
    return arch


def sort_options(options: Sequence[str]) -> Sorted:
    """Sort options; those that NVRTC does not know are passed on, for it says so better.

    :raises ValueError: an option that acache gives itself, or that acts on what no key covers.
    """
    compiling: list[str] = []
    include_paths: list[str] = []
    search_source = True
    waiting = list(reversed(options))
    while waiting:
        option = waiting.pop().strip()  # as NVRTC does
        name, value = _split(option)
        if name in _REFUSED:
            raise ValueError(f"option {option!r} is not for Nvrtc(options=...): {_REFUSED[name]}")
        taken = None
        if value is None and name in _WITH_VALUE and waiting:
            taken = waiting.pop()
        if name in ("I", "include-path"):
            folder = taken if value is None else value
            if not folder:
                raise ValueError(f"option {option!r} names no folder; include_paths= is a clearer place")
            include_paths.append(folder)
            continue
        if name in ("Xptxas", "ptxas-options") and _PTXAS_FILES.search(value or taken or ""):
            raise ValueError(f"option {option!r} makes ptxas read or write a file that no key covers")
        if name == "no-source-include":
            search_source = False
        if taken is not None and name in ("D", "U"):
            compiling.append(option + taken)
        else:
            compiling += [option] if taken is None else [option, taken]
    return Sorted(tuple(compiling), tuple(include_paths), search_source)


def _split(option: str) -> tuple[str, str | None]:
    """Return an option's name without dashes, and the value that is joined to it, if one is."""
    if option.startswith("-") and not option.startswith("--") and option[1:2] in ("I", "D", "U"):
        return option[1], option[2:].removeprefix("=") if option[2:] else None
    name, equals, value = option.lstrip("-").partition("=")
    return (name if option.startswith("-") else ""), (value if equals else None)
