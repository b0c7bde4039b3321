"""Make names and texts from files safe to show: control characters are written out.

A file name may hold an escape sequence that rewrites the screen, a newline that fakes a line of ours, or a
bidirectional override that turns `gpj.exe` round. Everything printed goes through `printable` (paths) or
`escaped` (texts).
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

# C0 and C1 controls, the line separators, and the characters that override the direction of writing. The
# marks that Arabic and Hebrew names need (U+200E, U+200F, U+061C) and emoji joiners stay.
_ORDERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def escaped(text: str, *, keep: str = "") -> str:
    r"""Return a text without control characters: ESC becomes `\x1b`, a newline `\n`, an override `\u202e`.

    Args:
        text: anything; a lone surrogate, which nothing can print, becomes U+FFFD.
        keep: control characters to leave, such as the newline of a message of several lines.
    """
    visible = _ORDERS.sub(lambda match: match[0] if match[0] in keep else _written(match[0]), text)
    return _SURROGATES.sub("\ufffd", visible)


def printable(path: Path | bytes | str) -> str:
    """Return a path for a report: escaped, and bytes that are not UTF-8 become U+FFFD."""
    return escaped(as_text(path))


def as_text(path: Path | bytes | str) -> str:
    """Return a path as text to compare and store, not to show: only what is not UTF-8 is replaced."""
    try:
        return os.fsencode(path).decode("utf-8", "replace")
    except UnicodeEncodeError:  # a surrogate that stands for no byte: it came from a file, not from a folder
        return _SURROGATES.sub("\ufffd", os.fspath(path))  # type: ignore[arg-type]


def in_short(names: Iterable[Path | str], limit: int | None = 4) -> str:
    """Return names as words, printable: "a, b and c", and of more than `limit` the first and "2 more"; None has no limit."""
    words = list(dict.fromkeys(map(printable, names)))
    if limit and len(words) > limit:
        words = [*words[: limit - 1], f"{len(words) - limit + 1:,} more"]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def count(n: int, word: str) -> str:
    """Return a number with its noun: "1 photo", "2,000 photos"."""
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def _written(character: str) -> str:
    return character.encode("unicode_escape").decode()
