"""`Command`: any program as a compiler, in a private folder, with what it reads as its key."""

from __future__ import annotations

import os
import pickle
import threading
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from acache._errors import CompileError, CompilerCrashedError, CompilerNotFoundError
from acache._models import Artifact, Completed
from acache.compilers import Command, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from acache._keys import Key

    KeyOf = Callable[[Request], Awaitable[Key]]
    Build = Callable[[Request], Awaitable[Artifact]]


UPPER = Command(["sh", "-c", "tr a-z A-Z <in >out"], inputs=["in"], outputs=["out"])


# --- a value ---------------------------------------------------------------------------------------------


def test_a_command_is_a_value() -> None:
    same = Command(("sh", "-c", "tr a-z A-Z <in >out"), inputs=("in",), outputs=("out",))
    assert same == UPPER
    assert hash(same) == hash(UPPER)
    assert pickle.loads(pickle.dumps(UPPER)) == UPPER
    assert Command(["sh"], outputs=["out"]) != UPPER
    with pytest.raises(FrozenInstanceError):
        UPPER.argv = ("rm",)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"argv": []}, "begin with a program"),
        ({"argv": [""]}, "begin with a program"),
        ({"argv": ["a\0b"]}, "NUL"),
        ({"outputs": []}, "at least one file"),
        ({"outputs": ["/etc/passwd"]}, "plain relative names"),
        ({"outputs": ["../out"]}, "plain relative names"),
        ({"outputs": ["a/../../out"]}, "plain relative names"),
        ({"outputs": ["./out"]}, "plain relative names"),
        ({"outputs": [""]}, "plain relative names"),
        ({"outputs": ["."]}, "plain relative names"),
        ({"inputs": ["a//b"]}, "plain relative names"),
        ({"inputs": ["in", "in"]}, "repeat a name"),
        ({"env": ["A=1"]}, "environment variables"),
        ({"toolchain": []}, "at least one file"),
        ({"toolchain": ""}, "must name a program"),
    ],
)
def test_wrong_values(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Command(**{"argv": ["sh"], "outputs": ["out"], **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"argv": "sh -c x"},
        {"argv": [1]},
        {"inputs": "in"},
        {"outputs": "out"},
        {"env": "HOME"},
        {"toolchain": 1},
    ],
)
def test_wrong_types(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Command(**{"argv": ["sh"], "outputs": ["out"], **arguments})


def test_wrong_sources() -> None:
    two = Command(["sh"], inputs=["a", "b"], outputs=["out"])
    with pytest.raises(ValueError, match="2 inputs"):
        two.request("text")
    with pytest.raises(ValueError, match="inputs are"):
        two.request({"a": "x"})
    with pytest.raises(ValueError, match="inputs are"):
        two.request({"a": "x", "b": "y", "c": "z"})
    with pytest.raises(TypeError, match="b is str, bytes or a path, not int"):
        two.request({"a": "x", "b": 1})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="the source is"):
        UPPER.request(None)  # type: ignore[arg-type]


# --- compiling -------------------------------------------------------------------------------------------


async def test_text_in_file_out(build: Build) -> None:
    artifact = await build(UPPER.request("shout", label="shout"))
    assert dict(artifact.parts) == {"out": b"SHOUT"}
    assert artifact.metadata == {}


async def test_several_inputs_and_outputs_in_folders(tmp_path: Path, build: Build) -> None:
    (tmp_path / "left").write_bytes(b"\x00left")
    command = Command(
        ["sh", "-c", "cat deep/a b >made/sum; printf done >log; echo said; echo warned >&2"],
        inputs=["deep/a", "b"],
        outputs=["made/sum", "log"],
    )
    artifact = await build(command.request({"b": b"right", "deep/a": tmp_path / "left"}))
    assert list(artifact.parts.items()) == [("made/sum", b"\x00leftright"), ("log", b"done")]
    assert artifact.metadata == {"messages": "warned\nsaid"}


async def test_without_inputs_the_source_is_standard_input(build: Build) -> None:
    artifact = await build(Command(["sh", "-c", "rev >out"], outputs=["out"]).request(b"abc\n"))
    assert artifact.data == b"cba\n"


