"""Reading a photo library into its catalogue: walk, hash, remember; later, embed.

Photographs are only ever read. Everything that is learnt is written in batches, each in one transaction,
so an interruption costs at most the batch at hand and a second scan continues.
"""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from photodup.embedding import imaging
from photodup.errors import PhotodupError
from photodup.photos.catalogue import Catalogue, CatalogueError, Model, Photo, printable
from photodup.photos.hashing import PhotoFacts, md5, read_facts

if TYPE_CHECKING:
    from photodup.embedding.clients import Embedder

__all__ = [
    "Catalogue",
    "CatalogueError",
    "EmbedReport",
    "Model",
    "Photo",
    "Problem",
    "ScanReport",
    "available_cores",
    "embed_library",
    "printable",
    "scan",
    "scan_apple_photos",
    "walk",
]

SUFFIXES = frozenset(
    b".jpg .jpeg .jpe .jfif .png .webp .tif .tiff .heic .heif .hif .avif".split()
)  # GIF and BMP are read when they carry one of these names, but are not looked for.

# Never entered: our own folders.
OWN_FOLDERS = frozenset({b".photodup", b".photodup-trash"})

# A file is read in one piece; nothing a camera writes comes near this.
MAX_FILE_BYTES = 2**30

_BATCH_FILES, _BATCH_SECONDS = 256, 1.0

_NOT_FOLLOWED = "symbolic link, not followed: one photograph must not be seen as two"


@dataclass(frozen=True, slots=True)
class Problem:
    """A file or folder that could not be read, and why; `path` is relative to the library."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{printable(self.path)}: {self.reason}"


@dataclass
class ScanReport:
    """What one scan found. `problems` holds everything that is there and could not be read, old and new."""

    root: Path
    catalogue: Path
    n_found: int = 0
    n_unchanged: int = 0
    n_read: int = 0
    n_missing: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.n_found} photographs found, {self.n_read} read "
            f"({self.bytes_read / 1e6:.1f} MB in {self.seconds:.1f} s), {self.n_unchanged} unchanged, "
            f"{self.n_missing} no longer there, {len(self.problems)} not readable"
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as listed, before it is read. `path` is in bytes, relative to the library."""

    path: bytes
    size_bytes: int
    mtime_ns: int


@dataclass
class Listing:
    """What a walk found. `closed` are folders (with a trailing slash) whose contents are unknown."""

    entries: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    closed: list[bytes] = field(default_factory=list)


def walk(root: Path) -> Listing:
    """List the photographs below a folder, ordered by path. Symbolic links are reported, not followed."""
    listing, folders, base = Listing(), [b""], os.fsencode(root)
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(os.path.join(base, folder)) as found:
                children = list(found)
        except OSError as error:
            if not folder:
                raise PhotodupError(f"Cannot read the folder {printable(root)}: {error.strerror}.") from None
            listing.problems.append(Problem(_path(folder), f"folder cannot be read: {error.strerror}"))
            listing.closed.append(folder + b"/")
            continue
        for child in children:
            path = os.path.join(folder, child.name)
            try:
                # "._name" holds macOS attributes of "name" on foreign volumes: no image, whatever the suffix.
                is_photo = os.path.splitext(child.name)[1].lower() in SUFFIXES and not child.name.startswith(
                    b"._"
                )
                if child.is_symlink():
                    if is_photo or child.is_dir():
                        listing.problems.append(Problem(_path(path), _NOT_FOLLOWED))
                elif child.is_dir(follow_symlinks=False):
                    if child.name not in OWN_FOLDERS:
                        folders.append(path)
                elif is_photo and child.is_file(follow_symlinks=False):
                    status = child.stat(follow_symlinks=False)
                    listing.entries.append(Entry(path, status.st_size, status.st_mtime_ns))
            except FileNotFoundError:
                continue  # Gone since the folder was listed.
            except OSError as error:  # A loop of links, or a file system that answers no question.
                listing.problems.append(Problem(_path(path), error.strerror or str(error)))
    listing.entries.sort(key=lambda entry: entry.path)
    return listing


