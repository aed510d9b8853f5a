"""Two users and a group share one root; a shard that is not theirs only costs what is not stored there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import acache
from acache._keys import name_of
from tests.faults.worker import COMMAND
from tests.process.fleet import Fleet

pytestmark = pytest.mark.root

ALICE, BOB, TEAM = 4711, 4712, 4720
BACKENDS = [("asyncio", {}), ("asyncio", {"use_uvloop": True}), ("trio", {})]
LOOPS = pytest.mark.parametrize("backend", BACKENDS, ids=["asyncio", "uvloop", "trio"])


@pytest.fixture
def shared(place):
    """Return a root that belongs to a group: setgid, and group-writable, as an administrator makes it."""
    root = place / "cache"
    root.mkdir()
    os.chown(root, 0, TEAM)
    root.chmod(0o2775)
    return root


def visit(backend, root, user, *, trust="group", source="source", umask=0o002, team=True, **more):
    """Let one user ask for one key, and return what was seen."""
    orders = {
        "directory": str(root),
        "uid": user,
        "gid": user,
        "groups": [TEAM] if team else [],
        "umask": umask,
        "source": source,
        "settings": {"trust": trust, **more.pop("settings", {})},
        **more,
    }
    with Fleet(1, backend, prefix=COMMAND, **orders) as fleet:
        (report,) = fleet.run()
    assert report["errors"] == []
    return report


def files(root):
    return [path for path in root.rglob("*") if path.is_file() and path.suffix == ".art"]


@LOOPS
def test_what_one_compiles_the_other_finds(backend, shared):
    assert visit(backend, shared, ALICE)["origin"] == "compiled"
    (entry,) = files(shared)
    info = entry.stat()
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (ALICE, TEAM, 0o664)
    assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o2775
    found = visit(backend, shared, BOB)
    assert (found["origin"], found["spans"], found["warnings"]) == ("disk", [], [])


@LOOPS
def test_who_trusts_only_himself_compiles_and_replaces(backend, shared):
    visit(backend, shared, ALICE)
    found = visit(backend, shared, BOB, trust="user")
    assert (found["origin"], found["stats"]["untrusted"]) == ("compiled", 1)
    (entry,) = files(shared)
    assert entry.stat().st_uid == BOB
    assert visit(backend, shared, BOB, trust="user")["origin"] == "disk"
    assert visit(backend, shared, ALICE)["origin"] == "disk"


@LOOPS
def test_a_shard_of_one_s_own_stays_one_s_own(backend, shared):
    """A umask of 022: what Alice made the others of the group may read, and not replace."""
    visit(backend, shared, ALICE, umask=0o022)
    (entry,) = files(shared)
    before = entry.read_bytes()
    assert visit(backend, shared, BOB)["origin"] == "disk"
    found = visit(backend, shared, BOB, trust="user", calls=2)
    assert (found["origin"], len(found["spans"])) == ("memory", 1)  # compiled, and kept in memory
    assert entry.read_bytes() == before
    assert len(found["warnings"]) <= 2
    for source in range(300):  # a shard that nobody used yet
        name = name_of(acache.key(source=f"other {source}"), None)
        if not (shared / "v1" / name[:2]).exists():
            break
    assert os.access(shared / "v1", os.W_OK)


@LOOPS
def test_an_unwritable_shard_degrades_nothing_else(backend, shared):
    visit(backend, shared, ALICE, source="first")
    (entry,) = files(shared)
    shard = entry.parent
    entry.unlink()
    os.chown(shard, 0, 0)
    shard.chmod(0o755)
    found = visit(backend, shared, BOB, source="first")
    assert found["origin"] == "compiled"
    assert files(shared) == []
    assert found["stats"]["store_errors"] + found["stats"]["uncoordinated_compiles"] >= 1
    other = next(
        f"other {number}"
        for number in range(1000)
        if name_of(acache.key(source=f"other {number}"), None)[:2] != shard.name
    )
    found = visit(backend, shared, BOB, source=other)
    assert (found["origin"], found["warnings"]) == ("compiled", [])
    assert len(files(shared)) == 1
    assert visit(backend, shared, ALICE, source=other)["origin"] == "disk"


def test_both_evict_what_either_made(shared):
    limits = {"settings": {"max_bytes": 10 * 8192, "max_entry_bytes": 5 * 8192}}
    for number in range(16):
        visit(BACKENDS[number % 3], shared, [ALICE, BOB][number % 2], source=f"source {number}", **limits)
        left = files(shared)
        assert sum(path.stat().st_size for path in left) <= 10 * 8192
    assert {Path(path).stat().st_uid for path in left} == {ALICE, BOB}


def test_a_stranger_reads_nothing_into_it(shared):
    """Who is not in the group, and trusts it, is served nothing of it; and cannot write."""
    visit(BACKENDS[0], shared, ALICE)
    found = visit(BACKENDS[0], shared, 4799, team=False)
    assert (found["origin"], found["stats"]["untrusted"]) == ("compiled", 1)
    (entry,) = files(shared)
    assert entry.stat().st_uid == ALICE
