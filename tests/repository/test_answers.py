"""An answer's numbers are computed from records: one that is typed into its sentence has a reason, or is a fault."""

import ast
import re

import nbformat
import pytest

from photodup.study.notebook.files import notebooks
from photodup.study.notebook.opening import is_tagged

TYPED = re.compile(r"(?<![\w.#/])\d[\d.,]*(?!\w)")
# notebook -> typed number -> why it may stand there.
ALLOWED = {
    "00_start_here": {"10": "a notebook's number", "12": "a notebook's number"},
    "03_set_up_triton": {"04": "a notebook's number"},
    "05_trt_fp16": {"06": "a notebook's number"},
    "06_compare_three_backends": {"05": "a notebook's number"},
    "01_scan_photos": {"95": "the level of the bound, per cent"},
    "07_scale_gpus": {"45": "what the study printed"},
    "09_scale_on_kind": dict.fromkeys("246", "the replicas of the study's events"),
    "14_judge_the_judge": {"2": "planted, per cent", "3": "planted, per cent", "5": "planted, per cent"},
    "10_explain_remote_latency": {
        "602": "the published payload, KB",
        "25": "the round trip that the link is set to, ms",
        "10": "how near a prediction fits, per cent",
    },
}


def typed_numbers(source: str) -> set[str]:
    """Return the numbers in the texts of a cell, without format specifications and keys."""
    tree = ast.parse(source)
    left_out = set()
    for node in ast.walk(tree):
        inner = node.format_spec if isinstance(node, ast.FormattedValue) else None
        inner = node.slice if isinstance(node, ast.Subscript) else inner
        left_out |= {id(part) for part in ast.walk(inner)} if inner is not None else set()
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out
    ]
    return {found.rstrip(".,") for text in texts for found in TYPED.findall(text)}


def answer_of(path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if is_tagged(cell, "answer"))


@pytest.mark.parametrize("path", notebooks(()), ids=lambda path: path.stem)
def test_no_answer_holds_a_number_that_nobody_measured(path):
    assert typed_numbers(answer_of(path)) <= set(ALLOWED.get(path.stem, {}))


def test_every_reason_is_still_needed():
    stems = {path.stem: path for path in notebooks(())}
    assert set(ALLOWED) <= set(stems)
    for stem, reasons in ALLOWED.items():
        assert set(reasons) <= typed_numbers(answer_of(stems[stem])), f"{stem}: a number that is gone"


def test_a_planted_number_is_found():
    planted = 'print(f"Serve INT8: one photo takes {value:.1f} ms instead of 49 ms, 2.8 times as fast.")'
    assert typed_numbers(planted) == {"49", "2.8"}
    named = """print(f"FP16, p95, ViT-B/32 and {rows[3]:5.2f} {table['8 in flight']}")"""
    assert typed_numbers(named) == set()
