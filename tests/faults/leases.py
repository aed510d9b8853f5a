"""Leases left by hand, as a holder would leave them, and what must be gone in the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import acache
from acache import _host, _keys, _moves
from acache._format import encode_record
from acache._store import Layout, Trust

if TYPE_CHECKING:
    from acache._format import Record

KEY = acache.key(source="kernel")


def leftovers(directory: Path) -> list[str]:
    """Return the names of leases and temporaries."""
    return [path.name for path in directory.rglob("*") if ".lease" in path.name or ".t." in path.name]


def plant(directory: Path, **tail: Any) -> tuple[Path, Record]:
    """Leave a lease for `KEY` as a holder would, with other facts about it."""
    layout = Layout(str(directory), Trust("user", frozenset()), _host.my_identity(), ttl=0.3, interval=0.1)
    paths = layout.paths(_keys.name_of(KEY, None))
    record = _moves.draw_record(layout, **tail)
    slot = Path(paths.slot(None))
    slot.parent.mkdir(parents=True)
    slot.write_bytes(encode_record(replace(record, ttl_ms=300)))
    return slot, record


async def make() -> bytes:
    return b"made"
