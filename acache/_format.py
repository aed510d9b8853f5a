"""The bytes on disk: entries that describe and check themselves, and 512-byte lease records.

Entry, version 1 (little-endian)::

    0   8  magic                                   the preamble, 64 bytes, keeps this
    8   2  format version                          layout in every later version, so
    10  1  kind: 1 artifact, 2 cheap, 3 failure    that an older program can tell an
    11  1  zero                                    entry of the future from a torn one
    12  4  length of the header
    16 16  xxh3-128 of the header
    32  8  length of the whole file
    40  8  xxh3-64 of bytes 0..40
    48 16  zero
    64     header, JSON, UTF-8; then parts, each at a multiple of 4 KiB

Lease record, ASCII, see LEASE in the design notes: only the first 40 bytes are ever rewritten::

    0   20 beat counter     52  32 nonce          104  2 flags, hex: 1 closed, 2 hedge
    20  20 progress         84  10 ttl, ms        106 32 xxh3-128 of 40..106 and 138..512
    40   8 magic            94  10 interval, ms   138    JSON tail, spaces, newline at 511
    48   4 format version
"""

from __future__ import annotations

import enum
import json
import re
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import xxhash

from acache._models import JSON, Artifact, Buffer, CompileFailure, FailureReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "BEAT_BYTES",
    "RECORD_BYTES",
    "Entry",
    "FormatError",
    "Kind",
    "Record",
    "UnknownVersionError",
    "decode_entry",
    "decode_record",
    "encode_artifact",
    "encode_cheap",
    "encode_failure",
    "encode_record",
    "header_span",
]

VERSION = 1
ALIGNMENT = 4096
HEADER_LIMIT = 16 << 20
TEXT_LIMIT = 64 << 10
PREAMBLE = struct.Struct("<8sHBxI16sQ8s16x")
MAGIC = b"\x89acache\n"


class Kind(enum.IntEnum):
    """What an entry holds."""

    ARTIFACT = 1
    CHEAP = 2
    FAILURE = 3


class FormatError(ValueError):
    """The bytes are not an entry, or not the one that was asked for: a miss that heals."""


class UnknownVersionError(FormatError):
    """A whole entry of a later format: a miss that must not be overwritten, deleted or coordinated about."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A decoded entry; ``parts`` are views into the bytes that were read."""

    kind: Kind
    header: Mapping[str, Any]
    parts: Mapping[str, memoryview]
    size: int

    @property
    def identity(self) -> str:
        """The publish nonce: no two entries share one."""
        return str(self.header["nonce"])

    @property
    def seconds(self) -> float:
        """How long the compile took."""
        return float(self.header.get("seconds", 0.0))

    @property
    def label(self) -> str | None:
        """The label it was published under."""
        label = self.header.get("label")
        return label if isinstance(label, str) else None

    @property
    def compiler(self) -> str | None:
        """Which compiler made it; None for a caller's own function, or where nobody said."""
        compiler = self.header.get("compiler")
        return compiler if isinstance(compiler, str) else None

    @property
    def metadata(self) -> dict[str, JSON]:
        """The artifact's metadata, the compiler's log included."""
        metadata = dict(self.header.get("metadata") or {})
        if self.header.get("log") is not None:
            metadata["log"] = self.header["log"]
        return metadata

    def artifact(self) -> Artifact:
        """Return the artifact, without a copy of its parts."""
        artifact = Artifact(self.parts, self.metadata)
        artifact._about = (self.label, self.compiler, self.seconds)
        return artifact

    @property
    def holder(self) -> str:
        """The nonce of the lease under which a failure was found."""
        return str(self.header["holder"])

    @property
    def failure(self) -> CompileFailure:
        """The failure that an entry of that kind records."""
        return CompileFailure(**self.header["failure"])


@dataclass(frozen=True, slots=True)
class Caption:
    """What every kind of entry says of itself."""

    key: str
    namespace: str | None
    nonce: str
    label: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    compiler: str | None = None

    def header(self) -> dict[str, Any]:
        """Return the common header fields; ``signature`` is the slot for a later signing scheme."""
        header: dict[str, Any] = {
            "key": self.key,
            "namespace": self.namespace,
            "nonce": self.nonce,
            "label": self.label,
            "fields": dict(self.fields),
            "created": self.created,
            "signature": None,
        }
        if self.compiler is not None:
            header["compiler"] = self.compiler
        return header


def _assemble(kind: Kind, header: dict[str, Any], parts: Sequence[Buffer]) -> list[Buffer]:
    text = json.dumps(header, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"metadata and log take {len(text)} bytes; an entry's header holds {HEADER_LIMIT}")
    chunks: list[Buffer] = [b"", text]
    at = PREAMBLE.size + len(text)
    for part in parts:
        padding = -at % ALIGNMENT
        chunks += [bytes(padding), part]
        at += padding + len(part)
    digest = xxhash.xxh3_128_digest(text)
    stem = PREAMBLE.pack(MAGIC, VERSION, kind, len(text), digest, at, bytes(8))[:40]
    chunks[0] = stem + xxhash.xxh3_64_digest(stem) + bytes(16)
    return chunks


