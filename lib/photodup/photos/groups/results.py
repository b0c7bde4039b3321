"""What grouping a library gives: groups with their keepers, and why each member is there."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from photodup.photos.compare.family import Box
from photodup.photos.compare.verify import Verification
from photodup.photos.groups.keepers import Choice
from photodup.photos.groups.model_thresholds import ModelThresholds
from photodup.photos.library.catalogue import Model, Photo

_T = TypeVar("_T")


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
    """One group. `tier` is `copies` (a family) or `similar` (a star: every member resembles the keeper).

    Attributes:
        choice: the photo to keep, and why.
        members: the others, those that may go first.
        evidence: of each member with the keeper.
        differs: of each member what it has that the keeper would not keep, in words; empty where it may go. Of
            similar pictures nothing is said.
        why: why the keeper is kept rather than each member; empty where nothing tells them apart.
        places: of each member where it looks different: boxes in the keeper's frame and in its own.
        says_only: of each member whether it differs only by what it says (date, rating, keywords, ...).
        protected: file ids of those, the keeper among them, that lie in a folder from which nothing is suggested.
        linked: file ids of those that may go and free nothing: hard links to a file that stays or is counted already.
    """

    tier: str
    choice: Choice
    members: tuple[Photo, ...]
    evidence: tuple[Evidence, ...]
    differs: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    places: tuple[Sequence[tuple[Box, Box]], ...] = ()
    says_only: tuple[bool, ...] = ()
    protected: frozenset[int] = frozenset()
    linked: frozenset[int] = frozenset()

    @property
    def keeper(self) -> Photo:
        """Return the photo that the rules would keep."""
        return self.choice.keeper

    @property
    def may_go(self) -> tuple[Photo, ...]:
        """Return the copies that hold nothing the keeper lacks and are not protected; of similar pictures none."""
        if self.tier != "copies":
            return ()
        return tuple(p for p in self.members if not self.difference(p) and p.id not in self.protected)

    def difference(self, photo: Photo) -> str:
        """Return what a member has that the keeper would not keep, in words; empty where nothing."""
        return self._of(photo, self.differs) or ""

    @property
    def held_back(self) -> tuple[Photo, ...]:
        """Return the copies that differ from the keeper only by what they say and are not protected."""
        only = zip(self.members, self.says_only, strict=False)
        return tuple(photo for photo, is_so in only if is_so and photo.id not in self.protected)

    def kept_over(self, photo: Photo) -> str:
        """Return why the keeper is kept rather than a member; the reason of the choice where nothing is said."""
        return self._of(photo, self.why) or self.choice.reason

    def boxes(self, photo: Photo, *, of_keeper: bool) -> list[Box]:
        """Return where a member shows something else than the keeper, in the frame of the one or of the other."""
        return [pair[0 if of_keeper else 1] for pair in self._of(photo, self.places) or ()]

    def _of(self, photo: Photo, values: Sequence[_T]) -> _T | None:
        """Return what is known of one member; None of the keeper, and where nothing is known."""
        known = zip(self.members, values, strict=False)
        return next((value for member, value in known if member.id == photo.id), None)

    @property
    def confidence(self) -> float:
        """Return that of the least certain member that may go, or else of the least certain one."""
        sure = [e.confidence for e, said in zip(self.evidence, self.differs, strict=False) if not said]
        return min(sure or [e.confidence for e in self.evidence])

    @property
    def bytes_to_free(self) -> int:
        """What the members that may go would free; of similar pictures what all would."""
        going = self.may_go if self.tier == "copies" else self.members
        return sum(map(self.frees, going))

    def frees(self, photo: Photo) -> int:
        """Return the bytes that go free with a photo: its size, or nothing where it is a hard link."""
        return 0 if photo.id in self.linked else photo.size_bytes


@dataclass(frozen=True)
class Tiers:
    """All groups of a library, the most certain copies first, and how they were found.

    `protected` are the folders, relative to the library, from which nothing is suggested.
    """

    copies: tuple[TierGroup, ...]
    similar: tuple[TierGroup, ...]
    model: Model | None
    thresholds: ModelThresholds | None
    n_photos: int
    n_verified: int
    search: str
    recall: float = 1.0
    problems: tuple[str, ...] = field(default=())
    protected: tuple[str, ...] = ()

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
