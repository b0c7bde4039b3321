"""The published numbers: none twice, none lost, and every printed ratio recomputed."""

import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photodup.study.published import published
from photodup.study.published.audit import all_quotes, misquotes, plain
from photodup.study.published.published import PublishedError

ROWS, RATIOS, TABLES = published.load_measurements(), published.load_ratios(), published.load_tables()

DO_NOT_FOLLOW = {
    "ts_expected_gain", "triton_gpu_advantage", "network_95", "network_97", "grpc_slower_a100",
    "grpc_slower_rtx4090", "grpc_b8_rtx4090", "journey_fastest",
}  # fmt: skip


def typed_twice(rows: pd.DataFrame) -> list[str]:
    # A row with nothing but a quantity (a parameter count) is told apart by its hardware or note.
    return list(rows.index[rows.duplicated(subset=published.CONDITION, keep=False)])


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
    with pytest.raises(PublishedError, match="step6b_c32_throughput"):
        published.check_ratios(lost, RATIOS)


def test_no_table_is_left_out_and_every_place_is_a_known_table():
    places = references(ROWS, RATIOS)
    known = set(zip(TABLES["document"], TABLES["table"], strict=True))
    assert set(zip(places["document"], places["table"], strict=True)) <= known
    assert set(TABLES["document"]) | {"plan"} == set(published.DOCUMENTS)


def test_every_printed_ratio_is_recomputed_and_the_ones_that_do_not_follow_are_known():
    checked = published.check_ratios()
    assert len(checked) == len(RATIOS) >= 110
    assert set(checked.index[~checked["follows"]]) == DO_NOT_FOLLOW
    assert (checked["follows"] == checked["expected"]).all()


@pytest.mark.parametrize("ratio_id", [i for i, r in RATIOS.iterrows() if r["found_expression"]])
def test_where_the_stated_quotient_fails_another_one_gives_the_printed_number(ratio_id):
    ratio = RATIOS.loc[ratio_id]
    assert published.derive({**ratio, "expression": ratio["found_expression"]}, ROWS)["follows"]


@pytest.mark.parametrize(("ratio_id", "printed"), [
    ("triton_gpu_advantage", "12.8×"),
    ("trt_gpu", "6.6× faster"),
    ("scaling_factor", "1.8×"),
    ("scaling_efficiency", "45%"),
    ("json_vs_binary_b32", "1,058×"),
    ("json_vs_binary_b1", "4,799×"),
    ("pytorch_vs_triton_b32_mean", "5.2×"),
    ("cost_rtx4080", "$0.001"),
    ("batched_share", "22%"),
    ("network_share", "91.7%"),
    ("k8s_latency", "16×"),
    ("rtx4090_vs_a100_pytorch", "2.1×"),
    ("rtx4090_vs_a100_onnx_http", "1.3×"),
])  # fmt: skip
def test_the_famous_ratios_are_there(ratio_id, printed):
    assert RATIOS.at[ratio_id, "printed_text"].replace("x", "×").removesuffix(
        " faster"
    ) == printed.removesuffix(" faster")


def test_a_wrong_unit_is_seen():
    seconds = ROWS.copy()
    seconds.loc["step5a_triton_b32_mean", "value"] /= 1000  # seconds in a column of milliseconds
    failed = published.check_ratios(seconds, RATIOS)
    assert {"pytorch_vs_triton_b32_mean", "fix_b32"} <= set(failed.index[~failed["follows"]])


def test_a_flipped_quotient_is_seen():
    flipped = RATIOS.copy()
    flipped.loc["trt_gpu", "expression"] = "step5b_trt_gpu_compute / step5b_onnx_gpu_compute"
    assert not published.check_ratios(ROWS, flipped).at["trt_gpu", "follows"]


def test_units_stand_in_every_quantity_and_text_agrees_with_value():
    for row_id, row in ROWS.iterrows():
        if "ms" in row["value_text"] and "_ms" in row["quantity"]:
            number = float(re.search(r"([\d.]+)\s?ms", row["value_text"].replace(",", ""))[1])
            assert number in (row["value"], row["value_high"]), row_id
    latency = ROWS[ROWS["quantity"].str.startswith("latency")]
    assert latency["quantity"].isin(["latency_ms", "latency_ms_p50", "latency_ms_mean"]).all()


