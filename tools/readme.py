"""Write the parts of README.md, results/README.md and docs/study.md that come from committed records.

python -m tools.readme
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.rows import blocks as speed_blocks
from photodup.bench.pairs.declared import declarations
from photodup.bench.record.store import load_records
from photodup.bench.stats.comparison import Outcome
from photodup.bench.stats.sentence import cells_of
from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.names import in_short
from photodup.core.paths import project_root
from photodup.study.comparisons.measure import KIND as VISIT
from photodup.study.comparisons.outcomes import Comparisons, read_all, read_comparisons
from photodup.study.kubernetes import read_workload
from photodup.study.notebook.files import notebooks, read_notebook, read_study
from photodup.study.notebook.machine import read_machine
from photodup.study.notebook.run import REFERENCE, folder_of, read_run
from photodup.study.report.facts import FINDINGS, LEADING, notebook_answers

SAVED = re.compile(r"charts\.save\(\w+, run, [\"']([\w-]+)[\"']\)")
DECISION = "06_sides"  # README's first picture, which its findings do not repeat
NOT_MEASURED = "Not measured in the committed run."
# The notebooks in the order in which a request meets their subjects.
WAY = {
    "start": ("00",),
    "photo": ("01", "02"),
    "wire": ("04", "11"),
    "connection": ("10", "08"),
    "server": ("03", "06", "13"),
    "precision": ("05",),
    "fleet": ("07", "09"),
    "method": ("12", "14"),
}
# What decides how near a second run comes. `timings` are held to what two equal processes differ by.
SECOND_PASS = f"{REFERENCE}-2"  # the comparisons alone, from another pass
GPU_RUN, ON_GPU = "nvidia-h200", ("two instances against one, four", "JPEG against tensor, one")
TIMINGS, EXACT = "as timings", "the same, from the same records"
CLOSENESS = {
    "00": EXACT,
    "01": "recall the same; durations as timings",
    "02": "differences of the same order of magnitude",
    "05": "decisions the same on a processor with the same instructions; speed as timings",
    "09": EXACT,
    "10": "round trips and rates as the link keeps them: within 1 ms and 5%",
    "12": EXACT,
}


def readme_blocks() -> dict[str, str]:
    """Return the generated parts of README.md."""
    return {
        "decisions": "\n".join(decision_table()),
        "findings": "\n\n".join(findings_blocks()),
        "notebooks": "\n".join(notebook_list()),
    }


def notebook_list() -> Iterator[str]:
    """Yield a line for each stop on a request's way, with its notebooks."""
    stems = {path.stem[:2]: path.stem for path in notebooks()}
    for stop, numbers in WAY.items():
        links = (f"[{stems[n]}](notebooks/{stems[n]}.ipynb)" for n in numbers)
        yield f"- **{stop}:** " + ", ".join(links)


def findings_blocks() -> Iterator[str]:
    """Yield heading with answer, and picture, of the leading findings that were measured, without the one at the top."""
    answers = {row.stem: row.answer for row in notebook_answers(REFERENCE)}
    measured = [
        (heading, stem, figure)
        for heading, stem, figure in FINDINGS
        if figure != DECISION and not (answers.get(stem) or NOT_MEASURED).startswith("Not measured")
    ]
    for heading, stem, figure in measured[:LEADING]:
        yield f"**{heading}** {answers[stem]} ([{stem[:2]}](notebooks/{stem}.ipynb))"
        path = f"results/{REFERENCE}/figures/{figure}.png"
        if (project_root() / path).is_file():
            opening = read_notebook(project_root() / "notebooks" / f"{stem}.ipynb").cells[0].source
            yield f"![{opening.partition('![')[2].partition('](')[0]}]({path})"


def decisions() -> dict[str, Any]:
    """Return `notebooks/decisions.yaml`: the price, and the rows of the table."""
    return yaml.safe_load((project_root() / "notebooks" / "decisions.yaml").read_text(encoding="utf-8"))


