"""The folder behind the page: its session once it is open, and the long work that a person can start there.

Long work is one task at a time, in a thread of its own, with its progress and a clean stop.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from photodup.core.errors import PhotodupError
from photodup.core.extras import missing_extra
from photodup.core.names import escaped
from photodup.core.progress import watched_by
from photodup.photos.embed.batches import embed_library
from photodup.photos.embed.choose import EncoderRequest, connected
from photodup.photos.groups.by_settings import tiers_by_settings
from photodup.photos.groups.model_thresholds import choose_model
from photodup.photos.groups.results import Tiers
from photodup.photos.library import apple
from photodup.photos.library.catalogue import Catalogue, Model
from photodup.photos.library.scan import ScanReport, existing_folder, scan
from photodup.photos.library.settings import folders_there, load_settings, save_settings
from photodup.photos.review.session import ReviewSession
from photodup.photos.state.own_folder import locate_catalogue

_GROUPING = "Finding copies"
# What the bars of the parts that work call themselves, in the words of the page.
_WORDS = {
    "scan": "Reading the photos",
    "embed": "Looking at what each photo shows",
    "compare": "Laying pictures that look alike over each other",
    "choose": "Choosing which photo of each group to keep",
    "beside": "Reading what lies beside the photos",
    "move": "Moving to the trash",
    "restore": "Putting files back",
    "delete": "Deleting for good",
}
_SURE_AFTER_S = 3.0  # before that, a guess of the time that is left would be wrong more often than right


class Stopped(BaseException):
    """Somebody asked the work to stop. Like Ctrl-C it is no error, and nothing may take it for one."""


@dataclass(frozen=True)
class Finished:
    """What a task led to.

    Attributes:
        path: the address of the page to show; empty for a page that says the sentence.
        title: of that page.
        sentence: what was done, shown there or on top of the page at `path`.
        notes: more sentences, one for each file that could not be dealt with.
    """

    path: str = ""
    title: str = ""
    sentence: str = ""
    notes: tuple[str, ...] = ()


class ReviewTask:
    """One piece of long work, and how far it is.

    Args:
        title: what is done, in words.
        do: does it; it runs in a thread of its own and calls `step` between its parts.
        can_stop: whether it may be stopped between two photos; what moves files may not.
        is_exclusive: whether the groups change under it, so that no other page can be shown meanwhile.
    """

    def __init__(
        self,
        title: str,
        do: Callable[["ReviewTask"], "Finished"],
        *,
        can_stop: bool = True,
        is_exclusive: bool = True,
    ) -> None:
        self.title, self.doing, self.can_stop, self.is_exclusive = title, title, can_stop, is_exclusive
        self.done = self.total = 0
        self.error: str | None = None
        self.finished: Finished | None = None
        self.ended = threading.Event()
        self._do, self._stop = do, threading.Event()
        self._step_begun = time.monotonic()

    def step(self, doing: str, *, is_exclusive: bool = False) -> None:
        """Say what is done now, before it is known how much there is.

        Args:
            doing: in words.
            is_exclusive: from now on, if it was not before.

        Raises:
            Stopped: somebody asked for it.
        """
        self.is_exclusive |= is_exclusive
        self.doing, self.done, self.total = doing, 0, 0
        self._check()

    def stop(self) -> None:
        """Ask it to stop at the next photo."""
        if self.can_stop:
            self._stop.set()

    @property
    def is_stopping(self) -> bool:
        """Whether somebody asked it to stop."""
        return self._stop.is_set()

    @property
    def time_left(self) -> str:
        """How long the step at hand will take, in words; empty while that is not known."""
        spent = time.monotonic() - self._step_begun
        if not self.done or spent < _SURE_AFTER_S or self.done >= self.total:
            return ""
        left = spent / self.done * (self.total - self.done)
        if left < 60:
            return "less than a minute left"
        minutes = round(left / 60)
        hours = round(left / 3600)
        if minutes < 90:
            return f"about {minutes} minute{'s' if minutes > 1 else ''} left"
        return f"about {hours} hours left"

    def run(self) -> None:
        """Do it; what it fails with becomes one sentence."""
        try:
            with watched_by(self._tell):
                self.finished = self._do(self)
        except Stopped:
            note = "The work done so far is kept; start again to continue it."
            self.finished = Finished(title="Stopped", sentence=note)
        except PhotodupError as error:
            self.error = str(error)
        except (OSError, MemoryError) as error:
            self.error = f"{self.title} failed ({getattr(error, 'strerror', None) or type(error).__name__}): try it again."
        except (
            Exception
        ) as error:  # a library is missing, or a mistake of ours: the page must not wait for ever
            lacks = missing_extra(error, "serve") if isinstance(error, ImportError) else None
            if not lacks:
                traceback.print_exc(file=sys.stderr)
            fault = f"by a fault in photodup ({type(error).__name__}); the terminal has the details."
            self.error = lacks or f"{self.title} failed {fault}"
        finally:
            self.ended.set()

    def _tell(self, desc: str, n_done: int, total: int) -> None:
        if n_done == 0:
            self._step_begun = time.monotonic()
        self.doing, self.done, self.total = _WORDS.get(desc, self.title), n_done, total
        self._check()

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped


class TaskRunner:
    """The task that is running, and the last one that has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last: ReviewTask | None = None

    @property
    def running(self) -> ReviewTask | None:
        """The task that is running; None if none is."""
        task = self.last
        return task if task and not task.ended.is_set() else None

    def begin(self, task: ReviewTask) -> None:
        """Start a task in a thread of its own.

        Raises:
            PhotodupError: another one is running.
        """
        with self._lock:
            if running := self.running:
                doing = running.title[0].lower() + running.title[1:]
                raise PhotodupError(f"photodup is still busy ({doing}): wait until that is done, or stop it.")
            self.last = task
            threading.Thread(target=task.run, name="review work", daemon=True).start()

    def stop(self, finish_s: float, stop_s: float) -> None:
        """End what is running.

        Args:
            finish_s: how long to wait for what may not be stopped.
            stop_s: how long for what may. What waits for a server or a download hears nothing until that answers;
                it has written what was done before.
        """
        if task := self.running:
            task.stop()
            task.ended.wait(stop_s if task.can_stop else finish_s)


