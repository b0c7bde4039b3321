"""What the owner is shown, measured: families, keepers and suggestions on a library of planted edits.

Each photograph and its edits are written as files with names that tell nothing, scanned and grouped as any library.
"""

import hashlib
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from photodup.embedding.imaging import encoded
from photodup.errors import PhotodupError
from photodup.photos.compare.evidence import EvidenceStore, pair_rows
from photodup.photos.compare.verify import Thresholds
from photodup.photos.groups.results import Group, Tiers
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.scan import Catalogue, scan
from photodup.photos.quality.edits import (
    EQUAL,
    HARMLESS,
    LOOK_ALIKE,
    MORE,
    ORIGINAL,
    RETONED,
    TWIN,
    WORK,
    Transform,
    is_right,
)
from photodup.photos.quality.pairs import Original, shrunk
from photodup.progress import bar, unseen

# A reason begins with what differs; places and numbers follow and are left out.
_GIST = re.compile("looks different|[^,:;]+")
_QUALITY = 92
_SEEN = 8  # greys by which an edit changes something
CONFIDENCE = 0.95  # of a lower bound


@dataclass(frozen=True)
class Shown:
    """What grouping a library of edits showed.

    Attributes:
        n_photos, n_files: originals, and files with their edits.
        n_groups: groups of copies; as many as originals if all is well.
        n_complete: originals that are in one group with all their edits.
        n_pure: groups that hold files of one original only.
        n_redundant, n_found: edits, and those that were suggested for removal.
        n_false: files suggested for removal beside a keeper made from another original.
        n_right: families whose keeper is the original or its equal (`is_right`).
        n_original: families whose keeper is the original itself.
        found_by_edit: share of each edit's files that was suggested.
        keepers: how often each edit became the keeper.
        bound: what the best non-matches say of false pairs in a library of this size, as a sentence.
    """

    n_photos: int
    n_files: int
    n_groups: int
    n_complete: int
    n_pure: int
    n_redundant: int
    n_found: int
    n_false: int
    n_right: int
    n_original: int
    found_by_edit: dict[str, float]
    keepers: dict[str, int]
    bound: str = ""

    def lines(self) -> list[str]:
        """Return the measurement as text, with what it proves at least."""
        right = at_least(self.n_right, self.n_groups)
        return [
            f"as shown: {self.n_groups} families of {self.n_photos} photographs with "
            f"{self.n_redundant} edits ({self.n_files} files)",
            f"  complete {self.n_complete} of {self.n_photos}, pure {self.n_pure} of {self.n_groups}, redundant files "
            f"suggested {self.n_found} of {self.n_redundant}, wrongly suggested {self.n_false}",
            f"  right keepers {self.n_right} of {self.n_groups} (at least {right:.1%} with {CONFIDENCE:.0%} confidence), "
            f"the original itself {self.n_original}",
            "  suggested, by edit: "
            + ", ".join(f"{name} {share:.2f}" for name, share in self.found_by_edit.items()),
            *([f"  {self.bound}"] if self.bound else []),
        ]


@dataclass(frozen=True)
class OfKind:
    """What grouping showed of one kind of edit, or of pairs that only look alike.

    Attributes:
        kind, result: the name, and what it makes of a picture (`edits`).
        n: pairs of an original and its edit, or of two look-alikes.
        n_found: pairs whose files are shown together as copies.
        n_suggested: files suggested for removal.
        wrong: the names of those that hold what no file that stays does, or are the original itself.
        kept: how often the original and the edit was the one to keep.
        reasons: why copies were held back, and how many by each reason; a copy may have several.
        rules: by which rule, and why, a file that is not the original or its equal was the one to keep.
    """

    kind: str
    result: str
    n: int
    n_found: int
    n_suggested: int
    wrong: tuple[str, ...]
    kept: dict[str, int]
    reasons: dict[str, int] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)

    @property
    def n_held(self) -> int:
        """Return the pairs that are shown together and of which nothing is suggested."""
        return max(0, self.n_found - self.n_suggested)


def at_least(hits: int, n: int, confidence: float = CONFIDENCE) -> float:
    """Return the one-sided lower bound (Clopper and Pearson) of a share that was `hits` of `n`; 0 for none."""
    from scipy.stats import beta

    return float(beta.ppf(1 - confidence, hits, n - hits + 1)) if hits else 0.0


