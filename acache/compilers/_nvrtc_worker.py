"""What an NVRTC worker runs: it loads one NVRTC, then compiles what it is asked to, line by line.

It speaks as `acache.compilers.WorkerProgram` says: a greeting, then one JSON object out for each JSON object
in. Sources, headers and results go through files in the folder that it is started in. It imports the
bindings, and of acache only a module beside it that needs nothing else.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import IO, Any

from acache.compilers import _nvrtc_headers

TEXT_LIMIT = 64 * 1024
"""Characters kept of a log: the first half and the last half."""
HEADERS = ".cuda"
"""By what name the folder of NVRTC's own headers is seen from the working folder."""
_OWN = ".cuda-own"
"""By what name they are put into the working folder, where the folder that all workers share is of no use."""
_PARTS = {"cubin": "CUBIN", "ptx": "PTX", "ltoir": "LTOIR"}


class _RefusedError(Exception):
    """NVRTC answered with an error code."""

    def __init__(self, result: Any) -> None:
        super().__init__(result.name)
        self.result = result


class _Nvrtc:
    """One NVRTC, loaded from a given library."""

    def __init__(self, library: str, builtins: list[str], headers: tuple[str, str]) -> None:
        for path in (*builtins, library):  # by path, so that whoever asks for them by name gets these
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        from cuda.bindings import nvrtc

        self._api = nvrtc
        self._headers = headers
        self._laid_out: str | None = None  # where they were seen to be whole
        self._present = ""  # where `HEADERS` leads in this compile
        self._stamps: dict[str, int] = {}  # of what was seen to be whole
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self.version = ".".join(map(str, self._call(nvrtc.nvrtcVersion)))
        if foreign := {path for path in _mapped() if os.path.basename(path) == os.path.basename(library)} - {
            library
        }:
            raise OSError(f"the bindings loaded {sorted(foreign)[0]} instead of {library}")

    def _call(self, function: Any, *arguments: Any) -> tuple[Any, ...]:
        result, *rest = function(*arguments)
        if result != self._api.nvrtcResult.NVRTC_SUCCESS:
            raise _RefusedError(result)
        return tuple(rest)

    def compile(self, order: dict[str, Any]) -> dict[str, Any]:
        """Compile one source, in the working folder; the answer says how it ended."""
        notes: list[str] = []
        options = list(order["options"])
        if order["headers"]:
            if self._bring_headers():
                options += [f"-I{HEADERS}", f"-I{HEADERS}/cccl"]
            else:
                notes.append(
                    f"note: NVRTC {self.version} brings no headers of its own, as it does from 13.5 on; the "
                    "include folder of the CUDA toolkit has to be in include_paths"
                )
        answer = self._attempt(order, options)
        if order["headers"] and not notes and not self._had_headers(bool(answer["ok"])):
            self._bring_headers()  # somebody removed files of them meanwhile
            answer = self._attempt(order, options)
        if not answer["ok"]:
            answer["log"] = "\n".join([answer["log"], *notes]).strip("\n")
        if self._trim is not None:
            self._trim(0)
        return answer

    def _attempt(self, order: dict[str, Any], options: list[str]) -> dict[str, Any]:
        with open(order["source"], "rb") as file:
            source = file.read()
        api = self._api
        program = None
        log, lowered = "", {}
        try:
            (program,) = self._call(api.nvrtcCreateProgram, source, os.fsencode(order["name"]), 0, [], [])
            for expression in order["expressions"]:
                self._call(api.nvrtcAddNameExpression, program, os.fsencode(expression))
            try:
                words = [os.fsencode(option) for option in options]
                self._call(api.nvrtcCompileProgram, program, len(words), words)
            finally:
                log = self._log(program)
            for expression in order["expressions"]:
                (name,) = self._call(api.nvrtcGetLoweredName, program, os.fsencode(expression))
                lowered[expression] = name.decode()
            size = self._write(program, order["part"], order["output"])
        except _RefusedError as error:
            code = int(error.result.value)
            return {"ok": False, "code": code, "result": error.result.name, "log": log}
        finally:
            if program is not None:
                api.nvrtcDestroyProgram(program)
        return {"ok": True, "log": log, "lowered": lowered, "size": size}

    def _log(self, program: Any) -> str:
        (size,) = self._call(self._api.nvrtcGetProgramLogSize, program)
        buffer = bytearray(size)
        self._call(self._api.nvrtcGetProgramLog, program, buffer)
        return _bounded(bytes(buffer).rstrip(b"\0").decode("utf-8", "replace").strip("\n"))

    def _write(self, program: Any, part: str, output: str) -> int:
        """Write the result to a file; return its size, which is 0 when NVRTC made none of that kind."""
        name = _PARTS[part]
        (size,) = self._call(getattr(self._api, f"nvrtcGet{name}Size"), program)
        buffer = bytearray(size)
        if size:
            self._call(getattr(self._api, f"nvrtcGet{name}"), program, buffer)
        if part == "ptx":
            buffer = buffer.rstrip(b"\0")  # a C string
        with open(output, "wb") as file:
            file.write(buffer)
        return len(buffer)

    def _bring_headers(self) -> bool:
        """Let `HEADERS` lead to NVRTC's own headers; False if this one has none.

        :raises OSError: there is no room for them.
        """
        install = getattr(self._api, "nvrtcInstallBundledHeaders", None)
        if install is None:
            return False

        def lay(folder: str) -> None:
            deep = f"{folder}/{_nvrtc_headers.DEEP}"
            os.makedirs(deep)
            result, text = install(os.fsencode(deep), 0)
            if result != self._api.nvrtcResult.NVRTC_SUCCESS:
                raise OSError(f"NVRTC could not lay out its headers: {result.name} {text!r}")

        if os.path.islink(HEADERS):  # it led to some that are not whole
            os.unlink(HEADERS)
            self._laid_out = None
        folder = self._laid_out
        if folder is None:
            try:
                folder = _nvrtc_headers.laid_out(*self._headers, _OWN, lay)
            except RuntimeError:  # the bindings know the function, and the library does not
                return False
            if folder != _OWN:
                self._laid_out = folder
            self._stamps = _nvrtc_headers.stamps(folder)
        os.symlink(f"{folder}/{_nvrtc_headers.DEEP}", HEADERS)
        self._present = folder
        return True

    def _had_headers(self, ok: bool) -> bool:
        """Whether a compile had all of NVRTC's own headers until its end.

        One that succeeded without some is as wrong as one that failed: ``__has_include`` chooses by them.
        """
        return _nvrtc_headers.unchanged(self._stamps) and (ok or _nvrtc_headers.whole(self._present))


