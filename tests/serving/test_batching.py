"""Requests that wait together are computed together, and everyone gets their own answer."""

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photodup.serving.service.admission import Admission, Overloaded
from photodup.serving.service.batching import Batcher
from photodup.serving.service.settings import ServiceSettings


class Model:
    """Embeds an image as its own first value; notes what it was given, and can be held."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.sizes: list[int] = []
        self.threads: set[int] = set()
        self.seconds = seconds
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Semaphore(0)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        self.entered.release()
        self.go.wait(60)
        time.sleep(self.seconds)
        self.sizes.append(len(images))
        self.threads.add(threading.get_ident())
        if (images == 255).any():
            raise ValueError("this model cannot stand white")
        return images[:, 0, 0, :1].astype(np.float32)


def batcher_of(model, on_execution=lambda images: None, pace=None, **options) -> Batcher:
    """Start a batcher that computes one request at a time and waits for none, unless the options say otherwise."""
    chosen = ServiceSettings(**{"batch_max": 1, "batch_delay_ms": 0} | options)
    admission = Admission(chosen)
    if pace:
        admission.computing.add(*pace)
    return Batcher(model, chosen, admission, on_execution)


def images(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)[:, None, None, None] * np.ones((1, 3, 2, 2), np.uint8)


def answers(futures) -> list[list[float]]:
    return [future.result(60).embeddings[:, 0].tolist() for future in futures]


def held(model: Model, batcher: Batcher, *requests: np.ndarray, wait_s: Sequence[float] = ()) -> list:
    """Queue requests while the model is busy with another; each may wait for `wait_s`."""
    model.go.clear()
    first = batcher.submit(images(0))
    assert model.entered.acquire(timeout=60)
    now, waits = time.perf_counter(), wait_s or [math.inf] * len(requests)
    futures = [batcher.submit(request, now + wait) for request, wait in zip(requests, waits, strict=True)]
    model.go.set()
    first.result(60)
    return futures


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=20),
    batch_max=st.integers(1, 8),
    delay_ms=st.sampled_from([0, 1]),
)
def test_each_request_gets_its_own_answer_and_none_is_split(sizes, batch_max, delay_ms):
    model = Model()
    batcher = batcher_of(model, batch_max=batch_max, batch_delay_ms=delay_ms)
    values = iter(range(200))
    requests = [[next(values) for _ in range(size)] for size in sizes]
    futures = [batcher.submit(images(*request)) for request in requests]
    assert answers(futures) == requests
    batcher.close()
    assert sum(model.sizes) == sum(sizes)
    assert max(model.sizes) <= max(batch_max, *sizes)
    assert len(model.threads) == 1


def test_what_waits_together_is_computed_together():
    model = Model()
    batcher = batcher_of(model, batch_max=4)
    assert answers(held(model, batcher, *(images(v) for v in range(1, 7)))) == [[v] for v in range(1, 7)]
    assert model.sizes == [1, 4, 2]
    batcher.close()


def test_a_batch_of_one_is_off():
    model = Model()
    batcher = batcher_of(model, batch_max=1, batch_delay_ms=1000)
    held_futures = held(model, batcher, images(1, 2, 3), images(4), images(5))
    assert answers(held_futures) == [[1, 2, 3], [4], [5]]
    assert model.sizes == [1, 3, 1, 1]
    batcher.close()


def test_a_lone_client_never_waits_for_company():
    batcher = batcher_of(Model(), batch_max=8, batch_delay_ms=3_600_000)
    for value in range(10):
        batcher.submit(images(value)).result(60)
    batcher.close()


def test_clients_that_come_back_at_once_are_gathered_again():
    model = Model(seconds=0.02)
    batcher = batcher_of(model, batch_max=32, batch_delay_ms=3000)

    def client(value: int) -> None:
        for _ in range(6):
            assert batcher.submit(images(value)).result(120).embeddings[0, 0] == value

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))
    batcher.close()
    assert sum(model.sizes) == 48
    # Without gathering, sizes settle at 1 and 7 in turns, twice as many executions.
    assert sorted(model.sizes)[-4:] == [8, 8, 8, 8]


def test_a_failure_reaches_those_it_belongs_to_and_nobody_else():
    model = Model()
    batcher = batcher_of(model, batch_max=1)
    good, bad, after = held(model, batcher, images(1), images(255), images(2))
    assert answers([good, after]) == [[1], [2]]
    with pytest.raises(ValueError, match="white"):
        bad.result(60)
    assert batcher.is_alive()
    batcher.close()


def test_nothing_is_computed_for_a_caller_who_left():
    model = Model()
    batcher = batcher_of(model, batch_max=8)
    model.go.clear()
    first = batcher.submit(images(0))
    assert model.entered.acquire(timeout=60)
    left, stays = batcher.submit(images(1)), batcher.submit(images(2))
    assert left.cancel()
    model.go.set()
    assert answers([first, stays]) == [[0], [2]]
    assert model.sizes == [1, 1]
    batcher.close()


def test_who_would_wait_too_long_is_refused_when_its_turn_comes():
    """One whose time is over, and one whose batch would take a minute for the images of the others."""
    model = Model()
    batcher = batcher_of(model, batch_max=4, max_wait_s=600, pace=(100, 3000))
    requests = [images(value) for value in (1, 2, 3, 4)]
    over, soon, patient, last = held(model, batcher, *requests, wait_s=(-1, 60, 100, math.inf))
    for refused in (over, soon):
        with pytest.raises(Overloaded, match="MAX_WAIT_S"):
            refused.result(60)
    assert answers([patient, last]) == [[3], [4]]
    assert model.sizes == [1, 2]  # nothing was computed for who was refused
    assert batcher.submit(images(5), time.perf_counter() + 60).result(60)  # alone: nobody to wait for
    batcher.close()


def test_an_execution_takes_at_most_a_quarter_of_the_longest_wait():
    model = Model()
    batcher = batcher_of(model, batch_max=8, max_wait_s=4, pace=(10, 2.5))
    answers(held(model, batcher, *(images(value) for value in range(1, 9))))
    assert model.sizes == [1, 4, 4]
    batcher.close()


def test_closing_computes_what_is_queued_and_refuses_more():
    model = Model(seconds=0.01)
    batcher = batcher_of(model)
    futures = [batcher.submit(images(v)) for v in range(5)]
    batcher.close()
    assert answers(futures) == [[v] for v in range(5)]
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(images(1))


def test_waiting_and_computing_are_told_apart():
    seen = []
    model = Model(seconds=0.05)
    batcher = batcher_of(model, batch_max=8, on_execution=seen.append)
    (second,) = held(model, batcher, images(1, 2))
    computed = second.result(60)
    batcher.close()
    assert computed.queue_s >= 0.04 and computed.compute_s >= 0.04
    assert seen == [1, 2]