def measure_shown(originals: Sequence[Original], transforms: Sequence[Transform], folder: Path) -> Shown:
    """Write, scan and group a library of edits; hashes alone find.

    Args:
        originals: different photographs.
        transforms: their edits.
        folder: an empty folder; the files are left there.
    """
    truth = _plant(originals, transforms, folder)
    scan(folder, progress=False)
    with Catalogue(folder) as catalogue, unseen():
        shown = judge_shown(find_tiers(catalogue), truth)
        return replace(shown, bound=said_of_strangers(catalogue, truth))


def said_of_strangers(catalogue: Catalogue, truth: dict[str, tuple[str, str]]) -> str:
    """Bound the false pairs of this library by each photograph's best non-match, in a sentence.

    One score a photograph: its best with a file of any other photograph that was compared, and 0 where none was.
    """
    photos = catalogue.photos()
    with EvidenceStore(catalogue.own.evidence) as store:
        known = store.read({photo.md5: row for row, photo in enumerate(photos)})
    source = [truth[photo.path.name][0] for photo in photos]
    best = dict.fromkeys(source, 0.0)
    for i, j in zip(*(rows.tolist() for rows in pair_rows(known.codes)), strict=True):
        if source[i] != source[j] and (found := known.get(i, j)):
            for name in (source[i], source[j]):
                best[name] = max(best[name], found.score())
    try:
        return str(bound(np.array(list(best.values())), Thresholds.min_agreement, len(best)))
    except PhotodupError as error:
        return f"no bound: {error}"


def judge_shown(tiers: Tiers, truth: dict[str, tuple[str, str]]) -> Shown:
    """Hold groups against what is known of each file.

    Args:
        tiers: as `find_tiers` gives.
        truth: the original's name and the edit's (`ORIGINAL` for none) of each file name.
    """
    group_of = {
        photo.path.name: number
        for number, group in enumerate(tiers.copies)
        for photo in (group.keeper, *group.others)
    }
    sources: dict[str, list[str]] = {}
    for name, (source, _) in truth.items():
        sources.setdefault(source, []).append(name)
    going = {photo.path.name: group for group in tiers.copies for photo in group.may_go}
    false = [name for name, group in going.items() if truth[group.keeper.path.name][0] != truth[name][0]]
    kept = [truth[group.keeper.path.name][1] for group in tiers.copies]
    by_edit: dict[str, list[bool]] = {}
    for name, (_, edit) in truth.items():
        if edit != ORIGINAL:
            by_edit.setdefault(edit, []).append(name in going)
    pure = [len({truth[p.path.name][0] for p in (g.keeper, *g.others)}) == 1 for g in tiers.copies]
    complete = [len({group_of.get(name, name) for name in names}) == 1 for names in sources.values()]
    return Shown(
        n_photos=len(sources),
        n_files=len(truth),
        n_groups=len(tiers.copies),
        n_complete=sum(complete),
        n_pure=sum(pure),
        n_redundant=sum(len(values) for values in by_edit.values()),
        n_found=sum(sum(values) for values in by_edit.values()),
        n_false=len(false),
        n_right=sum(map(is_right, kept)),
        n_original=kept.count(ORIGINAL),
        found_by_edit={edit: sum(values) / len(values) for edit, values in by_edit.items()},
        keepers={edit: kept.count(edit) for edit in dict.fromkeys(kept)},
    )


def _plant(
    originals: Sequence[Original], transforms: Sequence[Transform], folder: Path
) -> dict[str, tuple[str, str]]:
    """Write the files and return the truth about each name."""
    truth = {}
    for original in originals:
        image, ground = shrunk(original.image), transforms[0].ground
        name, data = _put(folder, ground(image) if ground else image, f"{original.name} {ORIGINAL}")
        truth[name] = original.name, ORIGINAL
        # Edits are made from the file, as people make them.
        written = Image.open(io.BytesIO(data)).convert("RGB")
        for one in transforms:
            name, _ = _put(folder, one(written), f"{original.name} {one.name}", one.format)
            truth[name] = original.name, one.name
    return truth


def _put(folder: Path, image: Image.Image, what: str, image_format: str = "JPEG") -> tuple[str, bytes]:
    """Write a picture under a name that tells nothing; return the name and the bytes."""
    data = encoded(image, image_format, quality=_QUALITY)  # which PNG and TIFF ignore
    suffix = {"JPEG": "jpg", "HEIF": "heic"}.get(image_format, image_format.lower())
    name = f"{hashlib.sha256(what.encode()).hexdigest()[:12]}.{suffix}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return name, data


