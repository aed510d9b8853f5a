"""The command line put together: its commands, each from a room of its own."""

from __future__ import annotations

import io
import sys
from typing import Annotated, NoReturn

import typer

import acache
from acache.cli._shared import OK, codes
from acache.cli.commands import clear, demo, doctor, ls, ps, show, stats, trim, verify

__all__ = ["app", "run"]

app = typer.Typer(
    name="acache",
    help="The compile cache for async inference servers: N cold processes, one compile.",
    epilog=codes("not well (each command's own help says what that means)"),
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> NoReturn:
    """Run the command line on ``sys.argv``; exits with its code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a label that a terminal cannot show is no error
    app()
    sys.exit(OK)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(acache.__version__)
        raise typer.Exit(OK)


app.command(epilog=codes("a process failed, or a kernel was compiled more than once with acache"))(demo.demo)
app.command(epilog=codes("the directory cannot be read"))(ps.ps)
app.command(epilog=codes("the directory cannot be read"))(ls.ls)
app.command(
    epilog=codes("there is no such entry, or more than one, or it is no good; FILE cannot be written")
)(show.show)
app.command(epilog=codes("the answer was no, or something could not be removed"))(clear.clear)
app.command(epilog=codes("something could not be read or removed"))(trim.trim)
app.command(epilog=codes("something is corrupt, and still there, or cannot be read"))(verify.verify)
app.command(epilog=codes("the directory cannot be read"))(stats.stats)
app.command(epilog=codes("degraded: something costs compiles or waits"))(doctor.doctor)
