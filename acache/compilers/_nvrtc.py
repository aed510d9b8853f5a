"""`Nvrtc`: CUDA C++ to cubin, PTX or LTO IR through NVRTC, in warm worker processes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from acache._errors import CompileError, CompilerCrashedError, KeyDerivationError
from acache._models import Artifact, CompileFailure, Completed, Request, Worker, WorkerProgram, Workspace
from acache.compilers._diagnostics import classify, error_of
from acache.compilers._nvrtc_headers import DEPTH
from acache.compilers._nvrtc_library import Installed, find_nvrtc
from acache.compilers._nvrtc_options import Sorted, check_arch, sort_options
from acache.compilers._toolchain import Location, digest_files, in_thread, not_found, read_source, strings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from acache._models import JSON
    from acache.compilers._includes import Closure

    Ask: TypeAlias = Callable[[dict[str, JSON]], Awaitable[dict[str, JSON]]]

__all__ = ["Nvrtc"]

Output: TypeAlias = Literal["cubin", "ptx", "ltoir"]

LAUNCH_LOG: Final = "ACACHE_LAUNCH_LOG"
"""The environment variable that names a file to which each compile appends a line before it begins."""

_NAME: Final = "kernel.cu"
_SOURCE: Final = ".acache-source"
_RESULT: Final = ".acache-result"
_ENVIRONMENT: Final = {
    # Debug information holds the working folder. getcwd(3) is not asked while PWD names the same folder, so
    # that this name, which is right everywhere, stands there, and artifacts do not depend on who made them.
    "PWD": "/proc/self/cwd",
    "PATH": os.defpath,
    "CUDA_CACHE_DISABLE": "1",
}
_PACKAGE: Final = Path(__file__).parent
_BOOT: Final = (
    "import sys\n"
    "for name, path in (('acache', sys.argv[2]), ('acache.compilers', sys.argv[3])):\n"
    "    package = sys.modules[name] = type(sys)(name)\n"
    "    package.__path__ = [path]\n"
    "from acache.compilers._nvrtc_worker import main\n"
    "main(sys.argv[4:])\n"
)
"""What ``python -I -S -c`` runs, with arguments ``acache-nvrtc``, the folders of both packages, and those of
the worker's `main`. The packages' own ``__init__`` (and so anyio) are passed over.
"""
_ERROR: Final = re.compile(r"\b(?:error|fatal)\b")
_INTERNAL: Final = re.compile(r"\binternal (?:compiler )?error\b", re.IGNORECASE)
_NO_MEMORY: Final = re.compile(
    r"^(?! ).*\b(?:out of memory|memory allocation fail)", re.IGNORECASE | re.MULTILINE
)
"""In a line of its own, and not in one of the source, which NVRTC quotes indented."""
_ABOUT_INPUT: Final = ("NVRTC_ERROR_INVALID_OPTION", "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a request's source became: its text, and every header that it may include."""

    text: bytes
    closure: Closure


