"""The demo: one process, N without coordination, N with acache; each arm on a cold folder of its own."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from acache.cli import _choice, _kernels
from acache.cli._counting import Counter, LaunchLog
from acache.cli._crew import Crew, CrewError, Result, open_crew
from acache.cli._worker import Orders

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ARMS", "Arm", "Look", "Outcome", "Plan", "Watch", "planned", "run"]

ARMS = ("solo", "uncoordinated", "coordinated")


@dataclass(frozen=True, slots=True)
class Arm:
    """What one arm cost."""

    launches: int
    """How often the compiler was started to emit an object."""
    wall_s: float
    """Seconds from the release of all processes to the last one's last result."""
    cpu_s: float
    """CPU seconds of all these launches; of a compiler that is a library, with those of its host process."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the demo does."""

    choice: _choice.Choice
    processes: int
    kernels: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found; `Outcome.as_json` is its public form."""

    compiler: str
    processes: int
    kernels: int
    solo: Arm
    uncoordinated: Arm
    coordinated: Arm
    artifacts_identical: bool
    """Every process of every arm got the same bytes for each kernel."""

    @property
    def kept(self) -> bool:
        """The promise: one compile per kernel, and everybody has its artifact."""
        return self.coordinated.launches == self.kernels and self.artifacts_identical

    def as_json(self) -> dict[str, Any]:
        """Return it as one JSON object; seconds to the millisecond."""
        plain = asdict(self)
        for name in ARMS:
            plain[name] = {key: round(value, 3) for key, value in plain[name].items()}
        return plain


@dataclass(frozen=True, slots=True)
class Look:
    """How far an arm has come; for a progress display."""

    arm: str
    processes: int
    ready: int
    finished: int
    launches: int
    released: bool


Watch: TypeAlias = "Callable[[Look], None]"


async def run(plan: Plan, watch: Watch) -> Outcome:
    """Run all arms, one after the other, in a temporary folder that is gone afterwards.

    ``watch`` is called some times a second. Cancellation stops all processes first, compilers included.

    :raises CrewError: a worker failed; the text says why.
    :raises CompilerNotFoundError: the compiler vanished meanwhile.
    """
    choice = plan.choice
    await _choice.warm_up(choice)
    arms: dict[str, Arm] = {}
    seen: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory(prefix="acache-demo-") as root:
        for name in ARMS:
            folder = Path(root, name)
            folder.mkdir()  # noqa: ASYNC240  # our own, in the temporary folder
            count = 1 if name == "solo" else plan.processes
            arms[name], results = await _run_arm(name, count, plan, folder, watch)
            seen |= {pair for result in results for pair in result.digests.items()}
    return Outcome(
        compiler=choice.name,
        processes=plan.processes,
        kernels=plan.kernels,
        artifacts_identical=len(seen) == plan.kernels,
        **arms,
    )


async def _run_arm(name: str, count: int, plan: Plan, folder: Path, watch: Watch) -> tuple[Arm, list[Result]]:
    choice = plan.choice
    counter = LaunchLog(folder) if choice.flag is None else Counter(folder, choice.program, choice.flag)
    orders = Orders(
        directory=str(folder / "cache"),
        coordinate=name != "uncoordinated",
        compiler=choice.name,
        executable=str(counter.executable) if isinstance(counter, Counter) else choice.program,
        toolchain=choice.program,
        kernels=plan.kernels,
        launch_log=str(counter.path) if isinstance(counter, LaunchLog) else None,
    )
    failure: CrewError | None = None
    async with open_crew(count, orders, folder) as crew:
        display = _Display(name, count, crew, counter, watch)
        async with anyio.create_task_group() as group:
            group.start_soon(display.run)
            try:
                await crew.assemble()
                display.released = True
                wall, results = await crew.run()
            except CrewError as error:  # leaves as itself, not wrapped in a group
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        display.show()
    if isinstance(counter, Counter):
        cpu = counter.cpu_seconds()
    else:
        cpu = sum(result.children_cpu_s for result in results)
    return Arm(counter.launches(), wall, cpu), results


@dataclass(slots=True)
class _Display:
    arm: str
    count: int
    crew: Crew
    counter: Counter | LaunchLog
    watch: Watch
    released: bool = False

    async def run(self) -> None:
        while True:
            self.show()
            await anyio.sleep(0.1)

    def show(self) -> None:
        launches = self.counter.launches() if self.released else 0
        self.watch(Look(self.arm, self.count, self.crew.ready, self.crew.finished, launches, self.released))


def planned(choice: _choice.Choice, processes: int, kernels: int | None) -> Plan:
    """Make a plan; None means all kernels of the catalogue.

    :raises ValueError: more kernels than there are.
    """
    available = len(_kernels.kernels(choice.name))
    if kernels is not None and kernels > available:
        raise ValueError(f"there are {available} kernels for {choice.name}, and --kernels asks for {kernels}")
    return Plan(choice, processes, kernels or available)