def encode_artifact(caption: Caption, artifact: Artifact, seconds: float) -> list[Buffer]:
    """Return the chunks of an artifact's entry, its parts not copied.

    :raises ValueError: metadata beyond 16 MiB.
    """
    views = {name: artifact.view(name).cast("B") for name in artifact.parts}
    header = caption.header()
    metadata = dict(artifact.metadata)
    log = metadata.pop("log") if metadata.get("log") is not None else None
    header.update(seconds=seconds, log=log, metadata=metadata)
    # The table holds offsets, and they depend on the header's own length: the parts are therefore
    # placed relative to the first aligned offset behind the header.
    table, at = [], 0
    for name, view in views.items():
        table.append([name, at, len(view), xxhash.xxh3_128_hexdigest(view)])
        at += len(view) + -len(view) % ALIGNMENT
    header["parts"] = table
    return _assemble(Kind.ARTIFACT, header, list(views.values()))


def encode_cheap(caption: Caption, seconds: float) -> list[Buffer]:
    """Return the chunks of a mark that says: compiled in ``seconds``, not worth keeping."""
    return _assemble(Kind.CHEAP, {**caption.header(), "seconds": seconds}, ())


def encode_failure(caption: Caption, failure: CompileFailure, holder: str) -> list[Buffer]:
    """Return the chunks of a failure record; ``holder`` is the lease nonce of who compiled."""
    record = {
        "reason": failure.reason,
        "text": clip(failure.text),
        "exit_status": failure.exit_status,
        "signal": failure.signal,
        "seconds": failure.seconds,
        "deterministic": failure.deterministic,
    }
    return _assemble(Kind.FAILURE, {**caption.header(), "holder": holder, "failure": record}, ())


