"""The example services, run as a user would: several workers, clients that give up, and signals."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

import acache
from tests.examples.services import HANG, Compiler, Service, remains, until

SERVERS = {
    "uvicorn": ["-m", "uvicorn", "--workers", "2", "--loop", "uvloop", "--port", "0", "service:app"],
    "hypercorn": ["-m", "hypercorn", "--workers", "2", "-k", "trio", "-b", "127.0.0.1:0", "service:app"],
}


@pytest.fixture
def compiler(tmp_path):
    return Compiler(tmp_path)


@pytest.fixture(params=SERVERS)
def service(request, tmp_path, compiler):
    """Run the service with two workers, on uvloop and on trio."""
    environ = {"SERVICE_COMPILER": str(compiler.script), "SERVICE_SECONDS": "0.1"}
    with Service(tmp_path, SERVERS[request.param], **environ) as service:
        service.wait_ready()
        yield service


def gives_up(service, path):
    """Be a client that waits for a second; whether it went away empty-handed."""
    try:
        service.get(path, timeout=1.0)
    except TimeoutError:
        return True
    return False


def test_clients_give_up_and_the_next_request_hits(service, compiler):
    with ThreadPoolExecutor(6) as pool:
        clients = [pool.submit(gives_up, service, "/kernels/softmax") for _ in range(6)]
        workers, answered = set(), 0
        while not all(client.done() for client in clients):
            workers.add(json.loads(service.get("/health").body)["pid"])
            answered += 1
        assert [client.result() for client in clients] == [True] * 6
    assert answered > 1  # answered while they waited
    assert service.process.pid not in workers
    assert len(compiler.launches) == 1

    answer = service.get("/kernels/softmax?wait=0.1")
    assert answer.status == 503
    holder = json.loads(answer.body)
    assert (holder["state"], holder["host"]) == ("compiling", socket.gethostname())
    assert os.path.exists(f"/proc/{holder['pid']}")
    assert int(answer.headers["retry-after"]) >= 1

    compiler.go()
    answers = []

    def hits():
        answers.append(service.get("/kernels/softmax"))
        return answers[-1].headers["x-origin"] in ("memory", "disk")

    until(hits, "requests find what nobody waited for")
    answers += [service.get("/kernels/softmax") for _ in range(8)]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1
    assert len(compiler.launches) == 1
    assert service.stop() in (0, -signal.SIGTERM)


def test_an_error_is_told_to_all_in_the_compilers_words(service, compiler):
    compiler.go()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: service.get("/kernels/broken"), range(4)))
    assert {answer.status for answer in answers} == {422}
    assert {answer.body for answer in answers} == {
        b"the compiler refused the input (exit status 1)\nkernel.py:1:11: error: '(' was never closed\n"
    }
    assert len(compiler.launches) == 1
    assert service.get("/kernels/nonsense").status == 404


def test_a_signal_in_the_middle_of_a_compile_leaves_nothing_behind(service, compiler):
    assert gives_up(service, "/kernels/softmax")
    (pid,) = compiler.launches
    assert any(line.startswith(f"{pid}:") for line in remains(service.folder))
    assert service.stop() in (0, -signal.SIGTERM)
    assert not list((service.folder / "cache").rglob("*.art"))
    assert not list((service.folder / "tmp").glob("*/*"))  # no workspace


def test_who_waits_when_the_signal_comes_is_answered(tmp_path, compiler):
    environ = {"SERVICE_COMPILER": str(compiler.script), "SERVICE_SECONDS": "0.1"}
    with Service(tmp_path, SERVERS["uvicorn"], **environ) as service, ThreadPoolExecutor(1) as pool:
        service.wait_ready()
        client = pool.submit(service.get, "/kernels/softmax")
        until(lambda: compiler.launches, "the compiler runs")
        service.process.terminate()
        until(lambda: "Shutting down" in service.log, "the service heard the signal")
        compiler.go()
        assert client.result().status == 200
        assert service.stop() in (0, -signal.SIGTERM)
    assert len(list((tmp_path / "cache").rglob("*.art"))) == 1


# --- downloads ---------------------------------------------------------------------------------------------

KEY = acache.key(kernel="softmax")
BODY = os.urandom(1 << 20) * 48  # more than sockets hold


@pytest.fixture
def downloads(tmp_path):
    """Run two services on one folder that holds an artifact."""

    async def publish():
        async with acache.Cache(tmp_path / "cache") as cache:
            await cache.put(KEY, acache.Artifact({"cubin": BODY, "map": b"a map"}))

    anyio.run(publish)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    argv = ["downloads.py", str(tmp_path / "cache"), "127.0.0.1", "0"]
    with Service(tmp_path / "one", argv) as one, Service(tmp_path / "two", argv) as two:
        for service in (one, two):
            service.wait_ready("/")
        yield one, two


def test_downloads(downloads):
    def get(path):
        return [service.get(path) for service in downloads]

    for answer in get(f"/artifacts/{KEY.hex}"):
        assert answer.status == 200
        assert answer.headers["Content-Length"] == str(len(BODY))
        assert answer.body == BODY
    assert {answer.body for answer in get(f"/artifacts/{KEY.hex}/map")} == {b"a map"}
    for answer in get(f"/artifacts/{KEY.hex}/ptx"):
        assert (answer.status, answer.body) == (
            404,
            b"there is no part 'ptx'; this artifact has 'cubin', 'map'\n",
        )
    assert {answer.status for answer in get("/artifacts/" + "0" * 64)} == {404}
    assert {answer.status for answer in get("/artifacts/nonsense")} == {400}
    for service in downloads:
        assert service.stop() == 0


def holding(service, path):
    """Return how often the service has a file open; its name may be gone."""
    folder = f"/proc/{service.process.pid}/fd"
    return sum(os.readlink(f"{folder}/{fd}").startswith(str(path)) for fd in os.listdir(folder))


def test_what_happens_to_a_slow_client(downloads, tmp_path):
    (entry,) = (tmp_path / "cache").rglob("*.art")
    whole, spoilt, gone = connections = [
        http.client.HTTPConnection("127.0.0.1", downloads[0].port(), timeout=HANG) for _ in range(3)
    ]
    try:
        answers = []
        for connection in connections:
            connection.request("GET", f"/artifacts/{KEY.hex}")
            answers.append(connection.getresponse())
        until(lambda: holding(downloads[0], entry) == 3, "all three have the file open")
        gone.close()
        answers[2].close()
        until(lambda: holding(downloads[0], entry) == 2, "the client that left is forgotten")

        kept = entry.with_suffix(".kept")
        os.link(entry, kept)
        entry.unlink()  # evicted
        assert answers[0].read() == BODY
        until(lambda: holding(downloads[0], entry) == 1, "the first client has all")

        with open(kept, "r+b") as file:
            file.seek(-20 << 20, os.SEEK_END)
            file.write(b"rot")
        with pytest.raises(http.client.IncompleteRead):
            answers[1].read()
        until(lambda: not holding(downloads[0], entry), "the file is closed")
        until(lambda: "changed while it was streamed" in downloads[0].log, "the service said why")
    finally:
        for connection in (whole, spoilt):
            connection.close()
        for answer in answers:
            answer.close()
