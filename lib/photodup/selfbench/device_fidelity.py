"""What each precision of a device does to the embeddings of real photographs, against float32 on that device."""

import copy
from typing import Any

import numpy as np

from photodup.embedding import fidelity
from photodup.selfbench.device_torch import arithmetic, check_precision, dtype_of

THRESHOLD = 0.9  # for counting flipped decisions; the similarities' change does not depend on it


def embed(visual: Any, images: np.ndarray, precision: str, device: str, *, batch: int = 32) -> np.ndarray:
    """Embed on the device in one precision.

    Args:
        visual: the image tower in float32; copied, not changed.
        images: float32 [n, 3, 224, 224], normalised.

    Returns:
        float32 [n, dim] of length 1.

    Raises:
        NotHere: the device does not compute in this precision.
    """
    import torch

    check_precision(precision, device)
    network = copy.deepcopy(visual).to(device=device, dtype=dtype_of(precision)).eval()
    parts = []
    with arithmetic(precision), torch.inference_mode():
        for first in range(0, len(images), batch):
            some = torch.from_numpy(images[first : first + batch]).to(device).to(dtype_of(precision))
            parts.append(torch.nn.functional.normalize(network(some).float(), dim=-1).cpu().numpy())
    return np.concatenate(parts)


def measure(
    visual: Any, images: np.ndarray, precision: str, device: str, simulated: Any = None
) -> dict[str, Any]:
    """Compare a precision of the device with its float32; float32 on a GPU with the CPU's float32.

    Args:
        simulated: precision -> float32 [n, dim], the same photographs with that precision's rounding simulated on the
            CPU, or None where nobody simulated it; a callable, since it takes a while.

    Returns:
        What `fidelity.compare` returns, with `against`; and the same under `simulated` for the device against the
        simulation.

    Raises:
        NotHere: the device does not compute in this precision.
    """
    ours = embed(visual, images, precision, device)
    against, on = ("cpu fp32", "cpu") if precision == "fp32" else (f"{device} fp32", device)
    found = {"against": against, **fidelity.compare(embed(visual, images, "fp32", on), ours, THRESHOLD)}
    expected = simulated(precision) if simulated else None
    if expected is not None:
        found["simulated"] = fidelity.compare(expected, ours, THRESHOLD)
    return found
