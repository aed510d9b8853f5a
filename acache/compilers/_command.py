"""`Command`: any program with declared inputs and outputs as a compiler."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias, final

from acache._errors import CompileError
from acache._models import Artifact, CompileFailure, Request, Workspace
from acache.compilers._diagnostics import error_of, plain_text
from acache.compilers._toolchain import (
    Location,
    check_env,
    check_location,
    digest_files,
    environment,
    find_program,
    in_thread,
    passed,
    read_source,
    strings,
)

if TYPE_CHECKING:
    from acache._models import JSON

__all__ = ["Command"]

Content: TypeAlias = "str | bytes | os.PathLike[str]"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a request's source became: the content of every input, and the environment as it was then."""

    files: Mapping[str, bytes]
    stdin: bytes | None
    env: Mapping[str, str | None]


@final
@dataclass(frozen=True, slots=True)
class Command:
    """Any program that reads files and writes files, and does nothing else.

    ::

        mytool = Command(["mytool", "-O3", "in.x", "-o", "out.bin"], inputs=["in.x"], outputs=["out.bin"])
        artifact = await cache.compile(mytool.request(Path("kernels/softmax.x"), label="softmax"))

    :param argv: the program and its arguments. The program is looked up on PATH, or is a path; arguments name
        the inputs and outputs as below. It runs in a private empty folder, so other relative names lead
        nowhere.
    :param inputs: names of the files that a request gives content to. None: the request's source is the
        program's standard input.
    :param outputs: names of the files that the program writes; each becomes a part of the artifact, in this
        order.
    :param env: names of the environment variables that the program is given; their values are key material.
        Without ``PATH`` among them it gets the system's default one: helpers that it starts by name cannot
        differ between callers unseen.
    :param toolchain: the file or files whose content stands for the program in keys; by default the program
        itself. Give the libraries, scripts or data that it loads; or, where ``argv`` names a wrapper that
        only counts or logs, the program behind it.
    :raises TypeError: an argument of the wrong type.
    :raises ValueError: an empty ``argv``, no outputs, a repeated name, a name that leaves the folder.

    The key covers ``argv`` (but for the folder the program lies in), input contents, output names, the
    variables and the toolchain's content. What else the program reads (files by absolute path, the clock, the
    network) is yours to declare, or it will not be missed.
    """

    argv: Sequence[str]
    inputs: Sequence[str] = field(default=(), kw_only=True)
    outputs: Sequence[str] = field(kw_only=True)
    env: Sequence[str] = field(default=(), kw_only=True)
    toolchain: Location | Sequence[Location] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.argv, str):
            raise TypeError(
                f"argv must be a sequence of strings; a command line is split by shlex.split({self.argv!r})"
            )
        argv = strings("argv", self.argv)
        if not argv or not argv[0]:
            raise ValueError("argv must begin with a program")
        inputs, outputs = _names("inputs", self.inputs), _names("outputs", self.outputs)
        if not outputs:
            raise ValueError("outputs must name at least one file that the program writes")
        if self.toolchain is not None:
            single = isinstance(self.toolchain, str | os.PathLike)
            toolchain = (self.toolchain,) if single else tuple(self.toolchain)  # type: ignore[arg-type]
            for index, location in enumerate(toolchain):
                check_location(f"toolchain[{index}]", location)
            if not toolchain:
                raise ValueError(
                    "toolchain must name at least one file; leave it out to mean the program itself"
                )
            object.__setattr__(self, "toolchain", toolchain)
        object.__setattr__(self, "argv", argv)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", outputs)
        object.__setattr__(self, "env", check_env(self.env))

    def request(self, source: Content | Mapping[str, Content], *, label: str | None = None) -> Request:
        """Describe one compile, without any I/O.

        :param source: text, bytes, or a path of a file that is read when the key is derived, for the one
            input (for standard input if none is declared); or a mapping of every input's name to one of
            these.
        :param label: a name for people and statistics; never key material.
        :raises TypeError: a source of another type.
        :raises ValueError: the names are not the declared inputs.
        """
        contents: dict[str, object]
        if isinstance(source, Mapping):
            contents = dict(source)
            if set(contents) != set(self.inputs):
                raise ValueError(
                    f"this command's inputs are {list(self.inputs)}, and the source gives {list(contents)}"
                )
        else:
            if len(self.inputs) > 1:
                raise ValueError(
                    f"this command has {len(self.inputs)} inputs, so the source is a mapping of "
                    f"{list(self.inputs)} to contents"
                )
            contents = {"the source": source}
        for name, content in contents.items():
            if not isinstance(content, str | bytes | os.PathLike):
                raise TypeError(f"{name} is str, bytes or a path, not {type(content).__name__}")
        return Request(self, contents if isinstance(source, Mapping) else source, label)

    async def prepare(self, request: Request) -> Request:
        """Read the inputs and the environment, and return a request that carries them.

        :raises OSError: an input cannot be read.
        """
        if isinstance(request.source, _Prepared):
            return request
        return replace(request, source=await in_thread(self._read, request.source))

    def _read(self, source: object) -> _Prepared:
        if isinstance(source, Mapping):
            files, stdin = {name: read_source(source[name]) for name in self.inputs}, None
        elif self.inputs:
            files, stdin = {self.inputs[0]: read_source(source)}, None
        else:
            files, stdin = {}, read_source(source)
        return _Prepared(files, stdin, environment(self.env))

    async def fingerprint(self) -> str:
        """Return a digest of the content of the program, or of ``toolchain``.

        :raises CompilerNotFoundError: there is no such program.
        """
        return await in_thread(self._fingerprint)

    def _fingerprint(self) -> str:
        locations = self.toolchain if isinstance(self.toolchain, tuple) else (self.argv[0],)
        files = [_locate(location) for location in locations]
        # by name too: a program of many faces (busybox, a compiler named for its target) acts by it
        return digest_files(files, os.path.basename(files[0]))

    async def key_fields(self, request: Request) -> dict[str, object]:
        """Return every input of the compile as labelled fields.

        :raises OSError: an input cannot be read.
        :raises CompilerNotFoundError: there is no such program.
        """
        prepared = _prepared(await self.prepare(request))
        return {
            "compiler": "acache.command/1",
            "argv": self.argv[1:],
            "inputs": prepared.files,
            "stdin": prepared.stdin,
            "outputs": self.outputs,
            "env": prepared.env,
            "toolchain": await self.fingerprint(),
        }

    async def compile(self, request: Request, workspace: Workspace) -> Artifact:
        """Run the program in the workspace and collect its outputs.

        Cancellation stops the program and all that it started.

        :raises CompileError: it failed, with its own text, or it wrote none of a declared output.
        :raises CompilerCrashedError: it was killed by a signal or could not be started.
        :raises CompilerNotFoundError: there is no such program.
        """
        prepared = _prepared(await self.prepare(request))
        program = await in_thread(_locate, self.argv[0])
        await in_thread(self._lay, prepared, workspace.path)
        completed = await workspace.run(
            [program, *self.argv[1:]],
            env={"PATH": os.defpath, **passed(prepared.env)},
            stdin=prepared.stdin,
            cwd=workspace.path,
        )
        if not completed.ok:
            raise error_of(completed, workspace.path)
        said = plain_text(completed, workspace.path)
        parts, missing = await in_thread(self._collect, workspace.path)
        if missing:
            text = (
                f"the program ended well but did not write {', '.join(map(repr, missing))}\n{said}".rstrip()
            )
            raise CompileError(
                CompileFailure(reason="exit", text=text, exit_status=0, seconds=completed.seconds)
            )
        metadata: dict[str, JSON] = {"messages": said} if said else {}
        return Artifact(parts, metadata)

    def _lay(self, prepared: _Prepared, folder: Path) -> None:
        for name in self.outputs:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        for name, content in prepared.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    def _collect(self, folder: Path) -> tuple[dict[str, bytes], list[str]]:
        parts: dict[str, bytes] = {}
        missing: list[str] = []
        for name in self.outputs:
            path = folder / name
            if path.is_file():
                parts[name] = path.read_bytes()
            else:
                missing.append(name)
        return parts, missing


def _locate(location: Location) -> str:
    if os.path.isfile(location) and os.path.dirname(location):
        return os.path.abspath(location)  # a library or a data file needs no execute permission
    return find_program(location, "install it, or give its path")


def _prepared(request: Request) -> _Prepared:
    assert isinstance(request.source, _Prepared)
    return request.source


def _names(what: str, values: Sequence[str]) -> tuple[str, ...]:
    """Check names of files in the workspace."""
    names = strings(what, values)
    for name in names:
        path = PurePosixPath(name)
        if not name or path.is_absolute() or ".." in path.parts or str(path) != name or name == ".":
            raise ValueError(
                f"{what} are plain relative names inside the working folder, and {name!r} is not"
            )
    if len(set(names)) != len(names):
        raise ValueError(f"{what} repeat a name: {list(names)}")
    return names