@final
@dataclass(frozen=True, slots=True)
class Nvrtc:
    """NVIDIA's runtime compiler for CUDA C++, through ``cuda.bindings``. Needs neither a GPU nor a driver.

    ::

        nvrtc = Nvrtc("sm_90", options=["-std=c++20"], include_paths=["kernels/include"])
        request = nvrtc.request(Path("kernels/softmax.cu"), name_expressions=["softmax<float, 128>"])
        artifact = await cache.compile(request)
        artifact.parts["cubin"], artifact.metadata["lowered_names"]["softmax<float, 128>"]

    :param arch: the target: a real one (``sm_90``, ``sm_100a``), or a virtual one (``compute_90``).
    :param options: NVRTC's options, in order. ``-I`` is the same as ``include_paths``, behind them. The
        target, the kind of output, and what reads or writes files that no key covers (precompiled headers,
        ``--time=``, ``--pre-include``, ``-Xcudafe``) are refused.
    :param include_paths: folders that are searched for headers, in order; relative ones start from the
        working directory. NVRTC's own headers (CUDA and CCCL; from 13.5 on) are searched behind them.
    :raises TypeError: an argument of the wrong type.
    :raises ValueError: the target is missing or of another form; an option that is refused.

    **Keys** cover the source's text and name, target, output, options, name expressions, the content of every
    header that the source may include (conditionals are ignored) and where on the search path it is found,
    and the content of libnvrtc and of the built-ins beside it. No environment variable reaches NVRTC, and the
    places of include paths are not key material. NVRTC sees only the headers that the key covers: copies, in
    a private folder. A header that is named by a macro, or by its absolute path, cannot be covered, and is a
    `KeyDerivationError`. Debug information and ``__FILE__`` hold names relative to the source's folder or
    (below ``.include-1``, ``.include-2``, ...) to an include path. ``__TIME__`` and ``__DATE__`` are those of
    the compile that was kept.

    **Workers.** `acache.Cache` compiles in worker processes, one compile at a time each, because NVRTC has a
    lock for the whole process and cannot be cancelled from inside: to stop a compile is to stop its worker.
    Starting one costs some tenths of a second; idle ones are kept for a minute, and
    `acache.Cache.start_workers` starts them ahead. So a small kernel does not wait behind a large one, unless
    the setting ``max_compiles`` is 1: then compiles queue, as those of any compiler do.

    If the environment variable ``ACACHE_LAUNCH_LOG`` names a file, each compile appends a line to it before
    it begins (``nvrtc``, process id, name), so that launches can be counted from outside.
    """

    arch: str
    options: Sequence[str] = field(default=(), kw_only=True)
    include_paths: Sequence[Location] = field(default=(), kw_only=True)
    _sorted: Sorted = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_arch(self.arch)
        options = strings("options", self.options)
        if isinstance(self.include_paths, str | bytes | os.PathLike):
            raise TypeError(f"include_paths is a sequence of folders, not one: [{self.include_paths!r}]")
        paths = strings("include_paths", [_folder(path) for path in self.include_paths])
        if "" in paths:
            raise ValueError("include_paths names folders, and '' is none; '.' is the working directory")
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "include_paths", paths)
        object.__setattr__(self, "_sorted", sort_options(options))

    def request(
        self,
        source: str | bytes | os.PathLike[str],
        *,
        label: str | None = None,
        name_expressions: Sequence[str] = (),
        output: Output | None = None,
        name: str | None = None,
    ) -> Request:
        """Describe one compile, without any I/O.

        :param source: CUDA C++: text, or the path of a file, in whose folder names in quotes are looked for
            first.
        :param label: a name for people and statistics; never key material.
        :param name_expressions: C++ expressions that name kernels or variables, such as
            ``softmax<float, 128>``: they are instantiated, and the metadata say their lowered names.
        :param output: ``cubin``, ``ptx`` or ``ltoir`` (LTO IR, to be linked); by default a cubin for a real
            target and PTX for a virtual one. It is the name of the artifact's one part.
        :param name: what diagnostics and ``__FILE__`` call the source; by default the file's name, or
            ``kernel.cu``.
        :raises TypeError: an argument of the wrong type.
        :raises ValueError: an output that there is not, or not for this target; a name with a folder; a name
            expression of several lines.
        """
        if not isinstance(source, str | bytes | bytearray | memoryview | os.PathLike):
            raise TypeError(f"a source is str, bytes or a path, not {type(source).__name__}")
        if output is None:
            output = "ptx" if self.arch.startswith("compute_") else "cubin"
        if output not in ("cubin", "ptx", "ltoir"):
            raise ValueError(f"output must be 'cubin', 'ptx' or 'ltoir', not {output!r}")
        if output == "cubin" and self.arch.startswith("compute_"):
            real = self.arch.replace("compute_", "sm_")
            raise ValueError(
                f"{self.arch} is a virtual target, and a cubin is for a real one: Nvrtc({real!r})"
            )
        if name is None:
            name = PurePath(os.fspath(source)).name if isinstance(source, os.PathLike) else _NAME
        strings("name", [name])
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"name is a plain file name such as {_NAME!r}, not {name!r}")
        expressions = strings("name_expressions", name_expressions)
        for expression in expressions:
            if "\n" in expression:  # what follows would be read as source, and scanned by nobody
                raise ValueError(f"a name expression is one line, and {expression!r} is more")
        arguments = {
            "name": name,
            "name_expressions": expressions,
            "output": output,
        }
        plain = source if isinstance(source, str | os.PathLike) else bytes(source)
        return Request(self, plain, label, arguments)

    async def prepare(self, request: Request) -> Request:
        """Read the source and every header that it may include, and return a request that carries them.

        :raises KeyDerivationError: a header's name is computed by macros or absolute, or there is no end of
            headers; the source is no text.
        :raises OSError: the source, or a header that is there, cannot be read.
        """
        if isinstance(request.source, _Prepared):
            return request
        return replace(request, source=await in_thread(self._read, request.source))

    def _read(self, source: object) -> _Prepared:
        from acache.compilers._includes import close_over, read_header  # its patterns take 10 ms

        text = read_source(source)
        if b"\0" in text.rstrip(b"\0"):
            raise KeyDerivationError("the source holds a NUL byte, and NVRTC would leave out all behind it")
        folder = os.path.dirname(os.path.abspath(source)) if isinstance(source, os.PathLike) else None
        paths = [os.path.abspath(path) for path in (*self.include_paths, *self._sorted.include_paths)]
        search = self._sorted.search_source
        closure = close_over(text, folder, paths, read=read_header, search_source=search)
        if closure.astray > DEPTH:
            raise KeyDerivationError(
                f"the source, or a header of it, includes a name that leads {closure.astray} folders out and "
                f"is not there: more than {DEPTH} are not watched, and no key covers what NVRTC might find"
            )
        return _Prepared(text, closure)

    async def fingerprint(self) -> str:
        """Return a digest of the content of libnvrtc and of the built-ins that it loads.

        :raises CompilerNotFoundError: NVRTC or its bindings are not installed.
        """
        return await in_thread(_fingerprint)

    async def key_fields(self, request: Request) -> dict[str, object]:
        """Return every input of the compile as labelled fields. Raises what `prepare` raises, too.

        :raises CompilerNotFoundError: NVRTC or its bindings are not installed.
        """
        request = await self.prepare(request)
        prepared = _prepared(request)
        headers, toolchain = await in_thread(lambda: (_digests(prepared.closure), _fingerprint()))
        return {
            "compiler": "acache.nvrtc/1",
            "text": prepared.text,
            "name": request.arguments["name"],
            "headers": headers,
            "arch": self.arch,
            "output": request.arguments["output"],
            "options": self._sorted.compiling,
            "name_expressions": request.arguments["name_expressions"],
            "toolchain": toolchain,
        }

    async def worker(self) -> WorkerProgram:
        """Say how a worker is started; all `Nvrtc` share theirs.

        :raises CompilerNotFoundError: NVRTC or its bindings are not installed.
        """
        return await in_thread(_program)

    async def compile_with(self, request: Request, worker: Worker) -> Artifact:
        """Compile by a worker; returns and raises as `compile` does. Cancellation stops the worker."""
        return await self._compile(request, worker.path, worker.ask)

    async def compile(self, request: Request, workspace: Workspace) -> Artifact:
        """Compile in a worker that is started for this alone, which costs some tenths of a second more.

        Cancellation stops it.

        :return: an artifact with one part, ``cubin``, ``ptx`` or ``ltoir``; its metadata are
            ``lowered_names`` (of each name expression) and, where NVRTC said something, ``log``.
        :raises CompileError: NVRTC's own words: about the source, an option, or want of memory or disk.
        :raises CompilerCrashedError: the worker was killed, crashed, or could not be started.
        :raises CompilerNotFoundError: NVRTC or its bindings are not installed, or cannot be loaded.
        """
        program = await self.worker()

        async def ask(order: dict[str, JSON]) -> dict[str, JSON]:
            completed = await workspace.run(
                program.argv, env=program.env, stdin=json.dumps(order).encode() + b"\n", cwd=workspace.path
            )
            answers = [json.loads(line) for line in completed.stdout.splitlines() if line] or [{}]
            if isinstance(missing := answers[0].get("missing"), str):
                raise not_found(missing)
            if len(answers) != 2:
                raise error_of(completed, workspace.path)
            answer: dict[str, JSON] = answers[1]
            return answer

        return await self._compile(request, workspace.path, ask)

    async def _compile(self, request: Request, folder: Path, ask: Ask) -> Artifact:
        request = await self.prepare(request)
        prepared, closure = _prepared(request), _prepared(request).closure
        part = str(request.arguments["output"])
        expressions: Any = request.arguments["name_expressions"]
        await in_thread(_lay, prepared, folder)
        roots = [closure.root(number) for number in range(1, self._roots + 1)]
        target = self.arch
        options = [f"-arch={target}", *(["-dlto"] if part == "ltoir" else []), *self._sorted.compiling]
        order: dict[str, JSON] = {
            "source": _SOURCE,
            "name": closure.root(0) + str(request.arguments["name"]),
            "options": [*options, *(f"-I{root.rstrip('/')}" for root in roots)],
            "expressions": list(expressions),
            "headers": bool(closure.missing),
            "part": part,
            "output": _RESULT,
        }
        try:
            answer = await ask(order)
        except CompilerCrashedError as error:
            raise _crash(error) from error
        log = _plain(str(answer["log"]), [closure.root(0), *roots], folder)
        if not answer["ok"]:
            raise CompileError(_failure(answer, log))
        if not answer["size"]:
            text = f"NVRTC ended well but made no {part} for {target}\n{log}".rstrip()
            raise CompileError(CompileFailure(reason="exit", text=text, exit_status=0))
        data = await in_thread((folder / _RESULT).read_bytes)
        metadata: dict[str, JSON] = {"lowered_names": answer["lowered"]}
        if log:
            metadata["log"] = log
        return Artifact({part: data}, metadata)

    @property
    def _roots(self) -> int:
        return len(self.include_paths) + len(self._sorted.include_paths)


