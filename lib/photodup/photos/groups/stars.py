"""Groups of near-duplicates: stars around a keeper, so nothing is chained in.

With connected components, a photograph joins a group because it resembles *some* member, and after a
few links the ends have nothing in common. Here every member is within the threshold of the keeper.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from photodup.errors import PhotodupError
from photodup.photos.library.catalogue import Catalogue, Model, Photo

# Rounding of float32 products of unit vectors: a vector's product with itself may be 0.9999999.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Group:
    """Row numbers of one star; `similarities[i]` is the cosine of `members[i]` with `keeper`.

    Members are ordered by falling similarity, then by rank.
    """

    keeper: int
    members: tuple[int, ...]
    similarities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PhotoGroup:
    """One star of photographs. Similarity 1.0 with equal MD5 is an exact copy; see `is_exact`."""

    keeper: Photo
    members: tuple[Photo, ...]
    similarities: tuple[float, ...]

    @property
    def is_exact(self) -> tuple[bool, ...]:
        """Whether each member has the keeper's very bytes."""
        return tuple(member.md5 == self.keeper.md5 for member in self.members)

    @property
    def bytes_to_free(self) -> int:
        """Size of all members, were only the keeper kept."""
        return sum(member.size_bytes for member in self.members)


@dataclass(frozen=True, slots=True)
class GroupingReport:
    """The groups, largest first, and the two numbers that betray a threshold that is too low."""

    groups: tuple[PhotoGroup, ...]
    threshold: float
    model: Model | None
    n_photos: int

    @property
    def largest_group(self) -> int:
        """Photographs in the largest group, the keeper included; 0 without groups."""
        return max((1 + len(group.members) for group in self.groups), default=0)

    @property
    def smallest_similarity(self) -> float | None:
        """Smallest cosine between a member and its keeper; None without groups."""
        return min((s for group in self.groups for s in group.similarities), default=None)

    @property
    def bytes_to_free(self) -> int:
        """Size of all members of all groups."""
        return sum(group.bytes_to_free for group in self.groups)

    def __str__(self) -> str:
        how = "exact copies only (nothing is embedded: run `photodup embed`)"
        if self.model:
            how = f"cosine ≥ {self.threshold} of {self.model.name} ({self.model.digest[:12]})"
            if self.model.is_random is not False:
                how += ", RANDOM OR UNKNOWN WEIGHTS: these groups mean nothing"
        smallest = "none" if self.smallest_similarity is None else f"{self.smallest_similarity:.4f}"
        return (
            f"{self.n_photos} photographs, {len(self.groups)} groups by {how}; largest group "
            f"{self.largest_group}, smallest similarity in a group {smallest}, "
            f"{self.bytes_to_free / 1e6:.1f} MB in members"
        )


def group_by_cosine(
    vectors: np.ndarray, threshold: float, *, rank: Sequence | None = None, block: int = 1024
) -> list[Group]:
    """Group unit vectors into stars.

    Rows are visited in the order of `rank`. A row within the threshold of one or more keepers joins the
    most similar of them (the better ranked of two equal ones); otherwise it becomes a keeper itself. So no
    row is in two groups, no keeper is within the threshold of a better one, and with distinct ranks the
    groups do not depend on the order of the rows.

    Args:
        vectors: float32[n, d]; need not be of length 1, but not zero.
        threshold: smallest cosine between a member and its keeper, -1..1.
        rank: one sortable value per row, the best keeper lowest; default: the order of the rows.
        block: rows compared at a time. Memory is a few matrices of block × 16,384 and a copy of `vectors`;
            time grows with n × number of keepers.

    Returns:
        Groups of two or more, in the order of their keepers' rank.

    Raises:
        PhotodupError: threshold out of range, or a vector that is zero or not finite.
    """
    if not -1 <= threshold <= 1:
        raise PhotodupError(f"A cosine threshold lies between -1 and 1, not {threshold}.")
    vectors = np.asarray(vectors, dtype=np.float32)
    n = len(vectors)
    if rank is not None and len(rank) != n:
        raise PhotodupError(f"{n} vectors need {n} ranks, not {len(rank)}.")
    if n == 0:
        return []
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise PhotodupError("A vector is zero or not finite: embed the library again.")
    order = np.array(range(n) if rank is None else sorted(range(n), key=lambda row: rank[row]))
    ranked = vectors[order] / norms[order]  # Row i is now the i-th best.
    limit = threshold - TOLERANCE

    keepers: list[int] = []  # positions in `ranked`, ascending
    keeper_rows = np.empty_like(ranked)  # their vectors, contiguous for the matrix product
    members: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for start in range(0, n, block):
        rows = ranked[start : start + block]
        best, best_keeper = _nearest(rows, keeper_rows[: len(keepers)])
        within = rows @ rows.T
        new: list[int] = []  # keepers found in this block, as offsets
        for i in range(len(rows)):
            similarity, keeper = best[i], best_keeper[i]
            if new:
                nearest_new = int(np.argmax(within[i, new]))
                if within[i, new[nearest_new]] > similarity:
                    similarity, keeper = within[i, new[nearest_new]], len(keepers) - len(new) + nearest_new
            if similarity >= limit:
                members[keepers[keeper]].append((min(float(similarity), 1.0), start + i))
            else:
                keeper_rows[len(keepers)] = rows[i]
                keepers.append(start + i)
                new.append(i)
    groups = []
    for keeper in sorted(members):
        found = sorted(members[keeper], key=lambda pair: (-pair[0], pair[1]))
        groups.append(
            Group(
                keeper=int(order[keeper]),
                members=tuple(int(order[position]) for _, position in found),
                similarities=tuple(similarity for similarity, _ in found),
            )
        )
    return groups


