"""`Cc`: gcc, clang and their C++ drivers, keyed by preprocessed text."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

from acache._errors import KeyDerivationError
from acache._models import Artifact, Request, Workspace
from acache._process import run_tool
from acache.compilers._aside import run_aside
from acache.compilers._cc_options import Options, sort_options
from acache.compilers._diagnostics import error_of, plain_text, unfinished
from acache.compilers._driver import ASK_SECONDS, fingerprint_of, parts_of
from acache.compilers._toolchain import (
    Location,
    check_env,
    check_location,
    environment,
    find_program,
    in_thread,
    passed,
    read_source,
    strings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from acache._models import JSON

__all__ = ["Cc"]

Language: TypeAlias = Literal["c", "c++"]

_HINT: Final = "install a C compiler (Debian, Ubuntu: apt-get install gcc g++), or give executable="
_PREPROCESSED: Final[Mapping[Language, str]] = {"c": "cpp-output", "c++": "c++-cpp-output"}
_SUFFIXES: Final[Mapping[str, Language]] = {
    ".c": "c",
    **dict.fromkeys((".C", ".cc", ".cp", ".cpp", ".CPP", ".cxx", ".c++"), "c++"),
}
_READS_FILES: Final = re.compile(rb"\.incbin\b")
_PROGRAMS: Final = ("cc1", "cc1plus", "collect2", "lto1", "lto-wrapper", "as", "ld")
"""What a driver may run to make an object."""


@dataclass(frozen=True, slots=True)
class _Preprocessed:
    """What a request's source became: the very text that is compiled, and what the compile needs besides."""

    text: bytes
    language: Language
    directory: str
    env: Mapping[str, str | None]
    messages: str


