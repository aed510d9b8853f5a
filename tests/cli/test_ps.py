"""``acache ps``: finds holders, tells how a waiter would judge them, and only reads."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import acache as package
from acache._format import encode_beat
from acache._host import my_identity
from acache._keys import name_of
from acache._settings import Settings
from acache.cli._ps import Observer, find
from tests.cli.conftest import NAME, NONCE

OTHER = "cd" * 32
HERE = my_identity().as_record()
ELSEWHERE = {"host": "other-host", "pid": 4711, "boot_id": "another boot"}


class Time:
    """A clock that only sleeping moves; ``each`` is called with every tick."""

    def __init__(self, each=lambda: None):
        self.now = 1000.0
        self.each = each

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.each()


class Holder:
    """Beats a record as its holder would, once per two seconds of a `Time`."""

    def __init__(self, slot, time, progress=lambda beat: 100 * beat):
        self.slot, self.time, self.progress, self.beat = slot, time, progress, 0

    def __call__(self):
        if self.time.now - 1000.0 >= 2 * (self.beat + 1):
            self.beat += 1
            with open(self.slot, "r+b") as file:
                file.write(encode_beat(self.beat, self.progress(self.beat)))


def watch(layout, time, seconds, **settings):
    observer = Observer(layout, Settings(**settings), clock=time, sleep=time.sleep)
    return observer.observe(find(layout), seconds)


def one(holders):
    (holder,) = holders
    return holder


# --- finding -----------------------------------------------------------------------------------------------


def test_a_directory_that_nobody_used_has_no_holders(acache, cache_dir):
    done = acache("ps", "--directory", str(cache_dir))
    assert done.exit_code == 0
    assert "Nobody compiles" in done.stdout
    assert not cache_dir.exists()  # it only reads


def test_finds_leases_and_nothing_else(layout, lay):
    lay()
    lay(OTHER, follows="1" * 32)  # a successor whose root is gone
    folder = Path(layout.paths(NAME).folder)
    (folder / f"{NAME[2:]}.art").write_bytes(b"entry")
    (folder / ".t.0123").write_bytes(b"temporary")
    (folder / "foreign.lease").write_bytes(b"no digest")
    (Path(layout.base) / "zz").mkdir()
    assert find(layout) == [NAME, OTHER]


def test_a_chain_without_a_root_has_no_holder(layout, lay):
    lay(OTHER, follows="1" * 32)
    assert watch(layout, Time(), 0) == []


def test_a_file_in_place_of_the_directory_is_no_holder(acache, tmp_path):
    (tmp_path / "file").write_text("")
    done = acache("ps", "-d", str(tmp_path / "file"), "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["compiles"] == []


def test_a_directory_that_cannot_be_read_is_code_1(acache, layout):
    base = Path(layout.base)
    base.parent.mkdir(parents=True)
    base.symlink_to(base)  # root, too, cannot follow it
    done = acache("ps", "-d", layout.root)
    assert done.exit_code == 1
    assert "cannot be read" in done.stderr


# --- judging -----------------------------------------------------------------------------------------------


def test_one_look_at_a_holder_that_runs_here(layout, lay):
    lay(counter=3, progress=1234, tail={**HERE, "label": "softmax", "usual_ms": 2500})
    holder = one(watch(layout, Time(), 0))
    assert (holder.name, holder.label, holder.pid) == (NAME, "softmax", os.getpid())
    assert (holder.beats, holder.progress, holder.age_s, holder.usual_s) == (3, 1234, 6.0, 2.5)
    assert holder.verdict == "alive"


def test_one_look_at_a_holder_that_died_here(layout, lay):
    lay(tail={**HERE, "starttime": HERE["starttime"] - 1})  # a recycled pid
    assert one(watch(layout, Time(), 0)).verdict == "dead"


def test_one_look_cannot_tell_about_another_host(layout, lay):
    lay(tail=ELSEWHERE)
    holder = one(watch(layout, Time(), 0))
    assert (holder.host, holder.pid, holder.verdict) == ("other-host", 4711, "unknown")
    assert "--for" in holder.why


@pytest.mark.parametrize("field", ["boot_id", "pidns", "timens", "pid", "starttime"])
def test_one_look_believes_nothing_that_is_not_certain(layout, lay, field):
    """An equal pid in another container, on another boot, or of an unknown age is not this holder."""
    lay(tail={**HERE, field: None})
    assert one(watch(layout, Time(), 0)).verdict == "unknown"


def test_a_shard_that_cannot_be_read_is_no_empty_one(layout, lay):
    lay()
    shard = Path(layout.base) / "00"
    shard.symlink_to(shard)
    with pytest.raises(OSError, match="symbolic links"):
        find(layout)
    shard.unlink()
    shard.write_text("a file in its place")
    assert find(layout) == [NAME]


def test_beats_prove_life_anywhere(layout, lay):
    time = Time()
    time.each = Holder(lay(tail=ELSEWHERE), time)
    holder = one(watch(layout, time, 5))
    assert (holder.verdict, holder.beats, holder.progress) == ("alive", 2, 200)


def test_silence_proves_death_even_of_a_process_that_runs(layout, lay):
    lay(counter=7, tail=HERE)
    assert one(watch(layout, Time(), 10)).verdict == "unknown"
    assert one(watch(layout, Time(), 16)).verdict == "dead"


def test_the_longer_ttl_counts(layout, lay):
    lay(tail=ELSEWHERE)
    assert one(watch(layout, Time(), 20, lease_ttl=30)).verdict == "unknown"
    assert one(watch(layout, Time(), 20, lease_ttl=10)).verdict == "dead"


def test_beats_without_progress_are_hedged(layout, lay):
    time = Time()
    time.each = Holder(lay(tail=ELSEWHERE), time, progress=lambda beat: 5)
    holder = one(watch(layout, time, 12, hedge_after=8))
    assert holder.verdict == "hedge"
    assert "no progress" in holder.why


def test_a_compile_far_over_its_usual_time_is_hedged(layout, lay):
    time = Time()
    time.each = Holder(lay(tail={**ELSEWHERE, "usual_ms": 1000}), time)
    holder = one(watch(layout, time, 7, hedge_after=4))
    assert holder.verdict == "hedge"
    assert "usual 1.0 s" in holder.why


def test_no_hedge_where_hedging_is_off_or_it_is_one_itself(layout, lay):
    for settings, flags in (({"hedge_after": None}, {}), ({"hedge_after": 4}, {"hedge": True})):
        time = Time()
        time.each = Holder(lay(tail=ELSEWHERE, **flags), time, progress=lambda beat: 5)
        assert one(watch(layout, time, 12, **settings)).verdict == "alive"


def test_a_sealed_chain_is_closing(layout, lay):
    lay(tail=ELSEWHERE)
    lay(follows=NONCE, nonce="2" * 32, closed=True, tail=ELSEWHERE)
    assert one(watch(layout, Time(), 0)).verdict == "closing"


def test_the_holder_is_the_tail_and_others_are_counted(layout, lay):
    lay(tail=ELSEWHERE)
    lay(follows=NONCE, nonce="2" * 32, hedge=True, tail={**HERE, "label": "rival"})
    holder = one(watch(layout, Time(), 0))
    assert (holder.label, holder.rivals) == ("rival", 1)


def test_a_torn_lease_is_dead_after_silence(layout, lay):
    slot = lay()
    slot.write_bytes(slot.read_bytes()[:100])
    holder = one(watch(layout, Time(), 0))
    assert (holder.verdict, holder.beats, holder.age_s) == ("unknown", None, None)
    assert one(watch(layout, Time(), 16)).verdict == "dead"


def test_a_chain_without_an_end_is_unknown(layout, lay):
    lay()
    lay(follows=NONCE)  # leads to itself
    holder = one(watch(layout, Time(), 0))
    assert holder.verdict == "unknown"
    assert "does not end" in holder.why


def test_a_holder_that_ends_meanwhile_is_gone_and_ends_the_watch(layout, lay):
    slot = lay(tail={**HERE, "label": "quick"})
    time = Time(each=lambda: slot.unlink(missing_ok=True))
    holder = one(watch(layout, time, 3600))
    assert (holder.verdict, holder.label) == ("gone", "quick")
    assert time.now < 1010


def test_a_successor_is_watched_afresh(layout, lay):
    """The silence of a dead holder must not be held against the one who took over."""
    time = Time()
    lay(tail=ELSEWHERE)

    def take_over():
        if time.now >= 1014 and not Path(layout.paths(NAME).slot(NONCE)).exists():
            lay(follows=NONCE, nonce="2" * 32, tail={**ELSEWHERE, "label": "heir"})

    time.each = take_over
    holder = one(watch(layout, time, 18))
    assert (holder.label, holder.verdict) == ("heir", "unknown")


# --- the command -------------------------------------------------------------------------------------------


def test_json_has_all_that_is_known(acache, layout, lay):
    lay(counter=2, progress=10, tail={**ELSEWHERE, "label": "gemm"})
    done = acache("ps", "--directory", layout.root, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["directory"] == layout.root
    assert found["compiles"] == [
        {
            "name": NAME,
            "label": "gemm",
            "host": "other-host",
            "pid": 4711,
            "age_s": 4.0,
            "beats": 2,
            "progress": 10,
            "usual_s": None,
            "rivals": 0,
            "verdict": "unknown",
            "why": found["compiles"][0]["why"],
        }
    ]


def test_the_table_shows_who_and_how_judged(acache, layout, lay):
    lay(tail={**HERE, "label": "gemm", "usual_ms": 1500})
    shown = acache("ps", "--directory", layout.root).stdout
    for word in (NAME[:12], "gemm", str(os.getpid()), "1.5 s", "alive"):
        assert word in shown


def test_a_label_of_a_stranger_cannot_drive_the_terminal(acache, layout, lay):
    evil = "\x1b]0;owned\x07[red]\u202e"
    lay(tail={**ELSEWHERE, "label": evil, "host": "h\x1b[2J"})
    shown = acache("ps", "--directory", layout.root).stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[red]" in shown  # shown as it is, not obeyed as markup
    assert "\x1b" not in acache("ps", "--directory", layout.root, "--json").stdout


def test_a_tail_of_the_wrong_types_is_shown_as_unknown(acache, layout, lay):
    lay(tail={"pid": "one", "host": 3, "label": ["x"], "usual_ms": "soon"})
    (found,) = json.loads(acache("ps", "-d", layout.root, "--json").stdout)["compiles"]
    assert (found["pid"], found["host"], found["label"], found["usual_s"]) == (None, None, None, None)


def test_key_selects_by_key_namespace_and_name(acache, layout, lay):
    key = package.key(source="x")
    names = {name_of(key, None): "plain", name_of(key, "team"): "spaced", NAME: "other"}
    for name, label in names.items():
        lay(name, tail={**ELSEWHERE, "label": label})

    def labels(*args):
        done = acache("ps", *args, "--directory", layout.root, "--json")
        assert done.exit_code == 0
        return [each["label"] for each in json.loads(done.stdout)["compiles"]]

    assert sorted(labels()) == ["other", "plain", "spaced"]
    assert labels(key.hex) == ["plain"]
    assert labels(key.hex, "--namespace", "team") == ["spaced"]
    assert labels(NAME[:12]) == ["other"]
    assert labels(NAME) == ["other"]
    assert labels("ffffffff") == []


def test_the_directory_comes_from_the_environment(acache, layout, lay, monkeypatch):
    lay(tail=ELSEWHERE)
    monkeypatch.setenv("ACACHE_DIR", layout.root)
    assert NAME[:12] in acache("ps").stdout


def test_a_setting_that_cannot_be_read_is_code_2(acache, monkeypatch):
    monkeypatch.setenv("ACACHE_LEASE_TTL", "soon")
    done = acache("ps")
    assert done.exit_code == 2
    assert "ACACHE_LEASE_TTL" in done.stderr


# --- with a real cache -------------------------------------------------------------------------------------


async def test_shows_a_compile_that_runs_and_not_one_that_ended(acache, cache_dir, layout):
    release = anyio.Event()
    key = package.key(source="slow")

    async def compile():
        await release.wait()
        return b"artifact"

    async def ps():
        command = partial(acache, "ps", key.hex, "--directory", str(cache_dir), "--json")
        return json.loads((await anyio.to_thread.run_sync(command)).stdout)["compiles"]

    async with package.Cache(cache_dir) as cache:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(cache.get_or_compile, key, compile, label="slow"))
            with anyio.fail_after(60):
                while not (found := await ps()):  # noqa: ASYNC110  # files tell no event
                    await anyio.sleep(0.01)
            release.set()
        assert await ps() == []
    (holder,) = found
    assert (holder["name"], holder["label"], holder["pid"]) == (name_of(key, None), "slow", os.getpid())
    assert holder["verdict"] == "alive"