def _nearest(rows: np.ndarray, keepers: np.ndarray, width: int = 16384) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's largest cosine with a keeper, and which keeper that is (the first of equals)."""
    best = np.full(len(rows), -np.inf, dtype=np.float32)
    which = np.zeros(len(rows), dtype=np.int64)
    for start in range(0, len(keepers), width):
        similarities = rows @ keepers[start : start + width].T
        position = similarities.argmax(axis=1)
        largest = similarities[np.arange(len(rows)), position]
        better = largest > best
        best[better], which[better] = largest[better], position[better] + start
    return best, which


def keep_rank(photo: Photo) -> tuple:
    """Order photographs as keepers: most pixels, most EXIF, most bytes, oldest, then path. Lowest is best.

    EXIF before bytes: a PNG made from a camera's JPEG is larger, and has lost where it came from.
    """
    return (
        -photo.width * photo.height,
        -photo.exif_fields,
        -photo.size_bytes,
        photo.taken_at or "9999",
        photo.md5,
        str(photo.path),
    )


def exact_copies(photos: Sequence[Photo]) -> list[list[Photo]]:
    """Return the files of each content, the best keeper first; contents in the order of their keepers."""
    by_content: dict[str, list[Photo]] = defaultdict(list)
    for photo in sorted(photos, key=keep_rank):
        by_content[photo.md5].append(photo)
    return list(by_content.values())


def choose_model(
    catalogue: Catalogue, digest: str | None = None, *, allow_random: bool = False
) -> Model | None:
    """Return the model whose embeddings to group by; None where nothing has been embedded.

    Args:
        catalogue: an open catalogue.
        digest: a digest or its beginning; needed where several trained models have embeddings.
        allow_random: accept untrained weights. Their groups mean nothing: for study only.

    Raises:
        PhotodupError: none or several match, or the only ones there are of random weights.
    """
    models = [model for model in catalogue.models() if model.n_embeddings]
    if digest is not None:
        models = [model for model in models if model.digest.startswith(digest)]
        if not models:
            raise PhotodupError(
                f"No embeddings of a model {digest} here: run `photodup embed` with it first."
            )
    if not models:
        return None
    trained = [model for model in models if model.is_random is False]  # None: nobody vouches for it
    if not trained and not allow_random:
        origin = "random weights" if any(model.is_random for model in models) else "weights of unknown origin"
        raise PhotodupError(
            f"The embeddings in this catalogue come from {origin}, and what to delete must never rest "
            "on them: run `photodup embed` with trained weights, or add --allow-random for study."
        )
    candidates = trained or models
    if len(candidates) > 1:
        names = ", ".join(f"{model.digest[:12]} ({model.name})" for model in candidates)
        raise PhotodupError(f"Embeddings of several models are here: choose one with --model: {names}.")
    return candidates[0]


def group_library(
    catalogue: Catalogue, threshold: float, *, digest: str | None = None, allow_random: bool = False
) -> GroupingReport:
    """Group a catalogue: exact copies by MD5, and contents by cosine where embeddings are there.

    Photographs without an embedding of the chosen model take part in exact copies only.
    """
    model = choose_model(catalogue, digest, allow_random=allow_random)
    photos = catalogue.photos()
    files = {copies[0].md5: copies for copies in exact_copies(photos)}
    stars: list[tuple[str, list[tuple[float, str]]]] = []
    if model is not None:
        md5s, vectors = catalogue.load_embeddings(model.digest)
        rank = [keep_rank(files[md5][0]) for md5 in md5s]
        for group in group_by_cosine(vectors, threshold, rank=rank):
            pairs = zip(group.similarities, (md5s[member] for member in group.members), strict=True)
            stars.append((md5s[group.keeper], list(pairs)))
    starred = {md5 for keeper, pairs in stars for md5 in (keeper, *(member for _, member in pairs))}
    stars += [(md5, []) for md5 in files if md5 not in starred]

    groups = []
    for keeper_md5, pairs in stars:
        keeper, *copies = files[keeper_md5]
        found = [(1.0, copy) for copy in copies]
        found += [(similarity, photo) for similarity, md5 in pairs for photo in files[md5]]
        if found:
            similarities, members = zip(*found, strict=True)
            groups.append(PhotoGroup(keeper, members, similarities))
    groups.sort(key=lambda group: (-len(group.members), keep_rank(group.keeper)))
    return GroupingReport(tuple(groups), threshold, model, len(photos))
