"""Embedding a very large library over Ray Data, with the same `Embedder` in each worker.

Ray starts the workers on this machine, or on the cluster that RAY_ADDRESS names; there the library must lie
under the same path on every machine. Vectors come back here and are written as they come, so an
interruption costs what is in flight, and a second run continues. Where a machine of the cluster is lost, Ray gives
its batches to the others.
"""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.embedding.backends import parse_backend
from photodup.errors import PhotodupError
from photodup.files import available_cores
from photodup.photos.embed.choose import ChosenEncoder
from photodup.photos.embed.embed import Embedded, EmbedReport, begin, embed_files, store
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.walking import UnreadFile
from photodup.progress import bar
from photodup.settings import environment, variable

if TYPE_CHECKING:
    from photodup.embedding.client.client import Embedder

# What a worker elsewhere needs to load the same model or find the same server.
_ENVIRONMENT = ("MODEL_NAME", "MODEL_PRETRAINED", "PHOTODUP_ROOT", "TRITON_GRPC_URL")


class _Worker:
    """One embedder, kept between batches. Ray makes it where it runs."""

    def __init__(self, choice: ChosenEncoder, digest: str, root: bytes, dim: int) -> None:
        self.root, self.dim = Path(os.fsdecode(root)), dim
        self.embedder = choice.connect()
        if self.embedder.model_digest != digest:
            raise PhotodupError(
                f"A worker got another model ({(self.embedder.model_digest or 'none')[:12]}) than the one "
                f"this run began with ({digest[:12]}): give every machine the same weights."
            )

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        chosen = [
            (md5, Path(os.fsdecode(path))) for md5, path in zip(batch["md5"], batch["path"], strict=True)
        ]
        found = embed_files(self.embedder, self.root, chosen)
        md5s = {path: md5 for md5, path in chosen}
        n = len(found.problems)
        empty = [np.zeros(self.dim, np.float32)] * n
        return {
            "md5": np.array([*found.md5s, *(md5s[problem.path] for problem in found.problems)], object),
            "vector": np.stack([*found.vectors, *empty]).astype(np.float32),
            "problem": np.array([""] * len(found.md5s) + [p.reason for p in found.problems], object),
        }


def embed_with_ray(
    catalogue: Catalogue,
    choice: ChosenEncoder,
    embedder: "Embedder",
    batch: int = 32,
    *,
    workers: int | None = None,
    progress: bool = True,
) -> EmbedReport:
    """Embed every content that has no vector of this model yet, in `workers` processes.

    Args:
        catalogue: a scanned library.
        choice: who embeds; every worker connects as it says.
        embedder: connected the same way; says which model it is.
        batch: photographs per call.
        workers: default: as many as cores here for a server, one on each machine for a model in the process (it
            uses all cores).
        progress: show a bar with rate and time left.

    Raises:
        PhotodupError: Ray is not installed, a worker fails, or it gets another model.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise PhotodupError(
            f"--engine ray needs Ray Data ({error.name} is missing): pip install 'photodup[ray]'."
        ) from None
    started, name = time.perf_counter(), embedder.model_name or embedder.backend
    report, todo = begin(catalogue, embedder)
    digest = report.model_digest
    if not todo:
        return report
    dim = embedder.dim or _dim(embedder)
    is_local = choice.mode == "local" or (
        choice.backend is not None and parse_backend(choice.backend).is_local
    )
    path_of = dict(todo)
    with _cluster(ray):
        cores = _cores_of_machines(ray)
        workers = workers or (max(1, len(cores)) if is_local else available_cores())
        rows = [{"md5": md5, "path": os.fsencode(path)} for md5, path in todo]
        made = {"choice": choice, "digest": digest, "root": os.fsencode(catalogue.root), "dim": dim}
        vectors = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // batch)).map_batches(
            _Worker,
            fn_constructor_kwargs=made,
            batch_size=batch,
            compute=ray.data.ActorPoolStrategy(size=workers),
            # A worker that only waits for a server needs little of a core; one that computes needs its share.
            num_cpus=cores_each(cores, workers) if is_local else 0.5,
        )
        try:
            with bar(total=len(todo), desc="embed", unit="photo", disable=not progress) as shown:
                for answer in vectors.iter_batches(batch_size=None):
                    store(catalogue, digest, name, _embedded(answer, path_of), report)
                    shown.update(len(answer["md5"]))
        except ray.exceptions.RayError as error:
            raise PhotodupError(f"Embedding with Ray stopped: {_reason(error)}") from error
    report.seconds = time.perf_counter() - started
    return report


def cores_each(machines: Sequence[int], workers: int) -> int:
    """Return the most cores that each of `workers` may ask for so that all have room, and at least one.

    A worker that asks for more cores than any machine has would wait for ever.
    """
    for cores in range(max(machines, default=1), 1, -1):
        if sum(machine // cores for machine in machines) >= workers:
            return cores
    return 1


def _cores_of_machines(ray: Any) -> list[int]:
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return [n for n in cores if n]


def _embedded(answer: Mapping[str, np.ndarray], path_of: Mapping[str, Path]) -> Embedded:
    """Return what a batch of a worker's answers says, the problems apart from the vectors."""
    found = Embedded()
    for md5, vector, problem in zip(answer["md5"], answer["vector"], answer["problem"], strict=True):
        if problem:
            found.problems.append(UnreadFile(path_of[md5], problem))
        else:
            found.md5s.append(str(md5))
            found.vectors.append(vector)
    return found


def _require_listener(address: str) -> None:
    """Ask before Ray does: it tries an address for minutes, and then ends the process.

    Raises:
        OSError: nobody listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():  # not such as `auto`
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


@contextlib.contextmanager
def _cluster(ray: Any):
    """Join or start Ray, quietly; leave a Ray that was there before as it is."""
    was_there = ray.is_initialized()
    if not was_there:
        passed_on = {name: value for name in _ENVIRONMENT if (value := variable(name))}
        address = environment().ray_address
        try:
            _require_listener(address)
            ray.init(
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": passed_on},
            )
        except (
            OSError,
            RuntimeError,
            ValueError,
        ) as error:  # also what Ray raises where it starts too slowly
            where = (
                f"There is no Ray cluster at RAY_ADDRESS={address}" if address else "Ray did not start here"
            )
            said = str(error).strip().partition("\n")[0]
            raise PhotodupError(f"{where} ({said}): correct it, or leave out `--engine ray`.") from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        if not was_there:
            ray.shutdown()


def _dim(embedder: "Embedder") -> int:
    from PIL import Image

    return embedder.embed([Image.new("RGB", (224, 224))]).shape[1]


def _reason(error: BaseException) -> str:
    """Return the sentence of our own error, wherever Ray wrapped it, else Ray's last line."""
    seen: BaseException | None = error
    while seen is not None:
        cause = getattr(seen, "cause", None) or seen.__cause__
        if isinstance(seen, PhotodupError):
            break
        seen = cause
    text = str(seen or error).strip()
    return text.splitlines()[-1].strip() if text else type(error).__name__
