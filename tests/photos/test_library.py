"""The catalogue: incremental, by content, in whole batches, never mixing models."""

import os
import shutil
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from importlib import util

import numpy as np
import pytest
from PIL import Image
from support.command import photodup
from support.library import CountingEmbedder, killed_scan, photo, photos

from photodup.core.errors import PhotodupError
from photodup.photos.embed.batches import embed_library
from photodup.photos.library import scan as scanning
from photodup.photos.library.apple import scan_apple_photos
from photodup.photos.library.catalogue import Catalogue, CatalogueDamagedError, CatalogueError
from photodup.photos.library.hashing import md5
from photodup.photos.library.scan import scan


def test_unchanged_files_are_not_read_again(tmp_path, monkeypatch):
    photos(tmp_path, 5)
    assert scan(tmp_path, progress=False).n_read == 5
    # Bytes that changed while size and time did not prove that the second scan does not look at them.
    kept = os.stat(tmp_path / "0.jpg")
    (tmp_path / "0.jpg").write_bytes(b"x" * kept.st_size)
    os.utime(tmp_path / "0.jpg", ns=(kept.st_atime_ns, kept.st_mtime_ns))
    again = scan(tmp_path, progress=False)
    assert (again.n_read, again.n_unchanged, again.problems) == (0, 5, [])
    # A new time is enough to be read again.
    os.utime(tmp_path / "0.jpg", ns=(0, 0))
    changed = scan(tmp_path, progress=False)
    assert (changed.n_unchanged, [str(p.path) for p in changed.problems]) == (4, ["0.jpg"])


def test_copies_of_the_same_bytes_are_known_before_the_scan_ends(tmp_path, monkeypatch):
    photos(tmp_path, 5)
    shutil.copy(tmp_path / "4.jpg", tmp_path / "z.jpg")
    monkeypatch.setattr(scanning, "_BATCH_FILES", 1)
    known = []

    def look() -> None:
        with Catalogue(tmp_path) as catalogue:
            known.append([str(photo.path) for photo in catalogue.photos()])

    scan(tmp_path, progress=False, workers=1, on_more=look)
    assert known[1] == ["4.jpg", "z.jpg"]
    assert list(map(len, known)) == [1, 2, 3, 4, 5, 6]


def test_a_vanished_file_is_missing_and_comes_back_with_its_embedding(tmp_path):
    photo(tmp_path / "library/a.jpg", 1)
    photo(tmp_path / "library/b.jpg", 2)
    root = tmp_path / "library"
    scan(root, progress=False)
    with Catalogue(root) as catalogue:
        embed_library(catalogue, CountingEmbedder(), progress=False)
    shutil.move(root / "a.jpg", tmp_path / "a.jpg")
    assert scan(root, progress=False).n_missing == 1
    with Catalogue(root) as catalogue:
        assert [str(p.path) for p in catalogue.photos()] == ["b.jpg"]
        assert len(catalogue.contents_with_vectors("a" * 64)) == 1
    # Under another name in another folder: same content, so there is nothing to embed again.
    (root / "moved").mkdir()
    shutil.move(tmp_path / "a.jpg", root / "moved/renamed.jpg")
    scan(root, progress=False)
    with Catalogue(root) as catalogue:
        assert [str(p.path) for p in catalogue.photos()] == ["b.jpg", "moved/renamed.jpg"]
        assert catalogue.missing_embeddings("a" * 64) == []
        assert len(catalogue.contents_with_vectors("a" * 64)) == 2


def test_facts_are_those_of_the_upright_photograph(tmp_path):
    exif = Image.Exif()
    exif[0x0112], exif[0x010F], exif[0x0110] = 6, "Canon", "Canon EOS 5D"
    exif.get_ifd(0x8769)[0x9003] = "2021:07:08 09:10:11"
    exif.get_ifd(0x8769)[0x9011] = "+02:00"
    path = photo(tmp_path / "a.jpg", size=(80, 40), exif=exif)
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        (found,) = catalogue.photos()
    assert (found.width, found.height) == (40, 80)
    assert found.taken_at == "2021-07-08T09:10:11+02:00"
    assert (found.camera, found.format, found.size_bytes) == ("Canon EOS 5D", "JPEG", path.stat().st_size)
    assert found.md5 == md5(path.read_bytes())


