"""A sidecar that belongs to two photos leaves with the last of them, or stays, and the owner is told."""

import shutil

from PIL import Image
from support.review_library import make_library as make_review_library
from support.trash_kills import make_library, present, removal

from photodup.photos.library.scan import scan
from photodup.photos.library.sidecars import moving_together
from photodup.photos.review.session import ReviewSession
from photodup.photos.trash.moving import md5_of
from photodup.photos.trash.trash import Trash


def test_a_shared_sidecar_leaves_with_the_last_photo_that_it_belongs_to(tmp_path):
    md5 = make_library(tmp_path, {"keep.jpg": 10, "A.jpg": 20, "A.png": 30, "A.xmp": 5})
    photos = [tmp_path / "A.jpg", tmp_path / "A.png"]
    together = moving_together(photos)
    removals = [removal(tmp_path, md5, p.name, sidecars=together[p]) for p in photos]
    (tmp_path / "A.png").write_bytes(b"changed since the scan")
    done, refused = Trash(tmp_path).remove(removals)
    assert ([o.files[0].home for o in done], len(refused)) == (["A.jpg"], 1)
    assert (tmp_path / "A.xmp").exists(), "A.png is still there and needs it"
    Trash(tmp_path).restore(done)
    # The other way round, the one that was refused comes first.
    md5["A.png"] = md5_of(tmp_path / "A.png")
    (tmp_path / "A.jpg").write_bytes(b"this one has changed")
    removals = [removal(tmp_path, md5, p.name, sidecars=together[p]) for p in photos]
    done, refused = Trash(tmp_path).remove(removals)
    assert ([o.files[0].home for o in done], len(refused)) == (["A.png"], 1)
    assert (tmp_path / "A.xmp").exists(), "A.jpg is still there and needs it"
    Trash(tmp_path).restore(done)
    md5["A.jpg"] = md5_of(tmp_path / "A.jpg")
    removals = [removal(tmp_path, md5, p.name, sidecars=together[p]) for p in photos]
    done, refused = Trash(tmp_path).remove(removals)
    assert (len(done), refused) == (2, []) and set(present(tmp_path)) == {"keep.jpg"}
    Trash(tmp_path).restore(done)
    assert set(present(tmp_path)) == {"keep.jpg", "A.jpg", "A.png", "A.xmp"}


def test_a_sidecar_of_two_photos_stays_with_the_one_that_was_left_alone_and_the_page_says_so(tmp_path):
    library = make_review_library(tmp_path / "library")
    coffee = Image.open(library / "Shared" / "small coffee.jpg")
    coffee.save(library / "Shared" / "small coffee.png")
    shutil.move(library / "Shared" / "small coffee.jpg.xmp", library / "Shared" / "small coffee.xmp")
    scan(library, progress=False)
    session = ReviewSession(library)
    session.accept_all()
    assert session.n_sidecars == 1, "it is counted once"
    (library / "Shared" / "small coffee.png").write_bytes(b"edited meanwhile")
    outcome = session.apply()
    assert not (library / "Shared" / "small coffee.jpg").exists()
    assert (library / "Shared" / "small coffee.xmp").exists()
    said = [sentence for sentence in outcome.refused if "small coffee.xmp stays" in sentence]
    assert len(said) == 1 and "also belongs to small coffee.png, which was left alone" in said[0]
