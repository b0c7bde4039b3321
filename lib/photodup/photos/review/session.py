"""The decisions of a reviewer, and carrying them out."""

import hashlib
import math
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from jinja2.filters import do_filesizeformat

from photodup.core.errors import PhotodupError
from photodup.core.names import as_text, in_short, printable
from photodup.core.progress import unseen
from photodup.photos.groups.results import Group, Member, Tiers
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue, Photo
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.hashing import md5
from photodup.photos.library.settings import LibrarySettings, has_folder, load_settings, save_settings
from photodup.photos.library.sidecars import Sidecars, files_moving_with
from photodup.photos.review.carrying import Transfer, plan_transfer
from photodup.photos.state.journal import Journal, Line
from photodup.photos.state.own_folder import OwnFolder
from photodup.photos.trash.apple_album import AppleAlbum, photos_by_file
from photodup.photos.trash.entries import Moved, Note, Operation, PartlyRestoredError, Removal, TrashContents
from photodup.photos.trash.quarantine import Trash

TODO, MARKED, SKIPPED, APART, DONE = "todo", "marked", "skipped", "apart", "done"
_PATIENCE_S = 2.0  # for grouping again after a click while photos are still being compared
_MARKS = ("remove", "apart", "bare")
_STATUSES = [TODO, MARKED, SKIPPED, APART, DONE]  # a list: a journal's value may not be hashable


@dataclass
class Item:
    """One group under review. `remove`, `apart` and `bare` are photo ids.

    `remove` photos go, `apart` ones were dismissed from the group, and `bare` ones go without writing their metadata.
    """

    key: str
    group: Group
    status: str = TODO
    remove: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()
    bare: frozenset[int] = frozenset()

    def reset(self) -> None:
        """Make the group undecided; dismissed photos stay dismissed."""
        self.status, self.remove, self.bare = TODO, frozenset(), frozenset()

    @property
    def photos(self) -> list[Photo]:
        """Return the keeper and the members that still belong."""
        return [self.group.keeper, *(member.photo for member in self.members)]

    @property
    def leaving(self) -> list[Photo]:
        """Return the photos that are marked or removed."""
        return [photo for photo in self.photos if photo.id in self.remove]

    @property
    def staying(self) -> list[Photo]:
        """Return the photos that are neither marked nor removed, the best first."""
        return [photo for photo in self.photos if photo.id not in self.remove]

    @property
    def still_there(self) -> list[Photo]:
        """Return the photos whose files have not been removed."""
        return self.staying if self.status == DONE else self.photos

    @property
    def members(self) -> list[Member]:
        """Return the members that still belong."""
        return [member for member in self.group.members if member.photo.id not in self.apart]

    def member(self, photo_id: int) -> Photo:
        """Return the photo of a member that still belongs.

        Raises:
            PhotodupError: no such member has this id.
        """
        for member in self.members:
            if member.photo.id == photo_id:
                return member.photo
        raise PhotodupError("Choose a photo of this group other than the one it is compared with.")

    @property
    def suggested(self) -> frozenset[int]:
        """Return the suggested removals: copies with nothing that the keeper lacks."""
        return frozenset(photo.id for photo in self.group.may_go) - self.apart

    @property
    def n_differing(self) -> int:
        """Return how many members have something that the keeper lacks, and so stay."""
        return sum(bool(member.differences) for member in self.members)

    def is_removed(self, photo: Photo) -> bool:
        """Return whether the photo is to go: as suggested while the group is undecided, then as marked."""
        return photo.id in (self.suggested if self.status == TODO else self.remove)

    @property
    def bytes_to_free(self) -> int:
        """Bytes that the suggested photos would free; in similar groups, all members."""
        photos = self.group.may_go if self.group.tier == "copies" else self.group.others
        return sum(self.group.frees(photo) for photo in photos if photo.id not in self.apart)

    @property
    def marked_bytes(self) -> int:
        """Bytes that the marked photos would free."""
        return sum(map(self.group.frees, self.leaving)) if self.status == MARKED else 0