def test_own_folders_and_attribute_files_are_never_scanned(tmp_path):
    scan(tmp_path, progress=False)
    for name in (".photodup/x.jpg", "deep/.photodup-trash/x.jpg", "._a.jpg", "a.jpg", "notes.txt.jpg.bak"):
        photo(tmp_path / "seen.jpg")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "seen.jpg", tmp_path / name)
    report = scan(tmp_path, progress=False)
    assert (report.n_found, report.problems) == (2, [])


OF_PROGRAMS = (
    # trash of systems, file servers, phones and synchronisation
    ".Trash", ".Trash-1000/files", ".Trashes/501", "$RECYCLE.BIN", "#recycle", "@Recycle", ".recycle/me", "RECYCLER",
    ".local/share/Trash/files", "DCIM/Camera/.trashed-1712345678-IMG_1.jpg", "Phone/Gallery/RecycleBin", "lost+found",
    "Pictures/.Gallery2/recycle", "Sync/RecycleBin.ffs_tmp", "iCloud/Recently Deleted", "$Windows.~BT/old", "LOST.DIR",
    # snapshots, versions, caches and transfers
    "#snapshot/daily", ".zfs/snapshot/a", "data/me/files_versions", ".stversions/2020", "Backups.backupdb/mac",
    "Android/data/com.example/cache", ".tmp.drivedownload", "Camera.partial", "IMG_1.jpg.download",
    # thumbnails
    "photoprism/storage/cache/thumbnails", "data/appdata_oc1x2y/preview/1", "2020/@EADIR/IMG_1.jpg",
    # libraries of applications
    "Mine Smart Previews.lrdata/0", "Old.photolibrary/Masters", "Session.cosessiondb/a", "Vault.apvault", "Cut.fcpbundle/a",
)  # fmt: skip


@pytest.mark.parametrize("folder", OF_PROGRAMS)
def test_what_programs_fill_and_empty_is_no_copy_to_rely_on(tmp_path, folder):
    """The file in there is larger and its path is shorter: it would be the one to keep."""
    photo(tmp_path / "deep/down/here/Holiday in the mountains.jpg", size=(320, 240))
    photo(tmp_path / folder / ("" if folder.endswith("IMG_1.jpg") else "a.jpg"), size=(640, 480))
    report = scan(tmp_path, progress=False)
    (place,) = report.not_entered
    assert (report.n_found, report.problems) == (1, []) and folder.startswith(str(place.path))
    assert str(report).endswith(f"\n{place}.") and "not entered: " in str(place)
    with Catalogue(tmp_path) as catalogue:
        assert [found.path.parts[0] for found in catalogue.photos()] == ["deep"]


def test_what_the_owner_names_is_entered_and_many_folders_are_counted(tmp_path):
    for folder in (
        ".hidden/sub",
        "Trash",
        "2020/.picasaoriginals",
        "Thumbs up",
        "My cached trip",
        "Snapshots",
    ):
        photo(tmp_path / folder / "a.jpg")
    assert scan(tmp_path / ".hidden", progress=False).n_found == 1
    assert scan(tmp_path / "Trash", progress=False).n_found == 1
    assert scan(tmp_path, only=[".hidden/sub", "2020"], progress=False).n_found == 2
    for number in range(20):
        photo(tmp_path / f"{number}/@eaDir/a.jpg")
    report = scan(tmp_path, progress=False)
    assert report.n_found == 4 and str(report).endswith("\n12 more not entered (@eaDir and Trash).")


def test_the_catalogue_can_lie_elsewhere(tmp_path):
    photo(tmp_path / "library/a.jpg")
    report = scan(tmp_path / "library", tmp_path / "elsewhere", progress=False)
    assert report.catalogue == tmp_path / "elsewhere/catalogue.sqlite"
    assert os.listdir(tmp_path / "library") == ["a.jpg"]
    # That folder cannot serve a second library, or the first one's photographs would all seem to be gone.
    photo(tmp_path / "other/b.jpg")
    with pytest.raises(CatalogueError, match=r"is the catalogue of .*library, not of .*other"):
        scan(tmp_path / "other", tmp_path / "elsewhere", progress=False)
    # The one beside a library moves with it.
    scan(tmp_path / "other", progress=False)
    (tmp_path / "other").rename(tmp_path / "moved")
    assert scan(tmp_path / "moved", progress=False).n_unchanged == 1


