"""The include scanner: every way to write a directive, and the closure over a search path."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acache._errors import KeyDerivationError
from acache.compilers import _includes
from acache.compilers._includes import Closure, Include, close_over, read_header, scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def written(text: str) -> list[str]:
    """Return the names that a source includes, as they would be written."""
    return [f'"{each.name}"' if each.quoted else f"<{each.name}>" for each in scan(text.encode()).includes]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('#include "a.h"', ['"a.h"']),
        ("#include <a/b.h>\n", ["<a/b.h>"]),
        (' \t#  \tinclude\t"a.h" // why\n', ['"a.h"']),
        ("\v\f#include<a>", ["<a>"]),
        ('%:include "a.h"', ['"a.h"']),
        ('/* one\n two */ #/**/include/*\n*/"a.h"', ['"a.h"']),
        ('#inc\\\nlude "a\\\r\n.h"', ['"a.h"']),
        ('\ufeff#include "a.h"', ['"a.h"']),
        ('#include "a.h"\r\n#include "b.h"\r\n', ['"a.h"', '"b.h"']),
        ('#if 0\n#include "dead.h"\n#endif\n', ['"dead.h"']),
        ('#include <it\'s>\n#include "b"\n', ["<it's>", '"b"']),
        ('#include <a//b>\n#include "/*.h"\n#include "c"\n', ["<a//b>", '"/*.h"', '"c"']),
        # what is none
        ('// #include "no"\n', []),
        ('// continued \\\n#include "no"\n', []),
        ('// a blank behind it is no continuation \\ \n#include "yes"\n', ['"yes"']),
        ('/*\n#include "no"\n*/', []),
        ('int x; #include "no"\n', []),
        ('#define X #include "no"\n', []),
        ('const char *s = "\\\n#include \\"no\\"";\n', []),
        ('R"(\n#include "no"\n)";', []),
        ('u8R"x(\n)" )y"\n#include "no"\n)x";\n#include "yes"\n', ['"yes"']),
        ('#import "no"\n#included "no"\n#pragma include "no"\n', []),
        ("int x;\r#include <no>", []),  # a lone carriage return ends no line
        # what looks like the begin of a comment or a literal
        ("char a = '\"', b = '\\''; /* \" */\n#include \"yes\"\n", ['"yes"']),
        ('const char *s = "/*";\n#include "yes"\n', ['"yes"']),
        ("int n = 1'000'000; f(1'0, \"a'/*\");\n#include \"yes\"\n", ['"yes"']),
        ('#error don\'t\n#include "yes"\n', ['"yes"']),
        ('FOOR"(x";\n#include "yes"\n', ['"yes"']),
        ('const char *s = "unterminated\n#include "yes"\n', ['"yes"']),
        ('float f = 1e+5\'0, g = .5; // "\n#include "yes"\n', ['"yes"']),
        # trigraphs, which the language has or has not
        ('??=include "a.h"\n#inc??/\nlude "b.h"\n', ['"a.h"', '"b.h"']),
        ('// what??/\n#include "a.h"\n', ['"a.h"']),
    ],
)
def test_what_is_an_include(text: str, names: list[str]) -> None:
    assert written(text) == names
    assert scan(text.encode()).computed == ()


def test_probes_are_asked_for_and_not_included() -> None:
    found = scan(
        b"#if defined(__has_include) && __has_include ( <a.h> ) || __has_include_next(<b.h>)\n"
        b'#elif __has_include("c.h")\n'
        b"#endif\n"
        b"#ifdef __has_include\n"
        b"#define HAS(x) __has_include(x)\n"
        b"#define WITH_HAS_INC(x, y) (__has_include(y) && x)\n"
        b"#endif\n"
        b"#if MY_HAS_INCLUDE(<d.h>)\n"
        b"#define HAVE_PROBE (defined __has_include && defined(__has_include))\n"
        b"#define __has_include 0\n"
    )
    assert found.includes == (
        Include("a.h", quoted=False, probe=True),
        Include("b.h", quoted=False, next=True, probe=True),
        Include("c.h", quoted=True, probe=True),
        Include("d.h", quoted=False, probe=True),
    )
    assert found.computed == ()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("\n\n#include  HEADER\n", 3, "#include HEADER"),
        ("#include NAME(a.h) // b\n", 1, "#include NAME(a.h) // b"),
        ("#include_next HEADER", 1, "#include_next HEADER"),
        ("#if __has_include(HEADER)\n", 1, "__has_include(HEADER)"),
        ("#define HAS __has_include(HEADER)\n", 1, "__has_include(HEADER)"),
        ("#define HAS(x) __has_include(HEADER)\n", 1, "__has_include(HEADER)"),
        ("\n#define HAS __has_include\n#if HAS(<a.h>)\n", 2, "__has_include"),
        ("#include <unfinished\n", 1, "#include <unfinished"),
    ],
)
def test_a_computed_name_is_told_with_its_line(text: str, line: int, words: str) -> None:
    (computed,) = scan(text.encode()).computed
    assert (computed.line, computed.text) == (line, words)


PIECES = [b"#include", b"<a>", b'"', b"'", b"/*", b"*/", b"//", b"\n", b"\\\n", b'R"(', b')"', b"1'"]


@given(st.lists(st.binary(max_size=20) | st.sampled_from([*PIECES, b"__has_include("])))
def test_no_text_is_too_odd(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    found = scan(text)
    assert scan(text) == found
    # Whatever stood before, once every comment and literal that it may have left open is closed:
    for delimiter in (piece for piece in pieces if piece.startswith(b'R"')):
        text += b")" + delimiter[2:-1] + b'"'
    if b'R"' not in text:
        assert Include("z", quoted=True) in scan(text + b'\n*/\n#include "z"\n').includes


# --- the closure --------------------------------------------------------------------------------------------


def tree(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def closure(source: str, folder: Path | None, paths: Sequence[Path] = (), **options: bool) -> Closure:
    text = source.encode()
    here = None if folder is None else str(folder)
    return close_over(text, here, [str(path) for path in paths], read=read_header, **options)


def places(found: Closure) -> dict[str, str]:
    return {f"{root}:{path}": content.decode() for (root, path), content in found.files.items()}


def test_names_in_quotes_begin_at_the_including_file(tmp_path: Path) -> None:
    tree(
        tmp_path,
        **{
            "s/a.h": '#include "deep/b.h"\n',
            "s/deep/b.h": '#include "c.h"\n#include "d.h"\n',
            "s/deep/c.h": "beside",
            "s/c.h": "not this one",
            "i/d.h": "on the path",
            "s/d.h": "not this one",
        },
    )
    found = closure('#include "a.h"\n#include <c.h>\n', tmp_path / "s", [tmp_path / "none", tmp_path / "i"])
    assert set(places(found)) == {"0:a.h", "0:deep/b.h", "0:deep/c.h", "2:d.h"}
    assert found.missing == {"c.h"}  # in angle brackets, only on the path
    assert set(places(closure('#include "c.h"', None, [tmp_path / "s"]))) == {"1:c.h"}
    apart = closure('#include "c.h"\n#include <a.h>', tmp_path / "s", [tmp_path / "s"], search_source=False)
    assert set(places(apart)) == {"1:a.h", "1:c.h", "1:deep/b.h", "1:deep/c.h", "1:d.h"}


def test_a_file_that_newly_exists_earlier_on_the_path_is_seen(tmp_path: Path) -> None:
    tree(tmp_path, **{"two/x.h": "two", "s/k.cu": ""})
    paths = [tmp_path / "one", tmp_path / "two"]
    source = '#include "x.h"\n#include "later.h"\n'
    seen = [closure(source, tmp_path / "s", paths)]
    for name in ("one/x.h", "s/x.h", "two/later.h"):
        tree(tmp_path, **{name: "two"})  # with the same content, which makes no difference
        seen.append(closure(source, tmp_path / "s", paths))
    assert [set(places(each)) for each in seen] == [
        {"2:x.h"},
        {"1:x.h"},
        {"0:x.h"},
        {"0:x.h", "2:later.h"},
    ]
    assert seen[0].missing == {"later.h"}
    assert not seen[3].missing


def test_include_next_and_probes(tmp_path: Path) -> None:
    tree(
        tmp_path,
        **{
            "one/x.h": "#include_next <x.h>\n#if __has_include(<p.h>)\n#endif\n",
            "two/x.h": "two",
            "three/x.h": "three",
            "two/p.h": "#include COMPUTED\n",
        },
    )
    found = closure("#include <x.h>\n", None, [tmp_path / "one", tmp_path / "two", tmp_path / "three"])
    # compilers count the folders behind the present one differently: all of them are there
    assert set(places(found)) == {"1:x.h", "2:x.h", "3:x.h", "2:p.h"}


def test_cycles_end(tmp_path: Path) -> None:
    tree(tmp_path, **{"a.h": '#include "b.h"\n', "b.h": '#include "a.h"\n#include "b.h"\n'})
    assert set(places(closure('#include "a.h"', tmp_path))) == {"0:a.h", "0:b.h"}


def test_a_name_that_leads_astray_leads_to_nothing_else(tmp_path: Path) -> None:
    """However the closure is laid out: beside it lies what a compiler shall not find."""
    tree(tmp_path, **{"s/deep/a.h": '#include "../../../c.h"\n', "i/b.h": '#include "../../d.h"\n'})
    outside = {
        '#include "../../x.h"': 2,
        "#include <../x.h>": 1,
        "#if __has_include(<sub/../../../x.h>)\n#endif": 2,
        '#include "deep/a.h"': 3,  # <../../../c.h>
        "#include <b.h>": 2,
        '#include "x.h"\n#include <sub/../x.h>': 0,
    }
    for source, steps in outside.items():
        for folder in (tmp_path / "s", None):
            found = closure(source, folder, [tmp_path / "i"])
            assert found.depth == (steps if folder or "deep" not in source else 0)
            assert found.root(0) == "_/" * found.depth
    assert closure('#include "../../x.h"', None).depth == 2


@pytest.mark.parametrize("name", ["../_/x.h", ".include-1/x.h"])
def test_what_would_lie_where_another_lies(tmp_path: Path, name: str) -> None:
    tree(tmp_path, **{"s/x.h": "a", "i/x.h": "b", f"s/{name}": "c"})
    with pytest.raises(KeyDerivationError, match=r"one place .* rename it"):
        closure(f'#include "x.h"\n#include <x.h>\n#include "{name}"\n', tmp_path / "s", [tmp_path / "i"])


@pytest.mark.gcc
def test_a_layout_is_the_same_tree_to_a_compiler(tmp_path: Path) -> None:
    """A preprocessor finds in the layout what it finds in the real folders, names that lead out included."""
    tree(
        tmp_path / "real",
        **{
            "p/s/a.h": '#include "../c/b.h"\n#include "sub/../sub2/../e.h"\nint a;\n',
            "p/c/b.h": '#include "../../outer.h"\n#include <i/../j.h>\nint b;\n',
            "p/s/sub/empty": "",
            "p/s/sub2/empty": "",
            "p/s/e.h": "int e;\n",
            "outer.h": "int outer;\n",
            "p/inc/i/empty": "",
            "p/inc/j.h": '#include "../s/e.h"\nint j;\n',
        },
    )
    source = '#include "a.h"\n'
    real = tmp_path / "real" / "p"
    found = closure(source, real / "s", [tmp_path / "no", real / "inc"])
    assert found.depth == 2
    laid = tmp_path / "laid"
    found.lay(str(laid))
    places = [(real / "s", real / "inc"), (laid / found.root(0), laid / found.root(2))]
    texts = []
    for folder, include in places:
        (folder / "k.cpp").write_text(source)
        argv = ["g++", "-E", "-P", f"-I{include}", str(folder / "k.cpp")]
        texts.append(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    assert texts[0] == texts[1]
    assert [word for word in ("outer", "int a", "int b", "int e", "int j") if word not in texts[1]] == []
    inside = [path for path in laid.rglob("*") if path.is_file()]
    assert len(inside) == len(found.files) + 1


def test_where_a_symbolic_link_makes_two_files_one_name(tmp_path: Path) -> None:
    tree(
        tmp_path,
        **{"far/away/x.h": "", "far/b.h": "far", "s/b.h": "near", "s/a.h": '#include "link/../b.h"\n'},
    )
    (tmp_path / "s/link").symlink_to(tmp_path / "far/away")
    with pytest.raises(KeyDerivationError, match="symbolic link"):
        closure('#include "b.h"\n#include "a.h"\n', tmp_path / "s")
    (tmp_path / "s/b.h").write_text("far")  # the same content harms nobody
    assert set(places(closure('#include "b.h"\n#include "a.h"\n', tmp_path / "s"))) == {"0:a.h", "0:b.h"}


def test_what_no_key_can_cover(tmp_path: Path) -> None:
    tree(tmp_path, **{"a.h": "\n#include HEADER\n"})
    with pytest.raises(KeyDerivationError, match=r"line 2 of .*a\.h computes .*'#include HEADER'.*literally"):
        closure('#include "a.h"', tmp_path)
    with pytest.raises(KeyDerivationError, match="line 1 of the source computes"):
        closure("#include HEADER", tmp_path)
    with pytest.raises(KeyDerivationError, match=r"the source includes '/etc/passwd' .*include_paths"):
        closure('#include "/etc/passwd"', tmp_path)


def test_there_are_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, **{f"{n}.h": f'#include "{n + 1}.h"\n' for n in range(10)})
    monkeypatch.setattr(_includes, "MAX_FILES", 10)
    assert len(closure('#include "0.h"', tmp_path).files) == 10
    monkeypatch.setattr(_includes, "MAX_FILES", 9)
    with pytest.raises(KeyDerivationError, match=r"more than 9 files .*9\.h"):
        closure('#include "0.h"', tmp_path)


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.h").mkdir()
    tree(tmp_path, file="")
    (tmp_path / "loop.h").symlink_to("loop.h")
    names = ["folder.h", "file/below.h", "loop.h", "n" * 5000, "\0"]
    found = closure("".join(f'#include "{name}"\n' for name in names), tmp_path)
    assert not found.files
    assert found.missing == set(names)
    os.mkfifo(tmp_path / "pipe.h")
    with pytest.raises(OSError, match=r"pipe\.h is no regular file"):
        closure('#include "pipe.h"', tmp_path)


def test_a_header_that_cannot_be_read_is_an_error(tmp_path: Path, unreadable: Path) -> None:
    with pytest.raises(PermissionError, match=unreadable.name):
        closure(f'#include "{unreadable.name}"', tmp_path)


@pytest.fixture
def unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "secret.h"
    path.write_text("")
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads all
        opens = os.open

        def refuse(name: str, *arguments: int) -> int:
            if name == str(path):
                raise PermissionError(13, "Permission denied", name)
            return opens(name, *arguments)

        monkeypatch.setattr(os, "open", refuse)
    yield path
    path.chmod(0o600)
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_names_and_contents_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.h")
    (tmp_path / name).write_bytes(b"\xff\x00 // bytes")
    found = close_over(b'#include "\xff\xfe.h"\n', str(tmp_path), [], read=read_header)
    assert found.files == {(0, name): b"\xff\x00 // bytes"}
    found.lay(str(tmp_path / "laid"))
    assert (tmp_path / "laid" / name).read_bytes() == b"\xff\x00 // bytes"
