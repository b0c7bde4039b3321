"""The folder behind the page: its session once it is open, and its long work.

One task runs at a time, in its own thread, with progress and a clean stop.
"""

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.core.errors import PhotodupError
from photodup.core.extras import missing_extra
from photodup.core.names import escaped
from photodup.core.progress import unseen, watched_by
from photodup.photos.embed.batches import embed_library
from photodup.photos.embed.choose import EncoderRequest, connect_encoder
from photodup.photos.library.apple import rescan
from photodup.photos.library.catalogue import Catalogue, Model, is_scanned
from photodup.photos.library.scan import existing_folder
from photodup.photos.library.settings import check_folders, load_settings, save_settings
from photodup.photos.review.session import ReviewSession
from photodup.photos.search.models import choose_model

if TYPE_CHECKING:
    from photodup.embedding.client.embedder import Embedder

OPENING = "Finding copies"
# Progress bars' names in the words of the page; others are called by their task.
_WORDS = {
    "scan": "Reading the photos",
    "embed": "Looking at what each photo shows",
    "compare": "Laying pictures that look alike over each other",
    "choose": "Choosing which photo of each group to keep",
    "beside": "Reading what lies beside the photos",
}
_SURE_AFTER_S = 3.0  # earlier estimates of the time left are mostly wrong


class Stopped(BaseException):
    """The user stopped the work. A BaseException like Ctrl-C, so that nothing handles it as an error."""


@dataclass(frozen=True)
class Finished:
    """The result of a task.

    Attributes:
        path: address of the page to show; empty for a page with the sentence.
        title: of that page.
        sentence: the outcome, shown there or on top of the page at `path`.
        notes: one sentence for each file that failed.
    """

    path: str = ""
    title: str = ""
    sentence: str = ""
    notes: tuple[str, ...] = ()


