"""Read a photo library into its catalogue: walk, hash, store.

Photographs are only read. Facts are written in batches, each in one transaction, so an interruption costs at most one
batch, and the next scan continues.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.core.files import available_cores, real_path
from photodup.core.names import count, printable
from photodup.core.progress import bar
from photodup.embedding import imaging
from photodup.embedding.decode_pool import DecodePool, TooSlow
from photodup.photos.library.catalogue import Catalogue, open_sound
from photodup.photos.library.hashing import Look, PhotoFacts, read_facts_and_look, unpack_facts
from photodup.photos.library.walking import ListedFile, Listing, UnreadFile, read_bytes, walk

# For one photograph. 250 megapixels take about five seconds, and more on a busy machine.
DECODE_SECONDS = 30.0

_BATCH_FILES, _BATCH_SECONDS = 256, 1.0


@dataclass
class ScanReport:
    """The result of a scan. `problems` holds all files that cannot be read, old and new."""

    root: Path
    catalogue: Path
    n_found: int = 0
    n_unchanged: int = 0
    n_read: int = 0
    n_missing: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    problems: list[UnreadFile] = field(default_factory=list)
    not_entered: list[UnreadFile] = field(default_factory=list)  # folders of programs
    left_out: list[str] = field(default_factory=list)  # sentences about them, and about files for an extra
    set_aside: Path | None = None  # the damaged catalogue, replaced by a new one

    def __str__(self) -> str:
        begun = (
            f"The catalogue was damaged and is begun anew; the old one is {printable(self.set_aside)}. "
            "Your decisions are kept, embeddings have to be made again.\n"
            if self.set_aside
            else ""
        )
        counts = (
            f"{count(self.n_found, 'photograph')} found, {self.n_read} read "
            f"({self.bytes_read / 1e6:.1f} MB in {self.seconds:.1f} s), {self.n_unchanged} unchanged, "
            f"{self.n_missing} no longer there, {len(self.problems)} not readable"
        )
        return begun + "\n".join([counts, *self.left_out])


class PhotoSink(Protocol):
    """Takes each photograph from the scan's decoding, to embed it."""

    @property
    def look(self) -> Look:
        """How it needs pictures decoded."""

    def take(self, photographs: Sequence[tuple[str, Path, np.ndarray]]) -> None:
        """Take content (MD5), path and uint8 [3, size, size] of photographs with written facts."""


OpenSink = Callable[[Catalogue], AbstractContextManager[PhotoSink]]


class ScanOptions(TypedDict, total=False):
    """Keyword arguments of `update`, as its docstring explains them."""

    workers: int | None
    progress: bool
    decode_seconds: float
    open_sink: OpenSink | None
    on_more: Callable[[], None] | None


def scan(
    folder: Path | str,
    catalogue: Path | str | None = None,
    *,
    only: Sequence[str] = (),
    everything: bool = False,
    **options: Unpack[ScanOptions],
) -> ScanReport:
    """Update the catalogue of a folder; files of unchanged size and time are not read again.

    Args:
        folder: the library, walked with its sub-folders.
        catalogue: the folder of the catalogue; default `folder/.photodup`.
        only: the folders to look at, relative to it; empty for all. The facts of others stay.
        everything: as of `walking.walk`.
        **options: of `update`.

    Raises:
        PhotodupError: the folder is not there or not readable, or the catalogue cannot be written.
    """
    root = existing_folder(folder)
    return update(root, catalogue, walk(root, only, everything=everything), **options)


def existing_folder(folder: Path | str) -> Path:
    """Return the path of a folder, links followed.

    Raises:
        PhotodupError: it is not there, not a folder, or not readable.
    """
    root = real_path(folder)
    try:
        os.scandir(root).close()
    except (FileNotFoundError, NotADirectoryError):
        raise PhotodupError(
            f"{printable(root)} is not a folder: give the folder that holds your photographs."
        ) from None
    except OSError as error:
        raise PhotodupError(
            f"{printable(root)} cannot be opened ({error.strerror}): give a folder that you may read."
        ) from None
    return root


def update(
    root: Path,
    catalogue: Path | str | None,
    listing: Listing,
    *,
    workers: int | None = None,
    progress: bool = True,
    decode_seconds: float = DECODE_SECONDS,
    open_sink: OpenSink | None = None,
    on_more: Callable[[], None] | None = None,
) -> ScanReport:
    """Read the new and changed files of a listing into the catalogue of a folder; see `scan`.

    Args:
        root: the library, links followed.
        catalogue: as of `scan`.
        listing: the files of the library.
        workers: threads (Pillow and hashlib release the lock while they work); default one per core.
        progress: show a progress bar.
        decode_seconds: slower photographs are reported, and tried again by the next scan.
        open_sink: opens a sink for the photographs (`photos.embed.batches.EmbeddingPass`), with the catalogue.
        on_more: called whenever the catalogue has more photographs than before.
    """
    started = time.perf_counter()
    opened, aside = open_sound(root, catalogue)
    with opened, open_sink(opened) if open_sink else nullcontext() as sink:
        report = ScanReport(opened.root, opened.path, len(listing.entries), set_aside=aside)
        report.not_entered, report.left_out = listing.not_entered, listing.left_out
        todo = _new_or_changed(opened, listing, report)
        read_one = partial(_read, opened.root, sink.look if sink else None)
        results = _read_all(read_one, todo, workers or available_cores(), decode_seconds)
        desc = "scan and embed" if sink else "scan"
        batch: list[_FileRead] = []
        written = time.perf_counter()
        try:
            for read in bar(results, total=len(todo), desc=desc, unit="photo", disable=not progress):
                batch.append(read)
                if len(batch) >= _BATCH_FILES or time.perf_counter() - written > _BATCH_SECONDS:
                    full_batch, batch = batch, []
                    _write(opened, full_batch, report)
                    _hand_on(full_batch, sink)
                    if on_more:
                        on_more()
                    written = time.perf_counter()
        finally:  # keep what was read, also on Ctrl-C
            results.close()
            _write(opened, batch, report)
        _hand_on(batch, sink)
        report.problems = sorted(
            listing.problems
            + [UnreadFile(*row) for row in opened.problems() if os.fsencode(row[0]).startswith(listing.only)],
            key=lambda problem: os.fsencode(problem.path),
        )
        report.seconds = time.perf_counter() - started
    return report


