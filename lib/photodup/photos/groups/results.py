"""The result of grouping a library: groups with their keepers, and why each member is there."""

from dataclasses import dataclass

from photodup.photos.compare.unexplained import Box, Difference
from photodup.photos.groups.keepers import Choice
from photodup.photos.library.catalogue import Model, Photo
from photodup.photos.search.models import ModelThresholds


@dataclass(frozen=True)
class Member:
    """A file beside the keeper of its group.

    Attributes:
        photo: the file.
        is_same_bytes: it is the keeper's file, twice.
        similarity: cosine with the keeper, None without embeddings.
        differences: what it has that the keeper lacks; none where it may go, and for similar pictures.
        is_text_only: whether it differs only by metadata that a sidecar can hold (date, rating, keywords, ...).
    """

    photo: Photo
    is_same_bytes: bool = False
    similarity: float | None = None
    differences: tuple[Difference, ...] = ()
    is_text_only: bool = False

    @property
    def difference(self) -> str:
        """Return what it has that the keeper lacks, in words; empty where nothing."""
        return "; ".join(dict.fromkeys(difference.reason for difference in self.differences))


@dataclass(frozen=True)
class Group:
    """One group. `tier` is `copies` (a family) or `similar` (a star: every member resembles the keeper).

    Attributes:
        choice: the photo to keep, and why.
        members: the others, beginning with those that may go.
        protected: ids of files, perhaps the keeper's, in a folder from which nothing is suggested.
        linked: file ids of those that may go and free nothing: hard links to a file that stays or is counted already.
    """

    tier: str
    choice: Choice
    members: tuple[Member, ...]
    protected: frozenset[int] = frozenset()
    linked: frozenset[int] = frozenset()

    @property
    def keeper(self) -> Photo:
        """Return the photo to keep."""
        return self.choice.keeper

    @property
    def others(self) -> tuple[Photo, ...]:
        """Return the members' photos."""
        return tuple(member.photo for member in self.members)

    @property
    def may_go(self) -> tuple[Photo, ...]:
        """Return the copies that hold nothing the keeper lacks and are not protected; of similar pictures none."""
        if self.tier != "copies":
            return ()
        return tuple(m.photo for m in self.members if not m.differences and m.photo.id not in self.protected)

    @property
    def held_back(self) -> tuple[Photo, ...]:
        """Return the copies that differ from the keeper only by metadata and are not protected."""
        return tuple(m.photo for m in self.members if m.is_text_only and m.photo.id not in self.protected)

    def difference(self, photo: Photo) -> str:
        """Return what a member has that the keeper lacks, in words; empty for nothing, and for the keeper."""
        return self._member(photo).difference

    def boxes(self, photo: Photo, *, of_keeper: bool) -> list[Box]:
        """Return where a member shows something else than the keeper, in the keeper's frame or the member's."""
        differences = self._member(photo).differences
        return [pair[0 if of_keeper else 1] for difference in differences for pair in difference.boxes]

    def _member(self, photo: Photo) -> Member:
        return next((member for member in self.members if member.photo.id == photo.id), Member(photo))

    @property
    def bytes_to_free(self) -> int:
        """The bytes that the members that may go would free; of similar pictures, all members."""
        return sum(map(self.frees, self.may_go if self.tier == "copies" else self.others))

    def frees(self, photo: Photo) -> int:
        """Return the bytes that removing a photo frees: its size, or 0 for a hard link."""
        return 0 if photo.id in self.linked else photo.size_bytes


@dataclass(frozen=True)
class Tiers:
    """All groups of a library, those of equal bytes first and then those that free most, and how they were found.

    `n_verified` counts compared pairs, `search` and `recall` are those of `Neighbours`, `protected` the folders, relative to
    the library, from which nothing is suggested. If not `is_complete`, the time was over before all photos were compared:
    there may be more copies, and `similar` is empty.
    """

    copies: tuple[Group, ...]
    similar: tuple[Group, ...]
    model: Model | None
    thresholds: ModelThresholds | None
    n_photos: int
    n_verified: int
    search: str
    recall: float
    problems: tuple[str, ...]
    protected: tuple[str, ...]
    is_complete: bool

    @property
    def groups(self) -> tuple[Group, ...]:
        """Return both tiers, copies first."""
        return self.copies + self.similar

    @property
    def largest_group(self) -> int:
        """Photos in the largest group; a very large one betrays a threshold that is too low."""
        return max((1 + len(group.members) for group in self.groups), default=0)
