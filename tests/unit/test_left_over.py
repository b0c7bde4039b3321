"""Which explanation leaves what over: rows made by a law are explained by that law, and by no other."""

import pytest

from photodup.bench.link.latency_model import pipe_limited_ms, serialisation_ms
from photodup.study.published.left_over import ROWS, left_over
from photodup.study.published.published import FP32_BYTES, load_measurements

SERVER_MS = 15.0


def planted(law):
    """The published rows, with every latency and throughput made by `law(bytes)`, ms in the network."""
    rows = load_measurements()
    for one, batch in ROWS.values():
        rows.loc[one, "value"] = law(FP32_BYTES) + SERVER_MS
        rows.loc[batch, "value"] = 32_000 / (law(32 * FP32_BYTES) + SERVER_MS)
    return rows


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("one connection's rate, kept", lambda size: 25 + serialisation_ms(size, 30)),
        ("one connection's rate, new", lambda size: 50 + serialisation_ms(size, 30)),
        ("round trips, new connection", lambda size: pipe_limited_ms(size, 28, 210, connection="new")),
        ("window open, kept connection", lambda size: 28 + serialisation_ms(size, 210)),
    ],
)
def test_rows_made_by_a_law_leave_it_nothing(name, law):
    found = left_over(planted(law), server_ms=SERVER_MS)

    best = found.loc[found.groupby("host").worst_off.idxmin()]
    assert set(best.explanation) == {name}
    assert best.worst_off.max() < 0.01
    assert found[found.explanation != name].worst_off.min() > 0.02


def test_every_pair_of_rows_is_of_one_host_and_tensors():
    rows = load_measurements()
    for host, pair in ROWS.items():
        one, batch = (rows.loc[name] for name in pair)
        assert one.hardware == batch.hardware and one.hardware.split()[0] in host
        assert (one.batch, batch.batch) == (1, 32) and {one.step, batch.step} <= set(
            host.replace(",", "").split()
        )
        assert one.protocol == batch.protocol and one.protocol.lower() in host.lower()
