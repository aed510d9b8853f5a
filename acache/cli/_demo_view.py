"""What the demo shows: a line of progress on stderr while it runs, then a table on stdout."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from acache.cli._demo import ARMS
from acache.cli._text import amount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from acache.cli._demo import Arm, Look, Outcome, Watch

__all__ = ["progress", "show"]

_TITLES = {"solo": "alone", "uncoordinated": "uncoordinated", "coordinated": "with acache"}


def title(arm: str, processes: int) -> str:
    """Return how people call an arm."""
    return f"{amount(processes, 'process', 'processes')} {_TITLES[arm]}"


@contextmanager
def progress() -> Iterator[Watch]:
    """Show how far it is: one line, written over, on a terminal that can; elsewhere one line per stage."""
    console = Console(stderr=True)
    told: set[tuple[str, str]] = set()

    def words(look: Look) -> tuple[str, str]:
        if not look.released:
            return "starting", f"{look.ready} of {look.processes} ready"
        return (
            "compiling",
            f"{look.finished} of {look.processes} done, {amount(look.launches, 'launch', 'launches')}",
        )

    if not console.is_terminal or console.is_dumb_terminal:

        def tell(look: Look) -> None:
            stage, _ = words(look)
            if (look.arm, stage) not in told:
                told.add((look.arm, stage))
                console.print(Text(f"{title(look.arm, look.processes)}: {stage}"), soft_wrap=True)

        yield tell
        return

    with Status(Text("starting"), console=console) as status:

        def update(look: Look) -> None:
            stage, detail = words(look)
            status.update(Text(f"{title(look.arm, look.processes)}: {stage}, {detail}"))

        yield update


def show(outcome: Outcome) -> None:
    """Print the table, and whether everybody got the same bytes."""
    table = Table(
        title=f"{amount(outcome.kernels, 'kernel')}, compiled by {outcome.compiler}",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("")
    for heading in ("processes", "launches", "wall", "compiler CPU", "vs. alone"):
        table.add_column(heading, justify="right")
    for name in ARMS:
        arm: Arm = getattr(outcome, name)
        table.add_row(
            _TITLES[name],
            str(1 if name == "solo" else outcome.processes),
            str(arm.launches),
            f"{arm.wall_s:.2f} s",
            f"{arm.cpu_s:.2f} s",
            f"{arm.wall_s / outcome.solo.wall_s:.2f}" if outcome.solo.wall_s > 0 else "-",
            style="bold" if name == "coordinated" else None,
        )
    console = Console()
    console.print(table)
    same = "identical in all processes" if outcome.artifacts_identical else "NOT identical in all processes"
    console.print(Text(f"Artifacts: {same}."))
    if outcome.coordinated.launches != outcome.kernels:
        expected = amount(outcome.kernels, "launch", "launches")
        console.print(Text(f"Expected {expected} with acache, counted {outcome.coordinated.launches}."))