def test_embedding_resumes_and_leaves_out_what_changed(tmp_path):
    photos(tmp_path, 7)
    shutil.copy(tmp_path / "0.jpg", tmp_path / "copy.jpg")  # equal content is embedded once
    scan(tmp_path, progress=False)
    photo(tmp_path / "6.jpg", 99)  # changed since the scan
    with Catalogue(tmp_path) as catalogue:
        with pytest.raises(PhotodupError, match=r"went away 4 photographs were embedded before .* goes on"):
            embed_library(catalogue, CountingEmbedder(fail_after=4), batch=2, progress=False)
        assert len(catalogue.missing_embeddings("a" * 64)) == 3
        report = embed_library(catalogue, CountingEmbedder(), batch=2, progress=False)
        assert (report.n_before, report.n_embedded) == (4, 2)
        assert [str(p) for p in report.problems] == ["6.jpg: changed since the scan: scan again"]
        ids = catalogue.contents_with_vectors("a" * 64)
        vectors = catalogue.embeddings_of("a" * 64, ids)
    assert vectors.shape == (6, 12)
    expected = CountingEmbedder().embed([(tmp_path / "3.jpg").read_bytes()])[0]
    assert np.array_equal(vectors[ids.index(md5((tmp_path / "3.jpg").read_bytes()))], expected)


def test_one_refused_photograph_does_not_cost_its_batch(tmp_path):
    photos(tmp_path, 3)
    scan(tmp_path, progress=False)
    bad = (tmp_path / "1.jpg").read_bytes()

    class Refusing(CountingEmbedder):
        def embed(self, images):
            return super().embed([b"BAD" if image == bad else image for image in images])

    with Catalogue(tmp_path) as catalogue:
        report = embed_library(catalogue, Refusing(), progress=False)
    assert (report.n_embedded, [str(p) for p in report.problems]) == (2, ["1.jpg: refused"])


def test_models_are_never_mixed(tmp_path):
    photos(tmp_path, 2)
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        embed_library(catalogue, CountingEmbedder(), progress=False)
        assert len(catalogue.missing_embeddings("b" * 64)) == 2
        assert catalogue.contents_with_vectors("b" * 64) == []
        md5s = [photo.md5 for photo in catalogue.photos()]

        def store(digest: str, rows: np.ndarray, is_random: bool | None = False) -> None:
            vectors = dict(zip(md5s, rows, strict=True))
            catalogue.store_embeddings(digest * 64, vectors, name="other", is_random=is_random)

        with pytest.raises(CatalogueError, match="length 1"):
            store("a", np.full((2, 12), np.nan))
        with pytest.raises(CatalogueError, match="one of two servers is wrong"):
            store("a", np.eye(2, 12), is_random=True)
        with pytest.raises(CatalogueError, match="one of two servers is wrong"):
            store("a", np.eye(2, 13))
        store("a", np.eye(2, 12)[::-1], is_random=None)  # says nothing: no conflict
        assert catalogue.models()[0].is_random is False
        store("b", np.eye(2, 13), is_random=None)  # another model, of another dimension
        assert catalogue.embeddings_of("b" * 64, md5s).tolist() == np.eye(2, 13).tolist()
        assert catalogue.embeddings_of("a" * 64, md5s).tolist() == np.eye(2, 12)[::-1].tolist()


def test_a_backend_that_does_not_name_its_model_is_refused(tmp_path):
    photo(tmp_path / "a.jpg")
    scan(tmp_path, progress=False)
    nameless = CountingEmbedder()
    nameless.model_digest = None
    with Catalogue(tmp_path) as catalogue, pytest.raises(PhotodupError, match="which model it serves"):
        embed_library(catalogue, nameless, progress=False)


