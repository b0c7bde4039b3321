"""The study in notebooks. A notebook imports from here what it shares with others.

May import: everything. Read `notebook/run.py` first, it is what each notebook opens.
"""

from pkgutil import resolve_name
from typing import Any

# Each is imported when it is first taken, so that a page needs no PyTorch.
_PATHS = """
photodup.bench.backends.adapters.adapter
photodup.bench.load.plan.WindowPlan
photodup.bench.stats.facts.Load
photodup.bench.stats.sentence.sentence
photodup.core.errors.PhotodupError
photodup.core.paths.build_dir
photodup.core.paths.project_root
photodup.embedding.backends.backend_of
photodup.embedding.backends.engine_family
photodup.embedding.backends.parse_backend
photodup.embedding.engines.encoder.load_model
photodup.embedding.engines.export.export
photodup.embedding.engines.onnx_runtime.OnnxModel
photodup.embedding.imaging
photodup.embedding.wire.wires
photodup.serving.embedded.embedded_servers
photodup.serving.triton.config.set_batching
photodup.serving.triton.control.temporary_config
photodup.study.comparisons.compare.compare
photodup.study.comparisons.figures
photodup.study.comparisons.outcomes.read_comparisons
photodup.study.notebook.benchmark.benchmark
photodup.study.notebook.charts
photodup.study.notebook.gaps.need
photodup.study.notebook.points.Spec
photodup.study.notebook.points.measure_figures
photodup.study.notebook.points.reference_embeddings
photodup.study.notebook.run.open_run
photodup.study.notebook.run.read_run
photodup.study.notebook.run.run_directory
photodup.study.notebook.table.measured
photodup.study.notebook.table.with_intervals
photodup.study.notebook.weights.choose_weights
photodup.study.notebook.weights.demo_library
photodup.study.notebook.weights.payload_photos
photodup.study.notebook.weights.review_library
"""
_BY_NAME = {path.rpartition(".")[2]: path for path in _PATHS.split()}


def __getattr__(name: str) -> Any:
    if name not in _BY_NAME:
        raise AttributeError(f"photodup.study has no {name!r}")
    return resolve_name(_BY_NAME[name])


def __dir__() -> list[str]:
    return sorted([*globals(), *_BY_NAME])
