"""What the keep rules ask of a photo beside others of its family."""

from dataclasses import dataclass

# Compressed so much more coarsely than another (ratio of steps), a file is not the original.
COARSE = 1.5


@dataclass(frozen=True)
class Merit:
    """One member of a family.

    Attributes:
        pages: pictures in the file.
        in_colour: whether it has the colour that some member has.
        shown: share of the whole picture, put together from all members, that it shows, 0..1.
        added: what it has that is no part of the picture, in words.
        pixels: true resolution of the picture it shows: the pixels that its detail needs, and no more than the file's.
        is_enlarged: another member holds detail as fine with fewer pixels.
        lost_tones: share of the picture whose light or dark tones it has lost against some member, 0..1.
        is_odd: it is mirrored, turned by some degrees, lighter or darker against most members.
        is_mirrored: it lies mirrored against the family's hub.
        step: mean step of its JPEG table at low frequencies; 0 for other formats.
        coarser: step of the coarsest compression it went through, over the finest of those members whose blocks lie
            where its own do; 1 or more.
        blockier: the same of how hard the steps between blocks are, against members of which no such step is seen.
        is_saved_again: that compression was coarser than the file's own, and another member still has it as its own.
    """

    pages: int = 1
    in_colour: bool = True
    shown: float = 1.0
    added: tuple[str, ...] = ()
    pixels: int = 0
    is_enlarged: bool = False
    lost_tones: float = 0.0
    is_odd: bool = False
    is_mirrored: bool = False
    step: float = 0.0
    coarser: float = 1.0
    blockier: float = 1.0
    is_saved_again: bool = False
