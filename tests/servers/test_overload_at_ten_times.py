"""Ten times the load that a service can bear: who is let in is served in time, and nobody waits for a refusal."""

import asyncio
import time
from dataclasses import dataclass, field

import numpy as np
import psutil
import pytest
from support.hostile_images import encoded, grain
from support.paths import ROOT
from support.service import Running

PHOTO = encoded(grain(224, 224), "JPEG", quality=85)
SLOW_ENCODER = str(ROOT / "tests" / "support" / "slow_encoder.py")


@dataclass
class Load:
    """What came of an open loop: seconds of the accepted, and how many were refused, and for how long."""

    accepted: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    retry_after: set[bytes] = field(default_factory=set)
    other: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def p99(self) -> float:
        return float(np.percentile(self.accepted, 99))

    @property
    def per_s(self) -> float:
        return len(self.accepted) / self.seconds


class Client:
    """Sends one prepared request over connections that are kept; cheap enough to overload a service from one core."""

    def __init__(self, server: Running) -> None:
        self._host, self._port = server.url.removeprefix("http://").split(":")
        body = (
            b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n'
            + PHOTO
            + b"\r\n--x--\r\n"
        )
        head = "POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, load: Load) -> None:
        started = time.perf_counter()
        if self._free:
            reader, writer = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        self._free.append((reader, writer))
        status, seconds = head.split()[1], time.perf_counter() - started
        if status == b"200":
            load.accepted.append(seconds)
        elif status == b"503":
            load.refused.append(seconds)
            load.retry_after.add(head.split(b"retry-after: ")[1].split(b"\r\n")[0])
        else:
            load.other.append(head.decode())

    async def one_by_one(self, n: int) -> Load:
        load, started = Load(), time.perf_counter()
        for _ in range(n):
            await self.send(load)
        load.seconds = time.perf_counter() - started
        return load

    async def at_once(self, clients: int, n_each: int) -> Load:
        """A closed loop: what the service can do."""
        load, started = Load(), time.perf_counter()

        async def client() -> None:
            for _ in range(n_each):
                await self.send(load)

        await asyncio.gather(*(client() for _ in range(clients)))
        load.seconds = time.perf_counter() - started
        return load

    async def at_rate(self, per_s: float, seconds: float) -> Load:
        """An open loop: sent when due, whatever the service does. Rates are over the time of sending."""
        load, tasks, started = Load(seconds=seconds), [], time.perf_counter()
        in_time = 0
        for number in range(int(per_s * seconds)):
            await asyncio.sleep(max(0.0, started + number / per_s - time.perf_counter()))
            tasks.append(asyncio.create_task(self.send(load)))
        in_time = len(load.accepted)
        load.seconds = time.perf_counter() - started
        await asyncio.gather(*tasks)
        load.in_time_per_s = in_time / load.seconds
        return load

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


SLEEPING = {"program": (SLOW_ENCODER,), "MAX_WAIT_S": 1}
REAL = {"MODEL_PRETRAINED": "random:0", "ENGINE": "openvino", "MAX_WAIT_S": 4}


@pytest.mark.figures
@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        (SLEEPING | {"SLOW_MS": 20, "BATCH_MAX": 1}, 10),
        (SLEEPING | {"SLOW_MS": 20, "BATCH_MAX": 8}, 10),
        (SLEEPING | {"SLOW_MS": 50, "BATCH_MAX": 8}, 10),
        (REAL | {"BATCH_MAX": 8}, 3),
    ],
)
def test_under_many_times_the_load_who_is_let_in_is_served_in_time(settings, factor, launch):
    server, bound_s, clients = launch(**settings), settings["MAX_WAIT_S"], settings["BATCH_MAX"] + 2
    server.wait()
    process, spent = psutil.Process(server.process.pid), []

    async def measured(doing) -> Load:
        before = sum(process.cpu_times()[:2])
        load = await doing
        spent.append((sum(process.cpu_times()[:2]) - before) / max(1, len(load.accepted)))
        return load

    async def measure() -> tuple[Load, Load, Load, Load]:
        client = Client(server)
        unloaded = await client.one_by_one(60)
        capacity = await measured(client.at_once(clients, 100 // clients))
        overload = await measured(client.at_rate(factor * capacity.per_s, 8))
        await asyncio.sleep(3)
        after = await client.one_by_one(10)
        client.close()
        return unloaded, capacity, overload, after

    unloaded, capacity, overload, after = asyncio.run(measure())
    server.stop()
    said = (
        f"{settings}: unloaded p99 {unloaded.p99:.3f} s, capacity {capacity.per_s:.1f}/s; at {factor} times: p99 "
        f"{overload.p99:.3f} s, {overload.in_time_per_s:.1f}/s, {len(overload.accepted)} accepted, "
        f"{len(overload.refused)} refused (p99 {np.percentile(overload.refused, 99):.3f} s), after p99 {after.p99:.3f}; "
        f"CPU seconds an accepted image {spent[0]:.4f} and {spent[1]:.4f}, refusals included"
    )
    print(said)
    assert not overload.other, said
    assert overload.p99 <= unloaded.p99 + bound_s + 0.1, said
    if "program" in settings:  # else the clients compute on the cores of the model
        assert not capacity.refused and overload.in_time_per_s >= 0.95 * capacity.per_s, said
    else:
        assert spent[0] >= 0.85 * spent[1], said
    assert len(overload.refused) > len(overload.accepted), said
    assert len(after.accepted) == 10 and after.p99 <= 3 * unloaded.p99 + 0.3, said
