"""Stars: every member near its keeper, nobody twice, and no way to group by random weights by accident."""

import io
import shutil

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracle import files
from PIL import Image, ImageCms
from support.library import CountingEmbedder, photo
from support.review_library import copies_in, listed
from support.review_library import photo as photograph

from photodup.core.errors import PhotodupError
from photodup.photos.embed.batches import embed_library
from photodup.photos.groups.keepers import KeepRules
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.photos.library.sidecars import Sidecars
from photodup.photos.search.models import choose_model
from photodup.photos.search.neighbours import TOLERANCE, Bounds, similar_pairs
from photodup.photos.search.stars import stars

# Small integers: many equal vectors, many ties, few accidents.
VECTORS = arrays(np.float32, st.tuples(st.integers(1, 25), st.just(3)), elements=st.integers(-4, 4)).filter(
    lambda vectors: bool((np.abs(vectors).sum(axis=1) > 0).all())
)
THRESHOLDS = st.floats(0.2, 0.999)


def cosines(vectors: np.ndarray) -> np.ndarray:
    unit = vectors.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    return unit @ unit.T


def starred(vectors: np.ndarray, threshold: float, rank: list[int] | None = None) -> dict[int, list[int]]:
    unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    pairs = similar_pairs(unit, Bounds(threshold, threshold))
    return stars(pairs, len(unit), rank=rank)


@given(VECTORS, THRESHOLDS)
def test_stars(vectors, threshold):
    groups = starred(vectors, threshold)
    truth = cosines(vectors)
    seen: set[int] = set()
    for keeper, others in groups.items():
        assert others
        for member in others:
            assert truth[keeper, member] >= threshold - 2 * TOLERANCE  # a star, not a chain
            assert keeper < member  # without ranks, the first row is the better keeper
            # No better keeper is nearer.
            assert (
                truth[keeper, member]
                >= truth[[k for k in groups if k < member], member].max() - 2 * TOLERANCE
            )
        rows = {keeper, *others}
        assert not rows & seen  # nobody twice
        seen |= rows
    # Nothing that could be grouped was left out: two loners are never within the threshold.
    members = {member for others in groups.values() for member in others}
    keepers = [row for row in range(len(vectors)) if row not in members]
    for i, first in enumerate(keepers):
        assert all(truth[first, other] < threshold + 2 * TOLERANCE for other in keepers[:i])


@given(VECTORS, THRESHOLDS, st.data())
def test_the_groups_do_not_depend_on_the_order_of_rows(vectors, threshold, data):
    n = len(vectors)
    truth = cosines(vectors)
    # Rounding may decide a tie with the threshold either way; the law is about everything else.
    assume(not (np.abs(truth - threshold) < 1e-5).any())
    rank = data.draw(st.permutations(range(n)))
    order = data.draw(st.permutations(range(n)))

    def determined(groups, names):
        # Of two keepers at equal cosines rounding chooses, so which one a member joins is left out.
        found = sorted(
            (names[member], truth[names[keeper], names[member]])
            for keeper, others in groups.items()
            for member in others
        )
        return [name for name, _ in found], [similarity for _, similarity in found]

    straight = starred(vectors, threshold, rank)
    mixed = starred(vectors[list(order)], threshold, [rank[i] for i in order])
    members, similarities = determined(straight, range(n))
    other_members, other_similarities = determined(mixed, order)
    assert members == other_members
    assert similarities == pytest.approx(other_similarities, abs=2 * TOLERANCE)


def test_nothing_is_chained():
    # Five directions, 20° apart: each is within 25° of the next, and the ends are 80° apart.
    angles = np.radians([0, 20, 40, 60, 80])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    groups = starred(vectors, np.cos(np.radians(25)))
    assert groups == {0: [1], 2: [3]}
    # A member joins the nearer of two keepers, not the first.
    angles = np.radians([0, 30, 18])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert starred(vectors, np.cos(np.radians(20))) == {1: [2]}


