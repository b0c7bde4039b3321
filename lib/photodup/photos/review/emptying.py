"""Emptying the trash from the page: what was shown is deleted for good, and nothing else."""

import threading

from photodup.errors import PhotodupError
from photodup.photos.review.history import Step
from photodup.photos.review.items import Item, Outcome
from photodup.photos.review.removal import digest_of_ids
from photodup.photos.state.own_folder import OwnFolder
from photodup.photos.trash.apple_album import AppleAlbum
from photodup.photos.trash.trash import Trash


class Emptying:
    """The part of a session that deletes."""

    trash: Trash | AppleAlbum
    last: Outcome | None
    own: OwnFolder
    items: dict[str, Item]
    _lock: threading.RLock
    _history: list[Step]

    @property
    def trash_plan(self) -> str:
        """Return a digest of what lies in the trash: whoever agreed to delete that agreed to nothing else."""
        return digest_of_ids(operation.id for operation in self.trash.listing())

    def empty_trash(self, plan: str) -> tuple[int, int]:
        """Delete for good what lies in the trash; return how many photos and bytes.

        Args:
            plan: the digest of the list that was agreed to; another one deletes nothing.

        Raises:
            PhotodupError: the trash holds something else by now, or a file is not the one that was removed.
        """
        with self._lock:
            if not isinstance(self.trash, Trash):
                raise PhotodupError("What is in the album of Photos is deleted there.")
            listing = self.trash.listing()
            if not listing or plan != self.trash_plan:
                raise PhotodupError(
                    "The trash holds something else than when this was shown: nothing was deleted, look again."
                )
            try:
                freed = self.trash.purge(listing)
            finally:  # no small picture of what is gone for good stays behind
                there = (photo.md5 for item in self.items.values() for photo in item.still_there)
                self.own.delete_thumbnails(except_of=set(there))
            gone = {operation.id for operation in listing}
            # What is deleted cannot be brought back: undoing goes no further than here.
            self._history = [s for s in self._history if not gone & {o.id for o in s.operations}]
            self.last = None
            return len(listing), freed
