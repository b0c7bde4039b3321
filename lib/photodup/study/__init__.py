"""The study in notebooks. A notebook imports from here what it shares with others.

May import: all packages but cli. Read `notebook/run.py` first: each notebook opens a run.
"""

from pkgutil import resolve_name
from typing import Any

# Imported on first access, so that writing a report needs no PyTorch.
_NAMES = {
    "photodup.bench.backends.adapters": "adapter",
    "photodup.bench.load.plan": "WindowPlan",
    "photodup.bench.stats.metrics": "Load",
    "photodup.bench.stats.sentence": "load_of sentence",
    "photodup.core.errors": "PhotodupError",
    "photodup.core.paths": "build_dir project_root",
    "photodup.embedding": "imaging",
    "photodup.embedding.backends": "backend_of engine_family parse_backend",
    "photodup.embedding.engines.encoder": "load_model",
    "photodup.embedding.engines.export": "export",
    "photodup.embedding.engines.onnx_runtime": "OnnxModel",
    "photodup.embedding.wire": "wires",
    "photodup.serving.triton.config": "set_batching",
    "photodup.serving.triton.control": "temporary_config",
    "photodup.study.accuracy.flips": "upper_bound",
    "photodup.study.comparisons": "outcome_charts",
    "photodup.study.comparisons.compare": "compare",
    "photodup.study.comparisons.outcomes": "read_comparisons",
    "photodup.study.notebook": "charts",
    "photodup.study.notebook.benchmark": "benchmark",
    "photodup.study.notebook.gaps": "need",
    "photodup.study.notebook.points": "FigureSpec measure_figures reference_embeddings",
    "photodup.study.notebook.run": "open_run read_run run_directory",
    "photodup.study.notebook.table": "measured with_intervals",
    "photodup.study.notebook.weights": "choose_weights demo_library payload_photos review_library",
}
_PATHS = {name: f"{module}.{name}" for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _PATHS:
        raise AttributeError(f"photodup.study has no {name!r}")
    return resolve_name(_PATHS[name])


def __dir__() -> list[str]:
    return sorted([*globals(), *_PATHS])
