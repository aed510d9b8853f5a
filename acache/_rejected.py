"""What the loader rejected: identities of artifacts that a cache has promised not to serve again.

A publication's identity is drawn at random, so one that is remembered for too long hurts nobody; the oldest
are forgotten when there are many.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Rejected"]

MOST = 4096
"""An identity takes some hundred bytes; nobody rejects so many within one process's life."""


class Rejected:
    """A bounded set of identities. Belongs to the loop's thread; `known` is a copy for others."""

    def __init__(self) -> None:
        self._identities: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, identity: object) -> bool:
        return identity in self._identities

    def add(self, identity: str) -> None:
        """Remember one."""
        self._identities[identity] = None
        self._identities.move_to_end(identity)
        if len(self._identities) > MOST:
            self._identities.popitem(last=False)

    def known(self) -> frozenset[str]:
        """Return what is remembered now."""
        return frozenset(self._identities)
