"""Grouping a library by its own settings: what `photodup group` prints and `photodup review` shows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from photodup.names import escaped, printable
from photodup.photos.groups.results import TierGroup, Tiers
from photodup.photos.groups.tiers import GroupingOptions, find_tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.settings import inside, load_settings
from photodup.photos.review.told_apart import without_copies_apart
from photodup.progress import bar


def tiers_by_settings(
    catalogue: Catalogue,
    *,
    keep: str | None = None,
    folders: Sequence[str] | None = None,
    threshold: float | None = None,
    **options: Any,
) -> Tiers:
    """Group by the library's stored settings and feedback; what a command line says wins over them.

    Args:
        catalogue: scanned, and embedded if there is to be a `similar` tier.
        keep: rules as `resolution,format,…`, most important first.
        folders: folders by priority, relative to the library.
        threshold: smallest cosine of similar pictures, in place of the model's own.
        **options: as in `GroupingOptions`.

    Raises:
        PhotodupError: an unknown rule, a folder outside the library, settings that cannot be read.
    """
    folder = catalogue.own.path
    feedback = Feedback(folder)
    settings = load_settings(folder).with_rules(keep, inside(folders or ()))
    options["threshold"] = settings.threshold if threshold is None else threshold
    return find_tiers(
        catalogue, GroupingOptions(rules=settings.rules(feedback), feedback=feedback, **options)
    )


def with_bar(pairs: Any, total: int) -> Any:
    """Show how far the comparison of pairs is."""
    return bar(pairs, total=total, desc="compare", unit="pair")


def print_groups(catalogue: Catalogue, **options: Any) -> None:
    """Print both tiers with the reason for each keeper and the evidence for each member.

    Copies that were told apart on the review page are left out, as they are there.

    Args:
        catalogue: scanned, and embedded if there is to be a `similar` tier.
        **options: of `tiers_by_settings`.
    """
    tiers = tiers_by_settings(catalogue, progress=with_bar, **options)
    feedback = Feedback(catalogue.own.path)
    told = feedback.copies_apart()
    tiers = replace(
        tiers,
        copies=without_copies_apart(tiers.copies, told),
        similar=without_copies_apart(tiers.similar, told),
    )
    for group in tiers.groups:
        _print_group(group)
    for problem in tiers.problems:
        print(escaped(f"not compared: {problem}"))
    for sentence in feedback.problems:
        print(sentence)
    print(escaped(_summary(tiers)))


def _print_group(group: TierGroup) -> None:
    keeper = group.keeper
    print(f"{group.tier}  {len(group.members) + 1} photos")
    print(
        f"  keep  {printable(keeper.path)}  ({keeper.width} × {keeper.height}; {escaped(group.choice.reason)})"
    )
    for photo, why in zip(group.members, group.evidence, strict=True):
        if why.exact:
            said = "same bytes"
        elif group.tier == "copies" and why.verification:
            said = f"{why.verification.agreement:.0%} of the pixels agree"
        else:
            said = "alike" if why.similarity is None else f"cosine {why.similarity:.4f}"
        differs = f"; differs: {group.difference(photo)}" if group.difference(photo) else ""
        print(f"        {printable(photo.path)}  ({photo.width} × {photo.height}; {said}{differs})")


def _summary(tiers: Tiers) -> str:
    free = sum(group.bytes_to_free for group in tiers.copies) / 1e6
    limits = tiers.thresholds
    if tiers.model is None or limits is None:
        how = "by hash and pixels only (nothing is embedded: run `photodup embed`)"
    else:
        how = (
            f"by {tiers.model.name} ({tiers.model.digest[:12]}), similar from {limits.similar} cosine "
            f"({limits.measured})"
        )
        if tiers.model.is_random is not False:
            how += ", RANDOM OR UNKNOWN WEIGHTS: the similar ones mean nothing"
    smallest = tiers.smallest_similarity
    return (
        f"{tiers.n_photos} photographs: {len(tiers.copies)} groups of copies ({free:.1f} MB to free), "
        f"{len(tiers.similar)} of similar ones, {how}; largest group {tiers.largest_group}, smallest "
        f"similarity in a group {'none' if smallest is None else f'{smallest:.4f}'}; {tiers.n_verified} pairs "
        "compared on the pixels"
    )