@final
@dataclass(frozen=True, slots=True)
class Cc:
    """A C or C++ compiler that understands gcc's options (gcc, clang), making one object file per request.

    ::

        cxx = Cc("g++", options=["-O3", "-std=c++20", "-Iinclude"])
        artifact = await cache.compile(cxx.request(Path("src/kernel.cc"), directory="/path/of/project"))
        await artifact.write_to("kernel.o")

    :param executable: what runs: a name looked up on PATH, or a path.
    :param options: the compiler's options. Those that name outputs (``-o``, ``-c``, ``-E``, ``-S``,
        ``-M...``), write side files, or read files that no key covers (profiles, plug-ins, ``@file``) are
        refused.
    :param env: names of the environment variables that the compiler is given; their values are key material.
    :param toolchain: the compiler whose content stands in the key, where ``executable`` is a wrapper around
        it.
    :raises TypeError: an argument of the wrong type.
    :raises ValueError: an option that cannot be used here; the text says why.

    *The key* holds the preprocessed text, so that an edited header is a miss, an edited and restored one a
    hit, and a header that newly shadows another is seen; options that act through that text alone (``-I``,
    ``-D``) are not keyed besides. ``__TIME__`` makes every text new, and thus every request a miss; name
    ``SOURCE_DATE_EPOCH`` in ``env`` to still that clock. ``-march=native`` is keyed by what it means on this
    host.

    *Compiled is that text itself*, not the source once more: a header edited in between cannot make key and
    object disagree. Diagnostics keep the user's file names and lines through line markers. The price, as
    ccache found: a few warnings that look at macros or comments (``-Wimplicit-fallthrough``) come out
    differently, and the text names files as the request does, so give relative paths and ``directory=`` where
    checkouts are to share. Debug information (``-g``) holds the working directory, which is then keyed.
    """

    executable: Location = "cc"
    options: Sequence[str] = field(default=(), kw_only=True)
    env: Sequence[str] = field(default=(), kw_only=True)
    toolchain: Location | None = field(default=None, kw_only=True)
    _sorted: Options = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_location("executable", self.executable)
        if self.toolchain is not None:
            check_location("toolchain", self.toolchain)
        options = strings("options", self.options)
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "env", check_env(self.env))
        object.__setattr__(self, "_sorted", sort_options(options))

    def request(
        self,
        source: str | bytes | os.PathLike[str],
        *,
        label: str | None = None,
        language: Language | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> Request:
        """Describe one compile, without any I/O.

        :param source: text, or the path of a file, which the compiler reads when the key is derived. A
            relative path counts from ``directory``.
        :param label: a name for people and statistics; never key material.
        :param language: ``c`` or ``c++``; by default what the file's suffix says, and for text ``c++`` if the
            compiler's name says so (``g++``, ``clang++``, ``c++``), else ``c``.
        :param directory: the compiler's working directory, from which relative include paths count, and for
            text quoted includes as well; by default the process's own when the key is derived.
        :raises TypeError: a source that is neither text nor a path.
        :raises ValueError: another language; a file whose suffix is none of C or C++.
        """
        if not isinstance(source, str | bytes | os.PathLike):
            raise TypeError(f"the source is str or bytes (text) or a path, not {type(source).__name__}")
        if language is None:
            language = self._language(source)
        elif language not in _PREPROCESSED:
            raise ValueError(f"language is 'c' or 'c++', not {language!r}")
        arguments = {"language": language, "directory": None if directory is None else os.fspath(directory)}
        return Request(self, source, label, arguments)

    def _language(self, source: object) -> Language:
        if isinstance(source, os.PathLike):
            suffix = PurePath(source).suffix
            if suffix not in _SUFFIXES:
                raise ValueError(f"the suffix {suffix!r} does not tell C from C++; give language=")
            return _SUFFIXES[suffix]
        name = os.path.basename(os.fspath(self.executable if self.toolchain is None else self.toolchain))
        return "c++" if "++" in name else "c"

    async def prepare(self, request: Request) -> Request:
        """Preprocess the source, and return a request that carries the text.

        Cancellation stops the preprocessor.

        :raises CompileError: the preprocessor refused the source, for one that a header is missing.
        :raises CompileTimeoutError: it did not end.
        :raises CompilerNotFoundError: there is no such compiler.
        :raises KeyDerivationError: the source reads files by assembler directive, which no key covers.
        :raises OSError: the source cannot be read.
        """
        if isinstance(request.source, _Preprocessed):
            return request
        language: Language = request.arguments["language"]  # type: ignore[assignment]
        directory = await in_thread(os.path.abspath, request.arguments["directory"] or os.curdir)
        env = environment(self.env)
        program = await in_thread(find_program, self.executable, _HINT)
        if isinstance(request.source, os.PathLike):
            name, stdin = os.fspath(request.source), None
        else:
            name, stdin = "-", read_source(request.source)
        argv = [program, *self.options, "-E", "-x", language, "-o", "{output}", name]
        completed, text = await run_aside(
            argv, env=passed(env), stdin=stdin, cwd=directory, seconds=ASK_SECONDS
        )
        if not completed.ok:
            raise error_of(completed)
        if _READS_FILES.search(text):
            raise KeyDerivationError(
                "the source reads a file by the assembler directive .incbin, which no key covers; "
                "embed the data as an array, or compile it by Command with the file among its inputs"
            )
        messages = plain_text(completed)
        return replace(request, source=_Preprocessed(text, language, directory, env, messages))

    async def fingerprint(self) -> str:
        """Return a digest of the content of the driver and of what it runs and loads.

        That is the driver behind its symbolic links, the programs that it names itself (``cc1``, ``cc1plus``,
        ``collect2``, ``lto1``, ``as``, ``ld``), and the shared libraries of these, but for the C library.
        Where they are is asked once in a process and again when the driver changes; their content is looked
        at each time.

        :raises CompilerNotFoundError: there is no such compiler.
        """
        location = self.executable if self.toolchain is None else self.toolchain
        driver = await in_thread(find_program, location, _HINT)
        # what the driver runs depends on options such as -B and -m32, and on the PATH
        return await fingerprint_of(driver, self._sorted.compiling, self._parts, os.path.basename(driver))

    async def _parts(self, driver: str) -> tuple[str, ...]:
        return await parts_of(driver, self._sorted.compiling, _PROGRAMS)

    async def key_fields(self, request: Request) -> dict[str, object]:
        """Return every input of the compile as labelled fields.

        :raises CompileError: the preprocessor refused the source. (And what else `prepare` raises.)
        """
        prepared = _prepared(await self.prepare(request))
        return {
            "compiler": "acache.cc/1",
            "text": prepared.text,
            "language": prepared.language,
            "options": self._sorted.compiling,
            "directory": prepared.directory if self._sorted.debug else None,
            "native": await self._native() if self._sorted.native else None,
            "env": prepared.env,
            "toolchain": await self.fingerprint(),
        }

    async def _native(self) -> str:
        """Return a digest of what ``native`` means here: the options that the driver makes of it."""
        driver = await in_thread(find_program, self.executable, _HINT)
        argv = [driver, *self._sorted.compiling, "-###", "-S", "-x", "c", os.devnull, "-o", "-"]
        completed = await run_tool(argv, cwd="/", timeout=ASK_SECONDS)
        if not completed.ok:
            raise error_of(completed)
        return hashlib.sha256(completed.stderr).hexdigest()

    async def compile(self, request: Request, workspace: Workspace) -> Artifact:
        """Compile the preprocessed text to an object file.

        Cancellation stops the compiler and all that it started.

        :return: an artifact with the part ``object``; the compiler's warnings are its metadata ``messages``.
        :raises CompileError: the compiler's diagnostics, in its own words.
        :raises CompilerCrashedError: it, or a program it runs, was killed or could not be started.
        :raises CompilerNotFoundError: there is no such compiler.
        """
        prepared = _prepared(await self.prepare(request))
        program = await in_thread(find_program, self.executable, _HINT)
        output = workspace.path / "object.o"
        # Where a compiler wants random names (link-time optimisation), let them depend on the text alone.
        seed = hashlib.sha256(prepared.text).hexdigest()[:16]
        argv = [program, f"-frandom-seed={seed}", *self._sorted.compiling]
        argv += ["-x", _PREPROCESSED[prepared.language], "-c", "-o", str(output), "-"]
        completed = await workspace.run(
            argv, env=passed(prepared.env), stdin=prepared.text, cwd=prepared.directory
        )
        if not completed.ok:
            raise error_of(completed, workspace.path)
        try:
            data = await in_thread(output.read_bytes)
        except FileNotFoundError:
            text = f"the compiler ended well but wrote no object\n{plain_text(completed)}"
            raise unfinished(completed, text) from None
        said = "\n".join(filter(None, [prepared.messages, plain_text(completed, workspace.path)]))
        metadata: dict[str, JSON] = {"messages": said} if said else {}
        return Artifact({"object": data}, metadata)


def _prepared(request: Request) -> _Preprocessed:
    assert isinstance(request.source, _Preprocessed)
    return request.source
