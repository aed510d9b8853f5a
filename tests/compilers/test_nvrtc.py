"""`Nvrtc`: as a value, its options, where it is found; and (marked) the real one, without a GPU."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import acache
from acache._errors import CompileError, CompilerNotFoundError, KeyDerivationError
from acache._models import Artifact, PreparingCompiler, WarmCompiler
from acache.compilers import Nvrtc, Request, _nvrtc
from acache.compilers._nvrtc import _failure, _plain
from acache.compilers._nvrtc_library import find_nvrtc
from acache.compilers._nvrtc_options import sort_options

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from acache._keys import Key

    KeyOf = Callable[[Request], Awaitable[Key]]
    Build = Callable[[Request], Awaitable[Artifact]]

real = pytest.mark.nvrtc

FILL = "template <int N> __global__ void fill(int *out) { out[threadIdx.x] = N; }\n"
STORE = '#include "value.h"\n__global__ void store(int *out) { *out = VALUE; }\n'


# --- a value ---------------------------------------------------------------------------------------------


def test_a_compiler_is_a_value() -> None:
    compiler = Nvrtc("sm_90", options=["-lineinfo"], include_paths=[Path("include")])
    assert compiler == Nvrtc("sm_90", options=("-lineinfo",), include_paths=["include"])
    assert hash(compiler) == hash(Nvrtc("sm_90", options=("-lineinfo",), include_paths=("include",)))
    assert pickle.loads(pickle.dumps(compiler)) == compiler
    assert compiler != Nvrtc("sm_90")
    assert repr(Nvrtc("sm_90")) == "Nvrtc(arch='sm_90', options=(), include_paths=())"
    assert isinstance(compiler, WarmCompiler)
    assert isinstance(compiler, PreparingCompiler)


@pytest.mark.parametrize(
    ("arguments", "error", "way_out"),
    [
        ({"arch": ""}, ValueError, "arch is missing.*'sm_90'"),
        ({"arch": None}, ValueError, "arch is missing.*'sm_90'"),
        ({"arch": 90}, TypeError, "arch must be a str such as 'sm_90'"),
        ({"arch": "hopper"}, ValueError, "'hopper' does not: give 'sm_90'"),
        ({"arch": "sm_90 -G"}, ValueError, "give 'sm_90'"),
        ({"arch": "native"}, ValueError, "give 'sm_90'"),
        ({"options": "-G"}, TypeError, r"options must be a sequence of strings.*\['-G'\]"),
        ({"options": [3]}, TypeError, r"options\[0\]"),
        ({"options": ["-arch=sm_80"]}, ValueError, "the argument arch="),
        ({"options": ["--gpu-architecture", "sm_80"]}, ValueError, "the argument arch="),
        ({"options": ["-dlto"]}, ValueError, "output='ltoir'"),
        ({"options": ["--optix-ir"]}, ValueError, "OptiX"),
        ({"options": ["--time=/tmp/t"]}, ValueError, "write a file"),
        ({"options": ["-fdevice-time-trace=t"]}, ValueError, "write a file"),
        ({"options": ["--pch"]}, ValueError, "precompiled headers"),
        ({"options": ["--use-pch=x"]}, ValueError, "precompiled headers"),
        ({"options": ["-include", "x.h"]}, ValueError, "write the #include into the source"),
        ({"options": ["--pre-include=x.h"]}, ValueError, "write the #include into the source"),
        ({"options": ["--use-bundled-headers=x"]}, ValueError, "always there"),
        ({"options": ["-Xptxas", "-o,x"]}, ValueError, "ptxas read or write a file"),
        ({"options": ["--ptxas-options=--options-file=x"]}, ValueError, "ptxas read or write a file"),
        ({"options": [" --pre-include=x.h"]}, ValueError, "write the #include into the source"),
        ({"options": ["-Xcudafe", "--preinclude=x.h"]}, ValueError, "past what acache can judge"),
        ({"options": ["-Xopt=-pass-remarks-output=x"]}, ValueError, "past what acache can judge"),
        ({"options": ["-I"]}, ValueError, "names no folder"),
        ({"include_paths": "include"}, TypeError, r"sequence of folders, not one: \['include'\]"),
        ({"include_paths": [3]}, TypeError, "include_paths"),
        ({"include_paths": [""]}, ValueError, r"'\.' is the working directory"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], way_out: str) -> None:
    with pytest.raises(error, match=way_out):
        Nvrtc(**{"arch": "sm_90", **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "way_out"),
    [
        ({"source": 3}, TypeError, "a source is str, bytes or a path"),
        ({"output": "sass"}, ValueError, "'cubin', 'ptx' or 'ltoir'"),
        ({"name": "a/b.cu"}, ValueError, "plain file name"),
        ({"name": ""}, ValueError, "plain file name"),
        ({"name": ".cuda"}, ValueError, "plain file name"),
        ({"name_expressions": "fill<3>"}, TypeError, "sequence of strings"),
        ({"name_expressions": ['fill<3>\n#include "/x.h"']}, ValueError, "one line"),
    ],
)
def test_wrong_requests(arguments: dict[str, Any], error: type[Exception], way_out: str) -> None:
    with pytest.raises(error, match=way_out):
        Nvrtc("sm_90").request(**{"source": FILL, **arguments})


def test_the_output_follows_the_target() -> None:
    outputs = [Nvrtc(arch).request("").arguments["output"] for arch in ("sm_90a", "compute_90")]
    assert outputs == ["cubin", "ptx"]
    assert Nvrtc("sm_90").request("", output="ptx").arguments["output"] == "ptx"
    with pytest.raises(ValueError, match=r"compute_90 is a virtual target.*Nvrtc\('sm_90'\)"):
        Nvrtc("compute_90").request("", output="cubin")


def test_options_are_sorted() -> None:
    found = sort_options(
        [
            "-I",
            "a",
            "-Ib",
            "--include-path=c",
            "-D",
            "-Ino",
            "-DX=1",
            "-Xptxas",
            "-v",
            " -Id",
            "-G",
            "--no-source-include",
        ]
    )
    assert found.include_paths == ("a", "b", "c", "d")
    assert found.compiling == ("-D-Ino", "-DX=1", "-Xptxas", "-v", "-G", "--no-source-include")
    assert not found.search_source


@pytest.mark.parametrize(
    ("result", "log", "reason", "deterministic"),
    [
        ("NVRTC_ERROR_COMPILATION", 'k.cu(1): error: expected a ";"', "diagnostic", True),
        ("NVRTC_ERROR_COMPILATION", "ptxas fatal   : Unresolved extern function '_Z1fi'", "diagnostic", True),
        (
            "NVRTC_ERROR_COMPILATION",
            "ptxas error   : Entry function uses too much shared",
            "diagnostic",
            True,
        ),
        ("NVRTC_ERROR_INVALID_OPTION", "nvrtc: error: unrecognized option --nope found", "diagnostic", True),
        ("NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID", "", "diagnostic", True),
        ("NVRTC_ERROR_COMPILATION", "k.cu(1): catastrophic error: out of memory", "memory", False),
        ("NVRTC_ERROR_COMPILATION", "ptxas fatal   : Memory allocation failure", "memory", False),
        ("NVRTC_ERROR_COMPILATION", "k.cu(1): error: x\nstd::bad_alloc", "memory", False),
        ("NVRTC_ERROR_COMPILATION", "k.cu(1): error: x\n  say(out of memory);", "diagnostic", True),
        ("NVRTC_ERROR_OUT_OF_MEMORY", "", "memory", False),
        ("NVRTC_ERROR_COMPILATION", "k.cu(1): error: cannot write: No space left on device", "disk", False),
        ("disk", "[Errno 5] Input/output error", "disk", False),
        ("NVRTC_ERROR_COMPILATION", "k.cu(3): internal error: assertion failed", "exit", False),
        ("NVRTC_ERROR_COMPILATION", "", "exit", False),
        ("NVRTC_ERROR_INTERNAL_ERROR", "k.cu(1): error: x", "exit", False),
        ("NVRTC_ERROR_BUILTIN_OPERATION_FAILURE", "error: failed to open builtins", "exit", False),
    ],
)
def test_whose_fault_a_failure_is(result: str, log: str, reason: str, deterministic: bool) -> None:
    failure = _failure({"result": result, "code": 6, "seconds": 0.5}, log)
    assert (failure.reason, failure.deterministic, failure.exit_status) == (reason, deterministic, 6)
    assert failure.text == (log or result)


def test_a_log_does_not_tell_of_the_private_folder() -> None:
    log = '/tmp/w/1/_/k.cu(1): error\n.include-2/_/a/b.h(3): error: in "x.include-2/_/c" of /tmp/w/1'
    assert _plain(log, ["_/", ".include-2/_/"], Path("/tmp/w/1")) == (
        'k.cu(1): error\na/b.h(3): error: in "x.include-2/_/c" of .'
    )


# --- where it is found -----------------------------------------------------------------------------------


def packages(root: Path, major: int = 13, *, library: bool = True, bindings: bool = True) -> Path:
    """Make a folder that looks as the extra's packages do."""
    lib = root / "nvidia" / f"cu{major}" / "lib"
    if library:
        lib.mkdir(parents=True)
        (lib / f"libnvrtc.so.{major}").write_bytes(b"library")
        (lib / f"libnvrtc-builtins.so.{major}.5").write_bytes(b"builtins")
    if bindings:
        (root / "cuda" / "bindings").mkdir(parents=True)
        (root / "cuda" / "bindings" / "nvrtc.cpython-311-x86_64-linux-gnu.so").write_bytes(b"")
        (root / f"cuda_bindings-{major}.2.0.dist-info").mkdir()
    return lib


