"""Every photo command, watched: nothing changes but photodup's own folder, its catalogue and what was removed.

Real commands, the review over HTTP in a process of its own. After each one every file is compared with
before: path, kind, content, inode, time.
"""

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.command import run_command, running
from support.hostile_library import tree
from support.review_library import make_library, users_files
from support.service import until

TRASH = ".photodup-trash"


ENVIRONMENT = {"MODEL_PRETRAINED": "random:0", "INFERENCE_SERVICE_URL": "", "INFERENCE_BACKEND": ""}
photodup = functools.partial(run_command, **ENVIRONMENT)


class Tree:
    """All that lies below a folder, except where photodup may write."""

    def __init__(self, folder: Path, *mine: Path) -> None:
        self.folder = folder
        self.mine = mine
        self.before = self.now()

    def now(self) -> dict[str, tuple]:
        logs = (path.with_name(path.name + end) for path in self.mine for end in ("-wal", "-shm"))
        return tree(self.folder, *self.mine, *logs)

    def check(self, *, gone: set[str] = frozenset()) -> None:
        """Compare with the beginning; only these may be gone."""
        now = self.now()
        assert now.keys() - self.before.keys() == set(), "made outside its own folder"
        assert self.before.keys() - now.keys() == gone, "gone"
        assert {path: self.before[path] for path in now} == now, "changed"


@contextmanager
def reviewing(*arguments: object) -> Iterator[httpx.Client]:
    command = [sys.executable, "-m", "photodup", "review", *map(str, arguments), "--port", "0"]
    env = os.environ | ENVIRONMENT
    with running(command, stderr=subprocess.STDOUT, env=env) as process:
        said = ""
        while not (found := re.search(r"at (http://\S+/)\n", said)):
            line = process.stdout.readline()
            assert line, said
            said += line
        origin = "/".join(found[1].split("/")[:3])
        with Owner(base_url=found[1], headers={"Origin": origin}, timeout=60) as client:
            client.follow_redirects = True
            yield client
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)


class Owner(httpx.Client):
    """Waits, after what it posts, until the work that this began has ended."""

    def post(self, *args, **options) -> httpx.Response:
        answer = super().post(*args, **options)
        until(lambda: not self.get("work/state").json()["is_running"])
        return answer


def look_at_everything(client: httpx.Client) -> list[str]:
    """Open each page and each picture; return the groups."""
    keys = list(dict.fromkeys(re.findall(r"/group/([0-9a-f]+)", client.get("?tier=copies&status=").text)))
    keys = keys or list(dict.fromkeys(re.findall(r"/group/([0-9a-f]+)", client.get("").text)))
    for key in keys:
        shown = client.get(f"group/{key}").text
        for number in set(re.findall(r"/photo/(\d+)/", shown)):
            for size in ("small", "screen", "large"):
                assert client.get(f"photo/{number}/{size}.jpg").status_code == 200
    for name in ("trash", "confirm", "settings"):
        assert client.get(name).status_code == 200
    return keys


def remove_marked(client: httpx.Client) -> None:
    plan = re.search(r'name="plan" value="([^"]+)"', client.get("confirm").text)[1]
    assert client.post("remove", data={"plan": plan}).status_code == 200


def in_trash(library: Path) -> set[str]:
    """What `trash list` says, relative to the folder that is watched."""
    found = set()
    for line in photodup("trash", "list", library).splitlines()[:-1]:
        files = re.search(r"MB  (.*)  \(", line)[1].split(", ")
        found |= {f"{library.name}/{name}" for name in files}
    return found


@pytest.mark.parametrize("layout", ["default", "beside", "in the library"])
def test_nothing_outside_the_own_folder_changes_but_what_was_removed(tmp_path, layout, tiny_onnx):
    watched = tmp_path / "watched"
    library, other = make_library(watched / "library"), make_library(watched / "other")
    for made in (library, other):
        shutil.rmtree(made / ".photodup")
    folder = {"default": None, "beside": watched / "P", "in the library": library}[layout]
    where, first, second = [], library / ".photodup", other / ".photodup"
    mine = [first, library / TRASH, second, other / TRASH]
    if folder:
        users_files(folder, watched / "elsewhere")
        first, second = folder / "first", folder / "second"
        where = ["--catalogue", first]
        mine += [first, second]
    tree = Tree(watched, *mine)
    photodup("scan", library, *where)
    tree.check()
    if layout == "beside":
        photodup("embed", library, *where, "--weights", tiny_onnx)
        tree.check()
        photodup("group", library, *where, "--threshold", 0.99)
        tree.check()
    photodup("group", library, *where)
    tree.check()
    with reviewing(library, *where) as client:
        keys = look_at_everything(client)
        assert len(keys) >= 3
        client.post(
            "settings/keep", data={"rule": ["resolution", "size"], "place": [1, 2], "folders": "2020"}
        )
        client.post("settings/backend", data={"backend": "other", "name": "local-pytorch-fp32", "url": ""})
        tree.check()
        photos = re.findall(r"/photo/(\d+)/", client.get(f"group/{keys[-1]}").text)
        for number in dict.fromkeys(photos):
            client.post(f"group/{keys[-1]}", data={"action": "keep_both", "photo": number})
        client.post(f"group/{keys[1]}", data={"action": "skip"})
        client.post("undo")
        tree.check()
        client.post("accept-all")
        remove_marked(client)
        gone = in_trash(library)
        assert len(gone) >= 2
        tree.check(gone=gone)
        client.post("undo")
        tree.check()  # every file is back: its name, content, inode and time
        remove_marked(client)
        tree.check(gone=gone)
    photodup("trash", "restore", library)
    tree.check()
    photodup("scan", library, *where)
    with reviewing(library, *where) as client:  # opening it tidies the pictures
        look_at_everything(client)
        tree.check()
        client.post("accept-all")
        remove_marked(client)
    assert in_trash(library) == gone
    photodup("trash", "purge", library, "--yes")
    tree.check(gone=gone)
    photodup("trash", "list", library)
    photodup("scan", library, *where)
    tree.check(gone=gone)

    # A second catalogue beside it, and nothing of the first one's changes.
    beside = Tree(watched, second, other / TRASH)
    photodup("scan", other, *(["--catalogue", second] if folder else []))
    with reviewing(other, *(["--catalogue", second] if folder else [])) as client:
        look_at_everything(client)
        client.post("accept-all")
        client.post("settings/keep", data={"rule": "size", "place": 1})
    beside.check()
    tree.check(gone=gone)


@pytest.mark.long
def test_the_demonstration_changes_nothing_of_the_user(tmp_path):
    """Into a folder with a user's files, and into one with a file that only looks like its own."""
    folder = tmp_path / "watched"
    (folder / "demo").mkdir(parents=True)
    (folder / "demo" / "letter.txt").write_text("the user's own")
    (folder / "taken").mkdir()
    (folder / "taken" / "ground_truth.json").write_text('{"photos": []}')
    (folder / "taken" / ".ground_truth.json.old").write_text("the user's own")
    tree = Tree(folder)
    assert "is no part of this demonstration" in photodup("demo", folder / "taken", status=2)
    tree.check()
    photodup("demo", folder / "demo")
    now = tree.now()
    assert {path: now.get(path) for path in tree.before} == tree.before
    assert all(path.startswith("demo/") for path in now.keys() - tree.before.keys())