def _folder(path: object) -> str:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"include_paths holds folders as str or path, not {type(path).__name__}")
    return os.fsdecode(path)


def _prepared(request: Request) -> _Prepared:
    assert isinstance(request.source, _Prepared)
    return request.source


def _digests(closure: Closure) -> list[tuple[int, bytes, bytes]]:
    """Name every header by where the search finds it, and by its content."""
    return [
        (root, os.fsencode(path), hashlib.sha256(content).digest())
        for (root, path), content in closure.files.items()
    ]


def _lay(prepared: _Prepared, folder: Path) -> None:
    """Write the source and its headers where NVRTC shall see them; nothing else is in its sight."""
    prepared.closure.lay(str(folder))
    (folder / prepared.closure.root(0)).mkdir(parents=True, exist_ok=True)
    (folder / _SOURCE).write_bytes(prepared.text)


def _plain(log: str, roots: Sequence[str], folder: Path) -> str:
    """Take out of a log what only tells how the private folder is laid out."""
    log = log.replace(f"{folder}/", "").replace(str(folder), ".")
    for root in sorted(filter(None, roots), key=len, reverse=True):
        log = re.sub(rf"(?<![\w./-]){re.escape(root)}", "", log)
    return log


def _crash(error: CompilerCrashedError) -> CompileError:
    """Judge a crash by its last words: LLVM aborts for want of memory."""
    failure = error.failure
    seen = classify(Completed((), None, failure.signal, b"", b"", 0.0, 0.0), failure.text).reason
    return CompileError(replace(failure, reason=seen)) if seen in ("memory", "disk") else error