def test_the_bindings_and_the_library_are_found_without_loading_them(tmp_path: Path) -> None:
    lib = packages(tmp_path / "site")
    found = find_nvrtc(["relative", str(tmp_path / "none"), str(tmp_path / "site")], {})
    assert found.folders == (str(tmp_path / "site"),)
    assert found.libnvrtc == str(lib / "libnvrtc.so.13")
    assert found.builtins == (str(lib / "libnvrtc-builtins.so.13.5"),)


def test_the_library_fits_the_bindings(tmp_path: Path) -> None:
    packages(tmp_path / "site", 12, library=False)
    toolkit = tmp_path / "toolkit" / "lib64"
    toolkit.mkdir(parents=True)
    for name in ("libnvrtc.so.12.6.20", "libnvrtc.so.13", "libnvrtc_static.a"):
        (toolkit / name).write_bytes(b"")
    (toolkit / "libnvrtc.so.12").symlink_to("libnvrtc.so.12.6.20")
    for variables in ({"CUDA_PATH": str(toolkit.parent)}, {"LD_LIBRARY_PATH": f":{toolkit}"}):
        assert find_nvrtc([str(tmp_path / "site")], variables).libnvrtc == str(
            toolkit / "libnvrtc.so.12.6.20"
        )


@pytest.mark.parametrize(("there", "said"), [("library", "cuda.bindings is"), ("bindings", "NVRTC 19 .*is")])
def test_without_the_extra(tmp_path: Path, there: str, said: str) -> None:
    packages(tmp_path, 19, **{"library": False, "bindings": False, there: True})
    with pytest.raises(CompilerNotFoundError, match=rf'{said} not installed: pip install "acache\[cuda\]"'):
        find_nvrtc([str(tmp_path)], {})


