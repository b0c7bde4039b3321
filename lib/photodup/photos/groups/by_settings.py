"""Group a library by its owner's stored settings and labels."""

from collections.abc import Sequence
from typing import Any

from photodup.photos.groups.keepers import KeepRules
from photodup.photos.groups.results import Tiers
from photodup.photos.groups.tiers import GroupingOptions, find_tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.settings import check_inside, load_settings


def tiers_by_settings(
    catalogue: Catalogue,
    *,
    keep: str | None = None,
    folders: Sequence[str] | None = None,
    threshold: float | None = None,
    never_from: Sequence[str] = (),
    **options: Any,
) -> Tiers:
    """Group by the library's stored settings and feedback; arguments take precedence over them.

    Args:
        catalogue: scanned, and embedded if there is to be a `similar` tier.
        keep: rules as `resolution,format,…`, most important first.
        folders: folders by priority, relative to the library.
        threshold: smallest cosine of similar pictures, in place of the model's own.
        never_from: folders, relative to the library, from which nothing is suggested, beside the protected ones.
        **options: as in `GroupingOptions`.

    Raises:
        PhotodupError: an unknown rule, a folder outside the library, settings that cannot be read.
    """
    folder = catalogue.own.path
    feedback = options.pop("feedback", None) or Feedback(folder)
    settings = load_settings(folder).with_rules(keep, check_inside(folders or ()))
    options["threshold"] = settings.threshold if threshold is None else threshold
    options |= {"protected": (*settings.protected, *never_from), "not_within": settings.not_within}
    rules = KeepRules(settings.keep, folders=settings.folders, chosen=feedback.keepers())
    return find_tiers(catalogue, GroupingOptions(rules=rules, feedback=feedback, **options))
