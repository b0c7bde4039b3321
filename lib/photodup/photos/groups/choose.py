"""The keepers of a family: what one of them reproduces may go. What none reproduces stays, and the page shows why."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from photodup.core.files import available_cores
from photodup.core.progress import bar
from photodup.embedding import imaging
from photodup.photos.compare.compare import lacks
from photodup.photos.compare.pixels import Pixels, one_thread_each
from photodup.photos.compare.unexplained import Difference
from photodup.photos.groups.keepers import KeepRules
from photodup.photos.library.inventory import in_colours_of

TWO_EXPOSURES = "another exposure: the camera gives another time, exposure or number"
# Files that are compared with all others where none reproduces all, and further keepers of a family, at most.
_TRIED = 3


@dataclass(frozen=True)
class Decision:
    """What becomes of a family, or of a part of it, by rows.

    Attributes:
        keeper: the file to keep.
        differences: what each other file has that the keeper lacks; nothing where the keeper reproduces it.
    """

    keeper: int
    differences: Mapping[int, tuple[Difference, ...]]

    @property
    def reproduced(self) -> set[int]:
        """The rows that may go, as far as pixels decide."""
        return {row for row, lost in self.differences.items() if not lost}

    def without(self, rows: Collection[int]) -> "Decision":
        """Return the decision about all but these rows."""
        return Decision(
            self.keeper, {row: self.differences[row] for row in self.differences if row not in rows}
        )


def choose_keeper(
    ranked: Sequence[int],
    lacks: Callable[[int, int], Sequence[Difference]],
    besides: Callable[[int, int], Sequence[str]],
    n_preferred: int = 0,
) -> Decision:
    """Choose the file that reproduces all others; of several, the first that also holds their metadata and sidecars.

    Args:
        ranked: two or more rows, the best first by the keep rules.
        lacks: returns what the second row's picture shows and the first one's cannot reproduce.
        besides: returns what else the second row's file holds and the first one's lacks, in words.
        n_preferred: how many of the first the owner prefers, one of which is kept; 0 for no preference.
    """
    candidates = list(ranked[:n_preferred] or ranked)
    loses = {row: any(besides(row, other) for other in ranked if other != row) for row in candidates}
    # The sort is stable: first the best of those that lose nothing, then the best of the others.
    candidates.sort(key=loses.__getitem__)

    def n_lost(keeper: int, limit: int) -> int:
        """Return how many others a keeper does not reproduce; those beyond `limit` are not looked at."""
        lost = (row for row in ranked if row != keeper and lacks(keeper, row))
        return sum(1 for _ in islice(lost, limit))

    keeper = next((row for row in candidates if not n_lost(row, 1)), None)
    if keeper is None:  # the one of the best that reproduces most
        best = sorted(candidates, key=ranked.index)[:_TRIED]
        limit = n_lost(best[0], len(ranked))
        keeper = min(best, key=lambda row: n_lost(row, limit))
    return Decision(keeper, {row: tuple(lacks(keeper, row)) for row in ranked if row != keeper})


class Chooser:
    """Chooses keepers; what was compared is remembered by the contents of both files.

    Args:
        pixels: of the photos, one for each content; its store remembers the comparisons.
        rules: which of equal photos to keep.
        reason_apart: returns why two rows must not be compared, such as `TWO_EXPOSURES`; empty where they may be.

    Attributes:
        is_complete: no family was left out for the deadline.
    """

    def __init__(self, pixels: Pixels, rules: KeepRules, reason_apart: Callable[[int, int], str]) -> None:
        self._pixels, self._photos, self._rules = pixels, pixels.photos, rules
        self._reason_apart, self.is_complete = reason_apart, True
        self._compared: dict[tuple[str, str], tuple[Difference, ...]] = {}
        self._new: dict[tuple[str, str], tuple[Difference, ...]] = {}

    def lacks(self, keeper: int, member: int, deadline_s: float = math.inf) -> tuple[Difference, ...]:
        """Return what a member's picture has that a keeper cannot reproduce.

        Raises:
            photodup.embedding.imaging.ImageError: one of them cannot be read any more.
            TimeoutError: they were not compared before, and it is past the deadline.
        """
        if reason := self._reason_apart(keeper, member):
            return (Difference(reason),)
        pair = self._photos[keeper].md5, self._photos[member].md5
        if pair not in self._compared:
            if time.monotonic() >= deadline_s:
                raise TimeoutError
            of_keeper, of_member = map(self._pixels.picture, (keeper, member))
            differences = lacks(of_keeper, of_member)
            if differences and (image := in_colours_of(of_member.image, of_keeper.image)):
                differences = lacks(replace(of_keeper, image=image), of_member)
            self._compared[pair] = self._new[pair] = differences
        return self._compared[pair]

    def choose(self, families: Sequence[Sequence[int]], deadline_s: float) -> list[Decision]:
        """Decide about families of rows in parallel, the largest first; unreadable files leave their family.

        No pair is compared after the deadline, on the monotonic clock.
        """
        contents = {self._photos[row].md5 for family in families for row in family}
        self._compared |= self._pixels.store.read_lacking(contents)
        # What needs no comparison comes first.
        decided = {place: self._choose(family, -math.inf) for place, family in enumerate(families)}
        waiting = [place for place, decisions in decided.items() if decisions is None]
        waiting.sort(key=lambda place: -sum(self._photos[row].size_bytes for row in families[place]))
        with one_thread_each(), ThreadPoolExecutor(available_cores(), thread_name_prefix="family") as pool:
            chosen = pool.map(lambda place: self._choose(families[place], deadline_s), waiting)
            through = bar(chosen, total=len(waiting), desc="choose", unit="group") if waiting else ()
            try:
                for place, decisions in zip(waiting, through, strict=True):
                    decided[place] = decisions
                    self.remember()
            finally:  # an early stop waits for the families in progress
                pool.shutdown(cancel_futures=True)
        self.is_complete = None not in decided.values()
        return [decision for decisions in decided.values() for decision in decisions or ()]

    def _choose(self, family: Sequence[int], deadline_s: float) -> list[Decision] | None:
        """Return a family's decisions, None if time was over; what one keeper does not reproduce, another may."""

        def besides(keeper: int, member: int) -> Sequence[str]:
            return self._rules.lost_with(self._photos[keeper], self._photos[member])

        decisions, left = list[Decision](), set(family)
        while len(rows := left - self._pixels.unreadable.keys()) > 1 and len(decisions) <= _TRIED:
            row_of = {self._photos[row].id: row for row in rows}
            ranked = self._rules.ranked([self._photos[row] for row in rows])
            best = self._rules.owner_rank(ranked[0])
            n_preferred = sum(self._rules.owner_rank(photo) == best for photo in ranked)
            by_rank = [row_of[photo.id] for photo in ranked]
            lacks_in_time = partial(self.lacks, deadline_s=deadline_s)
            try:
                decision = choose_keeper(by_rank, lacks_in_time, besides, n_preferred)
            except imaging.ImageError:  # it is in `Pixels.unreadable`: try again without it
                decisions, left = [], set(family)
                continue
            except TimeoutError:
                return None
            going = decision.reproduced
            if decisions and going:  # no file is in two groups
                decisions[0] = decisions[0].without({decision.keeper, *going})
                decision = decision.without(decision.differences.keys() - going)
            if going or not decisions:
                decisions.append(decision)
            if not going:
                break
            left = rows - {decision.keeper} - going
        return decisions

    def remember(self) -> None:
        """Store the comparisons since the last call."""
        new, self._new = self._new, {}
        self._pixels.store.add_lacking(new)
