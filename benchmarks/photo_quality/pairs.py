"""How well pairs of copies are found: precision and recall on edits of known photographs.

Every photograph is edited in graded ways (`edits`), and every edit is compared with every original: with its own it should
match, with all others it should not. A detector gives each pair a score; the curve over all pairs says what it is worth, and
its left end, the recall before the first false pair, says what it is worth to someone who deletes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.photo_quality.edits import Transform
from photodup.core.errors import PhotodupError
from photodup.core.progress import bar
from photodup.embedding import imaging
from photodup.photos.compare.features import features
from photodup.photos.compare.limits import LIMITS
from photodup.photos.compare.verify import verify_copy
from photodup.photos.library.hashing import md5, perceptual_hash
from photodup.photos.library.walking import walk
from photodup.photos.search.candidates import PER_PHOTO_ALONE, PER_PHOTO_BESIDE
from photodup.photos.search.hash_neighbours import MAX_RADIUS, NEAREST, orientations, search_radius
from photodup.photos.search.models import OTHER_MODEL, THRESHOLDS
from photodup.photos.search.neighbours import Bounds, similar_pairs
from photodup.photos.search.stars import stars

WORK_SIZE = 1024  # longer side of the originals that are edited, pixels: larger ones would only take longer
LIBRARY_SIZES = tuple(round(10 ** (step / 4)) for step in range(8, 29))
COSINES = (0.8, 0.85, 0.9, 0.95)  # at which stars and components are compared
DETECTORS = {
    "md5": "MD5",
    "hash": "perceptual hash",
    "cosine": "embedding",
    "by_hash": "hash, then verified",
    "by_both": "embedding or hash, then verified",
}
# What a model's cosines are chosen by: the share of copies that the embedding may miss (the hash asks too), and of the pairs
# of one scene and of different things those that are shown, plainly and in a burst.
MISSED_COPIES, SIMILAR, BURST = 0.01, (0.75, 0.001), (0.9, 0.01)


@dataclass(frozen=True)
class Original:
    """A photograph to edit. Those of one `scene` show the same thing and are different pictures."""

    name: str
    image: Image.Image
    scene: str


def originals_of(folder: Path | None, most: int = 500) -> list[Original]:
    """Return the photographs of a folder, which must all be different pictures, or the demonstration's."""
    from photodup.photos.demo.photographs import SOURCES

    if folder is None:
        return [Original(source.name, source.open(), source.scene) for source in SOURCES]
    originals = []
    for entry in walk(folder).entries[:most]:
        path = folder / entry.path.decode("utf-8", "surrogateescape")
        try:
            originals.append(Original(path.name, imaging.decode(path, draft_size=WORK_SIZE), path.name))
        except imaging.ImageError:
            continue
    if len(originals) < 2:
        raise PhotodupError(f"{folder} has {len(originals)} photographs that can be read: give two or more.")
    return originals


def shrunk(image: Image.Image) -> Image.Image:
    """Return an RGB picture of `WORK_SIZE` pixels at most."""
    image = image.convert("RGB")
    image.thumbnail((WORK_SIZE, WORK_SIZE), Image.Resampling.LANCZOS)
    return image


def curve(
    name: str,
    scores: np.ndarray,
    positive: np.ndarray,
    edits: np.ndarray,
    shipped: np.ndarray | None = None,
    most_points: int = 120,
) -> dict[str, Any]:
    """Return what the scores of one detector say, as the record has it: the curve by at most `most_points` of its points.

    Args:
        scores: float[n], one for each pair, higher is more alike.
        positive: bool[n].
        edits: str[n], the edit of each pair.
        shipped: bool[n], what the rule says as it ships; None if it has no threshold.
    """
    from sklearn.metrics import average_precision_score, precision_recall_curve

    precision, recall, _ = (part[::-1] for part in precision_recall_curve(positive, scores))
    # A curve turns where a copy is found; between those points precision only falls.
    turns = np.append(np.flatnonzero(np.diff(recall) > 0) + 1, len(recall) - 1)
    points = np.unique(turns[np.linspace(0, len(turns) - 1, most_points).astype(int)])
    is_before_false = scores > scores[~positive].max()
    return {
        "detector": name,
        "recall": np.round(recall[points], 4).tolist(),
        "precision": np.round(precision[points], 4).tolist(),
        "average_precision": float(average_precision_score(positive, scores)),
        "recall_at_precision_90": float(recall[precision >= 0.9].max()),
        "recall_at_zero_fp": float(is_before_false[positive].mean()),
        "n_found_as_shipped": None if shipped is None else int((shipped & positive).sum()),
        "n_false_as_shipped": None if shipped is None else int((shipped & ~positive).sum()),
        "recall_by_edit": {
            edit: float(is_before_false[positive & (edits == edit)].mean())
            for edit in dict.fromkeys(edits.tolist())
        },
        "n_true_pairs": int(positive.sum()),
        "n_false_pairs": int((~positive).sum()),
    }