class ReviewTask:
    """One piece of long work, and its progress.

    Args:
        title: shown on the page.
        do: the work, run in its own thread; it calls `step` between its parts.
        can_stop: it may be stopped between two photos; work that moves files may not.
        is_exclusive: it changes the groups, so that no other page can be shown.
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

    def step(self, doing: str) -> None:
        """Begin a part of the work, of unknown length.

        Raises:
            Stopped: the user stopped it.
        """
        self.doing, self.done, self.total = doing, 0, 0
        self._check()

    def stop(self) -> None:
        """Stop it at the next photo."""
        if self.can_stop:
            self._stop.set()

    @property
    def is_stopping(self) -> bool:
        """Whether the user stopped it."""
        return self._stop.is_set()

    @property
    def time_left(self) -> str:
        """Time left of the current part, in words; empty while unknown."""
        if self.is_stopping:
            return "stopping after this photo"
        spent_s = time.monotonic() - self._step_begun
        if not self.done or spent_s < _SURE_AFTER_S or self.done >= self.total:
            return ""
        minutes = round(spent_s / self.done * (self.total - self.done) / 60)
        if minutes < 2:
            return "about a minute left" if minutes else "less than a minute left"
        if minutes < 90:
            return f"about {minutes} minutes left"
        return f"about {round(minutes / 60)} hours left"

    def run(self) -> None:
        """Run it; an error becomes one sentence."""
        try:
            with watched_by(self._report_progress):
                self.finished = self._do(self)
        except Stopped:
            note = "The work done so far is kept; start again to continue it."
            self.finished = Finished(title="Stopped", sentence=note)
        except PhotodupError as error:
            self.error = str(error)
        except (OSError, MemoryError) as error:
            self.error = f"{self.title} failed ({getattr(error, 'strerror', None) or type(error).__name__}): try it again."
        except Exception as error:  # a missing library or a bug: the page must not wait for ever
            lacks = missing_extra(error, "serve") if isinstance(error, ImportError) else None
            if not lacks:
                traceback.print_exc(file=sys.stderr)
            fault = f"by a fault in photodup ({type(error).__name__}); the terminal has the details."
            self.error = lacks or f"{self.title} failed {fault}"
        finally:
            self.ended.set()

    def _report_progress(self, desc: str, n_done: int, total: int) -> None:
        if n_done == 0:
            self._step_begun = time.monotonic()
        self.doing, self.done, self.total = _WORDS.get(desc, self.title), n_done, total
        self._check()

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped


class TaskRunner:
    """Runs one task at a time; `last` is the running task, or the last one that ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last: ReviewTask | None = None

    @property
    def running(self) -> ReviewTask | None:
        """The running task, or None."""
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
            finish_s: longest wait for work that must not be stopped.
            stop_s: longest wait for other work. Work that waits for a server or download cannot stop until that answers,
                but has written its earlier results.
        """
        if task := self.running:
            task.stop()
            task.ended.wait(stop_s if task.can_stop else finish_s)


class ReviewedFolder:
    """A folder of photographs, scanned or not.

    Args:
        root: the folder.
        catalogue: its catalogue, if elsewhere.
        encoder: for similar scenes; default as the environment says.
        small_encoder: prepares and returns the weights of a small encoder, which the page then offers as well.
        protect: more folders to protect; added to the settings.
        not_within: more folders whose photos are not compared with each other; added to the settings.
        **grouping: options of `find_tiers`.

    Attributes:
        only: the folders to look at, relative to `root`; empty for all.
        session: None until it is open.
        work: the long work.

    Raises:
        PhotodupError: there is no such folder.
    """

    def __init__(
        self,
        root: Path,
        catalogue: Path | None = None,
        *,
        encoder: EncoderRequest | None = None,
        small_encoder: Callable[[], str] | None = None,
        protect: Sequence[str] = (),
        not_within: Sequence[str] = (),
        **grouping: Any,
    ) -> None:
        self.root, self._catalogue = existing_folder(root), catalogue
        self.encoder, self.small_encoder = encoder or EncoderRequest(), small_encoder
        self._protect, self._not_within = (check_folders(self.root, names) for names in (protect, not_within))
        self._grouping, self.only = grouping, grouping.get("only", ())
        self.session: ReviewSession | None = None
        self.work = TaskRunner()

    @property
    def was_scanned(self) -> bool:
        """Whether the catalogue exists and has photos of each reviewed folder."""
        return is_scanned(self.root, self._catalogue, self.only)

    def check(self) -> None:
        """Check catalogue, settings and model before long work; an unscanned folder is fine.

        Raises:
            PhotodupError: the catalogue or the settings are invalid, or the model must be named.
        """
        if self.was_scanned:
            with Catalogue(self.root, self._catalogue) as opened:
                load_settings(opened.own.path)
                choose_model(opened, self._grouping.get("digest"))

    def open(self, seconds: float = math.inf) -> ReviewSession:
        """Open the folder, or group again if it is open.

        Args:
            seconds: longest time for comparing; groups may be missing then.

        Raises:
            PhotodupError: it was not scanned, or cannot be opened.
        """
        if self.session is None:
            if self._protect or self._not_within:
                with Catalogue(self.root, self._catalogue) as opened:
                    stored = load_settings(opened.own.path)
                    protected = tuple(sorted({*stored.protected, *self._protect}))
                    not_within = tuple(sorted({*stored.not_within, *self._not_within}))
                    changed = replace(stored, protected=protected, not_within=not_within)
                    save_settings(opened.own.path, changed)
            self.session = ReviewSession(self.root, self._catalogue, seconds, **self._grouping)
        else:
            self.session.refresh(seconds)
        return self.session

    # ---- what a person can start -------------------------------------------------------------------------

    def show_groups(self, task: ReviewTask) -> Finished:
        """Open the folder or group it again, the surest groups first, and let the page show these meanwhile."""
        task.is_exclusive = True
        task.step(OPENING)
        session = self.open(0)

        def show() -> None:
            task.is_exclusive = not session.items  # there is something to look at meanwhile

        if not session.tiers.is_complete:
            show()
            session.look_further(show)
        return Finished("/")

    def look_for_photos(self, task: ReviewTask) -> Finished:
        """Find new photos, changed ones, and those that are gone."""
        task.step("Looking for photos in all folders")
        began_s = time.monotonic()
        again_s = began_s + 1

        def show() -> None:
            """Show the copies of the same bytes that are known, as soon as there is one; look again after twice the time."""
            nonlocal again_s
            if time.monotonic() >= again_s and not (self.session and self.session.items):
                with unseen():
                    task.is_exclusive = not self.open(0).items
                again_s += time.monotonic() - began_s

        report = rescan(self.root, self._catalogue, self.only, progress=False, on_more=show)
        self.show_groups(task)
        return Finished("/", sentence=str(report), notes=tuple(map(str, report.problems)))

    def find_scenes(self, task: ReviewTask, *, by_small_encoder: bool = False) -> Finished:
        """Embed the photos to find similar scenes, perhaps by the small encoder."""
        task.step("Getting ready to look")
        request = self.encoder
        if by_small_encoder and self.small_encoder:
            request = EncoderRequest(weights=self.small_encoder())
        with (
            Catalogue(self.root, self._catalogue) as opened,
            connect_encoder(opened, request) as (embedder, _),
        ):
            self._require_one_model(embedder, opened.models())
            report = embed_library(opened, embedder, progress=False)
        self.show_groups(task)
        return Finished("/?tier=similar", sentence=str(report), notes=tuple(map(str, report.problems)))

    def _require_one_model(self, embedder: "Embedder", models: list[Model]) -> None:
        """Refuse an encoder whose embeddings cannot be used here."""
        name = escaped(embedder.model_name or embedder.backend)
        if embedder.is_random is not False:
            raise PhotodupError(
                f"The encoder within reach ({name}) was never trained, or does not say so, and would call any two "
                "photos similar: choose another one here or in the settings."
            )
        digest = embedder.model_digest or ""
        other_models = [m for m in models if m.n_embeddings and m.is_random is False and m.digest != digest]
        required = self._grouping.get("digest")
        if (other_models and not required) or (required and not digest.startswith(required)):
            expected = escaped(other_models[0].name) if other_models else required
            raise PhotodupError(
                f"The similar scenes here were found with {expected}, and the encoder within reach is {name}, which "
                "cannot go on with that: choose the same one again, here or in the settings."
            )
