"""nvcc's options: which reach the compile of preprocessed text, and which are refused."""

from __future__ import annotations

import pytest

from acache.compilers._nvcc_options import sort_options


@pytest.mark.parametrize(
    ("options", "compiling"),
    [
        (("-O3", "-std=c++20", "--use_fast_math", "-m64"), ("-O3", "-std=c++20", "--use_fast_math", "-m64")),
        (("-Iinclude", "-DX=1", "-UX", "-I=x", "-D=Y", "-include=c.h", "--define-macro=Z"), ()),
        (("-I", "include", "-D", "X", "-isystem", "/usr/x", "-include", "c.h", "--ftz", "true"),
         ("--ftz", "true")),
        (("-lcudart", "-L/opt", "-l", "x", "-L", "y", "-Xlinker", "-rpath,z", "-cudart=none"), ("-lcudart",)),
        (("-rdc=true", "-lineinfo", "-Xptxas", "-v,-O3", "-Xptxas=-dlcm=cg"),
         ("-rdc=true", "-lineinfo", "-Xptxas", "-v,-O3", "-Xptxas=-dlcm=cg")),
        (("-Xcompiler", "-fPIC,-Wall", "-Xcudafe", "--diag_suppress=1"),
         ("-Xcompiler", "-fPIC,-Wall", "-Xcudafe", "--diag_suppress=1")),
        (("-Xcudafe=--diag_suppress=include_dir,--display_error_number", "-Xcicc", "-O1"),
         ("-Xcudafe=--diag_suppress=include_dir,--display_error_number", "-Xcicc", "-O1")),
        (("-maxrregcount", "32", "-maxrregcount=64", "-t", "4"),
         ("-maxrregcount", "32", "-maxrregcount=64", "-t", "4")),
        (("--expt-relaxed-constexpr", "--extended-lambda", "--option-of-tomorrow=1"),
         ("--expt-relaxed-constexpr", "--extended-lambda", "--option-of-tomorrow=1")),
    ],
)  # fmt: skip
def test_sorting(options: tuple[str, ...], compiling: tuple[str, ...]) -> None:
    assert sort_options(options).compiling == compiling


REFUSED = """
    -o -o=x --output-file=x -odir -c --compile -E -M -MM -MD -MMD -MF -MT -MP --dependency-output=x
    --generate-dependencies-with-compile --generate-nonsystem-dependencies --generate-dependency-targets
    -cubin -ptx -fatbin -ltoir -dc -dlink -run -arch -arch=sm_80 --gpu-architecture=sm_80 -code=sm_80
    -gencode=arch=compute_80,code=sm_80 -x -x=cu -keep --keep -keep-dir=x --save-temps --time=x
    -fdevice-time-trace=x -dryrun --dryrun -v --version -optf --options-file=x -ldir=x -src-in-ptx
    -noprof -forward-unknown-opts --forward-unknown-to-host-compiler -fdevice-syntax-only --list-gpu-arch
    -jobserver -clean kernel.cu -
"""


@pytest.mark.parametrize("option", REFUSED.split())
def test_what_no_cache_can_answer_for_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match="cannot be used here") as caught:
        sort_options(("-O2", option))
    assert repr(option) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-Xptxas", "-v,-o,x"), "ptxas's '-o' names files"),
        (("--ptxas-options=--options-file=x",), "ptxas's '--options-file=x' names files"),
        (("-Xcudafe", "--display_error_number,--preinclude=x"), "'--preinclude=x' names files"),
        (("-Xcicc=-Ix",), "'-Ix' names files"),
        (("-Xcompiler", "-fPIC", "-Xcompiler=-MD"), "-Xcompiler: option '-MD' cannot be used here"),
        (("-Xcompiler", "-fPIC -save-temps"), "-Xcompiler: option '-save-temps' cannot be used here"),
        (("-ccbin", "tools/g++"), "a name or an absolute path"),
        (("-O2", "-I"), "lacks its argument"),
        (("--option-of-tomorrow", "1"), "give an option that acache does not know its value by '='"),
    ],
)
def test_what_is_refused_within_an_option(options: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=r"option|'1'") as caught:
        sort_options(options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "driving", "host"),
    [
        (("-ccbin", "g++-12", "-O2"), ("-ccbin", "g++-12"), ()),
        (("--compiler-bindir=/opt/bin",), ("--compiler-bindir=/opt/bin",), ()),
        (("-Xcompiler", "-B,/opt", "--compiler-options=-m64"), (), ("-B", "/opt", "-m64")),
    ],
)
def test_the_host_compiler(options: tuple[str, ...], driving: tuple[str, ...], host: tuple[str, ...]) -> None:
    found = sort_options(options)
    assert (found.driving, found.host) == (driving, host)


@pytest.mark.parametrize("option", ["-G", "--device-debug", "-lineinfo", "--generate-line-info"])
def test_debug(option: str) -> None:
    assert sort_options((option,)).debug
    assert not sort_options(("-O2", "-g")).debug


def test_a_seed() -> None:
    assert sort_options(("-frandom-seed=1",)).seeded
    assert sort_options(("--frandom-seed", "1")).seeded
    assert not sort_options(("-O2",)).seeded