def decision_table() -> Iterator[str]:
    """Yield the lines of the table of `notebooks/decisions.yaml`; reasons and costs come from the reference run."""
    table = decisions()
    run = read_run(folder_of(REFERENCE))
    compared, second = read_comparisons(run), read_comparisons(read_run(folder_of(SECOND_PASS)))
    places = {pair.name: pair.notebook for pair in compared.pairs}
    price = table["price_per_hour_usd"]
    yield "| you have | use | because | avoid | USD per million images |"
    yield "|---|---|---|---|---:|"
    for line in table["rows"]:
        name = line["because"]
        if isinstance(name, dict):
            notebook, rate = name["notebook"], 0.0
            reason = name["text"].format(**pods_under(name["manifests"]))
        elif name in places:
            notebook, rate = places[name], _rate(compared, *line["cost"]) if "cost" in line else 0.0
            reason = _reason(compared[name], line["better"], line.get("what", ""), second.outcomes.get(name))
        else:
            raise PhotodupError(f"decisions.yaml: {name!r} is no comparison of comparisons.yaml.")
        usd = f"{price / 3600 * 1e6 / rate:.2g}" if rate else ""
        place = f"[{notebook[:2]}](notebooks/{notebook}.ipynb)"
        yield f"| {line['have']} | {line['use']} | {reason} ({place}) | {line['avoid']} | {usd} |"
    machine = read_machine(run.directory)
    yield (
        f"\nMeasured on {machine}, weights `{machine.model.pretrained}`. Prices assume {price:.2f} USD an hour and eight "
        "requests in flight, the client on the same cores. Intervals are 95%, wider where "
        "[corrected together](docs/benchmarking.md#how-a-comparison-is-judged); *exploratory*: not corrected."
    )
    gpu = read_run(folder_of(GPU_RUN))
    machine, on_gpu = read_machine(gpu.directory), read_comparisons(gpu)
    reasons = "; ".join(
        f"{name.split(',')[0]} {on_gpu.outcome_table(name).difference.iloc[0]}" for name in ON_GPU
    )
    yield f"\nOn an {machine.gpus[0].name}, by an earlier instrument: {reasons}."


def pods_under(manifests: str) -> dict[str, int | None]:
    """Return how many pods the quota of a file of manifests admits, `admitted`, and `max_replicas`."""
    text = (project_root() / manifests).read_text(encoding="utf-8")
    workload = read_workload(list(yaml.safe_load_all(text)))
    return {"admitted": workload.admitted(), "max_replicas": workload.max_replicas}


def _reason(outcome: Outcome, better: str, subject: str = "", second: Outcome | None = None) -> str:
    """State an outcome, under the comparison's name or `subject`; mark advice that takes the side found to be worse.

    Where a second pass came to another verdict, say which.
    """
    if not outcome.is_measured:
        return NOT_MEASURED
    is_b_better = (outcome.effect > 0) == (outcome.metric.quantity == "throughput")
    against = "**Not supported:** " if outcome.is_different and is_b_better != (better == "b") else ""
    cells, question = cells_of(outcome), outcome.comparison
    subject = subject or question.name.removesuffix(f", {question.load}")
    doubt = "" if outcome.is_different else f"; {outcome.verdict}"
    if second and second.is_measured and second.verdict is not outcome.verdict:
        doubt += f" (second pass: {second.verdict})"
    doubt += "" if question.is_primary else "; exploratory"
    return f"{against}{subject[:1].upper()}{subject[1:]}: {cells['figure']} {cells['difference']}, {cells['values']}{doubt}."


def _rate(compared: Comparisons, side: str, load: str) -> float:
    """Return the throughput of a side under a load, images/s; 0 where it was not measured."""
    sides = compared.side_figures
    rates = sides[(sides.side == side) & (sides.load == load)].throughput_images_per_s.astype(float).dropna()
    return float(rates.iloc[0]) if len(rates) else 0.0


def write_blocks(page: Path, blocks: Mapping[str, str]) -> Path:
    """Replace what stands between `<!-- name:begin -->` and `<!-- name:end -->` of a document; return its path.

    Raises:
        PhotodupError: the markers of a part are gone, and with them the part.
    """
    text = page.read_text(encoding="utf-8")
    for name, content in blocks.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if begin not in text or end not in text:
            raise PhotodupError(
                f"{page.name} has no place for its part {name!r}: put {begin} and {end} into it."
            )
        body = f"{begin}\n{content}\n{end}"
        text = text.partition(begin)[0] + body + text.partition(end)[2]
    write_atomically(page, text)
    return page


def appendix_table() -> str:
    """Return one row per notebook: its figures, the minutes they took here, and how far a second run differs."""
    took = {outcome.notebook: outcome.seconds for outcome in read_study(folder_of(REFERENCE))}
    lines = ["| notebook | figures | minutes here | how close a second run comes |", "|---|---|---:|---|"]
    lines.append(
        f"| all comparisons, before the notebooks | – | {_minutes(REFERENCE, VISIT):.1f} | {TIMINGS} |"
    )
    lines.append(
        f"| `benchmarks/block_lengths.py` | – | {_minutes(REFERENCE, 'block-lengths'):.1f} | {TIMINGS} |"
    )
    for path in notebooks():
        names = ", ".join(f"`{name}`" for name in saved_figures(path)) or "–"
        minutes = f"{took[path.stem] / 60:.1f}" if path.stem in took else _minutes_apart(path.stem)
        near = CLOSENESS.get(path.stem[:2], TIMINGS)
        lines.append(f"| [{path.stem}](../notebooks/{path.name}) | {names} | {minutes} | {near} |")
    return "\n".join(lines)


