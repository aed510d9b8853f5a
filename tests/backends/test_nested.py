"""Compiles that ask for other compiles."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

import acache
from tests.backends.worlds import HANG

ONE, TWO = acache.key(number=1), acache.key(number=2)


@pytest.mark.parametrize("mode", ["on", "off"])
async def test_a_compile_may_ask_for_another_key_and_needs_no_second_slot(cache_dir, mode):
    settings = acache.Settings(max_compiles=1, mode=mode)
    async with acache.Cache(cache_dir, settings=settings) as cache:

        async def inner() -> bytes:
            await anyio.lowlevel.checkpoint()
            return b"inner"

        async def outer() -> bytes:
            return b"outer " + (await cache.get_or_compile(TWO, inner)).data

        with anyio.fail_after(HANG):
            assert (await cache.get_or_compile(ONE, outer)).data == b"outer inner"


async def test_a_compile_that_asks_for_its_own_key_is_told(cache_dir):
    async with acache.Cache(cache_dir) as cache:

        async def outer() -> bytes:
            return (await cache.get_or_compile(TWO, inner)).data

        async def inner() -> bytes:
            return (await cache.get_or_compile(ONE, outer)).data

        with anyio.fail_after(HANG), pytest.raises(RuntimeError, match="its own key"):
            await cache.get_or_compile(ONE, outer)
        assert await cache.get(ONE) is None
