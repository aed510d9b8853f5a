"""What acache does for other libraries: a room for each, imported by name and by nobody else."""

from __future__ import annotations
