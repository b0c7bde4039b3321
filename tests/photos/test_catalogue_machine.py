"""A catalogue under random use, damage and interruption: no photograph changes, and the next scan knows them all.

`PHOTODUP_FUZZ_EXAMPLES=2000 python -m pytest tests/photos/test_catalogue_machine.py -s` runs it long; it prints counts.
"""

import os
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.library import photo
from support.machines import Killed, report, run_machine

from photodup.core.errors import PhotodupError
from photodup.photos.library import scan as scanning
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.hashing import md5
from photodup.photos.library.scan import scan

EXAMPLES = int(os.environ.get("PHOTODUP_FUZZ_EXAMPLES", "10"))
NAMES = ("a.jpg", "b.jpg", "sub/c.jpg", "sub/d e.jpg", "ü\n.jpg")
COUNTS: Counter[str] = Counter()


class UsedCatalogue(RuleBasedStateMachine):
    """Photographs come, change and go; scans are cut short; bytes of the catalogue are overwritten."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="photodup-catalogue-"))
        self.library = self.folder / "library"
        self.library.mkdir()
        self.seeds: dict[str, int] = {}
        self.n_writes = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            try:
                self.scan_to_the_end()  # mends whatever was done before
            finally:
                shutil.rmtree(self.folder)

    def _catalogue(self) -> Path:
        return self.library / ".photodup" / "catalogue.sqlite"

    @rule(name=st.sampled_from(NAMES), seed=st.integers(0, 5))
    def write(self, name: str, seed: int) -> None:
        COUNTS["written"] += 1
        self.n_writes += 1
        self.seeds[name] = seed
        path = photo(self.library / name, seed)
        os.utime(path, ns=(10**18, 10**18 + self.n_writes * 10**9))  # a change that the clock could not miss

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
        COUNTS["removed"] += 1
        (self.library / name).unlink(missing_ok=True)
        self.seeds.pop(name, None)

    @rule(old=st.sampled_from(NAMES), new=st.sampled_from(NAMES))
    def rename(self, old: str, new: str) -> None:
        if old in self.seeds and new not in self.seeds:
            COUNTS["renamed"] += 1
            (self.library / new).parent.mkdir(exist_ok=True)
            (self.library / old).rename(self.library / new)
            self.seeds[new] = self.seeds.pop(old)

    @rule(after=st.integers(0, 4))
    def scan_and_die(self, after: int) -> None:
        """End a scan before its batch number `after` is written."""
        COUNTS["killed"] += 1
        write, left = scanning._write, [after]

        def dying(*arguments, **options):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return write(*arguments, **options)

        with (
            mock.patch.object(scanning, "_write", dying),
            mock.patch.object(scanning, "_BATCH_FILES", 1),
            suppress(Killed, PhotodupError),
        ):
            scan(self.library, progress=False, workers=1)

    @rule(at=st.floats(0, 1, exclude_max=True), garbage=st.binary(min_size=1, max_size=64))
    def damage(self, at: float, garbage: bytes) -> None:
        if self._catalogue().exists():
            COUNTS["damaged"] += 1
            with self._catalogue().open("r+b") as file:
                file.seek(int(at * self._catalogue().stat().st_size))
                file.write(garbage)

    @rule()
    def lose_the_catalogue(self) -> None:
        if self._catalogue().exists():
            COUNTS["lost"] += 1
            for path in self._catalogue().parent.glob("catalogue.sqlite*"):
                path.unlink()

    @rule()
    def scan_to_the_end(self) -> None:
        """The catalogue says what is there, or the scan says in one sentence why it cannot."""
        try:
            report = scan(self.library, progress=False, workers=1)
        except PhotodupError as error:
            COUNTS["refused"] += 1
            assert str(error) and "\n" not in str(error)
            self.lose_the_catalogue()
            report = scan(self.library, progress=False, workers=1)
        COUNTS["scanned"] += 1
        assert not report.problems
        with Catalogue(self.library) as catalogue:
            known = {str(row.path): row.md5 for row in catalogue.photos()}
        there = {name: md5((self.library / name).read_bytes()) for name in self.seeds}
        assert known == there

    @invariant()
    def no_photograph_changes(self) -> None:
        if hasattr(self, "seeds"):
            there = {
                str(path.relative_to(self.library)): path.read_bytes()
                for path in self.library.rglob("*.jpg")
                if ".photodup" not in path.parts
            }
            assert there.keys() == self.seeds.keys()
            for name, seed in self.seeds.items():
                assert there[name] == original(seed)


def original(seed: int) -> bytes:
    """What `photo` writes for this seed."""
    if seed not in ORIGINALS:
        with tempfile.TemporaryDirectory() as folder:
            ORIGINALS[seed] = photo(Path(folder) / "x.jpg", seed).read_bytes()
    return ORIGINALS[seed]


ORIGINALS: dict[int, bytes] = {}


def test_whatever_is_done_to_a_catalogue_no_photograph_changes_and_a_scan_mends_it():
    run_machine(UsedCatalogue, EXAMPLES, 20)
    once = UsedCatalogue()  # Hypothesis leaves whole rules out of some runs
    once.begin()
    once.write(NAMES[0], 0)
    once.write(NAMES[1], 1)
    once.scan_and_die(1)
    once.remove(NAMES[0])
    once.no_photograph_changes()
    once.teardown()
    report(COUNTS, ("killed", "removed", "scanned", "written"))