def measure_kinds(
    originals: Sequence[Original],
    kinds: Sequence[Transform],
    n: int,
    folder: Path,
) -> list[OfKind]:
    """Measure each kind by itself, in libraries of photographs and one edit of each, or of pairs that look alike.

    Beside its other edits a copy is told from its original more easily; an owner mostly has two files. Hashes alone find.

    Args:
        originals: different photographs; each kind takes the next ones, so that not all ask the same.
        kinds: edits and look-alikes.
        n: photographs for each kind.
        folder: an empty folder; the files are left there.
    """
    found = []
    for place, kind in enumerate(bar(kinds, total=len(kinds), desc="measure", unit="kind")):
        turn = place * n % len(originals)
        in_turn = (*originals[turn:], *originals[:turn])
        chosen = list(islice((one for one in in_turn if kind.result != WORK or changes(kind, one)), n))
        library = folder / str(place)
        truth = _plant(chosen, [kind], library)
        scan(library, progress=False)
        with Catalogue(library) as catalogue, unseen():
            found.append(judge_kind(kind, find_tiers(catalogue), truth, len(chosen)))
    return found


def changes(kind: Transform, original: Original) -> bool:
    """Return whether an edit is one of this photograph: of a grey one, black and white is an equal and nobody's work."""
    image = shrunk(original.image)
    return bool(np.abs(np.asarray(kind(image), int) - image).max() > _SEEN)


def judge_kind(kind: Transform, tiers: Tiers, truth: dict[str, tuple[str, str]], n: int) -> OfKind:
    """Hold the groups of one kind's library against what is known of each file."""
    is_pair: list[bool] = []
    wrong: list[str] = []
    suggested, kept, reasons, rules = 0, Counter[str](), Counter[str](), Counter[str]()
    for group in tiers.copies:
        source, keeper = truth[group.keeper.path.name]
        together = {truth[photo.path.name] for photo in (group.keeper, *group.others)}
        is_pair.append({(source, ORIGINAL), (source, kind.name)} <= together)
        if is_pair[-1]:
            kept[keeper] += 1
            reasons.update(_reasons(group))
            if not is_right(keeper):
                rules[f"{group.choice.rule or 'no rule'}: {_gist(group.choice.reason)}"] += 1
        for photo in group.may_go:
            its, edit = truth[photo.path.name]
            suggested += 1
            may_go = kind.result == EQUAL or (edit != ORIGINAL and kind.result not in (MORE, LOOK_ALIKE))
            if its != source or not may_go:
                wrong.append(photo.path.name)
    return OfKind(
        kind.name, kind.result, n, sum(is_pair), suggested, tuple(wrong), dict(kept), dict(reasons), dict(rules)
    )  # fmt: skip


def _reasons(group: Group) -> set[str]:
    """Return why the members of a group are held back, without places and numbers."""
    said = "; ".join(group.difference(photo) for photo in group.others)
    return {_gist(part) for part in said.split("; ") if part}


def _gist(said: str) -> str:
    found = _GIST.match(said)
    return found[0] if found else said


def kinds_lines(found: Sequence[OfKind]) -> list[str]:
    """Return the measurement by kind as a table, and what it proves of these kinds on these photographs."""
    lines = [
        f"{'kind':20}{'what it is':>12}{'pairs':>7}{'found':>7}{'suggested':>11}{'held back':>11}{'wrong':>7}  stayed"
    ]
    for one in found:
        stayed = ", ".join(f"{name} {n}" for name, n in one.kept.items())
        lines.append(
            f"{one.kind:20}{one.result:>12}{one.n:7}{one.n_found:7}{one.n_suggested:11}{one.n_held:11}"
            f"{len(one.wrong):7}  {stayed if one.result != LOOK_ALIKE else 'both' if not one.wrong else 'one'}"
        )
        for what, counts in (("held back", one.reasons), ("stayed", one.rules)):
            if counts and one.result != LOOK_ALIKE:
                lines.append(f"    {what}: " + ", ".join(f"{why} ({n})" for why, n in counts.items()))
    total = pooled(found)
    lines.append(
        f"pooled: {total.n_wrong} wrong in {total.n:,} pairs of {len(found)} kinds (at most {total.most_wrong:.2%} with "
        f"{CONFIDENCE:.0%} confidence, of these photographs and kinds)"
    )
    lines.append(
        f"found {total.n_found} of {total.n_copies} copies; of those the original or its equal is the one to keep "
        f"in {total.n_kept} (at least {at_least(total.n_kept, total.n_found):.1%}), a twin of it in {total.n_twins}"
    )
    lines.append(f"held back of those found that show no more than their original: {total.held}")
    told = pooled([one for one in found if one.kind not in RETONED])
    if told.n_harmless < total.n_harmless:
        lines.append(f"without {' and '.join(sorted(RETONED))}, whose light is another: {told.held}")
    return lines


