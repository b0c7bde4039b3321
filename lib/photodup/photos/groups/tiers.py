"""The two tiers: copies, verified on the pixels, and similar pictures, by embedding.

Candidates for copies (`photodup.photos.search.candidates`) are verified on their pixels
(`photodup.photos.compare.verify`). Proven pairs connect families (`families`), each with a keeper (`choose`). Other photos
are grouped by similarity alone.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from photodup.core.progress import bar
from photodup.photos.compare.evidence import EvidenceStore, pair_code, pair_rows
from photodup.photos.compare.kept_features import FeatureStore
from photodup.photos.compare.unexplained import Difference
from photodup.photos.groups.choose import Chooser, Decision
from photodup.photos.groups.copy_search import CopySearch
from photodup.photos.groups.keepers import Choice, KeepRules
from photodup.photos.groups.model_thresholds import OTHER_MODEL, THRESHOLDS, ModelThresholds, choose_model
from photodup.photos.groups.results import Evidence, Group, Member, Tiers
from photodup.photos.groups.stars import stars
from photodup.photos.library.catalogue import Catalogue, Photo, by_content
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.hard_links import bytes_freed
from photodup.photos.search.candidates import Neighbours, find_neighbours
from photodup.photos.search.neighbours import TOLERANCE, Pairs
from photodup.photos.search.shots import Shots

FIRST_SECONDS = 3.0  # of comparing, before the first groups are shown
BURST_SECONDS = 60.0  # photos taken within this time need less similarity to count as one scene


@dataclass(frozen=True)
class GroupingOptions:
    """How to group a library.

    Attributes:
        digest: the model, where several have embeddings.
        allow_random: accept untrained weights, for studying the machinery.
        rules: which photo of a group to keep; default `KeepRules()`.
        feedback: pairs that the owner set apart are not grouped; default: the library's own.
        threshold: smallest cosine of similar pictures, in place of the one in `THRESHOLDS`.
        only: folders to group, relative to the library; empty for all.
        protected: folders, relative to the library, from which nothing is suggested.
        not_within: folders, relative to the library, whose photos are not compared with each other.
        seconds: for comparing and choosing, unless there is `on_more`; results are stored for the next run.
        on_more: called after each stage of a complete run: grouping with zero `seconds` then gives more than before.
    """

    digest: str | None = None
    allow_random: bool = False
    rules: KeepRules | None = None
    feedback: Feedback | None = None
    threshold: float | None = None
    only: Sequence[str] = ()
    protected: tuple[str, ...] = ()
    not_within: Sequence[str] = ()
    seconds: float = math.inf
    on_more: Callable[[], None] | None = None


def find_tiers(catalogue: Catalogue, options: GroupingOptions = GroupingOptions()) -> Tiers:
    """Group a library. Without embeddings, copies are found by hash and verified all the same.

    Args:
        catalogue: scanned, and embedded if there is to be a `similar` tier.
        options: how.

    Raises:
        PhotodupError: see `choose_model`.
    """
    return _Grouping(catalogue, options).tiers()


class _Grouping:
    """One pass over a library: its photos, one for each content, and what belongs together."""

    def __init__(self, catalogue: Catalogue, options: GroupingOptions) -> None:
        self._catalogue, self._options = catalogue, options
        self._rules = options.rules or KeepRules()
        self._rules.look_beside(catalogue.root)
        self._preferring = self._rules.preferring(options.protected)
        only = options.only or (".",)
        self._everything = [photo for photo in catalogue.photos() if photo.lies_in(only)]
        self._files = by_content(self._everything)
        # Most contents lie in one file: nothing is chosen there.
        files = self._files.values()
        chosen = {(self._rules.choose(same).keeper if same[1:] else same[0]).id for same in files}
        # By path: photos taken together are compared together, while their pixels are in memory.
        self._photos = [photo for photo in self._everything if photo.id in chosen]
        self._folder = np.array([self._only_in(self._files[photo.md5]) for photo in self._photos], int)
        self._feedback = options.feedback or Feedback(catalogue.own.path)
        separate = self._feedback.kept_copies()
        self._files |= {photo.md5: [photo] for photo in self._photos if photo.md5 in separate}

    def tiers(self) -> Tiers:
        """Find both tiers."""
        catalogue, options, photos = self._catalogue, self._options, self._photos
        row = {photo.md5: i for i, photo in enumerate(photos)}
        model = choose_model(catalogue, options.digest, allow_random=options.allow_random)
        limits = THRESHOLDS.get(model.name, OTHER_MODEL) if model else None
        if limits and options.threshold is not None:
            limits = limits.showing_from(options.threshold)
        bounds = (limits.similar, limits.lowest) if limits else (1.0, 1.0)
        near = find_neighbours(catalogue, photos, model, *bounds)
        shots = Shots(photos)
        apart = _apart(self._feedback, row)

        def asked_for(codes: np.ndarray) -> np.ndarray:
            return ~np.isin(codes, apart) & ~self._are_in_one_folder(codes)

        def may_be_one(codes: np.ndarray) -> np.ndarray:
            return codes[asked_for(codes) & ~shots.are_two(codes)]

        is_burst = shots.are_within(near.alike, BURST_SECONDS)
        similar_rows, cosine = _similar(near, limits, asked_for(near.alike), is_burst)
        with (
            EvidenceStore(catalogue.own.evidence) as store,
            FeatureStore(catalogue.own.features) as feature_store,
        ):
            self._rules.remember_beside(store)
            feature_store.keep_only(row.keys())
            search = CopySearch(catalogue, photos, store, feature_store, may_be_one)
            seconds = FIRST_SECONDS if options.on_more else options.seconds
            while True:
                began_s = time.monotonic()
                search.deadline_s = began_s + seconds / 2  # the other half is for choosing
                search.ask(near.alike, near.by_hash)
                rank = _rank(self._rules, photos, sorted(search.rows() | set(similar_rows.ravel().tolist())))
                decisions = self._decide(search, rank, store, apart, began_s + seconds)
                is_complete = search.is_complete and self._is_decided
                if is_complete or not options.on_more:
                    break
                options.on_more()
                seconds *= 3
            in_families = {row for decision in decisions for row in decision.rows}
            left = ~np.isin(similar_rows, [i for decision in decisions for i in decision.suggestions]).any(
                axis=1
            )
            first, second = similar_rows[left].T
            similar_stars = stars(Pairs(first, second, cosine[left]), len(photos), rank=rank)

            def evidence(i: int, j: int) -> Evidence:
                return Evidence(False, near.similarity(i, j), search.evidence(i, j))

            # Copies of unreadable files have equal bytes.
            of_bytes = by_content(
                photo for photo in catalogue.photos("unreadable") if photo.lies_in(options.only or (".",))
            )
            self._files |= of_bytes
            photos += [same[0] for same in of_bytes.values()]
            decisions += [
                Decision(i, {})
                for i, photo in enumerate(photos)
                if len(self._files[photo.md5]) > 1 and i not in in_families
            ]
            # Show progress only if files beside the photos have to be read.
            rows = (row for decision in decisions for row in decision.rows)
            has_more = any(self._rules.along(photos[i]) for i in rows)
            through = bar(decisions, total=len(decisions), desc="beside", unit="group")
            copies = [
                group
                for decision in (through if has_more else decisions)
                if (group := self._family(decision, evidence))
            ]
        # Until all pairs are compared, a similar photo may still turn out to be a copy.
        similar = [self._star(*star, evidence) for star in similar_stars.items()] if is_complete else []
        for groups in (copies, similar):
            groups.sort(key=lambda group: (-group.confidence, -group.bytes_to_free, str(group.keeper.path)))
        return Tiers(
            tuple(copies), tuple(similar), model, limits, len(self._everything), len(search.verified),
            near.search, near.recall, (*search.problems, *self._problems), options.protected, is_complete,
        )  # fmt: skip

    def _decide(
        self,
        search: CopySearch,
        rank: np.ndarray,
        store: EvidenceStore,
        apart: np.ndarray,
        deadline_s: float,
    ) -> list[Decision]:
        chooser = Chooser(
            search.pixels, self._photos, self._preferring, store, search.is_ruled_out, deadline_s
        )
        decisions = chooser.choose(search.families(rank))
        self._problems, self._is_decided = chooser.problems, chooser.is_complete
        search.compare_with([(decision.keeper, decision.differences) for decision in decisions])
        decided, hidden = [], set(apart.tolist())
        for decision in decisions:
            # Hide what the owner set apart from the keeper.
            keeper, members = decision.keeper, decision.differences.items()
            visible = {row: reasons for row, reasons in members if pair_code(keeper, row) not in hidden}
            decided += [Decision(keeper, visible)] if visible else []
        return decided

    def _are_in_one_folder(self, codes: np.ndarray) -> np.ndarray:
        """Return for each pair whether all files of both lie in one folder of `not_within`."""
        first, second = pair_rows(codes)
        return (self._folder[first] >= 0) & (self._folder[first] == self._folder[second])

    def _only_in(self, photos: Sequence[Photo]) -> int:
        """Return the number of the folder of `not_within` that holds all of these; -1 for none."""
        folders = enumerate(self._options.not_within)
        return next((n for n, folder in folders if all(photo.lies_in([folder]) for photo in photos)), -1)

    def _protected(self, photos: Iterable[Photo]) -> frozenset[int]:
        return frozenset(photo.id for photo in photos if photo.lies_in(self._options.protected))

    def _family(self, decision: Decision, evidence: Callable[[int, int], Evidence]) -> Group | None:
        """Make a group of a family, with every file of each content; None if one folder of `not_within` holds all."""
        photos, rules = self._photos, self._preferring
        same = self._files[photos[decision.keeper].md5]
        # Of equal bytes the folder, the age and the path decide.
        choice = rules.choose(same)
        keeper = choice.keeper
        twice, nothing = Evidence(True, 1.0, None), tuple[Difference, ...]()
        files = [(photo, twice, nothing) for photo in same if photo.id != keeper.id]
        for row, differing in decision.differences.items():
            proof = evidence(decision.keeper, row)
            files += [(photo, proof, differing) for photo in self._files[photos[row].md5]]
        files = [entry for entry in files if self._only_in([keeper, entry[0]]) < 0]
        if not files:
            return None
        members = []
        for photo, proof, differing in files:
            # Of files of one content each may have a sidecar of its own.
            lost = rules.lost_beside(keeper, photo)
            is_text_only = not differing and bool(lost) and lost == rules.lost_metadata(keeper, photo)
            differences = (*differing, *map(Difference, lost))
            reason = "the same file, twice" if proof.exact else rules.over(keeper, photo)
            members.append(Member(photo, proof, differences, reason, is_text_only))
        protected = self._protected([keeper, *(member.photo for member in members)])
        members.sort(
            key=lambda member: (
                bool(member.differences) or member.photo.id in protected,
                -member.evidence.confidence,
                str(member.photo.path),
            )
        )
        if decision.differences:
            best = rules.choose([keeper, *(member.photo for member in members)])
            choice = Choice(keeper, best.rule, best.reason)
            if best.keeper.id != keeper.id:
                choice = Choice(keeper, None, "it can reproduce the others, as far as any of these files can")
        group = Group("copies", choice, tuple(members), protected)
        frees = bytes_freed(self._catalogue.root, group.may_go)
        return replace(group, linked=frozenset(number for number, n_bytes in frees.items() if not n_bytes))

    def _star(self, row: int, similar: Sequence[int], evidence: Callable[[int, int], Evidence]) -> Group:
        """Make a group of similar pictures; exact copies of its photos are in the copies tier already."""
        keeper = self._photos[row]
        rows = sorted(similar, key=lambda i: (-evidence(row, i).confidence, str(self._photos[i].path)))
        choice = self._rules.choose([keeper, *(self._photos[i] for i in rows)])
        if choice.keeper.id != keeper.id:
            # The star's centre stays: only with it was every member compared.
            choice = Choice(keeper, None, "every other photo here was compared with this one")
        members = tuple(Member(self._photos[i], evidence(row, i)) for i in rows)
        protected = self._protected([keeper, *(self._photos[i] for i in rows)])
        return Group("similar", choice, members, protected)


def _similar(
    near: Neighbours, limits: ModelThresholds | None, alike: np.ndarray, within: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs that show one scene as int64[n, 2], and their cosines; of those for which `alike` is true."""
    if limits:
        alike = alike & (near.cosine >= np.where(within, limits.burst, limits.similar) - TOLERANCE)
    return np.stack(pair_rows(near.alike[alike]), axis=1), near.cosine[alike]


def _rank(rules: KeepRules, photos: Sequence[Photo], rows: Sequence[int]) -> np.ndarray:
    """Return the place of these rows by the keep rules, the best first; all others come last."""
    place = {photo.md5: place for place, photo in enumerate(rules.ranked([photos[i] for i in rows]))}
    rank = np.full(len(photos), len(photos))
    rank[rows] = [place[photos[i].md5] for i in rows]
    return rank


def _apart(feedback: Feedback, row: dict[str, int]) -> np.ndarray:
    pairs = ((row[md5] for md5 in pair) for pair in feedback.dismissed_pairs(row))
    return np.array([pair_code(*pair) for pair in pairs], np.int64)
