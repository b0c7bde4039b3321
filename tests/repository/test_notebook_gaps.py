"""A cell that misses a result says so and the notebook goes on; every other error ends it."""

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

START = "from photodup.study.notebook.gaps import Gap, NotMeasured, go_on_without_what_is_missing, need\n"
START += "go_on_without_what_is_missing()"


def outputs_of(*cells: str) -> list[str]:
    """Execute cells in one kernel and return what each printed or displayed."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in (START, *cells)]
    )
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    return [
        "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in cell.outputs).strip()
        for cell in notebook.cells[1:]
    ]


def test_a_gap_is_said_by_its_cell_and_by_every_cell_that_builds_on_it():
    printed = outputs_of(
        "before = 1\npoint = Gap(invalid_because='the link was down')\nvalue = point['latency_ms_p50']\nafter = 2",
        "print(before)",
        "twice = 2 * value\nprint('never')",
        "f'{twice:.1f}'",
        "import pandas as pd\npd.DataFrame(after)",
        "2 + 3",
    )

    assert printed[0] == "Not measured: the link was down"
    assert printed[1] == "1"
    assert printed[2:5] == ["Not measured: the link was down"] * 3
    assert printed[5] == "5", "a last expression is displayed as ever"


def test_a_condition_marks_what_it_asked_about():
    printed = outputs_of(
        "rows, kept = [], 4\nneed(len(rows) > 1, 'two rows are needed')", "sum(rows)", "kept"
    )

    assert printed == ["Not measured: two rows are needed", "Not measured: two rows are needed", "4"]


def test_a_stale_name_of_an_earlier_cell_is_missing_too():
    printed = outputs_of("rows = [1]", "rows = Gap(invalid_because='no server')['rows']", "print(rows[0])")

    assert printed[2] == "Not measured: no server"


@pytest.mark.parametrize(
    "mistake", ["1 / 0", "x = {}['key']", "print(undefined)", "raise ValueError('wrong')"]
)
def test_a_mistake_in_a_program_ends_the_notebook(mistake):
    with pytest.raises(CellExecutionError):
        outputs_of(mistake)
