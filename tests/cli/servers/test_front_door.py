"""`import photodup`: the examples of its docstrings run, and nothing is imported before it is called."""

import doctest
import subprocess
import sys

import pytest
from support.review_library import photo, save

import photodup


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Two photographs and a half-size copy of one, in the folder `photos` of the current one."""
    monkeypatch.chdir(tmp_path)
    coffee = photo("coffee")
    save(coffee, tmp_path / "photos" / "large.jpg")
    save(coffee.reduce(2), tmp_path / "photos" / "small.jpg", quality=80)
    save(photo("astronaut"), tmp_path / "photos" / "portrait.jpg")


@pytest.mark.parametrize("name", photodup.__all__)
def test_the_example_of_each_name_runs(name, photos, random_service):
    url = f"{random_service.url}/embed"
    (example,) = doctest.DocTestFinder().find(
        getattr(photodup, name), name, globs={"photodup": photodup, "url": url}
    )
    assert example.examples
    output: list[str] = []
    assert doctest.DocTestRunner().run(example, out=output.append).failed == 0, "".join(output)


def test_the_import_loads_nothing_else():
    """`photodup --help` stays instant."""
    program = "import sys, photodup; print(*sys.modules, sep='\\n')"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = modules.stdout.split()
    assert "photodup" in loaded
    assert [name for name in loaded if name.startswith("photodup.") or name in ("numpy", "PIL")] == []
