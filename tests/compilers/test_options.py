"""A C compiler's options: which reach the compile of preprocessed text, and which are refused."""

from __future__ import annotations

import pytest

from acache.compilers._cc_options import sort_options


@pytest.mark.parametrize(
    ("options", "compiling"),
    [
        (("-O3", "-std=c++20", "-fPIC", "-Wall"), ("-O3", "-std=c++20", "-fPIC", "-Wall")),
        (("-Iinclude", "-DX=1", "-UX", "-isystem/usr/x", "-includeconfig.h"), ()),
        (("-I", "include", "-D", "X", "-isystem", "/usr/x", "-include", "c.h", "-O2"), ("-O2",)),
        (("-nostdinc", "-nostdinc++", "-undef", "-H", "-C", "-P"), ()),
        (("-Wp,-D_FORTIFY_SOURCE=2", "-pthread"), ("-pthread",)),
        (("-march=native", "-m64", "-mmemcpy-strategy=x"), ("-march=native", "-m64", "-mmemcpy-strategy=x")),
        (
            ("-Os", "-ansi", "-funroll-loops", "--param", "x=1"),
            ("-Os", "-ansi", "-funroll-loops", "--param", "x=1"),
        ),
        (
            ("-fopenmp", "-flto", "-fvisibility=hidden", "-ffast-math"),
            ("-fopenmp", "-flto", "-fvisibility=hidden", "-ffast-math"),
        ),
        (
            ("-fcolor-diagnostics", "-fexceptions", "-static", "-Wextra-semi"),
            ("-fcolor-diagnostics", "-fexceptions", "-static", "-Wextra-semi"),
        ),
    ],
)
def test_sorting(options: tuple[str, ...], compiling: tuple[str, ...]) -> None:
    assert sort_options(options).compiling == compiling


REFUSED = """
    -o -oout.o -c -E -S -M -MM -MD -MMD -MF -MFx.d -MT -MP --output=x -x -xc++ -save-temps
    -save-temps=obj --save-temps -fplugin=x.so -specs=x @options -fprofile-use -fprofile-use=x
    -fprofile-generate -fauto-profile=x --coverage -ftest-coverage -gsplit-dwarf -fdump-tree-all
    -fmodules-ts -fmodules -Wp,-MD,x.d -Wa,-al=x -Xassembler -Xpreprocessor -fdirectives-only
    -include-pch -fsyntax-only -### --version -emit-llvm -fstack-usage -ftime-trace -wrapper -dM
    -print-search-dirs -fsanitize-ignorelist=x
"""


@pytest.mark.parametrize("option", REFUSED.split())
def test_what_no_cache_can_answer_for_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match="cannot be used here") as caught:
        sort_options(("-O2", option))
    assert repr(option) in str(caught.value)


def test_an_option_that_lacks_its_argument() -> None:
    with pytest.raises(ValueError, match="lacks its argument"):
        sort_options(("-O2", "-I"))


@pytest.mark.parametrize(
    ("option", "native"), [("-march=native", True), ("-mtune=native", True), ("-march=x86-64", False)]
)
def test_native(option: str, native: bool) -> None:
    assert sort_options((option,)).native is native


@pytest.mark.parametrize(
    ("option", "debug"),
    [
        ("-g", True),
        ("-g3", True),
        ("-ggdb", True),
        ("-gdwarf-5", True),
        ("-g0", False),
        ("-O2", False),
    ],
)
def test_debug(option: str, debug: bool) -> None:
    assert sort_options((option,)).debug is debug
