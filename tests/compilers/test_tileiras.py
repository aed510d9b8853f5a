"""`Tileiras`: by a stand-in that speaks as tileiras does, and (marked) by the real one, without a GPU."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from acache._errors import CompileError, CompilerCrashedError, CompilerNotFoundError
from acache.compilers import Request, Tileiras

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from acache._keys import Key
    from acache._models import Artifact

    KeyOf = Callable[[Request], Awaitable[Key]]
    Build = Callable[[Request], Awaitable[Artifact]]
    Script = Callable[[str, str], Path]


CUTILE = Path(__file__).parents[2] / "examples" / "kernels" / "cutile.py"
real = pytest.mark.tileiras


def load(path: Path) -> Any:
    """Import a module of kernels from its file."""
    name = "acache_test_" + path.parent.name.replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- a value ---------------------------------------------------------------------------------------------


def test_a_compiler_is_a_value() -> None:
    compiler = Tileiras("sm_100")
    assert compiler == Tileiras("sm_100", opt_level=3)
    assert hash(compiler) == hash(Tileiras("sm_100"))
    assert pickle.loads(pickle.dumps(compiler)) == compiler
    assert compiler != Tileiras("sm_90")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"gpu_name": "hopper"}, ValueError),
        ({"gpu_name": "sm_90; rm"}, ValueError),
        ({"gpu_name": 90}, TypeError),
        ({"opt_level": 4}, ValueError),
        ({"opt_level": -1}, ValueError),
        ({"opt_level": True}, TypeError),
        ({"opt_level": "3"}, TypeError),
        ({"executable": ""}, ValueError),
        ({"toolchain": 3}, TypeError),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        Tileiras(**{"gpu_name": "sm_90", **arguments})


def test_wrong_requests() -> None:
    compiler = Tileiras("sm_90")
    with pytest.raises(TypeError, match=r"pathlib\.Path"):
        compiler.request("kernel.bc")
    with pytest.raises(ValueError, match="signature"):
        compiler.request(b"bytecode", signature=object())
    with pytest.raises(TypeError, match="needs signature="):
        compiler.request(object())


# --- by a stand-in ---------------------------------------------------------------------------------------


@pytest.fixture
def standin(script: Script) -> Path:
    """Return a program that takes tileiras' arguments and makes a file of them and the bytecode.

    The file begins as the least of ELF files.
    """
    return script(
        "tileiras",
        'test "$5" = -o || exit 1; { printf "\\177ELF\\2\\1"; head -c 58 /dev/zero; '
        'echo "$1 $2 $3 $4"; env | grep -v -e TMPDIR -e PWD; cat "$7"; } >"$6"',
    )


async def test_bytecode_from_memory_and_from_a_file(
    standin: Path, tmp_path: Path, build: Build, key_of: KeyOf
) -> None:
    (tmp_path / "kernel.bc").write_bytes(b"bytecode")
    compiler = Tileiras("sm_90", opt_level=2, executable=standin)
    requests = [compiler.request(b"bytecode", label="x"), compiler.request(tmp_path / "kernel.bc")]
    artifacts = [await build(request) for request in requests]
    assert artifacts[0] == artifacts[1]
    assert list(artifacts[0].parts) == ["cubin"]
    assert artifacts[0].data[64:].startswith(b"--gpu-name sm_90 --opt-level 2\n")
    assert artifacts[0].data.endswith(b"\nbytecode")
    assert b"HOME=" not in artifacts[0].data
    assert await key_of(requests[0]) == await key_of(requests[1])


async def test_the_key(standin: Path, script: Script, key_of: KeyOf) -> None:
    def compiler(gpu_name: str = "sm_90", **others: Any) -> Tileiras:
        return Tileiras(gpu_name, **{"executable": standin, **others})

    requests = [
        compiler().request(b"bytecode"),
        compiler().request(b"other"),
        compiler("sm_100").request(b"bytecode"),
        compiler(opt_level=1).request(b"bytecode"),
    ]
    keys = [await key_of(request) for request in requests]
    assert len(set(keys)) == len(keys)
    wrapper = script("count", f'exec {standin} "$@"')
    counted = compiler(executable=wrapper, toolchain=standin).request(b"bytecode")
    assert await key_of(counted) == keys[0]


async def test_the_fingerprint_covers_what_lies_around_it(
    standin: Path, tmp_path: Path, overwrite: Callable[[Path, bytes], None]
) -> None:
    parts = [
        standin,
        *(tmp_path / name for name in ("bin/ptxas", "lib/libnvvm.so.4", "nvvm/libdevice/libdevice.10.bc")),
    ]
    compiler = Tileiras("sm_90", executable=standin)
    seen = {await compiler.fingerprint()}
    for part in parts[1:]:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(b"release 1")
        seen.add(await compiler.fingerprint())
    for part in parts:
        before = part.read_bytes()
        overwrite(part, bytes(reversed(before)))
        seen.add(await compiler.fingerprint())
    assert len(seen) == 2 * len(parts)


async def test_what_is_keyed_is_what_is_compiled(
    standin: Path, tmp_path: Path, build: Build, key_of: KeyOf
) -> None:
    source = tmp_path / "kernel.bc"
    source.write_bytes(b"keyed")
    compiler = Tileiras("sm_90", executable=standin)
    prepared = await compiler.prepare(compiler.request(source, label="label"))
    key = await key_of(prepared)
    source.write_bytes(b"edited")
    assert (await build(prepared)).data.endswith(b"keyed")
    assert await key_of(prepared) == key
    assert await compiler.prepare(prepared) is prepared
    assert prepared.label == "label"


@pytest.mark.parametrize(
    ("body", "kind", "reason", "deterministic"),
    [
        (
            "echo 'error: input does not correspond to Tile IR bytecode'; exit 3",
            CompileError,
            "diagnostic",
            True,
        ),
        ("echo 'error: failed to compile Tile IR program' >&2; exit 5", CompileError, "exit", False),
        ("echo 'LLVM ERROR: out of memory' >&2; kill -ABRT $$", CompileError, "memory", False),
        ("echo 'LLVM ERROR: IO failure: No space left on device'; exit 1", CompileError, "disk", False),
        ("kill -SEGV $$", CompilerCrashedError, "signal", False),
        ("echo remark", CompileError, "exit", False),
        # what its ptxas leaves on a full disk (release 13.5): the beginning, and a good end
        ("printf '\\177ELF\\2\\1' >\"$6\"", CompileError, "disk", False),
    ],
)
async def test_failures(
    body: str, kind: type[CompileError], reason: str, deterministic: bool, script: Script, build: Build
) -> None:
    with pytest.raises(CompileError) as caught:
        await build(Tileiras("sm_90", executable=script("tileiras", body)).request(b"x"))
    assert type(caught.value) is kind
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == (reason, deterministic)


async def test_tileiras_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key_of: KeyOf, build: Build
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    for module in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, module)
    for act in (key_of, build):
        with pytest.raises(CompilerNotFoundError, match=r'pip install "acache\[tile\]"') as caught:
            await act(Tileiras("sm_90").request(b"x"))
        assert caught.value.failure.reason == "missing"


async def test_cuda_tile_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, standin: Path, key_of: KeyOf
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.tile", None)
    compiler = Tileiras("sm_90", executable=standin)
    with pytest.raises(CompilerNotFoundError, match=r'pip install "acache\[tile\]"'):
        await key_of(compiler.request(object(), signature=object()))


async def test_the_newest_of_the_python_packages_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: Script
) -> None:
    for release in ("cu9", "cu13", "cu14", "cu15"):
        folder = tmp_path / "site" / "nvidia" / release / "bin"
        folder.mkdir(parents=True)
        shutil.copy(script("tileiras", f"echo {release}"), folder)
    (tmp_path / "site/nvidia/cu15/bin/tileiras").chmod(0o644)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    for module in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, module)
    named = Tileiras("sm_90", executable=tmp_path / "site/nvidia/cu14/bin/tileiras")
    assert await Tileiras("sm_90").fingerprint() == await named.fingerprint()


# --- the real one ----------------------------------------------------------------------------------------


@real
@pytest.mark.parametrize("name", ["vector_add", "softmax"])
async def test_real_kernels_to_equal_cubins(name: str, build: Build, key_of: KeyOf) -> None:
    kernels = load(CUTILE)
    request = Tileiras("sm_90").request(
        getattr(kernels, name), signature=kernels.signatures()[name], label=name
    )
    artifacts = [await build(request) for _ in range(2)]
    assert artifacts[0] == artifacts[1]
    assert artifacts[0].parts["cubin"].startswith(b"\x7fELF")
    assert name.encode() in artifacts[0].data
    assert await key_of(request) == await key_of(request)


@real
async def test_two_checkouts_share_key_and_cubin(tmp_path: Path, build: Build, key_of: KeyOf) -> None:
    """Bytecode names the folder of its source; neither key nor cubin may."""
    results = []
    for folder in (tmp_path / "one", tmp_path / "another-checkout"):
        folder.mkdir()
        kernels = load(Path(shutil.copy(CUTILE, folder)))
        request = Tileiras("sm_90").request(kernels.softmax, signature=kernels.signatures()["softmax"])
        results.append((await key_of(request), await build(request)))
    assert results[0] == results[1]


@real
@pytest.mark.parametrize(
    ("name", "gpu_name"), [("vector_add", "sm_90"), ("softmax", "sm_100"), ("gemm", "sm_100")]
)
async def test_the_folder_is_in_no_cubin(name: str, gpu_name: str, tmp_path: Path, build: Build) -> None:
    """What makes shortening the path sound: the compiler gives the same bytes for the untouched bytecode."""
    from cuda.tile.compilation import export_kernel

    kernels = load(CUTILE)
    output = io.BytesIO()
    options: dict[str, Any] = {
        "gpu_code": gpu_name,
        "output_format": "tileir_bytecode",
        "bytecode_version": "13.3",
    }
    signature = kernels.signatures()[name]
    export_kernel(getattr(kernels, name), [signature], output, **options)
    untouched = output.getvalue()
    assert os.fsencode(CUTILE.parent) in untouched
    (tmp_path / "kernel.bc").write_bytes(untouched)
    compiler = Tileiras(gpu_name)
    shortened = await compiler.prepare(compiler.request(tmp_path / "kernel.bc"))
    assert os.fsencode(CUTILE.parent) not in shortened.source.data  # type: ignore[attr-defined]
    from acache.compilers._tileiras import _Bytecode

    assert await build(Request(compiler, _Bytecode(untouched))) == await build(shortened)


@real
async def test_bytecode_that_the_compiler_refuses(build: Build) -> None:
    with pytest.raises(CompileError, match="does not correspond to Tile IR bytecode") as caught:
        await build(Tileiras("sm_90").request(b"junk"))
    failure = caught.value.failure
    assert (failure.reason, failure.exit_status, failure.deterministic) == ("diagnostic", 3, True)


@real
async def test_an_architecture_that_the_compiler_does_not_know(build: Build) -> None:
    with pytest.raises(CompileError, match="sm_42") as caught:
        await build(Tileiras("sm_42").request(b"junk"))
    assert (caught.value.failure.exit_status, caught.value.failure.deterministic) == (1, True)


@real
async def test_a_kernel_that_the_target_cannot_run(build: Build) -> None:
    """Exported for one target, compiled for another: the compiler refuses it, with the source's position."""
    import cuda.tile as ct
    from cuda.tile.compilation import CallingConvention, KernelSignature

    kernels = load(CUTILE)
    eight_bits = [kernels.array(ct.float8_e4m3fn, 2)] * 2
    signature = KernelSignature(
        [*eight_bits, kernels.array(ct.float32, 2), 64, 64, 32],
        calling_convention=CallingConvention.cutile_python_v1(),
    )
    modern, old = Tileiras("sm_90"), Tileiras("sm_80")
    prepared = await modern.prepare(modern.request(kernels.gemm, signature=signature))
    with pytest.raises(CompileError, match="unsupported type") as caught:
        await build(Request(old, prepared.source))
    failure = caught.value.failure
    assert (failure.reason, failure.exit_status, failure.deterministic) == ("diagnostic", 5, True)
    assert 'loc("cutile.py":' in failure.text
    with pytest.raises(CompileError, match="not supported on sm_80") as refused:
        await build(old.request(kernels.gemm, signature=signature))
    assert refused.value.failure.deterministic, "cuda-tile itself refuses it, when it exports for that target"


