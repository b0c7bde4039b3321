"""Thresholds that decide whether a file may go."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Thresholds: when two files show one picture, and how far a member may differ from our copy of the keeper
    (`reproduce`).

    Measured on photographs of tools/photographs and their edits at 480 to 800 pixels: honest copies (resized as four
    programs do, cropped, saved again, converted) lie on one side of each, edits and other exposures on the other. Greys are
    0..255.
    """

    # `CopyEvidence` by local features: chosen from the curves that benchmarks/photo_quality measures.
    min_inliers: int = 10
    min_overlap: float = 0.3
    min_correlation: float = 0.6
    max_spot: float = 0.35
    min_agreement: float = 0.95
    # `CopyEvidence` by grey values, for pictures with few features.
    min_patches: int = 20
    max_stretch: float = 1.25
    # Light: share of cells that differ by more than `light_greys`, and median difference of the dark, middle or bright
    # third. Honest copies reach 0.11 and 1.1 greys; brightness x0.9 and a warm filter 0.9 and 10, colours x1.12 1.7 to 2.2
    # greys.
    light_greys: float = 3.0
    light_share: float = 1 / 3
    tone_greys: float = 1.5
    # Saturation: relative change of all colours, if it amounts to `saturation_greys`. Honest JPEGs reach 0.01, other formats
    # 0.09 (WebP 60); muted photographs at x0.85 and x1.2 give 0.11 to 0.21 and 0.9 greys.
    saturation: float = 0.06
    saturation_other_formats: float = 0.12
    saturation_greys: float = 0.3
    # A place: connected pixels, each differing by this many times what compression and alignment explain. Honest copies
    # reach 1.14 (a story's frame), retouched ones 2.7, writing 5 to 36.
    place_times: float = 1.2
    place_pixels: int = 20
    # A smaller place, such as a digit, that differs so many times as much as 99.9% of the picture, from `place_times` on;
    # `small_times` are enough. Of 590 honest copies one, reduced without a filter, has such a place, and of 54 tables with
    # one digit changed (9 to 13 pixels, 0.5 to 1 times the size, quality 82 and 92) 45.
    stands_out: float = 2.5
    small_times: float = 2.0
    small_pixels: int = 3
    # Relative contrast of detail in octaves of 2 to 8 pixels, and in the finest. Honest copies reach 1.03 and 1.13;
    # sharpened ones begin at 1.08 and 1.21.
    contrast: float = 0.06
    contrast_finest: float = 0.25
    # Share of the member's finest octave missing from our copy. Honest copies reach 0.42; if the keeper is a half-size copy,
    # 0.66 to 0.83.
    finer: float = 0.45
    # Grain of even cells, checked if our copy does not predict the member: least grain of the keeper (greys; half as much an
    # octave coarser), least correlation of member and keeper relative to that of our copy and keeper, and tolerance in
    # standard errors. Smaller copies reach 0.85, other exposures with grain of 2 to 6 greys 0 to 0.78.
    grain_greys: float = 0.5
    grain_common: float = 0.8
    grain_chance: float = 2.0
    # The same if the member's quantization is unknown: least grain of the keeper (greys), least share of it left in the
    # member, and least share of that which is the keeper's. Copies have 0.38 and more (AVIF, quality 55 to 95), exposures 0
    # to 0.3.
    grain_greys_other_formats: float = 0.95
    grain_left: float = 0.3
    grain_of_keeper: float = 0.3
    # An edge of the keeper where the member ends, relative to the contrast beside it. Crops reach 1.9, frames 18.
    edge_times: float = 3.0
    # `View.explained` from which the member was saved from the keeper. Copies have 0.96 to 1, strongly compressed other
    # exposures up to 0.84.
    explained: float = 0.9
    # `rounding` from which a file was saved from a JPEG: such files have 0.11 (WebP) to 0.9; by chance up to 0.05.
    rounding: float = 0.1
    # Largest RMS difference (greys) of the same pixels, and of a high-quality copy made by a known resampling method;
    # enlarged and sharpened pictures have 1.7 and more.
    equal_greys: float = 0.05
    resized_greys: float = 0.7
    # `detail_beyond` of a larger keeper: enough alone, and enough with another sign (its metadata names a camera, a
    # known resampling method gives the member, or the member is strongly compressed). Half-size members give 0.4 to 1.3;
    # enlargements (bicubic, sharpened or smoothed) up to 0.22.
    detail_surely: float = 0.5
    detail_likely: float = 0.3
    # Blur (pixels) by which the member is softer: from `softer` on the keeper may have been sharpened; from `softened` on
    # the member was blurred, as strong sharpening (radius 1.5, 120%) looks like 1.13 to 1.16.
    softer: float = 0.3
    softened: float = 2.0
    # Ratio of mean quantization steps below which one file's are finer.
    finer_step: float = 0.8
    # Difference of member and our copy, relative to that of two savings of one picture, and the share that our copy explains
    # of these. Two files saved from one picture have 0.7 to 1.05, two exposures with grain of half a grey mostly 1.06 and
    # more where the share is large; where it is small, 0.97 to 1.3.
    sibling: float = 1.05
    sibling_explained: float = 0.6
    # Difference of the keeper and a copy of the member saved as the keeper, relative to what that saving changes. Two files
    # saved from one picture have mostly 1.33 to 6.6; a file saved from the member 0, by way of another JPEG 0.8 to 1.15.
    not_made_from: float = 1.25
    # Difference of both relative to the keeper's own loss, from which a member in another format than JPEG lost more. A
    # JPEG's source in such a format has 1.0; WebP of quality 80 beside a JPEG of 92 to 95 has 1.7 to 2.
    more_lost: float = 1.6
    # `own_detail` up to which such a member may go, if both differ by more than `own_detail_greys`. Copies have up to 0.2
    # (HEIF, AVIF), exposures with grain of 3 to 5 greys mostly 0.3 to 1.1.
    own_detail: float = 0.24
    own_detail_greys: float = 1.5
    # Largest share of the keeper that a crop shows, and largest compression loss of the keeper relative to the crop's.
    less_shown: float = 0.97
    as_lossy: float = 1.3
    # Share of the member in one colour beyond the keeper's frame, from which it is an added border.
    plain_beyond: float = 0.01
    # Sine of the angle from which a file counts as rotated.
    slant: float = 0.005
    # Tolerances of equal size (scale) and equal shape (stretch).
    same_size: float = 0.05
    same_shape: float = 0.01


LIMITS = Limits()
