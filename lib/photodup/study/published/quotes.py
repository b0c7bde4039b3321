"""The study's own words, and whether they stand in its documents."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from photodup.study.published.published import published_dir, read_documents


def check_quotes(directory: Path | None = None) -> dict[str, dict[str, str]]:
    """Return what the study says where each internal check applies: check -> document, section and text."""
    return yaml.safe_load(((directory or published_dir()) / "checks.yaml").read_text(encoding="utf-8"))


def all_quotes(directory: Path | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (claim or check, quote) for every quote of `claims.yaml` and `checks.yaml`."""
    folder = directory or published_dir()
    claims: list[dict[str, Any]] = yaml.safe_load((folder / "claims.yaml").read_text(encoding="utf-8"))
    for claim in claims:
        yield from ((claim["id"], quote) for quote in claim["quotes"])
    yield from check_quotes(directory).items()


def misquotes(folder: Path, directory: Path | None = None) -> list[str]:
    """Return one sentence for each quote that does not stand word for word in the documents of `folder`.

    White space and Markdown's marks of emphasis are left out on both sides.
    """
    texts = {name: plain(text) for name, text in read_documents(folder).items()}
    return [
        f"{name}: {quote['document']} does not say {quote['text']!r}."
        for name, quote in all_quotes(directory)
        if plain(quote["text"]) not in texts.get(quote["document"], "")
    ]


def plain(text: str) -> str:
    """Return a text without Markdown's marks of emphasis, with single spaces."""
    return " ".join(re.sub(r"[*`]", "", text).split())