@given(value=st.floats(0.01, 1e6), step=st.sampled_from([0.01, 0.1, 1.0]))
def test_a_quotient_rounded_like_print_rounds_always_follows(value, step):
    rows = pd.DataFrame(
        {"value": [value, 4.0], "value_high": [None, None], "resolution": [0.0, 0.0], "value_text": ["", ""]},
        index=["top", "bottom"],
    )
    printed = round(value / 4.0 / step) * step
    ratio = {"expression": "top / bottom", "printed_low": printed, "printed_high": printed}
    assert published.derive({**ratio, "printed_step": step, "approximate": float("nan")}, rows)["follows"]
    off = {**ratio, "printed_low": printed + 2 * step, "printed_high": printed + 2 * step, "approximate": 0.0}
    assert not published.derive({**off, "printed_step": step}, rows)["follows"]


@pytest.mark.parametrize("expression", ["__import__('os')", "step4_json_b1_p50 if 1 else 2; x[0]", "a @ b"])
def test_expressions_are_arithmetic_only(expression):
    with pytest.raises(PublishedError):
        published.evaluate(expression, ROWS)


def test_errors_name_file_row_and_field(tmp_path):
    text = (published.published_dir() / "measurements.csv").read_text()
    for damaged, said in (
        (text.replace(",56.9,,", ",56.9ms,,", 1), r"s\.csv: step6a_a100_pytorch_b1 has value = '56.9ms'"),
        (text.replace("resolution", "resolutoin", 1), "lacks the column 'resolution'"),
        (text + text.splitlines()[1] + "\n", "appears twice"),
    ):
        (tmp_path / "measurements.csv").write_text(damaged)
        with pytest.raises(PublishedError, match=said):
            published.load_measurements(tmp_path)
    with pytest.raises(PublishedError, match="no_such_row"):
        published.value("no_such_row")


def test_the_data_can_be_held_against_the_documents(tmp_path):
    heading = published.DOCUMENTS["technical-deep-dive"]
    places = TABLES[TABLES["document"] == "technical-deep-dive"]
    lines = [f"# {heading}", "```", "| not | a table |", "```"]
    for _, table in places.iterrows():
        grid = [[""] * int(table["n_cols"]) for _ in range(int(table["n_rows"]))]
        rows = ROWS[(ROWS["document"] == "technical-deep-dive") & (ROWS["table"] == table["table"])]
        for _, row in rows.iterrows():
            line, column = (int(n) - 1 for n in row["cell"][1:].split("c"))
            grid[line][column] += f" **{row['value_text'].strip('~$')}**"
        lines += ["", "| " + " | ".join("h" * len(grid[0])) + " |", "|" + "-|" * len(grid[0])]
        lines += ["| " + " | ".join(cells) + " |" for cells in grid]
    document = tmp_path / "deep.md"
    document.write_text("\n".join(lines), encoding="utf-8")
    differences = published.compare_with_documents(tmp_path)
    assert len(differences) == 4 and all("not found" in d for d in differences)
    document.write_text(document.read_text().replace("182.9ms", "181.9ms"), encoding="utf-8")
    assert [d for d in published.compare_with_documents(tmp_path) if "step6a_a100_onnx_b1" in d]


def test_a_misquote_is_found_in_the_documents(tmp_path):
    """The documents are not in the repository: here each is made of the quotes that name it."""
    said = {name: [f"# {start}"] for name, start in published.DOCUMENTS.items()}
    for _, quote in all_quotes():
        said[quote["document"]].append(quote["text"])
    for name, lines in said.items():
        (tmp_path / f"{name}.md").write_text("\n\n".join(lines), encoding="utf-8")
    assert len(list(all_quotes())) >= 50 and misquotes(tmp_path) == []
    plan = tmp_path / "plan.md"
    plan.write_text(plan.read_text().replace("scales well", "scales **fairly**\nwell"), encoding="utf-8")
    found = misquotes(tmp_path)
    assert [line.partition(":")[0] for line in found] == ["fastapi-scales", "E10"]
    assert "plan does not say 'FastAPI async + JPEG scales well'" in found[0]
    plan.unlink()
    assert len(misquotes(tmp_path)) == sum(quote["document"] == "plan" for _, quote in all_quotes())
    assert plain("a **b**\n `c`") == "a b c"


def test_the_documents_contact_details_were_not_copied():
    text = "".join(path.read_text() for path in published.published_dir().iterdir())
    assert not pd.Series([text]).str.contains(r"\d+\.\d+\.\d+\.\d+|@[a-z]+\.").any()


def test_devices_and_public_throughputs_name_their_source():
    for name in ("devices.csv", "model_throughput.csv"):
        table = pd.read_csv(published.published_dir() / name)
        assert table["source"].str.startswith("https://").all() and not table["device"].isna().any()
