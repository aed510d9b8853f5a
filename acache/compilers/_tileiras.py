"""`Tileiras`: NVIDIA's cuTile compiler, from bytecode or straight from a Python kernel."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from acache._errors import CompileError
from acache._models import Artifact, CompileFailure, Request, Workspace
from acache.compilers._diagnostics import error_of, plain_text, unfinished
from acache.compilers._elf import BROKEN, is_whole
from acache.compilers._tile_bytecode import without_folders
from acache.compilers._toolchain import (
    Location,
    check_location,
    digest_files,
    find_packaged,
    find_program,
    in_thread,
    not_found,
    read_source,
)

if TYPE_CHECKING:
    from acache._models import JSON

__all__ = ["Tileiras"]

_HINT: Final = 'pip install "acache[tile]", or put the CUDA toolkit\'s bin folder on PATH'
_GPU: Final = re.compile(r"sm_\d{2,3}[a-z]?")
_PARTS: Final = (
    "bin/ptxas",  # run to assemble what libnvvm gives
    "bin/nvlink",
    "lib/libnvvm.so*",  # the packages' layout
    "lib64/libnvvm.so*",
    "nvvm/lib64/libnvvm.so*",  # the toolkit's layout
    "nvvm/libdevice/*.bc",
    "lib/libnvJitLink.so*",
    "lib64/libnvJitLink.so*",
)
"""What tileiras runs and loads, from the folder above its own (watched by strace, release 13.5)."""


@dataclass(frozen=True, slots=True)
class _Bytecode:
    """What a request's source became: the bytecode that is keyed and compiled."""

    data: bytes


@final
@dataclass(frozen=True, slots=True)
class Tileiras:
    """The cuTile compiler: Tile IR bytecode, or a cuTile kernel with its signature, to a cubin. Needs no GPU.

    ::

        tileiras = Tileiras("sm_100")
        artifact = await cache.compile(tileiras.request(softmax_kernel, signature=signature, label="softmax"))
        artifact.parts["cubin"]

    :param gpu_name: the target, as ``sm_90``.
    :param opt_level: 0 to 3.
    :param executable: what runs: a name looked up on PATH, or a path. By default the ``tileiras`` of the
        Python packages that ``acache[tile]`` installs, else the one on PATH.
    :param toolchain: the ``tileiras`` whose content (with what lies around it) stands in the key, where
        ``executable`` is a wrapper around it.
    :raises TypeError: an argument of the wrong type.
    :raises ValueError: a target not of that form, an optimisation level out of range.

    The key covers the bytecode, the target, the level and the content of tileiras, ptxas, libnvvm and
    libdevice. No environment variable reaches the compiler. The absolute path of the kernel's file, which
    bytecode holds as debug information, is shortened to its base name before the bytecode is keyed *and*
    compiled: it is not in the cubin either way, and checkouts in different folders share artifacts. Line
    numbers stay, for the compiler's diagnostics.
    """

    gpu_name: str
    opt_level: int = field(default=3, kw_only=True)
    executable: Location | None = field(default=None, kw_only=True)
    toolchain: Location | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.gpu_name, str):
            raise TypeError(f"gpu_name must be a str such as 'sm_90', not {type(self.gpu_name).__name__}")
        if not _GPU.fullmatch(self.gpu_name):
            raise ValueError(f"gpu_name names a target such as 'sm_90', and {self.gpu_name!r} does not")
        if not isinstance(self.opt_level, int) or isinstance(self.opt_level, bool):
            raise TypeError(f"opt_level must be an int, not {type(self.opt_level).__name__}")
        if not 0 <= self.opt_level <= 3:
            raise ValueError(f"opt_level goes from 0 to 3, and {self.opt_level} is outside")
        for what, location in (("executable", self.executable), ("toolchain", self.toolchain)):
            if location is not None:
                check_location(what, location)

    def request(
        self,
        source: object,
        *,
        signature: object = None,
        label: str | None = None,
        bytecode_version: str = "13.3",
    ) -> Request:
        """Describe one compile, without any I/O.

        :param source: Tile IR bytecode; or the path of a file of it; or a ``cuda.tile`` kernel, which is
            exported when the key is derived. The kernel's function must stand in a file.
        :param signature: for a kernel, its ``cuda.tile.compilation.KernelSignature``, or a sequence of them.
        :param label: a name for people and statistics; never key material.
        :param bytecode_version: for a kernel, the version of Tile IR to export; the compiler must know it.
        :raises TypeError: a text (bytecode is bytes), or a kernel without a signature.
        :raises ValueError: bytecode with a signature.
        """
        if isinstance(source, str):
            raise TypeError(
                "the source is bytecode (bytes), a path (pathlib.Path) or a cuda.tile kernel, not a str"
            )
        if isinstance(source, bytes | bytearray | memoryview | os.PathLike):
            if signature is not None:
                raise ValueError("a signature belongs to a kernel; bytecode has its own")
            plain = source if isinstance(source, os.PathLike) else bytes(source)
            return Request(self, plain, label)
        if signature is None:
            raise TypeError(
                f"a kernel needs signature=, a cuda.tile.compilation.KernelSignature (source: {source!r})"
            )
        signatures = tuple(signature) if isinstance(signature, Sequence) else (signature,)
        return Request(self, source, label, {"signatures": signatures, "bytecode_version": bytecode_version})

    async def prepare(self, request: Request) -> Request:
        """Read or export the bytecode, and return a request that carries it.

        Exporting a kernel takes cuda-tile some 10 ms of Python, in a worker thread and under its own lock;
        cancellation waits for it. A program that asks for one kernel often prepares its request once.

        :raises CompileError: cuda-tile refused the kernel, in its own words.
        :raises CompilerNotFoundError: cuda-tile is not installed.
        :raises OSError: the bytecode cannot be read.
        """
        if isinstance(request.source, _Bytecode):
            return request
        if isinstance(request.source, bytes | os.PathLike):
            data = await in_thread(read_source, request.source)
        else:
            arguments = request.arguments
            version, signatures = arguments["bytecode_version"], arguments["signatures"]
            data = await in_thread(_export, request.source, signatures, self.gpu_name, version)
        return replace(request, source=_Bytecode(without_folders(data)))

    async def fingerprint(self) -> str:
        """Return a digest of the content of tileiras, and of the ptxas, libnvvm and libdevice it works with.

        :raises CompilerNotFoundError: there is no tileiras.
        """
        location = self.executable if self.toolchain is None else self.toolchain
        return await in_thread(_fingerprint, location)

    async def key_fields(self, request: Request) -> dict[str, object]:
        """Return every input of the compile as labelled fields.

        :raises CompileError: cuda-tile refused the kernel. (And what else `prepare` raises.)
        """
        prepared = _prepared(await self.prepare(request))
        return {
            "compiler": "acache.tileiras/1",
            "bytecode": prepared.data,
            "gpu_name": self.gpu_name,
            "opt_level": self.opt_level,
            "toolchain": await self.fingerprint(),
        }

    async def compile(self, request: Request, workspace: Workspace) -> Artifact:
        """Compile the bytecode to a cubin.

        Cancellation stops tileiras and the ptxas that it runs.

        :return: an artifact with the part ``cubin``; the compiler's remarks are its metadata ``messages``.
        :raises CompileError: the compiler's diagnostics, in its own words.
        :raises CompilerCrashedError: it was killed or could not be started.
        :raises CompilerNotFoundError: there is no tileiras.
        """
        prepared = _prepared(await self.prepare(request))
        program = await in_thread(find_tileiras, self.executable)
        await in_thread((workspace.path / "kernel.bc").write_bytes, prepared.data)
        argv = [program, "--gpu-name", self.gpu_name, "--opt-level", str(self.opt_level)]
        completed = await workspace.run(
            [*argv, "-o", "kernel.cubin", "kernel.bc"], env={}, cwd=workspace.path
        )
        if not completed.ok:
            raise error_of(completed, workspace.path)
        said = plain_text(completed, workspace.path)
        try:
            data = await in_thread((workspace.path / "kernel.cubin").read_bytes)
        except FileNotFoundError:
            raise unfinished(completed, f"tileiras ended well but wrote no cubin\n{said}") from None
        if not is_whole(data):
            raise unfinished(completed, f"{BROKEN}\n{said}", "disk")
        metadata: dict[str, JSON] = {"messages": said} if said else {}
        return Artifact({"cubin": data}, metadata)


