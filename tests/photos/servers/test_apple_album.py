"""Removal in an Apple Photos library: an album, never a move. The classes of photoscript are stood in for here.

The stand-in has the signatures and errors of photoscript 0.6.1. Not run on macOS.
"""

import re
import sys
import types

import httpx
import pytest
from support.review_library import make_library, photo, remove_all, save

from photodup.core.errors import PhotodupError
from photodup.photos.library.apple import rescan
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.photos.review.serve import ReviewServer
from photodup.photos.review.session import DONE, ReviewSession
from photodup.photos.trash.apple_album import ALBUM
from photodup.photos.trash.entries import Removal, TrashError
from photodup.photos.trash.quarantine import Trash


def fake_photos(known: set[str]) -> types.ModuleType:
    """A `photoscript` over a dict of albums; Photo() refuses what is not in Photos, as the real one does."""
    module = types.ModuleType("photoscript")
    module.albums = {}

    class Photo:
        def __init__(self, uuid):
            if uuid.split("/")[0] not in known:
                raise ValueError(f"Invalid photo id: {uuid}")
            self.id, self.uuid = f"{uuid.split('/')[0]}/L0/001", uuid.split("/")[0]

    class Album:
        def __init__(self, name):
            self.name = name

        def photos(self):
            return [Photo(uuid) for uuid in module.albums[self.name]]

        def add(self, photos):
            module.albums[self.name] += [p.uuid for p in photos if p.uuid not in module.albums[self.name]]
            return [Photo(photo.id) for photo in photos]

        def remove(self, photos):
            gone = {photo.uuid for photo in photos}
            module.albums[self.name] = [u for u in module.albums[self.name] if u not in gone]
            return Album(self.name)

    class PhotosLibrary:
        def album(self, *name, uuid=None, top_level=False):
            return Album(name[0]) if name[0] in module.albums else None

        def create_album(self, name, folder=None):
            module.albums[name] = []
            return Album(name)

    module.Photo, module.Album, module.PhotosLibrary = Photo, Album, PhotosLibrary
    return module


@pytest.fixture
def library(tmp_path):
    """A scanned library whose catalogue says that its files belong to Photos."""
    root = make_library(tmp_path / "library")
    with Catalogue(root) as catalogue, catalogue.transaction() as connection:
        connection.execute(
            "INSERT INTO apple_photo (file, uuid, original_filename) "
            "SELECT id, printf('%08X-0000-0000-0000-000000000000', id), 'IMG.jpg' FROM file"
        )
    return root


@pytest.fixture
def photos(library, monkeypatch):
    with Catalogue(library) as catalogue:
        known = {row[0] for row in catalogue.connection.execute("SELECT uuid FROM apple_photo")}
    module = fake_photos(known)
    monkeypatch.setitem(sys.modules, "photoscript", module)
    return module


def everything(folder):
    found = (p for p in folder.rglob("*") if p.is_file() and ".photodup" not in p.parts)
    return {p: p.read_bytes() for p in found}


def test_marked_photos_go_into_the_album_and_no_file_moves(library, photos):
    before = everything(library)
    session = ReviewSession(library)
    assert session.accept_all() == 3
    outcome = session.apply()
    assert (outcome.n_removed, outcome.refused) == (3, ()) and outcome.bytes > 0
    assert len(photos.albums[ALBUM]) == 3
    assert everything(library) == before and not (library / ".photodup-trash").exists()
    assert all(item.status == DONE for item in session.items.values())
    assert len(session.trash.contents().listing) == 3
    again = ReviewSession(library)
    assert [item.status for item in again.items.values()] == [DONE] * 3, "they are not asked again"
    session.undo()
    assert photos.albums[ALBUM] == [] and session.trash.contents().listing == []


def test_some_can_be_taken_out_again(library, photos):
    session = ReviewSession(library)
    remove_all(session)
    first = session.trash.contents().listing[0]
    assert first.files[0].home in session.restore([first.id])
    assert len(photos.albums[ALBUM]) == 2


