"""Files that are made to take minutes: the limits that know them, the deadline for the rest, and who goes on meanwhile.

Against the real service and a real `photodup scan`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from support.hostile_images import (
    encode,
    endless_comment,
    flat_png,
    grain,
    many_scans,
    overlapping_tiff,
    scans_in_tiff,
)
from support.service import as_files, has_ended, until

from photodup.embedding import imaging
from photodup.embedding.backends import parse_backend
from photodup.embedding.client.http import Patience
from photodup.embedding.client.servers import FastApiServer
from photodup.embedding.decode_pool import Cancellation, Cancelled, DecodePool, TooSlow
from photodup.embedding.imaging import ImageError, decode, is_bounded
from photodup.embedding.jpeg_scans import MAX_SCANS, MAX_SEGMENTS, read_layout

HONEST = encode(grain(640, 480), "JPEG", quality=85)
HONEST_PNG = encode(grain(64, 48), "PNG")
JOB = "photodup.embedding.imaging:packed_model_input"


def post(url: str, *images: bytes, timeout: float = 60) -> httpx.Response:
    return httpx.post(f"{url}/embed", files=as_files(list(images)), timeout=timeout)


def took(started: float) -> float:
    return time.monotonic() - started


# The limits in imaging


@pytest.mark.parametrize("draft_size", [None, 448])
def test_a_jpeg_of_two_thousand_scans_is_refused_before_it_is_decoded(draft_size, figure):
    data = many_scans()
    assert len(data) < 400_000 and is_bounded(data) is False
    started = time.monotonic()
    with pytest.raises(ImageError, match=f"more than {MAX_SCANS} scans.*save it again"):
        decode(data, draft_size=draft_size)
    figure(took(started) < 5, took(started))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 100, "subsampling": 0}])
def test_usual_jpegs_are_read_as_before_and_need_no_process(options):
    data = encode(grain(800, 600), "JPEG", **options)
    layout = read_layout(data)
    assert (layout.width, layout.height) == (800, 600) and layout.is_bounded and is_bounded(data)
    assert layout.scans == (10 if "progressive" in options else 1)
    assert decode(data).size == (800, 600)


def test_the_walk_counts_what_the_decoder_visits_however_it_is_hidden():
    plain = encode(grain(64, 64), "JPEG", progressive=True)
    comment = b"\xff\xfe" + (2 + 1000).to_bytes(2, "big") + b"\xff\xda" * 500
    with_comment = plain[:2] + comment + plain[2:]  # no scans: a comment that looks like them
    assert read_layout(with_comment).scans == 10 and decode(with_comment).size == (64, 64)
    after_the_end = plain + b"\xff\xda\0\4" * 500  # a film behind the picture, as phones append
    assert read_layout(after_the_end).scans == 10 and decode(after_the_end).size == (64, 64)
    last = plain.rindex(b"\xff\xda")
    filled = plain[:last] + (b"\0\0\xff\xff\xff" + plain[last + 1 : -2]) * (MAX_SCANS + 1) + b"\xff\xd9"
    assert read_layout(filled).scans > MAX_SCANS  # junk and fill bytes before each marker
    with pytest.raises(ImageError, match="scans"):
        decode(filled)


def test_a_header_of_a_million_segments_is_refused_and_an_unusual_one_gets_a_deadline():
    plain = encode(grain(64, 64), "JPEG")
    with pytest.raises(ImageError, match=f"more than {MAX_SEGMENTS:,} segments"):
        decode(plain[:2] + b"\xff\xfe\0\2" * 1_000_000 + plain[2:])
    assert not is_bounded(plain[:2] + b"\xff\xfe\0\2" * 1000 + plain[2:])
    assert not is_bounded(plain[:2] + bytes(100) + plain[2:])
    assert not is_bounded(HONEST_PNG) and not is_bounded(b"") and not is_bounded(b"\xff\xd8\xff")


def test_the_walk_takes_no_time_that_grows_faster_than_the_file(figure):
    started = time.monotonic()
    for filler in (b"\xff", b"\xff\x00", b"\x00", b"\xff\xd0"):
        read_layout(b"\xff\xd8\xff\xda\0\2" + filler * (8_000_000 // len(filler)))
        read_layout(b"\xff\xd8" + filler * (8_000_000 // len(filler)))
    figure(took(started) < 20, took(started))


# The deadline


@pytest.fixture
def pool():
    """Starts one process that decodes; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(job: str = JOB, deadline_s: float = 60) -> DecodePool:
            started = DecodePool(job, size=1, deadline_s=deadline_s, remedy="wait")
            stack.callback(started.close)
            return started

        yield start


