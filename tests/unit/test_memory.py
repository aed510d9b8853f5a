"""The memory tier against a naive model: a list, oldest use first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from acache._keys import key
from acache._memory import Memory

KEYS = [key(n=number) for number in range(6)]
ONE, TWO, THREE, *_ = KEYS


class MemoryAgainstModel(RuleBasedStateMachine):
    @initialize(capacity=st.integers(0, 20))
    def start(self, capacity):
        self.capacity = capacity
        self.memory = Memory(capacity)
        self.model = []  # (key, value, weight), oldest use first

    def _drop(self, key):
        found = [entry for entry in self.model if entry[0] == key]
        self.model = [entry for entry in self.model if entry[0] != key]
        return found

    @rule(key=st.sampled_from(KEYS), value=st.integers(), weight=st.integers(0, 25))
    def put(self, key, value, weight):
        self._drop(key)
        keeps = self.capacity > 0 and weight <= self.capacity
        if keeps:
            self.model.append((key, value, weight))
            while sum(entry[2] for entry in self.model) > self.capacity:
                self.model.pop(0)
        assert self.memory.put(key, value, weight) is keeps

    @rule(key=st.sampled_from(KEYS))
    def get(self, key):
        found = self._drop(key)
        self.model += found
        assert self.memory.get(key) == (found[0][1] if found else None)

    @rule(key=st.sampled_from(KEYS))
    def discard(self, key):
        assert self.memory.discard(key) is bool(self._drop(key))

    @rule()
    def clear(self):
        self.memory.clear()
        self.model = []

    @invariant()
    def agrees(self):
        assert len(self.memory) == len(self.model)
        assert self.memory.used == sum(entry[2] for entry in self.model) <= self.memory.capacity


MemoryAgainstModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestMemoryAgainstModel = MemoryAgainstModel.TestCase


def test_the_least_recently_used_goes_first():
    memory = Memory(10)
    memory.put(ONE, "one", 5)
    memory.put(TWO, "two", 5)
    assert memory.get(ONE) == "one"  # now TWO is the older use
    memory.put(THREE, "three", 1)
    assert (memory.get(ONE), memory.get(TWO), memory.get(THREE)) == ("one", None, "three")


def test_too_heavy_is_not_kept_and_drops_what_it_replaces():
    memory = Memory(10)
    memory.put(ONE, "old", 4)
    memory.put(TWO, "two", 4)
    assert not memory.put(ONE, "new", 11)
    assert (memory.get(ONE), memory.get(TWO)) == (None, "two")


def test_capacity_zero_keeps_nothing_not_even_the_weightless():
    memory = Memory(0)
    assert not memory.put(ONE, "one", 0)
    assert memory.get(ONE) is None
    assert len(memory) == 0


def test_negative_numbers_are_refused():
    with pytest.raises(ValueError, match="-1"):
        Memory(-1)
    with pytest.raises(ValueError, match="-2"):
        Memory(1).put(ONE, "one", -2)
