"""The moves of the lease protocol on a real folder: take, lose, seal, give back, withdraw, fail, sweep."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from acache import _moves, _store
from acache._beat import beat
from acache._format import RECORD_BYTES, decode_record, encode_record
from acache._fs import OsFileSystem
from acache._host import ProcessState
from acache._moves import Bequest, Held, Lease, acquire, draw_record, observe, release, settle, sweep, walk
from acache._protocol import Chain
from tests.sim.values import ME, bytes_of, cheap, do, failed, good, layout_at, subject_in

if TYPE_CHECKING:
    from acache._store import Layout, Subject

DAY = 24 * 3600.0


@pytest.fixture(params=["link", "linkless"])
def layout(cache_dir: Path, request: pytest.FixtureRequest) -> Layout:
    return layout_at(cache_dir, linkless=request.param == "linkless")


@pytest.fixture
def subject(layout: Layout) -> Subject:
    subject = subject_in(layout)
    os.makedirs(subject.paths.folder)
    return subject


def names(subject: Subject) -> set[str]:
    """Return the files of the key: ``root``, ``lease.<nonce>``, ``art``, ``err``; others by their names."""
    stem = subject.paths.stem + "."
    return {
        name.removeprefix(stem) if name.startswith(stem) else name
        for name in os.listdir(subject.paths.folder)
    }


def take(layout: Layout, subject: Subject, follows: str | None = None, **record: Any) -> Lease:
    held = do(acquire(layout, subject, follows, draw_record(layout, **record)))
    assert isinstance(held, Held)
    return held.lease


def chain_of(layout: Layout, subject: Subject) -> list[str]:
    chain = do(walk(layout, subject.paths))
    assert isinstance(chain, Chain)
    assert chain.broken is None
    return [slot.record.nonce for slot in chain.slots]


class Odd(OsFileSystem):
    """The real file system with an errand before, or an answer instead of, the operations of one name."""

    def __init__(self, name: str, instead: Any = None, *, before: Any = None, after: int = 0) -> None:
        self.name, self.instead, self.before, self.after = name, instead, before, after

    def __getattribute__(self, name: str) -> Any:
        what = object.__getattribute__(self, name)
        if name.startswith("_") or name != object.__getattribute__(self, "name"):
            return what

        def call(*arguments: Any) -> Any:
            self.after -= 1
            if self.after >= 0:
                return what(*arguments)
            if self.before is not None:
                errand, self.before = self.before, None
                errand(*arguments)
            return what(*arguments) if self.instead is None else self.instead(what, *arguments)

        return call


def refuse(number: int) -> Any:
    def answer(what: Any, *arguments: Any) -> None:
        raise OSError(number, os.strerror(number), str(arguments[0]))

    return answer


def refuse_once(number: int) -> Any:
    def errand(*arguments: Any) -> None:
        raise OSError(number, os.strerror(number), str(arguments[0]))

    return errand


# --- seeing ----------------------------------------------------------------------------------------------


def test_a_walk_ends_at_the_tail(layout: Layout, subject: Subject):
    assert do(walk(layout, subject.paths)) == Chain()
    one = take(layout, subject)
    two = take(layout, subject, one.nonce)
    three = take(layout, subject, two.nonce, hedge=True)
    chain = do(walk(replace(layout, network=True), subject.paths))
    assert [slot.record.nonce for slot in chain.slots] == [one.nonce, two.nonce, three.nonce]
    assert [slot.follows for slot in chain.slots] == [None, one.nonce, two.nonce]
    assert chain.tail is not None
    assert chain.tail.record.hedge


@pytest.mark.parametrize("damage", ["empty", "one", "half", "flipped", "longer"])
def test_torn_slots_end_no_walk_and_can_be_taken_over(layout: Layout, subject: Subject, damage: str):
    def tear(path: str) -> None:
        data = encode_record(draw_record(layout))
        flipped = bytearray(data)
        flipped[200] ^= 1
        torn = {"empty": b"", "one": data[:1], "half": data[:256], "longer": data + b"x"}
        Path(path).write_bytes(torn.get(damage, bytes(flipped)))

    tear(subject.paths.slot(None))
    (root,) = chain_of(layout, subject)
    tear(subject.paths.slot(root))
    chain = do(walk(layout, subject.paths))
    assert [slot.record.torn for slot in chain.slots] == [True, True]
    lease = take(layout, subject, chain.slots[1].record.nonce)
    assert chain_of(layout, subject)[-1] == lease.nonce
    assert do(release(layout, subject, lease)) is True
    assert names(subject) == set()


def test_a_loop_is_no_coordination(layout: Layout, subject: Subject):
    one = take(layout, subject)
    os.link(one.slot, one.successor)
    chain = do(walk(layout, subject.paths))
    assert chain.broken is not None
    assert "does not end" in chain.broken


def test_sixty_four_slots_are_enough(layout: Layout, subject: Subject):
    follows: str | None = None
    for count in range(1, 66):
        record = draw_record(layout)
        Path(subject.paths.slot(follows)).write_bytes(encode_record(record))
        follows = record.nonce
        chain = do(walk(layout, subject.paths))
        assert (chain.broken is None) == (count <= 64)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ELOOP])
def test_a_slot_that_cannot_be_read_is_no_coordination(layout: Layout, subject: Subject, number: int):
    take(layout, subject)
    seen = do(observe(layout, subject), Odd("head", refuse(number)))
    assert seen.chain.broken == f"a lease cannot be read: {os.strerror(number)}"


def test_a_handle_that_stays_stale_ends_the_chain(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    once = Odd("head", lambda what, *arguments: what(*arguments), before=refuse_once(errno.ESTALE))
    assert do(walk(layout, subject.paths), once).slots[0].record.nonce == lease.nonce
    assert do(walk(layout, subject.paths), Odd("head", refuse(errno.ESTALE))) == Chain()


def test_an_artifact_spares_the_walk(layout: Layout, subject: Subject):
    take(layout, subject)
    do(_store.publish(layout, subject.paths, subject.paths.art, good(subject)))
    seen = do(observe(layout, subject))
    assert (seen.artifact.what, seen.chain) == ("artifact", Chain())
    assert len(do(observe(layout, subject, rejected={seen.artifact.identity})).chain.slots) == 1
    assert len(do(observe(layout, subject, whole=True)).chain.slots) == 1


@pytest.mark.parametrize(
    ("state", "changes", "dead"),
    [
        (ProcessState(exists=False), {}, True),
        (ProcessState(exists=True, starttime=1_000), {}, False),
        (ProcessState(exists=True, starttime=2_000), {}, True),
        (ProcessState(exists=True, starttime=1_000, zombie=True), {}, True),
        (ProcessState(exists=None), {}, False),
        (ProcessState(exists=False), {"boot_id": "boot-two"}, False),
        (ProcessState(exists=False), {"pidns": 2}, False),
        (ProcessState(exists=False), {"timens": 2}, False),
        (ProcessState(exists=False), {"proc_honest": False}, False),
        (ProcessState(exists=False), {"boot_id": None}, False),
    ],
)
def test_identity_proves_death_on_one_host_only(
    layout: Layout, subject: Subject, state: ProcessState, changes: dict[str, Any], dead: bool
):
    take(layout, subject)
    observer = replace(layout, identity=replace(ME, **{"pid": 200, **changes}))
    seen = do(observe(observer, subject), Odd("process", lambda what, pid: state))
    assert seen.chain.tail_is_dead is dead


@pytest.mark.parametrize("pid", [0, -1, "100", True, None, 1.5])
def test_a_pid_that_is_none_is_not_looked_up(layout: Layout, subject: Subject, pid: Any):
    assert (
        do(_moves.is_dead(layout, draw_record(layout, pid=pid)), Odd("process", refuse(errno.EIO))) is False
    )


# --- taking ----------------------------------------------------------------------------------------------


def test_a_lease_is_a_record_in_the_root_slot(layout: Layout, subject: Subject):
    record = draw_record(layout, label="softmax", usual_ms=1500)
    held = do(acquire(layout, subject, None, record))
    assert held.lease == Lease(subject.paths, None, record.nonce, ME.pid)
    assert not held.lease.rival
    assert names(subject) == {"lease"}
    data = Path(held.lease.slot).read_bytes()
    assert len(data) == RECORD_BYTES
    found = decode_record(data, "x")
    assert found == record
    assert found.tail == {**ME.as_record(), "label": "softmax", "usual_ms": 1500}
    assert (found.ttl_ms, found.interval_ms) == (2000, 500)


def test_the_folder_is_made_when_it_is_missing(layout: Layout, subject: Subject):
    os.rmdir(subject.paths.folder)
    held = None
    for _ in range(2):  # without link the first attempt only makes the folder
        held = held or do(acquire(layout, subject, None, draw_record(layout)))
    assert held is not None
    assert names(subject) == {"lease"}


def test_every_record_has_a_nonce_of_its_own(layout: Layout):
    assert len({draw_record(layout).nonce for _ in range(100)}) == 100


def test_one_of_two_gets_it(layout: Layout, subject: Subject):
    one = take(layout, subject)
    assert do(acquire(layout, subject, None, draw_record(layout))) is None
    two = take(layout, subject, one.nonce)
    assert two.rival
    assert do(acquire(layout, subject, one.nonce, draw_record(layout))) is None
    assert names(subject) == {"lease", f"lease.{one.nonce}"}


def lost_reply(number: int) -> Any:
    def answer(what: Any, *arguments: Any) -> None:
        what(*arguments)
        raise OSError(number, os.strerror(number), str(arguments[0]))

    return answer


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO, errno.EPERM])
def test_whatever_link_answers_the_slot_decides(layout: Layout, subject: Subject, number: int):
    """A lost reply tells the winner EEXIST; sshfs tells losers EPERM."""
    operation = "create" if layout.linkless else "link"
    held = do(acquire(layout, subject, None, draw_record(layout)), Odd(operation, lost_reply(number)))
    assert held is not None
    loser = Odd(operation, refuse(number))
    assert do(acquire(layout, subject, None, draw_record(layout)), loser) is None
    assert names(subject) == {"lease"}


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV])
def test_where_link_is_refused_the_slot_is_created(cache_dir: Path, number: int):
    layout = layout_at(cache_dir)
    subject = subject_in(layout)
    fs = Odd("link", refuse(number))
    held = do(acquire(layout, subject, None, draw_record(layout)), fs)
    assert held is not None
    assert do(acquire(layout, subject, None, draw_record(layout)), fs) is None
    assert names(subject) == {"lease"}
    assert do(release(layout, subject, held.lease), fs) is True
    assert names(subject) == set()


def test_a_slot_that_cannot_be_written_is_removed_at_once(cache_dir: Path):
    layout = layout_at(cache_dir, linkless=True)
    subject = subject_in(layout)

    def tear(what: Any, path: str, chunks: Any, durable: bool) -> None:
        what(path, (bytes(chunks[0])[:100],), durable)
        raise OSError(errno.ENOSPC, "full", path)

    os.makedirs(subject.paths.folder)
    with pytest.raises(OSError, match="full"):
        do(acquire(layout, subject, None, draw_record(layout)), Odd("create", tear))
    assert names(subject) == set()


def test_a_full_disk_is_told_and_leaves_nothing(layout: Layout, subject: Subject):
    with pytest.raises(OSError, match="No space"):
        do(acquire(layout, subject, None, draw_record(layout)), Odd("create", refuse(errno.ENOSPC)))
    assert names(subject) == set()


def test_a_takeover_whose_predecessor_is_gone_is_withdrawn(layout: Layout, subject: Subject):
    assert do(acquire(layout, subject, "e" * 32, draw_record(layout))) is None
    assert names(subject) == set()
    stranger = take(layout, subject)
    assert do(acquire(layout, subject, "e" * 32, draw_record(layout))) is None
    assert names(subject) == {"lease"}
    assert chain_of(layout, subject) == [stranger.nonce]


def test_the_last_look_finds_what_came_meanwhile(layout: Layout, subject: Subject):
    do(_store.publish(layout, subject.paths, subject.paths.err, failed(subject, "f" * 32)))
    held = do(acquire(layout, subject, None, draw_record(layout)))
    assert held.seen.failure is not None
    do(_store.publish(layout, subject.paths, subject.paths.art, good(subject)))
    held = do(acquire(layout, subject, held.lease.nonce, draw_record(layout)))
    assert held.seen.artifact.what == "artifact"


def test_a_last_look_that_fails_gives_the_lease_back(layout: Layout, subject: Subject):
    with pytest.raises(OSError, match="Input/output"):
        do(acquire(layout, subject, None, draw_record(layout)), Odd("read", refuse(errno.EIO)))
    assert names(subject) == set()


# --- beating ---------------------------------------------------------------------------------------------


def beats(lease: Lease, counter: int, progress: int = 0) -> str:
    answer = do(beat(lease.slot, lease.successor, lease.nonce, counter, progress, lease.paths.folder))
    assert isinstance(answer, str)
    return answer


def test_a_beat_is_seen_in_the_record(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    assert beats(lease, 3, 400) == "beaten"
    (slot,) = do(walk(layout, subject.paths)).slots
    assert (slot.record.counter, slot.record.progress, slot.record.nonce) == (3, 400, lease.nonce)


def test_a_beat_meets_a_successor_a_stranger_or_nothing(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    rival = take(layout, subject, lease.nonce, hedge=True)
    assert beats(lease, 1) == "superseded"
    do(release(layout, subject, rival, withdraw=True))
    assert beats(lease, 2) == "beaten"
    do(release(layout, subject, lease))
    assert beats(lease, 3) == "gone"
    stranger = take(layout, subject)
    assert beats(lease, 4) == "foreign"
    (slot,) = do(walk(layout, subject.paths)).slots
    assert (slot.record.nonce, slot.record.counter) == (stranger.nonce, 0)


# --- giving back -----------------------------------------------------------------------------------------


def test_release_leaves_nothing_and_may_be_repeated(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    assert do(release(layout, subject, lease)) is True
    assert names(subject) == set()
    assert do(release(layout, subject, lease)) is True
    assert names(subject) == set()


def test_release_removes_the_chain_before_it(layout: Layout, subject: Subject):
    one = take(layout, subject)
    two = take(layout, subject, one.nonce)
    three = take(layout, subject, two.nonce)
    gone: list[str] = []
    fs = Odd("unlink", lambda what, path: (gone.append(path), what(path))[1])
    assert do(release(layout, subject, three), fs) is True
    slots = [path for path in gone if "/.t." not in path]
    assert slots == [one.slot, two.slot, three.slot, three.successor]
    assert names(subject) == set()


def test_a_superseded_holder_deletes_nothing(layout: Layout, subject: Subject):
    one = take(layout, subject)
    two = take(layout, subject, one.nonce)
    assert do(release(layout, subject, one, failure=failed(subject, one.nonce))) is False
    assert names(subject) == {"lease", f"lease.{one.nonce}"}
    assert chain_of(layout, subject) == [one.nonce, two.nonce]


def test_without_a_seal_nothing_is_deleted(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    fs = Odd("create", refuse(errno.ENOSPC))
    assert do(release(layout, subject, lease, failure=failed(subject, lease.nonce)), fs) is False
    assert names(subject) == {"lease"}


def test_a_seal_keeps_others_out(layout: Layout, subject: Subject):
    """Between the seal and the unlinks the slot is taken: who links behind the releaser loses."""
    lease = take(layout, subject)
    lost: list[Any] = []

    def rush(path: str) -> None:
        if path == lease.slot:
            lost.append(do(acquire(layout, subject, lease.nonce, draw_record(layout))))
            lost.append(do(walk(layout, subject.paths)).tail.record.closed)

    fs = Odd("unlink", lambda what, path: (rush(path), what(path))[1])
    assert do(release(layout, subject, lease), fs) is True
    assert lost == [None, True]
    assert names(subject) == set()


def test_a_late_release_spares_a_strangers_root(layout: Layout, subject: Subject):
    one = take(layout, subject)
    two = take(layout, subject, one.nonce)
    do(release(layout, subject, two))
    stranger = take(layout, subject)
    assert do(release(layout, subject, one, failure=failed(subject, one.nonce))) is True
    assert names(subject) == {"lease"}
    assert chain_of(layout, subject) == [stranger.nonce]
    assert do(release(layout, subject, two, withdraw=True)) is True
    assert names(subject) == {"lease"}


def test_a_rival_withdraws_only_itself(layout: Layout, subject: Subject):
    one = take(layout, subject)
    rival = take(layout, subject, one.nonce, hedge=True)
    assert do(release(layout, subject, rival, withdraw=True)) is True
    assert names(subject) == {"lease"}
    assert chain_of(layout, subject) == [one.nonce]


def test_an_original_that_withdraws_frees_the_root(layout: Layout, subject: Subject):
    one = take(layout, subject)
    assert do(release(layout, subject, one, withdraw=True)) is True
    assert names(subject) == set()


def test_a_seal_that_somebody_was_suspended_in_can_be_taken_over(layout: Layout, subject: Subject):
    """Crash between seal and unlink: the closed tail is silent, its slot opens, and all goes at the end."""
    lease = take(layout, subject)
    fs = Odd("unlink", refuse(errno.EROFS), after=0 if layout.linkless else 1)
    do(release(layout, subject, lease), fs)
    tail = do(walk(layout, subject.paths)).tail
    assert tail.record.closed
    heir = take(layout, subject, tail.record.nonce)
    assert len(chain_of(layout, subject)) == 3
    assert do(release(layout, subject, heir)) is True
    assert names(subject) - {name for name in names(subject) if name.startswith(".t.")} == set()


# --- failing ---------------------------------------------------------------------------------------------


def test_a_failure_is_remembered_before_the_lease_goes(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    order: list[str] = []
    seen: list[set[str]] = []

    def note(what: Any, source: str, target: str) -> None:
        what(source, target)
        order.append(target)
        seen.append(names(subject))

    assert do(release(layout, subject, lease, failure=failed(subject, lease.nonce)), Odd("rename", note))
    assert order == [subject.paths.err]
    assert seen == [{"err", "lease", f"lease.{lease.nonce}"}]
    assert names(subject) == {"err"}
    found = do(_store.look(layout, subject)).failure
    assert found.holder == lease.nonce


def test_an_artifact_beats_a_failure(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    do(_store.publish(layout, subject.paths, subject.paths.art, good(subject)))
    do(release(layout, subject, lease, failure=failed(subject, lease.nonce)))
    assert names(subject) == {"art"}


def test_a_failure_that_cannot_be_written_still_frees_the_lease(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    fs = Odd("rename", refuse(errno.EIO))
    assert do(release(layout, subject, lease, failure=failed(subject, lease.nonce)), fs) is True
    assert names(subject) == set()


# --- settling --------------------------------------------------------------------------------------------


def test_a_result_is_there_before_the_lease_goes(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    seen: list[set[str]] = []
    operation = "create" if layout.linkless else "link"

    def note(*arguments: str) -> None:
        seen.append(names(subject))

    bequest = Bequest(artifact=good(subject))
    assert (
        do(settle(layout, subject, lease, bequest), Odd(operation, before=note, after=int(layout.linkless)))
        is None
    )
    assert all("art" in there for there in seen)
    assert len(seen) == 1
    assert names(subject) == {"art"}


def test_a_cheap_result_is_only_marked(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    assert do(settle(layout, subject, lease, Bequest(cheap=cheap(subject)))) is None
    assert names(subject) == {"art"}
    assert do(_store.read_artifact(layout, subject)).what == "cheap"


def test_an_artifact_that_cannot_be_kept_is_marked_so(layout: Layout, subject: Subject):
    """Waiters then compile at once and in parallel, not one after the other."""
    lease = take(layout, subject)
    bequest = Bequest(artifact=good(subject), unkept=cheap(subject, -1.0))
    fault = do(settle(layout, subject, lease, bequest), Odd("rename", refuse(errno.EFBIG)))
    assert fault.errno == errno.EFBIG
    found = do(_store.read_artifact(layout, subject))
    assert (found.what, found.seconds) == ("cheap", -1.0)
    assert names(subject) == {"art"}
    assert do(settle(layout, subject, None, bequest)) is None
    assert do(_store.read_artifact(layout, subject)).what == "artifact"


def test_what_was_never_meant_to_be_kept_is_marked_so(layout: Layout, subject: Subject):
    assert do(settle(layout, subject, None, Bequest(unkept=cheap(subject, -1.0)))) is None
    assert do(_store.read_artifact(layout, subject)).what == "cheap"


def test_a_fault_never_keeps_a_lease(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    operation = Odd("rename", refuse(errno.EIO))
    assert do(settle(layout, subject, lease, Bequest(artifact=good(subject))), operation).errno == errno.EIO
    assert names(subject) == set()


# --- housekeeping ----------------------------------------------------------------------------------------


def age(subject: Subject, *paths: str, days: float = 2.0) -> None:
    then = time.time() - days * DAY
    for path in paths or [f"{subject.paths.folder}/{name}" for name in os.listdir(subject.paths.folder)]:
        os.utime(path, (then, then))


def swept(layout: Layout, subject: Subject) -> int:
    count = do(sweep(layout, subject.paths.folder))
    assert isinstance(count, int)
    return count


def test_sweep_leaves_what_is_fresh(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    do(_store.publish(layout, subject.paths, subject.paths.err, failed(subject, lease.nonce)))
    Path(subject.paths.temporary()).write_bytes(b"half")
    Path(subject.paths.slot("e" * 32)).write_bytes(b"unreachable")
    before = names(subject)
    assert swept(layout, subject) == 0
    assert names(subject) == before


def test_sweep_takes_everything_but_entries(layout: Layout, subject: Subject):
    one = take(layout, subject)
    take(layout, subject, one.nonce)
    do(_store.publish(layout, subject.paths, subject.paths.art, good(subject)))
    do(_store.publish(layout, subject.paths, subject.paths.err, failed(subject, one.nonce)))
    Path(subject.paths.temporary()).write_bytes(b"half")
    Path(subject.paths.slot("e" * 32)).write_bytes(b"unreachable")
    other = subject_in(layout, "ab" + "7" * 62)
    Path(other.paths.slot("e" * 32)).write_bytes(b"unreachable, and no root at all")
    age(subject)
    assert swept(layout, subject) == 6
    assert names(subject) == {"art"}


def test_sweep_spares_a_chain_whose_tail_is_alive(layout: Layout, subject: Subject):
    one = take(layout, subject)
    two = take(layout, subject, one.nonce)
    age(subject, one.slot)
    assert swept(layout, subject) == 0
    assert chain_of(layout, subject) == [one.nonce, two.nonce]


def test_sweep_takes_a_seal_that_was_left(layout: Layout, subject: Subject):
    lease = take(layout, subject)
    Path(lease.successor).write_bytes(encode_record(draw_record(layout, closed=True)))
    age(subject)
    swept(layout, subject)
    assert names(subject) == set()


def test_sweep_loses_to_whoever_takes_the_tail_over(layout: Layout, subject: Subject):
    one = take(layout, subject)
    age(subject)
    heir: list[Lease] = []
    operation = "create" if layout.linkless else "link"
    fs = Odd(
        operation,
        before=lambda *arguments: heir.append(take(layout, subject, one.nonce)),
        after=1 if layout.linkless else 0,  # the first is the temporary that tells the time
    )
    assert do(sweep(layout, subject.paths.folder), fs) == 0
    assert chain_of(layout, subject) == [one.nonce, heir[0].nonce]


def test_beside_the_shards_only_old_temporaries_are_swept(layout: Layout, subject: Subject):
    folders = [Path(folder) for folder in _store.loose_folders(layout)]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (".t." + "0" * 32, ".t." + "1" * 32, ".t.mine", "notes.err", "x.lease", "keep"):
            (folder / name).touch()
            if "1" not in name:
                os.utime(folder / name, (1000, 1000))
    assert [do(_moves.sweep_temporaries(str(folder))) for folder in folders] == [1] * 4
    for folder in folders:
        assert not (folder / (".t." + "0" * 32)).exists()
        kept = {".t." + "1" * 32, ".t.mine", "notes.err", "x.lease", "keep"}
        assert kept <= {path.name for path in folder.iterdir()}
    assert do(_moves.sweep_temporaries(f"{layout.root}/none")) == 0


def test_sweep_of_what_is_not_there_or_cannot_be_written(layout: Layout, subject: Subject):
    assert swept(layout, subject) == 0
    take(layout, subject)
    age(subject)
    assert do(sweep(layout, subject.paths.folder), Odd("create", refuse(errno.EROFS))) == 0
    assert do(sweep(layout, subject.paths.folder), Odd("listdir", refuse(errno.EACCES))) == 0
    assert names(subject) == {"lease"}


def test_the_record_of_a_failure_reads_back(layout: Layout, subject: Subject):
    data = bytes_of(failed(subject, "f" * 32, text="k.cu:1: error"))
    Path(subject.paths.err).write_bytes(data)
    assert do(_store.look(layout, subject)).failure.entry.failure.text == "k.cu:1: error"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_a_folder_that_refuses_slots_is_told(cache_dir: Path, number: int):
    layout = layout_at(cache_dir, linkless=True)
    subject = subject_in(layout)
    with pytest.raises(OSError) as caught:  # noqa: PT011
        do(acquire(layout, subject, None, draw_record(layout)), Odd("create", refuse(number)))
    assert caught.value.errno == number


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_a_slot_that_somebody_is_writing_is_not_removed(cache_dir: Path, number: int):
    layout = layout_at(cache_dir, linkless=True)
    subject = subject_in(layout)
    os.makedirs(subject.paths.folder)
    Path(subject.paths.slot(None)).write_bytes(b"")
    assert do(acquire(layout, subject, None, draw_record(layout)), Odd("create", refuse(number))) is None
    assert names(subject) == {"lease"}
