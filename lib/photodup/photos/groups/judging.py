"""From families of copies to suggestions: the keeper of each, what may go, and what of the rest differs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace

from PIL import Image

from photodup.embedding import imaging
from photodup.files import available_cores
from photodup.names import printable
from photodup.photos.compare.evidence import EvidenceStore
from photodup.photos.compare.family import Box, LaidFamily
from photodup.photos.compare.merit import Merit, Relation
from photodup.photos.compare.pixels import Pixels, one_thread_each
from photodup.photos.compare.snapping import partners
from photodup.photos.compare.traces import FileTraces
from photodup.photos.groups.copy_search import CopySearch
from photodup.photos.groups.families import Family
from photodup.photos.groups.keepers import Choice, KeepRules
from photodup.photos.library.catalogue import Photo
from photodup.progress import bar

# Raise when merits or differences come out otherwise: what was remembered is then measured again.
VERSION = 46
NOT_PROVEN = "not proven to be the photo to keep itself, only one of its copies"
TWO_EXPOSURES = "another exposure: the camera gives another time, exposure or number"


@dataclass(frozen=True)
class Judged:
    """One family.

    Attributes:
        keeper: its row.
        choice: why it is.
        differs: what each other row has that the keeper lacks; empty where it may go.
        why: why the keeper is kept rather than each other row.
        places: of each other row where it looks different, in the keeper's frame and in its own.
    """

    keeper: int
    choice: Choice
    differs: Mapping[int, str]
    why: Mapping[int, str] = field(default_factory=dict)
    places: Mapping[int, Sequence[tuple[Box, Box]]] = field(default_factory=dict)

    def unless_equal(self, other: "Judged") -> "Judged":
        """Return the same family by another keeper if either may go for the other, else by this one.

        What this keeper holds back stays held back.
        """
        if self.differs.get(other.keeper) != "" or other.differs.get(self.keeper) != "":
            return self
        return replace(
            other, differs={i: said or self.differs.get(i, "") for i, said in other.differs.items()}
        )


class Judge:
    """Chooses keepers and says what differs; what was measured of a family is remembered by its contents.

    Args:
        pixels: of these photos.
        photos: one for each content, by row.
        rules: which photo to keep.
        store: where measurements are remembered.
    """

    def __init__(
        self,
        pixels: Pixels,
        photos: Sequence[Photo],
        rules: KeepRules,
        store: EvidenceStore,
    ) -> None:
        self._pixels, self._photos, self._rules, self._store = pixels, photos, rules, store
        self._measured_now: dict[str, str] = {}
        self._unreadable: dict[int, str] = {}

    @property
    def problems(self) -> list[str]:
        """Return one sentence for each photo that could not be read any more."""
        return [
            f"{printable(self._photos[row].path)} was skipped: {self._unreadable[row]}"
            for row in sorted(self._unreadable)
        ]

    def keepers(self, found: Sequence[Family], search: CopySearch) -> list[tuple[Family, int, Choice]]:
        """Return each family with the row of its keeper and why it is the keeper; several families at a time.

        A file that cannot be read any more leaves its family, with a sentence in `problems`.
        """
        proven = partners(search.proven)
        chosen: list[tuple[Family, int, Choice] | None] = []
        waiting: list[tuple[int, Family, str | None]] = []
        for place, family in enumerate(found):
            kept = self._store.recall(self._key("merits", family))
            choice = self._choose(family, kept) if kept else None
            if choice is None or self._store.recall(self._key("lacks", family, choice[0])) is None:
                waiting.append((place, family, kept))
            chosen.append((family, *choice) if choice else None)
        with one_thread_each(), ThreadPoolExecutor(available_cores(), thread_name_prefix="family") as pool:
            measured = zip(
                waiting, pool.map(lambda one: self._measured(one[1], one[2], proven), waiting), strict=True
            )
            try:
                shown = bar(measured, total=len(waiting), desc="choose", unit="group") if waiting else ()
                for (place, *_), one in shown:
                    chosen[place] = one[:3] if one else None
                    if one:
                        family, keeper, _, merits, lacks = one
                        self._remember(self._key("merits", family), merits)
                        self._remember(self._key("lacks", family, keeper), lacks)
            finally:  # who stops waits for the families that were begun
                pool.shutdown(cancel_futures=True)
        return [choice for choice in chosen if choice]

    def _measured(
        self, family: Family, kept: str | None, proven: Mapping[int, set[int]]
    ) -> tuple[Family, int, Choice, str, str] | None:
        """Measure a family as far as it can be read; in a thread of its own, so nothing is remembered here."""
        while True:
            members = tuple(row for row in family.members if row not in self._unreadable)
            if len(members) < 2:
                return None
            if members != family.members:
                kept = None
                family = Family(family.hub if family.hub in members else members[0], members)
            try:
                laid = self._lay(family, proven)
                measured = {self._photos[row].md5: asdict(merit) for row, merit in laid.merits.items()}
                merits = kept or json.dumps(measured)
                keeper, choice = self._choose(family, merits)
                return family, keeper, choice, merits, self._said(family, keeper, laid)
            except imaging.ImageError:  # `_load` knows which; the others are measured without it
                continue

    def _choose(self, family: Family, kept: str) -> tuple[int, Choice]:
        photos = [self._photos[row] for row in family.members]
        choice = self._rules.choose(photos, _merits(kept))
        return next(row for row in family.members if self._photos[row].id == choice.keeper.id), choice

    def judge(self, pairs: Sequence[tuple[Family, int, Choice]], search: CopySearch) -> list[Judged]:
        """Say of each other member what it has that the keeper lacks; call after `search` compared them with it."""
        proven = partners(search.proven)
        judged = []
        for family, keeper, choice in pairs:
            measured = json.loads(self._recall(self._key("lacks", family, keeper)))
            photos = [self._photos[row] for row in family.members]
            merits = _merits(self._recall(self._key("merits", family)))
            differs, why, places = {}, {}, {}
            for row in (row for row in family.members if row != keeper):
                best, photo = self._photos[keeper], self._photos[row]
                lacks, relation = measured[photo.md5]
                if row in proven.get(keeper, ()):
                    doubts = self._rules.doubts(best, photo, photos, merits, Relation(**relation))
                    differs[row] = "; ".join([*lacks["said"], *doubts])
                    places[row] = lacks["places"]
                else:
                    differs[row] = TWO_EXPOSURES if search.is_ruled_out(keeper, row) else NOT_PROVEN
                why[row] = self._rules.over(best, photo, photos, merits)
            judged.append(Judged(keeper, choice, differs, why, places))
        return judged

    def _remember(self, key: str, text: str) -> None:
        self._measured_now[key] = text
        self._store.remember(key, text)

    def _recall(self, key: str) -> str:
        """Return what was measured now, also where the store can keep nothing, or before."""
        return self._measured_now.get(key) or self._store.recall(key) or "{}"

    def _said(self, family: Family, keeper: int, laid: LaidFamily) -> str:
        said = {}
        for row in (row for row in family.members if row != keeper):
            lacks = laid.lacks(keeper, row)
            # What stays for what it shows needs no further doubts.
            relation = Relation() if lacks.said else laid.relation(keeper, row)
            said[self._photos[row].md5] = asdict(lacks), asdict(relation)
        return json.dumps(said)

    def _key(self, kind: str, family: Family, *rows: int) -> str:
        md5s = sorted(self._photos[row].md5 for row in family.members)
        parts = [kind, str(VERSION), self._photos[family.hub].md5, *md5s, "|"]
        return hashlib.sha256(" ".join(parts + [self._photos[row].md5 for row in rows]).encode()).hexdigest()

    def _lay(self, family: Family, proven: Mapping[int, set[int]]) -> LaidFamily:
        inside = set(family.members)
        pairs = {(row, other) for row in inside for other in proven.get(row, set()) & inside if row < other}
        return LaidFamily(family.members, family.hub, self._load, pairs, self._pixels.features)

    def _load(self, row: int) -> tuple[Image.Image, FileTraces]:
        try:
            return self._pixels.load(row)
        except (OSError, imaging.ImageError) as error:
            self._unreadable[row] = getattr(error, "reason", None) or str(error)
            raise imaging.ImageError(self._unreadable[row]) from error


def _merits(kept: str) -> dict[str, Merit]:
    """Read what was remembered of a family, by content."""
    return {md5: Merit(**found | {"added": tuple(found["added"])}) for md5, found in json.loads(kept).items()}
