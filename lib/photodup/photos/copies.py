"""The two tiers: copies, verified on the pixels, and similar pictures, by what the embedding says.

Candidates for copies are the nearest neighbours by embedding and by perceptual hash (of the picture and
of its mirror image); each candidate is then verified (`photodup.photos.verify`), so neither needs to be
right, only to be asked often enough. What is left is grouped by similarity alone.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
from PIL import Image

from photodup.embedding import imaging
from photodup.photos.catalogue import Catalogue, Model, Photo
from photodup.photos.feedback import Feedback
from photodup.photos.grouping import choose_model, exact_copies
from photodup.photos.keep import Choice, KeepRules, sharpness
from photodup.photos.neighbours import Pairs, stars
from photodup.photos.pair_store import stored_pairs
from photodup.photos.verify import SIZE, Features, Thresholds, Verification, features, verify


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
N_NEIGHBOURS = 10
# Bits of 64. Unrelated pictures differ in 32 ± 4; a crop to 70 % in about 22.
MAX_HASH_DISTANCE = 24


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
    folder = catalogue.path.parent
    feedback = feedback or Feedback(folder)
    model = choose_model(catalogue, digest, allow_random=allow_random)
    files = {copies[0].md5: copies for copies in exact_copies(catalogue.photos())}
    photos = [rules.choose(copies).keeper for copies in files.values()]
    row = {photo.md5: i for i, photo in enumerate(photos)}
    vectors, has_vector = _vectors(catalogue, model, row)
    limits = thresholds or (THRESHOLDS.get(model.name, OTHER_MODEL) if model else None)
    apart = feedback.apart()

    near, search, recall = _embedding_pairs(folder, model, list(row), vectors, has_vector, limits)
    candidates = set(near) | hash_candidates([photo.phash for photo in photos])
    candidates = {
        (i, j)
        for i, j in candidates
        if frozenset((photos[i].md5, photos[j].md5)) not in apart and not two_shots(photos[i], photos[j])
    }
    verified, problems = verify_pairs(
        catalogue, photos, sorted(candidates), folder / "evidence.sqlite", progress
    )
    scores = {pair: found for pair, found in verified.items() if found.is_copy(verification)}

    rules.measure_sharpness_with(lambda photo: _sharpness(catalogue, photo))
    matter = sorted({i for pair in (*scores, *near) for i in pair})
    order = {photo.md5: place for place, photo in enumerate(rules.ranked([photos[i] for i in matter]))}
    rank = np.full(len(photos), len(photos))
    rank[matter] = [order[photos[i].md5] for i in matter]
    copy_stars = stars(
        _as_pairs({pair: found.score(verification) for pair, found in scores.items()}), len(photos), rank=rank
    )
    gone = {member for star in copy_stars for member in star.members}
    alike = {
        (i, j): cosine
        for (i, j), cosine in near.items()
        if limits
        and not {i, j} & gone
        and frozenset((photos[i].md5, photos[j].md5)) not in apart
        and cosine >= (limits.burst if _within(photos[i], photos[j], burst_seconds) else limits.similar)
    }
    similar_stars = stars(_as_pairs(alike), len(photos), rank=rank)

    def evidence(i: int, j: int) -> Evidence:
        pair = (min(i, j), max(i, j))
        cosine = float(vectors[i] @ vectors[j]) if has_vector[i] and has_vector[j] else None
        return Evidence(False, cosine, verified.get(pair))

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
    n = sum(len(found) for found in files.values())
    return Tiers(
        tuple(copies), tuple(similar), model, limits, n, len(verified), search, recall, tuple(problems)
    )


def two_shots(first: Photo, second: Photo) -> bool:
    """Return whether the camera says these are two exposures: both dated, at different times.

    Editors keep the time of capture, so copies agree on it.
    """
    a, b = _time(first), _time(second)
    return a is not None and b is not None and first.camera == second.camera and a != b


def mirrored_hash(phash: str) -> str:
    """Return what the perceptual hash of the mirror image would be, nearly: odd columns change sign."""
    return f"{int(phash, 16) ^ 0x5555555555555555:016x}"


def hash_candidates(
    hashes: Sequence[str | None], k: int = N_NEIGHBOURS, most: int = MAX_HASH_DISTANCE
) -> set[tuple[int, int]]:
    """Return row pairs among each other's `k` nearest 64-bit hashes, plain and mirrored, within `most` bits."""
    import faiss

    rows = np.array([i for i, value in enumerate(hashes) if value is not None], np.int64)
    if len(rows) < 2:
        return set()
    plain = np.array([list(bytes.fromhex(hashes[i])) for i in rows], np.uint8)
    mirrored = np.array([list(bytes.fromhex(mirrored_hash(hashes[i]))) for i in rows], np.uint8)
    index = faiss.IndexBinaryFlat(64)
    index.add(plain)
    pairs = set()
    for queries in (plain, mirrored):
        distances, others = index.search(queries, min(k + 1, len(rows)))
        for i, j in zip(*np.nonzero(distances <= most), strict=True):
            a, b = int(rows[i]), int(rows[others[i, j]])
            if a != b:
                pairs.add((min(a, b), max(a, b)))
    return pairs