class DecisionJournal:
    """The journal of one library's decisions, `review/decisions.jsonl` in its own folder."""

    def __init__(self, folder: Path) -> None:
        self._journal = Journal(OwnFolder(folder).decisions, within=Path(folder))
        self.problems: list[str] = []  # a sentence about each line that cannot be used

    def give_to(self, items: Mapping[str, Item]) -> None:
        """Give items, by key, their last recorded state."""
        self.problems = []
        for number, line in enumerate(self._journal.read(), start=1):
            if not _is_sound(line):
                self.problems.append(self._journal.damaged(number))
            elif item := items.get(line["group"]):
                by_content = {(p.md5, as_text(p.path)): p.id for p in _all_photos(item.group)}
                item.remove, item.apart, item.bare = (
                    frozenset(by_content[tuple(p)] for p in line[name] if tuple(p) in by_content)
                    for name in _MARKS
                )
                item.status = line["status"]

    def write(self, items: Sequence[Item]) -> None:
        """Append the states of items in one write; the staying photos of those that are done are not shown again.

        Raises:
            PhotodupError: the disk is full, or another page keeps writing; nothing was written.
        """
        lines = [line for item in items if item.status == DONE for line in _skip_lines(item)]
        for item in items:
            by_id = {p.id: (p.md5, as_text(p.path)) for p in _all_photos(item.group)}
            marks = {name: sorted(by_id[i] for i in getattr(item, name)) for name in _MARKS}
            lines.append({"group": item.key, "status": item.status} | marks)
        if lines:
            self._journal.while_held(lambda: self._journal.append(*lines))


def _is_sound(line: Line | None) -> TypeGuard[Line]:
    """Return whether a line is a valid decision."""
    if line is None or line.get("status") not in _STATUSES or not isinstance(line.get("group"), str):
        return False
    marks = [mark for mark in map(line.get, _MARKS) if isinstance(mark, list)]
    if len(marks) < len(_MARKS):
        return False
    pairs = [pair for mark in marks for pair in mark]
    return all(isinstance(p, list) and all(isinstance(text, str) for text in p) for p in pairs)


def _key(tier: str, keeper: Photo, photos: Iterable[Photo]) -> str:
    """Return a key of a group, from its files and its keeper."""
    files = sorted(f"{photo.md5} {as_text(photo.path)}" for photo in photos)
    return hashlib.sha256("\n".join([tier, keeper.md5, *files]).encode()).hexdigest()[:12]


def _all_photos(group: Group) -> tuple[Photo, ...]:
    """Return all photos of a group, also dismissed ones."""
    return (group.keeper, *group.others)


def _skip_lines(item: Item) -> list[Line]:
    """Return lines that skip a later group of the staying photos, with any of them as keeper."""
    staying = item.staying
    keys = {_key(item.group.tier, photo, staying) for photo in staying if len(staying) > 1}
    return [{"group": key, "status": SKIPPED} | {name: [] for name in _MARKS} for key in sorted(keys)]


@dataclass(frozen=True)
class RemovalResult:
    """The result of a removal: photos and bytes moved, a sentence for each photo left alone, sidecars written."""

    n_removed: int
    bytes: int
    refused: tuple[str, ...]
    n_written: int = 0


@dataclass(frozen=True)
class Step:
    """One undoable action: the states before it, its feedback labels, its trash operations, whether undoing regroups."""

    before: tuple[Item, ...]
    labels: tuple[int, ...] = ()
    operations: tuple[Operation, ...] = ()
    regroups: bool = False


