"""The numbers that decide whether a file may go."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """When two pictures are one picture, and what our own copy of a keeper may leave unexplained of a member.

    Measured on photographs of tools/photographs and their edits at 480 to 800 pixels: honest copies (resized by four
    programs' ways, cropped, saved again, converted) lie on one side of each, edits and other exposures on the other.
    Greys are of 255.
    """

    # One picture, as local features say (`Verification`): chosen from the curves that benchmarks/photo_quality measures.
    min_inliers: int = 10
    min_overlap: float = 0.3
    min_correlation: float = 0.6
    max_spot: float = 0.35
    min_agreement: float = 0.95
    # The same where greys were aligned, for want of features.
    min_patches: int = 20
    min_grey_correlation: float = 0.9
    min_detail: float = 0.5
    max_stretch: float = 1.25
    # Light: cells that differ by more greys, as a share; and the dark, middle and bright thirds of them. Honest copies
    # reach 0.11 and 1.1; brightness x0.9 and a warm filter 0.9 and 10, colours x1.12 1.7 to 2.2.
    light_greys: float = 3.0
    light_share: float = 1 / 3
    tone_greys: float = 1.5
    # Factor by which all colours are stronger or paler, where that is so many greys. Honest JPEGs lie within 0.01, others
    # within 0.09 (WebP 60); muted photographs x0.85 and x1.2 at 0.11 to 0.21 and 0.9 greys.
    saturation: float = 0.06
    saturation_other_formats: float = 0.12
    saturation_greys: float = 0.3
    # A place: so many connected pixels, each so many times what saving and placing explain. Honest copies reach 1.14
    # (a story's frame), retouched ones 2.7, writing 5 to 36.
    place_times: float = 1.2
    place_pixels: int = 20
    # A smaller place that differs more, as a digit does on a small page.
    small_times: float = 2.0
    small_pixels: int = 6
    # Contrast of small things in octaves of 2 to 8 pixels, and of the finest. Honest copies reach 1.03 and 1.13; sharpened
    # ones 1.08 and 1.21 and more.
    contrast: float = 0.06
    contrast_finest: float = 0.25
    # Share of the member's finest and next octave that our copy has not. Honest copies reach 0.42 and 0.17, halves over
    # their source 0.66 to 0.83.
    finer: float = 0.45
    finer_next: float = 0.25
    # Grain of even places, where our copy does not explain the member: greys of the keeper's from which it is looked for
    # (half as many an octave coarser), the share of our copy's likeness to it that the member's has to reach, and standard
    # errors that are chance. Smaller copies reach 0.85, other exposures with grain of 2 to 6 greys 0 to 0.78.
    grain_greys: float = 0.5
    grain_common: float = 0.8
    grain_chance: float = 2.0
    # The same where the member's own tables are not known: greys, the share of them that saving has left, and of those the
    # share that has to be the keeper's. Copies have 0.38 and more (AVIF, quality 55 to 95), exposures 0 to 0.3.
    grain_greys_other_formats: float = 0.95
    grain_left: float = 0.3
    grain_of_keeper: float = 0.3
    # An edge of the keeper where the member ends, as times of what lies beside. Crops reach 1.9, frames 18.
    edge_times: float = 3.0
    # Share of what the member's saving changed that our copy explains: it was then saved from the keeper. Copies have
    # 0.96 to 1, other exposures saved strongly up to 0.84.
    explained: float = 0.9
    # How plainly a file carries another JPEG's rounding. Saved from it: 0.11 (WebP) to 0.9; by chance up to 0.05.
    rounding: float = 0.1
    # Greys by which the same pixels differ, and those of a copy in a good format made in one of the known ways; what was
    # enlarged and sharpened lies at 1.7 and more.
    equal_greys: float = 0.05
    resized_greys: float = 0.7
    # Detail of the larger file beyond an enlargement of the smaller, as a share of the octave before: for certain, and
    # where the smaller one's saving is missing in it, it names a camera, or a known way of resizing leads to the smaller.
    # Halves lie at 0.4 to 1.3; enlargements reach 0.22, bicubic, sharpened or smoothed.
    detail_surely: float = 0.5
    detail_likely: float = 0.3
    # Blur, pixels, by which the member is softer: from the first on the keeper may be sharpened instead; strong
    # sharpening (radius 1.5, 120%) looks like 1.13 to 1.16, and nobody sharpens as much as the second.
    softer: float = 0.3
    softened: float = 2.0
    # Mean steps of which one is finer, as a share of the other.
    finer_step: float = 0.8
    # How much the member differs from our copy, as times of what a file differs that was made by saving the keeper twice.
    # Two files saved of one picture have 0.66 to 1.07 (mostly below 0.93), two exposures with grain of 1 grey 1.01 and more.
    sibling: float = 0.95
    # The same of their difference. Two files saved of one picture have 0.92 to 1.02, one over the other 0.62 and 0.71.
    two_savings: float = 0.9
    # Difference of both, as times of the keeper's loss, from which a file in another format than JPEG has lost more. A
    # JPEG's source in such a format lies at 1.0; WebP of quality 80 beside a JPEG of 92 to 95 at 1.7 to 2.
    more_lost: float = 1.6
    # Detail of its own that such a file may have, as a share of the detail that it lost, where both differ by so many
    # greys. Copies have up to 0.2 (HEIF, AVIF), exposures with grain of 3 to 5 greys mostly 0.3 to 1.1.
    own_detail: float = 0.24
    own_detail_greys: float = 1.5
    # Share of the keeper that a crop shows, and how many times as much as the crop the keeper may have lost by its saving.
    less_shown: float = 0.97
    as_lossy: float = 1.3
    # Share of the member beyond the keeper's frame, in one colour, from which it was added there.
    plain_beyond: float = 0.01
    # Angle, as its sine, from which on a file was turned.
    slant: float = 0.005
    # Sizes that are one size, and sides that are one shape.
    same_size: float = 0.05
    same_shape: float = 0.01


LIMITS = Limits()
