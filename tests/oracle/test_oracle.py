"""Nothing that a drawn library contains is lost when its owner agrees to every suggestion; and the oracle would see it."""

import re
from pathlib import Path

import pytest

from oracle.kinds import KINDS, KNOWN_FAILURES, draw
from oracle.owner import accept_every_suggestion
from oracle.remains import losses

SMALL = [name for name, kind in KINDS.items() if kind.is_small]
N_LARGE = 3  # families a kind
EACH = [pytest.param(name, marks=[] if kind.is_small else [pytest.mark.long]) for name, kind in KINDS.items()]


def test_only_the_owner_uses_photodup():
    for path in Path(__file__).parent.glob("*.py"):
        modules = re.findall(r"^\s*(?:from|import) (photodup[\w.]*)", path.read_text(), re.MULTILINE)
        assert not modules or path.name == "owner.py"
        assert not [name for name in modules if re.match(r"photodup.photos.(compare|groups)", name)]


@pytest.mark.parametrize("name", EACH)
def test_the_oracle_sees_what_is_removed(name, tmp_path):
    (family,) = draw([name])
    family.write(tmp_path)
    assert losses(tmp_path, family) == {}
    first, *others = (tmp_path / family.name / file.path for file in family.files if not file.owner)
    is_honest = not KINDS[name].loses
    for path in others if is_honest else [first]:
        path.unlink()
    assert set(losses(tmp_path, family)) == set(KINDS[name].loses)
    if is_honest:
        first.unlink()
        assert losses(tmp_path, family), "the one that stayed is missed"


def lost_parts(folder: Path, kinds: list[str], n: int) -> tuple[int, dict[str, str]]:
    """Draw a library and accept every suggestion; return how many photos went, and losses by `kind: part`."""
    families = list(draw(kinds, n))
    for family in families:
        family.write(folder)
    n_removed = accept_every_suggestion(folder)
    return n_removed, {
        f"{family.kind}: {name}": f"{family.name}: {description}"
        for family in families
        for name, description in losses(folder, family).items()
    }


def assert_only_known(lost: dict[str, str], kinds: list[str]) -> None:
    """Fail if anything else is lost, and if what is known to be lost no longer is."""
    new = {part: description for part, description in lost.items() if part not in KNOWN_FAILURES}
    assert not new, "photodup loses parts of photographs that it did not lose before"
    mended = {part for part in KNOWN_FAILURES - lost.keys() if part.partition(":")[0] in kinds}
    assert not mended, "these are no longer lost: take them out of known_failures.yaml"


def test_nothing_of_a_small_library_is_lost(tmp_path):
    n_removed, lost = lost_parts(tmp_path, SMALL, 1)
    assert n_removed >= 6, "honest copies are suggested"
    assert_only_known(lost, SMALL)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nothing_of_a_large_library_is_lost(tmp_path):
    n_removed, lost = lost_parts(tmp_path, list(KINDS), N_LARGE)
    assert n_removed >= 6 * N_LARGE
    assert_only_known(lost, list(KINDS))
