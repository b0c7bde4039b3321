"""How well pairs of copies are found: precision and recall on edits of known photographs.

Every photograph is edited in graded ways (`edits`), and every edit is compared with every original:
with its own it should match, with all others it should not. "Same scene" negatives are others that show
the same thing. A detector gives each pair a score; the curve over all pairs says what it is worth, and
its left end, the recall before the first false positive, says what it is worth to someone who deletes.
"""

import hashlib
import io
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from photodup.embedding import imaging
from photodup.photos.compare.features import Features, features
from photodup.photos.compare.verify import Thresholds, verify
from photodup.photos.groups.model_thresholds import OTHER_MODEL, THRESHOLDS, ModelThresholds
from photodup.photos.library.hashing import hamming, perceptual_hash
from photodup.photos.quality.curves import Chaining, Curve, choose_cosines, curve, measure_chaining
from photodup.photos.quality.edits import REFERENCE, Transform, named
from photodup.photos.search.candidates import PER_PHOTO_ALONE, PER_PHOTO_BESIDE
from photodup.photos.search.hash_neighbours import MAX_RADIUS, NEAREST, mirrored_hash, search_radius

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
    """One edit against its own original: `bits` between their hashes (the mirror's, if nearer), their `cosine`
    (None without an embedding), and whether they were asked and verified as copies."""

    name: str
    bits: int
    cosine: float | None
    found_by_hash: bool
    found: bool


@dataclass(frozen=True)
class Quality:
    """The measurement: one curve for each detector, and what was measured.

    `cosines` are those the measured pairs ask for (`choose_cosines`), None without an embedding;
    `n_labelled` counts the owner's pairs among them. `verify_ms` is the mean of `n_verified` pairs on this
    machine, features at hand.
    """

    n_photos: int
    n_same_scene: int
    transforms: tuple[str, ...]
    model: str | None
    curves: tuple[Curve, ...]
    chaining: tuple[Chaining, ...] = field(default=())
    cosines: ModelThresholds | None = None
    n_labelled: int = 0
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

    def rows(self) -> list[dict]:
        """Return one record for each detector, for a table."""
        return [
            {
                "detector": curve.name,
                "average_precision": curve.average_precision,
                "recall_at_precision_90": curve.recall_at_p90,
                "recall_at_zero_false_positives": curve.recall_at_zero_fp,
                "recall_at_default": curve.at_default and curve.at_default[0] / curve.n_positive,
                "false_positives_at_default": curve.at_default and curve.at_default[1],
            }
            for curve in self.curves
        ]


def evaluate(
    originals: Sequence[Original],
    transforms: Sequence[Transform] | None = None,
    *,
    embed: Callable[[Sequence[Image.Image]], np.ndarray] | None = None,
    model: str | None = None,
    cosines: Sequence[float] = (0.8, 0.85, 0.9, 0.95),
    labelled: Sequence[tuple[float, bool]] = (),
    progress: Callable[[Iterable, int], Iterable] = lambda queries, total: queries,
) -> Quality:
    """Measure MD5, perceptual hash, embedding and the two-tier rule on edits of these photographs.

    Args:
        originals: two or more different photographs.
        transforms: default the ten of `REFERENCE`.
        embed: pictures to float32[n, d] unit vectors; without it only what needs no weights is measured.
        model: name of what `embed` is; its cosine for candidates applies as it ships.
        cosines: thresholds at which chaining is measured.
        labelled: the owner's verdicts as (cosine, same picture): they join the curve of the embedding and
            the choice of cosines.
        progress: wraps the queries and their number, as tqdm does.
    """
    transforms = list(transforms or named(REFERENCE))
    base = [_shrunk(original.image) for original in originals]
    candidate = THRESHOLDS.get(model or "", OTHER_MODEL).candidate
    known = _Described.of(base, embed)
    queries = [(i, edit) for edit in transforms for i in range(len(base))]
    columns: dict[str, list] = {name: [] for name in ("md5", "phash", "cosine", "by_hash", "by_both")}
    labels, positive, vectors, edits = [], [], [], []
    # Below it another test has failed, and the score is halved.
    accept = Thresholds.min_agreement
    seconds, n_verified = 0.0, 0
    for i, edit in progress(queries, len(queries)):
        changed = edit(base[i])
        query = _Described.of([changed], embed)
        bits = np.array([_bits(query.phash[0], other) for other in known.phash])
        flipped = np.array([_bits(query.phash[0], other, mirror=True) for other in known.phash])
        nearer = np.minimum(bits, flipped)
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
        said = np.array([cosine for cosine, _ in labelled]), np.array([same for _, same in labelled], bool)
        all_cosines, all_truth = np.append(scores["cosine"], said[0]), np.append(truth, said[1])
        all_labels = labels + ["the owner's"] * len(labelled)
        curves.insert(2, curve("embedding", all_cosines, all_truth, all_labels))
        one_scene = np.array([[scenes[i] == scene for scene in scenes] for i, _ in queries]).ravel()
        chosen = choose_cosines(
            all_cosines[all_truth],
            scores["cosine"][one_scene & ~truth],
            np.append(scores["cosine"][~one_scene], said[0][~said[1]]),
        )
        both = scores["by_both"]
        curves.append(curve("embedding or hash, then verified", both, truth, labels, both >= accept))
        everything = np.concatenate([known.vectors, np.array(vectors)])
        sources = list(range(len(base))) + [i for i, _ in queries]
        chaining = tuple(measure_chaining(everything, sources, cosine) for cosine in cosines)
    same = sum(a == b for k, a in enumerate(scenes) for b in scenes[:k])
    names = tuple(edit.name for edit in transforms)
    return Quality(
        len(base), same, names, model, tuple(curves), chaining, chosen, len(labelled),
        n_verified, 1000 * seconds / max(n_verified, 1), tuple(edits),
    )  # fmt: skip


def folder_originals(folder: Path, most: int = 500) -> list[Original]:
    """Return the photographs of a folder; they must all be different pictures, or recall is understated."""
    from photodup.photos.library.walking import walk

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
            [hashlib.md5(_png(image), usedforsecurity=False).hexdigest() for image in images],
            [perceptual_hash(image) for image in images],
            [features(image) for image in images],
            embed(images) if embed else np.zeros((len(images), 1), np.float32),
        )


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _shrunk(image: Image.Image) -> Image.Image:
    image = image.convert("RGB")
    image.thumbnail((WORK_SIZE, WORK_SIZE), Image.Resampling.LANCZOS)
    return image


def _bits(first: str | None, second: str | None, *, mirror: bool = False) -> int:
    if first is None or second is None:
        return 64
    return hamming(mirrored_hash(first) if mirror else first, second)


def _nearest(scores: np.ndarray, k: int) -> np.ndarray:
    chosen = np.zeros(len(scores), bool)
    chosen[np.argsort(-scores, kind="stable")[:k]] = True
    return chosen
