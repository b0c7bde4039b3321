"""The two tiers: copies, verified on the pixels, and similar pictures, by embedding.

Candidates for copies (`photodup.photos.search.candidates`) are verified on their pixels
(`photodup.photos.compare.verify`). Proven pairs connect families, whose keepers `choose` finds. Other photos
are grouped by similarity alone.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from photodup.core.progress import bar
from photodup.photos.compare.evidence import EvidenceStore
from photodup.photos.compare.pixels import Pixels, read_scanned
from photodup.photos.compare.unexplained import Difference
from photodup.photos.groups.choose import TWO_EXPOSURES, Chooser, Decision
from photodup.photos.groups.copy_search import CopySearch
from photodup.photos.groups.keepers import Choice, KeepRules
from photodup.photos.groups.results import Group, Member, Tiers
from photodup.photos.library.catalogue import Catalogue, Photo, by_content
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.hard_links import bytes_freed
from photodup.photos.library.settings import check_inside, load_settings
from photodup.photos.library.sidecars import Sidecars
from photodup.photos.search.candidates import Neighbours, find_neighbours
from photodup.photos.search.models import OTHER_MODEL, THRESHOLDS, ModelThresholds, choose_model
from photodup.photos.search.neighbours import TOLERANCE, Bounds, Pairs
from photodup.photos.search.pair_codes import pair_code, pair_rows
from photodup.photos.search.shots import Shots
from photodup.photos.search.stars import stars

FIRST_SECONDS = 3.0  # of comparing, before the first groups are shown
BURST_SECONDS = 60.0  # photos taken within this time need less similarity to count as one scene
_SET_APART = "you said that it is another picture"
_IN_ONE_FOLDER = "its folder's photos are not compared with each other"


@dataclass(frozen=True)
class GroupingOptions:
    """How to group a library, before what its settings and feedback say.

    Attributes:
        digest: the model, where several have embeddings.
        keep: rules as `resolution,format,…`, most important first.
        folders: folders by priority, relative to the library.
        feedback: the library's, if it was read already.
        threshold: smallest cosine of similar pictures, in place of the one in `THRESHOLDS`.
        only: folders to group, relative to the library; empty for all.
        never_from: folders, relative to the library, from which nothing is suggested, beside the protected ones.
        seconds: for comparing and choosing, unless there is `on_more`; results are stored for the next run.
        on_more: called after each stage of a complete run: grouping with zero `seconds` then gives more than before.
    """

    digest: str | None = None
    keep: str | None = None
    folders: Sequence[str] | None = None
    feedback: Feedback | None = None
    threshold: float | None = None
    only: Sequence[str] = ()
    never_from: Sequence[str] = ()
    seconds: float = math.inf
    on_more: Callable[[], None] | None = None


def find_tiers(catalogue: Catalogue, **options: Any) -> Tiers:
    """Group a library. Without embeddings, copies are found by hash and verified all the same.

    Args:
        catalogue: scanned, and embedded if there is to be a `similar` tier.
        **options: as in `GroupingOptions`.

    Raises:
        PhotodupError: an unknown rule, a folder outside the library, settings that cannot be read; see also `choose_model`.
    """
    return _Grouping(catalogue, GroupingOptions(**options)).tiers()


class _Grouping:
    """One pass over a library: its photos, one for each content, and what belongs together."""

    def __init__(self, catalogue: Catalogue, options: GroupingOptions) -> None:
        self._catalogue, self._options = catalogue, options
        self._settings = load_settings(catalogue.own.path).with_rules(
            options.keep, check_inside(options.folders or ())
        )
        self._feedback = options.feedback or Feedback(catalogue.own.path)
        self._protected = (*self._settings.protected, *options.never_from)
        folders, chosen = self._settings.folders, self._feedback.keepers()
        self._beside = Sidecars(catalogue.root)
        self._rules = KeepRules(self._beside, self._settings.keep, folders=folders, chosen=chosen)
        self._preferring = self._rules.preferring(self._protected)
        self._everything = self._listed(catalogue.photos())
        self._files = by_content(self._everything)
        # Most contents lie in one file: nothing is chosen there.
        files = self._files.values()
        keepers = {(self._rules.choose(same).keeper if same[1:] else same[0]).id for same in files}
        # By path: photos taken together are compared together, while their pixels are in memory.
        self._photos = [photo for photo in self._everything if photo.id in keepers]
        self._row = {photo.md5: i for i, photo in enumerate(self._photos)}
        self._folder = np.array([self._only_in(self._files[photo.md5]) for photo in self._photos], int)
        pairs = self._feedback.dismissed_pairs(self._row)
        self._apart = np.array([pair_code(*(self._row[md5] for md5 in pair)) for pair in pairs], np.int64)
        self._shots = Shots(self._photos)
        separate = self._feedback.kept_copies()
        self._files |= {photo.md5: [photo] for photo in self._photos if photo.md5 in separate}

    def _listed(self, photos: Iterable[Photo]) -> list[Photo]:
        return [photo for photo in photos if photo.lies_in(self._options.only or (".",))]

    def tiers(self) -> Tiers:
        """Find both tiers."""
        catalogue, options, photos = self._catalogue, self._options, self._photos
        model = choose_model(catalogue, options.digest)
        limits = THRESHOLDS.get(model.name, OTHER_MODEL) if model else None
        threshold = self._settings.threshold if options.threshold is None else options.threshold
        if limits and threshold is not None:
            limits = replace(limits, similar=threshold, burst=threshold, measured="chosen by you")
        lowest = min(limits.candidate, limits.similar, limits.burst) if limits else 1.0
        bounds = Bounds(limits.similar, lowest) if limits else None
        near = find_neighbours(catalogue, photos, model, bounds)
        similar_rows, cosine = self._similar(near, limits)
        with EvidenceStore(catalogue.own.evidence) as store:
            self._beside.memory = store
            pixels = Pixels(partial(read_scanned, catalogue.root), photos, store)
            search = CopySearch(pixels, self._comparable)
            chooser = Chooser(pixels, self._preferring, self._reason_apart)
            seconds = FIRST_SECONDS if options.on_more else options.seconds
            while True:
                began_s = time.monotonic()
                search.deadline_s = began_s + seconds / 2  # the other half is for choosing
                search.ask(near.alike, near.by_hash)
                decisions = chooser.choose(search.families(), began_s + seconds)
                is_complete = search.is_complete and chooser.is_complete
                if is_complete or not options.on_more:
                    break
                options.on_more()
                seconds *= 3
            without_apart = map(self._without_apart, decisions)
            decisions = [decision for decision in without_apart if decision.differences]
            in_families = {row for decision in decisions for row in (decision.keeper, *decision.differences)}
            suggested = [i for decision in decisions for i in decision.reproduced]
            left = ~np.isin(similar_rows, suggested).any(axis=1)
            ranked = self._rules.ranked([photos[i] for i in np.unique(similar_rows)])
            rank_of = {photo.md5: rank for rank, photo in enumerate(ranked)}
            rank = [rank_of.get(photo.md5, len(ranked)) for photo in photos]
            pairs = Pairs(similar_rows[left, 0], similar_rows[left, 1], cosine[left])
            similar_stars = stars(pairs, len(photos), rank=rank)
            # Copies of unreadable files have equal bytes.
            of_bytes = by_content(self._listed(catalogue.photos("unreadable")))
            self._files |= of_bytes
            photos += [same[0] for same in of_bytes.values()]
            decisions += [
                Decision(i, {})
                for i, photo in enumerate(photos)
                if len(self._files[photo.md5]) > 1 and i not in in_families
            ]
            through = bar(decisions, total=len(decisions), desc="beside", unit="group")
            copies = [group for decision in through if (group := self._family(decision, near))]
        copies.sort(key=lambda group: (not _is_sure(group), -group.bytes_to_free, str(group.keeper.path)))
        # Until all pairs are compared, a similar photo may still turn out to be a copy.
        similar = [self._star(*star, near) for star in similar_stars.items()] if is_complete else []
        similar.sort(key=lambda group: (-(group.members[-1].similarity or 0), str(group.keeper.path)))
        return Tiers(
            tuple(copies), tuple(similar), model, limits, len(self._everything), len(search.scores),
            near.search, near.recall, tuple(pixels.problems), self._protected, is_complete,
        )  # fmt: skip

    def _comparable(self, codes: np.ndarray) -> np.ndarray:
        """Return those of some pairs that may be compared on their pixels."""
        return codes[self._is_asked_for(codes) & ~self._shots.are_two(codes)]

    def _is_asked_for(self, codes: np.ndarray) -> np.ndarray:
        """Return for each pair whether to compare it: not if the owner set it apart, or one `not_within` folder has both."""
        first, second = (self._folder[rows] for rows in pair_rows(codes))
        return ~np.isin(codes, self._apart) & ((first < 0) | (first != second))

    def _reason_apart(self, i: int, j: int) -> str:
        """Return why two rows are not compared; empty where they may be."""
        codes = np.array([pair_code(i, j)])
        if np.isin(codes, self._apart)[0]:
            return _SET_APART
        if not self._is_asked_for(codes)[0]:
            return _IN_ONE_FOLDER
        return TWO_EXPOSURES if self._shots.are_two(codes)[0] else ""

    def _without_apart(self, decision: Decision) -> Decision:
        """Return a decision without what the owner set apart from the keeper."""
        rows = decision.differences
        return decision.without([row for row in rows if pair_code(decision.keeper, row) in self._apart])

    def _similar(self, near: Neighbours, limits: ModelThresholds | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs that show one scene as int64[n, 2], and their cosines."""
        is_similar = self._is_asked_for(near.alike)
        if limits:
            is_burst = self._shots.are_within(near.alike, BURST_SECONDS)
            is_similar &= near.cosine >= np.where(is_burst, limits.burst, limits.similar) - TOLERANCE
        return np.stack(pair_rows(near.alike[is_similar]), axis=1), near.cosine[is_similar]

    def _only_in(self, photos: Sequence[Photo]) -> int:
        """Return the number of the folder of `not_within` that holds all of these; -1 for none."""
        folders = enumerate(self._settings.not_within)
        return next((n for n, folder in folders if all(photo.lies_in([folder]) for photo in photos)), -1)

    def _protected_among(self, photos: Iterable[Photo]) -> frozenset[int]:
        return frozenset(photo.id for photo in photos if photo.lies_in(self._protected))

    def _family(self, decision: Decision, near: Neighbours) -> Group | None:
        """Make a group of a family, with every file of each content; None if one folder of `not_within` holds all."""
        photos, rules = self._photos, self._preferring
        same = self._files[photos[decision.keeper].md5]
        # Of equal bytes the folder, the age and the path decide.
        choice = rules.choose(same)
        keeper = choice.keeper
        members = [Member(photo, True, 1.0) for photo in same if photo is not keeper]
        for row, differing in decision.differences.items():
            cosine = near.similarity(decision.keeper, row)
            members += [Member(photo, False, cosine, differing) for photo in self._files[photos[row].md5]]
        members = [member for member in members if self._only_in([keeper, member.photo]) < 0]
        if not members:
            return None
        if copies := [member for member in members if not member.is_same_bytes]:
            choice = rules.by_owner(keeper, [m.photo for m in copies]) or _by_pictures(keeper, copies)
        members = [self._with_what_is_beside(keeper, member) for member in members]
        protected = self._protected_among([keeper, *(member.photo for member in members)])

        def place(member: Member) -> tuple[bool, bool, str]:
            is_kept = bool(member.differences) or member.photo.id in protected
            return is_kept, not member.is_same_bytes, str(member.photo.path)

        members.sort(key=place)
        group = Group("copies", choice, tuple(members), protected)
        frees = bytes_freed(self._catalogue.root, group.may_go)
        return replace(group, linked=frozenset(number for number, n_bytes in frees.items() if not n_bytes))

    def _with_what_is_beside(self, keeper: Photo, member: Member) -> Member:
        """Return a member with what its file and those beside it hold; each file of one content may have its sidecar."""
        lost = self._preferring.lost_with(keeper, member.photo)
        metadata = self._preferring.lost_metadata(keeper, member.photo)
        is_text_only = lost == [metadata] and not member.differences
        differences = (*member.differences, *map(Difference, lost))
        return replace(member, differences=differences, is_text_only=is_text_only)

    def _star(self, row: int, similar: Sequence[int], near: Neighbours) -> Group:
        """Make a group of similar pictures; exact copies of its photos are in the copies tier already."""
        keeper = self._photos[row]
        members = [Member(self._photos[i], similarity=near.similarity(row, i)) for i in similar]
        members.sort(key=lambda member: (-(member.similarity or 0), str(member.photo.path)))
        photos = [member.photo for member in members]
        choice = self._rules.choice([keeper, *self._rules.ranked(photos)])
        return Group("similar", choice, tuple(members), self._protected_among([keeper, *photos]))


def _by_pictures(keeper: Photo, copies: Sequence[Member]) -> Choice:
    """Return a keeper with how many of the other pictures it reproduces; files of the same bytes are one picture."""
    is_reproduced = {member.photo.md5: not member.differences for member in copies}
    n, n_all = sum(is_reproduced.values()), len(is_reproduced)
    pictures = "every other picture" if n == n_all else f"{n} of {n_all} other pictures"
    return Choice(keeper, "reproduces", f"reproduces {pictures if n else 'no other picture'}")


def _is_sure(group: Group) -> bool:
    """Return whether what may go has the keeper's bytes, or all members where nothing may go."""
    sure = [m for m in group.members if not m.differences] or group.members
    return all(m.is_same_bytes for m in sure)