@pytest.mark.parametrize("version", [0, 2, 99])
def test_a_catalogue_of_another_version_is_refused_and_loses_nothing(tmp_path, version):
    photo(tmp_path / "a.jpg")
    path = scan(tmp_path, progress=False).catalogue
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    for opens in (Catalogue, partial(scan, progress=False)):
        with pytest.raises(CatalogueError, match=f"version {version}.*: (upgrade photodup|move it away)"):
            opens(tmp_path)
    path.rename(tmp_path / "away.sqlite")
    assert scan(tmp_path, progress=False).n_read == 1, "the remedy that the sentence names"


@pytest.mark.parametrize("forged", ["phash = 'zz'", "phash = 'gggggggggggggggg'", "width = -7"])
def test_values_that_no_scan_writes_are_refused_before_photographs_are_listed(tmp_path, forged):
    photo(tmp_path / "a.jpg")
    path = scan(tmp_path, progress=False).catalogue
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE content SET {forged}")
    with Catalogue(tmp_path) as catalogue, pytest.raises(CatalogueDamagedError, match="photodup scan"):
        catalogue.photos()


def test_two_scans_at_once_do_not_disturb_each_other(tmp_path):
    photos(tmp_path, 60)
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: scan(tmp_path, workers=1, progress=False), range(4)))
    assert all(report.n_found == 60 and report.problems == [] for report in reports)
    assert sum(report.n_read for report in reports) >= 60
    with Catalogue(tmp_path) as catalogue:
        assert len(catalogue.photos()) == 60


def test_a_catalogue_that_another_scan_is_just_naming_is_waited_for(tmp_path):
    """It has two names until the first one is taken away."""
    photo(tmp_path / "a.jpg", 1)
    scan(tmp_path, progress=False)
    first = tmp_path / ".photodup" / ".first-name"
    os.link(tmp_path / ".photodup" / "catalogue.sqlite", first)
    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(scan, tmp_path, workers=1, progress=False)
        time.sleep(0.3)
        first.unlink()
        assert report.result().n_found == 1


@pytest.mark.skipif(util.find_spec("osxphotos") is not None, reason="osxphotos is installed")
def test_apple_photos_without_osxphotos_is_one_sentence():
    with pytest.raises(PhotodupError, match=r"photodup\[apple\]"):
        scan_apple_photos()


def test_the_model_itself_embeds_a_library_through_the_command(tmp_path):
    """The real encoder with random weights, the real command, and then the refusal to group by it."""
    photo(tmp_path / "a.jpg", 1)
    photo(tmp_path / "b.jpg", 2)
    scan(tmp_path, progress=False)
    here = partial(photodup, MODEL_PRETRAINED="random:0", INFERENCE_SERVICE_URL="")
    first = here("embed", tmp_path)
    assert first.returncode == 0, first.stderr
    who, said = first.stdout.splitlines()
    assert who.startswith("local-pytorch-fp32: ViT-B-32 ")
    assert "MODEL_PRETRAINED names weights here: random:0" in who
    assert said.startswith("2 photographs embedded")
    assert "RANDOM WEIGHTS" in first.stdout
    with Catalogue(tmp_path) as catalogue:
        (model,) = catalogue.models()
        assert (model.name, model.dim, model.is_random, model.n_embeddings) == ("ViT-B-32", 512, True, 2)
    assert here("embed", tmp_path).stdout.splitlines()[1].startswith("0 photographs embedded")
    refused = here("group", tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "random weights" in refused.stderr


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_scan_keeps_what_is_done_and_resumes(tmp_path, how):
    n = 120
    photos(tmp_path, n)
    path = tmp_path / ".photodup/catalogue.sqlite"

    def catalogued() -> int:
        if not path.exists():
            return 0
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return connection.execute("SELECT count(*) FROM file").fetchone()[0]
        except sqlite3.OperationalError:  # not made yet
            return 0
        finally:
            connection.close()

    said = killed_scan(tmp_path, how=how, n_done=catalogued, least=10)
    assert how == signal.SIGKILL or "the same command goes on" in said.splitlines()[-1]
    with Catalogue(tmp_path) as catalogue:
        assert catalogue.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        done = len(catalogue.photos())
    assert 10 <= done < n
    report = scan(tmp_path, progress=False)
    assert (report.n_unchanged, report.n_read) == (done, n - done)
    with Catalogue(tmp_path) as catalogue:
        assert len(catalogue.photos()) == n