def _failure(answer: dict[str, JSON], log: str) -> CompileFailure:
    """Judge an error of NVRTC: is it about the input, or about the machine?

    ``exit_status`` is NVRTC's error code. NVRTC calls nearly everything a compile error, want of memory too;
    a mistake in that direction costs a compile, the other one would poison every waiter.
    """
    result, code, seconds = str(answer["result"]), answer["code"], answer["seconds"]
    about_input = result in _ABOUT_INPUT or (
        result == "NVRTC_ERROR_COMPILATION" and bool(_ERROR.search(log)) and not _INTERNAL.search(log)
    )
    failure = CompileFailure(
        reason="diagnostic" if about_input else "exit",
        text=log or result,
        exit_status=code if isinstance(code, int) else None,
        seconds=seconds if isinstance(seconds, float) else 0.0,
        deterministic=about_input,
    )
    seen = classify(Completed((), failure.exit_status, None, b"", b"", 0.0, 0.0), log).reason
    if seen in ("memory", "disk", "spawn"):
        return replace(failure, reason=seen, deterministic=False)
    if result == "NVRTC_ERROR_OUT_OF_MEMORY" or _NO_MEMORY.search(log):
        return replace(failure, reason="memory", deterministic=False)
    return replace(failure, reason="disk") if result == "disk" else failure


def _fingerprint(installed: Installed | None = None) -> str:
    installed = installed or find_nvrtc()
    return digest_files([installed.libnvrtc, *installed.builtins])


def headers_home() -> str:
    """Return the folder in which this user's workers lay out NVRTC's own headers."""
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    return os.path.join(tempfile.gettempdir(), f"acache-nvrtc-{user}")


def _program() -> WorkerProgram:
    installed = find_nvrtc()
    log = os.environ.get(LAUNCH_LOG)
    facts = {
        "path": installed.folders,
        "library": installed.libnvrtc,
        "builtins": installed.builtins,
        "headers": [headers_home(), f"{_fingerprint(installed)[:32]}.{DEPTH}"],
        "log": os.path.abspath(log) if log else None,
    }
    argv = [sys.executable, "-I", "-S", "-c", _BOOT, "acache-nvrtc"]
    argv += [str(_PACKAGE.parent), str(_PACKAGE), json.dumps(facts)]
    return WorkerProgram(tuple(argv), _ENVIRONMENT)
