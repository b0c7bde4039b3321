"""`photodup scan --embed`: one decoding for hash and vector, the vectors of `photodup embed`, never two decodings mixed."""

import signal
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.images import read_facts
from support.library import CountingEmbedder, killed_scan, photo, photos
from support.triton import tiny_graph
from typer.testing import CliRunner

from photodup.cli import app
from photodup.core.errors import PhotodupError
from photodup.embedding import imaging
from photodup.embedding.client.embedder import connect
from photodup.embedding.engines.reduced import Notes, draft_path, source_of, write_notes
from photodup.embedding.vectors import digest_drafted
from photodup.photos.demo.photographs import SOURCES
from photodup.photos.embed.batches import EmbeddingPass, embed_library
from photodup.photos.embed.choose import EncoderRequest, choose, choose_reduced_scale
from photodup.photos.library import hashing
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.hashing import Look, read_facts_and_look
from photodup.photos.library.scan import scan
from photodup.photos.review.reviewed_folder import ReviewedFolder, ReviewTask

SIZE = (2400, 1800)  # a decoder may shrink it by 4 and keep 448 pixels


def large(path: Path, number: int, **save) -> Path:
    """Write a photograph large enough to be decoded at a reduced scale, with a camera's grain."""
    picture = SOURCES[number % len(SOURCES)].open().resize(SIZE, Image.Resampling.BICUBIC)
    grain = np.random.default_rng(number).normal(0, 5, (*SIZE[::-1], 1))
    noisy = np.clip(np.asarray(picture) + grain, 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noisy).save(path, **({"quality": 90} | save))
    return path


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    """Six files: JPEGs upright and turned, a copy under another name, a PNG, a small one, one that is none."""
    root = tmp_path_factory.mktemp("photographs")
    large(root / "a.jpg", 0)
    turned = Image.Exif()
    turned[0x0112] = 6
    large(root / "turned.jpg", 1, exif=turned)
    (root / "copy").mkdir()
    (root / "copy" / "a.jpg").write_bytes((root / "a.jpg").read_bytes())
    SOURCES[2].open().save(root / "c.png")
    photo(root / "small.jpg", 3)
    (root / "none.jpg").write_bytes(b"\xff\xd8\xff and no more")
    return root


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> str:
    return f"onnx:{tiny_graph(tmp_path_factory.mktemp('graph') / 'tiny.onnx')}"


@pytest.fixture
def embedder(graph):
    with connect(mode="local", backend="local-onnx-fp32", pretrained=graph) as found:
        yield found


def one_pass(root: Path, place: Path, embedder, **options):
    done = []

    @contextmanager
    def open_sink(opened):
        with EmbeddingPass(opened, embedder, progress=False, **options) as one:
            yield one
        done.append(one.report)

    return scan(root, place, progress=False, open_sink=open_sink), done[0]


def stored(root: Path, place: Path) -> dict[str, np.ndarray]:
    with Catalogue(root, place) as catalogue:
        (model,) = catalogue.models()
        md5s = catalogue.contents_with_vectors(model.digest)
        vectors = catalogue.embeddings_of(model.digest, md5s)
        return {
            model.digest: md5s,
            "vectors": vectors,
            "facts": [replace(p, id=0) for p in catalogue.photos()],
        }


@pytest.mark.parametrize("is_drafted", [False, True])
def test_it_gives_the_facts_of_a_scan_and_the_vectors_of_embed(photographs, tmp_path, embedder, is_drafted):
    whole = embedder.model_digest
    if is_drafted:
        embedder.at_reduced_scale()
    report, embedded = one_pass(photographs, tmp_path / "one.sqlite", embedder, batch=2)
    assert (report.n_read, len(report.problems), embedded.n_embedded, embedded.n_before) == (5, 1, 4, 0)
    scan(photographs, tmp_path / "two.sqlite", progress=False)
    with Catalogue(photographs, tmp_path / "two.sqlite") as catalogue:
        embed_library(catalogue, embedder, progress=False)
    one, two = (stored(photographs, tmp_path / f"{name}.sqlite") for name in ("one", "two"))
    assert one["facts"] == two["facts"], "the same hash too, from another scale"
    assert one.keys() == two.keys() and (whole in one) == (not is_drafted)
    np.testing.assert_allclose(one["vectors"], two["vectors"], atol=1e-6)


