"""The folder behind the page: its session once it is open, and the long work that a person can start there."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from photodup.errors import PhotodupError
from photodup.names import escaped
from photodup.photos.embed.choose import EncoderRequest, choose
from photodup.photos.embed.embed import embed_library
from photodup.photos.groups.by_settings import tiers_by_settings, with_bar
from photodup.photos.groups.model_thresholds import choose_model
from photodup.photos.groups.results import Tiers
from photodup.photos.library import apple
from photodup.photos.library.catalogue import Catalogue, Model
from photodup.photos.library.scan import ScanReport, existing_folder, scan
from photodup.photos.library.settings import load_settings
from photodup.photos.review.session import ReviewSession
from photodup.photos.review.work import Finished, Task, TaskRunner
from photodup.photos.state.own_folder import locate_catalogue

_GROUPING = "Finding copies"


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
        **options: of `tiers_by_settings`: `keep`, `folders`, `digest`, `allow_random`, `threshold`.

    Attributes:
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
        **options: Any,
    ) -> None:
        self.root, self.encoders = existing_folder(root), encoders
        self._catalogue, self._find, self._options = catalogue, find, options
        self.session: ReviewSession | None = None
        self.work = TaskRunner()
        self.n_new = 0

    @property
    def was_scanned(self) -> bool:
        """Whether there is a catalogue to open."""
        return os.path.isfile(locate_catalogue(self.root, self._catalogue)[0])

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
            self.session = ReviewSession(self.root, self._catalogue, self._find or self._tiers)
        else:
            self.session.refresh()
        self._count_new(self.session)
        return self.session

    def _tiers(self, catalogue: Catalogue) -> Tiers:
        return tiers_by_settings(catalogue, progress=with_bar, **self._options)

    def _count_new(self, session: ReviewSession) -> None:
        with session.open() as catalogue:
            model = session.tiers.model
            self.n_new = len(catalogue.missing_embeddings(model.digest)) if model else 0

    # ---- what a person can start -------------------------------------------------------------------------

    def opening(self) -> Task:
        """Return the task that opens the folder for the first time."""
        return Task(_GROUPING, self._opened)

    def _opened(self, task: Task) -> Finished:
        task.step(_GROUPING, is_exclusive=True)
        self.open()
        return Finished("/")

    def scanning(self) -> Task:
        """Return the task that looks for photos: new ones, changed ones, and those that are gone."""
        return Task("Looking for photos", self._scanned, is_exclusive=False)

    def _scanned(self, task: Task) -> Finished:
        task.step("Looking for photos in all folders")
        if self.session is not None and not self.session.trash.moves_files:
            report = apple.scan_apple_photos(
                self.root, self._catalogue or apple.DEFAULT_CATALOGUE, progress=False
            )
        else:
            report = scan(self.root, self._catalogue, progress=False)
        self._opened(task)
        return Finished("/", sentence=_said(report), notes=tuple(map(str, report.problems)))

    def finding_scenes(self, name: str = "") -> Task:
        """Return the task that looks at what the photos show, so that similar scenes are found.

        Args:
            name: of one of `encoders.more`; empty for the one that the flags, the environment or the settings say.

        Raises:
            PhotodupError: there is no encoder of that name.
        """
        if name and name not in self.encoders.more:
            raise PhotodupError("There is no such encoder: choose one that the page offers.")
        return Task("Finding similar scenes", partial(self._scenes_found, name), is_exclusive=False)

    def _scenes_found(self, name: str, task: Task) -> Finished:
        request: EncoderRequest = self.encoders
        if name:
            task.step("Getting ready to look")
            request = EncoderRequest(weights=self.encoders.more[name](), endpoints=self.encoders.endpoints)
        task.step("Getting ready to look")
        with Catalogue(self.root, self._catalogue) as opened:
            models = [model for model in opened.models() if model.n_embeddings]
            digests = [model.digest for model in models]
            choice = choose(load_settings(opened.own.path), request, digests)
            with choice.connect() as embedder:
                self._require_one_model(embedder, models)
                report = embed_library(opened, embedder, progress=False)
        self._opened(task)
        n = report.n_embedded
        said = f"{n:,} photo{' was' if n == 1 else 's were'} looked at."
        return Finished("/?tier=similar", sentence=said, notes=tuple(map(str, report.problems)))

    def _require_one_model(self, embedder: Any, models: list[Model]) -> None:
        """Refuse an encoder whose answers could not be used here: nothing may be written that locks the page out."""
        name = escaped(embedder.model_name or embedder.backend)
        if embedder.is_random is not False and not self._options.get("allow_random"):
            raise PhotodupError(
                f"The encoder within reach ({name}) was never trained, or does not say so, and would call any two "
                "photos similar: choose another one here or in the settings."
            )
        digest = embedder.model_digest or ""
        others = [m for m in models if m.is_random is False and m.digest != digest]
        wanted = self._options.get("digest")
        if (others and not wanted) or (wanted and not digest.startswith(wanted)):
            known = escaped(others[0].name) if others else wanted
            raise PhotodupError(
                f"The similar scenes here were found with {known}, and the encoder within reach is {name}, which "
                "cannot go on with that: choose the same one again, here or in the settings."
            )

    def showing_from(self, threshold: float | None) -> Task:
        """Return the task that shows similar scenes from another threshold on, now and from now on.

        Args:
            threshold: smallest cosine; None for the model's own.

        Raises:
            PhotodupError: it is none, or nothing is open.
        """
        if self.session is None:
            raise PhotodupError("Nothing is open yet: look for photos first.")
        changed = replace(self.session.settings, threshold=threshold)

        def change(task: Task) -> Finished:
            self._options["threshold"] = None  # what the command line said counts until another is chosen
            assert self.session is not None
            self.session.change(changed)
            return Finished("/?tier=similar")

        return Task("Finding similar scenes", change, can_stop=False)


def _said(report: ScanReport) -> str:
    """Say in words what a scan found."""
    there = report.n_unchanged + report.n_read
    parts = [f"{there:,} photo{' is' if there == 1 else 's are'} here"]
    if report.n_read:
        parts.append(f"{report.n_read:,} of them new or changed")
    if report.n_missing:
        parts.append(f"{report.n_missing:,} gone since the last look")
    return f"{', '.join(parts)}."
