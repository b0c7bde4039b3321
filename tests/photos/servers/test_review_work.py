"""Long work from the page over real HTTP: look for photos, find similar scenes, stop, one at a time, and what is said."""

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
from support.command import running
from support.library import photo as small
from support.review_library import client_of, make_library, photo, remove_all, save
from support.service import until

from photodup.core.progress import watched_by
from photodup.photos.embed.choose import EncoderRequest
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library import scan as scanning
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.photos.library.settings import LibrarySettings, load_settings
from photodup.photos.review import session as sessions
from photodup.photos.review import site
from photodup.photos.review.reviewed_folder import Finished, ReviewedFolder, ReviewTask, Stopped, TaskRunner
from photodup.photos.review.serve import ReviewServer
from photodup.photos.review.session import SKIPPED
from photodup.photos.trash.files import TRASH_FOLDER


@contextmanager
def browsing(folder, **options):
    running = ReviewServer(ReviewedFolder(folder, **options), opened_on_page=True)
    with running as server, client_of(server, follow_redirects=True) as client:
        until_idle(client)
        yield server, client


def until_idle(client) -> None:
    until(lambda: not client.get("work/state").json()["is_running"])


def done(client, path: str, **data: str) -> httpx.Response:
    """Post, and wait until the work that this began has ended."""
    answer = client.post(path, data=data)
    until_idle(client)
    return answer


@pytest.fixture
def photos(tmp_path):
    """Photographs in a folder that photodup has never seen."""
    library = tmp_path / "photos"
    save(photo("coffee"), library / "coffee.jpg")
    save(photo("coffee").resize((300, 200)), library / "small" / "coffee.jpg", quality=80)
    save(photo("rocket"), library / "rocket.jpg")
    (library / "broken.jpg").write_bytes(b"\xff\xd8\xff no photograph")
    return library


@pytest.fixture
def slow_scan(monkeypatch):
    """Each photograph takes a while, so that there is something to look at and to stop."""
    read = scanning._read

    def slowly(*arguments):
        time.sleep(0.3)
        return read(*arguments)

    monkeypatch.setattr(scanning, "_read", slowly)
    monkeypatch.setattr(scanning, "available_cores", lambda: 1)
    monkeypatch.setattr(site, "_QUICK_S", 0)


# ---- looking for photos ----------------------------------------------------------------------------------


def test_a_folder_that_was_never_scanned_is_offered_to_be_and_nothing_is_written_before(photos):
    with browsing(photos) as (server, client):
        answer = client.get("")
        assert answer.url.path.endswith("/work") and "has not looked at this folder yet" in answer.text
        assert "Undo" not in answer.text
        assert "photodup scan" not in re.sub(r"(?s)<details.*?</details>", "", answer.text)
        assert client.get("confirm").url.path.endswith("/work")
        assert not (photos / ".photodup").exists(), "to look at the page is not to agree"
        done(client, "scan")
        text = client.get("").text
        assert "1 picture with copies" in text and "4 photographs found, 3 read" in text
        assert "1 not readable" in text and "broken.jpg" in text
        assert len(server.session.items) == 1


def test_what_is_new_or_gone_is_found_from_the_page(library):
    with browsing(library) as (server, client):
        assert len(server.session.items) == 3
        save(photo("astronaut"), library / "new.jpg")
        save(photo("astronaut").resize((256, 256)), library / "new small.jpg")
        (library / "Backup" / "IMG_3.jpg").unlink()
        shown = client.get("").text
        assert "1 photo shown here has changed or gone" in shown and "IMG_3.jpg is no longer there" in shown
        client.post("accept-all")
        assert "changed or gone since photodup looked: it will stay" in client.get("confirm").text
        client.post("undo")
        done(client, "scan")
        text = client.get("").text
        assert "2 read" in text and "1 no longer there" in text
        assert "changed or gone" not in text and len(server.session.items) == 3