async def test_each_compile_has_a_folder_of_its_own(build: Build) -> None:
    """Field reports B13, B14: side files of fixed names in a common folder."""
    command = Command(
        ["sh", "-c", "test ! -e side && cp in side && ls | sort >out && pwd >where"],
        inputs=["in"],
        outputs=["out", "where"],
    )
    artifacts: list[Artifact] = []

    async def one(number: int) -> None:
        artifacts.append(await build(command.request(f"source {number}")))

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(one, number)
    assert len({artifact.parts["where"] for artifact in artifacts}) == 4
    assert all(b"side\n" in artifact.parts["out"] for artifact in artifacts)


async def test_only_allowed_variables_reach_it(monkeypatch: pytest.MonkeyPatch, build: Build) -> None:
    monkeypatch.setenv("ACACHE_TEST_SEEN", "seen")
    monkeypatch.setenv("ACACHE_TEST_HIDDEN", "hidden")
    command = Command(["sh", "-c", "env >out"], outputs=["out"], env=["ACACHE_TEST_SEEN"])
    variables = (await build(command.request(b""))).data
    assert b"ACACHE_TEST_SEEN=seen\n" in variables
    assert b"HIDDEN" not in variables
    assert b"HOME=" not in variables


async def test_a_diagnostic_is_deterministic_and_names_no_workspace(build: Build) -> None:
    command = Command(
        ["sh", "-c", 'echo "$PWD/in:3:1: error: expected a kernel" >&2; exit 2'],
        inputs=["in"],
        outputs=["out"],
    )
    with pytest.raises(CompileError) as caught:
        await build(command.request("text"))
    failure = caught.value.failure
    assert failure.text == "in:3:1: error: expected a kernel"
    assert (failure.reason, failure.exit_status, failure.deterministic) == ("diagnostic", 2, True)


async def test_an_unknown_exit_is_not_deterministic(build: Build) -> None:
    command = Command(["sh", "-c", "echo oops; exit 3"], outputs=["out"])
    with pytest.raises(CompileError, match="oops") as caught:
        await build(command.request(b""))
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == ("exit", False)


async def test_killed_by_a_signal(build: Build) -> None:
    command = Command(["sh", "-c", "kill -9 $$"], outputs=["out"])
    with pytest.raises(CompilerCrashedError) as caught:
        await build(command.request(b""))
    assert (caught.value.failure.reason, caught.value.failure.signal) == ("signal", 9)


async def test_an_output_that_was_not_written(build: Build) -> None:
    command = Command(["sh", "-c", "echo half >a; mkdir b; echo sorry"], outputs=["a", "b", "c"])
    with pytest.raises(CompileError, match="did not write 'b', 'c'") as caught:
        await build(command.request(b""))
    assert "sorry" in caught.value.failure.text
    assert not caught.value.failure.deterministic


async def test_a_program_that_is_not_there(key_of: KeyOf, build: Build) -> None:
    request = Command(["acache-no-such-tool"], outputs=["out"]).request(b"")
    for act in (key_of, build):
        with pytest.raises(CompilerNotFoundError, match="acache-no-such-tool"):
            await act(request)