def scan(
    folder: Path | str,
    catalogue: Path | str | None = None,
    *,
    workers: int | None = None,
    progress: bool = True,
    max_pixels: int = imaging.MAX_PIXELS,
) -> ScanReport:
    """Bring the catalogue of a folder up to date; a file of unchanged size and time is not read again.

    Args:
        folder: the library; it is walked with all its sub-folders.
        catalogue: the SQLite file; default `folder/.photodup/catalogue.sqlite`.
        workers: threads (Pillow and hashlib release the lock while they work); default one per core.
        progress: show a progress bar.
        max_pixels: photographs with more are reported, from their header, and not decoded.

    Raises:
        PhotodupError: the folder is not there or not readable, or the catalogue cannot be written.
    """
    root = _existing(folder)
    with Catalogue(root, catalogue, create=True) as opened:
        return _update(opened, walk(root), workers=workers, progress=progress, max_pixels=max_pixels)


def _existing(folder: Path | str) -> Path:
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        raise PhotodupError(
            f"{printable(root)} is not a folder: give the folder that holds your photographs."
        )
    return root


def _update(
    catalogue: Catalogue, listing: Listing, *, workers: int | None, progress: bool, max_pixels: int
) -> ScanReport:
    started = time.perf_counter()
    report = ScanReport(catalogue.root, catalogue.path, n_found=len(listing.entries))
    with catalogue.transaction() as connection:
        known = {
            path: (size, mtime, status)
            for path, size, mtime, status in connection.execute(
                "SELECT path, size_bytes, mtime_ns, status FROM file"
            )
        }
        listed = {entry.path for entry in listing.entries}
        gone = [
            path
            for path, (_, _, status) in known.items()
            # Behind a folder that cannot be read today, nothing is known to be gone.
            if path not in listed and status != "missing" and not path.startswith(tuple(listing.closed))
        ]
        connection.executemany(
            "UPDATE file SET status = 'missing', reason = NULL WHERE path = ?", [(path,) for path in gone]
        )
        report.n_missing = len(gone)
    # A file that the system refused (inaccessible) is tried again: permissions change without a trace in
    # size and time. One whose bytes were no image is not.
    todo = [
        entry
        for entry in listing.entries
        if known.get(entry.path) not in [(entry.size_bytes, entry.mtime_ns, s) for s in ("ok", "unreadable")]
    ]
    report.n_unchanged = report.n_found - len(todo)

    results = _read_all(catalogue.root, todo, workers or available_cores(), max_pixels)
    batch: list[_Read] = []
    written = time.perf_counter()
    try:
        for read in tqdm(results, total=len(todo), desc="scan", unit="photo", disable=not progress):
            batch.append(read)
            if len(batch) >= _BATCH_FILES or time.perf_counter() - written > _BATCH_SECONDS:
                _write(catalogue, batch, report)
                batch, written = [], time.perf_counter()
    finally:  # Also on Ctrl-C: what was read is kept.
        results.close()
        _write(catalogue, batch, report)
    report.problems = sorted(
        listing.problems + [Problem(path, reason) for path, reason in catalogue.problems()],
        key=lambda problem: os.fsencode(problem.path),
    )
    report.seconds = time.perf_counter() - started
    return report


@dataclass(slots=True)
class _Read:
    entry: Entry
    status: str
    reason: str | None = None
    facts: PhotoFacts | None = None


def _read(root: bytes, entry: Entry, max_pixels: int) -> _Read:
    try:
        data, entry = _read_bytes(root, entry)
        return _Read(entry, "ok", facts=read_facts(data, max_pixels=max_pixels))
    except FileNotFoundError:
        return _Read(entry, "missing", "vanished while the folder was scanned")
    except imaging.ImageError as error:
        return _Read(entry, "unreadable", error.reason)
    except OSError as error:
        return _Read(entry, "inaccessible", error.strerror or str(error))
    except MemoryError:
        return _Read(entry, "inaccessible", "not enough memory to read it")