def test_a_scan_says_how_far_it_is_is_one_at_a_time_and_stops_cleanly(photos, slow_scan):
    for number in range(12):
        small(photos / f"{number}.jpg", number)
    with browsing(photos) as (server, client):
        answer = client.post("scan")
        assert "Looking for photos" in answer.text and ">Stop<" in answer.text
        second = client.post("scan")
        assert second.status_code == 409 and "still busy (looking for photos)" in second.text
        until(lambda: client.get("work/state").json().get("done"))
        state = client.get("work/state").json()
        assert state["doing"] == "Reading the photos" and 0 < state["done"] < state["total"] == 16
        done(client, "work/stop")
        text = client.get("work").text
        assert "The work done so far is kept" in text and "Open it as it is" in text
        with Catalogue(photos) as catalogue:
            kept = len(catalogue.photos())
        assert 0 < kept < 15
        opened = done(client, "open")
        assert server.session.tiers.n_photos == kept and opened.status_code == 200
        client.post("scan")
        page = client.get("")
        assert page.status_code == 200 and "data-work=" in page.text, "the groups can be looked at meanwhile"
        assert client.post("remove").status_code == 409, "but nothing moves"
        until_idle(client)
        assert server.session.tiers.n_photos == 15


def test_a_server_that_stops_stops_the_scan_too_and_keeps_what_was_read(photos, slow_scan, figure):
    for number in range(12):
        small(photos / f"{number}.jpg", number)
    with browsing(photos) as (server, client):
        client.post("scan")
        until(lambda: client.get("work/state").json().get("done"))
        begun = time.monotonic()
        server.stop()
        until(lambda: server.folder.work.running is None)
        took_s = time.monotonic() - begun
        figure(took_s < 8, took_s)
    assert scan(photos, progress=False).n_unchanged > 0


def test_what_fails_is_one_sentence_on_the_page(photos):
    with browsing(photos) as (_, client):
        (photos / ".photodup").mkdir()
        (photos / ".photodup" / "notes.txt").write_text("somebody else's")
        done(client, "scan")
        text = client.get("work").text
        assert "was not made by photodup" in text and "Look for photos" in text
        assert [p.name for p in (photos / ".photodup").iterdir()] == ["notes.txt"]


def test_the_command_opens_the_page_of_a_folder_that_was_never_scanned(photos):
    flags = ["--threshold", "0.6", "--inference-backend", "auto", "--inference-url", "http://127.0.0.1:9"]
    command = [sys.executable, "-m", "photodup", "review", str(photos), "--port", "0", *flags]
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    with running(command, stderr=subprocess.PIPE, env=env) as process:
        said = process.stdout.readline()
        url = said.removeprefix("The page: ").strip()
        assert "has not looked at this folder yet" in httpx.get(url, follow_redirects=True, timeout=60).text
        answer = httpx.post(f"{url}scan", headers={"Origin": "/".join(url.split("/")[:3])}, timeout=60)
        assert answer.status_code == 303
        assert process.stdout.readline() == "Stop with Ctrl-C.\n"
        assert process.stdout.readline() == f"Review 1 group at {url}\n"
        process.send_signal(signal.SIGINT)
        _, failed = process.communicate(timeout=60)
        assert "Traceback" not in failed
    nowhere = subprocess.run([*command[:4], str(photos / "nowhere")], capture_output=True, text=True)
    assert nowhere.returncode == 2 and "is not a folder" in nowhere.stderr


# ---- similar scenes ---------------------------------------------------------------------------------------


@pytest.fixture
def bursts(tmp_path):
    library = tmp_path / "bursts"
    save(photo("coffee"), library / "one.jpg", taken="2020:05:16 09:00:00")
    save(photo("coffee").crop((40, 0, 600, 380)), library / "two.jpg", taken="2020:05:16 09:00:09")
    save(photo("rocket"), library / "rocket.jpg", taken="2021:05:16 09:00:00")
    scan(library, progress=False)
    return library


