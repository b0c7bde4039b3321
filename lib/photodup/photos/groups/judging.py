"""From families of copies to suggestions: the keeper of each, what may go, and what of the rest differs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
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
VERSION = 1
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
        proven = search.proven
        chosen = []
        for family in found:
            merits = self._merits(family, proven)
            choice = self._rules.choose(
                [self._photos[row] for row in family.members],
                {self._photos[row].md5: merit for row, merit in merits.items()},
            )
            row = next(row for row in family.members if self._photos[row].id == choice.keeper.id)
            chosen.append((row, choice))
        return chosen

    def judge(self, family: Family, keeper: int, choice: Choice, search: CopySearch) -> Judged:
        """Say of each other member what it has that the keeper lacks; call after `search` compared them with it."""
        proven = search.proven_with(keeper)
        others = [row for row in family.members if row != keeper]
        measured = self._lacks(family, keeper, [row for row in others if row in proven], search)
        differs = {}
        for row in others:
            said = list(measured.get(str(row), [])) if row in proven else []
            if row not in proven:
                said.append(TWO_EXPOSURES if search.is_ruled_out(keeper, row) else NOT_PROVEN)
            if self._rules.has_film(self._photos[row]) and not self._rules.has_film(self._photos[keeper]):
                said.append(FILM)
            differs[row] = "; ".join(said)
        return Judged(keeper, choice, differs)

    def _merits(self, family: Family, proven: Mapping) -> dict[int, Merit]:
        key = self._key("merits", family)
        if (kept := self._store.recall(key)) is None:
            laid = self._lay(family, proven)
            kept = json.dumps({self._photos[row].md5: asdict(merit) for row, merit in laid.merits.items()})
            self._store.remember(key, kept)
        by_md5 = json.loads(kept)
        return {
            row: Merit(**by_md5[md5] | {"added": tuple(by_md5[md5]["added"])})
            for row in family.members
            if (md5 := self._photos[row].md5) in by_md5
        }

    def _lacks(
        self, family: Family, keeper: int, others: Sequence[int], search: CopySearch
    ) -> dict[str, list[str]]:
        key = self._key("lacks", family, keeper, *sorted(others))
        if (kept := self._store.recall(key)) is None:
            laid = self._lay(family, search.proven) if others else None
            by_md5 = {self._photos[row].md5: laid.lacks(keeper, row) for row in others} if laid else {}
            kept = json.dumps(by_md5)
            self._store.remember(key, kept)
        by_md5 = json.loads(kept)
        return {str(row): by_md5[self._photos[row].md5] for row in others}

    def _key(self, kind: str, family: Family, *rows: int) -> str:
        md5s = sorted(self._photos[row].md5 for row in family.members)
        parts = [kind, str(VERSION), self._photos[family.hub].md5, *md5s, "|"]
        return hashlib.sha256(" ".join(parts + [self._photos[row].md5 for row in rows]).encode()).hexdigest()

    def _lay(self, family: Family, proven: Mapping) -> LaidFamily:
        inside = set(family.members)
        pairs = [pair for pair in proven if pair[0] in inside and pair[1] in inside]
        last = getattr(self, "_last", None)
        if last is None or last[0] != (family, len(pairs)):
            self._last = (family, len(pairs)), LaidFamily(family.members, family.hub, self._load, pairs)
        return self._last[1]

    def _load(self, row: int) -> tuple[Image.Image, FileTraces]:
        path = self._catalogue.root / self._photos[row].path
        image = imaging.decode(path)  # first: it refuses what should not be opened
        with imaging._open(path.read_bytes()) as header:
            return image, file_traces(header)
