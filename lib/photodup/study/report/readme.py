"""The parts of README.md that are generated from records, so that they cannot drift from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from photodup.bench.record.record import load_points
from photodup.errors import PhotodupError
from photodup.paths import project_root
from photodup.study.notebook.run import REFERENCE, describe_machine, describe_weights, read_environment
from photodup.study.report.facts import FINDINGS, notebook_rows
from photodup.study.report.figures import DECISION

BACKENDS = {
    "fastapi-pytorch-fp32-http-jpeg": "PyTorch behind FastAPI, JPEG",
    "triton-onnx-fp32-http-fp32": "ONNX Runtime behind Triton, HTTP",
    "triton-onnx-fp32-grpc-fp32": "ONNX Runtime behind Triton, gRPC",
    "triton-openvino-fp32-http-fp32": "OpenVINO behind Triton, HTTP",
    "triton-trt-fp16-http-fp32": "TensorRT behind Triton, HTTP",
    "triton-onnx-fp32-http-jpeg": "ONNX Runtime behind Triton, JPEG",
}
IN_FLIGHT = 8  # the load of the table's throughput: one for all, so that nobody shows the best of several


def generated_blocks() -> dict[str, str]:
    """Return what belongs between each pair of markers `<!-- name:begin -->` and `<!-- name:end -->`."""
    return {
        "figure": figure_block(),
        "findings": "\n\n".join(findings_blocks()),
        "results": "\n".join(results_table(load_points(project_root() / "results" / REFERENCE))),
        "notebooks": "| notebook | question |\n|---|---|\n"
        + "\n".join(
            f"| [{row['title']}](notebooks/{row['stem']}.ipynb) | {row['question']} |"
            for row in notebook_rows(REFERENCE)
        ),
    }


def figure_block() -> str:
    """Return the README's one figure, or nothing while the reference run has not drawn it."""
    path = f"results/{REFERENCE}/figures/{DECISION}.png"
    if not (project_root() / path).is_file():
        return ""
    return f"![Where the time of one request goes, by backend]({path})"


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


def results_table(points: pd.DataFrame) -> Iterator[str]:
    """Yield the lines of the result table: valid points only; what was not measured has no number."""
    facts = read_environment(project_root() / "results" / REFERENCE)
    yield f"| backend | one photo, p50 [range] | throughput, {IN_FLIGHT} in flight [range] | valid points |"
    yield "|---|---:|---:|---:|"
    for backend, title in BACKENDS.items():
        mine = points[(points.backend == backend) & points.link.isin(["loopback"])]
        if mine.empty:
            continue
        valid = mine[mine.valid.fillna(False).astype(bool)]
        rounds = valid[(valid.connection == "warm") & (valid.label.fillna("") == "")]
        # One span a column: notebook 11 times single requests without the client's own decoding.
        single = rounds[(rounds.scenario == "single_stream") & (rounds.span == "photo")]
        closed = rounds[
            (rounds.scenario == "closed_loop") & (rounds.span == "prepared") & (rounds.batch == 1)
        ]
        loaded = closed[closed.concurrency == IN_FLIGHT]
        yield f"| {title} | {_latency(single)} | {_throughput(loaded)} | {len(valid)} of {len(mine)} |"
    yield ""
    yield (
        f"Measured on {describe_machine(facts)}, loopback, weights {describe_weights(facts)}. Where a load was "
        "measured several times, the figure is the middle of them and the range goes from the lowest to the highest; "
        "otherwise it is the 95 % interval. Overlapping ranges rank nothing: comparisons are in the notebooks."
    )


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
        text = re.sub(
            f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, body=body: body, text, flags=re.DOTALL
        )
    readme.write_text(text, encoding="utf-8")
    return readme


def _latency(points: pd.DataFrame) -> str:
    if points.empty:
        return "not measured"
    p50 = points.latency_ms_p50
    low, high = points.latency_ms_p50_ci_low, points.latency_ms_p50_ci_high
    if len(points) > 1:
        low = high = p50
    return f"{p50.median():.0f} ms [{low.min():.0f}, {high.max():.0f}]"


def _throughput(points: pd.DataFrame) -> str:
    if points.empty:
        return "not measured"
    rate = points.throughput_images_per_s
    low, high = points.throughput_images_per_s_ci_low, points.throughput_images_per_s_ci_high
    if len(points) > 1:
        low = high = rate
    return f"{rate.median():.1f} images/s [{low.min():.1f}, {high.max():.1f}]"
