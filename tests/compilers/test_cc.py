"""`Cc` with the real gcc: keyed by preprocessed text, and the very text that was keyed is compiled."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from acache._errors import CompileError, CompilerCrashedError, CompilerNotFoundError, KeyDerivationError
from acache.compilers import Cc, Request
from acache.compilers._driver import _files, _toolchains

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from acache._keys import Key
    from acache._models import Artifact

    KeyOf = Callable[[Request], Awaitable[Key]]
    Build = Callable[[Request], Awaitable[Artifact]]
    Script = Callable[[str, str], Path]


gcc = pytest.mark.gcc
GCC = Cc("gcc", options=["-O2"])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a small project: a source, and the header it includes by a relative path."""
    folder = tmp_path / "project"
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "size.h").write_text("#define SIZE 8\n")
    (folder / "kernel.c").write_text('#include "size.h"\nint size(void) { return SIZE; }\n')
    return folder


# --- a value ---------------------------------------------------------------------------------------------


def test_a_compiler_is_a_value() -> None:
    assert Cc("gcc", options=("-O2",)) == GCC
    assert hash(Cc("gcc", options=("-O2",))) == hash(GCC)
    assert pickle.loads(pickle.dumps(GCC)) == GCC
    assert Cc("gcc", options=["-O3"]) != GCC
    assert Cc().executable == "cc"
    with pytest.raises(ValueError, match="cannot be used here"):
        Cc(options=["-o", "x"])
    with pytest.raises(TypeError, match="not one string"):
        Cc(options="-O2")
    with pytest.raises(TypeError, match="executable"):
        Cc(1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="toolchain"):
        Cc(toolchain="")


@pytest.mark.parametrize(
    ("compiler", "source", "language"),
    [
        (Cc("gcc"), "text", "c"),
        (Cc("g++"), "text", "c++"),
        (Cc("/opt/bin/clang++-19"), "text", "c++"),
        (Cc("/tmp/count", toolchain="g++"), "text", "c++"),
        (Cc("g++"), Path("x.c"), "c"),
        (Cc("gcc"), Path("x.cc"), "c++"),
        (Cc("gcc"), Path("x.C"), "c++"),
    ],
)
def test_the_language(compiler: Cc, source: Any, language: str) -> None:
    assert compiler.request(source).arguments["language"] == language


def test_wrong_requests() -> None:
    with pytest.raises(ValueError, match="suffix"):
        GCC.request(Path("kernel.cu"))
    with pytest.raises(ValueError, match="language"):
        GCC.request("text", language="fortran")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not int"):
        GCC.request(1)  # type: ignore[arg-type]


async def test_a_compiler_that_is_not_there(key_of: KeyOf) -> None:
    with pytest.raises(CompilerNotFoundError, match="apt-get install gcc"):
        await key_of(Cc("acache-no-such-cc").request("int x;"))
    with pytest.raises(CompilerNotFoundError, match="apt-get install gcc"):
        await Cc("acache-no-such-cc").fingerprint()


# --- compiling -------------------------------------------------------------------------------------------


@gcc
async def test_an_object_that_links_and_runs(tmp_path: Path, build: Build) -> None:
    artifact = await build(GCC.request("int answer(void) { return 42; }"))
    assert list(artifact.parts) == ["object"]
    assert artifact.metadata == {}
    (tmp_path / "answer.o").write_bytes(artifact.data)
    (tmp_path / "main.c").write_text("int answer(void); int main(void) { return answer(); }")
    line = ["gcc", "main.c", "answer.o", "-o", "main"]
    await anyio.run_process(line, cwd=tmp_path)
    assert (await anyio.run_process([tmp_path / "main"], check=False)).returncode == 42


@gcc
async def test_the_object_is_what_gcc_makes_of_the_source(project: Path, build: Build) -> None:
    """Compiling the preprocessed text gives the very bytes that compiling the source gives."""
    compiler = Cc("gcc", options=["-O2", "-Iinclude"])
    artifact = await build(compiler.request(Path("kernel.c"), directory=project))
    await anyio.run_process(["gcc", "-O2", "-Iinclude", "-c", "kernel.c", "-o", "direct.o"], cwd=project)
    assert artifact.data == (project / "direct.o").read_bytes()