@dataclass(frozen=True)
class Encoders(EncoderRequest):
    """Who looks at what the photos show: as the command line says, or an encoder that the page offers.

    Attributes:
        more: name in words -> makes the weights of another encoder ready and returns them.
        small_model: what the model of these is called in a catalogue; where it was used before, it is offered first.
    """

    more: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    small_model: str = ""


NO_MORE_ENCODERS = Encoders()


class ReviewedFolder:
    """A folder of photographs, scanned or not yet.

    Args:
        root: the folder.
        catalogue: its catalogue, if elsewhere.
        find: makes the groups; default by the library's settings and `options`.
        encoders: who looks at what the photos show.
        protect: folders to protect from now on, beside those of the settings.
        not_within: folders not to compare with themselves from now on, beside those of the settings.
        only: the folders that are looked at, relative to `root`; empty for all of it.
        untouched: folders from which nothing is suggested in any run, relative to `root`.
        **options: of `tiers_by_settings`: `keep`, `folders`, `digest`, `allow_random`, `threshold`.

    Attributes:
        only: the folders that are looked at, relative to `root`; empty for all of it.
        wishes: which of photos that are equal as pictures to keep, for this run: some of `WISHES`.
        never_from: folders that are protected for this run.
        session: what is reviewed; None until it is open.
        work: the long work.
        n_new: photos that the library's encoder has not looked at yet.

    Raises:
        PhotodupError: there is no such folder.
    """

    def __init__(
        self,
        root: Path,
        catalogue: Path | None = None,
        *,
        find: Callable[[Catalogue], Tiers] | None = None,
        encoders: Encoders = NO_MORE_ENCODERS,
        protect: Sequence[str] | None = None,
        not_within: Sequence[str] | None = None,
        only: Sequence[str] = (),
        untouched: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.only, self._untouched = only, untouched
        self.root, self.encoders = existing_folder(root), encoders
        self._catalogue, self._options = catalogue, options
        self._new = {"protected": folders_there(self.root, protect or ())}
        self._new["not_within"] = folders_there(self.root, not_within or ())
        self.wishes: tuple[str, ...] = ()
        self.never_from: tuple[str, ...] = ()
        self._find = find or self._by_settings
        self.session: ReviewSession | None = None
        self.work = TaskRunner()
        self.n_new = 0

    @property
    def was_scanned(self) -> bool:
        """True if the catalogue exists and knows photos of each folder under review."""
        is_there = os.path.isfile(locate_catalogue(self.root, self._catalogue)[0])
        if not is_there or not self.only:
            return is_there
        with Catalogue(self.root, self._catalogue) as opened:
            return not opened.unknown(self.only)

    def check(self) -> None:
        """Look at what can be wrong before anything long begins; an unscanned folder is right.

        Raises:
            PhotodupError: the catalogue or the settings cannot be used, or the model has to be named.
        """
        if self.was_scanned:
            with Catalogue(self.root, self._catalogue) as opened:
                load_settings(opened.own.path)
                digest = self._options.get("digest")
                choose_model(opened, digest, allow_random=bool(self._options.get("allow_random")))

    def open(self) -> ReviewSession:
        """Open it, or group again what is open.

        Raises:
            PhotodupError: it was not scanned, or cannot be opened.
        """
        if self.session is None:
            if any(self._new.values()):
                self._remember_folders()
            self.session = ReviewSession(self.root, self._catalogue, self._find)
        else:
            self.session.refresh()
        model = self.session.tiers.model
        with self.session.open() as catalogue:
            self.n_new = len(catalogue.missing_embeddings(model.digest)) if model else 0
        return self.session

    def _remember_folders(self) -> None:
        with Catalogue(self.root, self._catalogue) as opened:
            stored = load_settings(opened.own.path)
            merged = {name: {*getattr(stored, name), *new} for name, new in self._new.items()}
            changed: dict[str, Any] = {name: tuple(sorted(folders)) for name, folders in merged.items()}
            save_settings(opened.own.path, replace(stored, **changed))

    def _by_settings(self, opened: Catalogue) -> Tiers:
        never_from = (*self.never_from, *self._untouched)
        options = self._options | {"wishes": self.wishes, "never_from": never_from, "only": self.only}
        return tiers_by_settings(opened, **options)

    # ---- what a person can start -------------------------------------------------------------------------

    def opening(self) -> ReviewTask:
        """Return the task that opens the folder for the first time."""
        return ReviewTask(_GROUPING, self._opened)

    def _opened(self, task: ReviewTask) -> Finished:
        task.step(_GROUPING, is_exclusive=True)
        self.open()
        return Finished("/")

    def scanning(self) -> ReviewTask:
        """Return the task that looks for photos: new ones, changed ones, and those that are gone."""
        return ReviewTask("Looking for photos", self._scanned, is_exclusive=False)

    def _scanned(self, task: ReviewTask) -> Finished:
        task.step("Looking for photos in all folders")
        if self.session is not None and not self.session.trash.moves_files:
            report = apple.scan_apple_photos(
                self.root, self._catalogue or apple.DEFAULT_CATALOGUE, progress=False
            )
        else:
            report = scan(self.root, self._catalogue, only=self.only, progress=False)
        self._opened(task)
        return Finished("/", sentence=_said(report), notes=(*map(str, report.problems), *report.left_out))

    def finding_scenes(self, name: str = "") -> ReviewTask:
        """Return the task that looks at what the photos show, so that similar scenes are found.

        Args:
            name: of one of `encoders.more`; empty for the one that the flags, the environment or the settings say.

        Raises:
            PhotodupError: there is no encoder of that name.
        """
        if name and name not in self.encoders.more:
            raise PhotodupError("There is no such encoder: choose one that the page offers.")
        return ReviewTask("Finding similar scenes", partial(self._scenes_found, name), is_exclusive=False)

    def _scenes_found(self, name: str, task: ReviewTask) -> Finished:
        request: EncoderRequest = self.encoders
        if name:
            task.step("Getting ready to look")
            request = EncoderRequest(weights=self.encoders.more[name](), endpoints=self.encoders.endpoints)
        task.step("Getting ready to look")
        with Catalogue(self.root, self._catalogue) as opened:
            models = [model for model in opened.models() if model.n_embeddings]
            digests = [model.digest for model in models]
            with connected(load_settings(opened.own.path), request, digests) as (embedder, _):
                self._require_one_model(embedder, models)
                report = embed_library(opened, embedder, progress=False)
        self._opened(task)
        n = report.n_embedded
        sentence = f"{n:,} photo{' was' if n == 1 else 's were'} looked at."
        return Finished("/?tier=similar", sentence=sentence, notes=tuple(map(str, report.problems)))

    def _require_one_model(self, embedder: Any, models: list[Model]) -> None:
        """Refuse an encoder whose answers could not be used here: nothing may be written that locks the page out."""
        name = escaped(embedder.model_name or embedder.backend)
        if embedder.is_random is not False and not self._options.get("allow_random"):
            raise PhotodupError(
                f"The encoder within reach ({name}) was never trained, or does not say so, and would call any two "
                "photos similar: choose another one here or in the settings."
            )
        digest = embedder.model_digest or ""
        other_models = [m for m in models if m.is_random is False and m.digest != digest]
        required = self._options.get("digest")
        if (other_models and not required) or (required and not digest.startswith(required)):
            expected = escaped(other_models[0].name) if other_models else required
            raise PhotodupError(
                f"The similar scenes here were found with {expected}, and the encoder within reach is {name}, which "
                "cannot go on with that: choose the same one again, here or in the settings."
            )

    def show_from(self, threshold: float | None) -> None:
        """Show similar scenes from another threshold on, now and from now on.

        Args:
            threshold: smallest cosine; None for the model's own.

        Raises:
            PhotodupError: it is none, or nothing is open.
        """
        if self.session is None:
            raise PhotodupError("Nothing is open yet: look for photos first.")
        changed = replace(self.session.settings, threshold=threshold)
        self._options["threshold"] = None  # what the command line said counts until another is chosen
        self.session.change(changed)

    def wish(self, wishes: Sequence[str], never_from: Sequence[str]) -> None:
        """Group again by what is wished for in this run; nothing of it is stored.

        Args:
            wishes: some of `WISHES`.
            never_from: folders of the library from which nothing is to go.
        """
        self.wishes, self.never_from = tuple(wishes), tuple(never_from)
        self.open()


def _said(report: ScanReport) -> str:
    """Say in words what a scan found."""
    n_present = report.n_unchanged + report.n_read
    parts = [f"{n_present:,} photo{' is' if n_present == 1 else 's are'} here"]
    if report.n_read:
        parts.append(f"{report.n_read:,} of them new or changed")
    if report.n_missing:
        parts.append(f"{report.n_missing:,} gone since the last look")
    return f"{', '.join(parts)}."