def test_each_photograph_is_read_and_decoded_once(photographs, tmp_path, embedder, monkeypatch):
    decoded, read = [], []
    decode, read_bytes = imaging.decode, hashing.md5
    monkeypatch.setattr(imaging, "decode", lambda data, **o: decoded.append(o) or decode(data, **o))
    monkeypatch.setattr(hashing, "md5", lambda data: read.append(len(data)) or read_bytes(data))
    # All of them in this process, to be counted.
    monkeypatch.setattr(imaging, "is_bounded", lambda data: True)
    embedder.at_reduced_scale()
    one_pass(photographs, tmp_path / "c.sqlite", embedder)
    assert len(decoded) == 6 and sorted(read) == sorted(p.stat().st_size for p in photographs.rglob("*.*"))
    assert {options["draft_size"] for options in decoded} == {448}


@pytest.mark.parametrize("draft_size", [None, 448])
@pytest.mark.parametrize(
    "size", [(4000, 3000), (3000, 2000), (1801, 1207), (700, 520), (300, 200), (64, 4000)]
)
def test_the_hash_is_that_of_a_scan_at_every_scale(draft_size, size):
    data = imaging.to_jpeg(SOURCES[4].open().resize(size, Image.Resampling.BICUBIC), 88)
    facts, pixels = read_facts_and_look(data, Look(draft_size))
    assert facts == read_facts(data)
    assert pixels.shape == (3, 224, 224)


def test_no_side_falls_below_twice_what_is_looked_at():
    for size in ((4000, 3000), (1792, 1792), (1791, 2500), (900, 897)):
        shrunk = imaging.decode(imaging.to_jpeg(Image.new("RGB", size)), draft_size=imaging.DRAFT_SIZE)
        assert min(shrunk.size) >= 448 and (shrunk.width < size[0]) == (min(size) >= 896)
    heic = imaging.encode(Image.new("RGB", (1000, 900)), "HEIF")
    assert imaging.decode(heic, draft_size=448).size == (1000, 900), "never its thumbnail"


def test_a_library_goes_on_in_the_decoding_it_began_with(photographs, tmp_path, graph, monkeypatch):
    """Through the command: what `scan --embed` began at a reduced scale, `embed` goes on with, and the reverse."""
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    monkeypatch.delenv("INFERENCE_BACKEND", raising=False)
    monkeypatch.delenv("INFERENCE_SERVICE_URL", raising=False)
    source = source_of(Path(graph.removeprefix("onnx:")))
    drafted = digest_drafted(source.model_digest)
    path = draft_path(source, "onnx", "fp32")
    path.parent.mkdir(parents=True)
    notes = Notes("openvino", "fp32", source.model_name, source.model_pretrained, source.model_digest)

    def ran(command: str, place: str, *more: str) -> str:
        arguments = [command, str(photographs), "--catalogue", str(tmp_path / place), *more]
        found = CliRunner().invoke(app, [*arguments, "--weights", graph])
        assert found.exit_code == 0, (found.output, found.exception)
        return found.output

    def digests(place: str) -> set[str]:
        with Catalogue(photographs, tmp_path / place) as catalogue:
            return {model.digest for model in catalogue.models()}

    said = ran("scan", "whole.sqlite", "--embed")
    assert "JPEGs decoded whole" in said and "export --precision fp32 --draft" in said
    assert "4 photographs embedded" in said and "5 read" in said and "not read: none.jpg" in said
    assert digests("whole.sqlite") == {source.model_digest}
    for verdict in ("refused", "undecided"):
        write_notes(path, replace(notes, accuracy_check={"verdict": verdict}, draft_size=448))
        assert verdict.removesuffix("d")[:6] in ran("scan", f"{verdict}.sqlite", "--embed")
        assert digests(f"{verdict}.sqlite") == {source.model_digest}
    write_notes(path, replace(notes, accuracy_check={"verdict": "passed"}, draft_size=640))
    ran("scan", "other.sqlite", "--embed")
    assert digests("other.sqlite") == {source.model_digest}, "another scale was checked"
    write_notes(path, replace(notes, accuracy_check={"verdict": "passed"}, draft_size=448))
    assert "448 pixels or more a side, which passed" in ran("scan", "new.sqlite", "--embed")
    assert digests("new.sqlite") == {drafted}
    assert "0 photographs embedded" in ran("embed", "new.sqlite") and digests("new.sqlite") == {drafted}
    assert "as this library's" in ran("scan", "whole.sqlite", "--embed")
    assert digests("whole.sqlite") == {source.model_digest}, "it goes on decoding whole"
    folder = ReviewedFolder(photographs, tmp_path / "new.sqlite", encoder=EncoderRequest(weights=graph))
    task = ReviewTask("Finding similar scenes", folder.find_scenes)
    task.run()
    assert task.error is None and digests("new.sqlite") == {drafted}, "the page goes on as the command began"
    path.unlink()
    with Catalogue(photographs, tmp_path / "new.sqlite") as catalogue:
        catalogue.connection.execute("DELETE FROM embedding")
        catalogue.connection.execute("DELETE FROM file WHERE path <> ?", (b"a.jpg",))
    with (
        Catalogue(photographs, tmp_path / "new.sqlite") as catalogue,
        choose(EncoderRequest(weights=graph)).connect() as embedder,
    ):
        assert choose_reduced_scale(embedder, [drafted, embedder.model_digest])[0]
        assert not choose_reduced_scale(embedder, [embedder.model_digest, drafted])[0]
        assert not choose_reduced_scale(embedder, ["0" * 64])[0], "without its accuracy check"


