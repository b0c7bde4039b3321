"""Print `photodup audit`: the checks, the ratios that do not follow, and what a run says of the claims."""

import re
from collections.abc import Iterator
from pathlib import Path

from photodup.errors import PhotodupError
from photodup.paths import project_root
from photodup.study.claims import claims
from photodup.study.claims.claim import load_claims
from photodup.study.claims.evidence import load_evidence
from photodup.study.claims.reading import NOT_TESTABLE
from photodup.study.notebook.run import folder_of
from photodup.study.published.checks import check_words, run_all
from photodup.study.published.published import check_ratios, compare_with_documents, read_documents


def report_lines(run: str | None = None, documents: Path | None = None) -> Iterator[str]:
    """Yield what `photodup audit` prints.

    Args:
        run: directory under results/ to judge as well; its `verdicts.json` is written.
        documents: folder with the source documents, to hold the data and every quote against them.

    Raises:
        PhotodupError: no such run, or the data differs from the documents.
    """
    for name, found in run_all().items():
        yield f"{name:>4} {found.verdict:18} {found.claim}"
        yield f"     {found.because}"
    ratios = check_ratios()
    for name, ratio in ratios[~ratios["follows"]].iterrows():
        low, high = ratio["computed_low"], ratio["computed_high"]
        yield f"does not follow: {name} is printed {ratio['printed_text']!r}, rows give {low:.4g} to {high:.4g}"
    yield f"{len(ratios)} printed ratios recomputed, {int((~ratios['follows']).sum())} do not follow"
    if documents is not None:
        if differences := [*compare_with_documents(documents), *misquotes(documents)]:
            raise PhotodupError(
                f"The data differs from the documents in {documents}: {' '.join(differences[:5])}"
            )
        yield f"the data and every quote agree with the documents in {documents}"
    if run is not None:
        yield from _run_lines(run)


def _run_lines(run: str) -> Iterator[str]:
    directory = folder_of(run)
    if not (directory / "records").is_dir():
        raise PhotodupError(f"There are no records in results/{run}: make the run first, or check its name.")
    judged = claims.judge(load_claims(), load_evidence(directory), run=run)
    for _, row in judged[judged["verdict"] != NOT_TESTABLE].iterrows():
        yield f"{row['verdict']:16} {row['claim']}: published {row['published']}, here {row['here']}; {row['because']}"
    for _, row in judged[judged["verdict"] == NOT_TESTABLE].iterrows():
        yield f"{NOT_TESTABLE}: {row['claim']}. Needed: {row['needs']}"
    yield f"{run}: {', '.join(f'{n} {word}' for word, n in claims.counts(judged).items())}"
    yield f"written: {claims.write_verdicts(judged, directory).relative_to(project_root())}"


def all_quotes() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (claim or check, quote) for every quote of `claims.yaml` and `checks.yaml`."""
    for claim in load_claims():
        yield from ((claim.id, quote.model_dump()) for quote in claim.quotes)
    yield from ((name, words) for name, words in check_words().items() if "text" in words)


def misquotes(folder: Path) -> list[str]:
    """Return one sentence for each quote that does not stand word for word in the documents of `folder`.

    White space and Markdown's marks of emphasis are left out on both sides.
    """
    texts = {name: plain(text) for name, text in read_documents(folder).items()}
    return [
        f"{name}: {quote['document']} does not say {quote['text']!r}."
        for name, quote in all_quotes()
        if plain(quote["text"]) not in texts.get(quote["document"], "")
    ]


def plain(text: str) -> str:
    """Return a text without Markdown's marks of emphasis, with single spaces."""
    return " ".join(re.sub(r"[*`]", "", text).split())
