"""Sort a C compiler's options: which only preprocess, which compile, which no cache can answer for. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Options", "sort_options"]

_REFUSED: Final = (
    (re.compile(r"-(?:o|c|E|S)(?:$|[^A-Za-z])|-o."), "acache decides what is made, and where"),
    (
        re.compile(r"--(?:output|compile|preprocess|assemble)(?:$|=)"),
        "acache decides what is made, and where",
    ),
    (re.compile(r"-fsyntax-only$|-###$|--?help|--version$|-print-|-dump|-emit-"), "it makes no object"),
    (
        re.compile(r"-M|--(?:write-)?(?:user-)?dependencies"),
        "it writes a dependency file; includes are keyed anyway",
    ),
    (re.compile(r"-x|--language"), "give language= to request()"),
    (
        re.compile(r"-save-temps|--save-temps|-dumpdir|-dumpbase|-aux-info|-fdump-|-d[A-Z]"),
        "it writes side files",
    ),
    (
        re.compile(r"-gsplit-dwarf|-fstack-usage|-fcallgraph-info|-ftest-coverage|--?coverage|-fsave-optim"),
        "it writes side files",
    ),
    (re.compile(r"-ftime-trace|-fopt-info.*=|-fdiagnostics-format=.*-file"), "it writes side files"),
    (
        re.compile(r"-fprofile|-fauto-profile|-fbranch-probabilities|-fcs-profile|-fmemory-profile"),
        "it reads or writes profiles by path, which no key covers",
    ),
    (
        re.compile(
            r"-fplugin|-fpass-plugin|-load|-specs|--specs|@|-wrapper|--config|-fmodule|-fimplicit-module"
        ),
        "it reads a file that no key covers",
    ),
    (
        re.compile(r"-fpch|-include-pch|-fsanitize-\w*list|-fsanitize-blacklist|-fprebuilt"),
        "it reads a file that no key covers",
    ),
    (
        re.compile(r"-fdirectives-only|-fpreprocessed|-Xpreprocessor|-frewrite-includes"),
        "it changes what -E gives",
    ),
    (re.compile(r"-Wp,.*-M|-Wa,.*(?:-a|=|@|-I|-o)|-Xassembler|-Wl,|-Xlinker"), "it speaks past the compiler"),
)

_PREPROCESSING_WITH_ARGUMENT: Final = frozenset({
    "-D", "-U", "-I", "-include", "-imacros", "-iquote", "-isystem", "-idirafter", "-iprefix", "-iwithprefix",
    "-iwithprefixbefore", "-cxx-isystem", "-iframework", "-F",
})  # fmt: skip
_PREPROCESSING: Final = re.compile(
    r"-[DUIF].|-Wp,|-(?:include|imacros|iquote|isystem|idirafter|iprefix|iwithprefix|iwithprefixbefore"
    r"|cxx-isystem|iframework).|-(?:nostdinc|nostdinc\+\+|undef|C|CC|P|H|trigraphs|traditional-cpp)$"
)
_NATIVE: Final = re.compile(r"-m(?:arch|tune|cpu|fpu)=native$")
_DEBUG: Final = re.compile(r"-g(?!0$)")


@dataclass(frozen=True, slots=True)
class Options:
    """Options, sorted."""

    compiling: tuple[str, ...]
    """What still matters when the preprocessed text is compiled; the others act through that text alone."""
    native: bool
    """The host's processor decides what is made."""
    debug: bool
    """The object holds debug information, and with it the name of the working directory."""


def sort_options(options: tuple[str, ...]) -> Options:
    """Sort the options of a C or C++ compiler.

    :raises ValueError: an option that names outputs, reads or writes files beside the source, or picks the
        language; the text says why.
    """
    compiling: list[str] = []
    rest = iter(options)
    for option in rest:
        if option in _PREPROCESSING_WITH_ARGUMENT:
            if next(rest, None) is None:
                raise ValueError(f"option {option!r} lacks its argument")
            continue
        for pattern, why in _REFUSED:
            if pattern.match(option):
                raise ValueError(f"option {option!r} cannot be used here: {why}")
        if not _PREPROCESSING.match(option):
            compiling.append(option)
    return Options(
        compiling=tuple(compiling),
        native=any(_NATIVE.match(option) for option in compiling),
        debug=any(_DEBUG.match(option) for option in compiling),
    )