def test_an_image_that_takes_too_long_costs_its_deadline_and_the_next_one_is_decoded(pool, figure):
    decoding = pool(deadline_s=1)
    decoding.run(HONEST_PNG)
    started = time.monotonic()
    with pytest.raises(TooSlow, match=r"longer than 1 seconds.*save it again, or wait"):
        decoding.run(endless_comment())
    figure(took(started) < 20, took(started))
    n_pixels, pixels = imaging.unpack_model_input(decoding.run(HONEST_PNG))
    assert n_pixels == 64 * 48
    np.testing.assert_array_equal(pixels, imaging.to_uint8(decode(HONEST_PNG)))
    with pytest.raises(ImageError, match="not an image"):
        decoding.run(b"junk")


def test_a_file_that_asks_for_all_the_memory_gets_a_share(pool, figure):
    data = overlapping_tiff()
    decoding = pool()
    with pytest.raises(ImageError):
        decoding.run(data, max_pixels=10_000_000)
    (worker,) = decoding._idle or decoding._alive or (None,)
    if worker is not None and sys.platform.startswith("linux"):
        status = Path(f"/proc/{worker._process.pid}/status").read_text()
        peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        figure(peak_kib < 3_000_000, peak_kib)


def test_a_decode_ends_when_it_is_cancelled_or_the_pool_is_closed(figure):
    pool = DecodePool(JOB, size=2, deadline_s=60, remedy="wait")
    cancellation = Cancellation()
    with ThreadPoolExecutor(2) as threads:
        cancelled = threads.submit(pool.run, endless_comment(), cancellation)
        closed = threads.submit(pool.run, endless_comment())
        time.sleep(1)
        started = time.monotonic()
        cancellation.cancel()
        with pytest.raises(Cancelled):
            cancelled.result(120)
        assert not closed.done()
        pool.close()
        with pytest.raises(Cancelled):
            closed.result(120)
        figure(took(started) < 10, took(started))
        with pytest.raises(Cancelled):
            pool.run(HONEST_PNG)


def test_a_process_that_crashes_costs_one_image(pool):
    """As a fault in a decoder would do it."""
    decoding = pool("os:kill", deadline_s=10)
    with pytest.raises(ImageError, match="cannot be decoded"):  # os.kill refuses such arguments
        decoding.run(b"x")
    (worker,) = decoding._idle
    worker._process.kill()
    worker._process.wait()
    with pytest.raises(ImageError, match="crashed"):
        decoding.run(b"x")
    with pytest.raises(ImageError, match="TypeError"):
        decoding.run(b"x")


