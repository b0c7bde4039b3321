"""Compare the pixels of two files: can the one that stays reproduce the other, and if not, where and why?"""

from PIL import Image

from photodup.photos.compare import maps
from photodup.photos.compare.align import Placement, align, laid
from photodup.photos.compare.limits import LIMITS
from photodup.photos.compare.pictures import Picture
from photodup.photos.compare.reproduce import View, detail_beyond, rounding, tiles, views, whole_size
from photodup.photos.compare.unexplained import Difference, beyond, differing_boxes, has_edge, unexplained


def lacks(keeper: Picture, member: Picture) -> tuple[Difference, ...]:
    """Return what the member shows, or may show, that the keeper cannot reproduce; empty if the member may go."""
    placement = align(keeper, member)
    if placement is None:
        return (Difference("is not seen to be the same picture"),)
    if placement.is_mirrored or placement.is_turned:
        return (Difference("is mirrored" if placement.is_mirrored else "is turned"),)
    if placement.stretch > 1 + max(LIMITS.same_shape, 1.2 / min(member.image.size)):
        return (Difference("is stretched"),)
    if member.saving.n_pages > keeper.saving.n_pages:
        return (Difference(f"holds {member.saving.n_pages} pages or frames"),)
    transform = placement.transform
    sizes = keeper.image.size, member.image.size
    for is_window, view in enumerate(views(keeper, member, transform)):
        reasons = unexplained(view)
        if not is_window:
            whole = view
            if len(outside := beyond(view)):
                reasons.append(("shows more of the scene", outside))
        if reasons:
            return tuple(Difference.located(*reason, view, transform, sizes) for reason in reasons)
    size, exact = whole_size(member)
    for tile in tiles(keeper, member, transform, view) if size != member.image.size else ():
        if len(boxes := differing_boxes(tile)):
            return (Difference.located("looks different in a small place", boxes, tile, transform, sizes),)
    if has_edge(keeper.rgb, maps.rescaled(transform, 1, exact), size):
        return (Difference("the file to keep has an edge where this one ends, as a frame or a collage has"),)
    doubt = _doubt(keeper, member, placement, whole, view)
    return (Difference(doubt),) if doubt else ()


def _doubt(keeper: Picture, member: Picture, placement: Placement, whole: View, view: View) -> str:
    """Return why the member may be the original, or neither file made from the other; empty if the member may go.

    `whole` and `view` are the first and the last of `views`: all of the member, and a part at full size.
    """
    member_rms, copy_rms, _ = view.rms_differences
    # Our copy predicts what compression did to the member: it was saved from the keeper.
    is_foretold = view.explained >= LIMITS.explained and member_rms >= 0.7 * copy_rms > 0.1
    is_one_size = 1 - LIMITS.same_size < placement.scale < 1 + LIMITS.same_size
    may_show = not is_one_size or keeper.saving.step < LIMITS.finer_step * member.saving.step
    back = None
    if is_one_size and keeper.saving.tables and (member.saving.tables or not is_foretold):
        # A file saved again with finer steps and its original predict each other; the original predicts better.
        (back,) = views(member, keeper, maps.inverse(placement.transform), whole=False)
        if back.explained >= max(whole.explained, LIMITS.explained):
            return "the file to keep was made from it"
    # `rounding` is high by chance where one's steps are twice the other's; then the member must also predict the keeper.
    may_be_chance = is_foretold and is_one_size and (back is None or back.explained < LIMITS.explained)
    is_asked = member.saving.tables and may_show and not may_be_chance
    if is_asked and rounding(view.keeper, member.saving) > LIMITS.rounding:
        return "the file to keep was made from it"
    if is_foretold:
        return ""
    if placement.scale > 1 + LIMITS.same_size:
        return "has more pixels"
    # Averaging a keeper that was enlarged by doubling pixels also returns the member's exact pixels.
    may_be_doubled = not is_one_size and view.resampling in (Image.Resampling.BOX, None)
    is_exact = is_one_size and keeper.saving.is_lossless and member.saving.is_lossless
    is_same = (whole.member == whole.keeper).all() if is_exact else member_rms <= LIMITS.equal_greys
    if (is_same and not may_be_doubled) or (~whole.inside).mean() > LIMITS.plain_beyond:
        return ""  # the same pixels, or a member with an added border
    if placement.slant > LIMITS.slant:
        return "lies straighter, or is turned a little"
    if not is_one_size:
        share = detail_beyond(keeper, member, placement)
        has_sign = copy_rms > 0.8 or member_rms < LIMITS.resized_greys or keeper.has_camera
        if share > (LIMITS.detail_likely if has_sign else LIMITS.detail_surely):
            return ""
        return "the file to keep is larger, and is not seen to hold more: it may be an enlargement"
    # Only for formats that our copy cannot simulate: a JPEG saved from the keeper would have been predicted above.
    is_known = bool(member.saving.tables) or member.saving.is_lossless
    if keeper.saving.tables and not is_known:
        onto, _ = laid(member.rgb, maps.inverse(placement.transform), keeper.image.size)
        if rounding(onto, keeper.saving) > LIMITS.rounding:
            return ""
    if view.softness > LIMITS.softer:
        return "is a little softer: the file to keep may have been sharpened"
    own_loss = view.own_loss(keeper.saving)
    share = placement.share_shown(keeper.image.size, member.image.size)
    if share < LIMITS.less_shown and own_loss < LIMITS.as_lossy * copy_rms:
        return ""  # a crop: the keeper cannot be made from it, and it is not better saved
    if back and not view.softness and view.is_sibling(back):
        return ""
    # Other lossy formats cannot be simulated: such a member may go if it lost more than the keeper and has no detail of its
    # own.
    has_lost_more = member_rms >= LIMITS.more_lost * own_loss
    has_own_detail = member_rms > LIMITS.own_detail_greys and view.own_detail > LIMITS.own_detail
    is_lesser = not is_known and member.saving.format != "WEBP" and has_lost_more and not has_own_detail
    return "" if is_lesser else "which of the two is the original is not seen"