@pytest.fixture
def library(tmp_path):
    """Two photographs; of the first a smaller copy and an exact copy."""
    photo(tmp_path / "a.png", 1, size=(320, 240))
    photo(tmp_path / "a_small.png", 1, size=(160, 120))
    photo(tmp_path / "b.png", 2, size=(320, 240))
    (tmp_path / "backup").mkdir()
    shutil.copy2(tmp_path / "a.png", tmp_path / "backup/a.png")
    scan(tmp_path, progress=False)
    return tmp_path


def test_exact_copies_need_no_embedding(library):
    with Catalogue(library) as catalogue:
        tiers = find_tiers(catalogue)
    (group,) = tiers.copies
    exact = [member.photo for member in group.members if member.is_same_bytes]
    assert (str(group.keeper.path), [str(photo.path) for photo in exact]) == ("a.png", ["backup/a.png"])
    assert group.bytes_to_free == sum(photo.size_bytes for photo in group.may_go)
    assert tiers.model is None


def test_the_camera_file_is_kept_before_a_larger_screenshot_of_it(tmp_path):
    exif = Image.Exif()
    exif[0x010F] = "Canon"
    photo(tmp_path / "camera.jpg", 1, size=(320, 240), exif=exif)
    with Image.open(tmp_path / "camera.jpg") as image:
        image.convert("RGB").save(tmp_path / "a_screenshot.png", exif=b"")
    assert (tmp_path / "a_screenshot.png").stat().st_size > (tmp_path / "camera.jpg").stat().st_size
    scan(tmp_path, progress=False)
    best = KeepRules(Sidecars(tmp_path)).choose(list(listed(tmp_path).values())).keeper
    assert str(best.path) == "camera.jpg"


def test_a_copy_that_was_converted_to_srgb_goes(tmp_path):
    image, profile = photograph("coffee"), files.swapped_profile()
    image.save(tmp_path / "a.jpg", quality=93, icc_profile=profile)
    source, target = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
    converted = ImageCms.profileToProfile(image, source, target)
    converted.resize((360, 240)).save(tmp_path / "b.jpg", quality=75, icc_profile=None)
    (group,) = copies_in(tmp_path)
    assert [str(one.path) for one in group.may_go] == ["b.jpg"]


def test_weights_nobody_vouches_for_are_refused_too(library):
    class Silent(CountingEmbedder):
        is_random = None

    with Catalogue(library) as catalogue:
        embed_library(catalogue, Silent(), progress=False)
        with pytest.raises(PhotodupError, match="unknown origin"):
            find_tiers(catalogue)
        embed_library(catalogue, CountingEmbedder(), progress=False)  # nothing to do, and so nothing learnt
        md5 = catalogue.contents_with_vectors("a" * 64)[0]
        vector = catalogue.embeddings_of("a" * 64, [md5])[0]
        catalogue.store_embeddings("a" * 64, {md5: vector}, name="known now", is_random=False)
        assert choose_model(catalogue).is_random is False


def test_random_weights_are_refused_unless_asked_for(library):
    class Untrained(CountingEmbedder):
        model_digest, is_random = "c" * 64, True

    with Catalogue(library) as catalogue:
        embed_library(catalogue, Untrained(), progress=False)
        for digest in (None, "c"):
            with pytest.raises(PhotodupError, match="random weights"):
                find_tiers(catalogue, digest=digest)
        # Trained ones beside them are taken without a word, and two trained ones need a choice.
        embed_library(catalogue, CountingEmbedder(), progress=False)
        assert choose_model(catalogue).digest == "a" * 64
        other = CountingEmbedder()
        other.model_digest = "b" * 64
        embed_library(catalogue, other, progress=False)
        with pytest.raises(PhotodupError, match="choose one"):
            choose_model(catalogue)
        assert choose_model(catalogue, "b").digest == "b" * 64
        with pytest.raises(PhotodupError, match="photodup embed"):
            choose_model(catalogue, "d")