def test_workers_take_nothing_from_the_current_folder_and_end_with_their_parent(tmp_path):
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL/__init__.py").write_text("raise SystemExit('a stranger was imported')")
    code = (
        "import sys, os\n"
        "from photodup.embedding.decode_pool import DecodePool\n"
        f"pool = DecodePool({JOB!r}, size=1, deadline_s=60, remedy='')\n"
        "pool.run(sys.stdin.buffer.read())\n"
        "print(pool._idle[0]._process.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, input=HONEST_PNG, cwd=tmp_path, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    until(lambda: has_ended(int(done.stdout)))


# The service


def test_the_service_refuses_many_scans_at_once_and_names_the_image(small_service, figure):
    server = small_service(MAX_PIXELS=50_000_000)
    started = time.monotonic()
    answer = post(server.url, HONEST, many_scans())
    assert answer.status_code == 400 and answer.json()["index"] == 1
    assert "scans" in answer.json()["detail"]
    figure(took(started) < 10, took(started))


@pytest.fixture(scope="session")
def hostile_service(small_service):
    wide = {"MAX_BODY_MB": 100, "MAX_PIXELS": 50_000_000, "DECODE_THREADS": 2}
    return lambda **settings: small_service(**(wide | settings))


def test_hostile_images_starve_nobody_and_are_given_up_at_the_deadline(hostile_service, figure):
    server = hostile_service(DECODE_SECONDS=4)
    with ThreadPoolExecutor(2) as pool:
        attacks = [pool.submit(post, server.url, endless_comment()) for _ in range(2)]
        until(lambda: server.metrics()["photodup_requests_in_flight"] >= 2)
        n_served = 0
        while not all(attack.done() for attack in attacks):
            assert post(server.url, HONEST).status_code == 200
            n_served += 1
        assert n_served
        figure(n_served >= 5, n_served)
        for attack in attacks:
            assert attack.result().status_code == 400
            assert "longer than 4 seconds" in attack.result().json()["detail"]
            assert "DECODE_SECONDS" in attack.result().json()["detail"]
    assert post(server.url, HONEST_PNG).status_code == 200  # a process is there for the next


def test_pixels_are_limited_per_request(hostile_service):
    server = hostile_service(MAX_IMAGES=64, MAX_REQUEST_PIXELS=20_000_000, DECODE_SECONDS=60)
    four_megapixels = flat_png(2000, 2000)
    answer = post(server.url, *[four_megapixels] * 64)
    assert answer.status_code == 413
    assert "20 megapixels together" in answer.json()["detail"]
    # The library's own client splits such a request.
    client = FastApiServer(server.url, parse_backend("fastapi-pytorch-fp32-http-jpeg"), Patience())
    assert client.infer([four_megapixels] * 7).shape == (7, 512)
    client.close()


def test_the_work_of_a_client_that_has_left_is_dropped(hostile_service, figure):
    server = hostile_service(DECODE_SECONDS=120, DECODE_THREADS=2)
    post(server.url, HONEST_PNG)
    for _ in range(2):
        with pytest.raises(httpx.ReadTimeout):
            post(server.url, endless_comment(), timeout=httpx.Timeout(60, read=1))
    until(lambda: server.metrics()["photodup_requests_in_flight"] == 0)
    started = time.monotonic()
    assert post(server.url, HONEST_PNG).status_code == 200
    figure(took(started) < 20, took(started))


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_hostile_decode_does_not_keep_the_service_from_stopping(sign, launch, figure):
    server = launch(DECODE_SECONDS=300)
    server.wait()
    with ThreadPoolExecutor(1) as pool:
        attack = pool.submit(post, server.url, endless_comment(45_000_000))  # longer than an image is given
        until(lambda: server.metrics()["photodup_requests_in_flight"] == 1)
        time.sleep(1)
        started = time.monotonic()
        server.process.send_signal(sign)
        server.process.wait(120)
        figure(took(started) < 15, took(started))  # three seconds are given to the image
        with pytest.raises(httpx.HTTPError):
            attack.result().raise_for_status()


# The scan


def run_scan(folder: Path, *options: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "photodup", "scan", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ) | {"COLUMNS": "300"},
    )


def test_a_scan_names_the_files_and_goes_on(tmp_path):
    (tmp_path / "a scans.jpg").write_bytes(many_scans())
    (tmp_path / "b slow.png").write_bytes(endless_comment())
    (tmp_path / "c tiff.tif").write_bytes(scans_in_tiff())
    (tmp_path / "d good.jpg").write_bytes(HONEST)
    (tmp_path / "e good.png").write_bytes(HONEST_PNG)
    out, err = run_scan(tmp_path, "--decode-seconds", "3").communicate(timeout=300)
    assert "2 read" in out and "3 not readable" in out, out + err
    assert f"not read: a scans.jpg: a JPEG with more than {MAX_SCANS} scans" in out
    assert "not read: b slow.png: it takes longer than 3 seconds" in out and "--decode-seconds" in out
    assert "not read: c tiff.tif: " in out


def test_ctrl_c_ends_a_scan_that_is_at_a_hostile_file(tmp_path, figure):
    for number in range(4):  # a fast machine has read one before the key is pressed
        (tmp_path / f"slow {number}.png").write_bytes(endless_comment())
    scan = run_scan(tmp_path, "--decode-seconds", "300")
    until(lambda: scan.poll() is not None or psutil.Process(scan.pid).children(recursive=True))
    time.sleep(1)  # until its process has begun to decode
    assert scan.poll() is None, scan.communicate()
    started = time.monotonic()
    scan.send_signal(signal.SIGINT)
    _, err = scan.communicate(timeout=120)
    assert "what was done is kept" in err
    figure(took(started) < 10, took(started))
    assert "Traceback" not in err
