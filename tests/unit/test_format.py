"""The bytes of version 1: round trips, golden bytes, and everything that damage and malice can do to them."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from acache._format import (
    ALIGNMENT,
    BEAT_BYTES,
    HEADER_LIMIT,
    PREAMBLE,
    RECORD_BYTES,
    Caption,
    Entry,
    FormatError,
    Kind,
    Record,
    UnknownVersionError,
    clip,
    decode_entry,
    decode_record,
    encode_artifact,
    encode_beat,
    encode_cheap,
    encode_failure,
    encode_record,
    header_span,
)
from acache._models import Artifact, CompileFailure
from tests.sim.values import bytes_of

KEY = "9e" * 32
NONCE = "0123456789abcdef" * 2
CAPTION = Caption(
    key=KEY, namespace="space", nonce=NONCE, label="softmax", fields={"arch": "a1"}, created=12.5
)
FAILURE = CompileFailure("diagnostic", "k.cu:1: error: ß", exit_status=2, seconds=1.5, deterministic=True)


def read(data: bytes, **changes: Any) -> Entry:
    return decode_entry(data, **{"key": KEY, "namespace": "space", **changes})


def forged(header: object, *, kind: int = 1, version: int = 1, parts: bytes = b"") -> bytes:
    """Return a file whose checks all hold, whatever its header says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = text + bytes(-(PREAMBLE.size + len(text)) % ALIGNMENT) + parts if parts else text
    digest = xxhash.xxh3_128_digest(text)
    stem = struct.pack(
        "<8sHBxI16sQ", b"\x89acache\n", version, kind, len(text), digest, PREAMBLE.size + len(body)
    )
    return stem + xxhash.xxh3_64_digest(stem) + bytes(16) + body


def header_of(data: bytes) -> dict[str, Any]:
    header = json.loads(data[PREAMBLE.size : header_span(data[:64])])
    assert isinstance(header, dict)
    return header


# --- entries ---------------------------------------------------------------------------------------------


def test_an_artifact_comes_back_with_all_that_was_said_of_it():
    artifact = Artifact({"cubin": b"\x00\x01", "empty": b"", "ptx": bytes(5000)}, {"log": "warn", "regs": 32})
    data = bytes_of(encode_artifact(CAPTION, artifact, 2.5))
    entry = read(data)
    assert entry.artifact() == artifact
    assert list(entry.parts) == ["cubin", "empty", "ptx"]
    assert (entry.kind, entry.identity, entry.seconds) == (Kind.ARTIFACT, NONCE, 2.5)
    assert (entry.label, entry.size) == ("softmax", len(data))
    assert entry.metadata == {"log": "warn", "regs": 32}
    assert entry.header["fields"] == {"arch": "a1"}
    assert entry.header["created"] == 12.5
    assert entry.header["signature"] is None


def test_parts_are_aligned_and_not_copied():
    artifact = Artifact({"a": b"x" * 10, "b": b"y" * 5000, "c": b"z"})
    data = bytes_of(encode_artifact(CAPTION, artifact, 1.0))
    entry = read(data)
    for name in artifact.parts:
        assert entry.parts[name].obj is data
    assert data.index(b"x" * 10) % ALIGNMENT == 0
    assert data.index(b"y" * 5000) % ALIGNMENT == 0
    assert data.index(b"y" * 5000 + bytes(-5000 % ALIGNMENT) + b"z")


def test_parts_of_other_element_types_are_bytes_on_disk():
    artifact = Artifact({"words": memoryview(b"abcdefgh").cast("I")})
    assert bytes(read(bytes_of(encode_artifact(CAPTION, artifact, 1.0))).parts["words"]) == b"abcdefgh"


def test_a_cheap_mark_has_a_time_and_no_parts():
    entry = read(bytes_of(encode_cheap(CAPTION, 0.25)))
    assert (entry.kind, entry.seconds, dict(entry.parts)) == (Kind.CHEAP, 0.25, {})


