"""An owner who agrees to everything: scan, group, accept every suggestion, move it to the trash, and look again."""

from pathlib import Path

from photodup.photos.library.scan import scan
from photodup.photos.review.session import ReviewSession

_MOST_ROUNDS = 4  # what is left after a round may be grouped anew


def accept_every_suggestion(folder: Path) -> int:
    """Do on a library what the review page's buttons do until nothing is suggested; return how many photos went.

    Also what is held back only for what it says goes, where photodup offers to write that beside the keeper.
    """
    n_removed = 0
    for _ in range(_MOST_ROUNDS):
        scan(folder)
        session = ReviewSession(folder)
        if not session.accept_all() + session.carry_all():
            break
        n_removed += session.apply().n_removed
    return n_removed
