"""Settings of ONNX Runtime and OpenVINO on a CPU, for FastAPI and Triton alike: Triton runs a copy of this file.

Waiting threads sleep. ONNX Runtime's default spins for about 50 ms of CPU after each answer, which gains microseconds and
takes the cores of the client, the decoder and other servers.
"""

from types import ModuleType
from typing import TYPE_CHECKING

import PIL

if TYPE_CHECKING:
    import onnxruntime
    import openvino

_SPINNING = "session.intra_op.allow_spinning"
# The float layers of an INT8 file stay FP32, so that the accuracy check judges one change, not two.
HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}


def onnx_options(threads: int) -> "onnxruntime.SessionOptions":
    """Return session options with this number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry(_SPINNING, "0")
    options.log_severity_level = 3
    return options


def openvino_settings(precision: str, threads: int) -> dict[str, str | int]:
    """Return settings for `compile_model`; without the hint OpenVINO computes in BF16 where it can."""
    return {"INFERENCE_PRECISION_HINT": HINTS[precision], "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}


def describe_onnx(session: "onnxruntime.InferenceSession") -> dict[str, str]:
    """Return a session's actual library, version, threads and spinning."""
    import onnxruntime

    options = session.get_session_options()
    spins = options.get_session_config_entry(_SPINNING) != "0"
    return versions(onnxruntime) | {
        "threads": str(options.intra_op_num_threads),
        "spinning": "on" if spins else "off",
    }


def describe_openvino(compiled: "openvino.CompiledModel") -> dict[str, str]:
    """Return a compiled model's actual settings; OpenVINO's threads (oneTBB) have no switch for spinning."""
    import openvino

    properties = {
        "threads": compiled.get_property("INFERENCE_NUM_THREADS"),
        "streams": compiled.get_property("NUM_STREAMS"),
        "computes_in": compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(),
    }
    return versions(openvino) | {key: str(value) for key, value in properties.items()}


def versions(library: ModuleType) -> dict[str, str]:
    """Return the versions of an engine and of Pillow."""
    return {"library": library.__name__, "version": library.__version__, "pillow": PIL.__version__}
