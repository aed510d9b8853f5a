"""The commands that read, on a mount that refuses all writing."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

import acache as package
from tests.cli.test_ls import REFUSED
from tests.faults.conftest import mount, place  # noqa: F401  # fixtures


@pytest.mark.root
def test_reading_commands_work_on_a_read_only_mount(acache, layout, shelve, place, mount):  # noqa: F811
    key = package.key(n=1)
    shelve(key, label="baked")
    shelve(package.key(n=2), REFUSED)
    shutil.copytree(layout.root, place / "image")
    target = mount("bind", "ro,bind", place / "image")
    if not Path(target, "v1").exists():
        pytest.skip("this kernel binds no folder here")
    for words in (["ls"], ["ls", "--failures"], ["show", key.hex[:8]], ["stats"], ["ps"]):
        done = acache(*words, "-d", str(target))
        assert (done.exit_code, done.stderr) == (0, "")
    assert "baked" in acache("ls", "-d", str(target)).stdout
    done = acache("clear", "--yes", "-d", str(target))
    assert done.exit_code == 1
    assert "Read-only file system" in done.stderr
    assert "baked" in acache("ls", "-d", str(target)).stdout


@pytest.mark.root
def test_a_tier_on_a_read_only_mount_is_served(acache, layout, shelve, place, mount):  # noqa: F811
    """B47: at another path than where it was built, and with not one write."""
    key = package.key(n=1)
    shelve(key, label="baked")
    shutil.copytree(layout.root, place / "image")
    target = mount("bind", "ro,bind", place / "image")
    if not Path(target, "v1").exists():
        pytest.skip("this kernel binds no folder here")

    async def compiled():
        raise AssertionError("it is there")

    async def main():
        settings = package.Settings(read_only_directories=[target], recency_grain=0)
        async with package.Cache(place / "own", settings=settings) as cache:
            artifact = await cache.get_or_compile(key, compiled)
            assert artifact.origin is package.Origin.DISK
            assert list(await cache.get_many([key])) == [key]
            assert cache.stats().store_errors == 0

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)
    assert not (place / "own").exists() or not list((place / "own").rglob("*.art"))
    done = acache("verify", "-d", str(target))
    assert (done.exit_code, done.stderr) == (0, "")
