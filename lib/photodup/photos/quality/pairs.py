"""How well pairs of copies are found: precision and recall on edits of known photographs.

Every photograph is edited in graded ways (`edits`), and every edit is compared with every original:
with its own it should match, with all others it should not. "Same scene" negatives are others that show
the same thing. A detector gives each pair a score; the curve over all pairs says what it is worth, and
its left end, the recall before the first false positive, says what it is worth to someone who deletes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from photodup.embedding import imaging
from photodup.errors import PhotodupError
from photodup.photos.compare.features import Features, features
from photodup.photos.compare.verify import Thresholds, verify
from photodup.photos.groups.model_thresholds import OTHER_MODEL, THRESHOLDS, ModelThresholds
from photodup.photos.groups.stars import stars
from photodup.photos.library.hashing import md5, perceptual_hash
from photodup.photos.library.walking import walk
from photodup.photos.quality.edits import REFERENCE, Transform, named
from photodup.photos.search.candidates import PER_PHOTO_ALONE, PER_PHOTO_BESIDE
from photodup.photos.search.hash_neighbours import MAX_RADIUS, NEAREST, orientations, search_radius
from photodup.photos.search.neighbours import NeighbourIndex
from photodup.progress import bar

MIN_PRECISION = 0.9

# What cosines are chosen by. Of the copies so many may go unasked by the embedding (the hash asks too); of
# the pairs of one scene so many are shown, more in a burst; of the pairs of different things at most so many.
MISSED_COPIES = 0.01
SHOWN_SAME_SCENE, SHOWN_BURST = 0.75, 0.9
SHOWN_STRANGERS, BURST_STRANGERS = 0.001, 0.01


@dataclass(frozen=True)
class Curve:
    """What the scores of one detector say.

    Attributes:
        name: the detector.
        precision, recall: the curve, by falling threshold; ties are one point.
        threshold: the score of each point.
        average_precision: area under it, over all pairs (micro).
        recall_at_p90: highest recall at a precision of at least 90 %.
        recall_at_zero_fp: recall at a threshold just above every negative.
        recall_by_transform: that recall for each edit.
        n_positive, n_negative: pairs.
        at_default: (true positives, false positives) of the rule as it ships; None if it has no threshold.
    """

    name: str
    precision: np.ndarray
    recall: np.ndarray
    threshold: np.ndarray
    average_precision: float
    recall_at_p90: float
    recall_at_zero_fp: float
    recall_by_transform: dict[str, float]
    n_positive: int
    n_negative: int
    at_default: tuple[int, int] | None = None


@dataclass(frozen=True)
class Chaining:
    """Stars against connected components at one cosine, over all originals and edits."""

    threshold: float
    largest_star: int
    largest_component: int
    smallest_in_star: float
    smallest_in_component: float
    mixed_stars: int
    mixed_components: int


def curve(
    name: str,
    scores: np.ndarray,
    positive: np.ndarray,
    labels: Sequence[str],
    default: np.ndarray | None = None,
) -> Curve:
    """Compute a curve.

    Args:
        name: the detector.
        scores: float[n], one for each pair, higher is more alike.
        positive: bool[n].
        labels: the edit of each pair.
        default: bool[n], what the rule says as it ships.

    Raises:
        PhotodupError: no positive or no negative pair.
    """
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    if not n_positive or not n_negative:
        raise PhotodupError(
            "A curve needs pairs that match and pairs that do not: give two photographs or more."
        )
    order = np.argsort(-scores, kind="stable")
    sorted_scores, hits = scores[order], np.cumsum(positive[order])
    last = np.append(np.flatnonzero(np.diff(sorted_scores)), len(scores) - 1)  # last of each tie
    hits = hits[last]
    precision, recall = hits / (last + 1), hits / n_positive
    average = float(np.sum(np.diff(recall, prepend=0) * precision))
    limit = float(scores[~positive].max())
    found = positive & (scores > limit)
    label_of = np.asarray(labels)
    by_transform = {
        label: float(found[positive & (label_of == label)].mean())
        for label in dict.fromkeys(labels)
        if (positive & (label_of == label)).any()
    }
    good = precision >= MIN_PRECISION
    at_default = None
    if default is not None:
        at_default = int((default & positive).sum()), int((default & ~positive).sum())
    return Curve(
        name, precision, recall, sorted_scores[last], average, float(recall[good].max(initial=0.0)),
        float(found.sum() / n_positive), by_transform, n_positive, n_negative, at_default,
    )  # fmt: skip


def choose_cosines(copies: np.ndarray, same_scene: np.ndarray, strangers: np.ndarray) -> ModelThresholds:
    """Choose a model's cosines from those of labelled pairs.

    Candidates are all but `MISSED_COPIES` of the copies. Similar is what `SHOWN_SAME_SCENE` of the pairs of
    one scene reach and no more than `SHOWN_STRANGERS` of the pairs of different things; in a burst
    `SHOWN_BURST` and `BURST_STRANGERS`. Without pairs of one scene the strangers alone decide. Rounded to
    0.01, to the careful side.

    Raises:
        PhotodupError: no copies or no strangers.
    """
    if not len(copies) or not len(strangers):
        raise PhotodupError("Cosines are chosen from pairs of copies and of different things: give both.")

    def at_least(shown: float, stray: float) -> float:
        limit = float(np.quantile(strangers, 1 - stray))
        if len(same_scene):
            limit = max(limit, float(np.quantile(same_scene, 1 - shown)))
        return float(np.clip(np.ceil(limit * 100) / 100, 0.01, 1))

    candidate = np.floor(float(np.quantile(copies, MISSED_COPIES)) * 100) / 100
    similar, burst = at_least(SHOWN_SAME_SCENE, SHOWN_STRANGERS), at_least(SHOWN_BURST, BURST_STRANGERS)
    source = (
        f"measured on {len(copies):,} pairs of copies, {len(same_scene):,} of one scene and "
        f"{len(strangers):,} of different things"
    )
    return ModelThresholds(float(np.clip(candidate, 0.01, 1)), similar, burst, source)


def measure_chaining(vectors: np.ndarray, sources: Sequence[int], threshold: float) -> Chaining:
    """Compare stars with connected components; a group is mixed if it holds edits of different originals."""
    from scipy.sparse.csgraph import connected_components

    pairs = NeighbourIndex(vectors.shape[1], threshold).add(np.asarray(vectors, np.float32))
    around = [[group.keeper, *group.members] for group in stars(pairs, len(vectors))]
    similarity = vectors @ vectors.T
    n, component = connected_components(similarity >= threshold)
    members = [np.flatnonzero(component == number).tolist() for number in range(n)]
    components = [group for group in members if len(group) > 1]

    def summary(groups: list[list[int]]) -> tuple[int, float, int]:
        largest = max((len(group) for group in groups), default=0)
        smallest = min((float(similarity[np.ix_(group, group)].min()) for group in groups), default=1.0)
        return largest, smallest, sum(len({sources[i] for i in group}) > 1 for group in groups)

    (star, star_low, star_mixed), (chain, chain_low, chain_mixed) = summary(around), summary(components)
    return Chaining(threshold, star, chain, star_low, chain_low, star_mixed, chain_mixed)


# Longer side of the originals that are edited, pixels: edits of 40-megapixel files would only take longer.
WORK_SIZE = 1024


@dataclass(frozen=True)
class Original:
    """A photograph to edit. Those of one `scene` show the same thing and are different pictures."""

    name: str
    image: Image.Image
    scene: str


@dataclass(frozen=True)
class Edit:
    """One edit against its own original: `bits` between their hashes (in the nearest orientation), their `cosine`
    (None without an embedding), and whether they were asked and verified as copies."""

    name: str
    bits: int
    cosine: float | None
    found_by_hash: bool
    found: bool


@dataclass(frozen=True)
class Quality:
    """The measurement: one curve for each detector, and what was measured.

    `cosines` are those the measured pairs ask for (`choose_cosines`), None without an embedding.
    `verify_ms` is the mean of `n_verified` pairs on this machine, features at hand.
    """

    n_photos: int
    n_same_scene: int
    transforms: tuple[str, ...]
    model: str | None
    curves: tuple[Curve, ...]
    chaining: tuple[Chaining, ...] = field(default=())
    cosines: ModelThresholds | None = None
    n_verified: int = 0
    verify_ms: float = 0.0
    edits: tuple[Edit, ...] = field(default=())

    def recall_among(self, n: int) -> tuple[float, float | None]:
        """Return the recall as shipped, by hash alone and with the embedding, were these among `n` photos.

        Computed: the radius of the hash falls as a library grows (`search_radius`). That strangers also crowd
        the nearest by embedding is not in it: it takes a large library to measure.
        """
        alone, beside = (search_radius(n, per_photo) for per_photo in (PER_PHOTO_ALONE, PER_PHOTO_BESIDE))
        by_hash = np.mean([edit.found_by_hash and edit.bits <= alone for edit in self.edits])
        if self.model is None:
            return float(by_hash), None
        candidate = THRESHOLDS.get(self.model, OTHER_MODEL).candidate
        asked = [
            edit.bits <= beside or (edit.cosine is not None and edit.cosine >= candidate)
            for edit in self.edits
        ]
        return float(by_hash), float(
            np.mean([edit.found and near for edit, near in zip(self.edits, asked, strict=True)])
        )


def evaluate(
    originals: Sequence[Original],
    transforms: Sequence[Transform] | None = None,
    *,
    embed: Callable[[Sequence[Image.Image]], np.ndarray] | None = None,
    model: str | None = None,
    cosines: Sequence[float] = (0.8, 0.85, 0.9, 0.95),
) -> Quality:
    """Measure MD5, perceptual hash, embedding and the two-tier rule on edits of these photographs.

    Args:
        originals: two or more different photographs.
        transforms: default the ten of `REFERENCE`.
        embed: pictures to float32[n, d] unit vectors; without it only what needs no weights is measured.
        model: name of what `embed` is; its cosine for candidates applies as it ships.
        cosines: thresholds at which chaining is measured.
    """
    transforms = list(transforms or named(REFERENCE))
    base = [shrunk(original.image) for original in originals]
    candidate = THRESHOLDS.get(model or "", OTHER_MODEL).candidate
    known = _Described.of(base, embed)
    queries = [(i, edit) for edit in transforms for i in range(len(base))]
    columns: dict[str, list] = {name: [] for name in ("md5", "phash", "cosine", "by_hash", "by_both")}
    labels, positive, vectors, edits = [], [], [], []
    # Below it another test has failed, and the score is halved.
    accept = Thresholds.min_agreement
    seconds, n_verified = 0.0, 0
    for i, edit in bar(queries, total=len(queries), desc="compare", unit="edit"):
        changed = edit(base[i])
        query = _Described.of([changed], embed)
        bits, nearer = _bits(query.phash[0], known.phash)
        cosine = known.vectors @ query.vectors[0] if embed else np.zeros(len(base))
        by_hash = _nearest(-nearer, NEAREST) & (nearer <= MAX_RADIUS)
        by_both = by_hash | (_nearest(cosine, NEAREST) & (cosine >= candidate) if embed else False)
        started = time.perf_counter()
        evidence = {j: verify(known.features[j], query.features[0]) for j in np.flatnonzero(by_both).tolist()}
        seconds, n_verified = seconds + time.perf_counter() - started, n_verified + len(evidence)
        verified = np.array([evidence[j].score() if j in evidence else 0.0 for j in range(len(base))])
        columns["md5"].append([float(query.md5[0] == other) for other in known.md5])
        columns["phash"].append(1 - bits / 64)
        columns["cosine"].append(cosine)
        columns["by_hash"].append(np.where(by_hash, verified, 0))
        columns["by_both"].append(verified)
        found, own_cosine = bool(verified[i] >= accept), float(cosine[i]) if embed else None
        edits.append(Edit(edit.name, int(nearer[i]), own_cosine, found and bool(by_hash[i]), found))
        labels += [edit.name] * len(base)
        positive += [j == i for j in range(len(base))]
        vectors.append(query.vectors[0])
    scores = {name: np.concatenate(values) for name, values in columns.items()}
    truth = np.array(positive)
    curves = [
        curve("MD5", scores["md5"], truth, labels, scores["md5"] == 1),
        curve("perceptual hash", scores["phash"], truth, labels),
        curve("hash, then verified", scores["by_hash"], truth, labels, scores["by_hash"] >= accept),
    ]
    chaining: tuple[Chaining, ...] = ()
    chosen = None
    scenes = [original.scene for original in originals]
    if embed:
        cosine = scores["cosine"]
        curves.insert(2, curve("embedding", cosine, truth, labels))
        one_scene = np.array([[scenes[i] == scene for scene in scenes] for i, _ in queries]).ravel()
        chosen = choose_cosines(cosine[truth], cosine[one_scene & ~truth], cosine[~one_scene])
        both = scores["by_both"]
        curves.append(curve("embedding or hash, then verified", both, truth, labels, both >= accept))
        everything = np.concatenate([known.vectors, np.array(vectors)])
        sources = list(range(len(base))) + [i for i, _ in queries]
        chaining = tuple(measure_chaining(everything, sources, cosine) for cosine in cosines)
    same = sum(a == b for k, a in enumerate(scenes) for b in scenes[:k])
    names = tuple(edit.name for edit in transforms)
    return Quality(
        len(base), same, names, model, tuple(curves), chaining, chosen,
        n_verified, 1000 * seconds / max(n_verified, 1), tuple(edits),
    )  # fmt: skip


def folder_originals(folder: Path, most: int = 500) -> list[Original]:
    """Return the photographs of a folder; they must all be different pictures, or recall is understated."""
    found = []
    for entry in walk(folder).entries[:most]:
        path = folder / entry.path.decode("utf-8", "surrogateescape")
        try:
            found.append(Original(path.name, imaging.decode(path, draft_size=WORK_SIZE), path.name))
        except imaging.ImageError:
            continue
    return found


@dataclass(frozen=True)
class _Described:
    """What the detectors know of some pictures."""

    md5: list[str]
    phash: list[str | None]
    features: list[Features]
    vectors: np.ndarray

    @classmethod
    def of(cls, images: Sequence[Image.Image], embed: Callable | None) -> "_Described":
        return cls(
            [md5(imaging.encoded(image, "PNG", compress_level=1)) for image in images],
            [perceptual_hash(image) for image in images],
            [features(image) for image in images],
            embed(images) if embed else np.zeros((len(images), 1), np.float32),
        )


def shrunk(image: Image.Image) -> Image.Image:
    """Return an RGB picture of `WORK_SIZE` pixels at most."""
    image = image.convert("RGB")
    image.thumbnail((WORK_SIZE, WORK_SIZE), Image.Resampling.LANCZOS)
    return image


def _bits(first: str | None, others: Sequence[str | None]) -> tuple[np.ndarray, np.ndarray]:
    """Return how many bits of the others' hashes differ, and the least in any orientation; 64 for blank pictures."""
    hashes = np.array([int(one or "0", 16) for one in (first, *others)], np.uint64)
    found = [
        np.bitwise_count(one[0] ^ hashes[1:]).astype(int) + nearer for one, nearer in orientations(hashes)
    ]
    blank = np.array([first is None or other is None for other in others])
    return np.where(blank, 64, found[0]), np.where(blank, 64, np.min(found, axis=0))


def _nearest(scores: np.ndarray, k: int) -> np.ndarray:
    chosen = np.zeros(len(scores), bool)
    chosen[np.argsort(-scores, kind="stable")[:k]] = True
    return chosen