def test_who_embeds_needs_embed(photographs):
    found = CliRunner().invoke(app, ["scan", str(photographs), "--weights", "stand-in"])
    assert found.exit_code and "--embed only" in str(found.exception)


def test_what_failed_is_resumed_and_nothing_is_embedded_twice(tmp_path):
    root = tmp_path / "library"
    photos(root, 20)
    place = tmp_path / "c.sqlite"
    with pytest.raises(PhotodupError, match=r"went away \d+ photographs were embedded before .* goes on"):
        one_pass(root, place, CountingEmbedder(fail_after=8), batch=4)
    with Catalogue(root, place) as catalogue:
        before = catalogue.contents_with_vectors("a" * 64)
        assert 0 < len(before) < 20 and len(catalogue.photos()) == 20, "facts that were read are kept"
    again = CountingEmbedder()
    report, embedded = one_pass(root, place, again, batch=4)
    assert report.n_unchanged == 20
    assert (embedded.n_before, embedded.n_embedded) == (len(before), 20 - len(before))
    assert (embedded.n_before, embedded.n_embedded) == (len(before), sum(again.seen))


def test_what_an_earlier_scan_read_is_embedded_too_and_a_moved_file_is_not(tmp_path):
    root = tmp_path / "library"
    photos(root, 3)
    scan(root, progress=False)
    photo(root / "new.jpg", 9)
    place = root / ".photodup"
    counted = CountingEmbedder()
    report, embedded = one_pass(root, place, counted)
    assert (report.n_read, embedded.n_embedded, sum(counted.seen)) == (1, 4, 4)
    (root / "new.jpg").rename(root / "moved.jpg")
    report, embedded = one_pass(root, place, counted)
    assert (report.n_read, embedded.n_embedded, embedded.n_before, sum(counted.seen)) == (1, 0, 4, 4)


def test_one_refused_photograph_is_named_once_and_costs_nobody_else(tmp_path):
    root = tmp_path / "library"
    photos(root, 4)
    bad = imaging.to_uint8(imaging.decode(root / "2.jpg"))
    asked = []

    class Refusing(CountingEmbedder):
        def embed(self, images):
            hit = [np.array_equal(np.asarray(image).transpose(2, 0, 1), bad) for image in images]
            asked.append(sum(hit))
            return super().embed([b"BAD" if one else image for one, image in zip(hit, images, strict=True)])

    _, embedded = one_pass(root, tmp_path / "c.sqlite", Refusing())
    assert (embedded.n_embedded, [str(p) for p in embedded.problems]) == (3, ["2.jpg: refused"])
    assert sum(asked) == 2, "with its batch and alone, and not once more at the end"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_pass_goes_on_with_what_is_left(tmp_path, graph, how):
    root, n = tmp_path / "library", 150
    photos(root, n)

    def embedded() -> int:
        try:
            with Catalogue(root) as catalogue:
                return sum(model.n_embeddings for model in catalogue.models())
        except PhotodupError:
            return 0

    options = ("--embed", "--batch", "4", "--weights", graph)
    killed_scan(root, *options, how=how, n_done=embedded, least=8, PHOTODUP_ROOT=str(tmp_path))
    before = embedded()
    assert 8 <= before < n
    with connect(mode="local", pretrained=graph) as embedder:
        _, rest = one_pass(root, root / ".photodup", embedder)
    assert (rest.n_before, rest.n_embedded) == (before, n - before)
    with Catalogue(root) as catalogue:
        assert len(catalogue.contents_with_vectors(embedder.model_digest)) == n