async def test_cancellation_stops_the_program(tmp_path: Path, build: Build) -> None:
    started = tmp_path / "started"
    command = Command(
        ["sh", "-c", f"echo $$ >{started}.tmp; mv {started}.tmp {started}; sleep 600"], outputs=["out"]
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(build, command.request(b""))
        with anyio.fail_after(60):
            while not started.exists():  # noqa: ASYNC110
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


# --- keys ------------------------------------------------------------------------------------------------


async def test_the_key_is_made_of_what_matters(key_of: KeyOf, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(*words: str, **others: Any) -> Command:
        return Command(["sh", "-c", *words], **{"inputs": ["in"], "outputs": ["out"], **others})

    key = await key_of(command("x").request("text", label="one"))
    assert key == await key_of(command("x").request(b"text", label="two")), "no label, no type of text"
    assert key == await key_of(command("x").request({"in": "text"}))
    others = [
        command("x").request("other text"),
        command("y").request("text"),
        command("x", inputs=["in2"]).request("text"),
        command("x", outputs=["out2"]).request("text"),
        command("x", outputs=["out", "out2"]).request("text"),
        command("x", inputs=[]).request("text"),
        command("x", env=["ACACHE_TEST_V"]).request("text"),
        command("x", toolchain="/bin/cat").request("text"),
    ]
    keys = [await key_of(other) for other in others]
    assert len({key, *keys}) == len(others) + 1
    monkeypatch.setenv("ACACHE_TEST_V", "")
    set_empty = await key_of(others[6])
    monkeypatch.setenv("ACACHE_TEST_V", "1")
    assert len({keys[6], set_empty, await key_of(others[6])}) == 3, "not set, empty and 1 all differ"


async def test_a_path_is_read_when_the_key_is_derived(tmp_path: Path, key_of: KeyOf) -> None:
    source = tmp_path / "source"
    request = UPPER.request(source)
    with pytest.raises(FileNotFoundError):
        await key_of(request)
    source.write_text("one")
    one = await key_of(request)
    source.write_text("two")
    assert await key_of(request) != one
    source.write_text("one")
    assert await key_of(request) == one == await key_of(UPPER.request("one"))


async def test_what_is_keyed_is_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_of: KeyOf, build: Build
) -> None:
    """The file and the variable change between key and compile; the prepared request knows neither change."""
    source = tmp_path / "source"
    source.write_text("keyed")
    monkeypatch.setenv("ACACHE_TEST_V", "keyed")
    command = Command(
        ["sh", "-c", 'cat in >out; printf "$ACACHE_TEST_V" >>out'],
        inputs=["in"],
        outputs=["out"],
        env=["ACACHE_TEST_V"],
    )
    prepared = await command.prepare(command.request(source, label="label"))
    key = await key_of(prepared)
    source.write_text("edited")
    monkeypatch.setenv("ACACHE_TEST_V", "edited")
    assert (await build(prepared)).data == b"keyedkeyed"
    assert await key_of(prepared) == key
    assert await command.prepare(prepared) is prepared
    assert prepared.label == "label"
    assert (await build(command.request(source))).data == b"editededited"


async def test_the_program_is_keyed_by_content(
    script: Callable[[str, str], Path], overwrite: Callable[[Path, bytes], None], key_of: KeyOf
) -> None:
    tool = script("tool", "echo 1 >out")
    command = Command([str(tool)], outputs=["out"])
    before = await key_of(command.request(b""))
    overwrite(tool, b"#!/bin/sh\necho 2 >out\n")
    after = await key_of(command.request(b""))
    assert after != before
    overwrite(tool, b"#!/bin/sh\necho 1 >out\n")
    assert await key_of(command.request(b"")) == before


async def test_a_counting_wrapper_changes_no_key(
    tmp_path: Path, script: Callable[[str, str], Path], key_of: KeyOf, build: Build
) -> None:
    tool = script("tool", "echo made >out")
    count = tmp_path / "count"
    wrapper = script("wrapper", f'echo launch >>{count}; exec {tool} "$@"')
    plain = Command([str(tool), "-O3"], outputs=["out"]).request(b"")
    counted = Command([str(wrapper), "-O3"], outputs=["out"], toolchain=tool).request(b"")
    assert await key_of(plain) == await key_of(counted)
    assert await key_of(plain) != await key_of(Command([str(wrapper), "-O3"], outputs=["out"]).request(b""))
    assert await build(plain) == await build(counted)
    assert count.read_text() == "launch\n"


async def test_declared_libraries_are_part_of_the_toolchain(tmp_path: Path, key_of: KeyOf) -> None:
    library = tmp_path / "libtool.so"
    library.write_bytes(b"1")
    command = Command(["sh"], outputs=["out"], toolchain=["sh", library])
    before = await key_of(command.request(b""))
    library.write_bytes(b"2")
    assert await key_of(command.request(b"")) != before


async def test_sources_are_read_off_the_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, build: Build
) -> None:
    (tmp_path / "source").write_text("text")
    threads: list[threading.Thread] = []
    real = Path.read_bytes

    def spied(path: Path) -> bytes:
        threads.append(threading.current_thread())
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", spied)
    await build(UPPER.request(tmp_path / "source"))
    assert len(threads) == 2, "the source, and the output"
    assert threading.current_thread() not in threads


async def test_any_workspace_will_do(tmp_path: Path) -> None:
    """The protocol is all that a compiler asks for: users can test theirs without a process."""

    class Fake:
        path = tmp_path

        async def run(self, argv: list[str], **options: Any) -> Completed:
            assert options["cwd"] == tmp_path
            assert (tmp_path / "in").read_text() == "text"
            (tmp_path / "out").write_bytes(b"made")
            return Completed(tuple(argv), 0, None, b"", b"", 0.1, 0.1)

    assert (await UPPER.compile(UPPER.request("text"), Fake())).data == b"made"
