"""`Nvcc`: NVIDIA's CUDA C++ compiler, keyed by preprocessed text; device code only."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, final

from acache._errors import CompileError, KeyDerivationError
from acache._models import Artifact, Request, Workspace
from acache._process import run_tool
from acache.compilers._aside import run_aside
from acache.compilers._diagnostics import error_of, plain_text, unfinished
from acache.compilers._driver import ASK_SECONDS, fingerprint_of, parts_of
from acache.compilers._elf import BROKEN, is_whole
from acache.compilers._nvcc_options import Options, sort_options
from acache.compilers._toolchain import (
    Location,
    check_env,
    check_location,
    environment,
    find_packaged,
    find_program,
    in_thread,
    not_found,
    passed,
    read_source,
    strings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from acache._models import JSON, Completed

__all__ = ["Nvcc", "find_nvcc"]

_HINT: Final = (
    "install the CUDA toolkit and put its bin folder on PATH, or give executable=, "
    "or pip install nvidia-cuda-nvcc nvidia-cuda-cccl"
)
_HOST_HINT: Final = (
    "nvcc needs a C++ compiler to preprocess with: install one (Debian, Ubuntu: apt-get install g++), "
    "or name it in options=['-ccbin', ...]"
)
_HEADERS_HINT: Final = (
    "nvcc is there, but not the headers that every source includes: "
    "install the whole CUDA toolkit, or pip install nvidia-cuda-runtime nvidia-cuda-crt"
)
_ARCH: Final = re.compile(r"(sm|compute)_\d{2,3}[a-z]?")
_FORBIDDEN_ENV: Final = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")
_NO_HOST: Final = re.compile(
    r"(?:No such file or directory|not found)\s+nvcc fatal\s*: Failed to preprocess host compiler properties"
    r"|cannot execute .?cc1plus.*No such file or directory"
)
_NO_HEADERS: Final = re.compile(r"fatal error: .?cuda_runtime\.h.?(?:: No such| file not found)")
_DRY_VARIABLE: Final = re.compile(r"^#\$ ([A-Z_]+)=(.*)$", re.MULTILINE)
_DRY_HOST: Final = re.compile(r"^#\$ (\S.* -E -x c\+\+ .*)$", re.MULTILINE)
# nvcc makes names of its own (of static variables, of anonymous namespaces) from the source's real path,
# which in a workspace is new each time. A file that has no name any more has none to take, so that nvcc falls
# back on /dev/stdin.
_NAMELESS: Final = 'exec <"$1" && rm -f -- "$1" && shift && exec "$@"'


@dataclass(frozen=True, slots=True)
class _Preprocessed:
    """What a request's source became: the very text that is compiled, and what the compile needs besides."""

    text: bytes
    directory: str
    env: Mapping[str, str | None]
    messages: str


