"""Whether the JPEGs of a library are decoded whole before they are embedded, or at a reduced scale.

A decoder that shrinks by 4 takes a third of the time, and its pixels differ a little. Vectors of both never meet: each has
a digest of its own, and a library goes on as it began. A new one is decoded at a reduced scale where the gate
(`photodup export --draft`) found that no more decisions flip than its budget allows.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from photodup.embedding.engines.reduced import draft_verdict_on
from photodup.embedding.vectors import digest_drafted

if TYPE_CHECKING:
    from photodup.embedding.client.client import Embedder


def choose_decoding(embedder: "Embedder", digests: Sequence[str]) -> tuple[bool, str]:
    """Return whether to decode at a reduced scale, and why in words; nothing is said where there is no choice.

    Args:
        embedder: connected, and decoding whole so far.
        digests: models that have embeddings in the library, the one with most of them first.
    """
    if embedder.model_digest is None:
        return False, ""
    drafted = digest_drafted(embedder.model_digest, embedder.view.draft_size)
    began = next((digest for digest in digests if digest in (embedder.model_digest, drafted)), None)
    if began:
        is_drafted = began == drafted
        return is_drafted, f"{_how(embedder, is_drafted)}, as this library's embeddings began"
    model = getattr(embedder, "model", None)  # a server's is elsewhere
    if model is None or model.name.startswith("sscd"):
        return False, ""
    verdict = draft_verdict_on(model)
    said = {
        "passed": "which passed the gate",
        "refused": "since the gate refused a reduced scale",
        "undecided": "since the gate could not decide about a reduced scale",
    }.get(verdict, "`photodup export --precision PRECISION --draft` asks whether a reduced scale would do")
    said = said.replace("PRECISION", model.precision)
    return verdict == "passed", f"{_how(embedder, verdict == 'passed')}, {said}"


def _how(embedder: "Embedder", is_drafted: bool) -> str:
    size = embedder.view.draft_size
    return f"JPEGs decoded at {size} pixels or more a side" if is_drafted else "JPEGs decoded whole"
