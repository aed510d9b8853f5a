"""What is found on disk, in the words of the public models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from acache._format import Kind
from acache._keys import Key
from acache._models import EntryInfo, Status

if TYPE_CHECKING:
    from acache._format import Record
    from acache._protocol import Chain, Sighting
    from acache._store import Listed

__all__ = ["entry_info", "holder_status", "status_of"]

Verdict: TypeAlias = Literal["alive", "dead", "closing", "unknown"]


def status_of(seen: Sighting) -> Status:
    """Say what one look at a key found."""
    if seen.artifact.what == "artifact":
        return Status("present")
    return holder_status(seen.chain) or Status("absent")


def holder_status(chain: Chain) -> Status | None:
    """Describe the holder at a chain's end; None when nobody holds."""
    if chain.tail is None:
        return None
    record = chain.tail.record
    tail = record.tail
    host, pid, label = tail.get("host"), tail.get("pid"), tail.get("label")
    return Status(
        "compiling",
        host=host if isinstance(host, str) else None,
        pid=pid if isinstance(pid, int) else None,
        age=record.age,
        beats=max(0, record.counter),
        progress=record.progress if record.progress > 0 else None,
        usual=record.usual,
        label=label if isinstance(label, str) else None,
        verdict=_verdict(chain.tail_is_dead, record),
    )


def _verdict(dead: bool, record: Record) -> Verdict:
    """Judge by one look: death may be certain, life takes two."""
    if dead:
        return "dead"
    if record.closed:
        return "closing"
    return "unknown" if record.torn or record.counter <= 0 else "alive"


def entry_info(item: Listed) -> EntryInfo | None:
    """Describe a published artifact; None for marks and for headers that make no sense."""
    header = item.entry.header
    if item.entry.kind is not Kind.ARTIFACT:
        return None
    try:
        return EntryInfo(
            key=Key(bytes.fromhex(header["key"]), header.get("fields") or {}),
            namespace=header.get("namespace"),
            label=item.entry.label,
            size=item.entry.size,
            parts={str(name): int(length) for name, _, length, _ in header["parts"]},
            compile_seconds=item.entry.seconds,
            created=float(header.get("created") or 0.0),
            used=item.used,
            metadata=item.entry.metadata,
            compiler=item.entry.compiler,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
