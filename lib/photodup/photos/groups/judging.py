"""From families of copies to suggestions: the keeper of each, what may go, and what of the rest differs."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from PIL import Image

from photodup.embedding import imaging
from photodup.photos.compare.evidence import EvidenceStore
from photodup.photos.compare.family import LaidFamily
from photodup.photos.compare.merit import Merit
from photodup.photos.compare.traces import FileTraces, file_traces
from photodup.photos.groups.copy_search import CopySearch
from photodup.photos.groups.families import Family
from photodup.photos.groups.keepers import Choice, KeepRules
from photodup.photos.library.catalogue import Catalogue, Photo

# Raise when merits or differences come out otherwise: what was remembered is then measured again.
VERSION = 2
NOT_PROVEN = "not proven to be the photo to keep itself, only one of its copies"
TWO_EXPOSURES = "taken at another time, by the same camera"
FILM = "has a film beside it (Live Photo)"


@dataclass(frozen=True)
class Judged:
    """One family: its keeper's row, why, and what each other row has that the keeper lacks (empty: it may go)."""

    keeper: int
    choice: Choice
    differs: Mapping[int, str]


class Judge:
    """Chooses keepers and says what differs; what was measured of a family is remembered by its contents.

    Args:
        catalogue: of these photos.
        photos: one for each content, by row.
        rules: which photo to keep.
        store: where measurements are remembered.
    """

    def __init__(
        self, catalogue: Catalogue, photos: Sequence[Photo], rules: KeepRules, store: EvidenceStore
    ) -> None:
        self._catalogue, self._photos, self._rules, self._store = catalogue, photos, rules, store

    def keepers(self, found: Sequence[Family], search: CopySearch) -> list[tuple[int, Choice]]:
        """Return the keeper's row of each family, and why it is the keeper."""
        proven = _Partners(search.proven)
        chosen = []
        for family in found:
            laid = _Once(lambda family=family: self._lay(family, proven))
            merits = self._merits(family, laid)
            choice = self._rules.choose(
                [self._photos[row] for row in family.members],
                {self._photos[row].md5: merit for row, merit in merits.items()},
            )
            row = next(row for row in family.members if self._photos[row].id == choice.keeper.id)
            self._lacks(family, row, laid)  # now, while all of them lie over each other
            chosen.append((row, choice))
        return chosen

    def judge(self, pairs: Sequence[tuple[Family, int, Choice]], search: CopySearch) -> list[Judged]:
        """Say of each other member what it has that the keeper lacks; call after `search` compared them with it."""
        proven = _Partners(search.proven)
        judged = []
        for family, keeper, choice in pairs:
            measured = self._lacks(family, keeper, _Once(lambda family=family: self._lay(family, proven)))
            differs = {}
            for row in family.members:
                if row == keeper:
                    continue
                said = list(measured.get(self._photos[row].md5, []))
                if row not in proven.of(keeper):
                    said = [TWO_EXPOSURES if search.is_ruled_out(keeper, row) else NOT_PROVEN]
                if self._rules.has_film(self._photos[row]) and not self._rules.has_film(self._photos[keeper]):
                    said.append(FILM)
                differs[row] = "; ".join(said)
            judged.append(Judged(keeper, choice, differs))
        return judged

    def _merits(self, family: Family, laid: "_Once") -> dict[int, Merit]:
        key = self._key("merits", family)
        if (kept := self._store.recall(key)) is None:
            found = {self._photos[row].md5: asdict(merit) for row, merit in laid.get().merits.items()}
            kept = json.dumps(found)
            self._store.remember(key, kept)
        by_md5 = json.loads(kept)
        return {
            row: Merit(**by_md5[md5] | {"added": tuple(by_md5[md5]["added"])})
            for row in family.members
            if (md5 := self._photos[row].md5) in by_md5
        }

    def _lacks(self, family: Family, keeper: int, laid: "_Once") -> dict[str, list[str]]:
        key = self._key("lacks", family, keeper)
        if (kept := self._store.recall(key)) is None:
            others = [row for row in family.members if row != keeper]
            kept = json.dumps({self._photos[row].md5: laid.get().lacks(keeper, row) for row in others})
            self._store.remember(key, kept)
        return json.loads(kept)

    def _key(self, kind: str, family: Family, *rows: int) -> str:
        md5s = sorted(self._photos[row].md5 for row in family.members)
        parts = [kind, str(VERSION), self._photos[family.hub].md5, *md5s, "|"]
        return hashlib.sha256(" ".join(parts + [self._photos[row].md5 for row in rows]).encode()).hexdigest()

    def _lay(self, family: Family, proven: "_Partners") -> LaidFamily:
        inside = set(family.members)
        pairs = {(row, other) for row in inside for other in proven.of(row) & inside if row < other}
        return LaidFamily(family.members, family.hub, self._load, pairs)

    def _load(self, row: int) -> tuple[Image.Image, FileTraces]:
        path = self._catalogue.root / self._photos[row].path
        image = imaging.decode(path)  # first: it refuses what should not be opened
        with imaging._open(path.read_bytes()) as header:
            return image, file_traces(header)


class _Partners:
    """Proven pairs by row."""

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        self._of: dict[int, set[int]] = {}
        for i, j in pairs:
            self._of.setdefault(i, set()).add(j)
            self._of.setdefault(j, set()).add(i)

    def of(self, row: int) -> set[int]:
        """Return the rows that one is proven with."""
        return self._of.get(row, set())


class _Once:
    """A family that is laid out when it is first asked for, and held for as long as this is."""

    def __init__(self, lay: Callable[[], LaidFamily]) -> None:
        self._lay, self._laid = lay, None

    def get(self) -> LaidFamily:
        """Return it."""
        if self._laid is None:
            self._laid = self._lay()
        return self._laid
