"""The artifact appendix, `results/README.md`: what to run for which figure, how long it takes, how close it should come."""

from __future__ import annotations

from photodup.study.notebook.files import notebooks, read_notebook, study_rows
from photodup.study.notebook.run import REFERENCE, folder_of, read_run
from photodup.study.report.figures import SAVED

# What decides how near a second run comes. `timings` are held to what two equal processes differ by.
SECOND_PASS = f"{REFERENCE}-2"  # the comparisons alone, from another pass
TIMINGS, EXACT = "as timings", "the same, from the same records"
CLOSENESS = {
    "00": EXACT,
    "01": "recall the same; durations as timings",
    "02": "differences of the same order of magnitude",
    "05": "decisions the same on a processor with the same instructions; speed as timings",
    "09": "the simulation the same from the same pod; the pod's curve as timings",
    "10": "round trips and rates as the link keeps them: within 1 ms and 5 %",
    "12": EXACT,
}


def appendix_table() -> str:
    """Return one row per notebook: its figures, how long measuring them took here, and how close a second run comes."""
    took = {row["notebook"]: row["seconds"] for row in study_rows(folder_of(REFERENCE))}
    lines = ["| notebook | figures | minutes here | how close a second run comes |", "|---|---|---:|---|"]
    for path in notebooks():
        names = ", ".join(f"`{name}`" for name in figures_of(path)) or "–"
        minutes = f"{took[path.stem] / 60:.1f}" if path.stem in took else "not run"
        near = CLOSENESS.get(path.stem[:2], TIMINGS)
        lines.append(f"| [{path.stem}](../notebooks/{path.name}) | {names} | {minutes} | {near} |")
    return "\n".join(lines)


def figures_of(path) -> list[str]:
    """Return the names under which a notebook saves its figures, in order."""
    cells = read_notebook(path).cells
    return [name for cell in cells if cell.cell_type == "code" for name in SAVED.findall(cell.source)]


def closeness_text() -> str:
    """Say what *as timings* means: how far two processes of one configuration lay apart in the reference run."""
    from photodup.study.comparisons.outcomes import read_all

    folder = folder_of(REFERENCE)
    nulls = [o for o in read_all(read_run(folder)) if o.question.is_null and o.is_measured]
    apart = (
        f"as near as two processes of one configuration lay in it, within {max(o.excludes_beyond for o in nulls):.1%} "
        f"({len(nulls)} such pairs)"
        if nulls
        else "as near as two processes of one configuration, which the committed run has not measured yet"
    )
    total = sum(row["seconds"] for row in study_rows(folder)) / 60
    return (
        f"The reference run took {total:.0f} minutes. *As timings* means: on the same machine the comparisons come {apart}; "
        "an absolute figure moves with the machine's minutes, by more than its interval says. On another machine the "
        "figures are others; what should agree are the sentences: which sides differ, which are equal."
    )


def appendix_blocks() -> dict[str, str]:
    """Return the generated parts of `results/README.md`."""
    return {"closeness": closeness_text(), "figures": appendix_table(), "agreement": agreement_text()}


def agreement_text() -> str:
    """Say how far the sentences of the second pass agree with the first's, in a sentence and a table."""
    from photodup.study.comparisons import agreement

    passes = (REFERENCE, SECOND_PASS)
    runs = [folder_of(name) for name in passes]
    found = agreement.twice(*map(read_run, runs)) if all(run.is_dir() for run in runs) else []
    table = ["", *agreement.lines(found, passes)] if found else []
    return "\n".join([agreement.summary(found), *table])