@gcc
async def test_templates_and_debug_information(build: Build, project: Path) -> None:
    source = "#include <vector>\nint f(int n) { std::vector<int> v(n, 1); return v.back(); }"
    artifacts = [
        await build(Cc("g++", options=["-O2", "-g"]).request(source, directory=project)) for _ in range(2)
    ]
    assert artifacts[0] == artifacts[1]
    assert os.fsencode(project) in artifacts[0].data


@gcc
async def test_link_time_optimisation_is_reproducible(build: Build) -> None:
    source = "namespace { int hidden(int x) { return x * 3; } } int f(int x) { return hidden(x); }"
    artifacts = [await build(Cc("g++", options=["-O2", "-flto"]).request(source)) for _ in range(2)]
    assert artifacts[0] == artifacts[1]


@gcc
async def test_warnings_are_kept(build: Build) -> None:
    source = "#warning careful\nint f(void) { int unused; return 1; }"
    artifact = await build(Cc("gcc", options=["-Wall"]).request(source))
    said = str(artifact.metadata["messages"])
    assert "<stdin>:1:2: warning: #warning careful" in said
    assert "<stdin>:2:19: warning: unused variable" in said


@gcc
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("int f(void) { return g; }", "<stdin>:1:22: error: "),
        ("#include <acache-no-such-header.h>\n", "fatal error: acache-no-such-header.h: No such file"),
        ("#error no way\n", "<stdin>:1:2: error: #error no way"),
    ],
)
async def test_a_compile_error_has_gccs_own_words(source: str, text: str, build: Build) -> None:
    with pytest.raises(CompileError) as caught:
        await build(GCC.request(source))
    assert text in caught.value.failure.text
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == ("diagnostic", True)
    assert caught.value.failure.exit_status == 1


@gcc
async def test_diagnostics_name_the_users_file_and_quote_its_line(project: Path, build: Build) -> None:
    (project / "kernel.c").write_text('#include "include/size.h"\n\nint f(void) { return SIZES; }\n')
    with pytest.raises(CompileError) as caught:
        await build(GCC.request(Path("kernel.c"), directory=project))
    assert "kernel.c:3:22: error: " in caught.value.failure.text
    assert "3 | int f(void) { return SIZES; }" in caught.value.failure.text


@gcc
async def test_out_of_memory(script: Script, build: Build) -> None:
    wrapper = script("starved", 'exec gcc "$@" -B"$(dirname "$0")"/')
    script("cc1", "echo 'cc1: out of memory allocating 65536 bytes after a total of 1 bytes' >&2; exit 1")
    with pytest.raises(CompileError) as caught:
        await build(await prepared_by_gcc(wrapper))
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == ("memory", False)


@gcc
async def test_out_of_disk(script: Script, build: Build) -> None:
    wrapper = script("full", 'exec gcc "$@" -o /dev/full')
    with pytest.raises(CompileError, match="No space left on device") as caught:
        await build(await prepared_by_gcc(wrapper))
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == ("disk", False)


@gcc
async def test_a_child_of_the_driver_is_killed(script: Script, build: Build) -> None:
    wrapper = script("broken", 'exec gcc "$@" -B"$(dirname "$0")"/')
    script("cc1", "kill -9 $$")
    with pytest.raises(CompilerCrashedError, match="Killed signal terminated program cc1") as caught:
        await build(await prepared_by_gcc(wrapper))
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == ("signal", False)


async def prepared_by_gcc(wrapper: Path) -> Request:
    """Prepare a request by the good compiler, and have it compiled by a wrapper."""
    prepared = await GCC.prepare(GCC.request("int f(void) { return 1; }"))
    return Request(Cc(wrapper, toolchain="gcc"), prepared.source)


@gcc
async def test_a_compiler_that_writes_nothing(script: Script, build: Build) -> None:
    with pytest.raises(CompileError, match="wrote no object"):
        await build(await prepared_by_gcc(script("idle", "exit 0")))


# --- keys ------------------------------------------------------------------------------------------------


@gcc
async def test_an_edited_header_is_a_miss_and_restored_a_hit(project: Path, key_of: KeyOf) -> None:
    compiler = Cc("gcc", options=["-Iinclude"])
    request = compiler.request(Path("kernel.c"), directory=project)
    before = await key_of(request)
    (project / "include" / "size.h").write_text("#define SIZE 16\n")
    edited = await key_of(request)
    (project / "include" / "size.h").write_text("#define SIZE 8\n")
    os.utime(project / "include" / "size.h", (1, 1))
    assert edited != before
    assert await key_of(request) == before