def choose_cosines(copies: np.ndarray, same_scene: np.ndarray, strangers: np.ndarray) -> dict[str, float]:
    """Choose a model's cosines from those of labelled pairs; without pairs of one scene the strangers alone decide.

    Returns:
        `candidate`, from which pairs are verified, `similar`, and `burst`; rounded to 0.01, to the careful side.
    """

    def from_cosine(shown: float, stray: float) -> float:
        limit = float(np.quantile(strangers, 1 - stray))
        if len(same_scene):
            limit = max(limit, float(np.quantile(same_scene, 1 - shown)))
        return float(np.clip(np.ceil(limit * 100) / 100, 0.01, 1))

    candidate = np.floor(float(np.quantile(copies, MISSED_COPIES)) * 100) / 100
    return {
        "candidate": float(np.clip(candidate, 0.01, 1)),
        "similar": from_cosine(*SIMILAR),
        "burst": from_cosine(*BURST),
    }


def chaining(vectors: np.ndarray, threshold: float) -> dict[str, float]:
    """Compare stars with connected components at one cosine: the largest of each, and the smallest cosine inside."""
    from scipy.sparse.csgraph import connected_components

    pairs = similar_pairs(np.asarray(vectors, np.float32), Bounds(threshold, threshold))
    similarity = vectors @ vectors.T
    n, component = connected_components(similarity >= threshold)
    groups = {
        "star": [[keeper, *members] for keeper, members in stars(pairs, len(vectors)).items()],
        "component": [np.flatnonzero(component == number).tolist() for number in range(n)],
    }
    measured = {"threshold": threshold}
    for name, members in groups.items():
        measured[f"largest_{name}"] = max(map(len, members), default=0)
        measured[f"smallest_in_{name}"] = min(
            (float(similarity[np.ix_(of, of)].min()) for of in members), default=1.0
        )
    return measured