@dataclass(frozen=True)
class Pooled:
    """What grouping showed of several kinds together.

    Attributes:
        n, n_wrong: pairs, and files suggested of which something would be lost.
        n_copies, n_found: pairs that are copies, and those shown together.
        n_kept, n_twins: of those found how often the original or its equal is the one to keep, and how often its twin.
        n_harmless, n_held: of those found that show no more than their original, all, and those held back.
    """

    n: int
    n_wrong: int
    n_copies: int
    n_found: int
    n_kept: int
    n_twins: int
    n_harmless: int
    n_held: int

    @property
    def most_wrong(self) -> float:
        """Return the upper bound of the share that is wrong, 0..1."""
        return 1 - at_least(self.n - self.n_wrong, self.n)

    @property
    def held(self) -> str:
        """Return how many harmless copies are held back, in words."""
        return f"{self.n_held} of {self.n_harmless} ({self.n_held / max(self.n_harmless, 1):.1%})"


def pooled(found: Sequence[OfKind]) -> Pooled:
    """Add up what was measured by kind."""
    copies = [one for one in found if one.result != LOOK_ALIKE]
    harmless = [one for one in copies if one.result in HARMLESS]
    kept = [(one.result, name, times) for one in copies for name, times in one.kept.items()]
    return Pooled(
        n=sum(one.n for one in found),
        n_wrong=sum(len(one.wrong) for one in found),
        n_copies=sum(one.n for one in copies),
        n_found=sum(one.n_found for one in copies),
        n_kept=sum(times for _, name, times in kept if is_right(name)),
        n_twins=sum(times for result, name, times in kept if result == TWIN and not is_right(name)),
        n_harmless=sum(one.n_found for one in harmless),
        n_held=sum(one.n_held for one in harmless),
    )


# Of the scores so many of the highest make the tail, and at least this number is needed.
TAIL, LEAST = 0.1, 20


@dataclass(frozen=True)
class Bound:
    """At most `most` false pairs among `n_photos`, with this confidence; `expected` is the point estimate."""

    n_photos: int
    expected: float
    most: int
    confidence: float

    def __str__(self) -> str:
        pairs = "false pair" if self.most == 1 else "false pairs"
        return f"at most {self.most} {pairs} among these {self.n_photos:,} photos, {self.confidence:.0%} confidence"


def bound(
    scores: np.ndarray, threshold: float, n_photos: int, *, confidence: float = 0.99, seed: int = 0
) -> Bound:
    """Bound the false pairs of a library of `n_photos`, each of which has one nearest stranger.

    A rate says nothing to someone with a million photos. The upper tail of the scores is fitted (a generalised Pareto
    distribution above a high quantile: Pickands 1975) and carried on to the score from which a pair counts as a copy.

    Args:
        scores: float[n], of pairs that are known to be strangers, each photo's best; independent of each other.
        threshold: from this score on a pair counts as a copy.
        n_photos: whose best strangers are compared.
        confidence: share of libraries of which the bound is to hold, 0..1.
        seed: of the resampling.

    Raises:
        PhotodupError: too few scores.
    """
    from scipy.stats import beta, genpareto, poisson

    scores = np.sort(np.asarray(scores, float))
    n, n_tail = len(scores), max(LEAST, round(TAIL * len(scores)))
    if n < 2 * LEAST:
        raise PhotodupError(f"A bound needs the scores of {2 * LEAST} pairs of different pictures, not {n}.")
    start = scores[-n_tail - 1]

    def beyond(values: np.ndarray) -> float:
        excess = values[values > start] - start
        if not len(excess):
            return 0.0
        if threshold <= start:
            return float((values > threshold).mean())
        shape, _, scale = genpareto.fit(excess, floc=0)
        # A tail that ends before the threshold may be an accident of the sample: none is lighter than exponential.
        return float(
            len(excess) / len(values) * genpareto.sf(threshold - start, max(shape, 0.0), scale=scale)
        )

    rng = np.random.default_rng(seed)
    estimate = beyond(scores)
    resampled = [beyond(rng.choice(scores, n)) for _ in range(100)]
    share = (1 + confidence) / 2  # half of what may go wrong to the fit, half to chance
    over = int((scores >= threshold).sum())
    # Where nothing rises above the rest there is no tail to carry on, and only what was counted can be said.
    has_tail = bool((scores > start).any())
    counted = float(beta.ppf(share, over + 1, n - over)) if over or not has_tail else 0.0
    rate = min(1.0, max(estimate, float(np.quantile(resampled, share)), counted))
    return Bound(n_photos, estimate * n_photos, int(poisson.ppf(share, rate * n_photos)), confidence)
