"""One group under review, and what a removal did."""

from dataclasses import dataclass

from photodup.photos.groups.results import Evidence, TierGroup
from photodup.photos.library.catalogue import Photo

TODO, MARKED, SKIPPED, APART, DONE = "todo", "marked", "skipped", "apart", "done"


@dataclass
class Item:
    """One group under review. `apart` are members that were told not to belong; `remove` file ids."""

    key: str
    group: TierGroup
    status: str = TODO
    remove: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()

    @property
    def photos(self) -> list[Photo]:
        """Return the keeper and the members that still belong."""
        return [self.group.keeper, *(photo for photo, _ in self.members)]

    @property
    def still_there(self) -> list[Photo]:
        """Return the photos whose files have not been removed."""
        return [p for p in self.photos if self.status != DONE or p.id not in self.remove]

    @property
    def members(self) -> list[tuple[Photo, Evidence]]:
        """Return the members that still belong, with their evidence."""
        pairs = zip(self.group.members, self.group.evidence, strict=True)
        return [(photo, why) for photo, why in pairs if photo.id not in self.apart]

    @property
    def suggested(self) -> frozenset[int]:
        """Return what to remove unless told otherwise: copies that hold nothing the keeper lacks."""
        return frozenset(photo.id for photo in self.group.may_go) - self.apart

    @property
    def n_differing(self) -> int:
        """Return how many members hold something that the keeper lacks, and are left alone."""
        return sum(bool(self.group.difference(photo)) for photo, _ in self.members)

    def is_removed(self, photo: Photo) -> bool:
        """Return whether the photo would go: as marked, or as suggested while nothing is."""
        return photo.id in (self.suggested if self.status == TODO else self.remove)

    @property
    def bytes_to_free(self) -> int:
        """Size of what is suggested to go; of similar pictures, of the members that still belong."""
        going = self.suggested if self.group.tier == "copies" else {photo.id for photo, _ in self.members}
        return sum(photo.size_bytes for photo, _ in self.members if photo.id in going)

    @property
    def marked_bytes(self) -> int:
        """Size of what is marked."""
        return sum(p.size_bytes for p in self.photos if p.id in self.remove) if self.status == MARKED else 0


@dataclass(frozen=True)
class Outcome:
    """What a removal did: photos and bytes moved, and one sentence for each photo left alone."""

    n_removed: int
    bytes: int
    refused: tuple[str, ...]