def measure_pairs(
    originals: Sequence[Original],
    edits: Sequence[Transform],
    embed: Callable[[Sequence[Image.Image]], np.ndarray],
    model: str | None = None,
) -> dict[str, Any]:
    """Measure MD5, perceptual hash, embedding and the rule as it ships on edits of these photographs, as JSON.

    Args:
        originals: two or more different photographs.
        embed: pictures to float32[n, d] unit vectors.
        model: name of what `embed` is; its cosine for candidates applies as it ships.
    """
    base = [shrunk(original.image) for original in originals]
    n, known_md5s, known_hashes = len(base), list(map(_md5, base)), list(map(perceptual_hash, base))
    known_features, known_vectors = list(map(features, base)), embed(base)
    candidate = THRESHOLDS.get(model or "", OTHER_MODEL).candidate
    columns: dict[str, list[np.ndarray]] = {name: [] for name in DETECTORS}
    vectors, reach, seconds, n_verified = [known_vectors], [], 0.0, 0
    queries = [(i, edit) for edit in edits for i in range(n)]
    for i, edit in bar(queries, total=len(queries), desc="compare", unit="edit"):
        image = edit(base[i])
        vectors.append(embed([image]))
        bits, nearest_bits = _bits(perceptual_hash(image), known_hashes)
        cosine = known_vectors @ vectors[-1][0]
        by_hash = _nearest(-nearest_bits) & (nearest_bits <= MAX_RADIUS)
        by_both = by_hash | (_nearest(cosine) & (cosine >= candidate))
        own, verified, started = features(image), np.zeros(n), time.perf_counter()
        for j in np.flatnonzero(by_both).tolist():
            verified[j] = verify_copy(known_features[j], own).score()
        seconds, n_verified = seconds + time.perf_counter() - started, n_verified + int(by_both.sum())
        same_bytes = np.array([float(_md5(image) == md5) for md5 in known_md5s])
        row = (same_bytes, 1 - bits / 64, cosine, np.where(by_hash, verified, 0), verified)
        for column, scores_of_edit in zip(columns.values(), row, strict=True):
            column.append(scores_of_edit)
        is_copy = verified[i] >= LIMITS.min_agreement
        reach.append((nearest_bits[i], cosine[i] >= candidate, is_copy and by_hash[i], is_copy))
    scores = {name: np.concatenate(column) for name, column in columns.items()}
    truth = np.array([i == j for i, _ in queries for j in range(n)])
    names = np.repeat([edit.name for _, edit in queries], n)
    least = {"md5": 1.0, "by_hash": LIMITS.min_agreement, "by_both": LIMITS.min_agreement}
    curves = [
        curve(
            DETECTORS[name],
            scores[name],
            truth,
            names,
            scores[name] >= least[name] if name in least else None,
        )
        for name in DETECTORS
    ]
    scenes = [original.scene for original in originals]
    is_one_scene = np.array([scenes[i] == scene for i, _ in queries for scene in scenes])
    kinds = (truth, is_one_scene & ~truth, ~is_one_scene)
    cosines = choose_cosines(*(scores["cosine"][kind] for kind in kinds))
    return {
        "model": model,
        "n_photos": n,
        "n_same_scene": sum(a == b for k, a in enumerate(scenes) for b in scenes[:k]),
        "edits": [edit.name for edit in edits],
        "curves": curves,
        "chaining": [chaining(np.concatenate(vectors), cosine) for cosine in COSINES],
        "cosines": cosines,
        "n_verified": n_verified,
        "verify_ms": 1000 * seconds / max(n_verified, 1),
        "recall_by_library_size": [recall_among(size, reach) for size in LIBRARY_SIZES],
    }


def recall_among(n: int, reach: Sequence[tuple]) -> dict[str, float]:
    """Return the recall as shipped, by hash alone and with the embedding, were these among `n` photos.

    Computed: the radius of the hash falls as a library grows (`search_radius`). That strangers also crowd the nearest by
    embedding is not in it: it takes a large library to measure.

    Args:
        reach: of each edit the bits to its original, whether the cosine makes it a candidate, and whether it was found by
            hash, and at all.
    """
    alone, beside = (search_radius(n, per_photo) for per_photo in (PER_PHOTO_ALONE, PER_PHOTO_BESIDE))
    bits, is_candidate, by_hash, is_found = map(np.array, zip(*reach, strict=True))
    return {
        "photos": n,
        "hash_alone": float(np.mean(by_hash & (bits <= alone))),
        "with_embedding": float(np.mean(is_found & ((bits <= beside) | is_candidate))),
    }


def _md5(image: Image.Image) -> str:
    return md5(imaging.encode(image, "PNG", compress_level=1))


def _bits(query: str | None, phashes: Sequence[str | None]) -> tuple[np.ndarray, np.ndarray]:
    """Return how many bits of the others' hashes differ, and the least in any orientation; 64 for blank pictures."""
    hashes = np.array([int(phash or "0", 16) for phash in (query, *phashes)], np.uint64)
    turned = [
        np.bitwise_count(turn[0] ^ hashes[1:]).astype(int) + least for turn, least in orientations(hashes)
    ]
    is_blank = np.array([query is None or phash is None for phash in phashes])
    return np.where(is_blank, 64, turned[0]), np.where(is_blank, 64, np.min(turned, axis=0))


def _nearest(scores: np.ndarray) -> np.ndarray:
    return np.isin(np.arange(len(scores)), np.argsort(-scores, kind="stable")[:NEAREST])
