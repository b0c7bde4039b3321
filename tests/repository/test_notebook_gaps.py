"""A cell that misses a result says so and the notebook goes on; every other error ends it."""

import pytest
from support.shell import run_cells

START = "from photodup.study.notebook.gaps import Gap, NotMeasured, print_gaps, need\n"
START += "print_gaps()"


def outputs_of(*cells: str) -> list[str]:
    """Execute cells in one shell and return what each printed or displayed."""
    return [printed.strip() for printed in run_cells((START, *cells))[1:]]


def test_a_gap_is_said_by_its_cell_and_by_every_cell_that_builds_on_it():
    printed = outputs_of(
        "before = 1\npoint = Gap(error='the link was down')\nvalue = point['latency_ms_p50']\nafter = 2",
        "print(before)",
        "twice = 2 * value\nprint('never')",
        "f'{twice:.1f}'",
        "import pandas as pd\npd.DataFrame(after)",
        "2 + 3",
    )
    assert printed[0] == "Not measured: the link was down"
    assert printed[1:5] == ["Not measured: the link was down"] * 4, "such a cell sets nothing"
    assert printed[5] == "5", "a last expression is displayed as ever"


def test_a_condition_ends_its_cell_and_marks_all_that_the_cell_sets():
    printed = outputs_of("kept = 4", "rows = []\nneed(len(rows) > 1, 'two are needed')", "sum(rows)", "kept")
    assert printed == ["", "Not measured: two are needed", "Not measured: two are needed", "4"]


def test_a_cell_that_is_run_again_with_a_server_mends_what_follows():
    cell = "rows = Gap(error='no server')['rows'] if not servers else [1]"
    printed = outputs_of("servers = []", cell, "rows", "servers = [1]", cell, "rows")
    assert printed[2] == "Not measured: no server" and printed[5] == "[1]"


def test_a_stale_name_of_an_earlier_cell_is_missing_too():
    printed = outputs_of("rows = [1]", "rows = Gap(error='no server')['rows']", "print(rows[0])")
    assert printed[2] == "Not measured: no server"


@pytest.mark.parametrize(("mistake", "error"), [
    ("1 / 0", ZeroDivisionError),
    ("x = {}['key']", KeyError),
    ("print(undefined)", NameError),
    ("raise ValueError('wrong')", ValueError),
])  # fmt: skip
def test_a_mistake_in_a_program_ends_the_notebook(mistake, error):
    with pytest.raises(error):
        outputs_of(mistake)