def test_a_failure_comes_back_whole():
    entry = read(bytes_of(encode_failure(CAPTION, FAILURE, "f" * 32)))
    assert (entry.kind, entry.failure, entry.holder) == (Kind.FAILURE, FAILURE, "f" * 32)


def test_a_compilers_text_is_bounded_with_its_head_and_tail():
    text = "first" + "x" * 200_000 + "last"
    kept = read(bytes_of(encode_failure(CAPTION, CompileFailure("exit", text), "f" * 32))).failure.text
    assert len(kept) < 66_000
    assert kept.startswith("first")
    assert kept.endswith("last")
    assert "134473 characters left out" in kept
    assert clip("short") == "short"


def test_metadata_that_no_header_holds_is_refused():
    with pytest.raises(ValueError, match="metadata and log take"):
        encode_artifact(CAPTION, Artifact({"a": b""}, {"log": "x" * HEADER_LIMIT}), 1.0)


def test_another_key_or_namespace_is_another_entry():
    data = bytes_of(encode_cheap(CAPTION, 0.25))
    for other in ({"key": "00" * 32}, {"namespace": None}, {"namespace": "other"}):
        with pytest.raises(FormatError, match="another key"):
            read(data, **other)
    assert read(data, key=None, namespace=None).identity == NONCE


def test_the_header_alone_can_be_read_from_a_files_beginning():
    data = bytes_of(encode_artifact(CAPTION, Artifact.of(bytes(10_000)), 2.5))
    span = header_span(data[:64])
    entry = decode_entry(data[: span + 7], key=KEY, namespace="space", parts=False)
    assert (entry.seconds, entry.size, dict(entry.parts)) == (2.5, len(data), {})
    with pytest.raises(FormatError):
        decode_entry(data[: span - 1], key=KEY, namespace="space", parts=False)


ENTRIES = {
    "artifact": bytes_of(
        encode_artifact(CAPTION, Artifact({"a": b"some", "b": b"thing"}, {"log": "l", "n": 1}), 2.5)
    ),
    "cheap": bytes_of(encode_cheap(CAPTION, 0.25)),
    "failure": bytes_of(encode_failure(CAPTION, FAILURE, "f" * 32)),
}


def same(entry: Entry, other: Entry) -> bool:
    return (
        entry.kind == other.kind and entry.header == other.header and dict(entry.parts) == dict(other.parts)
    )


@pytest.mark.parametrize("name", ENTRIES)
def test_every_flipped_byte_is_found_or_harmless(name: str):
    data = ENTRIES[name]
    whole, found = read(data), 0
    # The padding between parts is not checked: thousands of zeros that nobody reads.
    where = [at for at in range(len(data)) if at < 1024 or data[at]]
    for at in where:
        for mask in (0x01, 0x80, 0xFF):
            spoilt = bytearray(data)
            spoilt[at] ^= mask
            try:
                entry = read(bytes(spoilt))
            except UnknownVersionError:
                pytest.fail(f"byte {at} makes a torn entry look like one of the future, never replaced")
            except FormatError:
                found += 1
            else:
                assert same(entry, whole)
    assert found > 3 * (header_span(data[:64]) - 24)


