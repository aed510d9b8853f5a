"""The command line ``acache``; typer and rich are imported only when it runs."""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXTRA = ("typer", "rich", "click")
_WITHOUT_EXTRA = 2
"""The exit code of a wrong call: nothing was done, and the caller can mend it."""


def main() -> None:
    """Run the command line on ``sys.argv`` and exit with its code.

    Without the ``cli`` extra one sentence on stderr says what to install, and the code is 2.
    """
    try:
        import rich  # noqa: F401  # the commands import it later, when they have something to show

        from acache.cli._app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(
            f'acache: {error.name} is missing; install the command line: pip install "acache[cli]"',
            file=sys.stderr,
        )
        sys.exit(_WITHOUT_EXTRA)
    run()
