"""What each member of a family shows, and how finely: measured on all of them laid over each other."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from photodup.photos.compare.alignment import Alignment, align, placed_in, slopes
from photodup.photos.compare.canvas import (
    JITTER,
    MANY,
    Laid,
    angle,
    common_fineness,
    grown,
    is_turned,
    lay,
    on_fine_canvas,
    on_size,
    shares_of,
    small,
    stretch,
    without_margins,
)
from photodup.photos.compare.content import Contents, compare_contents, spread, where
from photodup.photos.compare.detail import finest, lost_by_shrinking, places, share_held, spectra
from photodup.photos.compare.exposures import FineNoise, displaced, fine_noise, own_rounding, rounding_noise
from photodup.photos.compare.features import Features, features
from photodup.photos.compare.merit import WHOLE, Merit, Relation
from photodup.photos.compare.snapping import maps_to
from photodup.photos.compare.tones import CLIPPED, chroma, gain, hues, lost_tones, tone_distance
from photodup.photos.compare.traces import (
    FileTraces,
    blockiness,
    coarsest_step,
    holds_rounding_of,
    is_enlarged_from,
    is_saved_from,
    saved_with,
    standard_tables,
    toned_first,
)

# Members that captions are looked for against: enough for a majority.
_JUDGES = 3
_MOST_PLACES = 5  # that are named
# Share of the picture that a member must show beyond the keeper to count as wider.
WIDER = 0.004
# Detail that is finer by less is the same.
FINER = 1.12
# Finer detail of which the keeper's own pixels have this share is nothing that it lacks.
_HELD = 0.65
# Colour: standard deviation of the chroma, greys. Below a quarter of the other's it is black and white.
_COLOURFUL, _GREYED = 3.0, 0.25
# The same among pixels of one light. In 90 families a photograph has at least 0.67 of what its lighter copy has there, and
# sepia 0.09 of what the photograph has (median; three have more than 0.35).
_HUES, _ONE_HUE = 0.8, 0.35
# What a strong compression makes of it, for each grey of its step: quality 10 adds 2 to 3, quality 30 about 0.5.
_HUES_OF_STEP = 0.04
# Greys by which a thing that one member has differs from what most show there; colour with small things over that without.
_OTHER_THING, _SMALL_THING = 40, 1.3
# Greys by which the light and the colours of an edit differ at least, and for each grey of a JPEG's step: quality 10
# (step 64) moves light by 1 and colours by 4.5, by its rounding of a block's mean by up to 5.3; a tenth more light moves
# it by 1.3, a third more colour by 3.3 (of 40 photographs the 5th percentile).
_OTHER_LIGHT, _OTHER_COLOUR, _LIGHT_OF_STEP, _COLOUR_OF_STEP = 1.2, 1.5, 0.01, 0.065
# Pixels for one of the canvas: fewer have too few of colour for a small thing.
_THUMBNAIL = 0.3
# Degrees by which a member stands out as turned.
_TURNED = 0.5
# Steps of the file's own table over those of an earlier compression, below which it was saved again.
_SAVED_AGAIN = 0.7
# Ratio of steps that are no longer alike, and below which a finer compression hides a coarser one before it.
_FINER_STEP, _HIDDEN = 1.1, 2.0
# Sharpness that is less than another's by more is a blur.
_AS_SHARP = 0.95
# Slopes that are steeper by more are sharpened, or the other's are blurred.
_SHARPER = 1.04
# Detail that ends so much earlier than another's was lost to a blur.
_WHOLE = 0.6
# Scales that differ by less are one.
_ONE_SCALE = 0.05
# More of the scene, as a ratio; and of the pixels of two files, of which one was written on, so many are alike.
_WIDER_FRAME, _MOST_PIXELS = 1.03, 0.8
# Detail beyond the other's pixels over what that one holds before them: in enlargements, and where it cannot be said;
# where the scales are near each other (steps of `_FACTOR`), less is certain.
_ENLARGED, _MAYBE_ENLARGED, _MAYBE_NEAR, _NEAR = 0.13, 0.4, 0.62, 3
# From so much on (`seen_in_an_edit`) a lighter picture is made of a file; of the two below, either may be the edit.
_PLAINLY = 4.0
# Greys by which a copy differs at most from its source, turned and saved as it was; and the source from it so many times.
_SAVED_AS, _REVERSED = 0.04, 2
# Ways in which programs change a size; and of a file a part of so many pixels is compared, without so many at its edges.
_RESAMPLINGS = [Image.Resampling[name] for name in ("BICUBIC", "LANCZOS", "BILINEAR", "BOX", "HAMMING")]
_PART, _EDGE = 1024, 16
# Two files are compared at every 7th pixel down and across; two decoders of one file differ by less, greys.
_EVERY, _ONE_DECODING = 7, 0.12
# Ratios of scales at which that is measured, and the most, so that large families take no longer.
_FACTOR, _MOST_FACTORS = 1.08, 30
_OCTAVE = 9  # such steps
# Greys by which the colours of paper lie apart at most, where grain is blurred away (pixels).
_ONE_COLOUR, _SOFT = 20, 7
# A part outside most other members, whose greys lie this near its median, may be border or sky alike.
_FLAT, _MOSTLY = 10, 0.98
# In what most members hold for a border, a member has something of its own if this share of it differs by so much.
_DIFFERS, _OF_ITS_OWN, _BLUR = 40, 0.3, 9
# Ratio of sides beyond which a larger picture is no enlargement, and from which it is not given up: a photograph that is
# a little unsharp holds nothing finer than its copy at half the size either.
_FAR_LARGER, _LARGER = 2.5, 1.1
# Ratio of a map's two scales from which on one picture is stretched.
_STRETCHED = 1.03
# A seam is a step over so many pixels that is this many times as large as any around it. A picture ends at a line where the
# rows on both sides correlate by less than 1 minus the fourth number. A part that covers more than the last share of a
# picture is a crop of it; a smaller one is held for a part of a collage if the larger picture ends along all of its edges.
_STEP, _AROUND, _SEAM, _TORN, _MOST_OF_A_COLLAGE = 6, 24, 1.5, 0.3, 0.75
# Slopes of a blur that fills a screen around a picture, over those of the picture.
_FILLED = 0.3
_SCENE = "of the scene"
# Share of the textured places that lie displaced between two exposures from two places. Of 308 copies of 52 kinds none has
# more than 0.11, on the canvas or finely, but for photographs of a screen; of 18 bursts none less than 0.2.
_MOVED = 0.12


# Left, top, right and bottom of a place, as shares of an upright picture, 0..1.
Box = tuple[float, float, float, float]
_Found = TypeVar("_Found")
_Compared = tuple[Contents, tuple[tuple[Box, Box], ...]]


@dataclass(frozen=True)
class Lacking:
    """What a member has that the keeper would not keep.

    Attributes:
        said: in words; empty where the member may go.
        places: where the two look different, in the keeper's frame and in the member's.
    """

    said: tuple[str, ...] = ()
    places: tuple[tuple[Box, Box], ...] = ()


def _once(method: Callable[..., _Found]) -> Callable[..., _Found]:
    """Keep what is found of a member or of two: files are read and compared once."""

    def kept(family: Any, *rows: int) -> _Found:
        key = method.__name__, *rows
        if key not in family._kept:
            family._kept[key] = method(family, *rows)
        return family._kept[key]

    return kept


class LaidFamily:
    """Members laid over each other.

    Args:
        rows: the members.
        hub: one of them, with which the others are compared first.
        load: gives a member's upright picture at full size and the traces of its file.
        proven: pairs of rows that were proven; members that the hub is not proven with are reached through them.
        features_of: gives the features of a member's picture.

    Attributes:
        merits: by row; of members that could be laid over the others.
    """

    def __init__(
        self,
        rows: Sequence[int],
        hub: int,
        load: Callable[[int], tuple[Image.Image, FileTraces]],
        proven: Collection[tuple[int, int]],
        features_of: Callable[[int, Image.Image], Features] = lambda _, image: features(image),
    ) -> None:
        # The keeper is compared with all others, so its picture stays at hand; of two files each is decoded once.
        self._load = load = lru_cache(maxsize=2)(load)
        self._fine_canvas = lru_cache(maxsize=4)(
            lambda row, fineness: on_fine_canvas(load(row)[0], self.laid[row], fineness)
        )
        self._kept: dict[tuple[Any, ...], Any] = {}
        self._pictures: dict[int, np.ndarray] = {}
        self._traces: dict[int, FileTraces] = {}
        sizes: dict[int, tuple[int, int]] = {}
        found: dict[int, Features] = {}
        for row in rows:
            image, self._traces[row] = load(row)
            self._pictures[row], found[row], sizes[row] = small(image), features_of(row, image), image.size
        maps = maps_to(hub, found, sizes, proven)
        self.laid: dict[int, Laid] = {}
        self.merits: dict[int, Merit] = {}
        if len(maps) < 2:
            return
        self._pictures = {row: self._pictures[row] for row in maps}
        self.laid = lay(self._pictures, maps, sizes)
        without_margins(self._pictures, self.laid)
        self._areas = {row: int(one.picture.sum()) for row, one in self.laid.items()}
        self._finest = self._measure_detail()
        self._chroma = {row: self._chroma_of(row) for row in self.laid}
        self._hues = {row: hues(one) for row, one in self.laid.items()}
        self.merits = self._judge()

    def _measure_detail(self) -> dict[int, float]:
        self._spots = spots = places(self.laid)
        powers, self._blocks, self._steps = {}, {}, {}
        coarse: dict[int, Any] = {}
        self._fine: dict[int, dict[int, float]] = {}
        self._sample: dict[int, np.ndarray] = {}
        scales = {one.scale for one in self.laid.values()}
        for row, one in self.laid.items():
            image, traces = self._load(row)
            grey = np.asarray(image.convert("L"))
            self._steps[row], self._blocks[row] = coarsest_step(grey), blockiness(grey)
            self._sample[row] = grey[::_EVERY, ::_EVERY].astype(np.int16)
            factors = {_factor(one.scale, s) for s in scales} - {0}
            if max(factors, default=0) > _OCTAVE:
                factors |= {_OCTAVE} | {n - _OCTAVE for n in factors if n > _OCTAVE}
            self._fine[row] = {n: lost_by_shrinking(grey, _FACTOR**n) for n in factors}
            powers[row] = spectra(grey, one, spots, traces)
            coarse[row] = grey if self._steps[row] else None
        first = next(iter(self.laid.values()))
        self._tones = self._cluster_tones()
        gains = {row: gain(first, one) for row, one in self.laid.items()}
        self._sharpness = {row: _sharpness(one) / max(gains[row], 1e-3) for row, one in self.laid.items()}
        for row, grey in coarse.items():
            # What a coarser compression before the last one added is no detail either.
            if grey is not None and self._was_coarser(row) and self._less_compressed(row):
                after = self._traces[row].after(self._steps[row])
                powers[row] = spectra(grey, self.laid[row], spots, after)
        self._own_detail = {
            row: finest({row: powers[row]}, {row: self.laid[row]}, gains, self._blocks)[row] for row in powers
        }
        limits = {
            row: min(self.laid[o].scale for o in sources) / 2
            for row in self.laid
            if (sources := [o for o in self.laid if self._is_enlarged(row, o)])
        }
        found = finest(powers, self.laid, gains, self._blocks, limits)
        # A copy cannot be less compressed than its parent, so what was compressed harder holds nothing finer. Nor does an
        # enlargement.
        parents = {row: [o for o in self._less_compressed(row) if self._steps[o]] for row in found}
        for row in limits:
            parents[row] += [o for o in self.laid if self._holds_no_more(row, o)]
        return {row: min([own, *(found[other] for other in parents[row])]) for row, own in found.items()}

    def _cluster_tones(self) -> dict[int, int]:
        """Return for each member a number that it shares with those of the same tones and colours."""
        found: dict[int, int] = {}
        for row in self.laid:
            number = next(
                (n for other, n in found.items() if not any(self._retoned(other, row, left_out=1))), None
            )
            found[row] = len(set(found.values())) if number is None else number
        return found

    def _retoned(self, first: int, second: int, *, left_out: int = 0) -> tuple[bool, bool]:
        """Return whether two members differ in light, and in colour."""
        step = max(self._coarsest(first), self._coarsest(second))
        light, colours = self._tones_apart(first, second)
        is_relit = light > _OTHER_LIGHT + _LIGHT_OF_STEP * step
        return is_relit, colours[left_out] > _OTHER_COLOUR + _COLOUR_OF_STEP * step

    @_once
    def _tones_apart(self, first: int, second: int) -> tuple[float, list[float]]:
        return tone_distance(self.laid[first], self.laid[second])

    def _beyond(self, larger: int, smaller: int) -> float:
        """Return the share of what a smaller member holds before its last pixel that a larger one holds beyond it.

        An octave on either side at most: coarse structure, of which there is most, says nothing of an enlargement.
        """
        factor = _factor(self.laid[larger].scale, self.laid[smaller].scale)
        if self.laid[larger].scale <= self.laid[smaller].scale or not factor:
            return 1.0
        if len(self.laid) >= MANY and self._is_usual_scale(self.laid[larger]):
            return 1.0  # soft as it is, so many were made from it
        finer = max(0, factor - _OCTAVE)
        noise = self._traces[larger].noise(0.5 / _FACTOR**factor, 0.5 / _FACTOR**finer if finer else 1.0)
        fine = self._fine[larger]
        own, its = fine[factor] - fine.get(finer, 0.0) - noise, self._fine[smaller][factor - finer]
        return max(own, 0.0) / max(its, 0.05)

    def _is_enlarged(self, larger: int, smaller: int) -> bool:
        """Return whether a member holds nothing beyond a smaller one that is large enough to have come first."""
        is_far = self.laid[larger].scale > _FAR_LARGER * self.laid[smaller].scale
        is_soft = not is_far and self._beyond(larger, smaller) < _ENLARGED
        if is_soft and not self._is_saved_from(smaller, larger):
            return True
        return self._is_maybe_enlarged(larger, smaller) and self._holds_no_more(larger, smaller)

    @_once
    def _holds_no_more(self, larger: int, smaller: int) -> bool:
        """Return whether a member with more pixels is shown to be made of a smaller one's file."""
        is_larger = self.laid[larger].scale > _LARGER * self.laid[smaller].scale
        return is_larger and self._shows(is_enlarged_from, smaller, larger)

    def _is_maybe_enlarged(self, larger: int, smaller: int) -> bool:
        is_near = _factor(self.laid[larger].scale, self.laid[smaller].scale) < _NEAR
        return self._beyond(larger, smaller) < (_MAYBE_NEAR if is_near else _MAYBE_ENLARGED)

    def relation(self, keeper: int, member: int) -> Relation:
        """Return what may make one of two laid members an edit of the other."""
        a, b = self.laid[keeper], self.laid[member]
        steep = [_sharpness(one, grown(a.picture & b.picture, -4)) for one in (a, b)]
        is_one_size = abs(a.scale / b.scale - 1) < _ONE_SCALE
        contents, _ = self._compare_contents(keeper, member)
        noise, rounding, seen_in_edit = self._compare_noise(keeper, member)
        # The one part of the colours that writing may fill, or that is too small for a thumbnail.
        left_out = int(bool(contents.places) or min(a.scale, b.scale) < _THUMBNAIL)
        is_relit, is_recoloured = self._retoned(keeper, member, left_out=left_out)
        one_tone = not (is_relit or is_recoloured)
        # A blurred picture's own detail falls off before its pixels end.
        is_whole = self._own_detail[member] >= _WHOLE * min(self._own_detail[keeper], 0.5 * b.scale)
        seen = Relation(
            is_retoned=not one_tone,
            may_be_reexposed=is_relit and not seen_in_edit,
            is_mirrored=a.is_mirrored != b.is_mirrored,
            is_turned=is_turned(a, b),
            is_stretched=stretch(a, b) > _STRETCHED,
            is_sharper=one_tone
            and b.scale > 0.9 * min(a.scale, 1.0)
            and is_whole
            and steep[0] > _SHARPER * steep[1],
            is_resaved=self._may_be_resaved(keeper, member),
            is_smoother=one_tone and is_one_size and noise.may_be_filtered(rounding),
            is_larger=self._is_maybe_enlarged(keeper, member),
            is_one_size=is_one_size,
        )
        doubts = (seen.is_stretched, seen.is_sharper, seen.is_resaved, seen.is_smoother, seen.is_larger)
        is_other_format = is_one_size and not self._traces[member].table
        if any(doubts) or is_other_format:
            is_source = self._is_saved_from(member, keeper) or self._is_converted(member, keeper)
            return replace(seen, is_source=is_source)
        return replace(seen, is_remade=self._is_remade(keeper, member))

    @_once
    def _is_captioned(self, row: int) -> bool:
        """Return whether a member has a caption over the picture, as most others show."""
        # Of its tones, sharp and whole: a clipped picture, a blurred one and a crop do not explain what it shows.
        others = sorted(
            (o for o in self.laid if o != row),
            key=lambda o: (self._tones[o] != self._tones[row], -self._finest[o], -self._areas[o]),
        )
        others, seen = others[:_JUDGES], dict[int, Contents]()
        may_be, lacking = list[int](), 0
        # Looked at only while it may still be most, and finely only where they differ.
        for other in others:
            if 2 * (len(may_be) + len(others) - len(seen)) <= len(others):
                break
            a, b = self.laid[other], self.laid[row]
            seen[other] = compare_contents(a.rgb, b.rgb, _shared(a, b))
            if seen[other].places:
                may_be.append(other)
        while may_be and 2 * lacking <= len(others) < 2 * (lacking + len(may_be)):
            other = may_be.pop(0)
            lacking += seen[other].is_caption or self._compare_contents(other, row)[0].is_caption
        return 2 * lacking > len(others)

    def _chroma_of(self, row: int) -> tuple[float, float]:
        """Return `chroma` of a member, without a thing of other colours that others of its tones do not have."""
        own = self.laid[row]
        found = chroma(own, own.picture)
        alike = [one for o, one in self.laid.items() if o != row and self._tones[o] == self._tones[row]][
            :_JUDGES
        ]
        if found[0] < _SMALL_THING * found[1] or len(alike) < 2:
            return found
        others = [np.where(one.picture[..., None], one.rgb, own.rgb) for one in alike]
        apart = np.abs(own.rgb - np.median(others, axis=0)).max(axis=2)
        return chroma(own, own.picture & ~grown(apart > _OTHER_THING, 4))

    def _greyed(self, rows: Collection[int]) -> set[int]:
        """Return which of some members are black and white beside another of them; a coloured caption is no colour."""
        chromas = [self._chroma[row] for row in rows]
        if min(without for _, without in chromas) >= _GREYED * max(with_small for with_small, _ in chromas):
            return set()  # no caption could change that, so we look for none
        colours = {
            row: without if with_small > _SMALL_THING * without and self._is_captioned(row) else with_small
            for row, (with_small, without) in zip(rows, chromas, strict=True)
        }
        most = max(colours.values())
        return {row for row, own in colours.items() if most > _COLOURFUL and own < _GREYED * most}

    def _most_hues(self) -> float:
        """Return the most that colour varies in a member without a caption, for one light and beyond its compression."""
        found = {row: own - _HUES_OF_STEP * self._coarsest(row) for row, own in self._hues.items()}
        ranked = sorted(found, key=lambda row: -found[row])
        if min(self._hues.values()) >= _ONE_HUE * found[ranked[0]]:
            return found[ranked[0]]  # nobody lacks colour even against this one, so we look for no caption
        return next((found[row] for row in ranked if not self._is_captioned(row)), 0.0)

    def _judge(self) -> dict[int, Merit]:
        told = _told_apart_from_margins(self.laid)
        are_few = len(self.laid) < MANY
        # In a collage or a story frame only the picture inside it counts: the whole changes along all of its edges.
        parts = {
            row: [o for o in self.laid.values() if o is not one and _is_set_in(o, one)]
            for row, one in self.laid.items()
            if are_few and not one.added
        }
        for row, within in parts.items():
            told[row] &= np.any([one.frame for one in within], axis=0) if within else True
        whole = np.any(list(told.values()), axis=0)
        shown = {row: float((one & whole).sum() / max(whole.sum(), 1)) for row, one in told.items()}
        greyed, most_hues = self._greyed(self.laid), self._most_hues()
        in_colour = {
            row: most_hues < _HUES or (row not in greyed and self._hues[row] >= _ONE_HUE * most_hues)
            for row in self.laid
        }
        mirrored = np.mean([one.is_mirrored for one in self.laid.values()])
        hub = next(iter(self.laid.values()))
        tones = list(self._tones.values())
        usual = max(set(tones), key=tones.count)
        turns = {row: angle(hub, one) for row, one in self.laid.items()}
        usual_turn = sorted(turns.values())[(len(turns) - 1) // 2]
        merits = {}
        for row, one in self.laid.items():
            added = one.added
            # Of two that show as much of the picture a caption decides; to look for one takes long.
            is_equalled = any(o != row and abs(shown[o] - shown[row]) <= WHOLE for o in shown)
            if is_equalled and self._is_captioned(row):
                added += ("a caption",)
            if parts.get(row):
                added += ("something around it",)
            sources = (o for o in self.laid if o != row and not _shows_beyond(told[row], self.laid[o]))
            share = min(1.0, self._finest[row] / (0.5 * one.scale))
            # A grey copy has the tones of no channel.
            witnesses = [o for o in self.laid if o != row and (in_colour[o] or not in_colour[row])]
            merits[row] = Merit(
                pages=self._traces[row].pages,
                in_colour=in_colour[row],
                shown=shown[row],
                added=added,
                pixels=round((one.scale * share) ** 2 * float(told[row].sum())),
                lost_tones=max((lost_tones(one, self.laid[o]) for o in witnesses), default=0.0),
                tone=self._tones[row],
                is_odd=len(tones) > 2
                and bool(
                    (mirrored != 0.5 and one.is_mirrored != (mirrored > 0.5))
                    or (2 * tones.count(usual) > len(tones) and self._tones[row] != usual)
                    or abs(turns[row] - usual_turn) > _TURNED
                ),
                is_mirrored=one.is_mirrored,
                is_made_of_another=are_few and any(self._is_made_of(row, o) for o in sources),
                step=self._traces[row].step,
                **self._compression(row),
                is_untouched=self._traces[row].is_phones
                or (self._traces[row].is_lossless and not self._is_made_of_a_jpeg(row)),
                is_converted=self._traces[row].is_lossless and self._is_made_of_a_jpeg(row),
                is_enlarged=any(self._is_enlarged(row, o) for o in self.laid),
            )
        return merits

    def _beside(self, row: int) -> list[int]:
        """Return the members whose compression can be compared: their blocks lie where its own do.

        A blur wipes out every trace, sharpening and other tones move them: they say nothing of what the source went through.
        """
        return [
            other
            for other, one in self.laid.items()
            if other != row
            and _same_grid(self.laid[row], one)
            and self._tones[other] == self._tones[row]
            and _AS_SHARP < self._sharpness[other] / max(self._sharpness[row], 1e-6) < 1 / _AS_SHARP
        ]

    def _less_compressed(self, row: int) -> list[int]:
        """Return the members that went through no compression as coarse as this one did, or once where it did twice."""
        steps = {o: self._coarsest(o) for o in [row, *self._beside(row)]}
        own = steps.pop(row)
        return [
            other
            for other, step in steps.items()
            if step < own / _FINER_STEP
            or (step < own * _FINER_STEP and self._was_coarser(row) and not self._was_coarser(other))
        ]

    def _may_be_resaved(self, keeper: int, member: int) -> bool:
        """Return whether a member may have been compressed less hard than the one to keep, which was saved again since.

        A second compression hides the first unless that was about twice as coarse.
        """
        if self._was_coarser(keeper) and member in self._less_compressed(keeper):
            return True
        # Where no compression is seen in the keeper, one in between may have hidden the member's coarser one there.
        if self._was_coarser(member) and not self._steps[keeper] and member in self._beside(keeper):
            return True
        coarser = self._coarsest(member) / max(self._coarsest(keeper), 1.0)
        return _FINER_STEP < coarser < _HIDDEN and member in self._beside(keeper)

    def _coarsest(self, row: int) -> float:
        """Return the step of the coarsest compression that is seen or in the file's own table, greys."""
        return max(self._steps[row], self._traces[row].usual_step)

    def _compression(self, row: int) -> dict[str, Any]:
        """Return what the traces of compression say, against the members whose blocks lie where its own do."""
        step, beside = self._steps[row], self._beside(row)
        known = [self._steps[o] for o in beside if self._steps[o]]
        unknown = [self._blocks[o] for o in beside if not (step and self._steps[o])]
        return {
            "coarser": max(1.0, step / min(known)) if known and step else 1.0,
            "blockier": max(1.0, self._blocks[row] / min(unknown)) if unknown else 1.0,
            "is_saved_again": self._was_coarser(row)
            and any(abs(self._steps[o] / step - 1) < 0.15 and not self._was_coarser(o) for o in beside),
        }

    def _is_same_but_for_places(self, first: int, second: int) -> bool:
        """Return whether two files have the same pixels nearly everywhere: what is finer in one was put there."""
        return _same_grid(self.laid[first], self.laid[second]) and bool(
            np.mean(np.abs(self._sample[first] - self._sample[second]) <= 1) > _MOST_PIXELS
        )

    def _is_made_of_a_jpeg(self, row: int) -> bool:
        """Return whether a lossless file has the pixels, or the very steps, of a JPEG that lies on it pixel by pixel."""
        for o, one in self.laid.items():
            if o == row or not self._traces[o].table or not _same_grid(self.laid[row], one):
                continue
            apart = np.abs(self._sample[row] - self._sample[o]).mean()
            if apart < _ONE_DECODING or abs(self._steps[row] - self._traces[o].usual_step) < max(
                0.6, 0.15 * self._steps[row]
            ):
                return True
        return False

    def _is_made_of(self, row: int, source: int) -> bool:
        """Return whether another's file, turned, resized, lighter or darker, and saved, is shown to give a member's."""
        is_retoned = self._retoned(source, row)
        if any(is_retoned) and self._toned_first(source, row) == 0:
            return True
        if is_retoned[0]:
            return self._compare_noise(source, row)[2] > _PLAINLY
        ours, theirs = self.laid[row], self.laid[source]
        larger, smaller = (row, source) if ours.scale > theirs.scale else (source, row)
        is_in_doubt = stretch(theirs, ours) > _STRETCHED or self._is_maybe_enlarged(larger, smaller)
        is_asked = is_in_doubt or self._is_moved(source, row)
        return self._is_converted(row, source) or (is_asked and self._is_saved_from(row, source))

    @_once
    def _toned_first(self, first: int, second: int) -> int:
        """Return which of two JPEGs that lie pixel on pixel came first, by their tones; -1 where nobody knows."""
        if first > second:
            found = self._toned_first(second, first)
            return found if found < 0 else 1 - found
        tables = [self._traces[row].table for row in (first, second)]
        # A sepia copy has one hue left, so its colours do not show what it was made of.
        low, high = sorted(self._hues[row] for row in (first, second))
        if not all(tables) or not _same_grid(self.laid[first], self.laid[second]) or low < _ONE_HUE * high:
            return -1
        return toned_first(tables, [np.asarray(self._load(row)[0].convert("RGB")) for row in (first, second)])

    @_once
    def _is_converted(self, row: int, source: int) -> bool:
        """Return whether a file of a format without tables is shown to be made of a JPEG of its size or smaller."""
        return not self._traces[row].table and self._is_remade(row, source)

    @_once
    def _is_saved_from(self, row: int, source: int) -> bool:
        """Return whether saving another's picture, at a member's size and turned as it lies, gives the member's file."""
        if self._is_moved(source, row):
            apart = self._saved_as(source, row)
            return apart < _SAVED_AS and self._saved_as(row, source) > _REVERSED * apart
        return self._shows_saved(row, source) and not self._shows_saved(source, row)

    def _shows_saved(self, row: int, source: int) -> bool:
        """Return whether a file passes `is_saved_from`, by its own table or one of a coarser compression before that."""
        coarser = standard_tables(self._steps[row]) if self._was_coarser(row) else ()
        return self._shows(is_saved_from, row, source, coarser)

    def _is_moved(self, first: int, second: int) -> bool:
        a, b = self.laid[first], self.laid[second]
        return is_turned(a, b) or a.is_mirrored != b.is_mirrored

    def _saved_as(self, source: int, row: int) -> float:
        """Return how far the pixels of a file lie from another's, turned as it and saved with its table if any, greys."""
        table = self._traces[row].table
        return min(
            (
                float(np.abs((saved_with(table, given) if table else given).astype(np.int16) - own).mean())
                for own, given in self._at_size(source, row)
            ),
            default=np.inf,
        )

    def _shows(self, proof: Callable[..., bool], file: int, other: int, coarser: Sequence[Any] = ()) -> bool:
        """Return whether a member's table or a coarser one, its file and another's picture at its size pass as a proof."""
        tables = [table for table in (self._traces[file].table, *coarser) if table]
        pairs = self._at_size(other, file) if tables else ()
        return any(proof(table, *pair) for pair in pairs for table in tables)

    def _is_remade(self, row: int, source: int) -> bool:
        """Return whether a member holds the compression of another's file, of its size or smaller, as what is made of it."""
        ours, theirs = self.laid[row], self.laid[source]
        ratio = ours.scale / theirs.scale
        beside = self._traces[row].table if ratio < 1 + _ONE_SCALE else ()  # else it has no steps of its own
        if ratio > 1 - _ONE_SCALE and self._shows(partial(holds_rounding_of, beside=beside), source, row):
            return True
        # What shows more may be a frame around the other, or a collage of it, saved as finely.
        return bool(ours.frame.sum() > _WIDER_FRAME * theirs.frame.sum()) and self._is_saved_from(row, source)

    def _at_size(self, source: int, row: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield a part of a file, uint8[h, w], and the same of another member, turned and resized as it lies, in each way.

        Where one is a part of the other, its place is sought to the pixel. Nothing where one is turned a little.
        """
        turn = np.linalg.inv(self.laid[source].file_to_canvas) @ self.laid[row].file_to_canvas
        scales = np.linalg.norm(turn[:2, :2], axis=0)
        (right, down), (across, along) = exact = (turn[:2, :2] / scales).round().astype(int)
        if np.abs(turn[:2, :2] / scales - exact).max() > _ONE_SCALE / 10:
            return
        own, its = (np.asarray(self._load(one)[0].convert("L")) for one in (row, source))
        turned = its[::along, ::right] if right else its[::across, ::down].T
        at, size = np.zeros(2, int), np.array(own.shape[::-1])
        placed = size
        if np.abs(turned.shape[::-1] / size / scales - 1).max() > _ONE_SCALE:
            ends = np.array([(0, 0), its.shape[::-1]]) - 0.5
            back = np.linalg.inv(turn)
            found = placed_in(own, turned, np.sort(ends @ back[:2, :2].T + back[:2, 2] + 0.5, axis=0))
            if found is None:
                return
            at, placed = found
        # Whole blocks in the middle of what both show, and as much of the other.
        low, high = np.maximum(at, 0), np.minimum(at + placed, size)
        first = np.maximum(-(-low // 8) * 8, (low + high - _PART) // 16 * 8)
        last = np.minimum(high, first + _PART)
        (left, top), (right, below) = first, last
        part, inner = own[top:below, left:right], np.s_[_EDGE:-_EDGE, _EDGE:-_EDGE]
        if turned.shape == tuple(placed[::-1]):
            yield part, turned[top - at[1] : below - at[1], left - at[0] : right - at[0]]
            return
        ratios = turned.shape[::-1] / placed
        box = (*((first - at) * ratios), *np.minimum((last - at) * ratios, turned.shape[::-1]))
        image = Image.fromarray(turned)
        for way in _RESAMPLINGS:
            yield part[inner], np.asarray(image.resize(part.shape[::-1], way, box))[inner]

    def _was_coarser(self, row: int) -> bool:
        """Return whether a file went through a compression coarser than its own."""
        return bool(self._steps[row]) and self._traces[row].step < _SAVED_AGAIN * self._steps[row]

    def _is_usual_scale(self, one: Laid) -> bool:
        """Return whether most members have this scale: soft as it is, they were made from it, and not it from them."""
        same = sum(abs(other.scale / one.scale - 1) < _ONE_SCALE for other in self.laid.values())
        return 2 * same > len(self.laid)

    def lacks(self, keeper: int, member: int) -> Lacking:
        """Return what a member has that the keeper would not keep; nothing where it may go."""
        if keeper not in self.laid or member not in self.laid:
            return Lacking(("could not be laid over the photo to keep",))
        a, b = self.laid[keeper], self.laid[member]
        said = []
        pages = self._traces[keeper].pages, self._traces[member].pages
        if max(pages) > 1:
            n = pages[1] if pages[1] > 1 else pages[0]
            said.append(f"{'it has' if pages[1] > 1 else 'the one to keep has'} {n} pages or frames")
        if greyed := self._greyed((keeper, member)):
            said.append("in colour" if keeper in greyed else "black and white")
        beyond = grown(b.picture, -3) & ~grown(a.picture, 1)
        if beyond.sum() > WIDER * max(int(a.picture.sum()), 1) and not _is_filled(a, b, beyond):
            # It stays anyway, so we skip the fine comparison, which takes most of the time.
            return Lacking((*said, f"shows more {_what_is_beyond(b, beyond)}"))
        if member in a.plain_around:
            said.append("the one to keep has only one colour around this one, which may be a border")
        edges = _edges(a, b)
        # Where one picture has many copies no collage of it is kept, and this check would hold back too many crops.
        may_be = len(self.laid) < MANY and b.frame.sum() < _MOST_OF_A_COLLAGE * a.frame.sum()
        is_collage = any(seam for seam, *_ in edges) or (
            may_be and edges and all(ends for _, ends, _ in edges)
        )
        if is_collage and not self._is_saved_from(member, keeper):
            said.append("the one to keep does not seem to go on where this one ends: it may be a collage")
        is_finer = self._is_finer(member, keeper) and not self._is_same_but_for_places(member, keeper)
        may_be_better = is_finer or (b.scale > _LARGER * a.scale and not self._holds_no_more(member, keeper))
        if may_be_better and not self._is_saved_from(member, keeper):
            unseen = "has more pixels, though no finer detail is seen in them"
            said.append("holds finer detail" if is_finer else unseen)
        contents, boxes = self._compare_contents(keeper, member)
        noise, rounding, _ = self._compare_noise(keeper, member)
        # The letters of a caption are no tones of the picture.
        letters = tuple(place.box for place in contents.places) if contents.is_caption else ()
        if lost_tones(a, b, letters) > CLIPPED:
            said.append("has light or dark tones that the other lost")
        # Each may seem to have writing that the other lacks: then nobody can say which of them has it.
        are_captioned = contents.is_caption and self._is_captioned(keeper) and self._is_captioned(member)
        if differs := contents.places and (not contents.is_caption or are_captioned):
            said.append(f"looks different {where(contents.places)}")
        if max(displaced(a, b), self._align(keeper, member).displaced) > _MOVED:
            said.append("parts lie displaced, as between two exposures")
        if noise.is_of_two_exposures(rounding):
            said.append("has fine noise of its own, as another exposure has")
        return Lacking(tuple(said), boxes if differs else ())

    def _finely(self, keeper: int, member: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return two members on a canvas of the smaller one's resolution, and bool[h, w]: where both show the picture."""
        a, b = self.laid[keeper], self.laid[member]
        fineness = common_fineness(a, b)
        first, second = (self._fine_canvas(row, fineness) for row in (keeper, member))
        height, width = first.shape[:2]
        return first, second, on_size(_shared(a, b), (width, height))

    @_once
    def _compare_contents(self, keeper: int, member: int) -> _Compared:
        """Return what a member holds that the keeper does not explain, and the first places in the frames of both."""
        a, b = self.laid[keeper], self.laid[member]
        contents = compare_contents(*self._finely(keeper, member), self._align(keeper, member))
        return contents, tuple(
            (shares_of(one.box, a), shares_of(one.box, b)) for one in contents.places[:_MOST_PLACES]
        )

    @_once
    def _align(self, first: int, second: int) -> Alignment:
        if first > second:
            return self._align(second, first).reversed()
        return align(*self._finely(first, second))

    @_once
    def _fine_noise(self, first: int, second: int) -> FineNoise:
        if first > second:
            return self._fine_noise(second, first).reversed()
        own, other, shared = self._finely(first, second)
        return fine_noise(own, self._align(first, second).moved(other), shared)

    def _compare_noise(self, keeper: int, member: int) -> tuple[FineNoise, float, float]:
        """Return the noise of two members, and in greys² what rounding put into it.

        The third number says how plainly the member is the keeper's file, lighter or darker (`seen_in_an_edit`).
        """
        noise = self._fine_noise(keeper, member)
        fineness = common_fineness(self.laid[keeper], self.laid[member])
        files = [(row, self._traces[row], self.laid[row].scale / fineness) for row in (keeper, member)]
        rounding = sum(rounding_noise(traces, self._steps[row], scale) for row, traces, scale in files)
        return noise, rounding, noise.seen_in_an_edit(*(own_rounding(*one[1:]) for one in files))

    def _is_finer(self, member: int, keeper: int) -> bool:
        """Return whether a member has finer detail that the keeper lacks."""
        low, high = self._finest[keeper], self._finest[member]
        if high <= FINER * low:
            return False
        pair = keeper, member
        greys = tuple(np.asarray(self._load(row)[0].convert("L")) for row in pair)
        return share_held(greys, tuple(self.laid[row] for row in pair), self._spots, low, high) < _HELD


def _told_apart_from_margins(laid: Mapping[int, Laid]) -> dict[int, np.ndarray]:
    """Return bool[h, w] by row: what each member shows of the picture, as far as that can be told from a margin."""
    import cv2

    frames = np.sum([one.frame.astype(int) for one in laid.values()], axis=0)
    margins = {row: one.frame & ~one.picture for row, one in laid.items()}
    voted = 2 * sum(margin.astype(int) for margin in margins.values()) >= np.maximum(frames, 1)
    found = {}
    for row, one in laid.items():
        found[row] = one.picture & ~_undecided(one, frames, len(laid))
        for other, margin in margins.items():
            there = found[row] & voted & margin
            if other != row and there.any():
                # At the softer one's sharpness: the edge of a blurred border lies elsewhere, and is nothing of its own.
                own, its = (
                    cv2.blur(rgb, (_BLUR, _BLUR)).astype(np.int16) for rgb in (one.rgb, laid[other].rgb)
                )
                apart = np.abs(own - its)[there].max(axis=1)
                if (apart > _DIFFERS).mean() < _OF_ITS_OWN:
                    found[row] &= ~there
    return found


def _undecided(one: Laid, frames: np.ndarray, n: int) -> np.ndarray:
    """Return bool[h, w]: what a member shows outside most others, where it is flat."""
    outside = one.picture & (3 * frames <= n)
    if not outside.any():
        return outside
    even = spread(one.rgb[outside]) <= _FLAT
    return outside if even.mean() >= _MOSTLY else np.zeros_like(outside)


def _what_is_beyond(one: Laid, beyond: np.ndarray) -> str:
    """Return in words what a member shows where bool[h, w]: of a scene, or what may be paper."""
    import cv2

    off = spread(cv2.blur(one.rgb, (_SOFT, _SOFT))[beyond])
    return "around the picture, nearly of one colour" if np.mean(off <= _ONE_COLOUR) > 0.9 else _SCENE


def _edges(whole: Laid, part: Laid) -> list[tuple[bool, bool, bool]]:
    """Return of each edge of a picture that lies within another whether that one changes along it, may end, or ends there.

    Where it changes the first is part of a collage, and no crop. Grass ends at every line: the third is more than that.
    """
    found = []
    ys, xs = np.nonzero(part.frame)
    for grey, ends, along in ((whole.grey.T, xs, ys), (whole.grey, ys, xs)):
        band = grey[:, along.min() : along.max() + 1]
        steps = np.abs(band[_STEP:] - band[:-_STEP]).mean(axis=1)
        lines = band - band.mean(axis=1, keepdims=True)
        lines /= np.linalg.norm(lines, axis=1, keepdims=True) + 1e-3
        breaks = 1 - (lines[_STEP:] * lines[:-_STEP]).sum(axis=1)
        for at in (int(end) - _STEP // 2 for end in (ends.min(), ends.max())):
            if _AROUND <= at < len(steps) - _AROUND:
                near = slice(at - 2, at + 3)
                around = np.r_[at - _AROUND : at - _STEP, at + _STEP : at + _AROUND]
                is_seam = steps[near].max() > _SEAM * steps[around].max()
                torn = breaks[near].max()
                found.append(
                    (bool(is_seam), bool(torn > _TORN), bool(torn > max(_TORN, breaks[around].max())))
                )
    return found


def _is_set_in(part: Laid, whole: Laid) -> bool:
    """Return whether a picture changes or may end along each edge of another that lies within it, and does along half."""
    edges = _edges(whole, part)
    ending = sum(changes or ends for changes, _, ends in edges)
    return all(changes or may_end for changes, may_end, _ in edges) and 2 * ending >= max(len(edges), 1)


def _is_filled(part: Laid, whole: Laid, beyond: np.ndarray) -> bool:
    """Return whether one picture stands in another that is only a blur around it, whatever is written on that.

    An even colour around it is no blur: somebody may have photographed a picture on paper or on a wall.
    """
    if not _is_set_in(part, whole) or _what_is_beyond(whole, beyond) != _SCENE:
        return False
    steep = slopes(whole.grey)
    around, inside = (np.percentile(steep[mask], 95) for mask in (beyond, grown(part.picture, -4)))
    return bool(around < _FILLED * inside)


def _shows_beyond(shown: np.ndarray, other: Laid) -> bool:
    """Return whether bool[h, w] `shown` goes beyond another's frame by more than `WIDER`: it cannot be made of it."""
    return bool((shown & ~grown(other.frame, JITTER)).sum() > WIDER * max(int(other.frame.sum()), 1))


def _shared(first: Laid, second: Laid) -> np.ndarray:
    """Return bool[h, w]: where both show the picture, but for the outermost pixels."""
    return grown(first.picture & second.picture, -4)


def _factor(first: float, second: float) -> int:
    """Return the ratio of two scales in steps of `_FACTOR`, rounded down, whichever is larger; 0: too near to say."""
    return min(int(abs(np.log(first / second)) / np.log(_FACTOR) + 0.02), _MOST_FACTORS)


def _sharpness(one: Laid, inside: np.ndarray | None = None) -> float:
    """Return how steep the slopes of a member are, greys a pixel: coarse enough that no compression changes it."""
    inside = grown(one.picture, -4) if inside is None else inside
    return float(np.sqrt(np.square(slopes(one.grey)[inside]).mean())) if inside.any() else 0.0


def _same_grid(first: Laid, second: Laid) -> bool:
    """Return whether two members are of one size and lie on each other pixel by pixel."""
    return first.size == second.size and np.allclose(first.to_canvas, second.to_canvas, atol=1e-6, rtol=0)