@real
async def test_what_befalls_ptxas_is_no_fault_of_the_kernel(tmp_path: Path, build: Build) -> None:
    """tileiras says the same few words whether its ptxas refused, died or was never there."""
    from acache.compilers._tileiras import find_tileiras

    root = Path(find_tileiras(None)).parent.parent
    for folder in ("lib", "nvvm"):
        (tmp_path / folder).symlink_to(root / folder)
    (tmp_path / "bin").mkdir()
    shutil.copy(root / "bin" / "tileiras", tmp_path / "bin")
    ptxas = tmp_path / "bin" / "ptxas"
    ptxas.write_text("#!/bin/sh\nkill -9 $$\n")
    ptxas.chmod(0o755)
    kernels = load(CUTILE)
    compiler = Tileiras("sm_90", executable=tmp_path / "bin" / "tileiras")
    request = compiler.request(kernels.vector_add, signature=kernels.signatures()["vector_add"])
    with pytest.raises(CompileError, match="failed to compile Tile IR program") as caught:
        await build(request)
    assert (caught.value.failure.exit_status, caught.value.failure.deterministic) == (5, False)


@real
async def test_a_type_error_in_the_kernel(key_of: KeyOf) -> None:
    import cuda.tile as ct
    from cuda.tile.compilation import CallingConvention, KernelSignature

    kernels = load(CUTILE)
    parameters = [kernels.array(ct.float32, 1), kernels.array(ct.float32, 2), 4, 1024]
    signature = KernelSignature(parameters, calling_convention=CallingConvention.cutile_python_v1())
    with pytest.raises(CompileError, match="does not match the array rank") as caught:
        await key_of(Tileiras("sm_90").request(kernels.softmax, signature=signature))
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == ("diagnostic", True)
    with pytest.raises(TypeError, match="not function"):
        await key_of(Tileiras("sm_90").request(load, signature=signature))
