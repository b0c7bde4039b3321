"""The parts of README.md that are generated from records, so that they cannot drift from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from photodup.errors import PhotodupError
from photodup.files import write_atomically
from photodup.paths import project_root
from photodup.study.comparisons.outcomes import read_comparisons
from photodup.study.notebook.run import (
    REFERENCE,
    Run,
    describe_machine,
    describe_weights,
    read_environment,
    read_run,
)
from photodup.study.report.facts import FINDINGS, notebook_rows
from photodup.study.report.figures import DECISION

# The sides of the table, in this order; names of notebooks/comparisons.yaml.
SIDES = (
    "fastapi-pytorch",
    "fastapi-onnx",
    "triton-onnx",
    "fastapi-openvino",
    "triton-openvino",
    "fastapi-bf16",
    "triton-bf16",
    "fastapi-int8",
    "triton-int8",
)
NOTEBOOK = "06_compare_three_backends"


def generated_blocks() -> dict[str, str]:
    """Return what belongs between each pair of markers `<!-- name:begin -->` and `<!-- name:end -->`."""
    return {
        "figure": figure_block(),
        "findings": "\n\n".join(findings_blocks()),
        "results": "\n".join(results_table(read_comparisons(reference(), NOTEBOOK).arms)),
        "notebooks": "| notebook | question |\n|---|---|\n"
        + "\n".join(
            f"| [{row['title']}](notebooks/{row['stem']}.ipynb) | {row['question']} |"
            for row in notebook_rows(REFERENCE)
        ),
    }


def reference() -> Run:
    """Return the reference run for reading: no server is asked."""
    return read_run(project_root() / "results" / REFERENCE)


def figure_block() -> str:
    """Return the README's first figure, or nothing while the reference run has not drawn it."""
    path = f"results/{REFERENCE}/figures/{DECISION}.png"
    if not (project_root() / path).is_file():
        return ""
    return f"![Latency and throughput of each server, engine and precision]({path})"


def findings_blocks() -> Iterator[str]:
    """Yield heading, answer and picture of each notebook whose answer is a finding; one not measured is left out."""
    answers = {row["stem"]: row["answer"] for row in notebook_rows(REFERENCE)}
    for heading, stems, figure in FINDINGS:
        said = [
            f"{answers[stem]} ([{stem[:2]}](notebooks/{stem}.ipynb))"
            for stem in stems
            if answers.get(stem) and not answers[stem].startswith("Not measured")
        ]
        path = f"results/{REFERENCE}/figures/{figure}.png"
        if said:
            yield f"**{heading}** " + " ".join(said)
            if figure and (project_root() / path).is_file():
                yield f"![{heading}]({path})"


def results_table(arms: pd.DataFrame) -> Iterator[str]:
    """Yield the lines of the result table: one figure a load over all visits, with its interval.

    Args:
        arms: of `photodup.study.comparisons.outcomes.Compared`.
    """
    if arms.empty or arms[arms.side.isin(SIDES)].empty:
        yield "The committed run has no comparisons yet: until the next reference run this table is empty."
        return
    facts = read_environment(project_root() / "results" / REFERENCE)
    yield "| engine and server | one photo at a time, median | eight in flight | visits |"
    yield "|---|---:|---:|---:|"
    for side in SIDES:
        mine = arms[arms.side == side].set_index("load")
        if not {"one", "eight"} <= set(mine.index):
            continue
        one, eight = mine.loc["one"], mine.loc["eight"]
        latency = _interval(one, "latency_ms_p50", "ms")
        rate = _interval(eight, "throughput_images_per_s", "images/s")
        yield f"| {one.label} | {latency} | {rate} | {one.n_visits + eight.n_visits} |"
    yield ""
    yield (
        f"Measured on {describe_machine(facts)}, loopback, weights {describe_weights(facts)}. The same JPEG to all; FP32 "
        "unless the name says otherwise. In brackets the 95 % interval between visits: this machine, this run."
    )


def _interval(row: pd.Series, metric: str, unit: str) -> str:
    value, low, high = (row[f"{metric}{end}"] for end in ("", "_ci_low", "_ci_high"))
    if not value or not value > 0:
        return "not measured"
    return f"{value:.1f} {unit} [{low:.1f}, {high:.1f}]"


def write_blocks(readme: Path | None = None, blocks: Mapping[str, str] | None = None) -> Path:
    """Replace the generated parts of a document (README.md and its parts unless given) and return its path.

    Raises:
        PhotodupError: the markers of a part are gone, and with them the part.
    """
    readme = readme or project_root() / "README.md"
    text = readme.read_text(encoding="utf-8")
    for name, content in (generated_blocks() if blocks is None else blocks).items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if begin not in text or end not in text:
            raise PhotodupError(
                f"{readme.name} has no place for its part {name!r}: put {begin} and {end} into it."
            )
        body = f"{begin}\n{content}\n{end}" if content else f"{begin}\n{end}"
        before, _, rest = text.partition(begin)
        text = before + body + rest.partition(end)[2]
    write_atomically(readme, text)
    return readme
