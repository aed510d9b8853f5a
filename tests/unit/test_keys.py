"""Keys: injective, canonical, the same everywhere; proven by decoding what was encoded."""

from __future__ import annotations

import array
import collections
import copy
import dataclasses
import decimal
import enum
import hashlib
import io
import math
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

import acache._keys as keys
from acache._errors import KeyDerivationError
from acache._keys import Key, key, name_of

# --- An independent notion of sameness, and an independent decoder -----------------------------------------


def canon(value):
    """Spell out what counts as the same input, without a look at the encoding."""
    match value:
        case None:
            return ("none",)
        case bool():
            return ("bool", value)
        case int():
            return ("int", int(value))
        case float():
            return ("float", struct.pack(">d", value))
        case str():
            return ("str", tuple(map(ord, value)))
        case bytes() | bytearray() | memoryview():
            return ("bytes", bytes(value))
        case Key():
            return ("key", bytes(value))
        case os.PathLike():
            return ("path", tuple(map(ord, os.fspath(value))))
        case dict():
            return ("map", frozenset((canon(k), canon(v)) for k, v in value.items()))
        case set() | frozenset():
            return ("set", frozenset(canon(item) for item in value))
        case list() | tuple():
            return ("seq", tuple(canon(item) for item in value))
    raise AssertionError(value)


