"""Which photos of one folder are in another, such as those of an old drive in the library. Both are only read.

Scans and comparisons are cached for this user, by folder path, so an interrupted run continues and the library is not read
again for the next old drive. In doubt a photo counts as not there.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from photodup.core.paths import cache_dir
from photodup.core.progress import bar
from photodup.embedding.imaging import ImageError
from photodup.photos.compare.evidence import EvidenceStore
from photodup.photos.compare.pixels import Pixels, one_thread_each, read_scanned
from photodup.photos.groups.choose import TWO_EXPOSURES, Chooser
from photodup.photos.groups.copy_search import CopySearch
from photodup.photos.groups.keepers import KeepRules
from photodup.photos.library import several
from photodup.photos.library.catalogue import Catalogue, Photo, by_content
from photodup.photos.library.hashing import digest_of
from photodup.photos.library.scan import ScanOptions, existing_folder, scan
from photodup.photos.library.sidecars import Sidecars
from photodup.photos.library.walking import UnreadFile, open_photo_file
from photodup.photos.search.candidates import PER_PHOTO_ALONE
from photodup.photos.search.hash_neighbours import bits_apart, nearest_across, search_radius
from photodup.photos.search.pair_codes import pair_code, pair_codes
from photodup.photos.search.shots import Shots

# Photos of the library that one photo is compared with. Of 120 copies of four kinds, planted in a library of 220, all had
# their source as the nearest.
MOST_COMPARED = 3
# A photo whose hash differs by at most so many bits is probably there even if the pixels prove nothing. None that is turned
# or mirrored comes that near: it counts `TURNED_NEARER` bits more.
_ALIKE_BITS = 4
_MOSTLY_ALIKE = 0.5  # `CopyEvidence.score` above which only some patches differ
_SHOWN_ONLY = "the library shows only the old folder's own file, by another path"
_LOOKS_ALIKE = "looks alike, and the pixels do not prove it"
_CHANGED = "one of the two has changed, or the library's file cannot be read again"


class Location(StrEnum):
    """How well it is proven that the library has a photo of the old folder, the best proven first."""

    SAME = "the same bytes there"
    AS_GOOD = "as good or better there, proven on pixels"
    PROBABLY = "probably there, not proven"
    ONLY_HERE = "only here"


class _Finding(NamedTuple):
    """Where a photo of the old folder is, the library's photo that shows it, and the reason in words."""

    where: Location
    match: Photo | None = None
    reason: str = ""


_NOT_FOUND = _Finding(Location.ONLY_HERE)


@dataclass(frozen=True, slots=True)
class OldPhoto:
    """One readable file of the old folder.

    Attributes:
        path: relative to the old folder.
        md5: of its bytes.
        size_bytes: of the file.
        where: whether it is in the library.
        match: the library's file that it was matched with, relative to the library; None without one.
        reason: what the library's file lacks, or why the photo does not count as there, in words; may be empty.
    """

    path: Path
    md5: str
    size_bytes: int
    where: Location
    match: Path | None
    reason: str


@dataclass(frozen=True)
class Contained:
    """The result: each scanned file of the old folder is either in `photos` or in `unread`.

    Attributes:
        old, library: both folders.
        photos: the readable files, by path.
        unread: what could not be read in the old folder, and why.
        unread_there: what could not be read, or is not entered, in the library, and why.
        problems: what could not be compared, in sentences.
    """

    old: Path
    library: Path
    photos: tuple[OldPhoto, ...]
    unread: tuple[UnreadFile, ...]
    unread_there: tuple[UnreadFile, ...]
    problems: tuple[str, ...]

    def to_copy(self, *where: Location) -> list[OldPhoto]:
        """Return the photos at these locations, and those with something beside them that the library lacks."""
        return [
            photo
            for photo in self.photos
            if photo.where in where or (photo.where is Location.SAME and photo.reason)
        ]

    def of(self, *where: Location) -> list[OldPhoto]:
        """Return the photos at one of these locations."""
        return [photo for photo in self.photos if photo.where in where]

    def as_record(self) -> dict[str, Any]:
        """Return it as dictionaries, with counts and bytes by location; paths stay paths."""
        sizes = {where: [photo.size_bytes for photo in self.of(where)] for where in Location}
        counts = {where: {"photos": len(sizes[where]), "bytes": sum(sizes[where])} for where in sizes}
        return asdict(self) | {"counts": counts}


def cached_catalogue(folder: Path) -> Path:
    """Return where the catalogue of a folder that is only read lies: in this user's cache, named by a hash of its path.

    Raises:
        PhotodupError: the user has no cache.
    """
    return cache_dir() / "libraries" / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]


def _entry_of(path: Path) -> tuple[int | str, ...]:
    """Return an identity of a folder's entry: equal for two paths to it (bind mounts), different for hard links."""
    status = os.stat(path)
    if status.st_nlink == 1:
        return status.st_dev, status.st_ino
    folder = os.stat(path.parent)
    return status.st_dev, status.st_ino, path.name, folder.st_dev, folder.st_ino