@gcc
async def test_a_header_that_newly_shadows_another_is_seen(project: Path, key_of: KeyOf) -> None:
    (project / "first").mkdir()
    compiler = Cc("gcc", options=["-Ifirst", "-Iinclude"])
    request = compiler.request(Path("kernel.c"), directory=project)
    before = await key_of(request)
    (project / "first" / "size.h").write_text("#define SIZE 9\n")
    assert await key_of(request) != before


@gcc
async def test_options_that_act_through_the_text_alone_are_not_keyed(project: Path, key_of: KeyOf) -> None:
    text = "int f(void) { return 1; }"
    plain = await key_of(Cc("gcc").request(text))
    assert plain == await key_of(Cc("gcc", options=["-I/elsewhere", "-DUNUSED"]).request(text))
    assert plain != await key_of(Cc("gcc", options=["-O1"]).request(text))
    assert plain != await key_of(Cc("gcc").request(text, language="c++"))
    assert plain == await key_of(Cc("gcc").request(text, directory=project, label="softmax"))


@gcc
async def test_two_checkouts_share_a_key_unless_the_object_names_them(project: Path, key_of: KeyOf) -> None:
    twin = project.with_name("twin")
    shutil.copytree(project, twin)
    for options, shared in ((["-O2"], True), (["-g"], False)):
        compiler = Cc("gcc", options=["-Iinclude", *options])
        one, two = [
            await key_of(compiler.request(Path("kernel.c"), directory=place)) for place in (project, twin)
        ]
        assert (one == two) is shared


@gcc
async def test_the_directory_is_the_processs_own_by_default(
    project: Path, monkeypatch: pytest.MonkeyPatch, key_of: KeyOf
) -> None:
    compiler = Cc("gcc", options=["-Iinclude"])
    expected = await key_of(compiler.request(Path("kernel.c"), directory=project))
    monkeypatch.chdir(project)
    assert await key_of(compiler.request(Path("kernel.c"))) == expected


@gcc
async def test_what_is_keyed_is_what_is_compiled(project: Path, key_of: KeyOf, build: Build) -> None:
    """A header is edited between key and compile: the object must be the one of the key."""
    compiler = Cc("gcc", options=["-O2", "-Iinclude"])
    request = compiler.request(Path("kernel.c"), directory=project, label="kernel")
    before = await build(request)
    prepared = await compiler.prepare(request)
    key = await key_of(prepared)
    (project / "include" / "size.h").write_text("#define SIZE 16\n")
    assert await build(prepared) == before
    assert await key_of(prepared) == key
    assert await compiler.prepare(prepared) is prepared
    assert prepared.label == "kernel"
    assert await build(request) != before


@gcc
async def test_allowed_variables_are_keyed_and_passed(
    monkeypatch: pytest.MonkeyPatch, project: Path, key_of: KeyOf
) -> None:
    text = "const char *made = __DATE__ __TIME__;"
    compiler = Cc("gcc", env=["SOURCE_DATE_EPOCH"])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    prepared = await compiler.prepare(compiler.request(text))
    assert b"Sep  9 2001" in prepared.source.text  # type: ignore[attr-defined]
    one = await key_of(compiler.request(text))
    assert one == await key_of(compiler.request(text))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1100000000")
    assert one != await key_of(compiler.request(text))
    monkeypatch.setenv("CPATH", str(project / "include"))
    with pytest.raises(CompileError, match=r"size\.h"):
        await key_of(Cc("gcc").request('#include "size.h"\n', directory=project))


@gcc
async def test_a_file_read_by_the_assembler_is_refused(key_of: KeyOf) -> None:
    with pytest.raises(KeyDerivationError, match="incbin"):
        await key_of(GCC.request('__asm__(".incbin \\"weights.bin\\"");'))


@gcc
async def test_native_is_keyed_by_what_it_means_here(script: Script, key_of: KeyOf) -> None:
    text = "int f(void) { return 1; }"
    native = Cc("gcc", options=["-march=native"])
    here = await key_of(native.request(text))
    assert here == await key_of(native.request(text))
    elsewhere = script(
        "elsewhere", 'case " $* " in *" -### "*) echo "cc1 -march=other" >&2; exit 0;; esac; exec gcc "$@"'
    )
    assert here != await key_of(Cc(elsewhere, options=["-march=native"], toolchain="gcc").request(text))


