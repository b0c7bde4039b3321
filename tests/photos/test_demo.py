"""The demonstration library: what its ground truth says is so, and it is the same every time."""

import hashlib
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.command import photodup
from support.library import photo
from support.paths import ROOT
from support.review_library import listed

from photodup.core.errors import PhotodupError
from photodup.photos.demo import photographs as demo_module
from photodup.photos.demo.photographs import GROUND_TRUTH, SOURCES, VARIANTS, build_demo, load_ground_truth
from photodup.photos.library.hashing import hamming
from photodup.photos.library.scan import scan


@pytest.fixture(scope="module")
def demo(demo_dir, tmp_path_factory):
    """A copy of the library that all tests share, to be scanned."""
    root = tmp_path_factory.mktemp("demo") / "library"
    shutil.copytree(demo_dir, root, ignore=shutil.ignore_patterns(".photodup*"))
    return root, load_ground_truth(root / GROUND_TRUTH)


def digests(root):
    return {
        str(path.relative_to(root)): (hashlib.md5(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() and ".photodup" not in path.parts and path.name != "ground_truth.json"
    }


def test_nobody_elses_photograph_is_overwritten(tmp_path):
    """The names are those a camera gives: in the folder of a real library one of them may be taken."""
    mine = photo(tmp_path / "2020/Home/IMG_1005.jpg").read_bytes()
    for _ in range(2):  # a first refusal must not make the folder look like one of ours
        with pytest.raises(PhotodupError, match=r"IMG_1005.jpg is there .* name a folder of its own"):
            build_demo(tmp_path)
        assert (tmp_path / "2020/Home/IMG_1005.jpg").read_bytes() == mine
    assert not (tmp_path / "ground_truth.json").exists()


def test_a_folder_with_another_ground_truth_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / GROUND_TRUTH).write_text('{"photos": []}')
    with pytest.raises(
        PhotodupError, match=r"ground_truth\.json is there and is no part of this demonstration"
    ):
        build_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [GROUND_TRUTH]


def test_it_is_the_same_every_time_and_after_an_interruption_and_leaves_other_files_alone(
    demo, tmp_path, monkeypatch
):
    root, _ = demo
    mine = photo(tmp_path / "2019/mine.jpg").read_bytes()
    encode, calls = demo_module._encode, []

    def stop(*arguments):
        calls.append(arguments)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return encode(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(demo_module, "_encode", stop)
        build_demo(tmp_path)
    assert not (tmp_path / "ground_truth.json").exists()
    build_demo(tmp_path)
    assert (tmp_path / "2019/mine.jpg").read_bytes() == mine
    (tmp_path / "2019/mine.jpg").unlink()
    assert digests(tmp_path) == digests(root)
    assert (tmp_path / "ground_truth.json").read_bytes() == (root / "ground_truth.json").read_bytes()


def test_the_ground_truth_lists_every_file_and_the_scan_reads_them_all(demo):
    root, truths = demo
    assert {truth.path for truth in truths} == set(digests(root))
    report = scan(root, progress=False)
    assert (report.n_found, report.problems) == (len(truths), [])
    photos = listed(root)
    by_group = defaultdict(list)
    for truth in truths:
        by_group[truth.group].append((truth, photos[truth.path]))
        if photos[truth.path].taken_at:
            assert photos[truth.path].taken_at == truth.taken_at
    for members in by_group.values():
        (original,) = [photo for truth, photo in members if truth.transformation == "original"]
        assert original.taken_at
        for truth, copy in members:
            if truth.transformation == "exact_copy":
                assert copy.md5 == original.md5
            elif truth.transformation != "original":
                assert copy.md5 != original.md5
            if truth.transformation == "exif_rotated":
                with Image.open(root / truth.path) as stored:
                    assert stored.size == (original.height, original.width)
                assert (copy.width, copy.height) == (original.width, original.height)
                assert hamming(copy.phash, original.phash) <= 4
    made = {truth.transformation for truth in truths}
    assert made == {"original", "exact_copy", *(variant.name for variant in VARIANTS)}
    formats = {photo.format for photo in photos.values()}
    assert formats == {"JPEG", "PNG", "WEBP", "HEIF", "TIFF"}


def test_the_hard_negatives_are_different_photographs_of_one_thing():
    scenes = defaultdict(list)
    for source in SOURCES:
        scenes[source.scene].append(source)
    negatives = {scene: sources for scene, sources in scenes.items() if len(sources) > 1}
    assert set(negatives) == {"motorcycle", "hubble", "brick", "grass", "gravel"}
    for scene, sources in negatives.items():
        if scene == "motorcycle":  # two files of one stereo pair
            left, right = (np.asarray(source.open()).astype(int) for source in sources)
            assert left.shape == right.shape
            assert np.abs(left - right).mean() > 5
        else:  # disjoint regions of one file, which does not appear whole
            (a, b) = sources
            assert a.file == b.file
            assert a.box[2] <= b.box[0] or b.box[2] <= a.box[0]
            assert a.open().width + b.open().width <= decode_whole(a).width + 1
    for source in SOURCES:
        whole = [s for s in SOURCES if s.file == source.file]
        assert len(whole) == 1 or all(s.box != (0.0, 0.0, 1.0, 1.0) for s in whole)


def decode_whole(source):
    return replace(source, box=(0.0, 0.0, 1.0, 1.0)).open()


def test_the_readme_shows_what_group_prints(demo, tmp_path):
    """A file that stays is no reason to keep another one: its size does not count."""
    root, truth = demo
    for path in (Path(one.path) for one in truth if one.group == "chelsea"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, tmp_path / path)
    *group, _ = photodup("group", tmp_path).stdout.splitlines()
    assert "\n".join(["```", *group, "```"]) in (ROOT / "README.md").read_text("utf-8")
