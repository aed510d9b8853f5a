"""Events are plain frozen values, the public room shows them all, and counters lose nothing."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading

import pytest

from acache import _events, events
from acache._events import Counters, Event, Stats
from acache._keys import key
from acache._models import CompileFailure, Origin

KEY = key(n=1)
FAILURE = CompileFailure("diagnostic", "x.c:1:1: error: no", 1, deterministic=True)

ALL = [
    events.Hit(key=KEY, label="softmax", origin=Origin.PEER, seconds=0.5),
    events.Miss(key=KEY, label="softmax"),
    events.Coalesced(key=KEY, callers=3),
    events.Waiting(key=KEY, host="h", pid=7, age=1.5),
    events.CompileStarted(key=KEY, reason="takeover"),
    events.CompileFinished(key=KEY, reason="missing", seconds=2.0, ok=False, failure=FAILURE),
    events.Published(key=KEY, size=8192, seconds=0.01),
    events.Cheap(key=KEY, seconds=0.1),
    events.Oversized(key=KEY, size=10, limit=9),
    events.Takeover(key=KEY, host="h", pid=7, verdict="identity"),
    events.Hedge(key=KEY, host="h", pid=7, waited=30.0),
    events.Superseded(key=KEY),
    events.DeadlineReached(key=KEY, waited=600.0),
    events.FailureShared(key=KEY, failure=FAILURE),
    events.Abandoned(key=KEY, action="stop"),
    events.GuardLost(key=KEY),
    events.StoreFault(operation="rename", path="/x", errno=28, message="No space left on device"),
    events.Evicted(entries=3, size=12345),
    events.Degraded(level="process", folder="/x", mount="/ (fuse.s3fs)", reason="no leases here"),
    events.CorruptEntry(key=KEY, path="/x", reason="short"),
    events.UntrustedEntry(key=KEY, path="/x", owner=1001),
]


def test_the_list_above_is_complete():
    kinds = {type(event) for event in ALL}
    named = {getattr(events, name) for name in events.__all__}
    assert kinds == {kind for kind in named if isinstance(kind, type) and issubclass(kind, Event)} - {Event}
    assert len(ALL) == len(kinds)


def test_the_public_room_has_every_event_and_no_machinery():
    public = {name for name in _events.__all__ if name not in ("Counters", "Stats")}
    assert set(events.__all__) == public
    for name in events.__all__:
        assert getattr(events, name) is getattr(_events, name)


@pytest.mark.parametrize("event", ALL, ids=lambda event: type(event).__name__)
def test_an_event_is_a_frozen_value(event):
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.label = "other"
    assert not hasattr(event, "__dict__")
    twin = pickle.loads(pickle.dumps(event))
    assert twin == event == copy.deepcopy(event)
    assert type(twin) is type(event)
    assert hash(twin) == hash(event)
    assert dataclasses.replace(event, label="other") != event
    assert type(event).__doc__
    assert type(event).__name__ in repr(event)


def test_what_an_event_is_about_may_be_unknown():
    assert events.Miss().key is None
    assert events.Miss().label is None


def test_stats_have_exactly_the_counters_of_the_design():
    names = """
        memory_hits disk_hits peer_hits remote_hits misses compiles compile_failures coalesced takeovers
        hedges deadline_compiles uncoordinated_compiles published evicted corrupt untrusted store_errors
        bytes_read bytes_written compile_seconds wait_seconds
    """
    assert [field.name for field in dataclasses.fields(Stats)] == names.split()
    assert set(dataclasses.astuple(Stats())) == {0}


def test_counters_count():
    counters = Counters()
    before = counters.snapshot()
    counters.add("disk_hits")
    counters.add("bytes_read", 4096)
    counters.add("compile_seconds", 0.25)
    counters.add("compile_seconds", 0.5)
    assert before == Stats()  # a snapshot stands still
    assert counters.snapshot() == Stats(disk_hits=1, bytes_read=4096, compile_seconds=0.75)
    assert isinstance(counters.snapshot().disk_hits, int)


def test_counters_refuse_what_is_none_and_what_falls():
    counters = Counters()
    with pytest.raises(KeyError, match="hits_of_the_eighties"):
        counters.add("hits_of_the_eighties")
    with pytest.raises(ValueError, match="never fall"):
        counters.add("misses", -1)
    assert counters.snapshot() == Stats()


def test_hits_are_all_hits():
    assert Stats(memory_hits=1, disk_hits=10, peer_hits=100, remote_hits=1000, misses=5).hits == 1111


def test_threads_lose_no_count():
    counters = Counters()
    barrier = threading.Barrier(4)

    def count():
        barrier.wait()
        for _ in range(5000):
            counters.add("bytes_read", 3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.snapshot().bytes_read == 4 * 5000 * 3
