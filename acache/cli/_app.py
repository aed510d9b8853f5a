"""The commands: arguments in, exit codes out; the work is done in the modules beside this one."""

from __future__ import annotations

import enum
import json
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import anyio
import typer

import acache
from acache._errors import CompileError
from acache._keys import Key, name_of
from acache._settings import Settings
from acache.cli._text import plain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["app", "run"]

T = TypeVar("T")

OK, BAD, USAGE = 0, 1, 2

_CODES = """\
Exit codes: 0 well; 1 {bad}; 2 the command was called wrongly, and did
nothing; 128 + n stopped by signal n (130: Ctrl-C).
"""

app = typer.Typer(
    name="acache",
    help="The compile cache for async inference servers: N cold processes, one compile.",
    epilog=_CODES.format(bad="not well (each command's own help says what that means)"),
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Directory = Annotated[
    str | None,
    typer.Option(
        "--directory", "-d", help="The cache directory.", show_default="ACACHE_DIR, else the user's cache"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


class CompilerName(enum.StrEnum):
    """What ``acache demo --compiler`` takes."""

    AUTO = "auto"
    TILEIRAS = "tileiras"
    CC = "cc"


def run() -> NoReturn:
    """Run the command line on ``sys.argv``; exits with its code."""
    app()
    sys.exit(OK)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(acache.__version__)
        raise typer.Exit(OK)


# --- demo ---------------------------------------------------------------------------------------------------


@app.command(
    epilog=_CODES.format(bad="a process failed, or a kernel was compiled more than once with acache")
)
def demo(
    processes: Annotated[int, typer.Option(min=1, max=512, help="How many processes start together.")] = 8,
    compiler: Annotated[
        CompilerName, typer.Option(help="auto takes tileiras, else a C++ compiler, and says so.")
    ] = CompilerName.AUTO,
    kernels: Annotated[
        int | None, typer.Option(min=1, help="How many kernels, the cheapest first.", show_default="all")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one compile for many processes, with a real compiler on real kernels.

    Three arms, each on a cold folder of its own: one process alone; many without coordination; many with
    acache. All processes of an arm have imported everything before one release lets them go. Launches of the
    compiler are counted outside of acache, by a pass-through.
    """
    from acache.cli import _choice, _demo, _demo_view
    from acache.cli._crew import CrewError

    if sys.platform == "win32":
        _fail("the demo needs a POSIX shell, which counts the launches of the compiler")
    try:
        choice = _choice.choose(compiler.value)
        plan = _demo.planned(choice, processes, kernels)
    except CompileError as error:
        _fail(error.failure.text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--kernels") from None
    typer.echo(plain(f"compiler: {choice.name} ({choice.program}), {choice.why}"), err=True)
    try:
        with _demo_view.progress() as watch:
            outcome = _until_signal(partial(_demo.run, plan, watch))
    except (CrewError, CompileError, OSError) as error:
        _fail(str(error))
    if as_json:
        _print_json(outcome.as_json())
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


# --- ps -----------------------------------------------------------------------------------------------------


@app.command(epilog=_CODES.format(bad="the directory cannot be read"))
def ps(
    key: Annotated[
        str | None,
        typer.Argument(
            help="A key (64 hex digits), or the beginning of a name that was printed here.",
            show_default="all",
        ),
    ] = None,
    directory: Directory = None,
    namespace: Annotated[str | None, typer.Option(help="The namespace that KEY belongs to.")] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--for", min=0, max=86400, help="Watch for so many seconds, and judge by beats and progress."
        ),
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Show who compiles what, and how a waiter would judge them. Only reads.

    One look tells a dead holder on this host from a living one; whether a holder beats and makes progress
    takes several looks: see --for. A verdict is one of: alive; dead (a waiter takes over); hedge (alive, but
    without progress or far over its usual time: a waiter starts a rival); closing; unknown; gone (it ended
    meanwhile).
    """
    from acache.cli import _place, _ps, _tables

    settings = _settings()
    wanted = None if key is None else _wanted(key, namespace)
    root, _ = _place.where(directory)
    layout = _place.place_of(root, settings).layout
    try:
        names = _ps.find(layout)
    except OSError as error:
        _fail(f"{root} cannot be read: {error.strerror or error}")
    if wanted is not None:
        names = [name for name in names if name.startswith(wanted)]
    holders = _ps.Observer(layout, settings).observe(names, seconds)
    if as_json:
        _print_json({"directory": root, "compiles": [holder.as_json() for holder in holders]})
    else:
        _tables.show_holders(holders, root)


def _wanted(key: str, namespace: str | None) -> tuple[str, ...]:
    """Return what a name may begin with: the name of a key's files, or the text itself."""
    text = key.lower()
    if not text or len(text) > 64 or set(text) - set("0123456789abcdef"):
        raise typer.BadParameter(
            "a key has 64 hex digits, and a name begins with hex digits", param_hint="KEY"
        )
    if len(text) == 64:
        return name_of(Key.from_hex(text), namespace), text
    if namespace is not None:
        raise typer.BadParameter("goes with a whole KEY of 64 hex digits", param_hint="--namespace")
    return (text,)


def _settings() -> Settings:
    try:
        return Settings.from_env()
    except ValueError as error:
        raise typer.BadParameter(f"{error} (`acache doctor` says more)", param_hint="environment") from None


# --- doctor -------------------------------------------------------------------------------------------------


@app.command(epilog=_CODES.format(bad="degraded: something costs compiles or waits"))
def doctor(
    directory: Directory = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds until a directory that hangs is given up.")
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Examine the cache directory: where it is and why, on what, and whether processes can coordinate there.

    Makes the directory if it does not exist, as a cache would, and tries in it what leases need.
    """
    from acache.cli import _doctor, _tables

    found = _doctor.examine(directory, version=acache.__version__, timeout=timeout)
    if as_json:
        _print_json(found.as_json())
    else:
        _tables.show_diagnosis(found)
    raise typer.Exit(OK if found.healthy else BAD)


def _print_json(what: dict[str, Any]) -> None:
    # ASCII only: text of strangers stays harmless, and any encoding of stdout will do.
    typer.echo(json.dumps(what, indent=2))


def _fail(text: str) -> NoReturn:
    typer.echo(plain(f"acache: {text}"), err=True)
    raise typer.Exit(BAD)
