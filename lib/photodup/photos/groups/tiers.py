"""The two tiers: copies, verified on the pixels, and similar pictures, by what the embedding says.

Candidates for copies (`photodup.photos.search.candidates`) are verified on their pixels
(`photodup.photos.compare.verify`); what is left is grouped by similarity alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from photodup.photos.compare.evidence import EvidenceStore, pair_codes, pair_rows
from photodup.photos.compare.pixels import measured_sharpness
from photodup.photos.compare.verify import Thresholds, Verification
from photodup.photos.groups.copy_search import CopySearch, as_pairs
from photodup.photos.groups.keepers import Choice, KeepRules
from photodup.photos.groups.stars import TOLERANCE, choose_model, exact_copies
from photodup.photos.library.catalogue import Catalogue, Model, Photo
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.sidecars import raw_beside
from photodup.photos.search.candidates import Neighbours, Shots, find_neighbours
from photodup.photos.search.neighbours import stars


@dataclass(frozen=True)
class ModelThresholds:
    """Cosines for one model. `measured` says where they come from; it is shown beside them.

    Attributes:
        candidate: pairs above are worth verifying as copies.
        similar: pairs above show the same scene.
        burst: the same, for photos taken within the time window.
    """

    candidate: float
    similar: float
    burst: float
    measured: str

    @property
    def lowest(self) -> float:
        """Return the cosine from which on a pair is looked at for any reason."""
        return min(self.candidate, self.similar, self.burst)


# By the model's name in the catalogue. What is called measured is what `photodup evaluate` prints, and a test
# compares them.
THRESHOLDS: dict[str, ModelThresholds] = {
    "efficientnet-lite0-stand-in": ModelThresholds(
        0.65, 0.85, 0.75, "measured on the demonstration photographs"
    ),
    "ViT-B-32": ModelThresholds(
        0.80, 0.95, 0.90, "not measured here: between what photo libraries ship with"
    ),
    "sscd_disc_mixup": ModelThresholds(
        0.50, 0.75, 0.75, "not measured here: its authors report 90 % precision on DISC at 0.75"
    ),
}
OTHER_MODEL = ModelThresholds(0.75, 0.95, 0.90, "not measured for this model: run `photodup evaluate`")
BURST_SECONDS = 60.0
VERIFICATION = Thresholds()


@dataclass(frozen=True)
class Evidence:
    """Why a member is in a group. `similarity` is the cosine with the keeper; None without embeddings."""

    exact: bool
    similarity: float | None
    verification: Verification | None

    @property
    def confidence(self) -> float:
        """Return 0..1 to sort groups by: 1 for equal bytes, else what was verified, else the cosine."""
        if self.exact:
            return 1.0
        return self.verification.score() if self.verification else self.similarity or 0.0


@dataclass(frozen=True)
class TierGroup:
    """A star: every member was compared with the keeper itself. `tier` is `copies` or `similar`."""

    tier: str
    choice: Choice
    members: tuple[Photo, ...]
    evidence: tuple[Evidence, ...]

    @property
    def keeper(self) -> Photo:
        """Return the photo that the rules would keep."""
        return self.choice.keeper

    @property
    def confidence(self) -> float:
        """Return that of the least certain member."""
        return min(evidence.confidence for evidence in self.evidence)

    @property
    def bytes_to_free(self) -> int:
        """Size of all members, were only the keeper kept."""
        return sum(photo.size_bytes for photo in self.members)


@dataclass(frozen=True)
class Tiers:
    """All groups of a library, the most certain copies first, and how they were found."""

    copies: tuple[TierGroup, ...]
    similar: tuple[TierGroup, ...]
    model: Model | None
    thresholds: ModelThresholds | None
    n_photos: int
    n_verified: int
    search: str
    recall: float = 1.0
    problems: tuple[str, ...] = field(default=())

    @property
    def groups(self) -> tuple[TierGroup, ...]:
        """Return both tiers, copies first."""
        return self.copies + self.similar

    @property
    def largest_group(self) -> int:
        """Photos in the largest group; a very large one betrays a threshold that is too low."""
        return max((1 + len(group.members) for group in self.groups), default=0)

    @property
    def smallest_similarity(self) -> float | None:
        """Smallest cosine between a similar picture and its keeper."""
        return min(
            (e.similarity for g in self.similar for e in g.evidence if e.similarity is not None), default=None
        )


def find_tiers(
    catalogue: Catalogue,
    *,
    digest: str | None = None,
    allow_random: bool = False,
    rules: KeepRules | None = None,
    feedback: Feedback | None = None,
    thresholds: ModelThresholds | None = None,
    verification: Thresholds = VERIFICATION,
    burst_seconds: float = BURST_SECONDS,
    progress: Callable[[Iterable, int], Iterable] = lambda pairs, total: pairs,
) -> Tiers:
    """Group a library. Without embeddings, copies are found by hash and verified all the same.

    Args:
        catalogue: scanned, and embedded if there is to be a `similar` tier.
        digest: the model, where several have embeddings.
        allow_random: accept untrained weights, for studying the machinery.
        rules: which photo of a group to keep.
        feedback: pairs that the owner set apart are not grouped; default: the library's own.
        thresholds: cosines; default: the model's entry in `THRESHOLDS`.
        verification: what a copy must reach on the pixels.
        burst_seconds: photos taken within this time need less similarity to count as one scene.
        progress: wraps the pairs to verify and their number, as tqdm does.
    """
    rules = rules or KeepRules()
    own = catalogue.own
    feedback = feedback or Feedback(own.path)
    model = choose_model(catalogue, digest, allow_random=allow_random)
    rules.find_raw_with(raw_beside(catalogue.root))
    everything = catalogue.photos()
    files = {copies[0].md5: copies for copies in exact_copies(everything)}
    chosen = {(rules.choose(same).keeper if len(same) > 1 else same[0]).id for same in files.values()}
    # By path: what was taken together lies together, and is at hand when it is compared.
    photos = [photo for photo in everything if photo.id in chosen]
    row = {photo.md5: i for i, photo in enumerate(photos)}
    limits = (thresholds or THRESHOLDS.get(model.name, OTHER_MODEL)) if model else None
    bounds = (limits.similar, limits.lowest) if limits else (1.0, 1.0)
    near = find_neighbours(catalogue, photos, model, *bounds)
    shots, apart = Shots(photos), _apart(feedback, row)

    def may_be_one(codes: np.ndarray) -> np.ndarray:
        return codes[~np.isin(codes, apart) & ~shots.are_two(codes)]

    similar_rows, cosine = _similar(near, limits, apart, shots.are_within(near.alike, burst_seconds))
    with EvidenceStore(own.evidence) as store:
        search = CopySearch(catalogue, photos, store, verification, may_be_one, progress)
        search.ask(near.alike, near.by_hash)
        rules.measure_sharpness_with(lambda photo: measured_sharpness(catalogue, photo))
        rank = _rank(rules, photos, sorted(search.rows() | set(similar_rows.ravel().tolist())))
        copy_stars = search.stars(rank)
    verified = search.verified
    gone = [member for star in copy_stars for member in star.members]
    left = ~np.isin(similar_rows, gone).any(axis=1)
    similar_stars = stars(as_pairs(similar_rows[left], cosine[left]), len(photos), rank=rank)

    def evidence(i: int, j: int) -> Evidence:
        return Evidence(False, near.similarity(i, j), verified.get(i, j))

    copies, starred = [], set()
    for star in copy_stars:
        starred |= {star.keeper, *star.members}
        copies.append(_group("copies", star.keeper, star.members, photos, files, rules, evidence))
    for i, photo in enumerate(photos):
        if len(files[photo.md5]) > 1 and i not in starred:
            copies.append(_group("copies", i, (), photos, files, rules, evidence))
    # A similar picture's own exact copies are in the copies tier already.
    alone = {
        md5: found[:1] if row[md5] not in starred else [photos[row[md5]]] for md5, found in files.items()
    }
    similar = [_group("similar", s.keeper, s.members, photos, alone, rules, evidence) for s in similar_stars]
    for groups in (copies, similar):
        groups.sort(key=lambda group: (-group.confidence, -group.bytes_to_free, str(group.keeper.path)))
    n = len(everything)
    return Tiers(
        tuple(copies),
        tuple(similar),
        model,
        limits,
        n,
        len(verified),
        near.search,
        near.recall,
        tuple(search.problems),
    )


def _similar(
    near: Neighbours, limits: ModelThresholds | None, apart: np.ndarray, within: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs that show one scene as int64[n, 2], and their cosines."""
    alike = ~np.isin(near.alike, apart)
    if limits:
        alike &= near.cosine >= np.where(within, limits.burst, limits.similar) - TOLERANCE
    return np.stack(pair_rows(near.alike[alike]), axis=1), near.cosine[alike]


