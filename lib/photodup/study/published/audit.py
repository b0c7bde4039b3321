"""What the published numbers say about the published claims: no run needed, only results/published/.

E1 to E21 name the checks; each is a function of the rows with its assumptions as keyword arguments
(`speed`, `method`) and returns a `Finding`. What the study says where a check applies is `checks.yaml`; a check
that is not in it examines the method.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from photodup.errors import PhotodupError
from photodup.paths import project_root
from photodup.study.published import method, speed
from photodup.study.published.finding import Finding
from photodup.study.published.published import check_ratios, compare_with_documents, load_measurements

if TYPE_CHECKING:
    import pandas as pd

import re
from typing import Any

import yaml

from photodup.study.published.published import published_dir, read_documents

CHECKS: dict[str, Callable[..., Finding]] = {
    "E1": speed.bandwidth_or_round_trips,
    "E2": speed.inherent_slowness,
    "E3": speed.compute_advantage,
    "E4": speed.architecture_decides,
    "E5": speed.multi_gpu_scaling,
    "E6": speed.littles_law,
    "E7": speed.queue_delay,
    "E8": speed.cuda_graphs,
    "E9": speed.concurrency_tie,
    "E10": speed.fastapi_scales,
    "E11": speed.latency_follows_gpu,
    "E12": method.pods_against_quota,
    "E13": method.protective_probe,
    "E14": method.repeat_spread,
    "E15": method.json_factor,
    "E16": method.laptop_against_gpu,
    "E17": method.payload_is_a_crop,
    "E18": method.connection_policy,
    "E19": method.batch_scaling,
    "E20": method.fastest_compute,
    "E21": method.same_ordering,
}


def run_all(rows: "pd.DataFrame | None" = None) -> dict[str, Finding]:
    """Return every finding, with the default assumptions."""
    rows = load_measurements() if rows is None else rows
    said = check_quotes()
    return {
        name: replace(check(rows), quote=said.get(name, {}).get("text", "")) for name, check in CHECKS.items()
    }


def summary(findings: "dict[str, Finding] | None" = None) -> "pd.DataFrame":
    """Return one row per check: `claim`, `verdict`, `because`, and `quote`, empty for a check of the method.

    A claim stands, does not stand, or the numbers cannot say; a method holds or is in doubt, and counts as no claim.
    """
    import pandas as pd

    found = run_all() if findings is None else findings
    rows = [(f.check, f.claim, f.verdict, f.sentence, f.quote) for f in found.values()]
    return pd.DataFrame(rows, columns=["check", "claim", "verdict", "because", "quote"]).set_index("check")


def report_lines(run: str | None = None, documents: Path | None = None) -> Iterator[str]:
    """Yield what `photodup audit` prints: the checks, the ratios that do not follow, a run's verdicts.

    Args:
        run: directory under results/ to judge as well; its `verdicts.json` is written.
        documents: folder with the source documents, to hold the data against them.

    Raises:
        PhotodupError: no such run, or the data differs from the documents.
    """
    for check, row in summary().iterrows():
        yield f"{check:>4} {row['verdict']:18} {row['claim']}"
        yield f"     {row['because']}"
    ratios = check_ratios()
    for name, ratio in ratios[~ratios["follows"]].iterrows():
        low, high = ratio["computed_low"], ratio["computed_high"]
        yield f"does not follow: {name} is printed {ratio['printed_text']!r}, rows give {low:.4g} to {high:.4g}"
    yield f"{len(ratios)} printed ratios recomputed, {int((~ratios['follows']).sum())} do not follow"
    if documents is not None:
        if differences := compare_with_documents(documents):
            raise PhotodupError(
                f"The data differs from the documents in {documents}: {' '.join(differences[:5])}"
            )
        yield f"the data and every quote agree with the documents in {documents}"
    if run is not None:
        yield from _run_lines(run)


def _run_lines(run: str) -> Iterator[str]:
    from photodup.study.claims import claims
    from photodup.study.claims.claim import load_claims
    from photodup.study.claims.outcome import NOT_TESTABLE

    directory = project_root() / "results" / run
    if not (directory / "records").is_dir():
        raise PhotodupError(f"There are no records in results/{run}: make the run first, or check its name.")
    points = claims.load_evidence(directory)
    floors = claims.noise_floors_of(points)
    judged = claims.judge(load_claims(), points, floors, run=run)
    for _, row in judged[judged["verdict"] != NOT_TESTABLE].iterrows():
        where = f" [{row['link']}]" if row["link"] else ""
        yield f"{row['verdict']:16} {row['claim']}{where}: published {row['published']}, here {row['here']}"
        for place in row["breakdown"] if len(row["breakdown"]) > 1 else []:
            yield f"{'':18}{place['where']}: {place['verdict']}, {place['here']}"
    for needed, ids in claims.missing(judged).items():
        yield f"not testable here: {', '.join(ids)}. Needed: {needed}"
    tally = ", ".join(f"{n} {word}" for word, n in claims.counts(judged).items())
    yield f"{run}: {tally}; noise floor {floors}"
    yield f"written: {claims.write_verdicts(judged, directory).relative_to(project_root())}"


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