class Decoder:
    """Reads an encoding back; that it can be done proves that no two inputs share one."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        taken = self.data[self.at : self.at + count]
        assert len(taken) == count, "ran out of bytes"
        self.at += count
        return taken

    def count(self):
        return int.from_bytes(self.take(8), "big")

    def text(self):
        return tuple(map(ord, self.take(self.count()).decode("utf-8", "surrogatepass")))

    def value(self):
        tag = self.take(1)
        match tag:
            case b"N":
                return ("none",)
            case b"T" | b"F":
                return ("bool", tag == b"T")
            case b"i":
                return ("int", int.from_bytes(self.take(self.count()), "big", signed=True))
            case b"d":
                return ("float", self.take(8))
            case b"s":
                return ("str", self.text())
            case b"b":
                return ("bytes", self.take(self.count()))
            case b"K":
                return ("key", self.take(32))
            case b"p":
                return ("path", self.text())
            case b"m":
                return ("map", frozenset((self.value(), self.value()) for _ in range(self.count())))
            case b"e":
                return ("set", frozenset(self.value() for _ in range(self.count())))
            case b"l":
                return ("seq", tuple(self.value() for _ in range(self.count())))
        raise AssertionError(tag)


def encode(value):
    return b"".join(keys._encode(value, "x", 0))


ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=6)  # lone surrogates as well
ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.sampled_from([127, 128, -128, -129, 255, 256, 1 << 64, -(1 << 64)]),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf]),
    st.floats(allow_nan=False),
    st.sampled_from(["", "a", "1", "s", "\0", "\ud800", "\ud800\udc00", "\U00010000"]),
    ANY_TEXT,
    st.binary(max_size=6),
    st.sampled_from(["a", "b", "a/b", "."]).map(pathlib.PurePosixPath),
)
HASHABLE = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HASHABLE, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_an_encoding_can_be_read_back(value):
    decoder = Decoder(encode(value))
    assert decoder.value() == canon(value)
    assert decoder.at == len(decoder.data)


@given(VALUES, VALUES)
def test_keys_are_equal_exactly_when_inputs_are(one, other):
    assert (key(x=one) == key(x=other)) is (canon(one) == canon(other))


@given(st.dictionaries(st.sampled_from(["a", "b", "ab", ""]), ATOMS, min_size=1), st.data())
def test_labels_count_and_their_order_does_not(fields, data):
    shuffled = dict(data.draw(st.permutations(list(fields.items()))))
    assert key(**fields) == key(**shuffled)
    assert key(**fields).fields == key(**shuffled).fields
    label = data.draw(st.sampled_from(list(fields)))
    renamed = {("z" if name == label else name): value for name, value in fields.items()}
    assert key(**renamed) != key(**fields)


# --- Golden vectors: written out by hand, so that the encoding can never change unnoticed ------------------


def u64(number):
    return number.to_bytes(8, "big")


def by_hand(**encodings):
    whole = hashlib.sha256(b"acache key v1\n")
    for label in sorted(encodings):
        name = label.encode()
        whole.update(b"f" + u64(len(name)) + name)
        whole.update(hashlib.sha256(b"acache field v1\n" + encodings[label]).digest())
    return whole.hexdigest()


BY_HAND = [
    (None, b"N"),
    (True, b"T"),
    (False, b"F"),
    (0, b"i" + u64(1) + b"\x00"),
    (1, b"i" + u64(1) + b"\x01"),
    (-1, b"i" + u64(1) + b"\xff"),
    (127, b"i" + u64(1) + b"\x7f"),
    (128, b"i" + u64(2) + b"\x00\x80"),
    (1.0, b"d\x3f\xf0\0\0\0\0\0\0"),
    (-0.0, b"d\x80\0\0\0\0\0\0\0"),
    ("1", b"s" + u64(1) + b"1"),
    ("é", b"s" + u64(2) + b"\xc3\xa9"),
    (b"1", b"b" + u64(1) + b"1"),
    (pathlib.PurePosixPath("a/b"), b"p" + u64(3) + b"a/b"),
    ([], b"l" + u64(0)),
    ([1, "1"], b"l" + u64(2) + b"i" + u64(1) + b"\x01" + b"s" + u64(1) + b"1"),
    ({"b", "a"}, b"e" + u64(2) + b"s" + u64(1) + b"a" + b"s" + u64(1) + b"b"),
    ({"b": True, "a": None}, b"m" + u64(2) + b"s" + u64(1) + b"aN" + b"s" + u64(1) + b"bT"),
    (Key(b"k" * 32), b"K" + b"k" * 32),
]


@pytest.mark.parametrize(("value", "encoding"), BY_HAND, ids=lambda value: repr(value)[:30])
def test_the_encoding_by_hand(value, encoding):
    assert encode(value) == encoding
    assert key(x=value).hex == by_hand(x=encoding)
    assert key(x=value).fields == {"x": hashlib.sha256(b"acache field v1\n" + encoding).hexdigest()[:16]}


GOLDEN_SOURCE = """
from pathlib import PurePosixPath
from acache._keys import key, name_of
k = key(
    source="__global__ void k() {}", options=["-O3", "-g", b"raw", 1, 1.5, None, True], arch="sm_90",
    flags={"alpha", "beta", "gamma", "delta", 7}, defines={"B": 1, "A": "x", "C": frozenset({"p", "q", "r"})},
    path=PurePosixPath("include"),
)
print(k.hex, name_of(k, None), name_of(k, "team"))
"""
GOLDEN = [
    "cd36de895fcb13e05af8a6d6acf958257a04c18102e8b83ab505ddbe079d4b2e",
    "e187e475d58bec9390b5b30a24f03e4c83d8e87552b92b512fefde4a0eef9d2d",
    "8e86c7da21e9fe5a7bc532ebfd49294e33da5667d42a9017fed0f7be6366bb16",
]


def test_the_same_key_in_every_process_under_any_hash_seed():
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", GOLDEN_SOURCE],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "4294967295", "random")
    ]
    for worker in workers:
        assert worker.communicate(timeout=60)[0].split() == GOLDEN


# --- What counts as the same -------------------------------------------------------------------------------


class Level(enum.StrEnum):
    O3 = "-O3"


class Number(enum.IntEnum):
    ONE = 1


Point = collections.namedtuple("Point", "x y")


class Plain(str):
    __slots__ = ()

    def encode(self, *arguments):
        return b"a lie"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], (1, 2)),
        ([1, 2], Point(1, 2)),
        ([1, 2], collections.deque([1, 2])),
        ([1, 2], range(1, 3)),
        ([1, 2], array.array("i", [1, 2])),
        (b"ab", bytearray(b"ab")),
        (b"ab", memoryview(b"ab")),
        (b"ac", memoryview(b"abcd")[::2]),
        ({1, 2}, frozenset({2, 1})),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, types.MappingProxyType({"a": 1})),
        ({"a": 1}, collections.OrderedDict(a=1)),
        ({"a", "b"}, {"a": 1, "b": 2}.keys()),
        ("-O3", Level.O3),
        (1, Number.ONE),
        ("true", Plain("true")),
        (pathlib.PurePosixPath("a"), pathlib.PurePosixPath("./a")),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_the_same_input(one, other):
    assert key(x=one) == key(x=other)


@pytest.mark.parametrize(
    "values",
    [
        [1, 1.0, True, "1", b"1", [1], {1}, {1: None}, None, 0, False, -1, "", b"", [], {}, set(), [[]]],
        [0.0, -0.0, math.inf, -math.inf, 5e-324],
        ["a", "A", "é", "e\u0301", "\udcff", "\xff", "\0", ""],
        [["a", "b"], ["ab"], ["a", "b", ""], [["a"], "b"], ["b", "a"], {"a": "b"}],
        [pathlib.PurePosixPath("a"), "a", b"a", key(a="a"), bytes(key(a="a")), key(a="a").hex],
        [{"a": {"b": 1}}, {"a": 1, "b": 1}, {"a": "b", "b": 1}, {"b": {"a": 1}}],
    ],
    ids=lambda values: repr(values[0]),
)
def test_all_different_inputs(values):
    made = [key(x=value) for value in values]
    assert len(set(made)) == len(values)
    assert len({next(iter(each.fields.values())) for each in made}) == len(values)


def test_fields_do_not_run_into_each_other():
    assert key(a="b", c="d") != key(a="bc", d="")
    assert key(ab=1) != key(a=1, b=1)
    assert key(a=None) != key(a=None, b=None)


def test_any_label_will_do():
    assert len({key(**{label: 1}) for label in ("self", "cls", "fields", "", "a b", "\ud800")}) == 6


def test_a_path_is_spelled_not_read(tmp_path):
    file = tmp_path / "kernel.cu"
    before = key(source=file)
    file.write_text("changed")
    assert key(source=file) == before != key(source=str(file))


def test_a_path_of_bytes_is_the_path():
    class BytesPath:
        def __fspath__(self):
            return b"a/\xff"

    assert key(x=BytesPath()) == key(x=pathlib.PurePosixPath("a/\udcff"))


def test_large_numbers_have_a_key():
    assert key(x=10**10_000) != key(x=10**10_000 + 1)  # beyond what int() turns into text


# --- What has no key ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Options:
    level: int = 3


class Colour(enum.Enum):
    RED = object()


class Tensor:
    dtype, shape = "float32", (2,)

    def tobytes(self):
        raise AssertionError("only its presence counts")


class Scalar(Tensor):
    shape = ()


def endless_list():
    cycle = []
    cycle.append(cycle)
    return cycle


def endless_mapping():
    cycle = {}
    cycle["self"] = [cycle]
    return cycle


def deep_list(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "place", "way_out"),
    [
        (math.nan, "options is NaN", "str that says what"),
        (["-O3", "-g", math.nan], "options[2] is NaN", "str that says what"),
        ({"a": [1, object()]}, "options['a'][1] is of type object", "str, bytes, number"),
        ({("a", 1j): 1}, "options.keys()[1] is of type complex", "str, bytes, number"),
        ({1j}, "options{} is of type complex", "str, bytes, number"),
        ({"x" * 100: 1j}, "options['xxxxx", "str, bytes, number"),
        (decimal.Decimal(1), "options is of type Decimal", "str, bytes, number"),
        (Options(), "options is of type Options", "dataclasses.asdict"),
        (Options, "options is of type type", "source text"),
        (len, "options is of type builtin_function_or_method", "source text"),
        (Colour.RED, "options is of type Colour", ".value or .name"),
        (Tensor(), "options is of type Tensor", ".tobytes(), .shape and str(.dtype)"),
        (Scalar(), "options is of type Scalar", ".item()"),
        (io.BytesIO(b"x"), "options is of type BytesIO", "its content, or its path"),
        (iter([1]), "options is of type list_iterator", "a list of its elements"),
        (memoryview(array.array("i", [1])), "options is a memoryview of 'i'", "cast('B')"),
        (memoryview(bytes(4)).cast("B", (2, 2)), "options is a memoryview", "cast('B')"),
        (endless_list(), "options[0][0][0]", "at most 64 levels"),
        (endless_mapping(), "options['self'][0]['self']", "at most 64 levels"),
        (deep_list(65), "options[0][0][0]", "nested too deeply"),
        (collections.UserString("ab"), "options[0][0]", "nested too deeply"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_no_canonical_form(value, place, way_out):
    with pytest.raises(KeyDerivationError) as caught:
        key(source="x", options=value)
    assert str(caught.value).startswith(place)
    assert way_out in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_the_deepest_that_has_a_key():
    assert key(x=deep_list(64)) != key(x=deep_list(63))


def test_a_cycle_of_many_branches_ends_at_once():
    cycle = []
    cycle += [cycle, cycle, cycle]
    with pytest.raises(KeyDerivationError, match="contains itself"):
        key(x=cycle)


def test_two_keys_of_one_form_are_refused():
    class Spelled:
        def __fspath__(self):
            return "a"

    with pytest.raises(KeyDerivationError, match=r"^x holds two elements with the same canonical form"):
        key(x={pathlib.PurePosixPath("a"), Spelled()})
    with pytest.raises(KeyDerivationError, match=r"^x holds two keys with the same canonical form"):
        key(x={pathlib.PurePosixPath("a"): 1, Spelled(): 2})


def test_no_fields_no_key():
    with pytest.raises(KeyDerivationError, match="without fields"):
        key()


# --- The value itself --------------------------------------------------------------------------------------


def test_hex_and_bytes_and_back():
    made = key(source="x")
    assert len(made.hex) == 64
    assert bytes(made) == bytes.fromhex(made.hex)
    assert Key.from_hex(made.hex) == made == Key(bytes(made))
    assert str(made) == made.hex
    assert eval(repr(made)) == made


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ab",
        "A" * 64,
        "g" * 64,
        "a" * 63,
        "a" * 65,
        " " + "a" * 63,
        "a" * 62 + "\n\n",
        b"a" * 64,
        None,
        "٣" * 64,
    ],
)
def test_from_hex_says_what_it_wants(text):
    with pytest.raises(ValueError, match="64 lowercase hex digits"):
        Key.from_hex(text)


@pytest.mark.parametrize("digest", [b"", b"x" * 31, b"x" * 33, "x" * 32, bytearray(32)])
def test_a_digest_has_32_bytes(digest):
    with pytest.raises(ValueError, match="32 bytes"):
        Key(digest)


def test_fields_answer_why_it_missed():
    one, other = key(source="x", options=[1], arch="a"), key(source="x", options=[2], arch="a")
    assert list(one.fields) == ["arch", "options", "source"]
    assert [label for label in one.fields if one.fields[label] != other.fields[label]] == ["options"]
    assert Key.from_hex(one.hex).fields == {}


def test_fields_are_no_part_of_identity():
    made = key(source="x")
    bare = Key.from_hex(made.hex)
    assert made == bare
    assert hash(made) == hash(bare)
    assert {made: 1}[bare] == 1
    assert made <= bare
    assert made >= bare


def test_keys_are_ordered_by_digest():
    made = [key(n=number) for number in range(20)]
    assert [bytes(each) for each in sorted(made)] == sorted(bytes(each) for each in made)
    with pytest.raises(TypeError):
        sorted([made[0], made[0].hex])
    assert made[0] != made[0].hex


def test_keys_cannot_be_changed():
    made = key(source="x")
    for change in (
        lambda: setattr(made, "_digest", b""),
        lambda: setattr(made, "other", 1),
        lambda: delattr(made, "_digest"),
    ):
        with pytest.raises(AttributeError, match="cannot be changed"):
            change()
    with pytest.raises(TypeError):
        made.fields["source"] = "other"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_keys_travel(protocol):
    made = key(source="x", options=[1])
    for twin in (pickle.loads(pickle.dumps(made, protocol)), copy.copy(made), copy.deepcopy(made)):
        assert twin == made
        assert twin.fields == made.fields


# --- Names -------------------------------------------------------------------------------------------------


def test_a_namespace_is_a_world_of_its_own():
    made, other = key(n=1), key(n=2)
    names = {name_of(each, space) for each in (made, other) for space in (None, "", "a", "b", "\ud800")}
    assert len(names) == 10
    assert made.hex not in names
    assert all(set(name) <= set("0123456789abcdef") and len(name) == 64 for name in names)


def test_a_name_by_hand():
    made = key(n=1)
    assert name_of(made, None) == hashlib.sha256(b"acache name v1\nn" + bytes(made)).hexdigest()
    named = b"acache name v1\ns" + u64(4) + b"team" + bytes(made)
    assert name_of(made, "team") == hashlib.sha256(named).hexdigest()
