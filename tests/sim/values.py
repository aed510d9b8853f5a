"""Values that the tests of store, moves and simulator share: a key, its entries, layouts of a directory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from acache import _store
from acache._format import Caption, encode_artifact, encode_cheap, encode_failure
from acache._fs import OsFileSystem, Steps, perform
from acache._host import Identity
from acache._models import Artifact, CompileFailure
from acache._store import Layout, Subject, Trust

if TYPE_CHECKING:
    from pathlib import Path

    from acache._models import Buffer

NAME = "ab" + "5c" * 31
KEY = "9e" * 32
UID = 1000
"""Who the processes of the simulator are."""

ME = Identity(boot_id="boot-one", pidns=1, timens=1, pid=100, starttime=1_000, host="one", proc_honest=True)


def layout_at(root: str | Path, **changes: Any) -> Layout:
    """Return a layout that believes everybody's files."""
    layout = Layout(root=str(root), trust=Trust("any", frozenset()), identity=ME, ttl=2.0, interval=0.5)
    return replace(layout, **changes)


def subject_in(layout: Layout, name: str = NAME, key: str = KEY, namespace: str | None = None) -> Subject:
    """Return a key that lives in that layout."""
    return Subject(layout.paths(name), key, namespace)


def caption_of(subject: Subject, **changes: Any) -> Caption:
    """Return what an entry of that key says of itself, under a publish nonce of its own."""
    return replace(Caption(subject.key, subject.namespace, _store.fresh_nonce()), **changes)


def good(subject: Subject, data: bytes = b"good", seconds: float = 3.0, **changes: Any) -> list[Buffer]:
    """Return the chunks of an artifact's entry."""
    return encode_artifact(caption_of(subject, **changes), Artifact.of(data), seconds)


def cheap(subject: Subject, seconds: float = 0.1) -> list[Buffer]:
    """Return the chunks of a cheap mark."""
    return encode_cheap(caption_of(subject), seconds)


def failed(subject: Subject, holder: str, *, deterministic: bool = True, text: str = "no") -> list[Buffer]:
    """Return the chunks of a failure that the holder of that nonce found."""
    failure = CompileFailure(
        "diagnostic" if deterministic else "memory", text, exit_status=1, deterministic=deterministic
    )
    return encode_failure(caption_of(subject), failure, holder)


def do(steps: Steps[Any], fs: Any = None) -> Any:
    """Run a move whole, on the real file system if no other is given."""
    return perform(steps, OsFileSystem() if fs is None else fs)


def bytes_of(chunks: list[Buffer]) -> bytes:
    """Return the file that those chunks make."""
    return b"".join(bytes(chunk) for chunk in chunks)