@final
@dataclass(frozen=True, slots=True)
class Nvcc:
    """nvcc: CUDA C++ to a cubin, or to PTX. Needs no GPU, and a host compiler that is gcc.

    ::

        nvcc = Nvcc("sm_90", options=["-O3", "-std=c++20", "-Iinclude"])
        artifact = await cache.compile(nvcc.request(Path("src/kernel.cu"), directory="/path/of/project"))
        artifact.parts["cubin"]

    :param arch: the one target: ``sm_90`` makes the part ``cubin``, ``compute_90`` the part ``ptx``. For
        several targets make several compilers: each has an entry of its own, and they compile side by side.
    :param options: nvcc's options. Those that name outputs or targets (``-o``, ``-c``, ``-arch``,
        ``-gencode``), write side files (``--keep``, ``-MD``), or read files that no key covers (``-optf``)
        are refused; those that link have no effect. For a cubin that is to be linked give ``-rdc=true``.
    :param executable: what runs: a name looked up on PATH, or a path. ``nvcc`` itself, where PATH has none,
        is also looked for in the Python package ``nvidia-cuda-nvcc``.
    :param env: names of the environment variables that the compiler is given; their values are key material.
    :param toolchain: the nvcc whose content (with what it runs) stands in the key, where ``executable`` is a
        wrapper around it.
    :raises TypeError: an argument of the wrong type.
    :raises ValueError: a target not of that form, or an option or a variable that cannot be used here; the
        text says why.

    *The key* holds the text as preprocessed for this target, so that an edited header is a miss, an edited
    and restored one a hit, and a header that newly shadows another is seen; options that act through that
    text alone (``-I``, ``-D``) are not keyed besides. Host code takes no part, but for what the text holds
    of it.

    *Compiled is that text itself*, as by `Cc`: nvcc has the host compiler pass it on unchanged
    (``-fpreprocessed``), so that a header edited in between cannot make key and cubin disagree. Diagnostics
    keep the user's file names and lines. nvcc derives the names of static and unnamed things from the
    source's path and at random; here they come from the text, and a cubin is the same wherever it is made.
    Line information (``-lineinfo``, ``-G``) holds the working directory, which is then keyed, and the times
    of source files, which are not; under ``-G`` nvcc also writes the names of its temporary files into it.
    """

    arch: str
    options: Sequence[str] = field(default=(), kw_only=True)
    executable: Location = field(default="nvcc", kw_only=True)
    env: Sequence[str] = field(default=(), kw_only=True)
    toolchain: Location | None = field(default=None, kw_only=True)
    _sorted: Options = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.arch, str):
            raise TypeError(f"arch must be a str such as 'sm_90', not {type(self.arch).__name__}")
        if not _ARCH.fullmatch(self.arch):
            raise ValueError(
                "arch names one target, such as 'sm_90' (for a cubin) or 'compute_90' (for PTX), "
                f"and {self.arch!r} does not"
            )
        check_location("executable", self.executable)
        if self.toolchain is not None:
            check_location("toolchain", self.toolchain)
        options = strings("options", self.options)
        env = check_env(self.env)
        for name in _FORBIDDEN_ENV:
            if name in env:
                raise ValueError(f"{name} cannot be passed on: give what it says as options=")
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "env", env)
        object.__setattr__(self, "_sorted", sort_options(options))

    def request(
        self,
        source: str | bytes | os.PathLike[str],
        *,
        label: str | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> Request:
        """Describe one compile, without any I/O.

        :param source: CUDA C++ text, or the path of a file, which is read when the key is derived. A relative
            path counts from ``directory``.
        :param label: a name for people and statistics; never key material.
        :param directory: the compiler's working directory, from which relative include paths count, and for
            text quoted includes as well; by default the process's own when the key is derived.
        :raises TypeError: a source that is neither text nor a path.
        """
        if not isinstance(source, str | bytes | os.PathLike):
            raise TypeError(f"the source is str or bytes (text) or a path, not {type(source).__name__}")
        return Request(
            self, source, label, {"directory": None if directory is None else os.fspath(directory)}
        )

    async def prepare(self, request: Request) -> Request:
        """Preprocess the source for the target, and return a request that carries the text.

        Cancellation stops the preprocessor.

        :raises CompileError: nvcc or the preprocessor refused: for one an option, or that a header is
            missing.
        :raises CompileTimeoutError: it did not end.
        :raises CompilerNotFoundError: there is no nvcc, no host compiler, or none of CUDA's own headers.
        :raises OSError: the source cannot be read.
        """
        if isinstance(request.source, _Preprocessed):
            return request
        directory = await in_thread(os.path.abspath, request.arguments["directory"] or os.curdir)
        env = environment(self.env)
        program = await in_thread(find_nvcc, self.executable)
        argv = [program, *self.options, f"-arch={self.arch}", "-E", "-x", "cu", "-o", "{output}"]
        if isinstance(request.source, os.PathLike):
            argv, stdin = [*argv, os.fspath(request.source)], None
        else:
            # by its own "-" nvcc would copy the text to a file of random name, which the text then holds
            argv, stdin = [*argv, "-Xcompiler=-iquote,.", "/dev/stdin"], read_source(request.source)
        completed, text = await run_aside(
            argv, env=passed(env), stdin=stdin, cwd=directory, seconds=ASK_SECONDS
        )
        if not completed.ok:
            raise _refusal(completed)
        # nvcc's own warnings come again when it compiles
        said = [line for line in plain_text(completed).splitlines() if not line.startswith("nvcc warning")]
        return replace(request, source=_Preprocessed(text, directory, env, "\n".join(said)))

    async def fingerprint(self) -> str:
        """Return a digest of the content of nvcc and of what it runs to make device code.

        That is nvcc behind a wrapper of the distribution's, its profile, ``cicc``, ``ptxas``, ``libdevice``,
        and the host compiler that it names itself, with its preprocessor. Which files these are is asked by a
        dry run, once in a process and again when nvcc changes; their content is looked at each time.

        :raises CompileError: nvcc refused an option or the target.
        :raises CompilerNotFoundError: there is no nvcc, or no host compiler.
        :raises KeyDerivationError: the host compiler is not gcc.
        """
        driver = await in_thread(find_nvcc, self.executable if self.toolchain is None else self.toolchain)
        env = [f"{name}={value}" for name, value in passed(environment(self.env)).items()]
        question = (self.arch, *self._sorted.driving, *self._sorted.compiling, *env)
        return await fingerprint_of(driver, question, self._parts, "nvcc")

    async def _parts(self, driver: str) -> tuple[str, ...]:
        """Ask nvcc by a dry run, and the host compiler that it names, which files do the work."""
        env = passed(environment(self.env))
        argv = [driver, "--dryrun", *self._sorted.driving, *self._sorted.compiling]
        argv += [f"-arch={self.arch}", f"-{self._part}", "-x", "cu", os.devnull]
        completed = await run_tool(argv, env=env, cwd="/", timeout=ASK_SECONDS)
        if not completed.ok:
            raise _refusal(completed)
        report = completed.stderr.decode("utf-8", "surrogateescape")
        if " --clang " in report:
            raise KeyDerivationError(
                "nvcc's host compiler is clang here, which cannot be handed the preprocessed text that was "
                "keyed; name a gcc in options=['-ccbin', 'g++']"
            )
        files, path, host = await in_thread(_programs, driver, report)
        if host is None:
            raise not_found(f"{plain_text(completed)}\n{_HOST_HINT}".lstrip())
        behind = await parts_of(host, self._sorted.host, ("cc1plus",), env={**env, "PATH": path})
        return tuple(sorted({*files, *behind}))

    @property
    def _part(self) -> str:
        return "cubin" if self.arch.startswith("sm_") else "ptx"

    async def key_fields(self, request: Request) -> dict[str, object]:
        """Return every input of the compile as labelled fields.

        :raises CompileError: the preprocessor refused the source. (And what else `prepare` and `fingerprint`
            raise.)
        """
        prepared = _prepared(await self.prepare(request))
        return {
            "compiler": "acache.nvcc/1",
            "text": prepared.text,
            "arch": self.arch,
            "options": self._sorted.compiling,
            "directory": prepared.directory if self._sorted.debug else None,
            "env": prepared.env,
            "toolchain": await self.fingerprint(),
        }

    async def compile(self, request: Request, workspace: Workspace) -> Artifact:
        """Compile the preprocessed text to a cubin or to PTX.

        Cancellation stops nvcc and all that it started (its children survive a kill of nvcc alone).

        :return: an artifact with the part ``cubin`` or ``ptx``; nvcc's and ptxas's remarks are its metadata
            ``messages``.
        :raises CompileError: the compiler's diagnostics, in its own words.
        :raises CompilerCrashedError: it, or a program it runs, was killed or could not be started.
        :raises CompilerNotFoundError: there is no nvcc.
        """
        prepared = _prepared(await self.prepare(request))
        program = await in_thread(find_nvcc, self.executable)
        source, output = workspace.path / "source.ii", workspace.path / f"kernel.{self._part}"
        await in_thread(_lay, source, prepared.text)
        argv = ["/bin/sh", "-c", _NAMELESS, "sh", str(source), program]
        argv += [*self._sorted.driving, *self._sorted.compiling, f"-arch={self.arch}", f"-{self._part}"]
        if not self._sorted.seeded:
            # of what nvcc would make random, where no other name makes a source unique
            argv.append(f"-frandom-seed=0x{hashlib.sha256(prepared.text).hexdigest()[:8]}")
        argv += ["-Xcompiler", "-fpreprocessed", "-x", "cu", "-o", str(output), "/dev/stdin"]
        completed = await workspace.run(argv, env=passed(prepared.env), cwd=prepared.directory)
        if not completed.ok:
            raise error_of(completed, workspace.path)
        said = "\n".join(filter(None, [prepared.messages, plain_text(completed, workspace.path)]))
        try:
            data = await in_thread(output.read_bytes)
        except FileNotFoundError:
            raise unfinished(completed, f"nvcc ended well but wrote no {self._part}\n{said}") from None
        if self._part == "cubin" and not is_whole(data):
            raise unfinished(completed, f"{BROKEN}\n{said}", "disk")
        metadata: dict[str, JSON] = {"messages": said} if said else {}
        return Artifact({self._part: data}, metadata)


def _prepared(request: Request) -> _Preprocessed:
    assert isinstance(request.source, _Preprocessed)
    return request.source


def _lay(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    os.utime(path, (0, 0))  # line information holds the time of the source that is text


def _refusal(completed: Completed) -> CompileError:
    """Make the error for an nvcc that did not preprocess; say what to install where that is it."""
    text = plain_text(completed)
    for pattern, hint in ((_NO_HOST, _HOST_HINT), (_NO_HEADERS, _HEADERS_HINT)):
        if pattern.search(text):
            return not_found(f"{text}\n{hint}")
    return error_of(completed)


def find_nvcc(executable: Location) -> str:
    """Return the path of nvcc: the one asked for, or the Python packages' where PATH has none. Blocks.

    :raises CompilerNotFoundError: there is none.
    """
    if os.fspath(executable) == "nvcc" and shutil.which("nvcc") is None:
        packaged = find_packaged("nvcc")
        if packaged is not None:
            return packaged
    return find_program(executable, _HINT)


def _programs(driver: str, report: str) -> tuple[set[str], str, str | None]:
    """Read a dry run: the files that do the work, the PATH that nvcc sets, the host compiler if it is there.

    Symbolic links are kept, so that a toolkit that is relinked to another release is seen. Blocks.
    """
    variables: dict[str, str] = dict(_DRY_VARIABLE.findall(report))
    path = variables.get("PATH", os.environ.get("PATH", os.defpath))
    here = variables.get("_HERE_", os.path.dirname(driver))
    # what it runs to make a cubin (watched by strace, release 13.0), and the library it is linked with
    files = {driver, f"{here}/nvcc", f"{here}/nvcc.profile", f"{variables.get('CICC_PATH', here)}/cicc"}
    files.add(shutil.which("ptxas", path=path) or f"{here}/ptxas")
    files.update(glob.glob(f"{glob.escape(variables.get('NVVMIR_LIBRARY_DIR', here))}/*.bc"))
    command = _DRY_HOST.search(report)
    host = None if command is None else shutil.which(shlex.split(command[1])[0], path=path)
    return {file for file in files if os.path.isfile(file)}, path, host