def _new_or_changed(catalogue: Catalogue, listing: Listing, report: ScanReport) -> list[ListedFile]:
    """Return the files to read, and mark missing ones; count both in the report."""
    with catalogue.transaction() as connection:
        rows = connection.execute("SELECT path, size_bytes, mtime_ns, status FROM file")
        catalogued = {path: columns for path, *columns in rows if path.startswith(listing.only)}
        listed, closed = {entry.path for entry in listing.entries}, tuple(listing.closed)
        gone = [
            (path,)
            for path, (*_, status) in catalogued.items()
            # Files that cannot be seen, or lie in a folder that cannot be read, may still be there.
            if path not in listed and status != "missing" and not (path + b"/").startswith(closed)
        ]
        connection.executemany("UPDATE file SET status = 'missing', reason = NULL WHERE path = ?", gone)
        report.n_missing = len(gone)
    # Try inaccessible files again: permissions change without a trace in size and time. Unreadable images are not.
    todo = [
        entry
        for entry in listing.entries
        if catalogued.get(entry.path)
        not in [[entry.size_bytes, entry.mtime_ns, s] for s in ("ok", "unreadable")]
    ]
    report.n_unchanged = report.n_found - len(todo)
    # Files of one size may be copies of the same bytes: with them the page has something to show at once.
    n_of_size = Counter(entry.size_bytes for entry in todo)
    return sorted(todo, key=lambda entry: n_of_size[entry.size_bytes] == 1)


@dataclass(slots=True)
class _FileRead:
    entry: ListedFile
    status: str
    reason: str | None = None
    facts: PhotoFacts | None = None
    pixels: np.ndarray | None = None  # uint8 [3, size, size], where there is a sink


def _read(root: Path, look: Look | None, entry: ListedFile, processes: DecodePool) -> _FileRead:
    """Read one file; decode a cheap image here, and others in a process that can be killed."""
    data = b""
    try:
        data, entry = read_bytes(root, entry.path)
        if imaging.is_bounded(data):
            facts, pixels = read_facts_and_look(data, look)
        else:
            packed = processes.run(data, look=look and asdict(look))
            facts, pixels = unpack_facts(packed, look)
        return _FileRead(entry, "ok", facts=facts, pixels=pixels)
    except FileNotFoundError:
        return _FileRead(entry, "missing", "vanished while the folder was scanned")
    except TooSlow as error:  # perhaps a busy machine: tried again
        return _FileRead(entry, "inaccessible", error.reason)
    except imaging.ImageError as error:
        by_bytes = PhotoFacts.of_unreadable(data) if data else None
        return _FileRead(entry, "unreadable", error.reason, by_bytes)
    except OSError as error:
        return _FileRead(entry, "inaccessible", error.strerror or str(error))
    except MemoryError:
        return _FileRead(entry, "inaccessible", "not enough memory to read it")


def _read_all(
    read: Callable[[ListedFile, DecodePool], _FileRead],
    entries: Iterable[ListedFile],
    workers: int,
    decode_seconds: float,
) -> Generator[_FileRead]:
    """Yield results in order of completion, with a bounded number of files in memory."""
    processes = DecodePool(
        "photodup.photos.library.hashing:pack_facts",
        size=workers,
        deadline_s=decode_seconds,
        remedy="scan with a larger --decode-seconds",
    )
    pending_entries = iter(entries)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="scan")
    running: set[Future[_FileRead]] = set()
    try:
        while True:
            for entry in islice(pending_entries, 2 * workers - len(running)):
                running.add(pool.submit(read, entry, processes))
            if not running:
                return
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()
    finally:
        processes.close()  # first, or Ctrl-C would wait for them
        pool.shutdown(wait=True, cancel_futures=True)


def _hand_on(batch: Sequence[_FileRead], sink: PhotoSink | None) -> None:
    if sink:
        sink.take(
            [
                (read.facts.md5, Path(os.fsdecode(read.entry.path)), read.pixels)
                for read in batch
                if read.facts and read.pixels is not None
            ]
        )


def _write(catalogue: Catalogue, batch: list[_FileRead], report: ScanReport) -> None:
    if not batch:
        return
    with catalogue.transaction() as connection:
        connection.executemany(
            "INSERT INTO content VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (md5) DO UPDATE SET exif_fields = excluded.exif_fields",
            [astuple(read.facts) for read in batch if read.facts],
        )
        connection.executemany(
            "INSERT INTO file (path, size_bytes, mtime_ns, status, reason, md5) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (path) DO UPDATE SET size_bytes = excluded.size_bytes, "
            "mtime_ns = excluded.mtime_ns, status = excluded.status, reason = excluded.reason, "
            "md5 = excluded.md5",
            [(*astuple(r.entry), r.status, r.reason, r.facts and r.facts.md5) for r in batch],
        )
    for read in batch:
        report.n_read += read.status == "ok"
        report.bytes_read += read.entry.size_bytes if read.status == "ok" else 0
        report.n_missing += read.status == "missing"
