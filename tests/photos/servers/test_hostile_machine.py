"""A trash under random use, kills, damage and forged journals: nothing outside ever changes, nothing of mine is lost.

`PHOTODUP_FUZZ_EXAMPLES=2000 pytest tests/photos/servers/test_hostile_machine.py -s` runs it long; it prints counts.
"""

import json
import os
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.hostile_library import (
    OP,
    PAYLOAD,
    VICTIM,
    entry,
    line,
    make_outside,
    payload,
    tree,
    write_journal,
)
from support.machines import Killed, report, run_machine
from support.trash_kills import make_library, removal

from photodup.core.errors import PhotodupError
from photodup.photos.trash.files import TRASH_FOLDER, md5_of
from photodup.photos.trash.quarantine import Trash

EXAMPLES = int(os.environ.get("PHOTODUP_FUZZ_EXAMPLES", "25"))
PHOTOS = {"keep.jpg": 90, "a/1.jpg": 50, "a/2.jpg": 40, "b/c/3.jpg": 30}
COUNTS: Counter[str] = Counter()

# Paths that a giver may name: sound ones, through links (`out` and `up` are made below), and out.
_HOMES = st.sampled_from(
    [
        "x.jpg", "a/1.jpg", "a/1.jpg/x", "new/x.jpg", "out/x.jpg", "out/sub/.profile",
        "up/outside/victim.jpg", "../outside/victim.jpg", "/etc/hostname", ".photodup/settings.json",
        "a/../x", "", "\x00", "\ud800",
    ]
)  # fmt: skip
_TRASHES = st.sampled_from(
    f"items/{OP}/x|items/{OP}/out/victim.jpg|items/{OP}/hard|items/{OP}/link|items/../x"
    f"|items/{OP}/../../../a/1.jpg|up/outside/victim.jpg|../a/1.jpg|journal.jsonl|items".split("|")
)
_STATES = st.sampled_from(["removing", "removed", "restoring", "purging", "restored", "purged", "odd"])
_OPS = st.sampled_from([OP, "../../../outside", "..", "", "items"])
_FILES = st.lists(st.builds(entry, _HOMES, _TRASHES, st.sampled_from([VICTIM, PAYLOAD])), max_size=3)


