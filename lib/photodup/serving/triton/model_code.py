"""The Python code of a rendered model: copied beside it, so that Triton's own Python needs no photodup."""

from pathlib import Path
from types import ModuleType

from photodup.embedding import imaging, jpeg_scans
from photodup.embedding.engines import cpu
from photodup.errors import PhotodupError
from photodup.files import write_atomically
from photodup.paths import project_root

PREPROCESS = "openclip_vit_b32_preprocess"

# Library modules run inside Triton as plain files: its Python has no photodup.
_IMPORTS = {
    "from photodup.errors import PhotodupError": "PhotodupError = Exception",
    "from photodup.embedding import imaging": "import imaging",
    "from photodup.embedding import jpeg_scans": "import jpeg_scans",
}


def copy_preprocessing(version_dir: Path) -> None:
    """Copy the preprocessing model and the modules of photodup that it imports."""
    from photodup.serving.triton import decoders

    copy_code(project_root() / "model_repository" / PREPROCESS / "1" / "model.py", version_dir / "model.py")
    _copy_library(version_dir, imaging, jpeg_scans, decoders)


def copy_encoder(version_dir: Path) -> None:
    """Copy the model that runs a graph on the CPU, with the settings and the normalisation of the FastAPI service."""
    copy_code(code_file("onnx_session.py"), version_dir / "model.py")
    _copy_library(version_dir, imaging, jpeg_scans, cpu)


def _copy_library(version_dir: Path, *modules: ModuleType) -> None:
    for module in modules:
        source = Path(str(module.__file__))
        text = source.read_text()
        for ours, theirs in _IMPORTS.items():
            text = text.replace(ours, theirs)
        if any(
            "photodup" in line for line in text.splitlines() if line.lstrip().startswith(("import", "from"))
        ):
            raise PhotodupError(f"{source.name} imports more of photodup than Triton's Python can be given.")
        _write_if_changed(version_dir / source.name, text)


def code_file(name: str) -> Path:
    """Return the file of a Python model of ours."""
    return Path(__file__).parent / "models" / name


def copy_code(source: Path, destination: Path) -> None:
    """Copy one file of code."""
    _write_if_changed(destination, source.read_text())


def _write_if_changed(path: Path, text: str) -> None:
    """Leave an equal file alone: Triton takes a newer file for a new model."""
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text)
