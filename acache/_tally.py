"""What one process counted, by label and by compiler: the record that ``acache stats`` reads. Pure.

A record is one small JSON file, which names its format and checks itself. Its rows are bounded in number, its
labels in length: what does not fit is counted together, as *the rest* of its compiler.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "COUNTS",
    "HITS",
    "PROCESS_ROWS",
    "RECORD_ROWS",
    "SAVED",
    "SECONDS",
    "Tag",
    "Tally",
    "TallyError",
    "decode_tally",
    "encode_tally",
]

FORMAT = 1
HITS = ("memory_hits", "disk_hits", "peer_hits", "remote_hits")
SAVED = ("memory_saved", "disk_saved", "peer_saved", "remote_saved")
"""Seconds that the compiles of what was hit took when they ran, by origin."""
COUNTS = (*HITS, "misses", "compiles", "compile_failures")
SECONDS = ("compile_seconds", "wait_seconds", *SAVED)
_KNOWN = frozenset({*COUNTS, *SECONDS})

PROCESS_ROWS = 256
"""Labels that one process tells apart."""
RECORD_ROWS = 1024
"""Labels that a record of many processes tells apart."""
_COMPILERS = 32
"""Compilers whose rests are told apart."""
_LABEL_LENGTH = 120
_COMPILER_LENGTH = 60
_COUNTERS = 64
_MOST = 1e15
"""No honest counter gets there; beyond 2**53 sums would not be exact either."""


class TallyError(ValueError):
    """The bytes are no record, or one of a later format (``later``), which must be left alone."""

    def __init__(self, reason: str, *, later: bool = False) -> None:
        super().__init__(reason)
        self.later = later


class Tag(NamedTuple):
    """What a row is about; a plain tuple of the same three finds it too."""

    label: str | None
    compiler: str | None
    rest: bool = False
    """It stands for all labels that are not told apart."""


class Tally:
    """Counters by label and compiler; belongs to the loop's thread.

    :param most: rows at most, besides those of the rests.
    """

    __slots__ = ("_most", "_named", "first", "last", "processes", "rows")

    def __init__(self, most: int = PROCESS_ROWS) -> None:
        self._most = most
        self._named = 0
        self.rows: dict[Tag, dict[str, float]] = {}
        self.processes = 0
        self.first = math.inf
        """When the first of these processes opened its cache, by its wall clock; for people only."""
        self.last = -math.inf
        """When the last of them closed it."""

    def count(self, label: str | None, compiler: str | None, counts: Mapping[str, float]) -> None:
        """Add those of the counts that are kept by label; amounts that make no sense count nothing.

        Cheap: a look-up and an addition each.
        """
        row = self.rows.get((label, compiler, False))  # type: ignore[call-overload]  # equal, and as good
        for name, amount in counts.items():
            if name in _KNOWN and 0 < amount < _MOST:
                if row is None:
                    row = self._row(label, compiler)
                row[name] = row.get(name, 0) + amount

    def absorb(self, other: Tally) -> None:
        """Add all that another tally has."""
        self.processes += other.processes
        self.first = min(self.first, other.first)
        self.last = max(self.last, other.last)
        for tag, theirs in other.rows.items():
            row = self._rest(tag.compiler) if tag.rest else self._row(tag.label, tag.compiler)
            for name, amount in theirs.items():
                row[name] = row.get(name, 0) + amount

    def shrink(self, most: int) -> None:
        """Keep the ``most`` weightiest rows apart; the others join the rests."""
        named = sorted((tag for tag in self.rows if not tag.rest), key=self._weight, reverse=True)
        for tag in named[most:]:
            light = self.rows.pop(tag)
            self._named -= 1
            row = self._rest(tag.compiler)
            for name, amount in light.items():
                row[name] = row.get(name, 0) + amount

    def totals(self) -> dict[str, float]:
        """Return the sums over all rows."""
        return _added(self.rows.values())

    def by_label(self) -> dict[tuple[str | None, bool], dict[str, float]]:
        """Return the sums over all compilers, by label (None: none was given) and whether it is the rest."""
        return self._grouped(lambda tag: (tag.label, tag.rest))

    def by_compiler(self) -> dict[str | None, dict[str, float]]:
        """Return the sums over all labels, by compiler (None: a caller's own function, or unknown)."""
        return self._grouped(lambda tag: tag.compiler)

    def _grouped(self, group_of: Any) -> dict[Any, dict[str, float]]:
        groups: dict[Any, list[dict[str, float]]] = {}
        for tag, row in self.rows.items():
            groups.setdefault(group_of(tag), []).append(row)
        return {group: _added(rows) for group, rows in groups.items()}

    def _weight(self, tag: Tag) -> tuple[float, float]:
        row = self.rows[tag]
        return sum(row.get(name, 0) for name in SECONDS), sum(row.get(name, 0) for name in COUNTS)

    def _row(self, label: str | None, compiler: str | None) -> dict[str, float]:
        label = label if label is None else label[:_LABEL_LENGTH]
        tag = Tag(label, _short(compiler))
        row = self.rows.get(tag)
        if row is None:
            if self._named >= self._most:
                return self._rest(compiler)
            self._named += 1
            row = self.rows[tag] = {}
        return row

    def _rest(self, compiler: str | None) -> dict[str, float]:
        tag = Tag(None, _short(compiler), rest=True)
        if tag not in self.rows and sum(each.rest for each in self.rows) >= _COMPILERS:
            tag = Tag(None, None, rest=True)
        return self.rows.setdefault(tag, {})


def _short(compiler: str | None) -> str | None:
    return compiler if compiler is None else compiler[:_COMPILER_LENGTH]


def _added(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for row in rows:
        for name, amount in row.items():
            total[name] = total.get(name, 0) + amount
    return total


# --- the bytes of a record ------------------------------------------------------------------------


def encode_tally(tally: Tally) -> bytes:
    """Return a tally as the bytes of a record."""
    body = {
        "processes": tally.processes,
        "first": tally.first,
        "last": tally.last,
        "rows": [[*tag, row] for tag, row in tally.rows.items()],
    }
    text = _canonical(body)
    check = xxhash.xxh3_128_hexdigest(text.encode())
    return f'{{"format":{FORMAT},"check":"{check}","tally":{text}}}\n'.encode()


def decode_tally(data: bytes | bytearray) -> Tally:
    """Return the tally that a record holds. Counters that this version does not know are kept.

    :raises TallyError: torn, flipped, nonsense, or of a later format.
    """
    try:
        record = json.loads(bytes(data), parse_constant=_no_constant)
        if isinstance(record["format"], int) and record["format"] > FORMAT:
            raise TallyError(f"format {record['format']}; this program knows {FORMAT}", later=True)
        body = record["tally"]
        if record["format"] != FORMAT:
            raise TallyError(f"format {record['format']!r}")
        if xxhash.xxh3_128_hexdigest(_canonical(body).encode()) != record["check"]:
            raise TallyError("its check fails")
        return _tally_of(body)
    except TallyError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise TallyError(f"it makes no sense: {type(error).__name__}: {error}") from None


def _canonical(body: object) -> str:
    return json.dumps(body, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _tally_of(body: Mapping[str, Any]) -> Tally:
    tally = Tally(RECORD_ROWS)
    tally.processes = int(_number(body["processes"]))
    tally.first, tally.last = _number(body["first"]), _number(body["last"])
    for label, compiler, rest, counters in body["rows"]:
        texts = all(each is None or isinstance(each, str) for each in (label, compiler))
        if not texts or not isinstance(rest, bool) or len(counters) > _COUNTERS:
            raise ValueError("a row that is none")
        row = tally._rest(compiler) if rest else tally._row(label, compiler)
        for name, amount in counters.items():
            row[name] = row.get(name, 0) + _number(amount)
    return tally


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
        raise ValueError(f"{value!r} is no count")
    return value
