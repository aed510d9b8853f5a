"""The public surface: what there is, that it says so, and that the documents know it."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import acache
import acache.compilers
import acache.events

ROOT = Path(__file__).parents[2]
MODULES = [acache, acache.compilers, acache.events]
NAMES = [(module, name) for module in MODULES for name in module.__all__ if not name.startswith("_")]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{m.__name__}.{n}" for m, n in NAMES])
def test_every_public_name_says_what_it_is(module, name):
    value = getattr(module, name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return
    assert inspect.getdoc(value)
    if module is acache:
        assert value.__module__ == "acache"
    if inspect.isclass(value):
        for member, function in inspect.getmembers(value, inspect.isfunction):
            if not member.startswith("_") and function.__qualname__.startswith(value.__qualname__):
                assert inspect.getdoc(function), f"{name}.{member}"


def test_all_names_are_listed_and_nothing_else_shows():
    assert set(acache.__all__) <= set(dir(acache))
    with pytest.raises(AttributeError, match="no attribute 'Nvrtc'"):
        _ = acache.Nvrtc


@pytest.mark.parametrize("kind", [acache.Settings, acache.Stats], ids=["Settings", "Stats"])
def test_the_reference_names_every_field(kind):
    reference = (ROOT / "docs/reference.md").read_text()
    fields = [field.name for field in dataclasses.fields(kind) if not field.name.startswith("_")]
    assert [name for name in fields if f"`{name}`" not in reference] == []


def test_the_reference_names_every_call_of_a_cache():
    reference = (ROOT / "docs/reference.md").read_text()
    calls = [name for name, _ in inspect.getmembers(acache.Cache, inspect.isfunction) if name[0] != "_"]
    assert [name for name in calls if f"{name}(" not in reference] == []


def test_importing_it_loads_little_and_touches_no_disk(tmp_path):
    code = (
        "import sys, acache; heavy = ('acache.', 'anyio', 'platformdirs', 'xxhash'); "
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"HOME": "/nonexistent", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []
