"""Memory: what this process keeps at hand, a least-recently-used map bounded by weight."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar, final

if TYPE_CHECKING:
    from acache._keys import Key

__all__ = ["Memory"]

Value = TypeVar("Value")


@final
class Memory(Generic[Value]):
    """Key to value with a weight each; the least recently used go first when the weights exceed the capacity.

    Not thread-safe: it belongs to the loop's thread.

    :param capacity_bytes: the most that all weights together may be; 0 keeps nothing.
    :raises ValueError: a negative capacity.
    """

    __slots__ = ("_capacity", "_entries", "_used")

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes < 0:
            raise ValueError(f"capacity_bytes must be 0 or more, not {capacity_bytes}")
        self._capacity = capacity_bytes
        self._used = 0
        # Oldest use first.
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    @property
    def capacity(self) -> int:
        """The bound, in bytes."""
        return self._capacity

    @property
    def used(self) -> int:
        """The weights of all that is kept, in bytes."""
        return self._used

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return the value and count it as just used; None: not kept."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, weight: int) -> bool:
        """Keep a value, in place of an older one under the same key; return whether it is kept.

        One that is heavier than the whole capacity is not kept, and neither is the older one: that one is
        out of date.

        :raises ValueError: a negative weight.
        """
        if weight < 0:
            raise ValueError(f"weight must be 0 or more, not {weight}")
        self.discard(key)
        if weight > self._capacity or self._capacity == 0:
            return False
        self._entries[key] = (value, weight)
        self._used += weight
        while self._used > self._capacity:
            _, (_, freed) = self._entries.popitem(last=False)
            self._used -= freed
        return True

    def discard(self, key: Key) -> bool:
        """Forget one key; return whether it was kept."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._used -= entry[1]
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._used = 0
