"""The checks of an embedding server and their verdicts: right, tolerated, wrong or dead.

Distances are in units of the *spread*: how far embeddings of unlike pictures lie from their mean. Answers that lie more than
half the way from the reference to a known deviation's embeddings have that deviation, even if rounding moved them farther.
Other answers may lie as far from the reference as their precision explains.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from photodup.bench import Columns
from photodup.bench.anyurl import kserve
from photodup.bench.anyurl.target import Target
from photodup.bench.verify import pictures
from photodup.bench.verify.pictures import PictureCheck, Views
from photodup.bench.verify.replies import ANSWERED, BUSY, REFUSED, PictureServer, Reply, picture_server
from photodup.core.errors import PhotodupError
from photodup.core.settings import environment
from photodup.embedding import imaging
from photodup.embedding.engines.encoder import load_model
from photodup.embedding.engines.model import PRECISIONS, ImageModel

RIGHT, TOLERATED, WRONG, DEAD, NOT_ASKED = "right", "tolerated", "wrong", "dead", "not asked"
# Precisions: the least median cosine with FP32, and the largest distance of one embedding from it, in spreads.
# ViT-B/32 in OpenVINO's BF16 has 0.99995 and 0.04; in its INT8 0.9994 and 0.31.
CLASSES = (("FP32", 0.99999, 0.02), ("BF16 or FP16", 0.9995, 0.15), ("INT8", 0.97, 0.75))
_CLASS_OF = {"fp32": 0, "tf32": 1, "bf16": 1, "fp16": 1, "int8": 2}
# A deviation is looked for if it would move embeddings by `_LEAST_SHIFT` spreads or more. It can be distinguished from
# rounding if that is at least `_LEAST_SHARE` of how far the answers moved.
_LEAST_SHIFT, _LEAST_SHARE = 1e-3, 0.4
_LENGTH_TOLERANCE = 0.01  # largest difference of an embedding's length from 1
IN_FLIGHT, N_CONCURRENT, MAX_IMAGES = 8, 48, 8


@dataclass(frozen=True)
class CheckRow:
    """One row: what was checked, the verdict, and why.

    Attributes:
        cosine: the lowest between an answer and its reference; None where none was compared.
    """

    name: str
    verdict: str
    words: str
    cosine: float | None = None


@dataclass(frozen=True)
class VerifiedServer:
    """All rows about a server, and what its embeddings were compared with."""

    url: str
    protocol: str
    reference: str
    rows: tuple[CheckRow, ...]

    def has_failed(self, *, strict: bool = False) -> bool:
        return any(row.verdict in (WRONG, DEAD) or (strict and row.verdict == TOLERATED) for row in self.rows)

    def sentence(self) -> str:
        counts = Counter(row.verdict for row in self.rows)
        order = (RIGHT, TOLERATED, WRONG, DEAD, NOT_ASKED)
        return f"{self.url}: {', '.join(f'{counts[v]} {v}' for v in order if counts[v])}."

    def as_record(self) -> Columns:
        return {**asdict(self), "sentence": self.sentence()}


def verify_server(
    target: Target,
    weights: str | None = None,
    *,
    precision: str | None = None,
    is_hostile: bool = True,
    max_images: int = MAX_IMAGES,
    show: Callable[[str], object] = lambda name: None,
) -> VerifiedServer:
    """Check a server.

    Args:
        weights: of the reference, as `load_model` takes them; default those that the server names.
        precision: that it should compute in; default what it states.
        is_hostile: also send files that are made to hurt it.
        max_images: pictures in a request, at most.
        show: gets the name of each check before it is asked.

    Raises:
        PhotodupError: it cannot be asked, or the reference cannot be computed.
    """
    if precision and precision not in PRECISIONS:
        raise PhotodupError(f"--precision is one of {', '.join(PRECISIONS)}, not {precision!r}.")
    server, description = picture_server(target, max_images), description_of(target)
    model = reference_of(description, weights)
    stated_precision = precision or description.get("precision")
    run = _Verification(server, model, stated_precision if stated_precision in PRECISIONS else None, show)
    run.check_all(is_hostile)
    digest = description.get("digest", model.source_digest)
    other = "" if digest == model.source_digest or run.class_index else "; the server names another digest"
    return VerifiedServer(
        target.name, target.protocol, f"{model.name}, {model.pretrained}, FP32{other}", tuple(run.rows)
    )


def description_of(target: Target) -> Mapping[str, Any]:
    """Return what a server states of its model: `pretrained`, `precision` and `digest`, as far as it does."""
    if target.protocol.startswith("kserve"):
        statement: Any = kserve.stated_parameters(target)
        digest = statement.get("model_digest")
        return {**statement, "digest": digest} if digest else statement
    statement = target.get("/info")
    return statement if isinstance(statement, dict) else {}


def reference_of(description: Mapping[str, Any], weights: str | None) -> ImageModel:
    """Load the model that a server should compute, in FP32. No file or address that the server names is opened.

    Raises:
        PhotodupError: it names weights that are neither random nor the environment's, or they cannot be had here.
    """
    name = description.get("pretrained")
    if not weights:
        is_seed = isinstance(name, str) and re.fullmatch(r"random:\d{1,9}", name)
        weights = name if is_seed else environment().weights
        if name not in (None, weights):
            raise PhotodupError(
                f"The server names the weights {str(name)[:80]!r}, and here are {weights!r}: give the same with --weights."
            )
    return load_model(weights, device="cpu")


def find_deviation(
    answers: np.ndarray,
    truth: np.ndarray,
    deviations: Mapping[str, np.ndarray],
    spread: float,
    allowed: float,
) -> tuple[str, bool, list[str]]:
    """Find the deviation that explains how answers differ from the reference, `truth`; both [n, dim], of unit length.

    Args:
        deviations: embeddings of deviating views of the first pictures, by the deviation.
        allowed: how far one answer may lie from its reference, in spreads.

    Returns:
        The deviation that explains the answers, or nothing; whether answers are unlike without one; deviations that
        cannot be told from rounding.
    """
    distances, blurred = {}, []
    for words, deviating in deviations.items():
        moved, way = answers[: len(deviating)] - truth[: len(deviating)], deviating - truth[: len(deviating)]
        length, size = float(np.linalg.norm(way)), float(np.linalg.norm(moved))
        if length < _LEAST_SHIFT * spread * len(deviating) ** 0.5:
            continue
        if length < _LEAST_SHARE * size:
            blurred.append(words)
        elif (moved * way).sum() > 0.5 * length**2:
            distances[words] = float(np.linalg.norm(moved - way)) / size
    is_far = bool((np.linalg.norm(answers - truth, axis=1) > allowed * spread).any())
    nearest = min(distances, key=lambda words: distances[words], default="")
    explains = nearest and (not is_far or distances[nearest] < 0.7)
    return (nearest, False, blurred) if explains else ("", is_far, blurred)


@dataclass
class _Verification:
    """One server being checked; `rows` grows.

    Attributes:
        class_index: index in `CLASSES` of the stated or the computed precision, whichever is coarser.
    """

    server: PictureServer
    model: ImageModel
    precision: str | None
    show: Callable[[str], object]
    rows: list[CheckRow] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    spread: float = 0.0
    class_index: int = 0

    def check_all(self, is_hostile: bool) -> None:
        photos = pictures.photo_check()
        self.show(photos.name)
        first = self.server.ask(photos.files[:1])
        if first.kind != ANSWERED:
            health = "" if first.kind == REFUSED else self.server.health()
            if not health:
                target = self.server.target
                raise PhotodupError(
                    f"{target.name}, asked in the form {target.protocol}, embeds no plain photograph: {first.reason}. "
                    "Name its form with --protocol."
                )
            self._add(photos.name, DEAD, f"{first.reason}, while {health} says that all is well")
            return
        alone = self._check(photos)
        if self.rows[0].verdict == WRONG:
            self._add("decoding", NOT_ASKED, "plain photographs are wrong already")
        elif not self.server.takes_files:
            self._add("decoding", NOT_ASKED, "the server takes tensors: the client decodes and resizes")
        else:
            for check in pictures.checks():
                self.show(check.name)
                self._check(check)
        if alone is None:
            return
        for name, ask in (("batch", self._batch), ("concurrency", self._concurrency)):
            self.show(name)
            self._add(name, *ask(photos.files, alone))
        away = [length for length in self.lengths if abs(length - 1) > _LENGTH_TOLERANCE]
        words = f"{len(away)} of {len(self.lengths)} lengths are not 1, such as {away[0]:.4g}" if away else ""
        self._add("normalisation", WRONG if away else RIGHT, words)
        if is_hostile:
            self._survival(photos.files, alone)

    @property
    def allowed(self) -> float:
        return CLASSES[self.class_index][2]

    def _add(self, name: str, verdict: str, words: str, cosine: float | None = None) -> None:
        self.rows.append(CheckRow(name, verdict, words, cosine))

    def _embed(self, views: Views) -> np.ndarray:
        return np.concatenate([self.model.embed(view[None]) for view in views])

    def _malformed(self, answer: Reply, n: int = 1) -> str:
        """Return what is wrong with an answer, whatever was asked; lengths of its embeddings are kept."""
        rows, dim = answer.rows, self.model.dim
        if answer.kind != ANSWERED:
            return answer.reason
        if len(rows) != n:
            return f"{len(rows)} embeddings came for {n} images"
        if rows.shape[1] != dim:
            return f"an embedding has {rows.shape[1]} numbers; the model has {dim}"
        if not np.isfinite(rows).all():
            return "an embedding holds NaN or infinities"
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
        if not lengths.all():
            return "an embedding is all zeros"
        self.lengths += lengths.tolist()
        return ""

    def _check(self, check: PictureCheck) -> np.ndarray | None:
        """Judge pictures, each sent alone; return their embeddings if all are there."""
        replies = [self.server.ask([file]) for file in check.files]
        refusals = [n for n, reply in enumerate(replies) if reply.kind == REFUSED and check.may_refuse]
        accepted = [n for n in range(len(replies)) if n not in refusals]
        if bad := next((words for n in accepted if (words := self._malformed(replies[n]))), ""):
            self._add(check.name, WRONG, bad)
            return None
        refused = replies[refusals[0]].reason if refusals else ""
        if not accepted:
            self._add(check.name, TOLERATED, f"not taken: {refused}")
            return None
        truth = self._embed(pictures.inputs(imaging.decode(check.files[n]) for n in accepted))
        answers = _unit(np.concatenate([replies[n].rows for n in accepted]))
        cosines = (answers * truth).sum(axis=1)
        verdict, words = (RIGHT, "") if self.spread else self._calibrated(cosines, truth)
        views_of = {} if refusals or not self.server.takes_files else {**check.wrong, **check.tolerated}
        deviating = {name: self._embed(views) for name, views in views_of.items()}
        deviation, is_unlike, blurred = find_deviation(answers, truth, deviating, self.spread, self.allowed)
        if deviation:
            verdict = TOLERATED if deviation in check.tolerated else WRONG
            words = f"as if {deviation}"
        elif is_unlike and verdict != WRONG:
            verdict, words = WRONG, "unlike the reference's, as no known deviation explains"
        elif refusals and verdict == RIGHT:
            verdict, words = TOLERATED, f"{len(refusals)} of {len(replies)} not taken: {refused}"
        elif blurred and verdict != WRONG:
            words += f"{'; ' * bool(words)}rounding hides whether {' or '.join(blurred)}"
        self._add(check.name, verdict, words, float(cosines.min()))
        return None if refusals else answers

    def _calibrated(self, cosines: np.ndarray, truth: np.ndarray) -> tuple[str, str]:
        """Set `spread` and `class_index` from plain photographs; return the verdict on the precision."""
        self.spread = float(np.linalg.norm(truth - truth.mean(axis=0), axis=1).mean())
        fits = [n for n, (_, least, _) in enumerate(CLASSES) if np.median(cosines) >= least]
        as_computed = fits[0] if fits else len(CLASSES) - 1
        stated_class = _CLASS_OF[self.precision] if self.precision else 0
        name, self.class_index = CLASSES[as_computed][0], max(as_computed, stated_class)
        if not fits:
            return WRONG, "another model, other weights or other pixels: no precision has such cosines"
        if self.precision and as_computed > stated_class:
            return WRONG, f"{self.precision} is stated, and the cosines are as of {name}"
        if as_computed and not self.precision:
            return TOLERATED, f"the cosines are as of {name}, and the server states no precision"
        return RIGHT, f"the cosines are as of {name}"

    def _misplaced(self, answer: Reply, places: Sequence[int], alone: np.ndarray) -> str:
        """Return what is wrong with an answer that should hold the photographs in `places` as they come alone."""
        if bad := self._malformed(answer, len(places)):
            return bad
        for n, (row, place) in enumerate(zip(_unit(answer.rows), places, strict=True), start=1):
            far = np.linalg.norm(alone - row, axis=1)
            if (nearest := int(far.argmin())) != place:
                return f"place {n} of {len(places)} holds photograph {nearest + 1}'s embedding, not {place + 1}'s"
            if far[place] > self.allowed * self.spread:
                return f"place {n} of {len(places)} holds another embedding than the photograph gets alone"
        return ""

    def _batch(self, files: Sequence[bytes], alone: np.ndarray) -> tuple[str, str]:
        """Ask for several photographs at once, in two orders."""
        size, answer = self.server.max_images, self.server.ask(files[: self.server.max_images])
        while answer.kind == REFUSED and size > 1:
            size //= 2
            answer = self.server.ask(files[:size])
        if size == 1:
            return TOLERATED, "takes one image a request"
        turned = [*range(len(files) - 1, len(files) - 1 - size, -1)]
        more = self.server.ask([files[place] for place in turned])
        bad = self._misplaced(answer, range(size), alone) or self._misplaced(more, turned, alone)
        return (WRONG, bad) if bad else (RIGHT, f"{size} images, each in its place and as alone")

    def _many(self, files: Sequence[bytes], alone: np.ndarray, n: int) -> tuple[list[str], list[str]]:
        """Ask for photographs at once; return what was wrong, and what found no room."""
        places = [number % len(files) for number in range(n)]
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            answers = list(pool.map(lambda place: self.server.ask([files[place]]), places))
        pairs = [(answer, p) for answer, p in zip(answers, places, strict=True) if answer.kind != BUSY]
        bad = [words for answer, p in pairs if (words := self._misplaced(answer, [p], alone))]
        return bad, [answer.reason for answer in answers if answer.kind == BUSY]

    def _concurrency(self, files: Sequence[bytes], alone: np.ndarray) -> tuple[str, str]:
        bad, busy = self._many(files, alone, N_CONCURRENT)
        of_requests = f"of {N_CONCURRENT} requests, {IN_FLIGHT} at a time"
        if bad:
            return WRONG, f"{len(bad)} {of_requests}: {bad[0]}"
        if busy:
            return TOLERATED, f"{len(busy)} {of_requests}, found no room: {busy[0]}"
        return RIGHT, f"each {of_requests}, got its own"

    def _survival(self, files: Sequence[bytes], alone: np.ndarray) -> None:
        """Send hostile requests, and check after each that the server still embeds."""
        requests: dict[str, Callable[[], Reply]] = {"a tensor of another shape": self.server.ask_misshapen}
        if self.server.takes_files:
            hostile = pictures.hostile()
            requests = {name: partial(self.server.ask, [data]) for name, data in hostile.items()}
            mixed_files = [files[0], hostile["half of a JPEG"], files[1]]
            if any(row.name == "batch" and row.verdict == RIGHT for row in self.rows):
                requests["half of a JPEG amid a batch"] = partial(self.server.ask, mixed_files)
        for name, request in requests.items():
            self.show(name)
            answer = request()
            if answer.kind == REFUSED:
                verdict, words = RIGHT, answer.reason
            elif answer.kind == ANSWERED and name == pictures.MANY_SCANS:
                verdict, words = TOLERATED, "decoded; a file of more scans may take hours"
            elif answer.kind == ANSWERED:
                verdict, words = WRONG, "got an embedding, so nobody would notice that it is broken"
            else:
                verdict, words = WRONG, f"not refused as the client's fault: {answer.reason}"
            bad, busy = self._many(files, alone, 2)
            if bad or busy:
                verdict, words = DEAD, self._failure_reason((bad or busy)[0])
            self._add(name, verdict, words)
            if verdict == DEAD:
                return
        bad, _ = self._many(files, alone, 2 * IN_FLIGHT)
        words = self._failure_reason(bad[0]) if bad else "embeds as before"
        self._add("alive afterwards", DEAD if bad else RIGHT, words)

    def _failure_reason(self, words: str) -> str:
        health = self.server.health()
        claim = f", while {health} says that all is well" if health else ""
        return f"a photograph fails afterwards: {words}{claim}"


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
