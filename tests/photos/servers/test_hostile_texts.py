"""What comes with a library besides photographs: settings, damaged lines, foreign catalogues, names that give orders."""

import json

import httpx
import pytest
from support.command import one_sentence, photodup
from support.hostile_library import OP, VICTIM, entry, line, payload, write_journal
from support.http_server import accepting
from support.review_library import client_of, make_library, remove_all

from photodup.core.names import escaped, printable
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.scan import scan
from photodup.photos.library.settings import load_settings
from photodup.photos.review.serve import ReviewServer
from photodup.photos.review.session import ReviewSession
from photodup.photos.state.journal import Journal
from photodup.photos.trash.quarantine import Trash


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A scanned library of a user who has no key yet and no server on the usual ports."""
    monkeypatch.setenv("PHOTODUP_CONFIG", str(tmp_path / "config"))
    for name in ("INFERENCE_BACKEND", "INFERENCE_SERVICE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("photodup.photos.embed.choose.KNOWN", {})
    return make_library(tmp_path / "library")


# ---- the address that photographs are sent to ------------------------------------------------------------


@pytest.fixture
def listener():
    """A server that somebody else wants the photographs to go to; it counts who calls."""
    calls = []
    with accepting(calls.append) as url:
        yield url, calls


def test_an_address_in_a_library_is_called_by_nobody(library, listener):
    url, calls = listener
    supplied = {"backend": "fastapi-pytorch-fp32-http-jpeg", "url": url, "keep": ["size"], "folders": []}
    (library / ".photodup" / "settings.json").write_text(json.dumps(supplied))
    assert photodup("embed", library, MODEL_PRETRAINED="onnx:/nowhere").returncode == 2
    grouped = photodup("group", library)
    assert grouped.returncode == 2 and "settings.json cannot be used" in grouped.stderr
    with one_sentence(r"settings\.json cannot be used"):
        ReviewServer(library)
    assert calls == []


# ---- damaged lines ---------------------------------------------------------------------------------------

DAMAGED = {
    "no JSON": b"{nonsense",
    "a NUL": b'{"op": "\\u0000", "state": "removed", "time": 0, "group": "\\u0000", "kind": "keeper"}',
    "raw NULs": b"\0\0\0\0",
    "not UTF-8": b'{"op": "\xff\xfe"}',
    "a list": b"[1, 2]",
    "null": b"null",
    "brackets without end": b"[" * 100_000,
    "a number without end": b'{"time": ' + b"9" * 10_000 + b', "number": 1e999}',
    "wrong types": b'{"op": 1, "state": [], "time": "x", "files": 3, "group": {}, "status": {}, "kind": []}',
    "lists of lists": b'{"group": "a", "status": "todo", "remove": [[[]]], "apart": 1, "kind": "keeper", "md5s": [[]]}',
}
HOSTILE_FILES = {
    "NUL in a name": {"home": "a\0b"},
    "a lone surrogate": {"home": "\ud800.jpg"},
    "a huge number": {"mtime_ns": 10**30},
    "a negative size": {"size": -1},
    "a fraction": {"mtime_ns": 1.5},
    "no MD5": {"md5": "x"},
    "more than there is": {"colour": "red"},
    "our own folder": {"home": ".PHOTODUP-trash/journal.jsonl"},
    "a name that is empty": {"home": ""},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_line_costs_only_itself(library, damage):
    session = ReviewSession(library)
    first, second, _ = session.items
    session.skip(first)
    apart = session.items[second].members[0].photo.id
    session.set_apart(second, apart)
    third = list(session.items)[2]
    session.accept(third, [session.items[third].members[0].photo.id])
    session.apply()
    labels = session.feedback.dismissed_pairs(), session.feedback.keepers()
    assert all(labels)
    journals = [
        library / ".photodup" / "review" / "decisions.jsonl",
        library / ".photodup" / "feedback.jsonl",
        library / ".photodup-trash" / "journal.jsonl",
    ]
    for journal in journals:
        journal.write_bytes(DAMAGED[damage] + b"\n" + journal.read_bytes() + DAMAGED[damage] + b"\n")
    kept = {journal: journal.read_bytes() for journal in journals}
    again = ReviewSession(library)
    assert again.items[first].status == session.items[first].status
    assert (again.feedback.dismissed_pairs(), again.feedback.keepers()) == labels
    assert [o.id for o in again.trash.contents().listing] == [o.id for o in session.trash.contents().listing]
    for journal in journals:
        sentences = [sentence for sentence in again.problems if journal.name in sentence]
        assert len(sentences) == 2 and sentences[0].startswith(f"Line 1 of {journal} is damaged")
        assert all("\n" not in sentence for sentence in sentences)
        assert journal.read_bytes() == kept[journal], "it is left for a person to look at"
    listed = photodup("trash", "list", library)
    assert listed.returncode == 0 and "\n2 removals" in listed.stdout and "Line 1 of" in listed.stdout
    grouped = photodup("group", library)
    assert grouped.returncode == 0 and "feedback.jsonl is damaged" in grouped.stdout
    with ReviewServer(library) as server:
        assert httpx.get(server.url, timeout=60).text.count("is damaged") == 6
        assert "Line 1 of" in httpx.get(server.url + "trash", timeout=60).text
    again.restore([operation.id for operation in again.trash.contents().listing])
    assert Trash(library).contents().listing == []


@pytest.mark.parametrize("damage", HOSTILE_FILES)
def test_a_file_that_no_photodup_would_name_costs_only_its_line(library, damage):
    payload(library, f"items/{OP}/x", VICTIM)
    sound = entry("x.jpg", f"items/{OP}/x")
    write_journal(library, line("removed", sound | HOSTILE_FILES[damage]), line("removed", sound))
    trash = Trash(library)
    assert len(trash.contents().unsigned) == 1 and "Line 1 of" in trash.contents().problems[0]
    for time in (float("nan"), 10**400, -1, True, 1e300):
        write_journal(library, line("removed", sound, time=time))
    assert len(Trash(library).contents().problems) == 6
    assert trash.restore(trash.contents().unsigned, confirmed=True) == [library / "x.jpg"]


def test_a_label_of_very_many_contents_is_no_label(library):
    """Its pairs grow with the square: a line of a megabyte would fill the memory."""
    path = library / ".photodup" / "feedback.jsonl"
    path.write_text(json.dumps({"kind": "keep_both", "md5s": [f"{n:032x}" for n in range(20_000)]}) + "\n")
    feedback = Feedback(path.parent)
    assert feedback.dismissed_pairs() == set() and "Line 1" in feedback.problems[0]


def test_pairs_are_made_of_the_contents_that_are_there(library):
    """Forty lines of a thousand contents are 20 million pairs."""
    path = library / ".photodup" / "feedback.jsonl"
    lines = [{"kind": "keep_both", "md5s": [f"{n}-{m}" for m in range(1000)]} for n in range(40)]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    there = {"1-1": 0, "1-2": 1, "2-1": 2}
    assert Feedback(path.parent).dismissed_pairs(there) == {frozenset({"1-1", "1-2"})}


@pytest.mark.parametrize("names", [["a\0/b"], ["\ud800"], ["a", 5]])
@pytest.mark.parametrize("field", ["protected", "folders", "not_within"])
def test_a_folder_that_no_disk_can_have_is_one_sentence(library, field, names):
    (library / ".photodup" / "settings.json").write_text(json.dumps({field: names}))
    with one_sentence(r"settings\.json cannot be used \(folders must be a list of names"):
        load_settings(library / ".photodup")


@pytest.mark.parametrize("name", ["settings.json", "feedback.jsonl", "review/decisions.jsonl"])
def test_a_file_without_end_is_one_sentence(library, name):
    path = library / ".photodup" / name
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(1 << 33)  # of zeros, which take no room on the disk
    said = (
        r"cannot be used \(" if name == "settings.json" else "has more than 256 MB, so no photodup wrote it"
    )
    with one_sentence(said):
        if name == "settings.json":
            load_settings(library / ".photodup")
        else:
            Journal(path).read()


@pytest.mark.parametrize("content", [b"\n" * 40_000_000, b'{"a": [' + b"[]," * 13_000_000 + b"0]}\n"])
def test_lines_of_nothing_are_not_read_into_much(library, content):
    (path := library / ".photodup" / "feedback.jsonl").write_bytes(content)
    with one_sentence("that would take more than"):
        Journal(path).read()


# ---- the page ----------------------------------------------------------------------------------------------


def test_the_page_restores_what_others_removed_only_by_its_own_button(library):
    payload(library, f"items/{OP}/x", VICTIM)
    sent = entry("given.jpg", f"items/{OP}/x")
    write_journal(library, line("removing", sent, reason="\x1b[8m<b>hidden</b>"))
    with ReviewServer(library) as server, client_of(server) as client:
        text = client.get("trash").text
        assert "The trash is empty" in text and "Not written by your photodup" in text
        assert "given.jpg" in text and "\x1b" not in text and "<b>hidden" not in text
        client.post("restore", data={"operation": OP})
        assert not (library / "given.jpg").exists(), "the other form names nothing of this one"
        done = client.post("restore", data={"operation": OP, "unsigned": "yes"})
        assert "1 file is back" in done.text
        assert "Not written by your photodup" not in client.get("trash").text
    assert (library / "given.jpg").read_bytes() == VICTIM


# ---- names on terminals ----------------------------------------------------------------------------------

ORDERS = {
    "\x1b[2Jclear.jpg": r"\x1b[2Jclear.jpg",
    "two\nlines.jpg": r"two\nlines.jpg",
    "over\rwritten.jpg": r"over\rwritten.jpg",
    "photo_\u202egpj.exe.jpg": r"photo_\u202egpj.exe.jpg",
    "c1 \x9b31m.jpg": r"c1 \x9b31m.jpg",
    "del\x7f.jpg": r"del\x7f.jpg",
    "isolate \u2066\u2069.jpg": r"isolate \u2066\u2069.jpg",
    "写真 é עברית 👨\u200d👩.jpg": "写真 é עברית 👨\u200d👩.jpg",
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_name_gives_no_orders(name):
    assert printable(name) == ORDERS[name]
    assert printable(name.encode()) == ORDERS[name]
    assert escaped("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert escaped("\ud800") == "\ufffd"


def test_no_command_prints_a_name_raw(library):
    source = (library / "2020" / "IMG_1.jpg").read_bytes()
    for number, name in enumerate(ORDERS):
        (library / name).write_bytes(source)
        (library / f"{number}{name}").write_bytes(b"no image")
    folder = library / "\x1b]0;folder\x07\n"
    folder.mkdir()
    (folder / "x.jpg").write_bytes(source)
    scan(library, progress=False)
    session = ReviewSession(library)
    remove_all(session)
    payload(library, f"items/{OP}/x", VICTIM)
    sent = entry("\x1b[31mred.jpg", f"items/{OP}/x")
    write_journal(library, line("removed", sent, reason="\x1b[8mhidden\n\u202e"))
    missing = library / "\x1b[31mnone\n"
    outputs = [photodup(command, library, MODEL_PRETRAINED="random:0") for command in ("scan", "group")]
    outputs += [photodup("trash", "list", library), photodup("trash", "restore", library)]
    outputs += [photodup("trash", "restore", library, "--unsigned", "--yes")]
    outputs += [photodup(command, missing) for command in ("scan", "group", "embed")]
    outputs += [photodup("trash", "list", missing), photodup("trash", "restore", library, "\x1b[31m")]
    allowed = {"\n", "\r"}  # ends of our own lines; a progress bar returns
    for done in outputs:
        said = done.stdout + done.stderr
        orders = {c for c in said if escaped(c) != c} - allowed
        assert not orders, (said, orders)
        assert not any(text.startswith(("lines.jpg", "none")) for text in done.stdout.splitlines()), said
    assert r"two\nlines.jpg" in outputs[1].stdout + outputs[2].stdout
