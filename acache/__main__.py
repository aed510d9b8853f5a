"""``python -m acache``: the command line."""

from __future__ import annotations

from acache.cli import main

if __name__ == "__main__":
    main()