def _minutes_apart(stem: str) -> str:
    """Return how long the other runs took that a notebook reads and the reference run does not make."""
    runs = {name.rpartition("/")[0] for name in declarations().rests_on[stem].records} - {""}
    return f"{sum(map(_minutes, runs)):.1f}" if runs else "not run"


def _minutes(run: str, kind: str = "") -> float:
    """Return how long the records of a run took to measure; those of one kind or key, if given."""
    records = load_records(folder_of(run))
    return sum(r["duration_s"] for r in records if kind in ("", r["kind"], r["key"])) / 60


def saved_figures(path: Path) -> list[str]:
    """Return the names under which a notebook saves its figures, in order."""
    cells = read_notebook(path).cells
    return [name for cell in cells if cell.cell_type == "code" for name in SAVED.findall(cell.source)]


def closeness_text() -> str:
    """Say what *as timings* means: how far two processes of one configuration lay apart in the reference run."""
    nulls = [o for o in read_all(read_run(folder_of(REFERENCE))) if o.comparison.is_null and o.is_measured]
    most, excluded = max(abs(o.effect) for o in nulls), max(o.excludes_beyond for o in nulls)
    took = {run: f"{_minutes(run):.0f}" for run in (REFERENCE, "peers")}
    return (
        f"The reference run measured for {took[REFERENCE]} minutes, and `peers` for {took['peers']}; a notebook's minutes "
        "include its start and its figures. *As timings*: two processes of one configuration differed in the "
        f"reference run by at most {most:.1%} ({len(nulls)} pairs; only beyond {excluded:.0%} is excluded in all). A second "
        "pass can differ by more (below), and an absolute figure drifts by more than its interval says."
    )


def appendix_blocks() -> dict[str, str]:
    """Return the generated parts of `results/README.md`."""
    return {"closeness": closeness_text(), "figures": appendix_table(), "agreement": agreement_text()}


def agreement_text() -> str:
    """Say how far the outcomes of the second pass agree with the first's, in a sentence and a table."""
    folders = [folder_of(name) for name in (REFERENCE, SECOND_PASS)]
    if not all(folder.is_dir() for folder in folders):
        return "There is no second pass yet."
    first, second = (
        {
            (outcome.comparison.name, outcome.comparison.label_a, outcome.comparison.label_b): outcome
            for outcome in read_all(read_run(folder))
            if outcome.is_measured and outcome.comparison.is_primary
        }
        for folder in folders
    )
    old, new = (set(read_machine(folder).vector_instructions) for folder in folders)
    machine = (
        f"another processor, which also has {in_short(sorted(new - old), None)}"
        if new - old
        else "the same model of processor"
    )
    lines = agreement_lines([(first[sides], second[sides]) for sides in first if sides in second])
    return f"The second pass, of primary comparisons, ran on {machine}. " + "\n".join(lines)


def agreement_lines(passes: Sequence[tuple[Outcome, Outcome]]) -> list[str]:
    """Return a sentence about comparisons that both passes measured, and a Markdown table of them."""
    rows = [f"| notebook | comparison | {REFERENCE} | {SECOND_PASS} | overlap |", "|---|---|---|---|---|"]
    words, repeated = [], 0
    for a, b in passes:
        is_opposite = a.is_different and b.is_different and (a.effect > 0) != (b.effect > 0)
        word = "yes" if a.low <= b.high and b.low <= a.high else "opposite" if is_opposite else "no"
        words += [word] if a.decides or b.decides else []
        repeated += a.verdict is b.verdict and (a.decides or b.decides)
        cells = a.comparison.family[:2], a.comparison.name, _effect(a), _effect(b), word
        rows.append(f"| {' | '.join(cells)} |")
    sentence = (
        f"At least one pass decides {len(words)} comparisons. The second repeats {repeated} of their verdicts; the "
        f"intervals overlap in {words.count('yes')}, and {words.count('opposite')} differ in opposite directions."
    )
    return [sentence if words else "Neither pass decides a comparison that both measured.", "", *rows]


def _effect(outcome: Outcome) -> str:
    """Return an effect with its interval and verdict."""
    return f"{outcome.effect:+z.1%} [{outcome.low:+z.1%}, {outcome.high:+z.1%}], {outcome.verdict}"


if __name__ == "__main__":
    root = project_root()
    print(write_blocks(root / "README.md", readme_blocks()))
    print(write_blocks(root / "results" / "README.md", appendix_blocks()))
    print(write_blocks(root / "docs" / "study.md", speed_blocks()))