def _read_bytes(root: bytes, entry: Entry) -> tuple[bytes, Entry]:
    """Read a file once; the size and time returned are those of the bytes returned, not of the listing."""
    # O_NOFOLLOW, O_NONBLOCK: since it was listed, the name may have become a link or a pipe.
    flags = (
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    with open(os.open(os.path.join(root, entry.path), flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise imaging.ImageError(f"{status.st_size / 1e9:.1f} GB is more than any photograph")
        data = file.read(status.st_size + 1)
    if len(data) != status.st_size:
        raise OSError("changed while it was read")
    return data, Entry(entry.path, status.st_size, status.st_mtime_ns)


def _read_all(root: Path, entries: Iterable[Entry], workers: int, max_pixels: int) -> Iterator[_Read]:
    """Yield results as they come, with a bounded number of files in memory."""
    pending_entries, base = iter(entries), os.fsencode(root)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="scan")
    running: set[Future[_Read]] = set()
    try:
        while True:
            for entry in islice(pending_entries, 2 * workers - len(running)):
                running.add(pool.submit(_read, base, entry, max_pixels))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _write(catalogue: Catalogue, batch: list[_Read], report: ScanReport) -> None:
    if not batch:
        return
    with catalogue.transaction() as connection:
        connection.executemany(
            "INSERT OR IGNORE INTO content VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    f.md5,
                    f.size_bytes,
                    f.format,
                    f.width,
                    f.height,
                    f.phash,
                    f.taken_at,
                    f.camera,
                    f.exif_fields,
                )
                for f in (read.facts for read in batch)
                if f
            ],
        )
        connection.executemany(
            "INSERT INTO file (path, size_bytes, mtime_ns, status, reason, md5) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (path) DO UPDATE SET size_bytes = excluded.size_bytes, "
            "mtime_ns = excluded.mtime_ns, status = excluded.status, reason = excluded.reason, "
            "md5 = excluded.md5",
            [
                (
                    r.entry.path,
                    r.entry.size_bytes,
                    r.entry.mtime_ns,
                    r.status,
                    r.reason,
                    r.facts and r.facts.md5,
                )
                for r in batch
            ],
        )
    for read in batch:
        report.n_read += read.facts is not None
        report.bytes_read += read.entry.size_bytes if read.facts else 0
        report.n_missing += read.status == "missing"


