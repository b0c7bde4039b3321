"""Make "our copy" of a keeper: aligned with the member, and blurred and compressed as strongly as the member was."""

import io
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import product
from typing import Any

import numpy as np
from PIL import Image

from photodup.photos.compare import maps
from photodup.photos.compare.align import Placement, grey, inside_of, laid
from photodup.photos.compare.limits import LIMITS
from photodup.photos.compare.maps import Size
from photodup.photos.compare.pictures import BLOCK, Picture, Saving, coefficients

Octaves = list[np.ndarray]

CELL = 16  # side of a cell, pixels: two of a JPEG's blocks
# Longer side to which a whole picture is reduced, unless it is less than a third larger; side of a window at full size.
WHOLE, WINDOW = 1024, 512
_BLURS = np.geomspace(0.3, 12, 13).tolist()  # standard deviations, pixels
_OCTAVES = 4  # in which softness is looked for, without the finest
# Qualities, the best first.
_JPEG, _WEBP = (*range(95, 55, -5), *range(50, 0, -10)), range(100, -1, -1)
_AS_SHARP = 0.97  # contrast from which a picture counts as sharp
_MEASURABLE = 0.3  # least contrast that can be measured
_MOST_LOST = 600.0  # squares of greys: no compression loses as much in most cells
# Resampling methods of programs, the commonest first; None is OpenCV's, by area.
_RESAMPLINGS = (
    Image.Resampling.LANCZOS, Image.Resampling.BICUBIC, Image.Resampling.BILINEAR, Image.Resampling.BOX,
    Image.Resampling.HAMMING, None,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class View:
    """A part of the member, and our copy of the keeper there.

    Attributes:
        member, keeper, copy: uint8[h, w, 3]: the member; the keeper, aligned and blurred; that, compressed.
        sharp: the keeper, aligned and not blurred.
        inside: bool[h, w], where the keeper shows the picture.
        softness: standard deviation of the blur, pixels.
        saving: the member's, if it made the copy at full size; None if the compression is guessed or the view reduced.
        place: the map from the member's positions to those here.
        resampling: the resampling method of the keeper.
    """

    member: np.ndarray
    keeper: np.ndarray
    copy: np.ndarray
    sharp: np.ndarray
    inside: np.ndarray
    softness: float
    saving: Saving | None
    place: np.ndarray
    resampling: Image.Resampling | None = Image.Resampling.LANCZOS

    @cached_property
    def greys(self) -> list[np.ndarray]:
        """The greys float32[h, w] of member, keeper and copy."""
        return [grey(picture) for picture in (self.member, self.keeper, self.copy)]

    @cached_property
    def octaves(self) -> list[tuple[np.ndarray, ...]]:
        """The detail of member, keeper and copy in the three finest octaves, the finest first."""
        return list(zip(*(octaves(greys, 3) for greys in self.greys), strict=True))

    @cached_property
    def rms_differences(self) -> tuple[float, float, float]:
        """The RMS differences in greys of member and keeper, of copy and keeper, and of member and copy.

        The tenth of the cells that differs most is left out: it may show something else.
        """
        member, keeper, copy = self.greys
        covered = whole_cells(self.inside)
        losses = [lost(*pair)[covered] for pair in ((member, keeper), (copy, keeper), (member, copy))]
        if not covered.any():
            return 0.0, 0.0, 0.0
        typical = losses[0] <= np.quantile(losses[0], 0.9)
        return tuple(float(np.sqrt(loss[typical].mean())) for loss in losses)  # type: ignore[return-value]

    @property
    def explained(self) -> float:
        """Return the share of the difference between member and keeper that our copy explains, 0..1."""
        member_rms, _, residual_rms = self.rms_differences
        return max(0.0, 1 - (residual_rms / member_rms) ** 2) if member_rms > 0.1 else 0.0

    @property
    def own_detail(self) -> float:
        """Return the fine detail that only the member has, relative to the keeper's detail that the member lost."""
        covered, extra, missing = whole_cells(self.inside), 0.0, 0.0
        for octave, (member, keeper, _) in enumerate(self.octaves[:2]):
            extra += float(cells_of(member * (member - keeper), octave, covered).mean())
            missing += float(cells_of(keeper * (keeper - member), octave, covered).mean())
        return extra / max(missing, 1e-3)

    def own_loss(self, saving: Saving) -> float:
        """Return the keeper's loss by its own compression, RMS greys; other formats than JPEG as if saved at quality 85."""
        if saving.is_lossless:
            return 0.0
        off_grid = np.ascontiguousarray(self.keeper[BLOCK // 2 :, BLOCK // 2 :])
        as_saved = saved(off_grid, saving) if saving.tables else compressed(off_grid, "JPEG", quality=85)
        loss = lost(grey(off_grid), grey(as_saved))
        return float(np.sqrt(loss[loss <= np.quantile(loss, 0.9)].mean())) if loss.size else 0.0

    def is_sibling(self, back: "View") -> bool:
        """Return whether both files were saved from one picture, the keeper with finer steps.

        The member then differs from our copy no more than two savings of one picture do. The keeper, half a block away
        from its own blocks, stands for that picture.

        Args:
            back: our copy of the member, saved as the keeper.
        """
        if not (self.saving and back.saving):
            return False
        beyond = slice(BLOCK // 2, None)
        picture = np.ascontiguousarray(self.keeper[beyond, beyond])
        keeper, member = saved(picture, back.saving), saved(picture, self.saving)
        copy, inside = saved(keeper, self.saving), self.inside[beyond, beyond]
        siblings = replace(self, member=member, keeper=keeper, copy=copy, inside=inside)
        # Where our copy explains little even of siblings, another exposure would not be seen.
        is_seen = siblings.explained > LIMITS.sibling_explained
        is_near = self.rms_differences[2] < LIMITS.sibling * siblings.rms_differences[2]
        _, copy_rms, residual_rms = back.rms_differences
        return is_seen and is_near and residual_rms > LIMITS.not_made_from * copy_rms


def cells(values: np.ndarray, side: int = CELL) -> np.ndarray:
    """Return the mean of each whole square of a picture [h, w, …]."""
    import cv2

    rows, columns = (length // side for length in values.shape[:2])
    if not rows * columns:
        return np.zeros((rows, columns), np.float32)
    whole = values[: rows * side, : columns * side].astype(np.float32, copy=False)
    # Five times as fast as NumPy's mean.
    return cv2.resize(whole, (columns, rows), interpolation=cv2.INTER_AREA)


def whole_cells(inside: np.ndarray, side: int = CELL) -> np.ndarray:
    """Return which cells lie inside altogether."""
    return cells(inside, side) > 0.999


def inner_cells(inside: np.ndarray, side: int = CELL) -> np.ndarray:
    """Return `whole_cells` without those within `CELL` pixels of the picture's ends."""
    covered, n = whole_cells(inside, side), CELL // side
    covered[:n] = covered[-n:] = covered[:, :n] = covered[:, -n:] = False
    return covered


def cells_of(values: np.ndarray, octave: int, covered: np.ndarray, side: int = CELL) -> np.ndarray:
    """Return float32[n]: the mean of an octave's values [h, w] in each of the covered cells."""
    return cells(values, side >> octave)[: covered.shape[0], : covered.shape[1]][covered]


def lost(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the mean square by which greys [h, w] differ in each cell."""
    return cells((before - after) ** 2)


def octaves(greys: np.ndarray, n: int) -> Octaves:
    """Return n octaves of detail of a picture float32[h, w], the finest first, each at half the size of the one before."""
    import cv2

    bands = []
    for _ in range(n):
        reduced = cv2.pyrDown(greys)
        bands.append(greys - cv2.pyrUp(reduced, dstsize=greys.shape[::-1]))
        greys = reduced
    return bands


def saved(rgb: np.ndarray, saving: Saving) -> np.ndarray:
    """Return a picture, or greys, after compression as another JPEG was saved.

    How files in other formats were saved is unknown: for these the picture stays as it is.
    """
    if not saving.tables:
        return rgb
    tables = [list(table) for table in saving.tables]
    lying = compressed(saving.as_saved(rgb), "JPEG", qtables=tables, subsampling=saving.subsampling)
    return saving.upright(lying)


def compressed(rgb: np.ndarray, form: str, **options: Any) -> np.ndarray:
    """Return a picture, or greys, after compression in a format, with Pillow's options."""
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, form, **options)
    return np.asarray(Image.open(buffer))


def most_detailed(rgb: np.ndarray, side: int) -> tuple[int, int]:
    """Return the left upper corner (x, y) of the most detailed square of this side, in whole cells."""
    import cv2

    if max(rgb.shape[:2]) < side + CELL:
        return 0, 0
    greys = grey(rgb)
    # The root prefers many details to one strong edge.
    detail = np.sqrt(cells(np.abs(greys - cv2.GaussianBlur(greys, (0, 0), 1.5))))
    rows, columns = np.minimum(side // CELL, detail.shape)
    sums = cv2.boxFilter(detail, -1, (int(columns), int(rows)), anchor=(0, 0), borderType=cv2.BORDER_ISOLATED)
    sums = sums[: detail.shape[0] - rows + 1, : detail.shape[1] - columns + 1]
    row, column = np.unravel_index(int(sums.argmax()), sums.shape)
    return int(column) * CELL, int(row) * CELL


def rounding(rgb: np.ndarray, saving: Saving) -> float:
    """Return how clearly a picture's DCT coefficients are multiples of a JPEG's steps: 0 by chance, 1 for the JPEG itself.

    The picture must be aligned with the JPEG. Half a block away coefficients are arbitrary; their value is subtracted.
    """
    lying = saving.as_saved(rgb)
    left, top = most_detailed(lying, WINDOW)
    part = grey(lying[top : top + WINDOW, left : left + WINDOW]) - 128
    height, width = ((length - BLOCK // 2) // BLOCK * BLOCK for length in part.shape)
    if min(height, width) < 2 * CELL:
        return 0.0
    steps = saving.steps
    nearness = []
    for at in (0, BLOCK // 2):
        multiples = coefficients(part[at : at + height, at : at + width]) / steps
        size = np.abs(multiples)
        counted = multiples[(size > 0.6) & (size < 4.5) & (steps > 3)]
        nearness.append(float(np.cos(2 * np.pi * counted).mean()) if len(counted) > 100 else 0.0)
    return nearness[0] - nearness[1]


def views(keeper: Picture, member: Picture, transform: np.ndarray, *, whole: bool = True) -> Iterator[View]:
    """Yield our copy of the whole and, if that is reduced, of its most detailed window at full size, or this alone."""
    size, exact = whole_size(member)
    place = maps.straight(exact)
    if size == member.image.size:
        yield _view(keeper.rgb, transform, member.rgb, member.saving, place)
        return

    def reduced(picture: np.ndarray) -> np.ndarray:
        return laid(picture, place, size)[0]

    def save(softness: float) -> np.ndarray:
        soft = _soft(full, softness / float(exact.mean()))
        return reduced(saved(soft, member.saving))

    picture = reduced(member.rgb)
    if whole:  # compress at full size, then reduce, as happened to the member
        full, _ = laid(keeper.rgb, transform, member.image.size)
        inside = inside_of(keeper.image.size, maps.rescaled(transform, 1, exact), size)
        yield _copy(reduced(full), inside, picture, member.saving, place, save, is_reduced=True)
    yield window(keeper, member, transform, picture, exact)


def whole_size(member: Picture) -> tuple[Size, np.ndarray]:
    """Return the size at which the whole of a member is compared, and the factors of its sides."""
    factor = min(1.0, WHOLE / max(member.image.size))
    factor = 1.0 if factor > 0.75 else factor
    size = tuple(max(1, round(side * factor)) for side in member.image.size)
    return size, np.array(size) / member.image.size  # type: ignore[return-value]


def window(
    keeper: Picture, member: Picture, transform: np.ndarray, whole: np.ndarray, exact: np.ndarray
) -> View:
    """Return our copy of the most detailed window of the member at full size, with its corner on the JPEG's grid.

    Args:
        whole: the member, reduced by the factors `exact`.
    """
    reduced = most_detailed(whole, max(CELL, round(WINDOW * exact.min())))
    corner = [round(n / e) // CELL * CELL for n, e in zip(reduced, exact, strict=True)]
    # Blocks begin at a corner of the stored picture, which may be another corner of the upright one.
    width, height = member.image.size
    begins = member.saving.as_saved(np.array([[(0, 0), (1, 0)], [(0, 1), (1, 1)]]))[0, 0]
    shift = begins * (width % CELL, height % CELL)
    part, place, source, near = _part(keeper, member, transform, np.array(corner) + shift, WINDOW)
    return _view(source, near, part, member.saving, place)


def _part(
    keeper: Picture, member: Picture, transform: np.ndarray, corner: np.ndarray, side: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a square of the member at this corner and its `View.place`, the keeper's part below it, and the map of that."""
    left, top = corner.tolist()
    part, place = member.rgb[top : top + side, left : left + side], maps.straight(np.ones(2), -corner)
    onto = np.column_stack([transform[:, :2], transform[:, 2] - corner])
    reach = maps.moved(maps.corners(part.shape[1::-1]), maps.inverse(onto))
    low = np.clip(np.floor(reach.min(axis=0)).astype(int) - CELL, 0, np.array(keeper.image.size) - 1)
    high = np.clip(np.ceil(reach.max(axis=0)).astype(int) + CELL, low + 1, keeper.image.size)
    near = np.column_stack([onto[:, :2], maps.moved(low[None], onto)[0]])
    return part, place, keeper.rgb[low[1] : high[1], low[0] : high[0]], near


def tiles(keeper: Picture, member: Picture, transform: np.ndarray, like: View) -> Iterator[View]:
    """Yield our copy of every part of the member at full size, with the settings of `like`, to find small differences."""
    width, height = member.image.size
    for corner in product(range(0, width, WHOLE), range(0, height, WHOLE)):
        part, place, source, near = _part(keeper, member, transform, np.array(corner), WHOLE)
        sharp, inside = laid(source, near, (part.shape[1], part.shape[0]), like.resampling)
        soft = _soft(sharp, like.softness)
        copy = saved(soft, member.saving)
        yield replace(like, member=part, keeper=soft, copy=copy, sharp=sharp, inside=inside, place=place)


def _view(
    keeper: np.ndarray, transform: np.ndarray, member: np.ndarray, saving: Saving, place: np.ndarray
) -> View:  # fmt: skip
    """Make our copy of a keeper in a member's frame; if resized, by the resampling method that fits best."""
    is_resized = maps.is_straight(transform) and abs(np.diag(transform) - 1).max() > 1e-6
    tried: list[View] = []
    for resampling in _RESAMPLINGS if is_resized else _RESAMPLINGS[:1]:
        sharp, inside = laid(keeper, transform, (member.shape[1], member.shape[0]), resampling)

        def save(softness: float, sharp: np.ndarray = sharp) -> np.ndarray:
            return saved(_soft(sharp, softness), saving)

        view = replace(_copy(sharp, inside, member, saving, place, save), resampling=resampling)
        tried.append(view)
        if view.explained >= LIMITS.explained or view.rms_differences[2] < LIMITS.equal_greys:
            break
    return min(tried, key=lambda view: view.rms_differences[2])


def _copy(
    keeper: np.ndarray, inside: np.ndarray, member: np.ndarray, saving: Saving, place: np.ndarray,
    save: Callable[[float], np.ndarray], *, is_reduced: bool = False,
) -> View:  # fmt: skip
    """Make our copy of an aligned keeper; `save` blurs it by a softness and compresses it with the member's own tables."""
    brighter = cells(grey(member) - grey(keeper))[whole_cells(inside)]
    # No compression changes the light as much: what else it explains need not be asked.
    if len(brighter) > 2 and abs(np.median(brighter)) > 2 * LIMITS.tone_greys:
        return View(member, keeper, keeper, keeper, inside, 0.0, None, place)
    copy, is_exact = _as_strong(keeper, save(0.0), member, inside, saving, is_reduced=is_reduced)
    softness = _softness(keeper, member, copy, inside)
    soft = _soft(keeper, softness)
    if softness:
        copy, is_exact = _as_strong(soft, save(softness), member, inside, saving, is_reduced=is_reduced)
    of_copy = saving if is_exact and not is_reduced else None
    return View(member, soft, copy, keeper, inside, softness, of_copy, place)


def _soft(picture: np.ndarray, softness: float) -> np.ndarray:
    import cv2

    return cv2.GaussianBlur(picture, (0, 0), softness) if softness else picture


def _as_strong(
    keeper: np.ndarray, copy: np.ndarray, member: np.ndarray, inside: np.ndarray, saving: Saving, *, is_reduced: bool
) -> tuple[np.ndarray, bool]:  # fmt: skip
    """Return a keeper compressed as strongly as the member, and whether by the member's own tables, which made `copy`."""
    covered = whole_cells(inside)
    if not covered.any():
        return keeper, True

    def loss(before: np.ndarray, picture: np.ndarray) -> float:
        return float(np.quantile(lost(before, grey(picture))[covered], 0.8))  # in the places with content

    greys, distance = grey(keeper), partial(loss, grey(member))
    member_loss = distance(keeper)
    strength, is_exact = loss(greys, copy), bool(saving.tables) or saving.is_lossless
    if member_loss <= 1.5 * strength + 0.1 or member_loss > _MOST_LOST or (is_exact and is_reduced):
        return copy, is_exact

    form = "WEBP" if saving.format == "WEBP" else "JPEG"
    # A JPEG's greys are compressed apart from its colours: alone they show the quality, in a third of the time.
    searched = keeper if form == "WEBP" else greys.astype(np.uint8)

    with_quality = cache(lambda quality: compressed(searched, form, quality=quality))

    def loss_with(quality: int) -> float:
        return loss(greys, with_quality(quality))

    if form == "WEBP":  # one encoder writes nearly all: with its quality it writes this member again
        nearest = bisect_left(_WEBP, member_loss, key=loss_with)
        around = _WEBP[max(0, nearest - 2) : nearest + 2]  # the loss is not quite monotonic
        return min(map(with_quality, around), key=distance), False
    # JPEG imitates other formats, too.
    first = bisect_left(_JPEG, max(strength, 0.6 * member_loss), key=loss_with)
    last = bisect_right(_JPEG, (1.5 if is_exact else 1.2) * member_loss, first, key=loss_with)
    if first == last:  # no quality loses as much
        return copy, is_exact
    # A JPEG may have been saved before, and more strongly: accept that only if it explains the member.
    left, before = min((distance(saved(with_quality(each), saving)), each) for each in _JPEG[first:last])
    if left < 0.5 * member_loss:
        return saved(compressed(keeper, form, quality=before), saving), False
    return (copy if is_exact else compressed(keeper, form, quality=_JPEG[last - 1])), is_exact


def _gains(bands: Octaves, bands_of_keeper: Octaves, whole: np.ndarray) -> list[float]:
    """Return the contrast of a picture's detail, from the second octave on, as a share of the keeper's in its more
    detailed half.
    """
    if not whole.any():
        return [1.0] * len(bands)
    shares = []
    for octave, (ours, theirs) in enumerate(zip(bands, bands_of_keeper, strict=True), 1):
        square, product = (cells_of(values, octave, whole) for values in (theirs**2, ours * theirs))
        detailed = square >= np.median(square)
        shares.append(float(np.median((product[detailed] + 1e-3) / (square[detailed] + 1e-3))))
    return shares


def _softness(keeper: np.ndarray, member: np.ndarray, copy: np.ndarray, inside: np.ndarray) -> float:
    """Return the blur (pixels) that makes the keeper as soft as the member; compression, in `copy`, softens a little."""
    import cv2

    whole, bands_of_keeper = whole_cells(inside), octaves(cv2.pyrDown(grey(keeper)), _OCTAVES)

    def gains(picture: np.ndarray) -> list[float]:
        return _gains(octaves(cv2.pyrDown(grey(picture)), _OCTAVES), bands_of_keeper, whole)

    shares = [ours / max(by_saving, 0.05) for ours, by_saving in zip(gains(member), gains(copy), strict=True)]
    if min(shares[:2]) >= _AS_SHARP:
        return 0.0
    octave = next((octave for octave, share in enumerate(shares) if share > _MEASURABLE), _OCTAVES - 1)
    before, last = 1.0, 0.0
    for blur in _BLURS:
        share = gains(_soft(keeper, blur))[octave]
        if share <= shares[octave]:
            part = float(np.clip((before - shares[octave]) / max(before - share, 1e-6), 0, 1))
            last = float(np.sqrt(last**2 + part * (blur**2 - last**2)))
            break
        before, last = share, blur
    return max(last, 0.2)


def detail_beyond(keeper: Picture, member: Picture, placement: Placement) -> float:
    """Return the detail of a larger keeper beyond an enlarged member: RMS of its finest octave, as a share of the next
    one's.

    A plain change of contrast, compression artefacts and grain do not count.
    """
    back = maps.inverse(placement.transform)
    size, exact = whole_size(keeper)
    whole = laid(keeper.rgb, maps.straight(exact), size)[0]
    inside = inside_of(member.image.size, maps.rescaled(back, 1, exact), size)
    whole = whole * inside[..., None]  # leave out what the member does not show
    view = window(member, keeper, back, whole, exact)
    covered = inner_cells(view.inside)
    if covered.sum() < 6:
        return 0.0
    (ours, soft, copied), (coarser, _, _), _ = view.octaves
    before = cells_of(coarser**2, 1, covered)
    busy = np.argsort(before)[len(before) // 2 :]
    alone, common, of_copy, by_saving = (
        cells_of(product, 0, covered) for product in (ours**2, ours * copied, copied**2, (copied - soft) ** 2)
    )
    alone -= common**2 / (of_copy + 0.01) + by_saving
    even = before < 0.1 * np.median(before[busy])
    if even.sum() > 6:
        alone -= max(0.0, float(np.median(alone[even])))  # grain, as measured in even cells
    return float(np.sqrt(np.median((np.maximum(alone, 0) / (before + 1))[busy])))
