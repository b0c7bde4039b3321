"""Which model's embeddings to group by, and from which cosines on."""

from dataclasses import dataclass

from photodup.core.errors import PhotodupError
from photodup.photos.library.catalogue import Catalogue, Model


@dataclass(frozen=True)
class ModelThresholds:
    """Cosines for one model. `measured` says where they come from; it is shown beside them.

    Attributes:
        candidate: pairs above are worth verifying as copies.
        similar: pairs above show the same scene.
        burst: the same, for photos taken within the time window.
    """

    candidate: float
    similar: float
    burst: float
    measured: str


# By the model's name in the catalogue. What is called measured is what `benchmarks/photo_quality` prints, and a test
# compares them.
THRESHOLDS: dict[str, ModelThresholds] = {
    "efficientnet-lite0-stand-in": ModelThresholds(
        0.65, 0.85, 0.75, "measured on the demonstration photographs"
    ),
    "ViT-B-32": ModelThresholds(
        0.80, 0.95, 0.90, "not measured here: between what photo libraries ship with"
    ),
}
OTHER_MODEL = ModelThresholds(0.75, 0.95, 0.90, "not measured for this model: run benchmarks/photo_quality")


def choose_model(catalogue: Catalogue, digest: str | None = None) -> Model | None:
    """Return the model whose embeddings to group by; None where nothing has been embedded.

    Args:
        catalogue: an open catalogue.
        digest: a digest or its beginning; needed where several trained models have embeddings.

    Raises:
        PhotodupError: none or several match, or the only ones there are of random weights.
    """
    models = [model for model in catalogue.models() if model.n_embeddings]
    if digest is not None:
        models = [model for model in models if model.digest.startswith(digest)]
        if not models:
            raise PhotodupError(
                f"No embeddings of a model {digest} here: run `photodup embed` with it first."
            )
    if not models:
        return None
    trained = [model for model in models if model.is_random is False]  # None: unknown
    if not trained:
        origin = "random weights" if any(model.is_random for model in models) else "weights of unknown origin"
        raise PhotodupError(
            f"The embeddings in this catalogue come from {origin}, and what to delete must never rest "
            "on them: run `photodup embed` with trained weights."
        )
    if len(trained) > 1:
        names = ", ".join(f"{model.digest[:12]} ({model.name})" for model in trained)
        raise PhotodupError(f"Embeddings of several models are here: choose one with --model: {names}.")
    return trained[0]
