"""The cache directory that a command looks at: where it is and why, on what, and the layout of its files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acache import _host
from acache._store import Layout, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from acache._policy import MountKind
    from acache._settings import Settings

__all__ = ["Place", "place_of", "where"]


@dataclass(frozen=True, slots=True)
class Place:
    """One cache directory as `acache.Cache` would use it with these settings."""

    layout: Layout
    mount: _host.Mount | None
    kind: MountKind
    """``network`` also where the mount is not known, as the cache takes it."""


def where(directory: str | None, environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the absolute path of the directory, and one clause that says why it is this one."""
    if directory is not None:
        return os.path.abspath(directory), "--directory is given"
    default = _host.default_directory(environ)
    return os.path.abspath(default.path), default.why


def place_of(root: str, settings: Settings) -> Place:
    """Look at what an absolute path lies on. Blocks: symbolic links are followed."""
    mount = _host.mount_of(root)
    layout = Layout.on(root, settings, mount, _host.my_identity())
    return Place(layout, mount, kind_of(mount))
