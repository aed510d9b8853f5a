"""``acache demo``: one compile for many processes, shown with a real compiler on real kernels."""

from __future__ import annotations

import enum
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import typer

from acache._errors import CompileError
from acache.cli._shared import BAD, OK, Json, fail, print_json
from acache.cli._text import plain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["CompilerName", "demo"]

T = TypeVar("T")


class CompilerName(enum.StrEnum):
    """What ``acache demo --compiler`` takes."""

    AUTO = "auto"
    TILEIRAS = "tileiras"
    NVRTC = "nvrtc"
    CC = "cc"


def demo(
    processes: Annotated[int, typer.Option(min=1, max=512, help="How many processes start together.")] = 8,
    compiler: Annotated[
        CompilerName, typer.Option(help="auto takes tileiras, else NVRTC, else a C++ compiler, and says why.")
    ] = CompilerName.AUTO,
    kernels: Annotated[
        int | None, typer.Option(min=1, help="How many kernels, the cheapest first.", show_default="all")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one compile for many processes, with a real compiler on real kernels.

    Three arms, each on a cold folder of its own: one process alone; many without coordination; many with
    acache. All processes of an arm have imported everything before one release lets them go. Launches of the
    compiler are counted outside of acache: by a pass-through; those of NVRTC, which is a library, by the line
    that its worker writes before each compile.
    """
    from acache.cli import _choice, _demo, _demo_view
    from acache.cli._crew import CrewError

    if sys.platform == "win32":
        fail("the demo needs a POSIX shell, which counts the launches of the compiler")
    try:
        choice = _choice.choose(compiler.value)
        plan = _demo.planned(choice, processes, kernels)
    except CompileError as error:
        fail(error.failure.text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--kernels") from None
    typer.echo(plain(f"compiler: {choice.name} ({choice.program}), {choice.why}"), err=True)
    try:
        with _demo_view.progress() as watch:
            outcome = _until_signal(partial(_demo.run, plan, watch))
    except (CrewError, CompileError, OSError) as error:
        fail(str(error))
    if as_json:
        print_json(outcome.as_json())
    else:
        _demo_view.show(outcome)
    raise typer.Exit(OK if outcome.kept else BAD)


def _until_signal(work: Callable[[], Awaitable[T]]) -> T:
    """Run async work; a signal to stop cancels it, and ends this command once all is cleaned up."""
    caught: list[int] = []
    outcome: list[T] = []
    failure: list[Exception] = []

    async def guarded() -> None:
        async with anyio.create_task_group() as group:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
                group.start_soon(wait, signals, group.cancel_scope)
                try:
                    outcome.append(await work())
                except Exception as error:  # raised again below, not wrapped in a group
                    failure.append(error)
                group.cancel_scope.cancel()

    async def wait(signals: Any, scope: anyio.CancelScope) -> None:
        async for number in signals:
            caught.append(number)
            scope.cancel()

    anyio.run(guarded)
    if failure:
        raise failure[0]
    if not outcome:
        raise typer.Exit(128 + caught[0])
    return outcome[0]
