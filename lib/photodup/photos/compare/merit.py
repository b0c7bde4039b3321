"""What the keep rules ask of a photo beside others of its family."""

from dataclasses import dataclass

# Compressed so much more coarsely than another (ratio of steps), a file is not the original.
COARSE = 1.5
# Share of the whole picture that shows nothing more: what is missed by less is the jitter of the alignment.
WHOLE = 0.015


@dataclass(frozen=True)
class Merit:
    """One member of a family.

    Attributes:
        pages: pictures in the file.
        in_colour: whether it has the colours that some member has; sepia and black and white have one hue at most.
        shown: share of the whole picture, put together from all members, that it shows, 0..1.
        added: what it has that is no part of the picture, in words.
        pixels: true resolution of the picture it shows: the pixels that its detail needs, and no more than the file's.
        is_enlarged: beyond the last pixel of a smaller member it holds nothing.
        lost_tones: share of the picture whose light or dark tones it has lost against some member, 0..1.
        tone: members of one number have the same tones and colours, apart from what a compression changes.
        is_odd: it is mirrored, turned by some degrees, or of other tones against most members.
        is_mirrored: it lies mirrored against the family's hub.
        step: mean step of its JPEG table at low frequencies; 0 for other formats.
        coarser: step of the coarsest compression it went through, over the finest of those members whose blocks lie
            where its own do; 1 or more.
        blockier: the same of how hard the steps between blocks are, against members of which no such step is seen.
        is_untouched: a lossless file that was not made of another member's JPEG, or a phone's own HEIC.
        is_converted: a lossless file that was made of another member's JPEG.
        is_made_of_another: its pixels are those of another member's file turned, resized, lighter or darker, and saved.
        is_saved_again: that compression was coarser than the file's own, and another member still has it as its own.
    """

    pages: int = 1
    in_colour: bool = True
    shown: float = 1.0
    added: tuple[str, ...] = ()
    pixels: int = 0
    is_enlarged: bool = False
    lost_tones: float = 0.0
    tone: int = 0
    is_odd: bool = False
    is_mirrored: bool = False
    step: float = 0.0
    coarser: float = 1.0
    blockier: float = 1.0
    is_made_of_another: bool = False
    is_saved_again: bool = False
    is_untouched: bool = False
    is_converted: bool = False


@dataclass(frozen=True)
class Relation:
    """What may make one of two members an edit of the other: without a word on which of them that is.

    Attributes:
        is_retoned: their tones or colours differ.
        may_be_reexposed: one is lighter, and nothing shows that the second was made of the first.
        is_mirrored: one is the other's mirror image.
        is_turned: one is the other, turned by a quarter or a half.
        is_stretched: one is the other in other proportions.
        is_sharper: the first may be the second, sharpened.
        is_resaved: the first was saved again after a stronger compression than any that the second went through.
        is_smoother: the first may be the second, filtered.
        is_larger: the first has more pixels and little finer detail: it may be the second, enlarged.
        is_remade: the first holds the compression of the second's file: it was made of that, or of what that was made of.
        is_one_size: one of them may have been converted into the other.
        is_source: the second is shown to be saved from the first, whatever else they may be.
    """

    is_retoned: bool = False
    may_be_reexposed: bool = False
    is_mirrored: bool = False
    is_turned: bool = False
    is_stretched: bool = False
    is_sharper: bool = False
    is_resaved: bool = False
    is_smoother: bool = False
    is_larger: bool = False
    is_remade: bool = False
    is_one_size: bool = False
    is_source: bool = False
