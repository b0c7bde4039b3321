"""Folders that somebody else made: trash journals that attack, and what must never change because of them."""

import hashlib
import json
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

from photodup.photos.trash.files import md5_of

OP = "20260102-030405-0123abcd"
PAYLOAD, VICTIM = b"what the giver wrote", b"what is mine"


def tree(folder: Path, *without: Path) -> dict[str, tuple]:
    """Return everything below a folder but what is left out: kind, content or target, inode, time of change."""
    found = {}
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(path, name) not in without]
        for entry in (Path(path, name) for name in (*folders, *files)):
            if entry in without:
                continue
            status = entry.lstat()
            content: object = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(entry)
            elif stat.S_ISREG(status.st_mode):
                content = entry.read_bytes()
            # The names of a folder are seen by themselves; its time changes with them.
            when = None if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns
            found[str(entry.relative_to(folder))] = (status.st_mode, content, status.st_ino, when)
    return found


def make_outside(folder: Path) -> Path:
    """Make what is mine: files, an empty folder, and a folder with the name an operation has."""
    for name in ("victim.jpg", f"{OP}/victim.jpg", "sub/victim.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(VICTIM)
        os.utime(folder / name, ns=(10**18, 10**18))
    (folder / "empty" / "deeper").mkdir(parents=True)
    return folder


def entry(home: str, trash: str, content: bytes = VICTIM, **more: object) -> dict:
    """Return one file as a journal names it."""
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return {"home": home, "trash": trash, "md5": md5, "size": len(content), "mtime_ns": 5} | more


def line(state: str, *files: dict, op: str = OP, **more: object) -> dict:
    """Return a journal's line about files."""
    return {"op": op, "state": state, "time": 1.0, "reason": "r", "files": list(files)} | more


def write_journal(library: Path, *lines: dict | bytes, name: str = "journal.jsonl") -> Path:
    """Write a journal as a giver would: without a signature, or with what he has instead."""
    path = library / ".photodup-trash" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        for entry in lines:
            file.write(entry if isinstance(entry, bytes) else json.dumps(entry).encode() + b"\n")
    return path


def payload(library: Path, name: str, content: bytes = PAYLOAD) -> Path:
    """Put a file into the trash's items."""
    path = library / ".photodup-trash" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


Attack = Callable[[Path, Path], None]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Register a folder that attacks; called with the library and what lies outside."""
    ATTACKS[function.__name__.replace("_", " ")] = function
    return function


def follows(library: Path, outside: Path, link: str, state: str, home: str, trash: str) -> None:
    """Put a link where the trash has a folder (`..`: to the library itself), and a line about a file behind it."""
    place = library / ".photodup-trash" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(".." if link == "up" else outside)
    write_journal(library, line(state, entry(home, trash)))


def puts(library: Path, outside: Path, home: str, state: str = "restoring", content: bytes = PAYLOAD) -> None:
    """Have a file in the trash, and a line about it."""
    if home.startswith("sub/"):
        (library / "sub").symlink_to(outside / "sub")
    payload(library, f"items/{OP}/x", content)
    write_journal(library, line(state, entry(home, f"items/{OP}/x", content)))


ATTACKS |= {
    "takes files through linked items": partial(
        follows, link="items", state="removing", home="stolen.jpg", trash=f"items/{OP}/victim.jpg"
    ),
    "deletes through linked items": partial(
        follows, link="items", state="purging", home="x.jpg", trash=f"items/{OP}/victim.jpg"
    ),
    "deletes through a linked operation": partial(
        follows, link=f"items/{OP}", state="purging", home="x.jpg", trash=f"items/{OP}/victim.jpg"
    ),
    "deletes the photos of the library by a link": partial(
        follows, link="up", state="purging", home="x.jpg", trash="up/mine.jpg"
    ),
    "writes through a linked home": partial(puts, home="sub/.profile"),
    "makes folders through a linked home": partial(puts, home="sub/a/b/c/.profile"),
    "deletes a half finished removal": partial(puts, home="x.jpg", state="purging", content=VICTIM),
    "resumes a half finished restore": partial(puts, home=".photodup/settings.json", content=VICTIM),
}


@attack
def names_an_operation_outside(library: Path, outside: Path) -> None:
    payload(library, "items/y")
    op = os.path.relpath(outside, library / ".photodup-trash" / "items")
    write_journal(library, line("purging", entry("x.jpg", "items/x/x.jpg"), op=op))


@attack
def names_an_operation_by_an_absolute_path(library: Path, outside: Path) -> None:
    write_journal(library, line("removing", entry("x.jpg", "items/x/x.jpg"), op=str(outside)))


@attack
def names_files_by_absolute_paths(library: Path, outside: Path) -> None:
    files = [entry("x.jpg", str(outside / "victim.jpg")), entry(str(outside / "y.jpg"), f"items/{OP}/x")]
    payload(library, f"items/{OP}/x", VICTIM)
    write_journal(library, line("purging", files[0]), line("restoring", files[1]))


@attack
def names_files_above_the_library(library: Path, outside: Path) -> None:
    up = os.path.relpath(outside, library)
    payload(library, f"items/{OP}/x", VICTIM)
    files = [entry(f"{up}/y.jpg", f"items/{OP}/x"), entry("x.jpg", f"items/{OP}/../../../{up}/victim.jpg")]
    write_journal(library, line("restoring", files[0]), line("purging", files[1]))


@attack
def changes_times_by_a_hard_link(library: Path, outside: Path) -> None:
    (library / ".photodup-trash" / "items" / OP).mkdir(parents=True)
    os.link(outside / "victim.jpg", library / ".photodup-trash" / "items" / OP / "x.jpg")
    write_journal(library, line("restoring", entry("x.jpg", f"items/{OP}/x.jpg")))


@attack
def has_a_link_for_a_journal(library: Path, outside: Path, link=os.symlink) -> None:
    target = outside / "notes.txt"
    lines = json.dumps(line("purging", entry("x.jpg", f"items/{OP}/x.jpg")))
    target.write_text(f"{lines}\nthe last line of my notes has no end")
    (library / ".photodup-trash").mkdir()
    link(target, library / ".photodup-trash" / "journal.jsonl")


@attack
def has_a_hard_link_for_a_journal(library: Path, outside: Path) -> None:
    has_a_link_for_a_journal(library, outside, os.link)


@attack
def has_a_link_for_a_lock(library: Path, outside: Path) -> None:
    write_journal(library, line("purging", entry("x.jpg", f"items/{OP}/x.jpg")))
    (library / ".photodup-trash" / "lock").symlink_to(outside / "made by the lock")


def make_library(folder: Path) -> Path:
    """Make a library of one photo, to be attacked with."""
    folder.mkdir(parents=True)
    (folder / "mine.jpg").write_bytes(VICTIM)
    assert md5_of(folder / "mine.jpg") == entry("", "")["md5"]
    return folder
