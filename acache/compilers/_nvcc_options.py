"""nvcc's options: which only preprocess, which compile, which no cache can answer for. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from acache.compilers import _cc_options

__all__ = ["Options", "sort_options"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# nvcc takes its options by these very names, a short one after one hyphen and a long one after two (release
# 13.0, nvcc --help). The value follows "=" or is the next argument.

_WHAT = "acache decides what is made: a cubin for arch='sm_90', PTX for arch='compute_90'"
_ASIDE = "it writes side files"
_NOTHING = "it makes no code"
_TARGET = "give the target as arch=, one for each request"
_UNKEYED = "it reads a file that no key covers"

_REFUSED: Final[dict[str, str]] = {
    name: why
    for names, why in (
        ("-cuda --cuda -cubin --cubin -fatbin --fatbin -ptx --ptx -optix-ir --optix-ir", _WHAT),
        ("-ltoir --ltoir -E --preprocess -c --compile -dc --device-c -dw --device-w", _WHAT),
        ("-dlink --device-link -link --link -lib --lib -run --run -run-args --run-args", _WHAT),
        ("-o --output-file -odir --output-directory -objtemp --objdir-as-tempdir", _WHAT),
        ("-arch --gpu-architecture -code --gpu-code -gencode --generate-code", _TARGET),
        ("-x --x", "the source is CUDA C++"),
        ("-keep --keep -keep-dir --keep-dir -save-temps --save-temps -time --time", _ASIDE),
        ("-fdevice-time-trace --fdevice-time-trace", _ASIDE),
        ("-clean --clean-targets -dryrun --dryrun -h --help -V --version", _NOTHING),
        ("-code-ls --list-gpu-code -arch-ls --list-gpu-arch", _NOTHING),
        ("-fdevice-syntax-only --fdevice-syntax-only", _NOTHING),
        ("-v --verbose", "it fills the messages with the names of temporary files"),
        ("-optf --options-file -ldir --libdevice-directory", _UNKEYED),
        ("-src-in-ptx --source-in-ptx", "it reads the source once more, which may have changed"),
        ("-noprof --dont-use-profile", "nvcc's profile tells which programs it runs, and these are keyed"),
        ("-forward-unknown-opts --forward-unknown-opts", "give the host compiler's options by -Xcompiler"),
        (
            "-forward-unknown-to-host-compiler --forward-unknown-to-host-compiler"
            " -forward-unknown-to-host-linker --forward-unknown-to-host-linker",
            "give the host compiler's options by -Xcompiler",
        ),
        ("-jobserver --jobserver", "no make stands above the compiler"),
    )
    for name in names.split()
}
_DEPENDENCIES: Final = re.compile(r"-M|--(?:generate|dependency)-(?:dep|non|out|target)")
"""Dependency files: ``-M``, ``-MD``, ``-MF x`` and their long names."""

_TEXT: Final = _names(
    "-D --define-macro -U --undefine-macro -I --include-path -isystem --system-include -include --pre-include"
)
"""What acts through the preprocessed text alone."""
_LINKING: Final = _names(
    "-l --library -L --library-path -Xlinker --linker-options -Xarchive --archive-options"
    " -Xnvlink --nvlink-options -cudart --cudart -cudadevrt --cudadevrt -arbin --archiver-binary"
    " -hls --host-linker-script"
)
"""What acts when host code is linked, which is not done here."""
_HOST: Final = _names("-Xcompiler --compiler-options")
_ASSEMBLER: Final = _names("-Xptxas --ptxas-options")
_HOST_COMPILER: Final = _names("-ccbin --compiler-bindir")
_SEED: Final = _names("-frandom-seed --frandom-seed")
_DEBUG: Final = _names("-G --device-debug -lineinfo --generate-line-info")
_VALUED: Final = (
    _TEXT | _LINKING | _HOST | _ASSEMBLER | _HOST_COMPILER | _SEED
    | _names(
        "-O --optimize -Ofc --Ofast-compile -opt-info --optimization-info -dopt --dopt -std --std"
        " -m --machine"
        " -ftemplate-backtrace-limit --ftemplate-backtrace-limit -ftemplate-depth --ftemplate-depth"
        " -static-global-template-stub --static-global-template-stub"
        " -device-entity-has-hidden-visibility --device-entity-has-hidden-visibility"
        " -t --threads -split-compile --split-compile -split-compile-extended --split-compile-extended"
        " -e --entries -maxrregcount --maxrregcount -ftz --ftz -prec-div --prec-div -prec-sqrt --prec-sqrt"
        " -fmad --fmad -default-stream --default-stream -Werror --Werror -diag-error --diag-error"
        " -diag-suppress --diag-suppress -diag-warn --diag-warn -rdc --relocatable-device-code"
        " -brief-diag --brief-diagnostics -jtd --jump-table-density"
        " -device-stack-protector --device-stack-protector -compress-mode --compress-mode"
        " -sanitize --sanitize -qpp-config --qpp-config -target-dir --target-directory"
        " -idp --input-drive-prefix -ddp --dependency-drive-prefix -dp --drive-prefix"
        " -Xcudafe -Xcicc -Xnvvm -Xfatbin"
    )
)  # fmt: skip
_JOINED: Final = re.compile(r"-[DUIL].")
"""The same with their value in one word."""
_ASSEMBLER_FILES: Final = _names(
    "-o --output-file -optf --options-file -ias --input-as-string -c --compile-only"
)
_BEHIND: Final = _names("-Xcudafe -Xcicc -Xnvvm -Xfatbin")
_BEHIND_FILES: Final = re.compile(
    r"-[Io]|--?(?:list|xref|\w*(?:incl|pch|file|dir|output|path|template_info|import|library))"
)
"""Of the options of what nvcc runs: those that name files, when the text that was keyed is compiled."""
_SEPARATOR: Final = re.compile(r"(?<!\\)[,\s]+")
"""What parts the options in the value of ``-Xcompiler`` and the like: a comma for nvcc, a space for the shell
that it hands its commands to."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options, sorted."""

    compiling: tuple[str, ...]
    """What still matters when the preprocessed text is compiled; the others act through that text alone."""
    driving: tuple[str, ...]
    """What names the host compiler: passed on, and keyed by that compiler's content."""
    host: tuple[str, ...]
    """What the host compiler is given, one option each (``-Xcompiler``, also among ``compiling``)."""
    seeded: bool
    """They say of which seed nvcc makes unique names."""
    debug: bool
    """The artifact holds line information, and with it the name of the working directory."""