@gcc
async def test_a_counting_wrapper_changes_no_key(
    tmp_path: Path, script: Script, key_of: KeyOf, build: Build
) -> None:
    count = tmp_path / "count"
    wrapper = script("count", f'case " $* " in *" -c "*) echo launch >>{count};; esac; exec gcc "$@"')
    counted = Cc(wrapper, options=["-O2"], toolchain="gcc").request("int f(void) { return 1; }")
    plain = GCC.request("int f(void) { return 1; }")
    assert await key_of(counted) == await key_of(plain)
    assert not count.exists()
    assert await build(counted) == await build(plain)
    assert count.read_text() == "launch\n"


# --- fingerprints ----------------------------------------------------------------------------------------


@gcc
async def test_the_fingerprint_covers_what_the_driver_runs(
    tmp_path: Path, script: Script, overwrite: Callable[[Path, bytes], None]
) -> None:
    """B57 for a driver of many parts: its cc1 is swapped in place, the driver itself stays."""
    cc1 = tmp_path / "bin" / "cc1"
    driver = script("cc", f'case "$*" in *-print-prog-name=cc1) echo {cc1};; *) exec gcc "$@";; esac')
    script("cc1", "echo 1")
    before = await Cc(driver).fingerprint()
    assert before == await Cc(driver).fingerprint()
    overwrite(cc1, b"#!/bin/sh\necho 2\n")
    swapped = await Cc(driver).fingerprint()
    assert swapped != before
    overwrite(cc1, b"#!/bin/sh\necho 1\n")
    assert await Cc(driver).fingerprint() == before
    driver.write_text(driver.read_text() + "# release 2\n")
    assert await Cc(driver).fingerprint() != before


@gcc
async def test_a_part_that_moves_is_found_again(tmp_path: Path, script: Script) -> None:
    where = tmp_path / "where"
    driver = script("cc", f'case "$*" in *-print-prog-name=cc1) cat {where};; *) exec gcc "$@";; esac')
    old = script("cc1", "echo 1")
    where.write_text(str(old))
    before = await Cc(driver).fingerprint()
    new = old.with_name("new") / "cc1"
    new.parent.mkdir()
    old.rename(new)
    where.write_text(str(new))
    assert await Cc(driver).fingerprint() == before


@gcc
async def test_the_fingerprint_covers_the_compiler_proper_and_its_libraries() -> None:
    await Cc("gcc").fingerprint()
    driver = shutil.which("gcc")
    files = next(files for question, (_, files) in _toolchains.items() if question[0] == driver)
    answer = await anyio.run_process(["gcc", "-print-prog-name=cc1"])
    assert driver is not None
    for program in (driver, answer.stdout.decode().strip(), shutil.which("as") or ""):
        assert str(await anyio.Path(program).resolve()) in files
    names = {Path(file).name for file in files}
    assert any(name.startswith("libmpfr") for name in names), "a library that cc1 loads"
    assert not any(name.startswith("libc.so") for name in names)


def test_what_ldd_and_the_driver_say_is_read_with_care(tmp_path: Path) -> None:
    for name in ("driver", "cc1", "libmpc.so.3", "libc.so.6"):
        (tmp_path / name).write_text("")
    (tmp_path / "cc1").chmod(0o755)
    report = "\n".join([
        f"program {tmp_path}/cc1",
        "program /acache/no/such/program",
        "\tlinux-vdso.so.1 (0x00007ffe)",
        f"\tlibmpc.so.3 => {tmp_path}/libmpc.so.3 (0x00007f)",
        f"\tlibc.so.6 => {tmp_path}/libc.so.6 (0x00007f)",
        "\tlibgone.so => not found",
        "\t/lib64/ld-linux-x86-64.so.2 (0x00007f)",
        "\tstatically linked",
        "not a dynamic executable",
        "",
    ])  # fmt: skip
    expected = sorted(os.path.realpath(tmp_path / name) for name in ("driver", "cc1", "libmpc.so.3"))
    assert list(_files(str(tmp_path / "driver"), report)) == expected