def find_contained(old: Path | str, library: Path | str, **options: Unpack[ScanOptions]) -> Contained:
    """Scan both folders into the cache and say of every photo of the old one whether it is in the library.

    Args:
        old: the folder that may be given up.
        library: the folder that stays.
        **options: of `photos.library.scan.update`.

    Raises:
        PhotodupError: a folder is not there or not readable, they overlap, or the cache cannot be written.
    """
    folders = existing_folder(old), existing_folder(library)
    several.refuse_overlap(*folders)
    old_scan = scan(folders[0], cached_catalogue(folders[0]), everything=True, **options)
    library_scan = scan(folders[1], cached_catalogue(folders[1]), everything=False, **options)
    with (
        Catalogue(folders[0], cached_catalogue(folders[0])) as old_catalogue,
        Catalogue(folders[1], cached_catalogue(folders[1])) as library_catalogue,
        EvidenceStore(library_catalogue.own.evidence) as store,
    ):
        comparison = _Comparison(old_catalogue, library_catalogue, store)
        photos = tuple(comparison.photos())
        unread = (*old_scan.problems, *comparison.unread)
        unread_there = (*library_scan.problems, *library_scan.not_entered)
        return Contained(*folders, photos, unread, unread_there, (*comparison.problems, *old_scan.left_out))