def verify_pairs(
    catalogue: Catalogue,
    photos: Sequence[Photo],
    pairs: Sequence[tuple[int, int]],
    cache: Path,
    progress: Callable[[Iterable, int], Iterable] = lambda pairs, total: pairs,
) -> tuple[dict[tuple[int, int], Verification], list[str]]:
    """Verify pairs of photos on their pixels; what was verified once is remembered by content.

    Returns:
        The evidence by pair, and one sentence for each photo that could not be read.
    """
    store = _EvidenceStore(cache)
    found, todo = {}, []
    for i, j in pairs:
        known = store.get(photos[i].md5, photos[j].md5)
        if known is None:
            todo.append((i, j))
        else:
            found[i, j] = known
    kept: dict[int, Features | None] = {}
    problems: dict[int, str] = {}

    def features_of(i: int) -> Features | None:
        if i not in kept:
            if len(kept) >= 2000:  # 0.6 GB
                kept.pop(next(iter(kept)))
            try:
                kept[i] = features(_picture(catalogue, photos[i]))
            except imaging.ImageError as error:
                kept[i], problems[i] = None, str(error)
        return kept[i]

    for i, j in progress(todo, len(todo)):
        first, second = features_of(i), features_of(j)
        if first is not None and second is not None:
            found[i, j] = verify(first, second)
            store.put(photos[i].md5, photos[j].md5, found[i, j])
    store.close()
    return found, list(problems.values())


class _EvidenceStore:
    """Verified pairs by content. A cache: deleting the file costs time and nothing else."""

    VERSION = 2  # raise when `verify` changes its verdicts

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        try:
            self._open()
        except sqlite3.DatabaseError:  # damaged: made again
            self._db.close()
            path.unlink()
            self._db = sqlite3.connect(path, isolation_level=None)
            self._open()

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS evidence (version INT, a TEXT, b TEXT, found TEXT, PRIMARY KEY (version, a, b))"
        )

    def get(self, first: str, second: str) -> Verification | None:
        import json

        query = "SELECT found FROM evidence WHERE version = ? AND a = ? AND b = ?"
        row = self._db.execute(query, (self.VERSION, *sorted((first, second)))).fetchone()
        return Verification(**json.loads(row[0])) if row else None

    def put(self, first: str, second: str, found: Verification) -> None:
        import json

        values = (self.VERSION, *sorted((first, second)), json.dumps(asdict(found)))
        self._db.execute("INSERT OR REPLACE INTO evidence VALUES (?, ?, ?, ?)", values)

    def close(self) -> None:
        self._db.close()


def _vectors(catalogue: Catalogue, model: Model | None, row: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    md5s, found = catalogue.load_embeddings(model.digest) if model else ([], np.zeros((0, 1), np.float32))
    vectors, has = np.zeros((len(row), found.shape[1]), np.float32), np.zeros(len(row), bool)
    for md5, vector in zip(md5s, found, strict=True):
        vectors[row[md5]], has[row[md5]] = vector, True
    return vectors, has


def _embedding_pairs(
    folder: Path,
    model: Model | None,
    md5s: Sequence[str],
    vectors: np.ndarray,
    has: np.ndarray,
    limits: ModelThresholds | None,
) -> tuple[dict[tuple[int, int], float], str, float]:
    """Return the pairs worth looking at: each row's nearest neighbours above the candidate threshold."""
    rows = np.flatnonzero(has)
    if model is None or limits is None or len(rows) < 2:
        return {}, "by hash only", 1.0
    lowest = min(limits.candidate, limits.burst, limits.similar)
    pairs = stored_pairs(folder, model.digest, [md5s[i] for i in rows], vectors[rows], lowest)
    near: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for i, j, cosine in zip(
        pairs.first.tolist(), pairs.second.tolist(), pairs.similarity.tolist(), strict=True
    ):
        entry = (cosine, int(rows[i]), int(rows[j]))
        near[i].append(entry)
        near[j].append(entry)
    kept = {}
    for entries in near.values():
        entries.sort(reverse=True)
        for place, (cosine, i, j) in enumerate(entries):
            if place < N_NEIGHBOURS or cosine >= limits.similar:
                kept[i, j] = cosine
    return kept, f"embedding ({pairs.method}) and hash", pairs.recall


def _picture(catalogue: Catalogue, photo: Photo) -> Image.Image:
    """Decode a photo at no less than `SIZE`.

    Only JPEG is scaled by its decoder. HEIC would answer with its embedded thumbnail, which is another
    picture as far as anybody can prove, and sharpened by the camera.
    """
    draft_size = SIZE if photo.format == "JPEG" else None
    return imaging.decode(catalogue.root / photo.path, draft_size=draft_size)


def _sharpness(catalogue: Catalogue, photo: Photo) -> float:
    try:
        picture = _picture(catalogue, photo).convert("L")
    except imaging.ImageError:
        return 0.0
    picture.thumbnail((SIZE, SIZE))
    return sharpness(np.asarray(picture))


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


def _as_pairs(edges: dict[tuple[int, int], float]) -> Pairs:
    first, second = (np.array([pair[k] for pair in edges], np.int64) for k in (0, 1))
    return Pairs(first, second, np.array(list(edges.values()), np.float32), "given", 1.0, 0)


def _time(photo: Photo) -> datetime | None:
    try:
        return datetime.fromisoformat(photo.taken_at).replace(tzinfo=None) if photo.taken_at else None
    except ValueError:
        return None


def _within(first: Photo, second: Photo, seconds: float) -> bool:
    a, b = _time(first), _time(second)
    return a is not None and b is not None and abs((a - b).total_seconds()) <= seconds