@pytest.mark.parametrize("name", ENTRIES)
def test_every_truncation_is_found(name: str):
    data = ENTRIES[name]
    for length in [*range(min(len(data), 1500)), len(data) // 2, len(data) - 1]:
        with pytest.raises(FormatError):
            read(data[:length])
    with pytest.raises(FormatError):
        read(data + b"\0")


def test_a_later_version_is_told_from_a_torn_file():
    later = forged({"whatever": 1}, version=2)
    for data in (later, later[: PREAMBLE.size]):
        with pytest.raises(UnknownVersionError):
            read(data)
    spoilt = bytearray(later)
    spoilt[9] ^= 0x10
    with pytest.raises(FormatError) as caught:
        read(bytes(spoilt))
    assert not isinstance(caught.value, UnknownVersionError)


def test_unknown_header_fields_are_ignored():
    header = header_of(ENTRIES["cheap"])
    entry = read(forged({**header, "novelty": [1, 2, 3]}, kind=Kind.CHEAP))
    assert entry.seconds == 0.25


def test_a_forged_header_cannot_hurt():
    """Each of these passes every checksum, and each would break a later reader."""
    artifact = header_of(ENTRIES["artifact"])
    failure = header_of(ENTRIES["failure"])
    part = ["a", 0, 4, xxhash.xxh3_128_hexdigest(b"some")]
    assert read(forged({**artifact, "parts": [part]}, parts=b"some")).artifact().data == b"some"
    huge = "1" + "0" * 400
    cases: list[tuple[object, int]] = [
        ([1, 2], 1),
        ("text", 1),
        (b"\xff\xfe", 1),
        (b"[" * 100_000, 1),
        ({}, 1),
        ({**artifact, "parts": []}, 1),
        ({**artifact, "parts": "abcd"}, 1),
        ({**artifact, "parts": [["a", 0, 4]]}, 1),
        ({**artifact, "parts": [["a", -4096, 4, part[3]]]}, 1),
        ({**artifact, "parts": [["a", 1 << 70, 4, part[3]]]}, 1),
        ({**artifact, "parts": [["a", 0, 1 << 70, part[3]]]}, 1),
        ({**artifact, "parts": [["a", 0, "4", part[3]]]}, 1),
        ({**artifact, "parts": [[7, 0, 4, part[3]]]}, 1),
        ({**artifact, "parts": [[["a"], 0, 4, part[3]]]}, 1),
        ({**artifact, "parts": [part], "metadata": 7}, 1),
        (json.dumps({**artifact, "parts": [part]}).replace('"n": 1', '"n": NaN').encode(), 1),
        ({**artifact, "parts": [part], "seconds": "long"}, 1),
        (json.dumps({**artifact, "parts": [part]}).replace("2.5", huge).encode(), 1),
        ({**artifact, "parts": [part], "nonce": 7}, 1),
        ({**artifact, "nonce": None}, 2),
        ({**failure, "failure": {"reason": "exit", "surprise": 1}}, 3),
        ({**failure, "failure": "no"}, 3),
        ({key: value for key, value in failure.items() if key != "holder"}, 3),
        (artifact, 9),
        (artifact, 0),
    ]
    for header, kind in cases:
        with pytest.raises(FormatError):
            read(forged(header, kind=kind, parts=b"some"))


def test_a_header_beyond_the_limit_is_not_even_looked_at():
    stem = struct.pack("<8sHBxI16sQ", b"\x89acache\n", 1, 1, HEADER_LIMIT + 1, bytes(16), 1 << 40)
    with pytest.raises(FormatError, match="too long"):
        header_span(stem + xxhash.xxh3_64_digest(stem) + bytes(16))


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    names=st.lists(st.text(max_size=8), min_size=1, max_size=4, unique=True),
    blobs=st.lists(st.binary(max_size=200), min_size=4, max_size=4),
    metadata=st.dictionaries(st.text(max_size=6), JSONS, max_size=3),
    seconds=st.floats(0, 1e6),
    label=st.none() | st.text(max_size=10),
    namespace=st.none() | st.text(max_size=10),
)
def test_any_artifact_comes_back(
    names: list[str],
    blobs: list[bytes],
    metadata: dict[str, Any],
    seconds: float,
    label: str | None,
    namespace: str | None,
):
    metadata.pop("log", None)
    try:
        artifact = Artifact(dict(zip(names, blobs, strict=False)), metadata)
    except TypeError:
        return  # an infinity is not JSON
    caption = Caption(KEY, namespace, NONCE, label=label)
    entry = decode_entry(bytes_of(encode_artifact(caption, artifact, seconds)), key=KEY, namespace=namespace)
    assert entry.artifact() == artifact
    assert (entry.label, entry.seconds) == (label, seconds)