async def test_without_the_extra_a_cache_says_what_to_install(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [])
    async with acache.Cache(cache_dir) as cache:
        for call in (cache.compile, cache.key_of):
            with pytest.raises(CompilerNotFoundError, match=r"acache\[cuda\]"):
                await call(Nvrtc("sm_90").request(FILL))
        with pytest.raises(CompilerNotFoundError, match=r"acache\[cuda\]"):
            await cache.start_workers(Nvrtc("sm_90"))


async def test_a_library_that_cannot_be_loaded(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages(tmp_path / "site")
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(CompilerNotFoundError, match=r"NVRTC cannot be used: .*acache\[cuda\]"):
            await cache.compile(Nvrtc("sm_90").request(FILL))


OLD_BINDINGS = """\
# An NVRTC of before 13.5, which has no headers of its own: it fails, and says with which options.
import enum

class nvrtcResult(enum.IntEnum):
    NVRTC_SUCCESS = 0
    NVRTC_ERROR_COMPILATION = 6

DONE = (nvrtcResult.NVRTC_SUCCESS,)
LOG = b"kernel.cu(1): catastrophic error: could not open source file"

def nvrtcVersion():
    return (*DONE, 13, 0)

def nvrtcCreateProgram(source, name, count, headers, names):
    return (*DONE, [])

def nvrtcCompileProgram(program, count, options):
    program[:] = [LOG + b" with " + b" ".join(options)]
    return (nvrtcResult.NVRTC_ERROR_COMPILATION,)

def nvrtcGetProgramLogSize(program):
    return (*DONE, len(program[0]))

def nvrtcGetProgramLog(program, buffer):
    buffer[:] = program[0]
    return DONE

def nvrtcDestroyProgram(program):
    return DONE
"""
UNAWARE = """

def nvrtcInstallBundledHeaders(folder, flags):
    raise RuntimeError("Function nvrtcInstallBundledHeaders not found")
"""


def any_library() -> str:
    """Return the path of some library that can be loaded."""
    loaded = Path("/proc/self/maps").read_text().split()
    return next(path for path in loaded if path.startswith("/") and "/libc.so" in path)


@pytest.mark.skipif(sys.platform != "linux", reason="finds a library through /proc")
@pytest.mark.parametrize("bindings", [OLD_BINDINGS, OLD_BINDINGS + UNAWARE], ids=["bindings", "library"])
async def test_an_nvrtc_without_headers_of_its_own_says_what_it_wants(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bindings: str
) -> None:
    lib = packages(tmp_path / "site")
    (tmp_path / "site/cuda/bindings/nvrtc.cpython-311-x86_64-linux-gnu.so").unlink()
    (tmp_path / "site/cuda/bindings/nvrtc.py").write_text(bindings)
    for name in os.listdir(lib):
        shutil.copy(any_library(), lib / name)
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    with pytest.raises(
        CompileError, match=r"(?s)could not open.*note: NVRTC 13\.0 brings no headers"
    ) as caught:
        await build(Nvrtc("sm_90").request("#include <cuda_fp16.h>\n"))
    assert "-arch=sm_90\n" in caught.value.failure.text  # and no folder of headers
    with pytest.raises(CompileError) as caught:
        await build(Nvrtc("sm_90").request("no header"))
    assert "note:" not in caught.value.failure.text


# --- the key, for which nothing is loaded ------------------------------------------------------------------


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let something else be the installed NVRTC; return the folder of its libraries."""
    lib = packages(tmp_path / "site")
    found = find_nvrtc([str(tmp_path / "site")], {})
    monkeypatch.setattr(_nvrtc, "find_nvrtc", lambda: found)
    return lib


async def test_the_key(standin: Path, tmp_path: Path, key_of: KeyOf) -> None:
    def request(
        source: Any = FILL, arch: str = "sm_90", options: tuple[str, ...] = (), paths: Any = (), **others: Any
    ) -> Request:
        return Nvrtc(arch, options=options, include_paths=paths).request(source, **others)

    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "value.h").write_text("#define VALUE 1\n")
    (tmp_path / "fill.cu").write_text(FILL)
    requests = [
        request(),
        request(FILL + "\n"),
        request(arch="sm_90a"),
        request(arch="compute_90", output="ptx"),
        request(output="ptx"),
        request(output="ltoir"),
        request(options=("-G",)),
        request(options=("-G", "-DX")),
        request(options=("-DX", "-G")),
        request(name="other.cu"),
        request(name_expressions=["fill<3>"]),
        request(tmp_path / "fill.cu"),
        request(STORE),
        request(STORE, paths=[tmp_path / "i"]),
    ]
    keys = [await key_of(each) for each in requests]
    assert len(set(keys)) == len(keys)
    same = [
        request(label="label"),
        request(FILL.encode()),
        request(paths=[tmp_path]),
        request(tmp_path / "fill.cu", name="kernel.cu"),
    ]
    assert {await key_of(each) for each in same} == {keys[0]}
    assert await key_of(request(STORE, options=("-I", str(tmp_path / "i")))) == keys[-1]
    (standin / "libnvrtc-builtins.so.13.5").write_bytes(b"others")
    assert await key_of(requests[0]) != keys[0]


async def test_headers_at_any_depth_are_in_the_key_and_their_folders_are_not(
    standin: Path, tmp_path: Path, key_of: KeyOf
) -> None:
    seen = []
    for folder in ("one", "two"):
        include = tmp_path / folder / "include"
        include.mkdir(parents=True)
        (include / "value.h").write_text('#include "deeper.h"\n')
        (include / "deeper.h").write_text("#define VALUE 1\n")
        source = tmp_path / folder / "store.cu"
        source.write_text(STORE)
        request = Nvrtc("sm_90", include_paths=[include]).request(source)
        keys = [await key_of(request)]
        (include / "deeper.h").write_text("#define VALUE 2\n")
        keys.append(await key_of(request))
        (include / "deeper.h").write_text("#define VALUE 1\n")
        keys.append(await key_of(request))
        (tmp_path / folder / "value.h").write_text('#include "deeper.h"\n')  # now nearer
        keys.append(await key_of(request))
        assert len(set(keys)) == 3
        assert keys[2] == keys[0]
        seen.append(keys)
    assert seen[0] == seen[1]


async def test_a_prepared_request_is_what_was_read(standin: Path, tmp_path: Path, key_of: KeyOf) -> None:
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    compiler = Nvrtc("sm_90", include_paths=[tmp_path])
    prepared = await compiler.prepare(compiler.request(STORE))
    key = await key_of(prepared)
    (tmp_path / "value.h").unlink()
    assert await compiler.prepare(prepared) is prepared
    assert await key_of(prepared) == key
    assert await key_of(compiler.request(STORE)) != key


async def test_what_no_key_covers_is_said(standin: Path, tmp_path: Path, key_of: KeyOf) -> None:
    with pytest.raises(KeyDerivationError, match="computes a header's name"):
        await key_of(Nvrtc("sm_90").request("#include HEADER\n"))
    with pytest.raises(KeyDerivationError, match="leads 17 folders out"):
        await key_of(Nvrtc("sm_90").request(f"#include <{'../' * 17}x.h>\n"))
    with pytest.raises(KeyDerivationError, match="NUL byte"):
        await key_of(Nvrtc("sm_90").request(FILL.encode("utf-16")))
    assert await key_of(Nvrtc("sm_90").request(FILL + "\0"))
    with pytest.raises(FileNotFoundError, match=r"none\.cu"):
        await key_of(Nvrtc("sm_90").request(tmp_path / "none.cu"))


# --- the real one ----------------------------------------------------------------------------------------


@real
@pytest.mark.parametrize("output", ["cubin", "ptx", "ltoir"])
async def test_each_output_with_lowered_names(build: Build, output: Any) -> None:
    request = Nvrtc("sm_90").request(FILL, output=output, name_expressions=["fill<3>", "fill<1 + 3>"])
    artifact = await build(request)
    assert list(artifact.parts) == [output]
    names = {"fill<3>": "_Z4fillILi3EEvPi", "fill<1 + 3>": "_Z4fillILi4EEvPi"}
    assert artifact.metadata == {"lowered_names": names}
    if output == "cubin":
        assert artifact.data.startswith(b"\x7fELF")
    if output == "ptx":
        assert artifact.data.endswith(b"}\n\n")
    if output != "ltoir":
        assert all(name.encode() in artifact.data for name in names.values())


@real
@pytest.mark.parametrize(
    ("compiler", "source", "said"),
    [
        (Nvrtc("sm_90"), "nonsense\n", r"kernel\.cu\(1\): error: .*\n  nonsense"),
        (Nvrtc("sm_90", options=["--nope"]), FILL, "unrecognized option --nope"),
        (Nvrtc("sm_999"), FILL, r"invalid value for --gpu-architecture"),
        (Nvrtc("sm_90"), "#include <none.h>\n", r'cannot open source file "none\.h"'),
        (Nvrtc("sm_90"), "extern __device__ int f(); __global__ void k(int *a) { *a = f(); }", "Unresolved"),
    ],
    ids=["nonsense", "option", "arch", "header", "link"],
)
async def test_what_is_wrong_with_the_input_is_said_in_nvrtcs_words(
    build: Build, compiler: Nvrtc, source: str, said: str
) -> None:
    with pytest.raises(CompileError, match=said) as caught:
        await build(compiler.request(source))
    assert caught.value.failure.deterministic
    assert caught.value.failure.reason == "diagnostic"
    assert "acache-work" not in caught.value.failure.text
    assert tempfile.gettempdir() not in caught.value.failure.text


@real
async def test_a_wrong_name_expression(build: Build) -> None:
    for expression, said in (("zzz<3>", "zzz"), ("\udcff", "an expression")):
        with pytest.raises(CompileError, match=said) as caught:
            await build(Nvrtc("sm_90").request(FILL, name_expressions=[expression]))
        assert caught.value.failure.deterministic


@real
async def test_warnings_are_in_the_metadata_with_the_users_names(build: Build, tmp_path: Path) -> None:
    for name in ("s/deep/kernel.cu", "s/beside.h", "i/far.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#warning in {name}\n")
    (tmp_path / "s/deep/kernel.cu").write_text('#include "../beside.h"\n#include <far.h>\n' + FILL)
    compiler = Nvrtc("sm_90", include_paths=[tmp_path / "none", tmp_path / "i"])
    artifact = await build(compiler.request(tmp_path / "s/deep/kernel.cu"))
    log = artifact.metadata["log"]
    assert isinstance(log, str)
    lines = [line for line in log.splitlines() if "#warning directive" in line]
    assert [line.partition("(")[0] for line in lines] == ["../beside.h", "far.h"]
    assert str(tmp_path) not in log


@real
async def test_an_artifact_does_not_depend_on_where_it_was_made(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debug information and ``__FILE__`` included: artifacts of one key are the same bytes."""
    made = []
    source = '#include "a.h"\n__global__ void k(const char **p) { p[0] = f(); p[1] = __FILE__; }\n'
    for folder in ("one", "two"):
        root = tmp_path / folder
        (root / "i").mkdir(parents=True)
        (root / "temp").mkdir()
        (root / "i/a.h").write_text("__device__ inline const char *f() { return __FILE__; }\n")
        monkeypatch.setattr(tempfile, "tempdir", str(root / "temp"))
        for options in (["-G"], ["-lineinfo"]):
            artifact = await build(
                Nvrtc("sm_90", options=options, include_paths=[root / "i"]).request(source)
            )
            assert str(tmp_path).encode() not in artifact.data
            made.append(artifact.data)
    assert made[:2] == made[2:]


@real
async def test_nothing_of_the_environment_reaches_nvrtc(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await build(Nvrtc("sm_90").request(FILL))
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "NVCC_APPEND_FLAGS", "NVRTC_APPEND_FLAGS", "PYTHONPATH"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("CUDA_FORCE_PTX_JIT", "1")
    monkeypatch.setenv("PYTHONSTARTUP", "/nowhere")
    assert await build(Nvrtc("sm_90").request(FILL)) == before


@real
async def test_nvrtc_sees_what_the_key_covers_and_nothing_else(build: Build, tmp_path: Path) -> None:
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    compiler = Nvrtc("sm_90", include_paths=[tmp_path])
    prepared = await compiler.prepare(compiler.request(STORE))
    (tmp_path / "value.h").write_text("#error too late\n")
    assert (await build(prepared)).data.startswith(b"\x7fELF")
    sneaky = (  # the scanner does not know what a macro makes of two words
        "#define JOIN(a, b) a ## b\n#if JOIN(__has_in, clude)(<value.h>)\n#error seen\n#endif\n" + FILL
    )
    assert (await build(compiler.request(sneaky))).data.startswith(b"\x7fELF")


@real
@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_a_name_that_leads_out_of_the_private_folder_finds_nothing(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Neither from the source, nor from an include path, nor from NVRTC's own headers."""
    for folder in (tmp_path, tmp_path / f"acache-work-{os.geteuid()}", tmp_path / "acache-nvrtc-0"):
        folder.mkdir(exist_ok=True, mode=0o700)
        (folder / "value.h").write_text("#define VALUE 1\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(_nvrtc, "headers_home", lambda: str(tmp_path / "acache-nvrtc-0"))
    name = "../" * steps + "value.h"
    for written in (f'"{name}"', f"<{name}>"):
        compiler = Nvrtc("sm_90", include_paths=[tmp_path / "a/b/c/d"])
        with pytest.raises(CompileError, match="cannot open source file"):
            await build(compiler.request(STORE.replace('"value.h"', written)))


@real
async def test_its_own_headers_are_there_behind_the_users(build: Build, tmp_path: Path) -> None:
    source = (
        "#include <cuda/std/cstdint>\n#include <cuda_fp16.h>\n__global__ void k(__half *a) { *a += *a; }\n"
    )
    assert (await build(Nvrtc("sm_90").request(source))).data.startswith(b"\x7fELF")
    (tmp_path / "cuda_fp16.h").write_text("#error mine\n")
    with pytest.raises(CompileError, match=r"cuda_fp16\.h\(1\): catastrophic error: #error directive: mine"):
        await build(Nvrtc("sm_90", include_paths=[tmp_path]).request(source))


@real
async def test_text_is_bounded(build: Build) -> None:
    source = "\n".join(f"#warning number {number} {'x' * 200}" for number in range(1000)) + "\nnonsense\n"
    with pytest.raises(CompileError) as caught:
        await build(Nvrtc("sm_90").request(source))
    assert 60_000 < len(caught.value.failure.text) < 70_000
    assert "characters left out" in caught.value.failure.text
    assert "nonsense" in caught.value.failure.text
    assert caught.value.failure.deterministic


@real
def test_it_is_found_here(tmp_path: Path) -> None:
    found = find_nvrtc()
    assert os.path.exists(found.libnvrtc)
    assert len(found.builtins) == 1
    assert importlib.util.find_spec("cuda.bindings") is not None