class _Comparison:
    """One comparison. Rows are the contents of the library, then those that only the old folder has."""

    def __init__(self, old: Catalogue, library: Catalogue, store: EvidenceStore) -> None:
        self._store = store
        self._roots = old.root, library.root
        beside = Sidecars(old.root)
        beside.memory = store
        self._rules = KeepRules(beside)
        library_photos, old_photos = library.photos(), old.photos()
        self._library = by_content(self._whole(library.root, library_photos, 0))
        self._old = by_content(self._whole(old.root, old_photos, len(library_photos)))
        alone = [same for md5, same in self._old.items() if md5 not in self._library]
        self._rows = [self._rules.choose(same).keeper for same in (*self._library.values(), *alone)]
        self._findings: dict[str, _Finding] = {}  # by content
        self._compared: set[tuple[int, int]] = set()
        self._bits_apart: dict[tuple[int, int], int] = {}  # bits between hashes, in the order of comparing
        self.problems: list[str] = []
        self.unread: list[UnreadFile] = []

    @staticmethod
    def _whole(root: Path, photos: Sequence[Photo], begin: int) -> list[Photo]:
        """Return photos with absolute paths, which any `root / path` leaves unchanged, and with ids counted from `begin`."""
        return [replace(photo, id=begin + i, path=root / photo.path) for i, photo in enumerate(photos)]

    def photos(self) -> list[OldPhoto]:
        """Compare everything, and return the old folder's photos by path; `unread` and `problems` are then complete."""
        self._compare()
        old_photos = []
        files = sorted((old for same in self._old.values() for old in same), key=lambda old: old.id)
        for photo in bar(files, total=len(files), desc="read again", unit="photo"):
            path = photo.path.relative_to(self._roots[0])
            try:
                where, match, reason = self._locate(photo)
            except OSError as error:
                self.unread.append(UnreadFile(path, error.strerror or str(error)))
                continue
            match_path = match.path.relative_to(self._roots[1]) if match else None
            old_photos.append(OldPhoto(path, photo.md5, photo.size_bytes, where, match_path, reason))
        return old_photos

    def _compare(self) -> None:
        """Compare the contents that the library lacks with its nearest ones, and note what is proven or alike."""
        rows, n = self._rows, len(self._library)
        near = nearest_across(
            [photo.phash for photo in rows[:n]],
            [photo.phash for photo in rows[n:]],
            search_radius(len(rows), PER_PHOTO_ALONE),
            MOST_COMPARED,
        )
        shots = Shots(rows)
        pixels = Pixels(self._read, rows, self._store)
        search = CopySearch(pixels, lambda codes: codes[~shots.are_two(codes)])

        def reason_apart(i: int, j: int) -> str:
            return TWO_EXPOSURES if shots.are_two(np.array([pair_code(i, j)]))[0] else ""

        # Pairs within `_ALIKE_BITS` come first, ranked by the keep rules, then the others by their bits.
        ranked = self._rules.ranked([rows[i] for i in np.unique(near.first)])
        place = {photo.id: number for number, photo in enumerate(ranked)}
        bits = zip(near.first.tolist(), near.second.tolist(), bits_apart(near).tolist(), strict=True)
        order = sorted(bits, key=lambda triple: (max(triple[2], _ALIKE_BITS), place[rows[triple[0]].id]))
        self._bits_apart = {(i, j): n_bits for i, j, n_bits in order}
        chooser = Chooser(pixels, self._rules, reason_apart)
        remaining = list(self._bits_apart)
        for _ in range(MOST_COMPARED):
            next_pairs = {j: (i, j) for i, j in reversed(remaining) if not self._is_there(j)}
            search.ask(pair_codes(*np.array(list(next_pairs.values()), np.int64).reshape(-1, 2).T))
            remaining = [pair for pair in remaining if next_pairs.get(pair[1]) != pair]
            self._compare_proven(search, chooser)
        for i, j in sorted(self._compared):  # where one of them could not be read any more
            self._findings.setdefault(rows[j].md5, _Finding(Location.PROBABLY, rows[i], _CHANGED))
        self._note_alike(search)
        self.problems += pixels.problems

    def _is_there(self, j: int) -> bool:
        return self._findings.get(self._rows[j].md5, _NOT_FOUND).where is Location.AS_GOOD

    def _compare_proven(self, search: CopySearch, chooser: Chooser) -> None:
        """Compare each photo that has no equal yet with the library's photos that are newly proven to show the same."""
        new = {pair for pair in set(search.proven) - self._compared if not self._is_there(pair[1])}
        across = [pair for pair in sorted(new) if pair[0] < len(self._library) <= pair[1]]
        pairs = [pair for pair in dict.fromkeys((*self._bits_apart, *across)) if pair in new]
        self._compared.update(pairs)
        with one_thread_each():
            for i, j in bar(pairs, total=len(pairs), desc="check", unit="pair"):
                with suppress(ImageError):  # it is in `problems`
                    self._note(i, j, chooser)
                chooser.remember()

    def _note(self, i: int, j: int, chooser: Chooser) -> None:
        """Note what comparing a pair tells about the photo of the old folder, unless a better finding is there."""
        reasons = chooser.lacks(i, j)
        where = Location.AS_GOOD
        if reasons:
            is_better = not chooser.lacks(j, i)
            where = Location.ONLY_HERE if is_better else Location.PROBABLY
        order, md5 = list(Location), self._rows[j].md5
        if md5 not in self._findings or order.index(where) < order.index(self._findings[md5].where):
            reason = "; ".join(dict.fromkeys(difference.reason for difference in reasons))
            self._findings[md5] = _Finding(where, self._rows[i], reason)

    def _note_alike(self, search: CopySearch) -> None:
        """Note photos that look alike by their hash, or on most of their pixels, where these prove nothing."""
        for (i, j), bits in self._bits_apart.items():
            score = search.scores.get(pair_code(i, j))
            if score is not None and (bits <= _ALIKE_BITS or score > _MOSTLY_ALIKE):
                alike = _Finding(Location.PROBABLY, self._rows[i], _LOOKS_ALIKE)
                self._findings.setdefault(self._rows[j].md5, alike)

    def _locate(self, photo: Photo) -> _Finding:
        """Return whether one file is in the library, after reading both files again.

        Raises:
            OSError: the file itself cannot be read.
        """
        if same := self._library.get(photo.md5):
            digest = self._digest(photo, "sha256")
            copies = [equal for equal in same if not self._is_old(equal.path)]
            if not copies:
                return _Finding(Location.ONLY_HERE, None, _SHOWN_ONLY)
            equals = (equal for equal in copies if self._digest_there(equal, "sha256") == digest)
            lost = {equal: "; ".join(self._rules.lost_with(equal, photo)) for equal in equals}
            if lost:
                best = min(lost, key=lambda equal: bool(lost[equal]))
                return _Finding(Location.SAME, best, lost[best])
            return _Finding(Location.PROBABLY, copies[0], _CHANGED)
        where, match, reason = self._findings.get(photo.md5, _NOT_FOUND)
        if match and where is Location.AS_GOOD:
            reason = "; ".join(self._rules.lost_with(match, photo))
            if self._digest(photo, "md5") != photo.md5 or self._digest_there(match, "md5") != match.md5:
                reason = _CHANGED
            where = Location.PROBABLY if reason else where
        return _Finding(where, match, reason)

    def _is_old(self, path: Path) -> bool:
        """Return whether a file of the library is itself in the old folder, and so is lost with it."""
        with suppress(OSError):  # it is gone: `_digest_there` finds that out
            return _entry_of(path) in self._old_entries
        return False

    @cached_property
    def _old_entries(self) -> set[tuple[int | str, ...]]:
        """The old folder's files as the file system knows them."""
        entries = set()
        for photo in (photo for same in self._old.values() for photo in same):
            with suppress(OSError):
                entries.add(_entry_of(photo.path))
        return entries

    def _digest_there(self, photo: Photo, algorithm: str) -> str:
        """Return a digest of the library's file; empty where it cannot be read."""
        with suppress(OSError):
            return self._digest(photo, algorithm)
        return ""

    def _digest(self, photo: Photo, algorithm: str) -> str:
        """Return a hex digest of a file's bytes; a remembered one if the file's status is unchanged."""
        root, path = self._place(photo)
        with open_photo_file(root, str(path)) as file:
            return digest_of(file, photo.path, algorithm, self._store)

    def _read(self, photo: Photo) -> bytes:
        root, path = self._place(photo)
        return read_scanned(root, replace(photo, path=path))

    def _place(self, photo: Photo) -> tuple[Path, Path]:
        """Return the folder that a photo is in, and its path there."""
        root = self._roots[self._roots[1] in photo.path.parents]
        return root, photo.path.relative_to(root)