@given(
    header=JSONS | st.dictionaries(st.sampled_from(sorted(header_of(ENTRIES["artifact"]))), JSONS),
    base=st.sampled_from(sorted(ENTRIES)),
    kind=st.integers(0, 4),
    parts=st.binary(max_size=20),
)
def test_any_header_is_an_entry_or_a_format_error(header: Any, base: str, kind: int, parts: bytes):
    if isinstance(header, dict):
        header = {**header_of(ENTRIES[base]), **header, "key": KEY, "namespace": "space"}
    try:
        entry = read(forged(header, kind=kind, parts=parts))
    except FormatError:
        return
    assert isinstance(entry.identity, str)
    _ = entry.seconds, entry.label, entry.metadata
    if entry.kind is Kind.ARTIFACT:
        assert entry.artifact().size >= 0
    if entry.kind is Kind.FAILURE:
        assert isinstance(entry.holder, str)
        assert entry.failure.summary


@given(st.binary(max_size=200))
def test_any_bytes_are_an_entry_or_a_format_error(data: bytes):
    for start in (b"", b"\x89acache\n", ENTRIES["cheap"][:40]):
        with pytest.raises(FormatError):
            read(start + data)


# --- records ---------------------------------------------------------------------------------------------

TAIL = {
    "boot_id": "b" * 36,
    "pidns": 4026531836,
    "timens": 4026531834,
    "pid": 4194304,
    "starttime": 1 << 40,
    "host": "node-1",
    "usual_ms": 2500,
    "label": "softmax",
}
RECORD = Record(NONCE, ttl_ms=15_000, interval_ms=2_000, counter=7, progress=1234, hedge=True, tail=TAIL)
SLOT = "stem.lease"


def test_a_record_comes_back():
    data = encode_record(RECORD)
    assert len(data) == RECORD_BYTES
    assert decode_record(data, SLOT) == RECORD
    assert RECORD.usual == 2.5
    assert RECORD.age == 14.0
    assert decode_record(encode_record(Record(NONCE, 1, 1, closed=True)), SLOT).closed


def test_a_beat_rewrites_the_first_forty_bytes_and_nothing_else_depends_on_them():
    data = encode_record(RECORD)
    beat = encode_beat(8, 5678)
    assert len(beat) == BEAT_BYTES
    record = decode_record(beat + data[BEAT_BYTES:], SLOT)
    assert (record.counter, record.progress) == (8, 5678)
    assert (record.nonce, record.torn, record.tail) == (NONCE, False, TAIL)


def test_digits_caught_half_written_are_a_change_and_not_a_torn_record():
    record = decode_record(b"junk" * 10 + encode_record(RECORD)[BEAT_BYTES:], SLOT)
    assert (record.torn, record.counter, record.progress, record.age) == (False, -1, -1, 0.0)


def test_label_then_host_give_way_when_the_tail_is_too_long():
    long = {**TAIL, "label": "l" * 300}
    record = decode_record(encode_record(Record(NONCE, 1, 1, tail=long)), SLOT)
    assert record.tail == {name: value for name, value in TAIL.items() if name != "label"}
    longer = {**long, "host": "h" * 300}
    record = decode_record(encode_record(Record(NONCE, 1, 1, tail=longer)), SLOT)
    assert record.tail == {name: value for name, value in TAIL.items() if name not in ("label", "host")}


def test_times_that_no_field_holds_are_the_longest_that_it_does():
    data = encode_record(Record(NONCE, ttl_ms=10**15, interval_ms=10**14))
    record = decode_record(data, SLOT)
    assert (len(data), record.torn, record.ttl_ms, record.interval_ms) == (512, False, 10**10 - 1, 10**10 - 1)


def test_what_is_not_known_is_left_out():
    record = decode_record(encode_record(Record(NONCE, 1, 1, tail={"pid": 7, "host": None})), SLOT)
    assert record.tail == {"pid": 7}
    assert record.usual is None


