"""The groups under review, asked: which are there, which comes next, how many bytes they would free."""

from collections.abc import Iterable

from photodup.errors import PhotodupError
from photodup.photos.review.items import DONE, TODO, Item


class GroupList:
    """What can be asked about the groups of a session; it changes none of them.

    Attributes:
        items: the groups by key, in the order in which they are shown.
    """

    items: dict[str, Item]

    def select(self, tier: str | None = None, status: str | None = None) -> list[Item]:
        """Return the items of a tier and status, in order."""
        return [
            item
            for item in self.items.values()
            if tier in (None, item.group.tier) and (status is None or item.status == status)
        ]

    @property
    def bytes_left(self) -> int:
        """What the suggestions that are not decided yet would free."""
        return sum(item.bytes_to_free for item in self.select("copies", TODO))

    @property
    def bytes_removed(self) -> int:
        """Size of the photos that were removed from groups still listed."""
        done = self.select(status=DONE)
        return sum(photo.size_bytes for item in done for photo in item.photos if photo.id in item.remove)

    def item(self, key: str) -> Item:
        """Return one item.

        Raises:
            PhotodupError: no such group (any more).
        """
        try:
            return self.items[key]
        except KeyError:
            raise PhotodupError("This group is no longer there: go back to the overview.") from None

    def neighbours(self, key: str) -> tuple[str | None, str | None]:
        """Return the keys of the groups before and after that can still be compared."""
        keys = list(self.items)
        place = keys.index(key)

        def first(keys: Iterable[str]) -> str | None:
            return next((k for k in keys if self.items[k].status != DONE and self.items[k].members), None)

        return first(reversed(keys[:place])), first(keys[place + 1 :])

    def next_todo(self, after: str | None = None) -> str | None:
        """Return the next undecided group after this one, going round."""
        keys = list(self.items)
        start = keys.index(after) + 1 if after in self.items else 0
        return next((k for k in keys[start:] + keys[:start] if self.items[k].status == TODO), None)
