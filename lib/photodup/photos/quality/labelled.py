"""The owner's decisions as labelled pairs."""

from pathlib import Path

import numpy as np


def labelled_cosines(library: Path, digest: str) -> list[tuple[float, bool]]:
    """Return (cosine, same picture) for each pair that the owner decided on and that is embedded.

    Raises:
        PhotodupError: the library has no embeddings of this model, so its pairs cannot be placed.
    """
    from photodup.errors import PhotodupError
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.library.feedback import Feedback

    with Catalogue(library) as catalogue:
        pairs = Feedback(catalogue.own.path).labelled_pairs()
        md5s, vectors = catalogue.load_embeddings(digest)
    if pairs and not md5s:
        raise PhotodupError(
            f"{library} has no embeddings of these weights ({digest[:12]}): run `photodup embed` with them first."
        )
    row = dict(zip(md5s, vectors, strict=True))
    there = {pair: same for pair, same in pairs.items() if pair <= row.keys()}
    return [(float(np.prod([row[md5] for md5 in pair], axis=0).sum()), same) for pair, same in there.items()]