class HostileTrash(RuleBasedStateMachine):
    """My own removals and a forger's lines in one library, beside a folder that is mine."""

    @initialize()
    def begin(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="photodup-hostile-"))
        self.config, self.library = self.base / "config", self.base / "given" / "library"
        os.environ["PHOTODUP_CONFIG"] = str(self.config)
        self.outside = make_outside(self.base / "outside")
        self.md5 = make_library(self.library, PHOTOS)
        (self.library / "out").symlink_to(self.outside)
        (self.library / "up").symlink_to(self.base)
        self.before = tree(self.outside)
        self.purged: set[str] = set()
        self.steps_left: int | None = None

    def teardown(self) -> None:
        if hasattr(self, "base"):
            shutil.rmtree(self.base)

    def _trash(self) -> Trash:
        def on_step(name: str) -> None:
            if self.steps_left is not None:
                self.steps_left -= 1
                if self.steps_left <= 0:
                    raise Killed

        return Trash(self.library, on_step)

    def _do(self, what: str, change, kill: int | None) -> None:
        COUNTS[what] += 1
        self.steps_left = kill
        try:
            change(self._trash())
        except PhotodupError as error:
            COUNTS["refused"] += 1
            assert "\n" not in str(error)
        except Killed:
            COUNTS["killed"] += 1
        finally:
            self.steps_left = None

    @rule(name=st.sampled_from(list(PHOTOS)[1:]), kill=st.none() | st.integers(1, 20))
    def remove(self, name: str, kill: int | None) -> None:
        wanted = removal(self.library, self.md5, name, sidecars=())
        self._do("remove", lambda trash: trash.remove([wanted]), kill)

    @rule(kill=st.none() | st.integers(1, 20))
    def restore(self, kill: int | None) -> None:
        self._do("restore", lambda trash: trash.restore(trash.contents().listing), kill)

    @rule(kill=st.none() | st.integers(1, 20))
    def restore_what_others_wrote(self, kill: int | None) -> None:
        self._do("confirm", lambda trash: trash.restore(trash.contents().unsigned, confirmed=True), kill)

    @rule()
    def purge_what_others_wrote(self) -> None:
        # What a lost key or a damaged line made nobody's is mine all the same: I agreed to its deletion.
        before = set(self._contents())
        self._do("purge", lambda trash: trash.purge(trash.contents().unsigned, confirmed=True), None)
        self.purged |= before - set(self._contents())

    @rule(state=_STATES, op=_OPS, files=_FILES)
    def forge(self, state: str, op: str, files: list[dict]) -> None:
        COUNTS["forged"] += 1
        with suppress(OSError):
            write_journal(self.library, line(state, *files, op=op))

    @rule(state=_STATES, data=st.data())
    def alter_a_line_of_mine(self, state: str, data: st.DataObject) -> None:
        journal = self.library / TRASH_FOLDER / "journal.jsonl"
        lines = []
        if journal.is_file():
            for text in journal.read_bytes().split(b"\n"):
                with suppress(ValueError):  # a line that was torn, and the next one behind it
                    lines += [json.loads(text)] if b'"sig"' in text else []
        if lines:
            COUNTS["altered"] += 1
            mine = data.draw(st.sampled_from(lines)) | {"state": state}
            if "files" in mine:
                mine["files"][0]["home"] = data.draw(_HOMES)
            write_journal(self.library, mine)

    @rule(garbage=st.binary(max_size=30))
    def damage(self, garbage: bytes) -> None:
        COUNTS["damaged"] += 1
        write_journal(self.library, garbage.replace(b"\n", b"") + b"\n")

    @rule(kind=st.sampled_from(["x", "hard", "link", "out"]))
    def plant(self, kind: str) -> None:
        place = self.library / TRASH_FOLDER / "items" / OP / kind
        if not os.path.lexists(place):
            COUNTS["planted"] += 1
            if kind == "x":
                payload(self.library, f"items/{OP}/x", VICTIM)
                return
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "hard":
                os.link(self.outside / "victim.jpg", place)
            else:
                place.symlink_to(self.outside / ("victim.jpg" if kind == "link" else ""))

    @precondition(lambda self: self.config.exists())
    @rule()
    def lose_the_key(self) -> None:
        COUNTS["lost key"] += 1
        shutil.rmtree(self.config)

    @rule()
    def open_again(self) -> None:
        COUNTS["opened"] += 1
        trash = self._trash()
        assert all(operation.is_own for operation in trash.contents().listing)

    def _contents(self) -> list[str]:
        paths = (Path(folder) / name for folder, _, names in os.walk(self.library) for name in names)
        return [md5_of(path) for path in paths if path.is_file() and not path.is_symlink()]

    @invariant()
    def nothing_outside_changes(self) -> None:
        if hasattr(self, "before"):
            assert tree(self.outside) == self.before

    @invariant()
    def nothing_of_mine_is_lost(self) -> None:
        if hasattr(self, "md5"):
            there = set(self._contents())
            assert {md5 for md5 in self.md5.values() if md5 not in there} <= self.purged


def test_whatever_is_done_to_a_trash_nothing_outside_changes_and_nothing_is_lost(monkeypatch):
    monkeypatch.setenv("PHOTODUP_CONFIG", "")  # each machine sets its own, and this puts back what was there
    run_machine(HostileTrash, EXAMPLES, 30)
    once = HostileTrash()  # Hypothesis leaves whole rules out of some runs
    once.begin()
    once.remove("a/1.jpg", 1)
    once.remove("a/2.jpg", None)
    once.restore(None)
    once.forge("removed", OP, [])
    once.restore_what_others_wrote(None)
    once.open_again()
    once.nothing_outside_changes()
    once.nothing_of_mine_is_lost()
    once.teardown()
    report(COUNTS, ("remove", "restore", "confirm", "forged", "killed", "opened"))
