"""A published claim as the claims' file holds it: `results/published/claims.yaml`, one record a claim."""

from pathlib import Path

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from photodup.errors import PhotodupError
from photodup.study.claims.predicates import AnyPredicate
from photodup.study.claims.selection import Strict
from photodup.study.published.published import published_dir

NONE_WRITTEN = "No objection was written for this verdict."


class Claim(Strict):
    """One published claim."""

    id: str
    statement: str
    source: str
    rows: list[str]
    published: str = ""
    unit: str = "×"
    by: tuple[str, ...] = ("link",)
    predicate: AnyPredicate
    rival: str
    needs: str
    objections: dict[str, str] = Field(default_factory=dict)


def load_claims(path: Path | None = None) -> list[Claim]:
    """Return the published claims.

    Raises:
        PhotodupError: the file is missing or holds something that is no claim; names the place.
    """
    path = path or published_dir() / "claims.yaml"
    try:
        return TypeAdapter(list[Claim]).validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise PhotodupError(f"{path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, ValidationError) as error:
        raise PhotodupError(f"{path} holds something that is no claim: {error}") from error