def test_the_same_checks_as_before_a_move(library, photos):
    session = ReviewSession(library)
    session.accept_all()
    (library / "Shared" / "small coffee.jpg").write_bytes(b"edited meanwhile")
    (library / "2020" / "IMG_2.jpg").unlink()  # a keeper
    outcome = session.apply()
    assert outcome.n_removed == 1 and len(photos.albums[ALBUM]) == 1
    assert sorted(sentence.split(" ")[-1] for sentence in outcome.refused) == ["it.", "remain."]


def test_a_keeper_that_is_a_link_to_the_photo_is_none(library, photos):
    """As the trash sees it: deleting the photo in Photos would leave a link to nothing."""
    session = ReviewSession(library)
    session.accept_all()
    for removal in session.removals():
        for keeper, _ in removal.keepers:
            keeper.unlink()
            keeper.symlink_to(removal.path)
    linked = [
        Removal(removal.path, removal.md5, [(keeper, removal.md5) for keeper, _ in removal.keepers])
        for removal in session.removals()
    ]
    done, refused = session.trash.remove(linked)
    assert done == [] and all("one must remain" in sentence for _, sentence in refused)
    assert not photos.albums.get(ALBUM)


def test_a_photo_that_left_photos_is_refused(library, photos, monkeypatch):
    monkeypatch.setitem(sys.modules, "photoscript", fake_photos(set()))
    session = ReviewSession(library)
    session.accept_all()
    assert all("no longer in Photos" in sentence for sentence in session.apply().refused)


def test_elsewhere_it_is_one_sentence_and_nothing_happens(library, monkeypatch):
    monkeypatch.setitem(sys.modules, "photoscript", None)  # as where it cannot be installed
    before = everything(library)
    session = ReviewSession(library)
    session.accept_all()
    with pytest.raises(PhotodupError, match=r"macOS and photoscript.*photodup\[apple\]"):
        session.apply()
    with pytest.raises(PhotodupError, match="osxphotos"):
        rescan(library, None, ())  # by its catalogue, whatever its name
    assert everything(library) == before


def test_the_page_says_album(library, photos):
    with ReviewServer(library) as server:
        server.session.accept_all()
        text = httpx.get(server.url + "confirm", timeout=30).text
        assert "into the album" in text and "photodup: to delete" in text and "purge" not in text
        origin = {"Origin": f"http://127.0.0.1:{server.port}"}
        data = {"plan": re.search(r'name="plan" value="(\w+)"', text)[1]}
        assert httpx.post(server.url + "remove", headers=origin, data=data, timeout=30).status_code == 303
        assert "3 photos in the album" in httpx.get(server.url + "trash", timeout=30).text


def test_plain_scans_and_removals_keep_out_of_application_libraries(tmp_path):
    package = tmp_path / "Pictures" / "Photos Library.photoslibrary"
    save(photo("coffee"), package / "originals" / "A" / "1.jpg")
    save(photo("coffee"), tmp_path / "Pictures" / "mine.jpg")
    report = scan(tmp_path / "Pictures", progress=False)
    assert report.n_read == 1
    (place,) = report.not_entered
    assert place.path.name == package.name and "--apple-photos" in place.reason
    assert report.problems == [] and package.name in "".join(report.left_out)
    for inside in (package, package / "originals"):
        with pytest.raises(PhotodupError, match="photo application"):
            scan(inside, progress=False)
    from photodup.photos.trash.files import md5_of

    target, keeper = package / "originals" / "A" / "1.jpg", tmp_path / "Pictures" / "mine.jpg"
    removal = Removal(target, md5_of(target), [(keeper, md5_of(keeper))])
    done, ((_, sentence),) = Trash(tmp_path / "Pictures").remove([removal])
    assert done == [] and "Photos Library.photoslibrary" in sentence and target.exists()
    assert issubclass(TrashError, PhotodupError)