def test_every_truncation_is_torn_under_the_name_of_its_slot():
    data = encode_record(RECORD)
    for length in [*range(RECORD_BYTES), RECORD_BYTES + 1]:
        record = decode_record((data + b"\n")[:length] if length != 512 else b"", SLOT)
        assert record.torn
        assert record.nonce == decode_record(b"", SLOT).nonce
        assert record.nonce != decode_record(b"", f"{SLOT}.{record.nonce}").nonce
        assert len(record.nonce) == 32


def test_every_flipped_byte_of_the_immutable_part_is_torn():
    data = encode_record(RECORD)
    for at in range(BEAT_BYTES, RECORD_BYTES):
        for mask in (0x01, 0x80, 0xFF):
            spoilt = bytearray(data)
            spoilt[at] ^= mask
            assert decode_record(bytes(spoilt), SLOT).torn, at


def test_every_flipped_byte_of_the_digits_leaves_the_holder_known():
    data = encode_record(RECORD)
    for at in range(BEAT_BYTES):
        spoilt = bytearray(data)
        spoilt[at] ^= 0x41
        assert decode_record(bytes(spoilt), SLOT).nonce == NONCE


def resealed(data: bytes) -> bytes:
    check = xxhash.xxh3_128_hexdigest(data[40:106] + data[138:]).encode()
    return data[:106] + check + data[138:]


def test_a_later_version_is_judged_by_its_prefix():
    data = encode_record(RECORD)
    later = resealed(data[:48] + b"0002" + data[52:138] + b"\x00 another tail \xff".ljust(373) + b"\n")
    record = decode_record(later, SLOT)
    assert (record.nonce, record.ttl_ms, record.interval_ms) == (NONCE, 15_000, 2_000)
    assert (record.counter, record.hedge, record.torn, record.tail) == (7, True, False, {})


@pytest.mark.parametrize("nonce", [b"../" + b"a" * 29, b"A" * 32, b" " * 32, b"\n" * 32])
def test_a_nonce_that_would_make_a_strange_path_is_torn(nonce: bytes):
    data = encode_record(RECORD)
    assert decode_record(resealed(data[:52] + nonce + data[84:]), SLOT).torn


@given(st.binary(max_size=600))
def test_any_bytes_are_a_record(data: bytes):
    record = decode_record(data, SLOT)
    assert record.torn
    whole = resealed(encode_record(RECORD)[:138] + data[:373].ljust(373) + b"\n")
    record = decode_record(whole, SLOT)
    assert (record.nonce, record.torn) == (NONCE, False)
    assert isinstance(record.tail, dict)


# --- golden bytes: what version 1 is, for ever -------------------------------------------------------------