def clip(text: str, limit: int = TEXT_LIMIT) -> str:
    """Keep head and tail of a compiler's text when it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def header_span(prefix: bytes) -> int:
    """Return how many bytes of the file its preamble and header take; ``prefix`` has at least 64.

    :raises FormatError: the preamble is not one.
    """
    return PREAMBLE.size + _preamble(memoryview(prefix))[2]


def _preamble(view: memoryview) -> tuple[int, int, int, bytes, int]:
    if len(view) < PREAMBLE.size:
        raise FormatError("shorter than a preamble")
    magic, version, kind, length, digest, total, check = PREAMBLE.unpack_from(view)
    if magic != MAGIC:
        raise FormatError("no magic number")
    if xxhash.xxh3_64_digest(view[:40]) != check:
        raise FormatError("the preamble's check fails")
    if version != VERSION:
        raise UnknownVersionError(f"format version {version}; this program knows {VERSION}")
    if length > HEADER_LIMIT:
        raise FormatError("the header is too long")
    return version, kind, length, digest, total


def decode_entry(data: Buffer, *, key: str | None, namespace: str | None, parts: bool = True) -> Entry:
    """Decode and check a whole entry, or (``parts=False``) a file's beginning as far as its header.

    :param key: the hex key that it must describe; None takes any key and namespace.
    :raises UnknownVersionError: a whole preamble of a later version.
    :raises FormatError: torn, flipped, foreign: anything but the right entry.
    """
    view = memoryview(data)
    _, kind, length, digest, total = _preamble(view)
    body = view[PREAMBLE.size : PREAMBLE.size + length]
    if len(body) != length or xxhash.xxh3_128_digest(body) != digest:
        raise FormatError("the header's check fails")
    if parts and len(view) != total:
        raise FormatError(f"{len(view)} bytes instead of {total}")
    try:
        header = json.loads(bytes(body), parse_constant=_no_constant)
        if key is not None and (header["key"] != key or header["namespace"] != namespace):
            raise FormatError("the entry describes another key")
        entry = Entry(Kind(kind), header, _views(view, length, header) if parts else {}, total)
        _check_fields(entry)
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(f"the header makes no sense: {type(error).__name__}: {error}") from None
    return entry


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _check_fields(entry: Entry) -> None:
    """Touch what later readers rely on, so that nonsense under a good checksum is found here."""
    if not isinstance(entry.header["nonce"], str) or not isinstance(entry.header["key"], str):
        raise FormatError("nonce and key must be text")
    _ = entry.seconds, entry.metadata
    if entry.kind is Kind.ARTIFACT:
        if not entry.header["parts"]:
            raise FormatError("an artifact without parts")
    elif entry.kind is Kind.FAILURE:
        failure = entry.failure
        if failure.reason not in get_args(FailureReason) or not isinstance(failure.text, str):
            raise FormatError("a failure without a reason")
        _ = failure.summary, entry.holder


def _views(view: memoryview, header_length: int, header: Mapping[str, Any]) -> dict[str, memoryview]:
    start = PREAMBLE.size + header_length
    start += -start % ALIGNMENT
    views: dict[str, memoryview] = {}
    for name, offset, length, digest in header.get("parts") or ():
        part = view[start + offset : start + offset + length]
        whole = isinstance(name, str) and offset >= 0 and len(part) == length
        if not whole or xxhash.xxh3_128_hexdigest(part) != digest:
            raise FormatError(f"the check of part {name!r} fails")
        views[name] = part
    return views


# --- lease records -------------------------------------------------------------------------------

RECORD_BYTES = 512
BEAT_BYTES = 40
RECORD_MAGIC = b"acachelk"
RECORD_VERSION = 1
_CHECK = slice(106, 138)
_TAIL_AT = 138
NONCE = re.compile(rb"[0-9a-f]{32}")
CLOSED, HEDGE = 1, 2
RESIGNED = 10**20 - 1
"""The beat counter of a holder that left and could not seal: twenty nines, where no beat will get to."""
MOST_MS = 10**10 - 1
TAIL_FIELDS = ("boot_id", "pidns", "timens", "pid", "starttime", "host", "usual_ms", "label")


@dataclass(frozen=True, slots=True)
class Record:
    """What a lease slot says; times in milliseconds.

    A torn record (short, unterminated, bad checksum) has a nonce made of its slot's file name: with a
    constant instead, a torn successor would lead a walk to itself for ever.
    """

    nonce: str
    ttl_ms: int
    interval_ms: int
    counter: int = 0
    progress: int = 0
    closed: bool = False
    hedge: bool = False
    torn: bool = False
    tail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def resigned(self) -> bool:
        """Whether the holder said in place that it has left: as good as dead, at once."""
        return self.counter == RESIGNED

    @property
    def usual(self) -> float | None:
        """Seconds that the label usually takes, as the holder knew it."""
        usual = self.tail.get("usual_ms")
        return usual / 1000 if isinstance(usual, int) and not isinstance(usual, bool) else None

    @property
    def age(self) -> float:
        """Seconds since the holder began, to within a heartbeat: its beats times their interval."""
        return 0.0 if self.resigned else max(0, self.counter) * self.interval_ms / 1000


def encode_beat(counter: int, progress: int) -> bytes:
    """Return the 40 bytes that a beat rewrites in place."""
    return b"%020d%020d" % (counter, progress)


def encode_record(record: Record) -> bytes:
    """Return the 512 bytes of a record; label, then host, are dropped when the tail does not fit."""
    tail = {name: record.tail[name] for name in TAIL_FIELDS if record.tail.get(name) is not None}
    text = json.dumps(tail, separators=(",", ":")).encode()
    for name in ("label", "host"):
        if len(text) > RECORD_BYTES - 1 - _TAIL_AT:
            tail.pop(name, None)
            text = json.dumps(tail, separators=(",", ":")).encode()
    flags = record.closed * CLOSED + record.hedge * HEDGE
    fixed = b"%s%04d%s%010d%010d%02x" % (
        RECORD_MAGIC,
        RECORD_VERSION,
        record.nonce.encode(),
        min(record.ttl_ms, MOST_MS),
        min(record.interval_ms, MOST_MS),
        flags,
    )
    rest = text.ljust(RECORD_BYTES - 1 - _TAIL_AT) + b"\n"
    data = encode_beat(record.counter, record.progress) + fixed + bytes(32) + rest
    return data[: _CHECK.start] + record_check(data) + rest


def record_check(data: bytes) -> bytes:
    """Return the check of a record: over all but the 40 bytes that beats rewrite, so that no reader who
    meets a beat half-way sees a torn record.
    """
    return xxhash.xxh3_128_hexdigest(data[BEAT_BYTES : _CHECK.start] + data[_TAIL_AT:]).encode()


def torn_nonce(slot: str) -> str:
    """Return the nonce of a torn record: of its slot's file name, for with a constant a torn successor would
    lead to itself and no walk would end.
    """
    return xxhash.xxh3_128_hexdigest(slot.encode())


def decode_record(data: bytes, slot: str) -> Record:
    """Decode what a slot of that file name holds; a torn record never raises.

    A later version is judged by its prefix, whose offsets and checksum stay the same.
    """
    try:
        if len(data) != RECORD_BYTES or data[-1:] != b"\n" or data[40:48] != RECORD_MAGIC:
            raise ValueError
        if record_check(data) != data[_CHECK]:
            raise ValueError
        if not NONCE.fullmatch(data[52:84]):
            raise ValueError  # it becomes part of a path
        flags = int(data[104:106], 16)
        record = Record(
            nonce=data[52:84].decode("ascii"),
            ttl_ms=int(data[84:94]),
            interval_ms=int(data[94:104]),
            counter=_number(data[0:20]),
            progress=_number(data[20:40]),
            closed=bool(flags & CLOSED),
            hedge=bool(flags & HEDGE),
        )
    except ValueError:
        return Record(torn_nonce(slot), ttl_ms=0, interval_ms=0, torn=True)
    try:
        tail = json.loads(data[_TAIL_AT:])
    except (ValueError, RecursionError):
        tail = {}  # a later version may keep other things there: then beats alone decide
    return replace(record, tail=tail if isinstance(tail, dict) else {})


def _number(digits: bytes) -> int:
    """Return the number, or -1 for digits caught half-written: a change like any other."""
    return int(digits) if digits.isdigit() else -1