def available_cores() -> int:
    """Return the cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _path(path: bytes) -> Path:
    return Path(os.fsdecode(path))


@dataclass
class EmbedReport:
    """What `embed_library` did. `problems` are photographs that changed, vanished or were refused."""

    model_digest: str
    is_random: bool | None = None
    n_embedded: int = 0
    n_before: int = 0
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.n_embedded / self.seconds if self.seconds else 0.0
        return (
            f"{self.n_embedded} photographs embedded ({rate:.1f} per second), {self.n_before} had an "
            f"embedding of this model, {len(self.problems)} could not be embedded"
            + ("; RANDOM WEIGHTS: fit for timings, never for decisions" if self.is_random else "")
        )


def embed_library(
    catalogue: Catalogue, embedder: "Embedder", batch: int = 32, *, progress: bool = True
) -> EmbedReport:
    """Embed every content that has no vector of this model yet; each batch is written when it is done.

    A file that changed since the scan is left out: its vector would be stored under the wrong content.

    Raises:
        PhotodupError: the backend does not say which model it serves, or stops answering; the batches before
            that are kept.
    """
    started = time.perf_counter()
    if not embedder.model_digest:
        raise PhotodupError(
            f"The backend {embedder.backend} does not say which model it serves, so its embeddings could not "
            "be told from those of another: use a server started by photodup."
        )
    report = EmbedReport(embedder.model_digest, is_random=embedder.is_random)
    todo = catalogue.missing_embeddings(embedder.model_digest)
    report.n_before = sum(m.n_embeddings for m in catalogue.models() if m.digest == embedder.model_digest)
    root = os.fsencode(catalogue.root)
    with tqdm(total=len(todo), desc="embed", unit="photo", disable=not progress) as bar:
        for start in range(0, len(todo), batch):
            chosen = todo[start : start + batch]
            images: dict[str, bytes] = {}
            for digest, path in chosen:
                try:
                    data, _ = _read_bytes(root, Entry(os.fsencode(path), 0, 0))
                except (OSError, imaging.ImageError) as error:
                    report.problems.append(Problem(path, getattr(error, "strerror", None) or str(error)))
                    continue
                if md5(data) == digest:
                    images[digest] = data
                else:
                    report.problems.append(Problem(path, "changed since the scan: scan again"))
            _embed_batch(catalogue, embedder, images, dict(chosen), report)
            bar.update(len(chosen))
    report.seconds = time.perf_counter() - started
    return report


def _embed_batch(
    catalogue: Catalogue,
    embedder: "Embedder",
    images: dict[str, bytes],
    paths: dict[str, Path],
    report: EmbedReport,
) -> None:
    if not images:
        return
    try:
        vectors = embedder.embed(list(images.values()))
    except imaging.ImageError as error:  # One bad photograph must not cost the others of its batch.
        index = getattr(error, "index", None)
        if index is None and len(images) == 1:
            index = 0
        if index is None:
            for digest, data in images.items():
                _embed_batch(catalogue, embedder, {digest: data}, paths, report)
        else:
            bad = list(images)[index]
            report.problems.append(Problem(paths[bad], error.reason))
            rest = {digest: data for digest, data in images.items() if digest != bad}
            _embed_batch(catalogue, embedder, rest, paths, report)
        return
    catalogue.register_model(
        embedder.model_digest,
        name=embedder.model_name or embedder.backend,
        dim=vectors.shape[1],
        is_random=embedder.is_random,
    )
    catalogue.store_embeddings(embedder.model_digest, list(images), vectors)
    report.n_embedded += len(images)


def scan_apple_photos(
    library: Path | str | None = None,
    catalogue: Path | str = "~/Pictures/photodup-apple/catalogue.sqlite",
    *,
    workers: int | None = None,
    progress: bool = True,
) -> ScanReport:
    """Scan the originals of an Apple Photos library on macOS; the library is only read.

    Needs the extra `apple` (osxphotos). Originals that are only in iCloud are reported as problems. The
    catalogue lies outside the library, which belongs to Photos. Not run here (needs macOS): written against
    osxphotos 0.77.

    Raises:
        PhotodupError: not on macOS, or osxphotos is not installed.
    """
    try:
        import osxphotos
    except ImportError:
        raise PhotodupError(
            "Reading an Apple Photos library needs macOS and osxphotos: pip install 'photodup[apple]'."
        ) from None
    database = osxphotos.PhotosDB(*([str(Path(library).expanduser())] if library else []))
    root = Path(database.library_path).resolve()
    listing, names = Listing(), {}
    for photo in database.photos(movies=False):
        reason = None
        if photo.path is None:
            reason = "only in iCloud: download it in Photos first"
        elif photo.isreference:
            reason = "lies outside the Photos library: scan its folder"
        else:
            try:
                path = os.fsencode(Path(photo.path).resolve().relative_to(root))
                status = os.stat(photo.path)
            except (OSError, ValueError) as error:
                reason = str(error)
        if reason:
            listing.problems.append(Problem(Path(photo.original_filename or photo.uuid), reason))
            continue
        listing.entries.append(Entry(path, status.st_size, status.st_mtime_ns))
        names[path] = (photo.uuid, photo.original_filename)
    listing.entries.sort(key=lambda entry: entry.path)
    with Catalogue(root, Path(catalogue).expanduser(), create=True) as opened:
        report = _update(opened, listing, workers=workers, progress=progress, max_pixels=imaging.MAX_PIXELS)
        with opened.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO apple_photo (file, uuid, original_filename) "
                "SELECT id, ?, ? FROM file WHERE path = ?",
                [(uuid, name, path) for path, (uuid, name) in names.items()],
            )
    return report
