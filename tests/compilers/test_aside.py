"""Programs that run beside a compile: any size of output, a bound in time, and a guard that may be killed."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from acache import _process
from acache._errors import CompilerCrashedError, CompilerNotFoundError, CompileTimeoutError
from acache._process import GuardLostError, open_workspace
from acache.compilers._aside import run_aside

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ASIDE: dict[str, Any] = {"env": {}, "stdin": None, "cwd": "/", "seconds": 60.0}


async def test_an_output_of_any_size() -> None:
    completed, output = await run_aside(["sh", "-c", 'yes | head -c 5000000 >"$0"', "{output}"], **ASIDE)
    assert completed.ok
    assert len(output) == 5_000_000


async def test_input_environment_and_folder(tmp_path: Path) -> None:
    options = {**ASIDE, "env": {"SEEN": "seen"}, "stdin": b"read ", "cwd": tmp_path}
    _, output = await run_aside(["sh", "-c", '{ cat; echo "$SEEN $PWD"; } >"$0"', "{output}"], **options)
    assert output.decode() == f"read seen {tmp_path}\n"


async def test_no_output_is_empty() -> None:
    completed, output = await run_aside(["sh", "-c", "echo no >&2; exit 3"], **ASIDE)
    assert (completed.exit_status, completed.stderr, output) == (3, b"no\n", b"")


async def test_it_may_not_take_for_ever(tmp_path: Path) -> None:
    started = tmp_path / "started"
    argv = ["sh", "-c", f"echo $$ >{started}; exec sleep 600"]
    with pytest.raises(CompileTimeoutError) as caught:
        await run_aside(argv, **{**ASIDE, "seconds": 0.5})
    assert (caught.value.failure.reason, caught.value.failure.deterministic) == ("timeout", False)
    if started.exists() and (pid := started.read_text().strip()):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


async def test_a_program_that_is_not_there() -> None:
    with pytest.raises(CompilerNotFoundError):
        await run_aside(["acache-no-such-program"], **ASIDE)


async def test_a_killed_guard_costs_one_more_run(tmp_path: Path) -> None:
    """The program kills its guard, which is its parent, in the first run."""
    once = tmp_path / "once"
    body = f'test -e {once} || {{ >{once}; kill -9 $PPID; sleep 600; }}; echo made >"$0"'
    argv = ["sh", "-c", body, "{output}"]
    completed, output = await run_aside(argv, **ASIDE)
    assert completed.ok
    assert output == b"made\n"


async def test_two_killed_guards_are_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = 0

    @asynccontextmanager
    async def losing(**options: Any) -> AsyncIterator[Any]:
        nonlocal lost
        async with open_workspace(**options) as workspace:
            lost += 1
            raise GuardLostError
            yield workspace

    monkeypatch.setattr(_process, "open_workspace", losing)
    with pytest.raises(CompilerCrashedError, match="twice") as caught:
        await run_aside(["true"], **ASIDE)
    assert caught.value.failure.reason == "spawn"
    assert lost == 2