class ReviewSession:
    """Groups and decisions of one library; safe to call from several threads.

    Args:
        root: a scanned folder.
        catalogue: its catalogue, if elsewhere.
        seconds: longest time for the first groups.
        **grouping: options of `find_tiers`.

    Attributes:
        history: what can be undone, the last at the end.
        n_new: photos without an embedding of the library's model.
    """

    def __init__(
        self, root: Path, catalogue: Path | None = None, seconds: float = math.inf, **grouping: Any
    ) -> None:
        self.root, self._catalogue, self._grouping = Path(root).resolve(), catalogue, grouping
        self._lock = threading.RLock()
        with self.open() as opened:
            self.own = opened.own
            apple = photos_by_file(opened)
        self.trash: Trash | AppleAlbum = AppleAlbum(self.root, apple) if apple else Trash(self.root)
        self.feedback = Feedback(self.own.path)
        self._decisions = DecisionJournal(self.own.path)
        self.history: list[Step] = []
        self._trash_problems: list[str] = []
        self.in_trash: dict[str, Operation] = {}  # by id, as the page last listed them
        self.last: RemovalResult | None = None
        self.undone: str | None = None  # the group whose decision was undone last; None for several
        self.refresh(seconds)

    def open(self) -> Catalogue:
        """Open the catalogue; each thread needs its own connection."""
        return Catalogue(self.root, self._catalogue)

    def look_further(self, on_more: Callable[[], None]) -> None:
        """Compare the remaining photos while the page is used; show more groups now and then, and call `on_more`."""

        def show() -> None:
            with unseen():
                self.refresh(0)
            on_more()

        with self.open() as catalogue:
            find_tiers(catalogue, on_more=show, **self._grouping)
        self.refresh(math.inf)

    def refresh(self, seconds: float | None = None) -> None:
        """Group again; decisions about groups that are still the same are kept.

        Args:
            seconds: longest time for comparing; default: no limit, or 2 s while `look_further` compares.
        """
        if seconds is None:
            seconds = math.inf if self.tiers.is_complete else _PATIENCE_S
        with self._lock, self.open() as catalogue:
            self._note_moves()
            self.tiers: Tiers = find_tiers(catalogue, seconds=seconds, **self._grouping)
            model = self.tiers.model
            self.n_new = len(catalogue.missing_embeddings(model.digest)) if model else 0
            keys = [_key(group.tier, group.keeper, _all_photos(group)) for group in self.tiers.groups]
            self.items = {key: Item(key, g) for key, g in zip(keys, self.tiers.groups, strict=True)}
            self.photos = {photo.id: photo for item in self.items.values() for photo in item.photos}
            self._decisions.give_to(self.items)
            for item in self.items.values():
                # Removed files were found again, so they came back from the trash; in an album they stay.
                if item.status == DONE and self.trash.moves_files:
                    item.reset()
                if item.status == MARKED:
                    item.remove -= item.group.protected  # protected since it was marked
                    item.status = MARKED if item.remove else SKIPPED
                    if not item.staying:
                        item.reset()  # one stays, whatever a journal says

    @property
    def problems(self) -> list[str]:
        """A sentence about each damaged line of a journal, and each missing protected folder."""
        return [
            *self._decisions.problems,
            *self.feedback.problems,
            *self._trash_problems,
            *self._missing_folders,
        ]

    @property
    def _protected(self) -> tuple[str, ...]:
        """The protected folders, also those stored by another window."""
        return (*self.tiers.protected, *self.settings.protected)

    @property
    def _missing_folders(self) -> list[str]:
        """A sentence about each missing protected folder: its photos may be elsewhere, unprotected."""
        listing_cache: dict = {}
        gone = {name for name in self._protected if not has_folder(self.root, name, listing_cache)}
        return [
            f"{printable(name)} is protected and no longer there, so nothing is removed: protect its new name in the "
            "settings, or take it out there."
            for name in sorted(gone)
        ]

    @property
    def settings(self) -> LibrarySettings:
        """The stored settings of this library."""
        return load_settings(self.own.path)

    def change(self, settings: LibrarySettings) -> None:
        """Store settings, and group again if they changed."""
        with self._lock:
            if settings != self.settings:
                save_settings(self.own.path, settings)
                self.refresh()

    def show_from(self, threshold: float | None) -> None:
        """Show similar scenes from another smallest cosine on (None: the model's own), which is stored.

        It takes the place of the command line's.
        """
        with self._lock:
            save_settings(self.own.path, replace(self.settings, threshold=threshold))
            self._grouping.pop("threshold", None)
            self.refresh()

    # ---- asking ---------------------------------------------------------------------------

    def select(self, tier: str | None = None, status: str | None = None) -> list[Item]:
        """Return the items of a tier and status, in order."""
        of_tier = (item for item in self.items.values() if tier in (None, item.group.tier))
        return [item for item in of_tier if status in (None, item.status)]

    @property
    def bytes_left(self) -> int:
        """Bytes that undecided suggestions would free."""
        return sum(item.bytes_to_free for item in self.select("copies", TODO))

    @property
    def bytes_removed(self) -> int:
        """Size of the photos removed from listed groups."""
        return sum(photo.size_bytes for item in self.select(status=DONE) for photo in item.leaving)

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
        comparable = [k for k, i in self.items.items() if k == key or (i.status != DONE and i.members)]
        keys = [None, *comparable, None]
        place = keys.index(key)
        return keys[place - 1], keys[place + 1]

    def next_todo(self, after: str | None = None) -> str | None:
        """Return the next undecided group after this one, going round."""
        keys = list(self.items)
        start = keys.index(after) + 1 if after in self.items else 0
        return next((k for k in keys[start:] + keys[:start] if self.items[k].status == TODO), None)

    # ---- deciding ----------------------------------------------------------------------------------

    @contextmanager
    def _deciding(self, key: str) -> Iterator[Item]:
        """Lock the session and yield an item that is not done; another window may still show a done one."""
        with self._lock:
            item = self.item(key)
            if item.status == DONE:
                raise PhotodupError(
                    "Photos of this group were removed already: undo that first, or scan again."
                )
            yield item

    def accept(self, key: str, keep: Sequence[int]) -> None:
        """Mark all photos of the group but these; keeping all skips it. Nothing moves yet.

        Raises:
            PhotodupError: nothing would be kept.
        """
        with self._deciding(key) as item:
            staying = {photo.id for photo in item.photos} & set(keep)
            if not staying:
                raise PhotodupError("Keep at least one photo of the group.")
            remove = frozenset(photo.id for photo in item.photos) - staying
            self._decide(item, MARKED if remove else SKIPPED, remove)

    def accept_all(self) -> int:
        """Mark the suggested copies of every undecided group; return how many groups."""
        with self._lock:
            todo = self.select("copies", TODO)
            return self._mark([(item, item.suggested) for item in todo if item.suggested])

    def _mark(self, chosen: Sequence[tuple[Item, frozenset[int]]]) -> int:
        """Mark these photos of groups, in one step; return how many groups."""
        if chosen:
            self.history.append(Step(_copies(item for item, _ in chosen)))
            for item, remove in chosen:
                item.remove = remove
            self._set(MARKED, *(item for item, _ in chosen))
        return len(chosen)

    @property
    def n_held_back(self) -> int:
        """Number of copies in undecided or marked groups that are held back only for their metadata."""
        return sum(len(self._held_back(item)) for item in self.items.values())

    def _held_back(self, item: Item) -> list[Photo]:
        is_open = item.status in (TODO, MARKED) and item.group.keeper.id not in item.remove
        if not (is_open and self.trash.moves_files):
            return []
        return [photo for photo in item.group.held_back if photo.id not in item.remove | item.apart]

    def carry_all(self) -> int:
        """Mark the copies held back only for metadata, if all of it can be written; return their number."""
        with self._lock:
            sidecars, chosen, n = Sidecars(self.root), [], 0
            for item in self.items.values():
                transfer = plan_transfer(sidecars, item.group.keeper, self._held_back(item))
                if transfer and (whole := {entry.leaving.id for entry in transfer.entries if entry.is_whole}):
                    marked = item.suggested if item.status == TODO else item.remove
                    chosen.append((item, marked | whole))
                    n += len(whole)
            self._mark(chosen)
            return n

    def carry(self, key: str, photo_id: int) -> None:
        """Mark a copy held back only for metadata, which is then written beside the keeper."""
        with self._deciding(key) as item:
            if photo_id not in {photo.id for photo in item.group.held_back} - item.apart:
                raise PhotodupError("Choose a copy that is held back only for what it says.")
            remove = item.suggested if item.status == TODO else item.remove - {item.group.keeper.id}
            self._decide(item, MARKED, remove | {photo_id}, item.bare - {photo_id})

    def change_mark(self, key: str, photo_id: int, action: str) -> None:
        """Change one photo on the list: `keep` it, remove it `bare`, or `write` its metadata."""
        with self._deciding(key) as item:
            if action not in ("keep", "bare", "write") or photo_id not in item.remove:
                raise PhotodupError("Choose a photo that is marked.")
            remove = item.remove - {photo_id} if action == "keep" else item.remove
            bare = item.bare | {photo_id} if action == "bare" else item.bare - {photo_id}
            self._decide(item, MARKED if remove else SKIPPED, remove, bare)

    def skip(self, key: str) -> None:
        """Leave the group as it is."""
        with self._deciding(key) as item:
            self._decide(item, SKIPPED, frozenset())

    def _refuse_protected(self, *items: Item, remove: Collection[int]) -> None:
        """Refuse to remove a photo from a protected folder, also if protected after marking."""
        if remove and self._missing_folders:
            raise PhotodupError(self._missing_folders[0])
        folders = self._protected
        for photo in (photo for item in items for photo in item.photos if photo.id in remove):
            if folder := photo.lies_in(folders):
                raise PhotodupError(
                    f"{printable(photo.path)} stays, and nothing was done: {printable(folder)} is protected. End that in "
                    "the settings first."
                )

    def _decide(
        self, item: Item, status: str, remove: frozenset[int], bare: frozenset[int] = frozenset()
    ) -> None:
        self._refuse_protected(item, remove=remove)
        if (item.status, item.remove, item.bare) == (status, remove, bare):
            return  # sent twice: one undo must be enough
        self.history.append(Step(_copies([item])))
        item.remove, item.bare = remove, bare
        self._set(status, item)

    def set_apart(self, key: str, photo_id: int) -> None:
        """Dismiss one member and its byte-identical copies for good; these and the keeper stay."""
        with self._deciding(key) as item:
            md5 = item.member(photo_id).md5
            label = self.feedback.add("keep_both", [item.group.keeper.md5, md5])
            self.history.append(Step(_copies([item]), labels=(label,)))
            same = {member.photo.id for member in item.members if member.photo.md5 == md5}
            item.apart |= same
            item.remove -= same | {item.group.keeper.id}
            status = SKIPPED if item.status == MARKED and not item.remove else item.status
            self._set(status if item.members else APART, item)

    def keep_instead(self, key: str, photo_id: int) -> str:
        """Make another photo the keeper, group again, and return the group's new key.

        Nothing is marked; only proven copies of that photo are suggested.
        """
        with self._deciding(key) as item:
            if item.group.tier != "copies":
                raise PhotodupError("Choose another photo of a group of copies to keep instead.")
            before = _copies([item])
            labels = self.feedback.choose_keeper(
                item.member(photo_id).md5, [photo.md5 for photo in item.photos]
            )
            self.history.append(Step(before, labels=tuple(labels), regroups=True))
            self.refresh()
            new = (k for k, other in self.items.items() if photo_id in {p.id for p in other.photos})
            return next(new, key)

    def undo(self) -> str:
        """Undo the last decision or removal; return a sentence."""
        with self._lock:
            if not self.history:
                raise PhotodupError("There is nothing to undo.")
            step = self.history[-1]
            restored, problem = self._restore(step.operations) if step.operations else ([], None)
            if restored:
                self.last = None
            try:
                self.feedback.undo(*step.labels)
            except PhotodupError as error:
                if not step.operations:  # nothing was taken back
                    raise
                problem = problem or error
            self.history.pop()  # only now: what fails before this can be tried again
            if step.regroups:
                self.refresh()
            now = _copies(self.items[state.key] for state in step.before if state.key in self.items)
            back = self._put_back(step.before)
            try:
                self._decisions.write(back)
            except PhotodupError:
                if not step.operations:  # files that are back stay back
                    self._put_back(now)
                    self.history.append(step)
                raise
            if problem:  # what is not back lies in the trash; the decisions are taken back all the same
                raise problem
            self.undone = back[0].key if len(back) == 1 and not restored else None
            if restored:
                return self._back_in_folders(restored)
            n = len(back)
            return f"{'1 group is' if n == 1 else f'{n} groups are'} as before the last decision."

    def _back_in_folders(self, files: Sequence[Path]) -> str:
        n, names = len(files), in_short(path.relative_to(self.root) for path in files)
        sentence = "1 file is back in its folder" if n == 1 else f"{n} files are back in their folders"
        return f"{sentence}: {names}." if files else f"{sentence}."

    def _put_back(self, states: Sequence[Item]) -> list[Item]:
        """Give groups their earlier states; return those that still exist."""
        back = []
        for state in states:
            if item := self.items.get(state.key):
                vars(item).update(vars(state) | {"group": item.group})
                back.append(item)
        return back

    # ---- carrying out --------------------------------------------------------------------------------

    def removals(self) -> list[Removal]:
        """Return a removal for each photo that is marked, once, with its sidecars and the photos that stay."""
        marked = self.select(status=MARKED)
        listed = {self.root / photo.path for photo in self.photos.values()}
        leaving = (self.root / photo.path for item in marked for photo in item.leaving)
        sidecars = files_moving_with(leaving, never=listed)
        removals: dict[int, Removal] = {}
        for item in marked:
            staying = item.staying
            best = staying[0]
            # Only the best staying photo counts: a lesser copy is no reason to remove this one.
            keepers = [(self.root / p.path, p.md5) for p in staying if p.md5 == best.md5]
            reason = f"{item.group.tier}: kept {printable(best.path)}"
            for photo in item.leaving:
                path = self.root / photo.path
                removals.setdefault(photo.id, Removal(path, photo.md5, keepers, sidecars[path], reason))
        return list(removals.values())

    def transfers(self) -> dict[str, Transfer]:
        """Return by group the metadata that only its marked photos have, and the write beside the keeper."""
        marked = self.select("copies", MARKED) if self.trash.moves_files else []
        leaving_ids = {i for item in self.select(status=MARKED) for i in item.remove}
        sidecars, by_group = Sidecars(self.root), {}
        for item in marked:
            if staying := [photo for photo in item.photos if photo.id not in leaving_ids]:
                leaving = [photo for photo in item.leaving if photo.id not in item.bare]
                if transfer := plan_transfer(sidecars, staying[0], leaving):
                    by_group[item.key] = transfer
        return by_group

    def offer(self, key: str, photo_id: int) -> Transfer | None:
        """Return the metadata that alone holds a copy back; None for other photos."""
        item = self.item(key)
        files = [photo for photo in self._held_back(item) if photo.id == photo_id]
        return plan_transfer(Sidecars(self.root), item.group.keeper, files)

    def plan(self, written: Mapping[str, Transfer]) -> str:
        """Return a digest of the marks and the writes of `transfers`, which the user confirms."""
        marked = [(item.key, sorted(item.remove)) for item in self.select(status=MARKED)]
        notes = [(note.path, note.before, md5(note.data)) for note in _notes(written)]
        return _digest(repr([marked, notes]))

    def apply(self, plan: str | None = None) -> RemovalResult:
        """Move all marked photos into the trash.

        Args:
            plan: digest of the confirmed list; another one moves nothing.

        Raises:
            PhotodupError: nothing is marked, or the list has changed.
        """
        with self._lock:
            marked = self.select(status=MARKED)
            if not marked:
                raise PhotodupError("Nothing is marked: it was removed already, or undone.")
            written = self.transfers()
            if plan not in (None, self.plan(written)):
                raise PhotodupError(
                    "The marks have changed since this list was shown, perhaps in another window: "
                    "nothing was moved, look at the list again."
                )
            self._refuse_protected(*marked, remove={i for item in marked for i in item.remove})
            operations, refused = self.trash.remove(self.removals(), _notes(written))
            refused_paths = {removal.path for removal, _ in refused}
            removed_items = [
                item
                for item in marked
                if refused_paths.isdisjoint(self.root / photo.path for photo in item.leaving)
            ]
            self.history.append(Step(_copies(marked), operations=tuple(operations)))
            for item in removed_items:
                item.status = DONE
            not_written = []
            try:
                self._decisions.write(removed_items)
                chosen = [item.staying[0].md5 for item in marked if item.group.keeper.id in item.remove]
                labels = tuple(self.feedback.add_keepers(chosen))
                self.history[-1] = replace(self.history[-1], labels=labels)
                self._note_moves()
            except PhotodupError as error:  # the files did move, and the trash's journal says so
                not_written = [str(error)]
            size = sum(operation.bytes for operation in operations if not operation.written)
            sentences = [sentence for _, sentence in refused]
            n_written = sum(bool(operation.written) for operation in operations)
            n_removed = len(operations) - n_written
            self.last = RemovalResult(n_removed, size, (*sentences, *not_written), n_written)
            return self.last

    def restore(self, ids: Sequence[str], *, unsigned: bool = False) -> str:
        """Restore operations from the trash, with `unsigned` those of other users; return a sentence."""
        with self._lock:
            contents = self.trash.contents()
            listing = contents.unsigned if unsigned else contents.listing
            chosen = [operation for operation in listing if operation.id in set(ids)]
            restored, problem = self._restore(chosen, confirmed=unsigned)
            self.last = None
            back = {path.relative_to(self.root) for path in restored}
            again = [i for i in self.select(status=DONE) if any(p.path in back for p in i.photos)]
            for item in again:
                item.reset()
            self._decisions.write(again)
            self.refresh()
            if problem:
                raise problem
            return self._back_in_folders(restored)

    def list_trash(self) -> TrashContents:
        """Return the contents of the trash; the page may then show its photos."""
        contents = self.trash.contents()
        self.in_trash = {operation.id: operation for operation in contents.listing}
        return contents

    @property
    def trash_plan(self) -> str:
        """Return a digest of the trash's contents, which the user confirms to delete."""
        return _digest(" ".join(sorted(operation.id for operation in self.trash.contents().listing)))

    def empty_trash(self, plan: str) -> str:
        """Delete the trash's contents for good; return a sentence.

        Args:
            plan: digest of the confirmed list; another one deletes nothing.

        Raises:
            PhotodupError: the trash has changed, or a file is not the removed one.
        """
        with self._lock:
            if not isinstance(self.trash, Trash):
                raise PhotodupError("Delete the album's photos in Photos: photodup only put them there.")
            listing = self.trash.contents().listing
            if not listing or plan != self.trash_plan:
                raise PhotodupError(
                    "The trash holds something else than when this was shown: nothing was deleted, look again."
                )
            freed_bytes = self.trash.purge(listing)
            self.in_trash = {}
            gone = {operation.id for operation in listing}
            # Deletions cannot be undone, so the history ends here.
            self.history = [s for s in self.history if not gone & {o.id for o in s.operations}]
            self.last = None
            n = sum(not operation.written for operation in listing)
            photos = "1 photo is" if n == 1 else f"{n} photos are"
            return f"{photos} deleted for good, {do_filesizeformat(freed_bytes)} freed."

    def _restore(
        self, operations: Sequence[Operation], *, confirmed: bool = False
    ) -> tuple[list[Path], PhotodupError | None]:
        """Return the restored files, and the error about others."""
        problem: PhotodupError | None = None
        try:
            restored = self.trash.restore(operations, confirmed=confirmed)
        except PartlyRestoredError as error:
            restored, problem = error.restored, error
        try:
            self._note_moves()
        except PhotodupError as error:  # the files are back all the same
            problem = problem or error
        return restored, problem

    def _note_moves(self) -> None:
        """Update the catalogue with the trash's moves, also those of a killed process or another command."""
        if not self.trash.moves_files:
            return
        contents = self.trash.contents()
        self._trash_problems = contents.problems
        last = {m.home: (m, o.in_trash) for o in contents.operations if not o.unfinished for m in o.files}
        now = {os.fsencode(home): _status(self.root / home, *moved) for home, moved in last.items()}
        with self.open() as catalogue:
            states = dict(catalogue.query("SELECT path, status FROM file WHERE status IN ('ok', 'missing')"))
            if changed := [(new, at) for at, new in now.items() if new and states.get(at, new) != new]:
                with catalogue.transaction() as connection:
                    connection.executemany(
                        "UPDATE file SET status = ? WHERE path = ? AND md5 IS NOT NULL", changed
                    )

    def _set(self, status: str, *items: Item) -> None:
        """Set and write a status, after its step is in the history; undo it if that fails."""
        for item in items:
            item.status = status
        try:
            self._decisions.write(items)
        except PhotodupError:
            self._put_back(self.history.pop().before)
            raise


def _status(path: Path, moved: Moved, in_trash: bool) -> str | None:
    """Return the catalogue status of a moved file; None if it is unknown."""
    try:
        status = path.lstat()
    except OSError:
        return "missing" if in_trash else None
    is_same = (status.st_size, status.st_mtime_ns) == (moved.size, moved.mtime_ns)
    return "ok" if is_same and not in_trash else None


def _copies(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return copies of these groups' states."""
    return tuple(map(copy, items))


def _notes(written: Mapping[str, Transfer]) -> list[Note]:
    return [transfer.note for transfer in written.values() if transfer.note]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
