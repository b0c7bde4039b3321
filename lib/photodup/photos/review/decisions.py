"""What is decided about each group, in memory and on disk: one line for each decision, the last one of a group counts."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from photodup.errors import PhotodupError
from photodup.names import as_text
from photodup.photos.groups.results import Evidence, TierGroup
from photodup.photos.library.catalogue import Photo
from photodup.photos.state.journal import Journal
from photodup.photos.state.own_folder import OwnFolder

TODO, MARKED, SKIPPED, APART, DONE = "todo", "marked", "skipped", "apart", "done"
_STATUSES = [TODO, MARKED, SKIPPED, APART, DONE]  # a list: what is asked for may not be hashable


@dataclass
class Item:
    """One group under review. `apart` and `remove` are file ids: of dismissed members, and of what goes."""

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


class DecisionJournal:
    """The journal of one library's decisions, `review/decisions.jsonl` in its own folder."""

    def __init__(self, folder: Path) -> None:
        self._journal = Journal(OwnFolder(folder).decisions, within=Path(folder))
        self.problems: list[str] = []  # a sentence about each line that cannot be used

    def give_to(self, items: Mapping[str, Item]) -> None:
        """Bring items, by key, into the state that was written last."""
        self.problems = []
        for number, line in enumerate(self._journal.read(), start=1):
            if not _is_sound(line):
                self.problems.append(self._journal.damaged(number))
            elif item := items.get(line["group"]):
                by_content = {(p.md5, as_text(p.path)): p.id for p in _all_photos(item)}
                item.remove, item.apart = (
                    frozenset(by_content[tuple(p)] for p in line[name] if tuple(p) in by_content)
                    for name in ("remove", "apart")
                )
                item.status = line["status"]

    def write(self, items: Sequence[Item], kept: Sequence[Item] = ()) -> None:
        """Append the items as they are, with one write; of those in `kept`, what stays is not asked again.

        Raises:
            PhotodupError: the disk is full, or another page is writing; nothing was written.
        """
        lines = [line for item in kept for line in _skipped_when_found_again(item)]
        for item in items:
            by_id = {p.id: (p.md5, as_text(p.path)) for p in _all_photos(item)}
            marks = {name: sorted(by_id[i] for i in getattr(item, name)) for name in ("remove", "apart")}
            lines.append({"group": item.key, "status": item.status} | marks)
        if not lines:
            return
        try:
            self._journal.path.parent.mkdir(exist_ok=True)
            with self._journal.exclusive():
                self._journal.append(*lines)
        except BlockingIOError:
            raise PhotodupError(
                "Another review page is writing at this moment: press the key again."
            ) from None
        except OSError as error:
            raise PhotodupError(
                f"The decision could not be written ({error.strerror}): free some space."
            ) from None


def _is_sound(line: dict | None) -> TypeGuard[dict]:
    """Whether a line is a decision as `write` writes it."""
    if line is None or line.get("status") not in _STATUSES or not isinstance(line.get("group"), str):
        return False
    marks = [mark for mark in (line.get("remove"), line.get("apart")) if isinstance(mark, list)]
    if len(marks) < 2:
        return False
    pairs = [pair for mark in marks for pair in mark]
    return all(isinstance(p, list) and all(isinstance(text, str) for text in p) for p in pairs)


def key_of(group: TierGroup) -> str:
    """Return a name for a group that stays the same as long as its files and its keeper do."""
    return _key(group.tier, group.keeper, (group.keeper, *group.members))


def _key(tier: str, keeper: Photo, photos: Iterable[Photo]) -> str:
    files = sorted(f"{photo.md5} {as_text(photo.path)}" for photo in photos)
    return hashlib.sha256("\n".join([tier, keeper.md5, *files]).encode()).hexdigest()[:12]


def _all_photos(item: Item) -> tuple[Photo, ...]:
    """Return all photos of a group, also those that were dismissed."""
    return (item.group.keeper, *item.group.members)


def _skipped_when_found_again(item: Item) -> list[dict]:
    """Return the decision about the group that is found of the photos kept, whichever of them leads it."""
    kept = [photo for photo in item.photos if photo.id not in item.remove]
    if len(kept) < 2:
        return []
    keys = {_key(item.group.tier, photo, kept) for photo in kept}
    return [{"group": key, "status": SKIPPED, "remove": [], "apart": []} for key in sorted(keys)]