def _rank(rules: KeepRules, photos: Sequence[Photo], rows: Sequence[int]) -> np.ndarray:
    """Return the place of these rows by the keep rules, the best first; all others come last."""
    place = {photo.md5: place for place, photo in enumerate(rules.ranked([photos[i] for i in rows]))}
    rank = np.full(len(photos), len(photos))
    rank[rows] = [place[photos[i].md5] for i in rows]
    return rank


def _apart(feedback: Feedback, row: dict[str, int]) -> np.ndarray:
    pairs = [[row[md5] for md5 in pair] for pair in feedback.apart() if pair <= row.keys()]
    return pair_codes(*np.array(pairs, np.int64).reshape(-1, 2).T)


def _group(tier, keeper, members, photos, files, rules, evidence) -> TierGroup:
    """Make a group of a star, with every file of each content; the rules choose the file that stays."""
    found: list[tuple[Photo, Evidence]] = []
    for i in (keeper, *members):
        for photo in files[photos[i].md5]:
            found.append((photo, Evidence(True, 1.0, None) if i == keeper else evidence(keeper, i)))
    everyone = [photo for photo, _ in found]
    candidates = [photo for photo in everyone if photo.md5 == photos[keeper].md5]
    first = rules.choose(candidates).keeper
    distinct = [first, *(photo for photo in everyone if photo.md5 != first.md5)]
    choice = rules.choose(distinct if len(distinct) > 1 else candidates)
    # The star's centre stays the keeper: only with it was every member compared.
    if choice.keeper.md5 != first.md5:
        choice = Choice(first, choice.rule, "every other photo here was compared with this one")
    rest = [(photo, why) for photo, why in found if photo.id != choice.keeper.id]
    rest.sort(key=lambda entry: (-entry[1].confidence, str(entry[0].path)))
    return TierGroup(tier, choice, tuple(photo for photo, _ in rest), tuple(why for _, why in rest))
