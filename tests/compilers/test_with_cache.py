"""The compilers through `acache.Cache`: what is a hit, what is a miss, and how a failure arrives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import acache
from acache import compilers

if TYPE_CHECKING:
    from collections.abc import Callable


async def test_an_edited_file_is_a_miss_and_restored_a_hit(cache_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    upper = compilers.Command(["sh", "-c", "tr a-z A-Z <in >out"], inputs=["in"], outputs=["out"])
    request = upper.request(source, label="upper")
    async with acache.Cache(cache_dir) as cache:
        seen = []
        for text in ("one", "two", "one"):
            source.write_text(text)
            artifact = await cache.compile(request)
            seen.append((artifact.data, artifact.origin))
    assert seen == [
        (b"ONE", acache.Origin.COMPILED),
        (b"TWO", acache.Origin.COMPILED),
        (b"ONE", acache.Origin.MEMORY),
    ]
    async with acache.Cache(cache_dir) as cache:
        artifact = await cache.compile(request)
        assert (artifact.data, artifact.origin) == (b"ONE", acache.Origin.DISK)


@pytest.mark.gcc
async def test_an_edited_header(cache_dir: Path, tmp_path: Path, script: Callable[[str, str], Path]) -> None:
    launches = tmp_path / "launches"
    wrapper = script("count", f'case " $* " in *" -c "*) echo launch >>{launches};; esac; exec gcc "$@"')
    (tmp_path / "size.h").write_text("#define SIZE 8\n")
    (tmp_path / "kernel.c").write_text('#include "size.h"\nint size(void) { return SIZE; }\n')
    request = compilers.Cc(wrapper, toolchain="gcc").request(Path("kernel.c"), directory=tmp_path)
    async with acache.Cache(cache_dir) as cache:
        before = await cache.compile(request)
        (tmp_path / "size.h").write_text("#define SIZE 9\n")
        edited = await cache.compile(request)
        (tmp_path / "size.h").write_text("#define SIZE 8\n")
        restored = await cache.compile(request)
    assert restored == before != edited
    assert launches.read_text() == "launch\n" * 2


@pytest.mark.gcc
async def test_a_compile_error_is_remembered_with_its_text(
    cache_dir: Path, tmp_path: Path, script: Callable[[str, str], Path]
) -> None:
    launches = tmp_path / "launches"
    wrapper = script("count", f'case " $* " in *" -c "*) echo launch >>{launches};; esac; exec gcc "$@"')
    request = compilers.Cc(wrapper, toolchain="gcc").request("int f(void) { return g; }")
    texts = []
    for _ in range(2):
        async with acache.Cache(cache_dir) as cache:
            with pytest.raises(acache.CompileError) as caught:
                await cache.compile(request)
            texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert "<stdin>:1:22: error: " in texts[0]
    assert launches.read_text() == "launch\n"


@pytest.mark.gcc
async def test_a_source_that_does_not_preprocess(cache_dir: Path) -> None:
    """There is no key without the text, so nothing is remembered; the error is the preprocessor's own."""
    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(acache.CompileError, match=r"acache-no-such-header\.h: No such file"):
            await cache.compile(compilers.Cc("gcc").request("#include <acache-no-such-header.h>\n"))
        assert cache.stats().compiles == 0


async def test_a_compiler_that_is_not_installed(cache_dir: Path) -> None:
    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(acache.CompilerNotFoundError, match="install"):
            await cache.compile(compilers.Cc("acache-no-such-cc").request("int x;"))
