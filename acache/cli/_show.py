"""One entry described: header, parts, fields of its key, log; two keys compared; a part written to a file."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from acache._format import Kind
from acache._fs import OsFileSystem
from acache._inventory import Item
from acache.cli._entries import Failure, Row, failure_of, row_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from acache._models import Buffer
    from acache.cli._find import Found

__all__ = ["Account", "Difference", "Part", "account_of", "compare", "write"]

Verdict: TypeAlias = Literal["same", "differs", "only here", "only there"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an artifact, in bytes, with its check."""

    name: str
    size: int
    xxh3_128: str


@dataclass(slots=True)
class Account:
    """What is known under one name. Every part has been read, and passed its check."""

    key: str
    name: str
    path: str
    namespace: str | None
    label: str | None
    artifact: Row | None = None
    identity: str | None = None
    """The publish nonce: no two publications share one."""
    parts: list[Part] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    log: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    """Label to short digest of each field of the key."""
    cheap_seconds: float | None = None
    """What the compile took, where a mark says that results as cheap are not kept."""
    failure: Failure | None = None
    data: Mapping[str, Buffer] = field(default_factory=dict)
    """The parts themselves."""

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object, without the parts' bytes."""
        row = self.artifact
        return {
            "key": self.key,
            "name": self.name,
            "path": self.path,
            "namespace": self.namespace,
            "label": self.label,
            "artifact": None
            if row is None
            else {
                "identity": self.identity,
                "compiler": row.compiler,
                "size": row.size,
                "compile_seconds": row.compile_seconds,
                "created": row.created,
                "used": row.used,
                "owner": row.owner,
                "trusted": row.trusted,
                "parts": [{"name": p.name, "size": p.size, "xxh3_128": p.xxh3_128} for p in self.parts],
                "metadata": self.metadata,
                "log": self.log,
            },
            "cheap_seconds": self.cheap_seconds,
            "failure": None if self.failure is None else self.failure.as_json(),
            "fields": self.fields,
        }


def account_of(found: Found) -> Account | None:
    """Describe what lies under a name; None where nothing there can be read."""
    main = found.any
    if main is None:
        return None
    header = main.entry.header
    namespace, fields = header.get("namespace"), header.get("fields")
    account = Account(
        key=str(header["key"]),
        name=found.name,
        path=main.path,
        namespace=namespace if isinstance(namespace, str) else None,
        label=main.entry.label,
    )
    if isinstance(fields, dict):
        account.fields = {str(name): str(digest) for name, digest in fields.items()}
    if isinstance(found.failure, Item) and found.failure.entry.kind is Kind.FAILURE:
        account.failure = failure_of(found.failure)
    if isinstance(found.entry, Item):
        _add_entry(account, found.entry)
    return account


def _add_entry(account: Account, item: Item) -> None:
    entry = item.entry
    if entry.kind is Kind.CHEAP:
        account.cheap_seconds = entry.seconds
        return
    account.artifact = row_of(item)
    if account.artifact is None:
        return
    account.identity = entry.identity
    account.parts = [
        Part(str(name), int(length), str(digest)) for name, _, length, digest in entry.header["parts"]
    ]
    account.metadata = entry.metadata
    log = account.metadata.pop("log", None)
    account.log = log if log is None or isinstance(log, str) else repr(log)
    account.data = entry.parts


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of two keys."""

    field: str
    here: str | None
    there: str | None

    @property
    def verdict(self) -> Verdict:
        """How it differs."""
        if self.here == self.there:
            return "same"
        if self.there is None:
            return "only here"
        return "only there" if self.here is None else "differs"


def compare(here: Account, there: Account) -> list[Difference]:
    """Compare the fields of two keys; what differs comes first."""
    names = sorted(here.fields.keys() | there.fields.keys())
    found = [Difference(name, here.fields.get(name), there.fields.get(name)) for name in names]
    return sorted(found, key=lambda each: each.verdict == "same")


# --- one part, to a file --------------------------------------------------------------------------


def write(data: Buffer, path: str) -> None:
    """Write bytes to ``path`` as an atomic file, or to stdout for ``-``.

    A temporary file beside it is renamed over it, so a reader sees the old file or the new one. A device or a
    pipe is written into: to replace it would be to destroy it.

    :raises OSError: nothing was written there.
    """
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    if _is_special(path):
        with open(path, "wb", buffering=0) as device:
            device.write(data)
        return
    fs, temporary = OsFileSystem(), f"{path}.{os.urandom(8).hex()}.tmp"
    try:
        fs.create(temporary, (data,), False)
        fs.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            fs.unlink(temporary)
        raise


def _is_special(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
