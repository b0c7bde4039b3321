"""A published claim as the claims' file holds it: `results/published/claims.yaml`, one record a claim."""

from pathlib import Path

import yaml
from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from photodup.errors import PhotodupError
from photodup.study.claims.predicates import Evidence, Goal
from photodup.study.claims.reading import NOT_TESTABLE, VERDICTS
from photodup.study.claims.selection import Strict, Where
from photodup.study.published.published import DOCUMENTS, published_dir

NONE_WRITTEN = "No objection was written for this verdict."


class Quote(Strict):
    """The study's own words, as they stand in a document but for Markdown's marks of emphasis."""

    document: str
    section: str
    text: str

    @field_validator("document")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in DOCUMENTS:
            raise ValueError(f"{name!r} is none of the documents: {', '.join(DOCUMENTS)}")
        return name


class Claim(Strict):
    """One published claim.

    Attributes:
        statement: what is judged, in one sentence.
        quotes: where the study says so.
        rows: published rows it rests on.
        published: arithmetic over row ids that gives the published effect; empty when none is printed.
        unit: of the effect: "×", "ms", "%" or a word.
        by: columns that name the place of a reading (its link, its engine).
        judged_on: what a point must be to count for or against the claim: its device, its link. What does not
            meet it is shown and not judged. Emulated devices and simulations are never judged.
        evidence: what is asked of a run: a comparison by its name, or points; or the goal that the study set itself.
        rival: what else could explain the published observation.
        needs: what would decide it, in one sentence.
        objections: verdict -> what else could explain what is seen here: that verdict argued against, once.
    """

    id: str
    statement: str
    quotes: list[Quote] = Field(min_length=1)
    rows: list[str] = Field(default_factory=list)
    published: str = ""
    unit: str = "×"
    by: tuple[str, ...] = ("link",)
    judged_on: Where = Field(default_factory=dict)
    evidence: Evidence
    rival: str
    needs: str
    objections: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_whole(self) -> "Claim":
        if isinstance(self.evidence, Goal) and not self.published:
            raise ValueError(f"{self.id}: a goal needs published rows to hold it against")
        if unknown := set(self.objections) - (set(VERDICTS) - {NOT_TESTABLE}):
            raise ValueError(f"{self.id}: objections to {', '.join(sorted(unknown))}, which are no verdicts")
        return self

    @property
    def source(self) -> str:
        """Documents and sections of all quotes, in one line."""
        return "; ".join(f"{quote.document}, {quote.section}" for quote in self.quotes)


def load_claims(path: Path | None = None) -> list[Claim]:
    """Return the published claims.

    Raises:
        PhotodupError: the file is missing, holds something that is no claim, or two claims of one id.
    """
    path = path or published_dir() / "claims.yaml"
    try:
        claims = TypeAdapter(list[Claim]).validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise PhotodupError(f"{path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, ValidationError) as error:
        raise PhotodupError(f"{path} holds something that is no claim: {error}") from error
    twice = {claim.id for claim in claims if [c.id for c in claims].count(claim.id) > 1}
    if twice:
        raise PhotodupError(f"{path} holds more than one claim called {', '.join(sorted(twice))}.")
    return claims
