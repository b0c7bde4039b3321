"""The accuracy check of a precision: which photo decisions it flips on photographs that it was not calibrated on.

Held-out photographs and edits of them are embedded twice by the engine that will serve, at FP32 and at the precision
asked for. A pair of pictures matters for a threshold if either embedding decides it as alike, or if it lies within
`NEAR` of the threshold; all others are decided the same by any arithmetic and would only dilute a rate.

- A *similar* decision flips when the cosine crosses the threshold for similar pictures, or the one for a burst.
- A *copy* decision flips when the cosine crosses the threshold from which on pixels are compared, the pixels prove the
  pair to be copies, and the perceptual hash does not propose it (within the bits that a library of `LIBRARY_SIZE` is
  searched by). Any other pair is decided without its cosine.
- A *candidate* flips when the cosine alone crosses that threshold. Nothing is removed for it, since pixels decide next, so
  it is counted and not judged.

The budget: no copy decision flips, and at most 1% of the similar ones, by the one-sided 95% Clopper–Pearson bound. It
treats pairs as independent, which pairs that share a picture are not quite.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from photodup.embedding.engines.reduced import WeightsSource, fallback_for
from photodup.embedding.fidelity import compare_embeddings
from photodup.photos.groups.tiers import OTHER_MODEL, THRESHOLDS, ModelThresholds
from photodup.photos.library.hashing import hamming
from photodup.photos.search.candidates import PER_PHOTO_BESIDE
from photodup.photos.search.hash_neighbours import mirrored_hash, search_radius
from photodup.study.accuracy.pictures import EditedPicture, Pictures

NEAR = 0.05
LIBRARY_SIZE = 100_000
_KINDS = ("candidate", "similar", "burst")
# What a precision may cost: copy decisions that flip, the share of similar decisions that do, and the fewest pairs near the
# thresholds that are evidence enough.
MAX_COPY_FLIPS, MAX_SIMILAR_FLIP_SHARE, LEAST_PAIRS = 0, 0.01, 300
CONFIDENCE = 0.95  # of the upper bounds, one-sided


@dataclass(frozen=True)
class Decisions:
    """Decisions of one kind: how many pairs matter, lie near the threshold, flip, and the rate's upper bound."""

    threshold: float
    pairs: int
    near: int
    flipped: int
    upper_bound: float

    @property
    def rate(self) -> float:
        return self.flipped / self.pairs if self.pairs else 0.0


