"""What the all-in-one image needs of a machine. The one place that names its versions; nothing heavy is imported.

tests/servers/test_vast.py holds the versions against constraints.txt and the Dockerfiles.
"""

# Part of the image -> its version, and the CUDA that version is built on. The driver must know the newest of them:
# 13.0 came with driver 580.
BUILT_ON = {"torch": ("2.13.0", (13, 0)), "tritonserver": ("25.06", (12, 9))}
# Guesses on the safe side, since no registry was at hand: torch's CUDA wheels, Triton's layers and two sets of weights.
IMAGE_GB = 25.0  # what is pulled
DISK_GB = 80.0  # unpacked, with engines
# Slower lines make the pull of the image longer than half an hour, which is paid.
DOWN_MBIT_PER_S = 200.0


def cuda_needed() -> str:
    """Return the CUDA version that the driver must support, such as `13.0`."""
    major, minor = max(cuda for _, cuda in BUILT_ON.values())
    return f"{major}.{minor}"