def _mapped() -> set[str]:
    """Return the files that are mapped into this process, where that can be told."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            return {line.split(maxsplit=5)[5].rstrip("\n") for line in file if line.count(" /")}
    except OSError:
        return set()


def _bounded(text: str) -> str:
    if len(text) <= TEXT_LIMIT:
        return text
    half = TEXT_LIMIT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _say(channel: IO[bytes], answer: dict[str, Any]) -> None:
    channel.write(json.dumps(answer).encode() + b"\n")
    channel.flush()


def _note(log: str, name: str) -> None:
    """Append one line to the log of launches: before the compile, for after it one may be dead."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, f"nvrtc {os.getpid()} {name}\n".encode())
    finally:
        os.close(descriptor)


def main(arguments: list[str]) -> None:
    """Serve until the input ends.

    :param arguments: one JSON object: ``path`` (entries for ``sys.path``), ``library``, ``builtins``,
        ``headers`` (the folder for NVRTC's own headers and the toolchain's name in it), ``log`` (a file that
        gets a line per compile, or null).
    """
    facts = json.loads(arguments[0])
    sys.path += facts["path"]
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    try:
        nvrtc = _Nvrtc(facts["library"], facts["builtins"], tuple(facts["headers"]))
    except (ImportError, OSError, RuntimeError, _RefusedError) as error:
        _say(channel, {"missing": f'NVRTC cannot be used: {error}: pip install "acache[cuda]"'})
        return
    _say(channel, {"version": nvrtc.version})
    for line in sys.stdin.buffer:
        channel.write(b"\n")
        channel.flush()
        order = json.loads(line)
        began = time.monotonic()
        try:
            if facts["log"]:
                _note(facts["log"], order["name"])
            answer = nvrtc.compile(order)
        except MemoryError:
            answer = {"ok": False, "code": 1, "result": "NVRTC_ERROR_OUT_OF_MEMORY", "log": "out of memory"}
        except OSError as error:
            answer = {"ok": False, "code": 0, "result": "disk", "log": str(error)}
        # What this process holds in pieces, a new one has whole.
        last = not answer["ok"] and "out of memory" in answer["log"]
        _say(channel, answer | {"seconds": time.monotonic() - began, "last": last})
