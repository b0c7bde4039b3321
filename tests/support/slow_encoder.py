"""The real service with an encoder that takes as long as it is told, as a device of its own would; run as a script.

A sleeping encoder leaves the processor to the service, so what is measured is its queue and not this machine.
"""

import os
import sys
import time

import numpy as np

from photodup.serving.service import app
from photodup.serving.service import handler as service


class SlowModel:
    """Takes `SLOW_MS` for each image and answers with unit vectors of 8 numbers."""

    name, pretrained, is_random, dim = "slow", "random:0", True, 8
    digest = source_digest = "0" * 64
    engine, precision = "slow", "fp32"

    def embed_pixels(self, batch: np.ndarray) -> np.ndarray:
        time.sleep(len(batch) * float(os.environ["SLOW_MS"]) / 1000)
        return np.tile(np.eye(1, 8, dtype=np.float32), (len(batch), 1))


if __name__ == "__main__":
    service.load_model = lambda *arguments, **options: SlowModel()
    sys.exit(app.main())
