"""The records behind ``acache stats``: moves that leave one, fold old ones together, and read them all.

``<root>/v1/stats`` holds records, ``<32 hex>.json``. So that 10^5 starts do not leave 10^5 files, whoever
leaves a record where there are many folds them into one, of a fresh name F:

1. each record X is *claimed*: ``X.json`` is renamed to ``X.F``, which only one can do;
2. the sum is written to ``F.json``;
3. what was claimed is unlinked.

A claim counts for readers until ``F.json`` is there, and not from then on: so a crash between any two
operations neither loses a record nor counts one twice. ``F.json`` is itself folded only once none of its
claims is left. A claim that nobody finished for 24 h becomes a record again.

The worst cases: a process that is suspended for more than 24 h in the middle of folding counts what it
claimed twice when it goes on; a host that loses power loses records that its disk had not got yet. On
network mounts, where records are left only when asked for, a stale view of the folder may put the numbers off
as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from acache._moves import STALE, unlink_if_stale
from acache._store import GONE, Paths, file_clock, fresh_nonce, publish, touch, unlink_quietly
from acache._tally import RECORD_ROWS, Tally, TallyError, decode_tally, encode_tally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from acache._fs import File, Steps
    from acache._store import Layout

__all__ = ["Ledger", "leave_record", "read_ledger"]

FOLD_AT = 64
"""Records that may lie there before somebody folds them."""
FOLD_MOST = 512
"""Records that are folded at once: a bound on what one closing cache does for the others."""
RECORD_LIMIT = 4 << 20
READ_ROWS = 1 << 14
_TRIES = 5
_RECORD = re.compile(r"([0-9a-f]{32})\.json")
_CLAIM = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{32})")


@dataclass(slots=True)
class Ledger:
    """All records together, and what was passed over."""

    tally: Tally = field(default_factory=lambda: Tally(READ_ROWS))
    records: int = 0
    """Files that were read; one may stand for many processes."""
    corrupt: int = 0
    untrusted: int = 0
    """Records of owners whom ``trust`` does not cover."""
    later: int = 0
    """Records of a later format."""


@dataclass(frozen=True, slots=True)
class _Names:
    """What lies in the folder: records by their own name, claims by (record, who folds)."""

    records: frozenset[str]
    claims: frozenset[tuple[str, str]]
    temporaries: frozenset[str]

    @classmethod
    def of(cls, names: Iterable[str]) -> _Names:
        all_names = list(names)
        records = frozenset(found[1] for name in all_names if (found := _RECORD.fullmatch(name)))
        claims = frozenset((found[1], found[2]) for name in all_names if (found := _CLAIM.fullmatch(name)))
        return cls(records, claims, frozenset(name for name in all_names if name.startswith(".t.")))


def _folder(layout: Layout) -> str:
    return f"{layout.base}/stats"


def _path(folder: str, name: str) -> str:
    return f"{folder}/{name}.json"


# --- leaving --------------------------------------------------------------------------------------


def leave_record(layout: Layout, tally: Tally) -> Steps[bool]:
    """Leave a process's record, and fold old ones where there are many; False where there is no cache.

    :raises OSError: nothing was left.
    """
    if not (yield ("exists", layout.base)):
        return False  # nothing was ever kept there, and a count of that is no reason to begin
    folder = _folder(layout)
    target = _path(folder, fresh_nonce())
    yield from publish(replace(layout, durable=False), Paths(folder, ""), target, (encode_tally(tally),))
    try:
        yield from fold(layout)
    except OSError:
        pass  # whoever comes next folds
    return True


def fold(layout: Layout) -> Steps[int]:
    """Fold records together where there are many; returns how many became one.

    :raises OSError: the folder cannot be listed.
    """
    folder = _folder(layout)
    seen = _Names.of((yield ("listdir", folder)))
    if len(seen.records) <= FOLD_AT:
        return 0
    # All claims on behalf of a record that is seen existed before it. A listing begun now shows every one
    # that is left; the one that showed the record may have passed their places before.
    now = _Names.of((yield ("listdir", folder)))
    blocked = yield from _tidy(folder, now)
    mine = fresh_nonce()
    total, claimed = Tally(READ_ROWS), []
    for name in _from_somewhere(seen.records & now.records - blocked, mine)[:FOLD_MOST]:
        part = yield from _claim(layout, folder, name, mine)
        if part is not None:
            total.absorb(part)
            claimed.append(name)
    if len(claimed) < 2:
        yield from _put_back(folder, claimed, mine)
        return 0
    total.shrink(RECORD_ROWS)
    try:
        whole = encode_tally(total)
        yield from publish(replace(layout, durable=False), Paths(folder, ""), _path(folder, mine), (whole,))
    except OSError:
        if not (yield ("exists", _path(folder, mine))):  # or the answer was lost, and the sum is there
            yield from _put_back(folder, claimed, mine)
            return 0
    for name in claimed:
        yield from unlink_quietly(f"{folder}/{name}.{mine}")
    return len(claimed)


def _from_somewhere(names: Iterable[str], start: str) -> list[str]:
    """Put names in a ring that begins at ``start``, so that many who fold at once do not race for each."""
    ordered = sorted(names)
    return [name for name in ordered if name >= start] + [name for name in ordered if name < start]


def _claim(layout: Layout, folder: str, name: str, mine: str) -> Steps[Tally | None]:
    """Read a record and take it; None: it is gone, not ours to take, or no good (then it is removed)."""
    path, claim = _path(folder, name), f"{folder}/{name}.{mine}"
    try:
        file: File = yield ("read", path, RECORD_LIMIT)
        if not layout.trust.believes(file):
            return None
        try:
            tally = decode_tally(file.data)
        except TallyError as error:
            if not error.later:
                yield from unlink_quietly(path)
            return None
        yield ("rename", path, claim)
    except OSError:
        return None
    yield from touch(claim)  # its age counts from now
    return tally


def _put_back(folder: str, names: Iterable[str], mine: str) -> Steps[None]:
    for name in names:
        try:
            yield ("rename", f"{folder}/{name}.{mine}", _path(folder, name))
        except OSError:
            continue  # it counts as it is


def _tidy(folder: str, names: _Names) -> Steps[set[str]]:
    """Finish what others left half-done; returns the records that still have claims, which must not be
    folded: those claims would count again.
    """
    blocked = set()
    stale: list[tuple[str, str]] = []
    for name, by in sorted(names.claims):
        if by not in names.records:
            stale.append((name, by))
        elif not (yield from unlink_quietly(f"{folder}/{name}.{by}")):
            blocked.add(by)
    if not stale and not names.temporaries:
        return blocked
    now = yield from file_clock(Paths(folder, ""))
    if now is None:
        return blocked
    for temporary in sorted(names.temporaries):
        yield from unlink_if_stale(f"{folder}/{temporary}", now)
    for name, by in stale:
        yield from _restore(folder, name, by, now)
    return blocked


def _restore(folder: str, name: str, by: str, now: float) -> Steps[None]:
    """Make a record again of a claim that nobody finished for 24 h."""
    claim = f"{folder}/{name}.{by}"
    try:
        file: File = yield ("head", claim, 0)
        if now - file.mtime > STALE and not (yield ("exists", _path(folder, by))):
            yield ("rename", claim, _path(folder, name))
    except OSError:
        return


# --- reading --------------------------------------------------------------------------------------


def read_ledger(layout: Layout) -> Steps[Ledger]:
    """Read all records and add them up; only reads. What is folded meanwhile is looked for once more.

    :raises OSError: the folder is there, and cannot be listed.
    """
    folder = _folder(layout)
    ledger = Ledger()
    for _ in range(_TRIES):
        try:
            names = _Names.of((yield ("listdir", folder)))
        except OSError as error:
            if error.errno in GONE:
                return Ledger()
            raise
        ledger, moved = yield from _read(layout, folder, names)
        if not moved and names == _Names.of((yield ("listdir", folder))):
            break
    return ledger


def _read(layout: Layout, folder: str, names: _Names) -> Steps[tuple[Ledger, bool]]:
    """Read what a listing showed; also returns whether something was not there any more."""
    ledger, moved = Ledger(), False
    paths = [_path(folder, name) for name in sorted(names.records)]
    paths += [
        f"{folder}/{name}.{by}"
        for name, by in sorted(names.claims)
        if by not in names.records and name not in names.records
    ]
    for path in paths:
        try:
            file: File = yield ("read", path, RECORD_LIMIT)
        except OSError as error:
            if error.errno in GONE:
                moved = True
            else:
                ledger.corrupt += 1
            continue
        if not layout.trust.believes(file):
            ledger.untrusted += 1
            continue
        try:
            ledger.tally.absorb(decode_tally(file.data))
            ledger.records += 1
        except TallyError as error:
            ledger.later += error.later
            ledger.corrupt += not error.later
    return ledger, moved
