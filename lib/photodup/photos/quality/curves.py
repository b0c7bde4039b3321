"""Curves of precision and recall, what chaining does, and the cosines that labelled pairs ask for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from photodup.errors import PhotodupError
from photodup.photos.groups.model_thresholds import ModelThresholds
from photodup.photos.groups.stars import group_by_cosine

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
        zero_fp_threshold: the largest score of a negative.
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
    zero_fp_threshold: float
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
        float(found.sum() / n_positive), limit, by_transform, n_positive, n_negative, at_default,
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
    stars = [[group.keeper, *group.members] for group in group_by_cosine(vectors, threshold)]
    parent = np.arange(len(vectors))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    similarity = vectors @ vectors.T
    for i, j in zip(*np.nonzero(np.triu(similarity >= threshold, 1)), strict=True):
        parent[root(i)] = root(j)
    members: dict[int, list[int]] = {}
    for i in range(len(vectors)):
        members.setdefault(root(i), []).append(i)
    components = [group for group in members.values() if len(group) > 1]

    def summary(groups: list[list[int]]) -> tuple[int, float, int]:
        largest = max((len(group) for group in groups), default=0)
        smallest = min((float(similarity[np.ix_(group, group)].min()) for group in groups), default=1.0)
        return largest, smallest, sum(len({sources[i] for i in group}) > 1 for group in groups)

    (star, star_low, star_mixed), (chain, chain_low, chain_mixed) = summary(stars), summary(components)
    return Chaining(threshold, star, chain, star_low, chain_low, star_mixed, chain_mixed)
