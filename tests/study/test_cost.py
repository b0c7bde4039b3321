"""The cost table on made-up points with known answers, and on gaps."""

import math

import pandas as pd
import pytest

from photodup.study.notebook.gaps import NotMeasured
from photodup.study.scaling import cost
from photodup.study.scaling.cost import cheapest, cost_table, fastest_in_both, scaling_costs


def point(server, rate, arrangement=None, devices=None):
    where = {"server": server, "arrangement": arrangement, "devices": devices}
    return where | {"throughput_images_per_s": rate}


POINTS = pd.DataFrame(
    [
        point("triton", 90.0, "instances", 1),
        point("triton", 100.0, "instances", 1),  # at a better load
        point("triton", 380.0, "instances", 4),
        point("triton", 320.0, "servers", 4),
        point("triton", math.nan, "servers", 4),
        point("fastapi", 50.0),  # one service, as every notebook measures it
    ]
)


def row(table, way, k):
    return table[(table["way"] == way) & (table["devices"] == k)].iloc[0]


def test_each_way_has_its_own_throughput_price_and_cost():
    table = scaling_costs(POINTS, {1: 0.5, 4: 1.6}, devices=[1, 4])
    assert list(table.columns) == cost.COLUMNS and len(table) == 2 * len(cost.WAYS)
    together, apart = row(table, "one machine, Triton", 4), row(table, "k machines, Triton", 4)
    assert (together["images_per_s"], together["usd_per_hour"], together["efficiency"]) == (380, 1.6, 0.95)
    assert together["usd_per_million_images"] == pytest.approx(1.6 / 3600 / 380 * 1e6)
    assert (apart["images_per_s"], apart["usd_per_hour"], apart["efficiency"]) == (320, 2.0, 0.8)
    assert set(table[table["devices"] == 1]["usd_per_hour"]) == {0.5}


def test_what_was_not_measured_with_k_is_multiplied_and_says_so():
    fastapi = row(scaling_costs(POINTS, {1: 0.5}, devices=[4]), "k machines, FastAPI", 4)
    assert fastapi["images_per_s"] == 200 and math.isnan(fastapi["efficiency"])
    assert fastapi["how"] == "not measured with 4: 4 × one"


def test_a_machine_with_four_gpus_is_not_priced_as_four_machines():
    table = scaling_costs(POINTS, {1: 0.5}, devices=[4])
    assert math.isnan(row(table, "one machine, Triton", 4)["usd_per_hour"])
    assert row(table, "k machines, Triton", 4)["usd_per_hour"] == 2.0


def test_emulated_devices_have_no_price_and_nothing_measured_has_no_number():
    free = scaling_costs(POINTS, devices=[4])
    assert free["usd_per_hour"].isna().all() and free["usd_per_million_images"].isna().all()
    assert cheapest(free, 100) == "Nothing that serves 100 images/s has a price here."
    empty = scaling_costs(POINTS.assign(throughput_images_per_s=math.nan), {1: 0.5}, devices=[2])
    assert set(empty["how"]) == {"not measured"} and empty["images_per_s"].isna().all()
    assert cheapest(empty, 10).endswith("since nothing was measured.")


def test_the_cheapest_that_serves_enough_is_named():
    table = scaling_costs(POINTS, {1: 0.5, 4: 1.6}, devices=[1, 2, 4])
    assert cheapest(table, 90).startswith("90 images/s cost least with one machine, Triton: 0.50 USD/h")
    assert cheapest(table, 350).startswith("350 images/s cost least with one machine, Triton: 1.60 USD/h")
    assert cheapest(table, 190) == (
        "190 images/s cost least with 2 × one GPU, Triton: 1.00 USD/h, 200 images/s (not measured with 2: 2 × one)."
    )
    assert "the most is 380" in cheapest(table, 5000)
    assert table[table["how"] == cost.MEASURED]["efficiency"].notna().all()


def arm(server, engine, rate, load="eight"):
    side = {"server": server, "engine": engine, "precision": "int8", "label": f"{engine} in {server}"}
    return side | {"load": load, "throughput_images_per_s": rate}


def test_the_fastest_engine_behind_both_servers_is_priced_and_an_engine_behind_one_is_not():
    arms = [arm("triton", "trt", 900.0), arm("triton", "openvino", 70.0), arm("fastapi", "openvino", 72.0)]
    arms += [arm("triton", "onnx", 30.0), arm("fastapi", "onnx", 29.0)]
    arms += [arm("fastapi", "onnx", 99.0, load="one")]
    label, one = fastest_in_both(pd.DataFrame(arms), gpus=2)
    assert label == "openvino in fastapi and openvino in triton"
    assert dict(zip(one.server, one.devices, strict=True)) == {"triton": 2, "fastapi": 1}
    table = cost_table(scaling_costs(one, {2: 0.9}, devices=[1, 2]))
    together = table[(table["way"] == "one machine, Triton") & (table["k"] == 2)].iloc[0]
    assert together[["images/s", "USD an hour", "how"]].tolist() == [70, 0.9, "measured"]
    rented, _ = fastest_in_both(pd.DataFrame([arms[0], arm("fastapi", "pytorch", 9.0)]))
    assert rented == "pytorch in fastapi and trt in triton, two engines"
    with pytest.raises(NotMeasured, match="behind both servers"):
        fastest_in_both(pd.DataFrame(arms[:2]))


def test_a_table_without_prices_has_no_columns_for_them():
    table = cost_table(scaling_costs(POINTS, devices=[4]))
    assert list(table.columns) == ["way", "k", "images/s", "efficiency (%)", "how"]
