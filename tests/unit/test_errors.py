"""Errors: one tree, the built-in bases that callers expect, picklable with their fields, texts that help."""

from __future__ import annotations

import copy
import pickle

import pytest

from acache import _errors
from acache._errors import (
    AcacheError,
    CacheClosedError,
    CompileError,
    CompilerCrashedError,
    CompilerNotFoundError,
    CompileTimeoutError,
    CorruptEntryError,
    KeyDerivationError,
    StoreError,
)
from acache._models import CompileFailure

DIAGNOSTIC = CompileFailure(
    "diagnostic", "k.cu:3:1: error: no such type\n", 1, seconds=0.5, deterministic=True
)
COMPILE_ERRORS = [CompileError, CompileTimeoutError, CompilerCrashedError, CompilerNotFoundError]
STORE_ERRORS = [StoreError, CorruptEntryError]

ALL = [
    KeyDerivationError("options[2] is NaN"),
    *[kind(DIAGNOSTIC) for kind in COMPILE_ERRORS],
    *[kind("no space left", "/cache/v1", 28) for kind in STORE_ERRORS],
    CacheClosedError("the cache was closed"),
]


def test_the_list_above_is_complete():
    assert {type(error) for error in ALL} | {AcacheError} == {
        getattr(_errors, name) for name in _errors.__all__
    }


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_an_error_travels_with_its_fields(error, protocol):
    for twin in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)
        assert twin is not error


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_one_base_catches_all(error):
    with pytest.raises(AcacheError):
        raise error


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (KeyDerivationError, ValueError),
        (CompileTimeoutError, TimeoutError),
        (CompileTimeoutError, CompileError),
        (CompilerCrashedError, CompileError),
        (CompilerNotFoundError, CompileError),
        (CorruptEntryError, StoreError),
        (CacheClosedError, RuntimeError),
    ],
)
def test_the_bases_of_the_design(kind, base):
    assert issubclass(kind, base)


@pytest.mark.parametrize("kind", COMPILE_ERRORS)
def test_a_compile_error_says_the_compiler_s_own_words(kind):
    error = kind(DIAGNOSTIC)
    assert error.failure is DIAGNOSTIC
    assert str(error) == "the compiler refused the input (exit status 1)\nk.cu:3:1: error: no such type"


def test_a_silent_compiler_leaves_one_line():
    assert str(CompileError(CompileFailure("exit", " \n", 4))) == "the compiler failed with exit status 4"


@pytest.mark.parametrize("kind", STORE_ERRORS)
def test_a_store_error_names_the_path(kind):
    error = kind("no space left", "/cache/v1", 28)
    assert (error.message, error.path, error.errno) == ("no space left", "/cache/v1", 28)
    assert str(error) == "no space left: /cache/v1"
    assert str(kind("no space left")) == "no space left"
