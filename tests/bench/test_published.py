"""The published data: no number twice, none lost, and every claim rests on rows, quotes and comparisons that exist."""

import os
import re
from pathlib import Path

import pandas as pd
import pytest

from photodup.bench.pairs.declared import declarations
from photodup.study import published

ROWS, RATIOS, CLAIMS = published.load_measurements(), published.load_ratios(), published.load_claims()
TABLES = pd.read_csv(published.published_dir() / "tables.csv")
TITLES = {  # how each document's first line begins
    "executive-summary": "ML Inference Infrastructure: Executive Summary",
    "technical-deep-dive": "ML Inference Infrastructure: Technical Deep-Dive",
    "plan": "Step 1 (Most important)",
    "triton-setup": "Step 4: NVIDIA Triton Inference Server Setup",
    "step-5a-report": "Step 5A: ONNX Runtime / Triton Optimization",
}
CONDITION = [  # two rows that agree in all of these would be the same number typed twice
    "run", "step", "hardware", "gpus", "location", "backend",
    "scenario", "batch", "concurrency", "item", "quantity",
]  # fmt: skip
DOCUMENTS = os.environ.get(
    "PUBLISHED_DOCUMENTS", ""
)  # a folder of the five documents, which are not in the repository
NAME = re.compile(r"\b[a-z]\w*")


def typed_twice(rows: pd.DataFrame) -> list[str]:
    # A row with nothing but a quantity (a parameter count) is told apart by its hardware or note.
    return list(rows.index[rows.duplicated(subset=CONDITION, keep=False)])


def references(measurements: pd.DataFrame, ratios: pd.DataFrame) -> pd.DataFrame:
    """Return one row per (table cell, value): which number or ratio stands in which cell.

    Columns: `owner`, `document`, `table`, `row`, `column`. Places in prose are left out.
    """
    found = []
    for owner, row in pd.concat([measurements, ratios]).iterrows():
        places = [f"{row['document']}/{row['table']}/{row['cell']}"] if row["cell"] else []
        places += [place.partition("=")[0] for place in str(row["also_in"]).split("; ") if place]
        for place in places:
            if match := re.fullmatch(r"([\w-]+)/([\w-]+)/r(\d+)c(\d+)", place):
                document, table, line, column = match.groups()
                found.append((owner, document, table, int(line), int(column)))
    return pd.DataFrame(found, columns=["owner", "document", "table", "row", "column"])


def miscounted(rows: pd.DataFrame, ratios: pd.DataFrame, tables: pd.DataFrame) -> list[str]:
    found = references(rows, ratios)
    wrong = []
    for _, table in tables.iterrows():
        here = found[(found["document"] == table["document"]) & (found["table"] == table["table"])]
        cells = here[["row", "column"]].drop_duplicates()
        inside = here["row"].between(1, table["n_rows"]) & here["column"].between(1, table["n_cols"])
        if len(here) != table["n_values"] or len(cells) != table["n_value_cells"] or not inside.all():
            wrong.append(f"{table['document']}/{table['table']}")
    return wrong


def test_no_number_is_typed_twice_and_one_that_is_is_seen():
    assert typed_twice(ROWS) == []
    again = pd.concat([ROWS, ROWS.loc[["step6a_a100_onnx_b1"]].rename(index=lambda name: "again")])
    assert typed_twice(again) == ["step6a_a100_onnx_b1", "again"]


def test_every_table_has_all_its_values_and_a_dropped_row_is_seen():
    assert len(TABLES) == 42 and miscounted(ROWS, RATIOS, TABLES) == []
    lost = ROWS.drop(index="step6b_c32_throughput")
    assert miscounted(lost, RATIOS, TABLES) == [
        "technical-deep-dive/four-gpu-load",
        "technical-deep-dive/four-gpu-scaling",
        "technical-deep-dive/cost",
    ]


def test_no_table_is_left_out_and_every_place_is_a_known_table():
    places = references(ROWS, RATIOS)
    known = set(zip(TABLES["document"], TABLES["table"], strict=True))
    assert set(zip(places["document"], places["table"], strict=True)) <= known
    assert set(TABLES["document"]) | {"plan"} == set(TITLES)


def test_units_stand_in_every_quantity_and_text_agrees_with_value():
    for row_id, row in ROWS.iterrows():
        if "ms" in row["value_text"] and "_ms" in row["quantity"]:
            number = float(re.search(r"([\d.]+)\s?ms", row["value_text"].replace(",", ""))[1])
            assert number in (row["value"], row["value_high"]), row_id
    latency = ROWS[ROWS["quantity"].str.startswith("latency")]
    assert latency["quantity"].isin(["latency_ms", "latency_ms_p50", "latency_ms_mean"]).all()


def test_every_row_that_a_ratio_or_a_claim_names_exists():
    known = set(ROWS.index) | {f"{name}_high" for name in ROWS.index[ROWS["value_high"].notna()]}
    expressions = [*RATIOS["expression"], *RATIOS["found_expression"], *CLAIMS["published"].dropna()]
    assert {name for text in expressions for name in NAME.findall(text)} <= known
    assert not [text for text in expressions if re.search(r"[^\w\s.+\-*/();]", text)], "arithmetic alone"


def test_a_claim_is_quoted_and_tested_by_primary_comparisons_or_says_what_it_needs():
    primary = {pair.name for pair in declarations().pairs if pair.is_primary}
    assert CLAIMS.index.is_unique and len(CLAIMS) >= 30 and set(CLAIMS["document"]) <= set(TITLES)
    assert CLAIMS[["statement", "section", "quote"]].map(lambda text: bool(text and text.strip())).all().all()
    assert (CLAIMS[["tests", "needs", "goal"]].notna().sum(axis=1) == 1).all(), "one of the three"
    tests = [test for of in CLAIMS["tests"].dropna() for test in of]
    assert {test["comparison"] for test in tests} <= primary
    for bounds in (*tests, *CLAIMS["goal"].dropna()):
        assert {"at_least", "at_most"} & set(bounds) and set(bounds) <= {
            "comparison",
            "figure",
            "at_least",
            "at_most",
        }


@pytest.mark.skipif(not DOCUMENTS, reason="the documents are not in the repository")
def test_every_quote_stands_in_the_documents():
    def plain(text: str) -> str:
        return " ".join(re.sub(r"[*`]", "", text).split())

    texts = [path.read_text(encoding="utf-8") for path in Path(DOCUMENTS).iterdir()]
    named = {
        name: text
        for name, start in TITLES.items()
        for text in texts
        if text.lstrip("# \n").startswith(start)
    }
    assert set(named) == set(TITLES)
    wrong = [
        claim.Index for claim in CLAIMS.itertuples() if plain(claim.quote) not in plain(named[claim.document])
    ]
    assert wrong == []


def test_each_row_has_a_name_of_its_own():
    assert ROWS.index.is_unique and RATIOS.index.is_unique and CLAIMS.index.is_unique


def test_the_documents_contact_details_were_not_copied():
    text = "".join(path.read_text() for path in published.published_dir().iterdir())
    assert not pd.Series([text]).str.contains(r"\d+\.\d+\.\d+\.\d+|@[a-z]+\.").any()


def test_devices_and_public_throughputs_name_their_source():
    for name in ("devices.csv", "model_throughput.csv"):
        table = pd.read_csv(published.published_dir() / name)
        assert table["source"].str.startswith("https://").all() and not table["device"].isna().any()
