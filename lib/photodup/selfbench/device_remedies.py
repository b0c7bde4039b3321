"""What a GPU's software stack complains of, and what a person can do about it, in one sentence."""

# Words of drivers, CUDA, PyTorch and TensorRT, in small letters, and the sentence they stand for.
REMEDIES = (
    (
        ("out of memory", "alloc_failed"),
        "out of device memory at this batch size: leave out the largest with --batch",
    ),
    (
        (
            "driver on your system is too old",
            "driver version is insufficient",
            "cuda_error_compat_not_supported",
        ),
        "the NVIDIA driver is older than this CUDA: update the driver, or install torch for an older CUDA "
        "(TORCH_INDEX)",
    ),
    (
        ("no kernel image is available", "not compatible with the current pytorch"),
        "this build of CUDA code has no kernels for this GPU: install torch and onnxruntime-gpu for its generation",
    ),
    (
        ("no nvidia driver", "no cuda-capable device"),
        "no NVIDIA driver or GPU is visible here: try nvidia-smi",
    ),
    (
        ("not compiled with cuda",),
        "this torch is a CPU build: install torch from an index with CUDA builds (TORCH_INDEX)",
    ),
    (
        ("libcudart", "libcublas", "libcudnn", "libnvinfer"),
        "a CUDA library of the version that this build wants is missing: install the matching CUDA, cuDNN or TensorRT",
    ),
    (
        ("incompatible device", "deserialize", "different gpu", "version tag does not match"),
        "an engine in the cache is of another GPU or TensorRT: empty build/trt and let it be built again",
    ),
)


def remedy(text: str) -> str | None:
    """Return the sentence for a library's error message, or None if it is none of the known ones."""
    small = text.lower()
    return next((sentence for words, sentence in REMEDIES if any(word in small for word in words)), None)
