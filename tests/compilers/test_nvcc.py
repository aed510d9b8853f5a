"""`Nvcc` with the real nvcc: keyed by preprocessed text, and the very text that was keyed is compiled."""

from __future__ import annotations

import itertools
import os
import pickle
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest

import acache
from acache._errors import CompileError, CompilerCrashedError, CompilerNotFoundError, KeyDerivationError
from acache._process import open_workspace
from acache.compilers import Nvcc, Request, _nvcc
from acache.compilers._driver import _toolchains
from acache.compilers._elf import is_whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from acache._keys import Key
    from acache._models import Artifact

    KeyOf = Callable[[Request], Awaitable[Key]]
    Build = Callable[[Request], Awaitable[Artifact]]
    Script = Callable[[str, str], Path]


nvcc = pytest.mark.nvcc
NVCC = Nvcc("sm_90")
HANGS = 60.0
"""Seconds after which something hangs; not an aim."""
KERNEL = """\
#include "size.h"
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void kernel(float* out) { out[threadIdx.x] = SIZE; }
#else
extern "C" __global__ void old(float* out) { out[threadIdx.x] = SIZE; }
#endif
#ifndef __CUDA_ARCH__
#error host code
#endif
"""
NAMELESS = """\
namespace { __device__ int hidden; }
static __device__ int kept = 4;
static __global__ void copy(int* p) { kept = p[0]; hidden = p[1]; p[2] = kept + hidden; }
static void launch() { copy<<<1, 1>>>(0); }
namespace { struct Early { Early() { launch(); } } early; }
"""
"""Code without any name of its own to the outside, where nvcc makes a name at random."""


def dealt(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Parametrise over rows that differ in what nvcc does, and deal them out among the three loops."""
    loops = itertools.cycle(["asyncio", ("asyncio", {"use_uvloop": True}), "trio"])
    return pytest.mark.parametrize(("anyio_backend", *names), [(next(loops), *row) for row in rows])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a small project: a kernel, and the header it includes by way of another."""
    folder = tmp_path / "project"
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "size.h").write_text('#include "deep.h"\n#define SIZE DEEP\n')
    (folder / "include" / "deep.h").write_text("#define DEEP 8\n")
    (folder / "kernel.cu").write_text(KERNEL)
    return folder


# --- a value ---------------------------------------------------------------------------------------------