def _prepared(request: Request) -> _Bytecode:
    assert isinstance(request.source, _Bytecode)
    return request.source


def find_tileiras(executable: Location | None) -> str:
    """Return the path of tileiras: the one asked for, else the Python packages' own, else on PATH. Blocks."""
    if executable is not None:
        return find_program(executable, _HINT)
    packaged = find_packaged("tileiras")
    if packaged is not None:
        return packaged
    return find_program("tileiras", _HINT)


def _fingerprint(location: Location | None) -> str:
    program = os.path.realpath(find_tileiras(location))
    root = Path(program).parent.parent
    parts = {os.path.realpath(path) for pattern in _PARTS for path in root.glob(pattern)}
    return digest_files([program, *parts])


def _export(kernel: object, signatures: Sequence[object], gpu_name: str, bytecode_version: str) -> bytes:
    """Let cuda-tile translate a kernel to bytecode. Blocks."""
    try:
        import cuda.tile
        from cuda.tile import compilation
    except ImportError as error:
        raise not_found(f'cuda-tile is not installed: pip install "acache[tile]" ({error})') from error
    if not isinstance(kernel, cuda.tile.kernel):
        raise TypeError(f"the source is bytecode, a path or a cuda.tile kernel, not {type(kernel).__name__}")
    output = io.BytesIO()
    chosen: Any = list(signatures)
    try:
        compilation.export_kernel(
            kernel,
            chosen,
            output,
            gpu_code=gpu_name,
            output_format="tileir_bytecode",
            bytecode_version=bytecode_version,
        )
    except cuda.tile.TileError as error:
        failure = CompileFailure(
            reason="diagnostic", text=f"{type(error).__name__}: {error}", exit_status=None, deterministic=True
        )
        raise CompileError(failure) from error
    return output.getvalue()
