"""Settings: every knob with its unit, default, environment variable and bounds, in one frozen value."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Mode", "OnAbandon", "Settings", "Trust", "parse_size", "variable_of"]

Mode: TypeAlias = Literal["on", "off", "readonly", "refresh"]
OnAbandon: TypeAlias = Literal["finish", "stop"]
Trust: TypeAlias = Literal["user", "group", "any"]

_MIB = 1024 * 1024
_MAX_SECONDS = 1e8
"""Three years: nobody waits without a bound, and every timer of every event loop takes such a number."""
_MAX_TTL = 86400.0
"""A day: leases record their ttl in milliseconds, in ten digits, and a longer silence is nobody's plan."""


def variable_of(name: str) -> str:
    """Return the environment variable of a field: ``max_wait`` is ``ACACHE_MAX_WAIT``."""
    return f"ACACHE_{name.upper()}"


def _affinity() -> int:
    # A system call and no file: this floor does no I/O. The quota of a cgroup is counted at resolve().
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a cache behaves; times in seconds, sizes in bytes.

    A field that is not passed falls back to its environment variable ``ACACHE_<NAME>``, then to the default;
    that is looked up when the `Cache` is entered (`Settings.resolve`), so that an operator's ``ACACHE_MODE``
    works beside a program's partial settings. A field that *is* passed wins, also where it equals the
    default. `dataclasses.replace` keeps the distinction. Settings are equal when all their fields are.

    In variables, sizes may end in ``KiB``, ``MiB`` or ``GiB``; switches are 1/0, true/false, yes/no, on/off;
    ``none`` means None where a field allows it; a variable that is empty counts as not set.

    - ``mode``: ``on``; ``off`` (just compile); ``readonly``; ``refresh`` (compile and replace).
      Default ``on``.
    - ``max_wait`` (s, ≥ 0): the deadline: longest wait for someone else's compile before compiling locally.
      Default 600.
    - ``hedge_after`` (s, > 0, or None: off): a live holder whose progress stands still for this long, or who
      is over max(this, 3 × the label's usual time): one waiter starts a rival. Default 30.
    - ``compile_timeout`` (s, > 0): one compile, counted from its start, not from the queue. Default 600.
    - ``kill_grace`` (s, ≥ 0): between TERM and KILL when a compile is stopped. Default 1.
    - ``heartbeat_interval`` (s, ≥ 0.01), ``lease_ttl`` (s, at most a day): the holder's beat, and how long an
      unchanged beat means dead; the first must be below a third of the second. Defaults 2 and 15.
    - ``poll_min``, ``poll_max`` (s, > 0): bounds of the jittered backoff between looks. Defaults 0.02 and 1.
    - ``max_bytes`` (bytes, ≥ 1), ``max_entries`` (≥ 1, or None: as many as fit): what the directory may hold;
      beyond that the least recently used entries are evicted. Defaults 2 GiB and None.
    - ``max_entry_bytes`` (bytes, ≥ 1, at most ``max_bytes``): larger artifacts are not written to disk.
      Default: an eighth of ``max_bytes``.
    - ``recency_grain`` (s, ≥ 0): a hit refreshes an entry's mtime only when it is older than this (at least
      3600 on network mounts). Default 60.
    - ``memory_bytes`` (bytes, ≥ 0): what this process keeps in memory; 0: nothing. Default 256 MiB.
    - ``min_compile_seconds`` (s, ≥ 0): compiles cheaper than this are not persisted. Default 0.
    - ``failure_ttl`` (s, ≥ 0): how long a deterministic failure is remembered; 0: only within one wait.
      Default 60.
    - ``max_compiles`` (≥ 1): compiles at once in this process. Default: the usable cores; before
      `Settings.resolve` those of the affinity mask, after it with the cgroup's quota counted.
    - ``coordinate``: False: a plain cache without leases. Default True.
    - ``on_abandon``: when the last caller leaves: ``finish`` and publish, or ``stop``. Default ``finish``.
    - ``read_only_directories`` (paths; in the variable separated as in PATH): lower tiers, such as a cache
      that was baked into an image: looked at in order where the directory has nothing, never written.
      Default none.
    - ``trust``: whose entries are believed, by the owner of each file: ``user`` (me or root), ``group``,
      ``any``. Default ``user``.
    - ``record_stats``: whether a small record of what was counted is left when the cache closes, for
      ``acache stats``; None: except on network mounts. Default None.
    - ``durable``: fsync on publish. Default False.
    - ``strict``: storage faults raise. Default False.

    :raises ValueError: a value of the wrong type or out of range; the message names the field, the value and
        the way out.
    :raises TypeError: a field that does not exist.
    """

    if TYPE_CHECKING:
        _given: ClassVar[frozenset[str]]
    else:
        # The first field, for a reason: see __init__.
        _given: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    mode: Mode = "on"
    max_wait: float = 600.0
    hedge_after: float | None = 30.0
    compile_timeout: float = 600.0
    kill_grace: float = 1.0
    heartbeat_interval: float = 2.0
    lease_ttl: float = 15.0
    poll_min: float = 0.02
    poll_max: float = 1.0
    max_bytes: int = 2048 * _MIB
    max_entries: int | None = None
    max_entry_bytes: int = 256 * _MIB
    recency_grain: float = 60.0
    memory_bytes: int = 256 * _MIB
    min_compile_seconds: float = 0.0
    failure_ttl: float = 60.0
    max_compiles: int = field(default_factory=_affinity)
    coordinate: bool = True
    on_abandon: OnAbandon = "finish"
    read_only_directories: Sequence[str | os.PathLike[str]] = ()
    trust: Trust = "user"
    record_stats: bool | None = None
    durable: bool = False
    strict: bool = False

    if not TYPE_CHECKING:  # checkers see the signature that the fields give

        def __init__(self, **values: object) -> None:
            # dataclasses.replace() calls this with the caller's changes first and all other fields after
            # them, in field order. `_given` is the first field: what comes before it was passed by the
            # caller, what comes after it is carried over.
            given: set[str] = set()
            for name in values:
                if name == "_given":
                    given |= values[name]
                    break
                given.add(name)
            unknown = sorted(values.keys() - _RULES.keys() - {"_given"})
            if unknown:
                raise TypeError(f"Settings has no field {unknown[0]!r}; it has {', '.join(_RULES)}")
            object.__setattr__(self, "_given", frozenset(given))
            for each in dataclasses.fields(self)[1:]:
                derived = each.name == "max_entry_bytes" and each.name not in given
                if each.name in values and not derived:
                    value = _RULES[each.name].check(values[each.name], each.name)
                elif each.default_factory is not dataclasses.MISSING:
                    value = each.default_factory()
                elif derived:
                    value = _largest_entry(self.max_bytes)
                else:
                    value = each.default
                object.__setattr__(self, each.name, value)
            _check_together(self, str)

    @property
    def given(self) -> frozenset[str]:
        """Names of the fields that were passed, or taken from the environment."""
        return self._given

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Make settings of the environment alone (by default this process's own), and of the defaults.

        :raises ValueError: a variable that cannot be read, or is out of range.
        """
        return cls().resolve(environ)

    def resolve(
        self, environ: Mapping[str, str] | None = None, *, usable_cores: int | None = None
    ) -> Settings:
        """Return settings in which all that was not passed comes from the environment or the default.

        All fields of the result count as given, so that a second ``resolve`` changes nothing; the exception
        is ``max_compiles`` when nobody named it and ``usable_cores`` is None.

        :param environ: variables; None: this process's own.
        :param usable_cores: the default of ``max_compiles``; None: the cores of the affinity mask.
        :raises ValueError: a variable that cannot be read, or is out of range.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, object] = {name: getattr(self, name) for name in self._given}
        from_environ: set[str] = set()
        for name, rule in _RULES.items():
            text = environ.get(variable_of(name), "").strip()
            if name not in values and text:
                values[name] = rule.check(rule.parse(text, variable_of(name)), variable_of(name))
                from_environ.add(name)
        for name in _RULES.keys() - values.keys():
            if name == "max_compiles":
                if usable_cores is not None:
                    values[name] = usable_cores
            elif name != "max_entry_bytes":
                values[name] = getattr(self, name)
        values.setdefault("max_entry_bytes", _largest_entry(values["max_bytes"]))  # type: ignore[arg-type]

        def spelled(name: str) -> str:
            return variable_of(name) if name in from_environ else name

        draft = object.__new__(Settings)
        for name in _RULES:
            object.__setattr__(draft, name, values.get(name, getattr(self, name)))
        _check_together(draft, spelled)
        return Settings(**values)  # type: ignore[arg-type]  # checked one by one above


def _largest_entry(capacity: int) -> int:
    """Return the default of ``max_entry_bytes``: an entry that takes more would push out too much else."""
    return max(1, capacity // 8)


# --- What each field may hold. A rule checks a value that was passed, and parses one that stands in a
# variable; `name` is the field or the variable, whichever the reader of the message has to change.


@dataclass(frozen=True, slots=True)
class _Number:
    low: float
    high: float
    open_low: bool = False
    whole: bool = False
    size: bool = False
    optional: bool = False

    def check(self, value: object, name: str) -> int | float | None:
        if value is None and self.optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            raise ValueError(f"{name}={value!r}: must be {self._wanted()}")
        below = value <= self.low if self.open_low else value < self.low
        if below or value > self.high or math.isnan(value):
            raise ValueError(f"{name}={value!r}: must be {self._wanted()}")
        return value if self.whole else float(value)

    def parse(self, text: str, name: str) -> int | float | None:
        if self.optional and text.lower() == "none":
            return None
        try:
            if self.size:
                return parse_size(text)
            return int(text) if self.whole else float(text)
        except ValueError:
            raise ValueError(f"{name}={text!r}: must be {self._wanted()}") from None

    def _wanted(self) -> str:
        noun = "a whole number" if self.whole else "a number of seconds"
        if self.size:
            noun += " of bytes (in a variable also 64KiB, 256MiB, 2GiB)"
        bound = f"above {self.low:g}" if self.open_low else f"at least {self.low:g}"
        if not self.whole:
            bound += f" and at most {self.high:g}"
        return f"{noun}, {bound}" + (", or None" if self.optional else "")


@dataclass(frozen=True, slots=True)
class _Choice:
    choices: tuple[str, ...]

    def check(self, value: object, name: str) -> str:
        if not isinstance(value, str) or value not in self.choices:
            raise ValueError(f"{name}={value!r}: must be one of {', '.join(self.choices)}")
        return str(value)

    def parse(self, text: str, name: str) -> str:
        return text.lower()


@dataclass(frozen=True, slots=True)
class _Switch:
    optional: bool = False

    def check(self, value: object, name: str) -> bool | None:
        if value is None and self.optional:
            return None
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value!r}: must be True or False{', or None' if self.optional else ''}")
        return value

    def parse(self, text: str, name: str) -> bool | None:
        if self.optional and text.lower() == "none":
            return None
        match text.lower():
            case "1" | "true" | "yes" | "on":
                return True
            case "0" | "false" | "no" | "off":
                return False
        none = ", or none" if self.optional else ""
        raise ValueError(f"{name}={text!r}: must be 1, true, yes or on, or 0, false, no or off{none}")


@dataclass(frozen=True, slots=True)
class _Paths:
    def check(self, value: object, name: str) -> tuple[str, ...]:
        if isinstance(value, str | bytes | os.PathLike) or not isinstance(value, Iterable):
            raise ValueError(
                f"{name}={value!r}: must be a sequence of folders; one is written as [{value!r}]"
            )
        paths = tuple(os.fspath(path) if isinstance(path, os.PathLike) else path for path in value)
        for path in paths:
            if not isinstance(path, str) or not path or "\0" in path:
                raise ValueError(f"{name}: {path!r} is no folder; folders are non-empty texts or paths")
        return paths

    def parse(self, text: str, name: str) -> tuple[str, ...]:
        return tuple(path for path in text.split(os.pathsep) if path)


_SECONDS = _Number(0, _MAX_SECONDS)
_SOME_SECONDS = _Number(0, _MAX_SECONDS, open_low=True)

_RULES: Mapping[str, _Number | _Choice | _Switch | _Paths] = {
    "mode": _Choice(("on", "off", "readonly", "refresh")),
    "max_wait": _SECONDS,
    "hedge_after": _Number(0, _MAX_SECONDS, open_low=True, optional=True),
    "compile_timeout": _SOME_SECONDS,
    "kill_grace": _SECONDS,
    "heartbeat_interval": _Number(0.01, _MAX_TTL),
    "lease_ttl": _Number(0, _MAX_TTL, open_low=True),
    "poll_min": _SOME_SECONDS,
    "poll_max": _SOME_SECONDS,
    "max_bytes": _Number(1, math.inf, whole=True, size=True),
    "max_entries": _Number(1, math.inf, whole=True, optional=True),
    "max_entry_bytes": _Number(1, math.inf, whole=True, size=True),
    "recency_grain": _SECONDS,
    "memory_bytes": _Number(0, math.inf, whole=True, size=True),
    "min_compile_seconds": _SECONDS,
    "failure_ttl": _SECONDS,
    "max_compiles": _Number(1, math.inf, whole=True),
    "coordinate": _Switch(),
    "on_abandon": _Choice(("finish", "stop")),
    "read_only_directories": _Paths(),
    "trust": _Choice(("user", "group", "any")),
    "record_stats": _Switch(optional=True),
    "durable": _Switch(),
    "strict": _Switch(),
}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)?", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kib": 1024, "mib": _MIB, "gib": 1024 * _MIB, "tib": 1024 * 1024 * _MIB}


def parse_size(text: str) -> int:
    """Return the bytes of a size as people write it: ``500MiB``, ``2GiB``, ``1000``.

    :raises ValueError: it is none.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    number, factor = found[1], _UNITS[(found[2] or "").lower()]
    if "." not in number:
        return int(number) * factor
    if factor == 1:  # there is no half byte
        raise ValueError(text)
    try:
        return int(float(number) * factor)
    except OverflowError:
        raise ValueError(text) from None


def _check_together(settings: Settings, spelled: Callable[[str], str]) -> None:
    """Check the rules between fields; ``spelled`` turns a field into what its reader has to change."""
    if not settings.heartbeat_interval < settings.lease_ttl / 3:
        beat, ttl = spelled("heartbeat_interval"), spelled("lease_ttl")
        raise ValueError(
            f"{beat}={settings.heartbeat_interval:g} must be below a third of {ttl}={settings.lease_ttl:g},"
            f" or one late beat reads as a dead holder; lower {beat} to {settings.lease_ttl / 5:g} or raise"
            f" {ttl} to {settings.heartbeat_interval * 5:g}"
        )
    if settings.max_entry_bytes > settings.max_bytes:
        entry, whole = spelled("max_entry_bytes"), spelled("max_bytes")
        raise ValueError(
            f"{entry}={settings.max_entry_bytes} must not be above {whole}={settings.max_bytes};"
            f" lower {entry} or raise {whole}"
        )
    if settings.poll_min > settings.poll_max:
        low, high = spelled("poll_min"), spelled("poll_max")
        raise ValueError(
            f"{low}={settings.poll_min:g} must not be above {high}={settings.poll_max:g};"
            f" lower {low} or raise {high}"
        )