def sort_options(options: tuple[str, ...]) -> Options:
    """Sort the options of nvcc.

    :raises ValueError: an option that names outputs, targets or input files, or reads or writes files beside
        the source; the text says why.
    """
    compiling: list[str] = []
    driving: list[str] = []
    host: list[str] = []
    seen: set[str] = set()
    rest = iter(options)
    for option in rest:
        name, _, value = option.partition("=")
        words = [option]
        if (why := _reason(option, name)) is not None:
            raise ValueError(f"option {option!r} cannot be used here: {why}")
        if not option.startswith("-") or option == "-":
            raise ValueError(
                f"{option!r} cannot be used here: it is no option, and the input is the request's source"
                " (give an option that acache does not know its value by '=')"
            )
        if option in _VALUED:
            follows = next(rest, None)
            if follows is None:
                raise ValueError(f"option {option!r} lacks its argument")
            value = follows
            words.append(value)
        seen.add(name)
        if name in _HOST:
            host.extend(_SEPARATOR.split(value))
        elif name in _ASSEMBLER:
            _check_assembler(option, value)
        elif name in _BEHIND:
            _check_behind(option, value)
        if name in _HOST_COMPILER:
            if "/" in value and not value.startswith("/"):
                raise ValueError(f"option {option!r} takes a name or an absolute path here, not {value!r}")
            driving.extend(words)
        elif name not in _TEXT and name not in _LINKING and not _JOINED.match(option):
            compiling.extend(words)
    _check_host(tuple(host))
    return Options(tuple(compiling), tuple(driving), tuple(host), bool(seen & _SEED), bool(seen & _DEBUG))


def _reason(option: str, name: str) -> str | None:
    """Return why an option is refused, or None."""
    if name in _REFUSED:
        return _REFUSED[name]
    if _DEPENDENCIES.match(option):
        return "it writes a dependency file; includes are keyed anyway"
    return None


def _check_assembler(option: str, value: str) -> None:
    for word in _SEPARATOR.split(value):
        if word.partition("=")[0] in _ASSEMBLER_FILES:
            raise ValueError(f"option {option!r} cannot be used here: ptxas's {word!r} names files")


def _check_behind(option: str, value: str) -> None:
    for word in _SEPARATOR.split(value):
        if _BEHIND_FILES.match(word.partition("=")[0]):
            raise ValueError(
                f"option {option!r} cannot be used here: {word!r} names files that no key covers"
            )


def _check_host(words: tuple[str, ...]) -> None:
    """Refuse of the host compiler's options what is refused of a C compiler's."""
    try:
        _cc_options.sort_options(words)
    except ValueError as error:
        raise ValueError(f"-Xcompiler: {error}") from None
