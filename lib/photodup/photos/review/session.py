"""What one reviewer has decided so far, and carrying it out."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from photodup.errors import PhotodupError
from photodup.names import printable
from photodup.photos.commands.group_command import tiers_by_settings
from photodup.photos.groups.results import Tiers
from photodup.photos.library.catalogue import Catalogue, Photo
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.settings import Settings, load_settings, save_settings
from photodup.photos.library.sidecars import moving_together
from photodup.photos.review.decisions import Decisions, key_of
from photodup.photos.review.items import APART, DONE, MARKED, SKIPPED, TODO, Item, Outcome
from photodup.photos.review.told_apart import copies_apart
from photodup.photos.trash.apple_album import AppleAlbum, photos_by_file
from photodup.photos.trash.trash import Operation, PartlyRestoredError, Removal, Trash


@dataclass(frozen=True)
class _Step:
    """One undoable action."""

    before: tuple[tuple[str, str, frozenset[int], frozenset[int]], ...]
    labels: tuple[int, ...] = ()
    operations: tuple[Operation, ...] = field(default=())


class ReviewSession:
    """Groups and decisions of one library; safe to call from several threads.

    Args:
        root: a scanned folder.
        catalogue: its catalogue, if elsewhere.
        find: makes the tiers; default by the library's settings.
    """

    def __init__(
        self,
        root: Path,
        catalogue: Path | None = None,
        find: Callable[[Catalogue], Tiers] = tiers_by_settings,
    ) -> None:
        self.root, self._catalogue, self._find = Path(root).resolve(), catalogue, find
        self._lock = threading.RLock()
        with self.open() as opened:
            self.own, self.note = opened.own, opened.note
            apple = photos_by_file(opened)
        self.trash: Trash | AppleAlbum = AppleAlbum(self.root, apple) if apple else Trash(self.root)
        self.feedback = Feedback(self.own.path)
        self._decisions = Decisions(self.own.path)
        self._history: list[_Step] = []
        self._sidecars = "", 0  # digest of the list, and how many go along with it
        self.last: Outcome | None = None
        self.undone: str | None = None  # the group whose decision was undone last; None for several
        self.refresh()
        self.own.delete_thumbnails(except_of={photo.md5 for photo in self.photos.values()})

    def open(self) -> Catalogue:
        """Open the catalogue; each thread needs its own connection."""
        return Catalogue(self.root, self._catalogue)

    def refresh(self) -> None:
        """Group again; decisions about groups that are still the same are kept."""
        with self._lock, self.open() as catalogue:
            self.tiers = self._find(catalogue)
            self.items = {item.key: item for item in (Item(key_of(g), g) for g in self.tiers.groups)}
            self.photos = {photo.id: photo for item in self.items.values() for photo in item.photos}
            self._decisions.give_to(self.items)
            self._trash_problems = self.trash.problems
            for item in self.items.values():
                # Files that had gone are found again, so they came back from the trash; in an album they stay.
                if item.status == DONE and self.trash.moves_files:
                    item.status, item.remove = TODO, frozenset()
            self._set_copies_apart()

    def _set_copies_apart(self) -> None:
        """Set apart the byte-identical copies that were told apart under whatever names."""
        told = self.feedback.copies_apart()
        for item in self.items.values():
            keeper = item.group.keeper
            copies = [photo for photo in item.group.members if photo.md5 == keeper.md5]
            if copies and keeper.md5 in told:
                item.apart |= copies_apart(keeper, copies, told[keeper.md5])
                item.remove -= item.apart
                if item.status == MARKED and not item.remove:
                    item.status = SKIPPED
                if not item.members:
                    item.status = APART

    @property
    def problems(self) -> list[str]:
        """A sentence about each line of the library's journals that cannot be used."""
        return [*self._decisions.problems, *self.feedback.problems, *self._trash_problems]

    @property
    def settings(self) -> Settings:
        """What is stored for this library."""
        return load_settings(self.own.path)

    def change(self, settings: Settings) -> None:
        """Store settings; group again where they change which photo is kept."""
        with self._lock:
            before = self.settings
            save_settings(self.own.path, settings)
            if (settings.keep, settings.folders) != (before.keep, before.folders):
                self.refresh()

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

    # ---- deciding ----------------------------------------------------------------------------------

    def _open_item(self, key: str) -> Item:
        """Return an item that can be decided; a page of another window may show one that no longer can."""
        item = self.item(key)
        if item.status == DONE:
            raise PhotodupError("Photos of this group were removed already: undo that first, or scan again.")
        return item

    def accept(self, key: str, keep: Sequence[int]) -> None:
        """Mark everything in the group that is not kept. Nothing moves yet; keeping all is skipping.

        Raises:
            PhotodupError: nothing would be kept.
        """
        with self._lock:
            item = self._open_item(key)
            kept = {photo.id for photo in item.photos} & set(keep)
            if not kept:
                raise PhotodupError("Keep at least one photo of the group.")
            remove = frozenset(photo.id for photo in item.photos) - kept
            self._decide(item, MARKED if remove else SKIPPED, remove)

    def accept_all(self, tier: str = "copies") -> int:
        """Mark the suggestions of every undecided group of a tier; return how many groups."""
        with self._lock:
            chosen = [item for item in self.select(tier, TODO) if item.suggested]
            if not chosen:
                return 0
            self._remember(chosen)
            for item in chosen:
                item.remove = item.suggested
            self._set(MARKED, *chosen)
            return len(chosen)

    def skip(self, key: str) -> None:
        """Leave the group as it is."""
        with self._lock:
            self._decide(self._open_item(key), SKIPPED, frozenset())

    def _decide(self, item: Item, status: str, remove: frozenset[int]) -> None:
        if (item.status, item.remove) == (status, remove):
            return  # sent twice: one undo must take it back
        self._remember([item])
        item.remove = remove
        self._set(status, item)

    def set_apart(self, key: str, photo_id: int, kind: str) -> None:
        """Take one member out for good: `not_duplicate`, or `keep_both`. Remembered by content."""
        with self._lock:
            item = self._open_item(key)
            found = [photo for photo, _ in item.members if photo.id == photo_id]
            if not found:
                raise PhotodupError("Choose a photo of this group other than the one it is compared with.")
            keeper = item.group.keeper
            copies = [p for p in item.group.members if p.md5 == keeper.md5 and p.id != photo_id]
            told = [found[0], keeper, *copies] if found[0].md5 == keeper.md5 else []
            files = [printable(photo.path) for photo in told]
            label = self.feedback.add(kind, [keeper.md5, found[0].md5], files)  # type: ignore[arg-type]
            self._remember([item], labels=(label,))
            item.apart |= {photo_id}
            item.remove -= {photo_id}
            status = SKIPPED if item.status == MARKED and not item.remove else item.status
            self._set(status if item.members else APART, item)

    def undo(self) -> str:
        """Take back the last decision or removal; return what happened in words."""
        with self._lock:
            if not self._history:
                raise PhotodupError("There is nothing to undo.")
            step = self._history.pop()
            restored, problem = self._restore(step.operations) if step.operations else ([], None)
            if restored:
                self.last = None
            self.feedback.undo(*step.labels)
            now = self._states([self.items[key] for key, *_ in step.before if key in self.items])
            back = self._take(step.before)
            try:
                self._decisions.write(back)
            except PhotodupError:
                if not step.operations:  # files that are back stay back
                    self._take(now)
                    self._history.append(step)
                raise
            if problem:  # what is not back lies in the trash; the decisions are taken back all the same
                raise problem
            self.undone = back[0].key if len(back) == 1 and not restored else None
            if restored:
                return back_in_folders(len(restored))
            return "The last decision is undone."

    @property
    def can_undo(self) -> bool:
        """Whether there is something to undo."""
        return bool(self._history)

    # ---- carrying out --------------------------------------------------------------------------------

    def removals(self) -> list[Removal]:
        """Return what `apply` would move, with sidecars."""
        marked = [
            (item, photo)
            for item in self.select(status=MARKED)
            for photo in item.photos
            if photo.id in item.remove
        ]
        leaving = {photo.id for _, photo in marked}
        staying = {p.id: p for item in self.items.values() for p in item.photos if p.id not in leaving}
        together = moving_together(
            [self.root / photo.path for _, photo in marked],
            [self.root / photo.path for photo in staying.values()],
        )
        removals, seen = [], set()
        for item, photo in marked:
            if photo.id not in seen:
                seen.add(photo.id)
                kept = [p for p in item.photos if p.id not in item.remove]
                keepers = [(self.root / p.path, p.md5) for p in kept]
                path = self.root / photo.path
                reason = f"{item.group.tier}: kept {printable(kept[0].path)}"
                removals.append(Removal(path, photo.md5, keepers, together[path], reason))
        return removals

    @property
    def n_sidecars(self) -> int:
        """How many files besides the marked photos `apply` would move; looked up once for each list."""
        with self._lock:
            if (plan := self.plan) != self._sidecars[0]:
                self._sidecars = plan, len({path for removal in self.removals() for path in removal.sidecars})
            return self._sidecars[1]

    @property
    def plan(self) -> str:
        """Return a digest of what is marked: whoever agreed to a list agreed to no other."""
        marked = [(item.key, sorted(item.remove)) for item in self.select(status=MARKED)]
        return hashlib.sha256(repr(marked).encode()).hexdigest()[:16]

    def apply(self, plan: str | None = None) -> Outcome:
        """Move everything that is marked into the trash.

        Args:
            plan: the digest of the list that was agreed to; another one moves nothing.

        Raises:
            PhotodupError: nothing is marked, or something else than was agreed to.
        """
        with self._lock:
            marked = self.select(status=MARKED)
            if not marked:
                raise PhotodupError("Nothing is marked: it was removed already, or undone.")
            if plan not in (None, self.plan):
                raise PhotodupError(
                    "What is marked has changed since this list was shown, in another window perhaps: "
                    "nothing was moved, look at the list again."
                )
            removals = self.removals()
            operations, refused = self.trash.remove(removals)
            left = {removal.path for removal, _ in refused}
            learnt, done = [], []
            for item in marked:
                gone = [p for p in item.photos if p.id in item.remove and self.root / p.path not in left]
                learnt += self._learn(item, gone)
                if len(gone) == len(item.remove):
                    done.append(item)
            self._remember(marked, tuple(self.feedback.add_all(learnt)), operations)
            unsaid = []
            for item in done:
                item.status = DONE
            try:
                self._decisions.write(done, done)
            except PhotodupError as error:  # the files did move, and the trash's journal says so
                unsaid = [str(error)]
            moved = {file.home for operation in operations for file in operation.files}
            self._mark_files(moved, "missing")
            size = sum(operation.bytes for operation in operations)
            sentences = [sentence for _, sentence in refused]
            if self.trash.moves_files:
                sentences += _sidecars_that_stay(removals, left)
            self.last = Outcome(len(operations), size, (*sentences, *unsaid))
            return self.last

    def restore(self, ids: Sequence[str], *, unsigned: bool = False) -> list[Path]:
        """Bring operations back from the trash; with `unsigned`, those that this user's photodup did not write."""
        with self._lock:
            listing = self.trash.unsigned() if unsigned else self.trash.listing()
            wanted = [operation for operation in listing if operation.id in set(ids)]
            restored, problem = self._restore(wanted, confirmed=unsigned)
            self.last = None  # what it did is no longer so
            back = {path.relative_to(self.root) for path in restored}
            again = [i for i in self.select(status=DONE) if any(p.path in back for p in i.photos)]
            for item in again:
                item.status, item.remove = TODO, frozenset()
            self._decisions.write(again)
            self.refresh()
            if problem:
                raise problem
            return restored

    def _restore(
        self, operations: Sequence[Operation], *, confirmed: bool = False
    ) -> tuple[list[Path], PhotodupError | None]:
        """Return the files that are back, and why others are not."""
        problem = None
        try:
            restored = self.trash.restore(operations, confirmed=confirmed)
        except PartlyRestoredError as error:
            restored, problem = error.restored, error
        self._mark_files({str(path.relative_to(self.root)) for path in restored}, "ok")
        return restored, problem

    def _learn(self, item: Item, gone: Sequence[Photo]) -> list[tuple]:
        """Return what the removal says: copies that were accepted, and a keeper that was not suggested."""
        stays = next(photo for photo in item.photos if photo.id not in item.remove)
        labels: list[tuple] = []
        if item.group.tier == "copies":
            labels = [("same", [stays.md5, p.md5]) for p in gone if p.md5 != stays.md5]
        if item.group.keeper.id in item.remove:
            labels.append(("keeper", [stays.md5]))
        return labels

    def _mark_files(self, homes: set[str], status: str) -> None:
        import os

        if not self.trash.moves_files:
            return
        with self.open() as catalogue, catalogue.transaction() as connection:
            connection.executemany(
                "UPDATE file SET status = ? WHERE path = ? AND md5 IS NOT NULL",
                [(status, os.fsencode(home)) for home in homes],
            )

    def _remember(self, items: Sequence[Item], labels: tuple = (), operations: Sequence = ()) -> None:
        self._history.append(_Step(self._states(items), labels, tuple(operations)))

    def _states(self, items: Sequence[Item]) -> tuple:
        return tuple((item.key, item.status, item.remove, item.apart) for item in items)

    def _take(self, states: Sequence[tuple]) -> list[Item]:
        """Put items back into earlier states; those that are no longer there are left out."""
        back = []
        for key, *state in states:
            if item := self.items.get(key):
                item.status, item.remove, item.apart = state
                back.append(item)
        return back

    def _set(self, status: str, *items: Item) -> None:
        """Set and write a status after `_remember`; where it cannot be written, everything is as before."""
        for item in items:
            item.status = status
        try:
            self._decisions.write(items)
        except PhotodupError:
            self._take(self._history.pop().before)
            raise


def _sidecars_that_stay(removals: Sequence[Removal], left: set[Path]) -> list[str]:
    """Say which sidecars stay although a photo that they belong to has left, and for whose sake."""
    needed = {path: removal.path for removal in removals if removal.path in left for path in removal.sidecars}
    gone = {path for removal in removals if removal.path not in left for path in removal.sidecars}
    return [
        f"{printable(path)} stays: it also belongs to {printable(needed[path].name)}, which was left alone."
        for path in sorted(gone & needed.keys())
    ]


def back_in_folders(n: int) -> str:
    """Say how many files were restored."""
    return "1 file is back in its folder." if n == 1 else f"{n} files are back in their folders."
