"""Settings: defaults of the design, what was passed is remembered, variables fill the rest, messages help."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acache._settings import Settings, variable_of

MIB = 1024 * 1024

DEFAULTS = {
    "mode": "on",
    "max_wait": 600,
    "hedge_after": 30,
    "compile_timeout": 600,
    "kill_grace": 1,
    "heartbeat_interval": 2,
    "lease_ttl": 15,
    "poll_min": 0.02,
    "poll_max": 1,
    "max_bytes": 2048 * MIB,
    "max_entries": None,
    "max_entry_bytes": 256 * MIB,
    "recency_grain": 60,
    "memory_bytes": 256 * MIB,
    "min_compile_seconds": 0,
    "failure_ttl": 60,
    "coordinate": True,
    "on_abandon": "finish",
    "read_only_directories": (),
    "trust": "user",
    "record_stats": None,
    "durable": False,
    "strict": False,
}
OTHERS = {
    "mode": "readonly",
    "max_wait": 30.5,
    "hedge_after": None,
    "compile_timeout": 5.0,
    "kill_grace": 0.0,
    "heartbeat_interval": 0.5,
    "lease_ttl": 20.0,
    "poll_min": 0.01,
    "poll_max": 2.0,
    "max_bytes": 5,
    "max_entries": 7,
    "max_entry_bytes": 1,
    "recency_grain": 0.0,
    "memory_bytes": 0,
    "min_compile_seconds": 1.0,
    "failure_ttl": 0.0,
    "max_compiles": 3,
    "coordinate": False,
    "on_abandon": "stop",
    "read_only_directories": ("/a", "/b"),
    "trust": "any",
    "record_stats": True,
    "durable": True,
    "strict": True,
}
VARIABLES = {
    variable_of(name): os.pathsep.join(value) if isinstance(value, tuple) else str(value)
    for name, value in OTHERS.items()
}


def test_the_defaults_of_the_design():
    settings = Settings()
    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS
    public = {field.name for field in dataclasses.fields(Settings) if not field.name.startswith("_")}
    assert public == DEFAULTS.keys() | {"max_compiles"} == OTHERS.keys()
    assert settings.given == frozenset()


def test_max_compiles_is_a_number_before_and_after():
    assert Settings().max_compiles >= 1
    assert Settings().resolve({}).max_compiles == Settings().max_compiles
    assert Settings().resolve({}, usable_cores=7).max_compiles == 7
    assert Settings(max_compiles=2).resolve({}, usable_cores=7).max_compiles == 2
    assert Settings().resolve({"ACACHE_MAX_COMPILES": "5"}, usable_cores=7).max_compiles == 5


def test_every_field_is_described_with_its_default():
    for name in OTHERS:
        assert f"``{name}``" in Settings.__doc__


@pytest.mark.parametrize("name", OTHERS)
def test_every_field_can_be_passed(name):
    settings = Settings(**{name: OTHERS[name]})
    assert getattr(settings, name) == OTHERS[name]
    assert settings.given == {name}


def test_seconds_are_floats_whichever_number_was_passed():
    assert repr(Settings(max_wait=30).max_wait) == "30.0"


def test_every_variable_fills_its_field():
    settings = Settings.from_env(VARIABLES)
    assert {name: getattr(settings, name) for name in OTHERS} == OTHERS


def test_this_process_s_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("ACACHE_MAX_WAIT", "12")
    assert Settings.from_env().max_wait == 12
    assert Settings().resolve().max_wait == 12
    assert Settings().max_wait == 600  # nothing is read before


def test_what_is_passed_wins_even_where_it_equals_the_default():
    settings = Settings(max_wait=600, mode="on", durable=False).resolve(VARIABLES)
    assert (settings.max_wait, settings.mode, settings.durable) == (600, "on", False)
    assert settings.trust == "any"


def test_a_second_resolve_changes_nothing():
    settings = Settings(max_wait=5).resolve({"ACACHE_MODE": "off"}, usable_cores=2)
    assert settings.resolve(VARIABLES, usable_cores=9) == settings
    assert settings.given == OTHERS.keys()


def test_other_variables_are_none_of_our_business():
    assert Settings.from_env({"ACACHE_DIR": "/x", "ACACHE_NO_SUCH": "1", "MAX_WAIT": "1"}) == Settings()


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_is_not_set(text):
    assert Settings.from_env({variable_of(name): text for name in OTHERS}) == Settings()


# --- replace ----------------------------------------------------------------------------------------------


def test_replace_keeps_what_was_given_and_adds_what_is_passed():
    base = Settings(max_wait=30)
    changed = dataclasses.replace(base, hedge_after=30.0, strict=False)  # both equal the default
    assert changed.given == {"max_wait", "hedge_after", "strict"}
    assert dataclasses.replace(base).given == {"max_wait"}
    assert base.given == {"max_wait"}
    resolved = changed.resolve(VARIABLES)
    assert (resolved.max_wait, resolved.hedge_after, resolved.strict, resolved.trust) == (
        30,
        30,
        False,
        "any",
    )


@given(
    first=st.sets(st.sampled_from(sorted(OTHERS))),
    second=st.sets(st.sampled_from(sorted(OTHERS))),
    third=st.sets(st.sampled_from(sorted(OTHERS))),
)
def test_replace_of_replace(first, second, third):
    settings = Settings(**{name: OTHERS[name] for name in first})
    for names in (second, third):
        settings = dataclasses.replace(settings, **{name: OTHERS[name] for name in names})
    assert settings.given == first | second | third
    assert all(getattr(settings, name) == OTHERS[name] for name in settings.given)


def test_copies_keep_what_was_given():
    settings = Settings(max_wait=600, hedge_after=None)
    for twin in (pickle.loads(pickle.dumps(settings)), copy.copy(settings), copy.deepcopy(settings)):
        assert twin == settings
        assert twin.given == settings.given
        assert twin.resolve(VARIABLES).max_wait == 600


def test_settings_are_values():
    assert Settings(max_wait=600) == Settings()
    assert hash(Settings(max_wait=600)) == hash(Settings())
    assert Settings(max_wait=1) != Settings()
    assert "_given" not in repr(Settings())
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().max_wait = 1
    with pytest.raises(TypeError):
        Settings("on")


# --- What is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("mode", "maybe", "one of on, off, readonly, refresh"),
        ("mode", True, "one of on, off, readonly, refresh"),
        ("mode", ["on"], "one of on, off, readonly, refresh"),
        ("on_abandon", "continue", "one of finish, stop"),
        ("trust", "nobody", "one of user, group, any"),
        ("max_wait", -1, "at least 0"),
        ("max_wait", float("inf"), "at most 1e+08"),
        ("max_wait", float("nan"), "at least 0"),
        ("max_wait", 10**400, "at most 1e+08"),
        ("max_wait", None, "a number of seconds"),
        ("max_wait", "30", "a number of seconds"),
        ("max_wait", True, "a number of seconds"),
        ("hedge_after", 0, "above 0 and at most 1e+08, or None"),
        ("compile_timeout", 0, "above 0"),
        ("kill_grace", -0.1, "at least 0"),
        ("heartbeat_interval", 0, "at least 0.01"),
        ("lease_ttl", 86401, "at most 86400"),
        ("poll_min", 0, "above 0"),
        ("poll_max", 0, "above 0"),
        ("max_entry_bytes", 0, "at least 1"),
        ("max_entry_bytes", 1.0, "a whole number of bytes"),
        ("recency_grain", -1, "at least 0"),
        ("memory_bytes", -1, "at least 0"),
        ("memory_bytes", "1MiB", "a whole number of bytes"),
        ("min_compile_seconds", -1, "at least 0"),
        ("failure_ttl", -1, "at least 0"),
        ("max_compiles", 0, "a whole number, at least 1"),
        ("max_compiles", None, "a whole number, at least 1"),
        ("max_compiles", True, "a whole number, at least 1"),
        ("coordinate", 1, "True or False"),
        ("durable", "yes", "True or False"),
        ("record_stats", 1, "True or False, or None"),
        ("strict", None, "True or False"),
    ],
)
def test_a_bad_value_is_named(name, value, wanted):
    with pytest.raises(ValueError, match=re.escape(wanted)) as caught:
        Settings(**{name: value})
    assert str(caught.value).startswith(f"{name}={value!r}: must be ")
    with pytest.raises(ValueError, match=re.escape(wanted)):
        dataclasses.replace(Settings(), **{name: value})


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("mode", "maybe", "one of on, off, readonly, refresh"),
        ("max_wait", "soon", "a number of seconds"),
        ("max_wait", "none", "a number of seconds"),
        ("max_wait", "nan", "at least 0"),
        ("max_wait", "inf", "at most"),
        ("max_wait", "-1", "at least 0"),
        ("hedge_after", "never", "or None"),
        ("memory_bytes", "1.5", "64KiB, 256MiB, 2GiB"),
        ("memory_bytes", "1.5B", "64KiB, 256MiB, 2GiB"),
        ("memory_bytes", "10 MB", "64KiB, 256MiB, 2GiB"),
        ("memory_bytes", "MiB", "64KiB, 256MiB, 2GiB"),
        ("memory_bytes", "-1MiB", "64KiB, 256MiB, 2GiB"),
        ("max_compiles", "2.5", "a whole number"),
        ("max_compiles", "0", "at least 1"),
        ("strict", "maybe", "1, true, yes or on, or 0, false, no or off"),
        ("record_stats", "perhaps", "or 0, false, no or off, or none"),
    ],
)
def test_a_bad_variable_is_named(name, text, wanted):
    with pytest.raises(ValueError, match=re.escape(wanted)) as caught:
        Settings.from_env({variable_of(name): text})
    assert str(caught.value).startswith(f"{variable_of(name)}=")
    assert text in str(caught.value)


def test_a_variable_beside_a_passed_field_is_not_even_read():
    assert Settings(max_wait=1).resolve({"ACACHE_MAX_WAIT": "nonsense"}).max_wait == 1


def test_an_unknown_field_is_refused_with_the_list():
    with pytest.raises(TypeError, match="no field 'max_bites'; it has mode, max_wait, "):
        Settings(max_bites=1)
    with pytest.raises(TypeError, match="no field 'max_bites'"):
        dataclasses.replace(Settings(), max_bites=1)


# --- Rules between fields ---------------------------------------------------------------------------------


def test_the_beat_must_fit_three_times_into_the_ttl():
    with pytest.raises(ValueError, match="below a third") as caught:
        Settings(lease_ttl=3)
    text = str(caught.value)
    assert "heartbeat_interval=2 must be below a third of lease_ttl=3" in text
    assert "lower heartbeat_interval to 0.6 or raise lease_ttl to 10" in text
    assert Settings(lease_ttl=3, heartbeat_interval=0.6).lease_ttl == 3
    assert Settings(lease_ttl=10).heartbeat_interval == 2
    with pytest.raises(ValueError, match="below a third"):
        Settings(lease_ttl=6)  # exactly a third is not below
    with pytest.raises(ValueError, match="below a third"):
        dataclasses.replace(Settings(lease_ttl=30, heartbeat_interval=9), lease_ttl=20)


def test_the_message_names_the_variable_that_is_to_be_changed():
    with pytest.raises(ValueError, match="ACACHE_LEASE_TTL=3") as caught:
        Settings.from_env({"ACACHE_LEASE_TTL": "3"})
    assert "lower heartbeat_interval to 0.6 or raise ACACHE_LEASE_TTL to 10" in str(caught.value)
    with pytest.raises(
        ValueError, match=r"^ACACHE_HEARTBEAT_INTERVAL=4 must be below a third of lease_ttl=10"
    ):
        Settings(lease_ttl=10).resolve({"ACACHE_HEARTBEAT_INTERVAL": "4"})


def test_polls_are_in_order():
    with pytest.raises(ValueError, match="poll_min=2 must not be above poll_max=1; lower poll_min or raise"):
        Settings(poll_min=2)
    with pytest.raises(ValueError, match=r"ACACHE_POLL_MAX=0\.001; lower poll_min or raise ACACHE_POLL_MAX"):
        Settings.from_env({"ACACHE_POLL_MAX": "0.001"})
    assert Settings(poll_min=1).poll_max == 1


# --- Spellings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        (" 4096 ", 4096),
        ("4096B", 4096),
        ("64KiB", 64 * 1024),
        ("256 MiB", 256 * MIB),
        ("2gib", 2048 * MIB),
        ("1TiB", 1024 * 1024 * MIB),
        ("1.5GiB", 1536 * MIB),
        ("99999999999999999999", 99999999999999999999),  # beyond what a float could hold exactly
    ],
)
def test_sizes(text, size):
    assert Settings.from_env({"ACACHE_MEMORY_BYTES": text}).memory_bytes == size


@pytest.mark.parametrize(
    ("text", "value"),
    [(text, True) for text in ("1", "true", "True", "YES", "on")]
    + [(text, False) for text in ("0", "false", "False", "NO", "off")],
)
def test_switches(text, value):
    assert Settings.from_env({"ACACHE_DURABLE": text}).durable is value


@pytest.mark.parametrize("text", ["refresh", "REFRESH", " Refresh "])
def test_choices_in_any_case(text):
    assert Settings.from_env({"ACACHE_MODE": text}).mode == "refresh"


@pytest.mark.parametrize("text", ["none", "None"])
def test_none_where_a_field_allows_it(text):
    assert Settings.from_env({"ACACHE_HEDGE_AFTER": text}).hedge_after is None