@dataclass(frozen=True)
class AccuracyCheck:
    """The outcome of the accuracy check.

    Attributes:
        verdict: `passed`, `refused` or `undecided`.
        sentence: the verdict with its reason and the next best thing.
        decisions: by kind: `copies`, `candidate`, `similar`, `burst`, and `all similar`, which joins the two before it.
        figures: of `photodup.embedding.fidelity.compare_embeddings`.
        photographs, pictures: held-out ones; pictures count edits.
        source: where the photographs come from.
    """

    verdict: str
    sentence: str
    decisions: dict[str, Decisions]
    figures: dict[str, float]
    photographs: int
    pictures: int
    source: str

    def as_record(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [self.sentence]
        for name, kind in self.decisions.items():
            lines.append(
                f"  {name:12} from {kind.threshold:.2f}: {kind.flipped:4} of {kind.pairs:6,} pairs that matter flip "
                f"({kind.near:,} near), {kind.rate:.2%}, at most {kind.upper_bound:.2%} (95%)"
            )
        figures = self.figures
        if "cosine_min" in figures:
            lines.append(
                f"  cosine to FP32: smallest {figures['cosine_min']:.4f}, median {figures['cosine_median']:.5f}; a pair's "
                f"similarity moves by {figures['shift_max']:.4f} at most; {figures['neighbour_kept']:.1%} keep their "
                f"nearest, whose rank falls to {figures['neighbour_rank_max']} at worst"
            )
        source = f"{self.photographs} photographs not calibrated on ({self.source})"
        return "\n".join([*lines, f"  {self.pictures} pictures of {source}"])


def count_flips(
    source: WeightsSource,
    precision: str,
    pictures: Pictures,
    *,
    engine: str,
    directory: Path | None = None,
    is_drafted: bool = False,
) -> AccuracyCheck:
    """Embed held-out pictures at FP32 and at `precision` by one engine, and judge.

    Args:
        is_drafted: save the pictures as JPEGs, decoded whole for FP32 and at a reduced scale for `precision`.
        source: the float32 export.
        directory: where the INT8 file is; default build/models.

    Raises:
        PhotodupError: the engine, the precision or its file is not available.
    """
    from photodup.embedding.engines.encoder import load_model

    whole, changed = pictures.both_decodings() if is_drafted else (pictures.pixels(),) * 2

    def embedded(computed_in: str, pixels: np.ndarray) -> np.ndarray:
        model = load_model(
            f"onnx:{source.path}", device="cpu", engine=engine, precision=computed_in, directory=directory
        )
        return np.concatenate([model.embed_pixels(pixels[i : i + 8]) for i in range(0, len(pixels), 8)])

    thresholds = THRESHOLDS.get(source.model_name, OTHER_MODEL)
    offer = "JPEGs decoded whole" if is_drafted else fallback_for(source, engine, precision, directory)
    label = f"{source.model_name} at {precision} in {engine}"
    label += ", JPEGs decoded at a reduced scale" if is_drafted else ""
    reference, reduced = embedded("fp32", whole), embedded(precision, changed)
    return verdict_of_flips(
        pictures, reference, reduced, thresholds, label=label, offer=offer, is_random=source.is_random
    )


def verdict_of_flips(
    pictures: Pictures,
    reference: np.ndarray,
    changed: np.ndarray,
    thresholds: ModelThresholds,
    *,
    label: str,
    offer: str,
    is_random: bool = False,
) -> AccuracyCheck:
    """Count the decisions that flip, and compare them with the budget.

    Args:
        pictures: the held-out ones, in the order of the rows.
        reference: float32 [n, dim] of length 1, at FP32.
        changed: the same pictures at the other precision.
        thresholds: cosines in use.
        label: weights, precision and engine, for the sentence.
        offer: the precision to offer instead.
        is_random: the weights are random, so the verdict is `undecided`.
    """
    figures = compare_embeddings(reference, changed, thresholds.similar)
    rows = np.triu_indices(len(reference), 1)
    before, after = (np.nan_to_num(e @ e.T, nan=-1.0)[rows] for e in (reference, changed))
    kinds = {name: _decisions(before, after, getattr(thresholds, name)) for name in _KINDS}
    kinds["all similar"] = _sum([kinds["similar"], kinds["burst"]])
    proven = _copies(pictures, rows, before, after, thresholds.candidate)
    near = kinds["all similar"].near
    verdict, reason = "passed", "it flips no more decisions than the budget allows"
    if is_random:
        verdict = "undecided"
        reason = "its weights are random, so changed decisions tell nothing: serve it in the laboratory only"
    elif figures["n_not_finite"]:
        verdict = "refused"
        reason = f"{figures['n_not_finite']} embeddings are not finite: use {offer}"
    elif proven.flipped > MAX_COPY_FLIPS:
        verdict = "refused"
        reason = f"{proven.flipped} copy decisions flip, and the budget allows {MAX_COPY_FLIPS}: use {offer}"
    elif (bound := kinds["all similar"].upper_bound) > MAX_SIMILAR_FLIP_SHARE and near >= LEAST_PAIRS:
        verdict = "refused"
        budget = f"the budget allows {MAX_SIMILAR_FLIP_SHARE:.1%}"
        reason = f"up to {bound:.1%} of the similar decisions flip, and {budget}: use {offer}"
    elif near < LEAST_PAIRS:
        verdict = "undecided"
        reason = f"only {near} pairs lie near a threshold, {LEAST_PAIRS} are needed: give more photographs, or use {offer}"
    sentence, decisions = f"{label}: {verdict}, since {reason}.", {"copies": proven, **kinds}
    sizes = pictures.n_photographs, len(pictures.held_out)
    return AccuracyCheck(verdict, sentence, decisions, figures, *sizes, pictures.source)


def upper_bound(flipped: int, pairs: int) -> float:
    """Return the one-sided Clopper–Pearson bound of a rate; 1 without pairs."""
    from scipy.stats import beta

    return 1.0 if flipped >= pairs else float(beta.ppf(CONFIDENCE, flipped + 1, pairs - flipped))


def _decisions(before: np.ndarray, after: np.ndarray, threshold: float) -> Decisions:
    near = np.abs(before - threshold) <= NEAR
    matters = near | (before >= threshold) | (after >= threshold)
    flips = int(((before >= threshold) != (after >= threshold)).sum())
    pairs = int(matters.sum())
    return Decisions(threshold, pairs, int(near.sum()), flips, upper_bound(flips, pairs))


def _sum(parts: list[Decisions]) -> Decisions:
    pairs, near, flips = (sum(getattr(p, name) for p in parts) for name in ("pairs", "near", "flipped"))
    lowest = min(part.threshold for part in parts)
    return Decisions(lowest, pairs, near, flips, upper_bound(flips, pairs))


def _copies(
    pictures: Pictures,
    rows: tuple[np.ndarray, np.ndarray],
    before: np.ndarray,
    after: np.ndarray,
    threshold: float,
) -> Decisions:
    """Count the copy decisions near the threshold and those that cross it; pixels verify each."""
    photograph = np.array([picture.photograph for picture in pictures.held_out])
    is_same = photograph[rows[0]] == photograph[rows[1]]  # pixels of different photographs never prove copies
    crosses = is_same & ((before >= threshold) != (after >= threshold))
    near = is_same & (np.abs(before - threshold) <= NEAR)

    def proven(chosen: np.ndarray) -> int:
        places = np.flatnonzero(chosen)
        return sum(needs_cosine(*(pictures.held_out[row[place]] for row in rows)) for place in places)

    flips = proven(crosses)
    pairs = flips + proven(near & ~crosses)
    return Decisions(threshold, pairs, int(near.sum()), flips, upper_bound(flips, pairs))


def needs_cosine(first: EditedPicture, second: EditedPicture) -> bool:
    """Return whether pixels prove a pair to be copies that the perceptual hash does not propose."""
    from photodup.photos.compare.verify import verify_copy

    (a, hash_a), (b, hash_b) = first.description, second.description
    radius = search_radius(LIBRARY_SIZE, PER_PHOTO_BESIDE)
    if hash_a and hash_b and min(hamming(hash_a, hash_b), hamming(hash_a, mirrored_hash(hash_b))) <= radius:
        return False
    return verify_copy(a, b).is_copy()