GOLDEN_ARTIFACT = Artifact({"data": b"\x7fELF", "log": b"ok"}, {"log": "warning", "regs": 32})
GOLDEN = {
    "artifact": (
        "896163616368650a01000100730100003a5d8ec1de18697af761f2506e882a2a022000000000000005b8f2e14d2439be"
        "000000000000000000000000000000007b226b6579223a22396539653965396539653965396539653965396539653965"
        "39653965396539653965396539653965396539653965396539653965396539653965396539653965222c226e616d6573"
        "70616365223a227370616365222c226e6f6e6365223a2230313233343536373839616263646566303132333435363738"
        "39616263646566222c226c6162656c223a22736f66746d6178222c226669656c6473223a7b2261726368223a22613122"
        "7d2c2263726561746564223a31322e352c227369676e6174757265223a6e756c6c2c227365636f6e6473223a322e352c"
        "226c6f67223a227761726e696e67222c226d65746164617461223a7b2272656773223a33327d2c227061727473223a5b"
        "5b2264617461222c302c342c223638373139643463643839373136343734313537326333376132633836326262225d2c"
        "5b226c6f67222c343039362c322c22373037646135343663613933343963373338616634636665643235613832323222"
        "5d5d7d.........................................................000000000000000000000000007f454c4"
        "6...............................................................00000000000000000000000000000000"
        "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000006f6b"
    ),
    "cheap": (
        "896163616368650a01000200e1000000c9547d30b7a9c3df8333631f114ba4822101000000000000502fae679c914e37"
        "000000000000000000000000000000007b226b6579223a22396539653965396539653965396539653965396539653965"
        "39653965396539653965396539653965396539653965396539653965396539653965396539653965222c226e616d6573"
        "70616365223a227370616365222c226e6f6e6365223a2230313233343536373839616263646566303132333435363738"
        "39616263646566222c226c6162656c223a22736f66746d6178222c226669656c6473223a7b2261726368223a22613122"
        "7d2c2263726561746564223a31322e352c227369676e6174757265223a6e756c6c2c227365636f6e6473223a302e3235"
        "7d"
    ),
    "failure": (
        "896163616368650a010003008001000007c173b1327cbbcff701f8a07ac04b4fc001000000000000447631d9e64da1e4"
        "000000000000000000000000000000007b226b6579223a22396539653965396539653965396539653965396539653965"
        "39653965396539653965396539653965396539653965396539653965396539653965396539653965222c226e616d6573"
        "70616365223a227370616365222c226e6f6e6365223a2230313233343536373839616263646566303132333435363738"
        "39616263646566222c226c6162656c223a22736f66746d6178222c226669656c6473223a7b2261726368223a22613122"
        "7d2c2263726561746564223a31322e352c227369676e6174757265223a6e756c6c2c22686f6c646572223a2266666666"
        "66666666666666666666666666666666666666666666666666666666222c226661696c757265223a7b22726561736f6e"
        "223a22646961676e6f73746963222c2274657874223a226b2e63753a313a206572726f723a205c7530306466222c2265"
        "7869745f737461747573223a322c227369676e616c223a6e756c6c2c227365636f6e6473223a312e352c226465746572"
        "6d696e6973746963223a747275657d7d"
    ),
    "record": (
        "303030303030303030303030303030303030303730303030303030303030303030303030313233346163616368656c6b"
        "303030313031323334353637383961626364656630313233343536373839616263646566303030303031353030303030"
        "3030303032303030303266316435653531363864353336383338636361323263343139366634326166397b22626f6f74"
        "5f6964223a22626262626262626262626262626262626262626262626262626262626262626262626262222c22706964"
        "6e73223a343032363533313833362c2274696d656e73223a343032363533313833342c22706964223a34313934333034"
        "2c22737461727474696d65223a313039393531313632373737362c22686f7374223a226e6f64652d31222c2275737561"
        "6c5f6d73223a323530302c226c6162656c223a22736f66746d6178227d20202020202020202020202020202020202020"
        "202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020"
        "202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020"
        "202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020"
        "202020202020202020202020202020202020202020202020202020202020200a"
    ),
}


def golden_now() -> dict[str, str]:
    artifact = encode_artifact(CAPTION, GOLDEN_ARTIFACT, 2.5)
    # Between the parts stand zeros; only how many is kept here.
    whole = bytes_of(artifact)
    return {
        "artifact": whole.rstrip(b"\0").hex().replace("00" * 64, "."),
        "cheap": bytes_of(encode_cheap(CAPTION, 0.25)).hex(),
        "failure": bytes_of(encode_failure(CAPTION, FAILURE, "f" * 32)).hex(),
        "record": encode_record(RECORD).hex(),
    }


def test_the_bytes_of_version_1_do_not_drift():
    assert golden_now() == GOLDEN


def test_golden_bytes_are_still_read():
    artifact = bytes.fromhex(GOLDEN["artifact"].replace(".", "00" * 64))
    assert read(artifact).artifact() == GOLDEN_ARTIFACT
    assert read(bytes.fromhex(GOLDEN["cheap"])).seconds == 0.25
    assert read(bytes.fromhex(GOLDEN["failure"])).failure == FAILURE
    assert decode_record(bytes.fromhex(GOLDEN["record"]), SLOT) == RECORD
