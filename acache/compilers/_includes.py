"""Which files a C++ source may include: a scanner of directives, and the closure over the search path.

Conditionals are ignored, so the closure holds more than a compile reads, and never less than it can find:
what the compiler is given is the closure alone, laid out anew (`Closure.lay`). What a scan does not see
is therefore a file that the compiler does not find, and never one that the key does not cover.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import re
import stat
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from acache._errors import KeyDerivationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Closure", "Computed", "Include", "Scan", "close_over", "read_header", "scan"]

MAX_FILES: Final = 8192
MAX_BYTES: Final = 128 << 20
"""Bounds of one closure: the CUDA toolkit's headers, all of them, are 2,400 files of 26 MB."""
_REMEMBERED: Final = 4096
"""Scans that this process remembers, by content."""


@dataclass(frozen=True, slots=True)
class Include:
    """One header name in a source."""

    name: str
    """As it is spelled; bytes that are not UTF-8 as surrogates."""
    quoted: bool
    """In quotes, so that the folder of the including file is searched first."""
    next: bool = False
    """``#include_next``: the search begins behind the folder in which the including file was found."""
    probe: bool = False
    """``__has_include``: asked for, and not included."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A directive whose header name is computed by macros."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Scan:
    """What the directives of one file say."""

    includes: tuple[Include, ...]
    computed: tuple[Computed, ...]


# --- scanning one file --------------------------------------------------------------------------------------

_GAP = rb"(?:[ \t\v\f\r]|/\*.*?\*/)*"
_TOKEN: Final = re.compile(
    rb"""
      (?P<line>//[^\n]*)
    | (?P<block>/\*.*?(?:\*/|\Z))
    | (?<![A-Za-z0-9_])(?:u8|[uUL])?R"(?P<delimiter>[^ ()\\\t\v\f\n]{0,16})\(.*?(?:\)(?P=delimiter)"|\Z)
    | "(?:[^"\\\n]|\\[^\n])*"?
    | (?<![A-Za-z0-9_])\.?[0-9](?:'?[A-Za-z0-9_]|\.|(?<=[eEpP])[+-])*   # 1'000: no literal begins here
    | '(?:[^'\\\n]|\\[^\n])*'?
    | (?P<hash>\#|%:)
    | (?<![A-Za-z0-9_])(?P<probe>__has_include(?:_next)?)(?![A-Za-z0-9_])
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE: Final = re.compile(_GAP + rb"([A-Za-z_][A-Za-z0-9_]*)" + _GAP, re.DOTALL)
_HEADER: Final = re.compile(rb'<([^>\n]+)>|"([^"\n]+)"')
_PROBED: Final = re.compile(
    _GAP + rb"\(" + _GAP + rb'(?:<([^>\n]+)>|"([^"\n]+)"|([A-Za-z_][A-Za-z0-9_]*)' + _GAP + rb"\))?",
    re.DOTALL,
)
_PARAMETERS: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*\(([^()\n]*)\)")
_CALL: Final = re.compile(
    rb"(?<![A-Za-z0-9_])(?!__has_include(?:_next)?[^A-Za-z0-9_])[A-Za-z0-9_]*(?i:has_inc)[A-Za-z0-9_]*"
    rb'[ \t]*\([ \t]*(?:<([^<>\n]+)>|"([^"\n]+)")'
)
"""A macro that people write around ``__has_include``, asked with a header's name."""
_TRIGRAPHS: Final = {b"??=": b"#", b"??/": b"\\"}
"""Those that can make a directive."""
_TRIGRAPH: Final = re.compile(rb"\?\?[=/]")
_SPLICE: Final = re.compile(rb"\\\r?\n")

_scans: OrderedDict[bytes, Scan] = OrderedDict()
_scans_lock = threading.Lock()


def scan(text: bytes) -> Scan:
    """Return every header name in the directives of a C++ source, whatever the conditionals around it.

    Comments, literals (raw ones too), continued lines, digraphs and blanks anywhere in a directive are
    understood; trigraphs are read both ways, as it is the language's version that says whether there are any.
    ``#embed`` and modules are not, which NVRTC does not have either.
    """
    digest = hashlib.sha256(text).digest()
    with _scans_lock:
        if (known := _scans.get(digest)) is not None:
            _scans.move_to_end(digest)
            return known
    found = _scan(text)
    if (other := _TRIGRAPH.sub(lambda match: _TRIGRAPHS[match[0]], text)) != text:
        more = _scan(other)
        includes = dict.fromkeys([*found.includes, *more.includes])
        found = Scan(tuple(includes), tuple(dict.fromkeys([*found.computed, *more.computed])))
    with _scans_lock:
        _scans[digest] = found
        if len(_scans) > _REMEMBERED:
            _scans.popitem(last=False)
    return found


def _scan(original: bytes) -> Scan:
    if b"include" not in original and b"\\" not in original:
        return Scan((), ())
    text = _SPLICE.sub(b"", original.removeprefix(b"\xef\xbb\xbf"))
    includes: dict[Include, None] = {}
    computed: list[Computed] = []
    blank = 0  # everything from here to the present place, or from the line's begin, is blank or comment
    parameters: frozenset[bytes] = frozenset()  # of the macro that the present line defines
    line_end = 0
    defined = 0  # where the name of the macro that the present line defines begins
    at = 0

    def compute(begin: int) -> None:
        end = text.find(b"\n", begin)
        words = text[begin : end if end >= 0 else len(text)].split()
        line = text.count(b"\n", 0, begin) + 1
        computed.append(Computed(line, b" ".join(words)[:200].decode("utf-8", "replace")))

    while (token := _TOKEN.search(text, at)) is not None:
        begin, at = token.span()
        start = max(text.rfind(b"\n", 0, begin) + 1, blank)
        fresh = not text[start:begin].strip(b" \t\v\f\r")
        if token["block"] is not None:
            blank = at if fresh else blank
        elif token["hash"] is not None and fresh:
            directive = _DIRECTIVE.match(text, at)
            if directive is None:
                continue
            at, name = directive.end(), directive[1]
            line_end = text.find(b"\n", at)
            line_end = len(text) if line_end < 0 else line_end
            parameters = frozenset()
            defined = at if name == b"define" else line_end
            if name in (b"include", b"include_next"):
                header = _HEADER.match(text, at)
                if header is None:
                    compute(begin)
                else:
                    at = header.end()
                    includes[_include(header[1], header[2], next=name == b"include_next")] = None
            elif name in (b"if", b"elif", b"define"):
                if name == b"define" and (macro := _PARAMETERS.match(text, at)):
                    parameters = frozenset(word.strip() for word in macro[1].split(b","))
                for call in _CALL.finditer(text, at, line_end):
                    includes[_include(call[1], call[2], probe=True)] = None
        elif token["probe"] is not None:
            probed = _PROBED.match(text, at)
            if probed is None:
                before = text[start:begin].rstrip(b" \t(")
                if defined < begin < line_end and not before.endswith(b"defined"):  # another name for it
                    compute(begin)
                continue
            at = probed.end()
            angle, quoted, word = probed[1], probed[2], probed[3]
            if angle or quoted:
                following = token["probe"].endswith(b"_next")
                includes[_include(angle, quoted, next=following, probe=True)] = None
            elif begin > line_end or word not in parameters:  # else its callers name the header: see _CALL
                compute(begin)
    return Scan(tuple(includes), tuple(computed))


def _include(
    angle: bytes | None, quoted: bytes | None, *, next: bool = False, probe: bool = False
) -> Include:
    name = (angle or quoted or b"").decode("utf-8", "surrogateescape")
    return Include(name, angle is None, next, probe)


# --- the closure over the search path -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Closure:
    """The files that one source may include, by where the search finds them and not by their real paths.

    A place is ``(root, path)``: root 0 is the source's own folder, the others are the include paths in their
    order; the path is relative and without needless steps, but may begin with ``..``.
    """

    files: dict[tuple[int, str], bytes] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    """Names, as spelled, that are nowhere."""
    folders: frozenset[tuple[int, str]] = frozenset()
    """Folders through which names lead out again (``detail/../size.h``), which must therefore be there."""
    astray: int = 0
    """How many steps out of its root the farthest name leads at which there may be nothing."""

    @property
    def depth(self) -> int:
        """How many steps out of its root the farthest name leads, whether a file is there or not."""
        return max([self.astray, *(_steps_out(path) for _, path in [*self.files, *self.folders])])

    def root(self, number: int) -> str:
        """Return where a root lies when the closure is laid out: a relative path that ends in ``/``, or ''.

        So many steps down that whatever a name leads out to is its own: no compiler shall find there what
        the search did not.
        """
        return (f".include-{number}/" if number else "") + "_/" * self.depth

    def places(self) -> dict[tuple[int, str], str]:
        """Return where each file and folder lies when the closure is laid out: relative paths."""
        roots = {root: self.root(root) for root, _ in [*self.files, *self.folders]}
        return {each: posixpath.normpath(roots[each[0]] + each[1]) for each in [*self.files, *self.folders]}

    def lay(self, folder: str) -> None:
        """Write every file into a folder. Blocks.

        :raises OSError: there is no room.
        """
        places = self.places()
        for each in self.folders:
            os.makedirs(os.path.join(folder, places[each]), exist_ok=True)
        for each, content in self.files.items():
            place = os.path.join(folder, places[each])
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                file.write(content)


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it was found: where, by what real path (unshortened), and what is in it."""

    root: int
    path: str
    real: str
    content: bytes


def close_over(
    source: bytes,
    folder: str | None,
    include_paths: Sequence[str],
    *,
    read: Callable[[str], bytes | None],
    search_source: bool = True,
) -> Closure:
    """Return all that a source may include.

    A name in quotes is looked for in the folder of the including file, then on the include paths in their
    order; one in angle brackets only there. The first that is found counts, so a file that newly exists
    earlier in that order changes the closure.

    :param folder: the source's own folder; None: it has none.
    :param search_source: whether the source's own folder is searched for what the source itself includes.
    :param read: returns a file's content, or None where there is no file.
    :raises KeyDerivationError: a name is computed by macros or absolute, the closure is too large, or two
        names lead to one place and to different files there (through a symbolic link).
    :raises OSError: a file is there and cannot be read.
    """
    search = _Search(folder, include_paths, read)
    main = _File(0, "source", os.path.join(folder or "", "source"), source)
    search.follow(main, "the source", beside=search_source)
    while search.waiting:
        search.follow(search.waiting.pop())
    files = {place: found.content for place, found in sorted(search.found.items())}
    closure = Closure(files, frozenset(search.missing), frozenset(search.folders), search.astray)
    places = closure.places()
    if len({places[each] for each in files}) < len(files):
        raise KeyDerivationError(
            "two headers that the source includes would lie at one place when they are laid out, for a "
            "folder is called '_' or '.include-1' or the like, as the layout's own are: rename it"
        )
    return closure


class _Search:
    def __init__(
        self, folder: str | None, include_paths: Sequence[str], read: Callable[[str], bytes | None]
    ) -> None:
        self._roots = [folder, *include_paths]
        self._read = read
        self._answers: dict[str, bytes | None] = {}
        self._count = self._bytes = 0
        self.found: dict[tuple[int, str], _File] = {}
        self.waiting: list[_File] = []
        self._followed: set[tuple[int, str]] = set()
        self.missing: set[str] = set()
        self.folders: set[tuple[int, str]] = set()
        self.astray = 0

    def follow(self, file: _File, name: str = "", *, beside: bool = True) -> None:
        """Look for all that one file names."""
        scanned = scan(file.content)
        if scanned.computed:
            first = scanned.computed[0]
            raise KeyDerivationError(
                f"line {first.line} of {name or file.real} computes a header's name ({first.text!r}), so "
                "what it includes cannot be told without compiling, and no key covers it: name the header "
                "literally, or compile with get_or_compile() and a key of your own (CUDA's own headers come "
                "with NVRTC, and their folders need not be in include_paths)"
            )
        for include in scanned.includes:
            if include.name.startswith("/"):
                raise KeyDerivationError(
                    f"{name or file.real} includes {include.name!r} by its absolute path, which differs "
                    "between machines that share a key: give its folder in include_paths, and name it "
                    "relative to that"
                )
            hits = list(self._look(file, include, beside=beside))
            if include.quoted:
                self._stray(posixpath.join(posixpath.dirname(file.path), include.name))
            if not hits:
                self._stray(include.name)
                self.missing.add(include.name)
            for hit in hits:
                place = (hit.root, hit.path)
                if not include.probe and place not in self._followed:
                    self._followed.add(place)
                    self.waiting.append(hit)

    def _stray(self, spelled: str) -> None:
        """Note how far out a name leads, where there may be nothing."""
        self.astray = max(self.astray, _steps_out(posixpath.normpath(spelled)))

    def _look(self, file: _File, include: Include, *, beside: bool) -> Iterator[_File]:
        """Yield where a name leads: the first hit; for ``next`` each one, as compilers count differently."""
        if include.quoted and beside and self._roots[file.root] is not None:
            within, real = posixpath.dirname(file.path), os.path.dirname(file.real)
            if (hit := self._take(file.root, within, real, include.name)) is not None:
                yield hit
                if not include.next:
                    return
        for root in range(file.root + 1 if include.next else 1, len(self._roots)):
            folder = self._roots[root]
            if folder is not None and (hit := self._take(root, "", folder, include.name)) is not None:
                yield hit
                if not include.next:
                    return

    def _take(self, root: int, within: str, folder: str, name: str) -> _File | None:
        real = os.path.join(folder, name)
        content = self._content(real)
        if content is None:
            return None
        spelled = posixpath.join(within, name)
        path = posixpath.normpath(spelled)
        file = _File(root, path, real, content)
        known = self.found.setdefault((root, path), file)
        if known.content != content:
            raise KeyDerivationError(
                f"{known.real} and {real} are one place by name and hold different files, for a symbolic "
                "link lies between: include them by names without '..'"
            )
        self.folders.update((root, step) for step in _left_again(spelled))
        return known

    def _content(self, real: str) -> bytes | None:
        if real not in self._answers:
            content = self._answers[real] = self._read(real)
            if content is not None:
                self._count += 1
                self._bytes += len(content)
                if self._bytes > MAX_BYTES or self._count > MAX_FILES:
                    raise KeyDerivationError(
                        f"the source includes more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB of them "
                        f"(conditionals are ignored); the last was {real}: is a folder in include_paths that "
                        "need not be?"
                    )
        return self._answers[real]


def _left_again(spelled: str) -> Iterator[str]:
    """Yield the folders of a path that ``..`` leads out of again."""
    done: list[str] = []
    for step in spelled.split("/"):
        if step == ".." and done and done[-1] != "..":
            yield "/".join(done)
            done.pop()
        elif step not in ("", "."):
            done.append(step)


def _steps_out(path: str) -> int:
    steps = path.split("/")
    return next((count for count, step in enumerate(steps) if step != ".."), len(steps))


def read_header(path: str) -> bytes | None:
    """Return a file's content; None where there is no file (a folder is none). Blocks.

    :raises OSError: there is one and it cannot be read, or it is no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # no FIFO shall hold us up
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a NUL in the name
        return None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return None
        raise
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            return None
        if not stat.S_ISREG(kind):
            raise OSError(f"{path} is no regular file, so it cannot be a header that a key covers")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