def test_a_compiler_is_a_value() -> None:
    assert Nvcc("sm_90", options=()) == NVCC
    assert hash(Nvcc("sm_90")) == hash(NVCC)
    assert pickle.loads(pickle.dumps(NVCC)) == NVCC
    assert Nvcc("sm_90", options=["-G"]) != NVCC
    assert Nvcc("sm_90a") != NVCC


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"arch": "native"}, ValueError, "arch names one target"),
        ({"arch": "90"}, ValueError, "'sm_90' \\(for a cubin\\) or 'compute_90' \\(for PTX\\)"),
        ({"arch": "sm_90,sm_100"}, ValueError, "arch names one target"),
        ({"arch": 90}, TypeError, "arch must be a str"),
        ({"options": ["-arch=sm_80"]}, ValueError, "give the target as arch="),
        ({"options": "-O2"}, TypeError, "not one string"),
        ({"executable": 1}, TypeError, "executable"),
        ({"toolchain": ""}, ValueError, "toolchain"),
        ({"env": ["NVCC_APPEND_FLAGS"]}, ValueError, "give what it says as options="),
        ({"env": ["TMPDIR"]}, ValueError, "TMPDIR"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        Nvcc(**{"arch": "sm_90", **arguments})


def test_wrong_requests() -> None:
    with pytest.raises(TypeError, match="not int"):
        NVCC.request(1)  # type: ignore[arg-type]


# --- what is not there ------------------------------------------------------------------------------------


async def test_an_nvcc_that_is_not_there(key_of: KeyOf) -> None:
    missing = Nvcc("sm_90", executable="acache-no-such-nvcc")
    with pytest.raises(CompilerNotFoundError, match="pip install nvidia-cuda-nvcc"):
        await key_of(missing.request("int x;"))
    with pytest.raises(CompilerNotFoundError, match="install the CUDA toolkit"):
        await missing.fingerprint()


def test_the_python_packages_nvcc_is_found_where_path_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    monkeypatch.setattr(_nvcc, "find_packaged", lambda name: str(packaged) if name == "nvcc" else None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _nvcc.find_nvcc("nvcc") == str(packaged)
    with pytest.raises(CompilerNotFoundError):
        _nvcc.find_nvcc("nvcc-13")
    (tmp_path / "nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "nvcc").chmod(0o755)
    assert _nvcc.find_nvcc("nvcc") == str(tmp_path / "nvcc")


@nvcc
async def test_a_host_compiler_that_is_not_there(key_of: KeyOf) -> None:
    lonely = Nvcc("sm_90", options=["-ccbin", "/acache/no/such/g++"])
    with pytest.raises(CompilerNotFoundError, match="Failed to preprocess host compiler") as caught:
        await key_of(lonely.request("int x;"))
    assert "apt-get install g++" in caught.value.failure.text
    with pytest.raises(CompilerNotFoundError, match=r"apt-get install g\+\+"):
        await lonely.fingerprint()


async def test_a_toolkit_without_headers(script: Script, key_of: KeyOf) -> None:
    """The package nvidia-cuda-nvcc alone, installed without what it depends on."""
    said = "cc1plus: fatal error: cuda_runtime.h: No such file or directory"
    bare = script("nvcc", f"echo '{said}' >&2; exit 1")
    with pytest.raises(CompilerNotFoundError, match="nvidia-cuda-runtime nvidia-cuda-crt") as caught:
        await key_of(Nvcc("sm_90", executable=bare).request("int x;"))
    assert said in caught.value.failure.text


async def test_a_host_compiler_that_cannot_compile_cpp(script: Script, key_of: KeyOf) -> None:
    said = "gcc: fatal error: cannot execute 'cc1plus': execvp: No such file or directory"
    with pytest.raises(CompilerNotFoundError, match="apt-get install g"):
        await key_of(Nvcc("sm_90", executable=script("nvcc", f'echo "{said}" >&2; exit 1')).request("int x;"))
    said = "gcc: fatal error: cannot execute 'cc1plus': vfork: Resource temporarily unavailable"
    with pytest.raises(CompilerCrashedError):
        await key_of(Nvcc("sm_90", executable=script("nvcc", f'echo "{said}" >&2; exit 1')).request("int x;"))


async def test_a_host_compiler_that_is_not_gcc(script: Script) -> None:
    clang = script(
        "nvcc", "echo '#$ clang++ -E -x c++ x.cu' >&2; echo '#$ cicc --c++17 --clang --clang_version=1' >&2"
    )
    with pytest.raises(KeyDerivationError, match="is clang here"):
        await Nvcc("sm_90", executable=clang).fingerprint()


# --- compiling -------------------------------------------------------------------------------------------


@nvcc
async def test_the_cubin_is_what_nvcc_makes_of_the_source(project: Path, build: Build) -> None:
    """Compiling the preprocessed text gives the very bytes that compiling the source gives."""
    compiler = Nvcc("sm_90", options=["-Iinclude"])
    artifact = await build(compiler.request(Path("kernel.cu"), directory=project))
    assert list(artifact.parts) == ["cubin"]
    assert artifact.metadata == {}
    line = ["nvcc", "-cubin", "-arch=sm_90", "-Iinclude", "-o", "direct.cubin", "kernel.cu"]
    await anyio.run_process(line, cwd=project)
    assert artifact.data == (project / "direct.cubin").read_bytes()
    assert is_whole(artifact.data)
    assert b"kernel" in artifact.data


@nvcc
async def test_ptx_for_a_virtual_target(project: Path, build: Build) -> None:
    compiler = Nvcc("compute_80", options=["-Iinclude"])
    artifact = await build(compiler.request(Path("kernel.cu"), directory=project))
    assert list(artifact.parts) == ["ptx"]
    assert b".target sm_80" in artifact.data
    assert b".entry old(" in artifact.data


@nvcc
async def test_the_same_text_gives_the_same_cubin(project: Path, build: Build) -> None:
    """Names that nvcc makes of the source's path, and at random, come from the text."""
    compiler = Nvcc("sm_90", options=["-w", "-rdc=true", "-lineinfo"])
    request = compiler.request(NAMELESS, directory=project)
    one = await build(request)
    await anyio.sleep(1 - time.time() % 1)  # line information holds times, to the second
    assert await build(request) == one
    other = await build(compiler.request(f"{NAMELESS}namespace {{ int x; }}", directory=project))
    unique = re.compile(rb"_GLOBAL__N__[0-9a-f_]+stdin_[0-9a-f]+")
    assert unique.findall(one.data)
    assert set(unique.findall(one.data)).isdisjoint(unique.findall(other.data))


@nvcc
async def test_remarks_are_kept(build: Build) -> None:
    source = '#warning careful\nextern "C" __global__ void f(int* p) { int unused; p[0] = 1; }'
    artifact = await build(Nvcc("sm_90", options=["-Xptxas", "-v", "-O2", "-O3"]).request(source))
    said = str(artifact.metadata["messages"])
    assert "/dev/stdin:1:2: warning: #warning careful" in said
    assert '/dev/stdin(2): warning #177-D: variable "unused" was declared but never referenced' in said
    assert "ptxas info    : Used " in said
    assert said.count("incompatible redefinition for option 'optimize'") == 1


@nvcc
async def test_text_includes_by_quotes_from_the_directory(project: Path, build: Build) -> None:
    assert b"kernel" in (await build(NVCC.request(KERNEL, directory=project / "include"))).data


@nvcc
@dealt(
    ("source", "text"),
    [
        ("__global__ void f(int* p) { p[0] = g; }", '/dev/stdin(1): error: identifier "g" is undefined'),
        ("#include <acache-no-such-header.h>\n", "fatal error: acache-no-such-header.h: No such file"),
        ("#error no way\n", "/dev/stdin:1:2: error: #error no way"),
        ('__global__ void f(int* p) { asm("frob.bar %0;" :: "r"(p[0])); }', "; error   : Unknown modifier"),
        (
            "extern __device__ int g(); __global__ void f(int* p) { p[0] = g(); }",
            "ptxas fatal   : Unresolved extern function",
        ),
    ],
)
async def test_a_compile_error_has_nvccs_own_words(source: str, text: str, build: Build) -> None:
    with pytest.raises(CompileError) as caught:
        await build(NVCC.request(source))
    assert text in caught.value.failure.text
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == ("diagnostic", True)
    assert "acache-" not in caught.value.failure.text.replace("acache-no-such-header.h", "")


@nvcc
@dealt(
    ("compiler", "text"),
    [
        (Nvcc("sm_20"), "Unsupported gpu architecture 'sm_20'"),
        (Nvcc("sm_90", options=["-foo"]), "Unknown option '-foo'"),
        (Nvcc("sm_90", options=["-std=c++99"]), "Value 'c++99' is not defined for option 'std'"),
    ],
)
async def test_options_that_nvcc_refuses(compiler: Nvcc, text: str, key_of: KeyOf) -> None:
    for attempt in (key_of(compiler.request("int x;")), compiler.fingerprint()):
        with pytest.raises(CompileError) as caught:
            await attempt
        assert text in caught.value.failure.text
        assert caught.value.failure.deterministic


@nvcc
async def test_diagnostics_name_the_users_file(project: Path, build: Build) -> None:
    (project / "kernel.cu").write_text(
        '#include "include/size.h"\n\n__global__ void f(int* p) { p[0] = SIZES; }'
    )
    with pytest.raises(CompileError, match=r"\nkernel\.cu\(3\): error: identifier "):
        await build(NVCC.request(Path("kernel.cu"), directory=project))


def toolkit(folder: Path, **programs: str) -> Path:
    """Lay out a toolkit like the real one but for some programs, which are shell scripts; return its nvcc."""
    report = _dry_run()
    here, cicc = (re.search(rf"^#\$ {name}=(.*)$", report, re.MULTILINE) for name in ("_HERE_", "CICC_PATH"))
    assert here is not None
    assert cicc is not None
    real = Path(here[1]).parent
    (folder / "bin").mkdir(parents=True)
    (folder / "nvvm" / "bin").mkdir(parents=True)
    shutil.copy(real / "bin" / "nvcc", folder / "bin")  # it goes by its own path, links followed
    for path in [*(real / "bin").iterdir(), Path(cicc[1], "cicc")]:
        there = folder / ("nvvm/bin" if path.name == "cicc" else "bin") / path.name
        if path.name in programs:
            there.write_text(f"#!/bin/sh\n{programs[path.name]}\n")
            there.chmod(0o755)
        elif not there.exists():
            there.symlink_to(path)
    for name in ("targets", "include"):
        if (real / name).exists():
            (folder / name).symlink_to(real / name)
    (folder / "nvvm" / "libdevice").symlink_to(real / "nvvm" / "libdevice")
    return folder / "bin" / "nvcc"


def _dry_run() -> str:
    line = ["nvcc", "--dryrun", "-cubin", "-x", "cu", os.devnull]
    return subprocess.run(line, check=True, stderr=subprocess.PIPE, text=True, timeout=HANGS).stderr


SOURCE = 'extern "C" __global__ void f(int* p) { p[0] = 1; }'


@nvcc
@dealt(("program",), [("cicc",), ("ptxas",)])
async def test_a_child_of_nvcc_is_killed(program: str, tmp_path: Path, build: Build) -> None:
    broken = toolkit(tmp_path / "broken", **{program: "kill -9 $$"})
    with pytest.raises(CompilerCrashedError) as caught:
        await build(Nvcc("sm_90", executable=broken).request(SOURCE))
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == ("signal", False)


@nvcc
async def test_out_of_memory(tmp_path: Path, build: Build) -> None:
    said = "x.cu(3): catastrophic error: out of memory"
    starved = toolkit(tmp_path / "starved", cicc=f"echo '{said}' >&2; exit 4")
    with pytest.raises(CompileError, match="out of memory") as caught:
        await build(Nvcc("sm_90", executable=starved).request(SOURCE))
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == ("memory", False)


@nvcc
async def test_a_cubin_that_is_cut_short(tmp_path: Path, build: Build) -> None:
    """ptxas of a full disk writes what fits, and ends well (release 13.0)."""
    ptxas = 'while [ "$1" != -o ]; do shift; done; printf "\\177ELF" >"$2"'
    full = toolkit(tmp_path / "full", ptxas=ptxas)
    with pytest.raises(CompileError, match="left a broken cubin") as caught:
        await build(Nvcc("sm_90", executable=full).request(SOURCE))
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == ("disk", False)


@nvcc
async def test_an_nvcc_that_writes_nothing(script: Script, build: Build) -> None:
    idle = script("idle", 'case " $* " in *" -cubin "*) exit 0;; esac; exec nvcc "$@"')
    with pytest.raises(CompileError, match="wrote no cubin") as caught:
        await build(Nvcc("sm_90", executable=idle, toolchain="nvcc").request(SOURCE))
    assert not caught.value.failure.deterministic


# --- keys ------------------------------------------------------------------------------------------------


@nvcc
async def test_an_edited_header_at_any_depth_is_a_miss_and_restored_a_hit(
    project: Path, key_of: KeyOf
) -> None:
    request = Nvcc("sm_90", options=["-Iinclude"]).request(Path("kernel.cu"), directory=project)
    before = await key_of(request)
    (project / "include" / "deep.h").write_text("#define DEEP 16\n")
    assert await key_of(request) != before
    (project / "include" / "deep.h").write_text("#define DEEP 8\n")
    os.utime(project / "include" / "deep.h", (1, 1))
    assert await key_of(request) == before


@nvcc
async def test_a_header_that_newly_exists_is_seen(project: Path, key_of: KeyOf) -> None:
    (project / "first").mkdir()
    request = Nvcc("sm_90", options=["-Ifirst", "-Iinclude"]).request(Path("kernel.cu"), directory=project)
    before = await key_of(request)
    (project / "first" / "size.h").write_text("#define SIZE 9\n")
    shadowed = await key_of(request)
    assert shadowed != before
    (project / "size.h").write_text("#define SIZE 10\n")  # beside the source, which comes first of all
    assert await key_of(request) not in {before, shadowed}


@nvcc
async def test_what_the_key_holds_and_what_not(project: Path, key_of: KeyOf) -> None:
    plain = await key_of(NVCC.request(SOURCE))
    assert plain == await key_of(Nvcc("sm_90", options=["-I/elsewhere", "-DUNUSED"]).request(SOURCE))
    assert plain == await key_of(NVCC.request(SOURCE, directory=project, label="softmax"))
    assert plain == await key_of(Nvcc("sm_90", options=["-ccbin", "gcc"]).request(SOURCE))
    others = [Nvcc("sm_90a"), Nvcc("compute_90"), Nvcc("sm_90", options=["-ftz=true"])]
    assert len({plain, *[await key_of(other.request(SOURCE)) for other in others]}) == 4


@nvcc
async def test_two_checkouts_share_a_key_unless_the_cubin_names_them(project: Path, key_of: KeyOf) -> None:
    twin = project.with_name("twin")
    shutil.copytree(project, twin)
    for options, shared in ((["-O2"], True), (["-lineinfo"], False)):
        compiler = Nvcc("sm_90", options=["-Iinclude", *options])
        one, two = [
            await key_of(compiler.request(Path("kernel.cu"), directory=place)) for place in (project, twin)
        ]
        assert (one == two) is shared


@nvcc
async def test_what_is_keyed_is_what_is_compiled(project: Path, key_of: KeyOf, build: Build) -> None:
    """A header is edited between key and compile: the cubin must be the one of the key."""
    compiler = Nvcc("sm_90", options=["-Iinclude"])
    request = compiler.request(Path("kernel.cu"), directory=project, label="kernel")
    before = await build(request)
    prepared = await compiler.prepare(request)
    key = await key_of(prepared)
    (project / "include" / "deep.h").write_text("#define DEEP 16\n")
    assert await build(prepared) == before
    assert await key_of(prepared) == key
    assert await compiler.prepare(prepared) is prepared
    assert prepared.label == "kernel"
    assert await build(request) != before


@nvcc
async def test_a_counting_wrapper_changes_no_key(
    tmp_path: Path, script: Script, key_of: KeyOf, build: Build
) -> None:
    count = tmp_path / "count"
    wrapper = script("count", f'case " $* " in *" -cubin "*) echo launch >>{count};; esac; exec nvcc "$@"')
    counted = Nvcc("sm_90", executable=wrapper, toolchain="nvcc").request(SOURCE)
    plain = NVCC.request(SOURCE)
    assert await key_of(counted) == await key_of(plain)
    assert not count.exists()
    assert await build(counted) == await build(plain)
    assert count.read_text() == "launch\n"


@nvcc
async def test_allowed_variables_are_keyed_and_passed(
    monkeypatch: pytest.MonkeyPatch, project: Path, key_of: KeyOf
) -> None:
    request = Nvcc("sm_90", env=["CPATH"]).request(KERNEL, directory=project)
    monkeypatch.setenv("CPATH", str(project / "include"))
    one = await key_of(request)
    assert one == await key_of(request)
    monkeypatch.setenv("CPATH", f"{project / 'include'}:/elsewhere")
    assert one != await key_of(request)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DSIZE=9")
    with pytest.raises(CompileError, match=r"size\.h"):
        await key_of(NVCC.request(KERNEL, directory=project))


@nvcc
async def test_through_a_cache(cache_dir: Path, project: Path, tmp_path: Path, script: Script) -> None:
    """An edited header compiles anew, a restored one does not, and an error is remembered with its text."""
    count = tmp_path / "count"
    wrapper = script("count", f'case " $* " in *" -cubin "*) echo launch >>{count};; esac; exec nvcc "$@"')
    compiler = Nvcc("sm_90", options=["-Iinclude"], executable=wrapper, toolchain="nvcc")
    request = compiler.request(Path("kernel.cu"), directory=project, label="kernel")
    async with acache.Cache(cache_dir) as cache:
        before = await cache.compile(request)
        (project / "include" / "deep.h").write_text("#define DEEP 16\n")
        edited = await cache.compile(request)
        (project / "include" / "deep.h").write_text("#define DEEP 8\n")
        assert await cache.compile(request) == before != edited
    (project / "include" / "deep.h").write_text("#define DEEP nonsense\n")
    texts = []
    for _ in range(2):
        async with acache.Cache(cache_dir) as cache:
            with pytest.raises(CompileError) as caught:
                await cache.compile(request)
            texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert 'kernel.cu(3): error: identifier "nonsense" is undefined' in texts[0]
    assert count.read_text() == "launch\n" * 3


# --- fingerprints ----------------------------------------------------------------------------------------


@nvcc
async def test_the_fingerprint_covers_what_nvcc_runs() -> None:
    await NVCC.fingerprint()
    driver = _nvcc.find_nvcc("nvcc")
    files = next(files for question, (_, files) in _toolchains.items() if question[0] == driver)
    names = {Path(file).name for file in files}
    assert {"nvcc", "nvcc.profile", "cicc", "ptxas", "cc1plus"} <= names
    assert any(name.startswith("libdevice") for name in names)
    assert not any(name.startswith("libc.so") for name in names)


@nvcc
@dealt(("part",), [("bin/ptxas",), ("nvvm/bin/cicc",), ("bin/nvcc.profile",)])
async def test_a_part_that_is_replaced_is_seen(part: str, tmp_path: Path) -> None:
    """B57 for a driver of many parts: one is swapped in place, the driver itself stays."""
    compiler = Nvcc("sm_90", executable=toolkit(tmp_path / "toolkit"))
    before = await compiler.fingerprint()
    path = tmp_path / "toolkit" / part
    real = path.resolve()
    path.unlink()
    path.write_bytes(real.read_bytes() + b"\n")
    assert await compiler.fingerprint() != before
    path.unlink()
    path.symlink_to(real)
    assert await compiler.fingerprint() == before


@nvcc
async def test_a_toolkit_that_is_relinked_is_seen(tmp_path: Path, script: Script) -> None:
    """A wrapper stays as it is while the link that it goes by leads elsewhere."""
    for name, body in (("old", "exit 0"), ("new", "exit 1")):
        toolkit(tmp_path / name, ptxas=body)
    current = tmp_path / "current"
    current.symlink_to("old")
    compiler = Nvcc("sm_90", executable=script("nvcc", f'exec {current}/bin/nvcc "$@"'))
    before = await compiler.fingerprint()
    current.unlink()
    current.symlink_to("new")
    assert await compiler.fingerprint() != before


# --- stopping --------------------------------------------------------------------------------------------


def _running(folder: Path) -> list[str]:
    """Return the processes whose private folder this is, by their command lines."""
    token = os.fsencode(f"TMPDIR={folder}")
    found = []
    for process in psutil.process_iter():
        try:
            if token in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(" ".join(process.cmdline()))
        except (OSError, psutil.Error):
            continue
    return found


@nvcc
@pytest.mark.parametrize("program", ["cicc", "ptxas"])
async def test_a_cancelled_compile_leaves_no_process(program: str, tmp_path: Path) -> None:
    """nvcc starts a shell that starts the program, and none of them dies with nvcc."""
    slow = toolkit(tmp_path / "slow", **{program: "sleep 600"})
    compiler = Nvcc("sm_90", executable=slow, toolchain="nvcc")
    prepared = await compiler.prepare(compiler.request(SOURCE))
    folder = None
    async with open_workspace(grace=0.2) as workspace:
        folder = workspace.path
        async with anyio.create_task_group() as group:
            group.start_soon(compiler.compile, prepared, workspace)
            deadline = time.monotonic() + HANGS
            while not any("sleep 600" in line for line in _running(folder)):
                assert time.monotonic() < deadline, f"{program} never ran"
                await anyio.sleep(0.01)
            assert any(line.startswith(str(slow)) for line in _running(folder))
            group.cancel_scope.cancel()
        assert _running(folder) == []
    assert not folder.exists()