def test_similar_scenes_are_found_from_the_page_by_the_encoder_that_is_chosen(bursts, tiny_onnx):
    asked = []
    with browsing(bursts, small_encoder=lambda: asked.append(1) or tiny_onnx) as (server, client):
        offer = client.get("?tier=similar").text
        assert "Find similar scenes" in offer and "a small one" in offer and "photodup embed" not in offer
        assert client.post("similar", data={"encoder": "/etc/passwd"}).status_code == 422
        done(client, "similar", encoder="small")
        assert asked == [1] and "3 photographs embedded" in client.get("?tier=similar").text
        assert server.session.tiers.model is not None and server.session.n_new == 0
        save(photo("chelsea"), bursts / "new.jpg")
        done(client, "scan")
        assert "1 photo is new" in client.get("?tier=similar").text


REVIEW_WITH_AN_ENCODER_THAT_NEVER_COMES = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from photodup.photos.review.reviewed_folder import ReviewedFolder
from photodup.photos.review.serve import serve_review
never = lambda: ThreadPoolExecutor(1).submit(threading.Event().wait).result()
serve_review(ReviewedFolder(Path(sys.argv[1]), small_encoder=never), port=0, browser=False)
"""


def test_ctrl_c_waits_for_no_encoder(bursts):
    """Python joins the threads of its pools before it ends, so that this process used to stay."""
    command = [sys.executable, "-u", "-c", REVIEW_WITH_AN_ENCODER_THAT_NEVER_COMES, str(bursts)]
    with running(command, stderr=subprocess.PIPE) as process:
        url = process.stdout.readline().removeprefix("The page: ").strip()
        origin = {"Origin": "/".join(url.split("/")[:3])}
        with httpx.Client(base_url=url, headers=origin, timeout=60, follow_redirects=True) as client:
            until_idle(client)
            client.post("similar", data={"encoder": "small"})
            assert "Getting ready to look" in client.get("work").text
        process.send_signal(signal.SIGINT)
        said, failed = process.communicate(timeout=60)
    assert process.returncode == 0 and not failed
    assert "Stopped while busy (finding similar scenes): what was done before is kept." in said


def test_the_command_lines_encoder_is_used_and_an_untrained_one_refused(bursts, tiny_onnx, random_onnx):
    with browsing(bursts, encoder=EncoderRequest(weights=random_onnx)) as (_, client):
        done(client, "similar")
        assert "was never trained" in client.get("work").text
        with Catalogue(bursts) as catalogue:
            assert not catalogue.models(), "nothing was written that would lock the page out"
    with browsing(bursts, encoder=EncoderRequest(weights=tiny_onnx)) as (server, client):
        done(client, "similar")
        assert server.session.tiers.model is not None


def test_vectors_of_a_second_model_are_not_mixed_in(bursts, tiny_onnx, tmp_path):
    from support.triton import tiny_graph

    other = f"onnx:{tiny_graph(tmp_path / 'other.onnx', 'uint8', seed=7)}"
    weights = iter([tiny_onnx, other])
    with browsing(bursts, small_encoder=lambda: next(weights)) as (_, client):
        done(client, "similar", encoder="small")
        done(client, "similar", encoder="small")
        assert "choose the same one again" in client.get("work").text
        with Catalogue(bursts) as catalogue:
            assert len(catalogue.models()) == 1


def test_an_encoder_that_does_not_answer_is_one_sentence(bursts):
    encoder = EncoderRequest(backend="fastapi-pytorch-fp32-http-jpeg", url="http://127.0.0.1:9")
    with browsing(bursts, encoder=encoder) as (_, client):
        done(client, "similar")
        answer = client.get("work")
        assert answer.status_code == 409 and "127.0.0.1:9" in answer.text and "Traceback" not in answer.text


def test_the_threshold_is_chosen_on_the_page_kept_and_taken_back(bursts, tiny_onnx):
    with browsing(bursts, encoder=EncoderRequest(weights=tiny_onnx), threshold=0.7) as (server, client):
        done(client, "similar")
        assert server.session.tiers.thresholds.similar == 0.7, "as the command line says"
        assert 'value="70"' in client.get("?tier=similar").text
        done(client, "threshold", percent="99")
        assert server.session.tiers.thresholds.similar == server.session.tiers.thresholds.burst == 0.99
        for wrong, status in {"0": 409, "101": 409, "nan": 409, "many": 422}.items():
            assert client.post("threshold", data={"percent": wrong}).status_code == status, wrong
        stored = load_settings(bursts / ".photodup")
        assert stored.threshold == 0.99
        with Catalogue(bursts) as catalogue:
            assert find_tiers(catalogue).thresholds.similar == 0.99, "`photodup group` says the same"
            assert find_tiers(catalogue, threshold=0.5).thresholds.similar == 0.5
        done(client, "threshold", percent="99", usual="yes")
        assert server.session.tiers.thresholds.similar == 0.95
        assert load_settings(bursts / ".photodup") == LibrarySettings()


def test_groups_are_shown_while_further_photos_are_compared(tmp_path, monkeypatch):
    """The first are those that need no comparison; a decision about one of them stays."""
    library = make_library(tmp_path / "library", is_compared=False)
    go_on = threading.Event()

    def find(catalogue, **options):
        if "on_more" in options:
            go_on.wait(60)
        return find_tiers(catalogue, **options)

    monkeypatch.setattr(sessions, "find_tiers", find)
    server = ReviewServer(library, opened_on_page=True)
    with server, client_of(server, follow_redirects=True) as client:
        until(lambda: client.get("work/state").json()["is_open"])
        (key,) = server.session.items
        assert "You can go on meanwhile" in client.get("").text and not server.session.tiers.is_complete
        client.post(f"group/{key}", data={"action": "skip"})
        go_on.set()
        until_idle(client)
        assert server.session.tiers.is_complete and len(server.session.items) == 3
        assert server.session.items[key].status == SKIPPED


def test_what_was_compared_is_grouped_at_once_and_the_rest_when_there_is_time(tmp_path):
    library = make_library(tmp_path / "library", is_compared=False)
    with Catalogue(library) as catalogue:
        first, whole, again = (find_tiers(catalogue, seconds=seconds) for seconds in (0, math.inf, 0))
    assert not first.is_complete and [m.is_same_bytes for g in first.copies for m in g.members] == [True]
    assert first.n_verified == 0, "no pair is compared in no time"
    assert whole.is_complete and again.is_complete and len(whole.copies) == 3
    assert again.copies == whole.copies


# ---- removing ---------------------------------------------------------------------------------------------


def test_a_removal_says_how_far_it_is_and_no_other_page_is_shown_meanwhile(library, monkeypatch):
    monkeypatch.setattr(site, "_QUICK_S", 0)
    with browsing(library) as (server, client):
        server.session.accept_all()
        go_on = threading.Event()
        server.session.trash._files._step = lambda name: go_on.wait(120)
        plan = re.search(r'name="plan" value="(\w+)"', client.get("confirm").text)[1]
        waiting = client.post("remove", data={"plan": plan})
        assert "Removing photos" in waiting.text and ">Stop<" not in waiting.text
        client.post("work/stop")
        assert client.get("").url.path.endswith("/work") and client.get("trash").url.path.endswith("/work")
        refused = client.post("accept-all")
        assert refused.status_code == 409 and "this was not done" in refused.text
        keeper = next(iter(server.session.items.values())).group.keeper
        assert client.get(f"photo/{keeper.id}/small.jpg").headers["content-type"] == "image/jpeg"
        go_on.set()
        until_idle(client)
        assert "3 moved" in client.get("work").text, "it was not stopped half way"
        back = done(client, "undo")
        back = client.get("work")
        assert "Undone" in back.text and "small coffee.jpg" in back.text


def test_what_lies_in_the_trash_is_shown_until_it_is_gone_for_good(library):
    with browsing(library) as (server, client):
        session = server.session
        client.get("")
        remove_all(session)
        (first, *_) = session.trash.contents().listing
        addresses = re.findall(r"removed/[\w-]+/small\.jpg", client.get("empty-trash").text)
        assert len(addresses) == 3
        assert set(addresses) == set(re.findall(r"removed/[\w-]+/small\.jpg", client.get("trash").text))
        for address in addresses:
            assert client.get(address).content.startswith(b"\xff\xd8")
        changed = library / TRASH_FOLDER / first.files[0].trash
        whole = changed.read_bytes()
        changed.write_bytes(whole[:-1] + b"x")
        assert client.get(f"removed/{first.id}/small.jpg").status_code == 404, "not what was removed"
        changed.write_bytes(whole)
        plan = re.search(r'name="plan" value="(\w+)"', client.get("empty-trash").text)[1]
        assert "deleted for good" in client.post("empty-trash", data={"plan": plan}).text
        assert {client.get(address).status_code for address in addresses} == {404}


# ---- the work itself --------------------------------------------------------------------------------------


def test_a_task_ends_in_a_result_a_sentence_or_a_stop_and_the_next_may_begin(capsys):
    work = TaskRunner()

    def fault(task):
        raise ValueError("secret")

    def lacking(task):
        raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")

    def stopped(task):
        task.stop()
        task.step("more")
        raise AssertionError("went on")

    for do, error, title in (
        (lambda task: Finished("/"), None, ""),
        (fault, "failed by a fault in photodup (ValueError)", None),
        (lacking, "onnxruntime is not installed: pip install 'photodup[cpu]'.", None),
        (stopped, None, "Stopped"),
    ):
        task = ReviewTask("Trying", do)
        work.begin(task)
        assert task.ended.wait(60) and work.running is None
        assert (task.error is None) == (error is None) and (error or "") in (task.error or "")
        assert (task.finished.title if task.finished else None) == title
    assert "secret" in capsys.readouterr().err, "the terminal has what the page does not say"
    assert not issubclass(Stopped, Exception), "nothing that handles errors may swallow it"


def test_choosing_keepers_says_how_far_it_is_and_a_stop_keeps_what_was_measured(tmp_path):
    for name in ("coffee", "rocket", "astronaut"):
        save(photo(name), tmp_path / f"{name}.jpg")
        save(photo(name), tmp_path / f"{name}-40.jpg", quality=40)
    scan(tmp_path, progress=False)
    told: list[tuple[str, int, int]] = []

    def choose(stop_at: int | None = None) -> list[tuple[str, int, int]]:
        def tell(*said):
            told.append(said)
            if said[:2] == ("choose", stop_at):
                raise Stopped

        told.clear()
        with Catalogue(tmp_path) as opened, watched_by(tell):
            find_tiers(opened)
        return [said for said in told if said[0] == "choose"]

    with pytest.raises(Stopped):
        choose(stop_at=1)
    assert told[-1] == ("choose", 1, 3)
    left = choose()
    n_left = left[-1][2]
    assert n_left in (1, 2), "one of the three was measured before, or two, for two are measured at a time"
    assert left == [("choose", n, n_left) for n in range(n_left + 1)]
    assert choose() == [], "all are known"


def test_the_time_that_is_left_is_said_once_it_is_known():
    task = ReviewTask("Trying", lambda task: Finished("/"))
    task._report_progress("scan", 0, 1000)
    task._step_begun -= 10.1
    assert task.time_left == ""
    task._report_progress("scan", 10, 1000)
    assert task.time_left == "about 17 minutes left"
    task._report_progress("scan", 600, 1000)
    assert task.time_left == "less than a minute left"
    task._report_progress("scan", 1000, 1000)
    assert task.time_left == "" and task.doing == "Reading the photos"
