"""How often the statistics of comparisons are wrong: passes are simulated in which the truth was planted.

A simulated pass has every comparison and null of `notebooks/comparisons.yaml`, in the sizes of the reference or of the quick
study, and goes through `bench.stats.comparison.compare_all` as a measured pass does. Its log ratios, one a visit, are
resampled from the visits that a run recorded, or generated with stated spreads. `statistics_live` plants delays in real
servers.

    python -m benchmarks.statistics results/reference-cpu           (prints JSON; notebook 14 shows it)
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
import yaml

from photodup.bench.anyurl.gate import N_SIMULATED, Draw, fails, planted_heads
from photodup.bench.pairs.alternate import Visit
from photodup.bench.pairs.declared import Declarations, Pair, declarations
from photodup.bench.pairs.read import comparison_of
from photodup.bench.record.store import RunStore, load_records
from photodup.bench.stats.comparison import Comparison, Observed, Outcome, Verdict, compare_all, has_failed
from photodup.bench.stats.metrics import SMALLEST_EFFECT
from photodup.core.paths import project_root
from photodup.study.comparisons.measure import KIND as VISIT
from photodup.study.comparisons.measure import Amount, amount_of

EFFECTS = (SMALLEST_EFFECT, 0.03, 0.05, 0.10)
GATE_LIMIT = 0.05

Source = Callable[[Pair, np.random.Generator], tuple[np.ndarray, ...]]
"""Draws the log ratios of one comparison whose truth is no difference, one array with one number a visit."""


@dataclass(frozen=True)
class Spread:
    """How log ratios vary.

    Attributes:
        visits: standard deviation of a visit's mean.
        unevenness: standard deviation of the logarithm of `visits` from comparison to comparison.
    """

    visits: float
    unevenness: float = 0.0

    def __str__(self) -> str:
        return f"visits {self.visits:.1%}" + (f" × e^{self.unevenness:.0f}z" if self.unevenness else "")

    def draw(self, visits: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return normal log ratios around 0, one array with one number a visit."""
        size = self.visits * math.exp(self.unevenness * generator.normal())
        return tuple(generator.normal(0, size, (visits, 1)))


STATED = (Spread(0.01), Spread(0.02), Spread(0.03), Spread(0.05))
PLANTED = (0.0, GATE_LIMIT, 0.10, 0.15)  # of the gate's heads


@dataclass(frozen=True)
class Rates:
    """The rates of simulated passes; shares are 0 to 1. An error is the half-width of the simulation's own 95% interval.

    Attributes:
        covered: intervals that hold the truth, by `primary`, `exploratory` and `null`: their levels differ.
        false_claims: families in which any primary comparison, of exactly ±2%, was called different by more than 2%.
        different: by planted difference, primary comparisons called different in the right direction.
        equal: by planted difference, primary comparisons called equal.
        nulls_failed: a pass, of its nulls.
        half_width: of the primary comparisons' intervals, median, relative.
    """

    covered: Mapping[str, float]
    false_claims: float
    false_claims_error: float
    different: Mapping[float, float]
    different_error: Mapping[float, float]
    equal: Mapping[float, float]
    nulls_failed: float
    half_width: float


def generated(spread: Spread, amount: Amount) -> Source:
    """Return a source of normal log ratios with this spread, and as many visits as the amount has."""
    return lambda pair, generator: spread.draw(amount.visits, generator)


Visits = dict[str, dict[str, np.ndarray]]
"""Mean log ratios of recorded visits, [n_visits]: by load, then by comparison."""


def recorded(run_dir: Path | str) -> Visits:
    """Return the mean log ratio of each visit of a run, of the comparisons that have two or more."""
    means: dict[tuple[str, str], list[float]] = {}
    if not Path(run_dir).is_dir():
        return {}
    with RunStore(Path(run_dir), measure=False) as store:
        for record in load_records(run_dir):
            if record["kind"] != VISIT or record["status"] != "ok":
                continue
            config = record["config"]
            visit = Visit.of_record(record["result"], store.raw(record["key"], config=config))
            if len(ratios := visit.log_ratios(1)):
                means.setdefault((config["load"], config["pair"]), []).append(float(ratios.mean()))
    visits: Visits = {}
    for (load, pair), of_pair in means.items():
        if len(of_pair) > 1:
            visits.setdefault(load, {})[pair] = np.array(of_pair)
    return visits


def resampled(visits: Visits) -> Source:
    """Return a source that draws the visits of one comparison under the same load, as `_redrawn` does.

    It has as many visits as the pair has: those on which an answer rests have more than the others, and spread less.
    """

    def draw(pair: Pair, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
        under_load = visits[pair.load_name]
        n_visits = len(under_load[pair.name])
        return _redrawn(
            _one_of([means for means in under_load.values() if len(means) == n_visits], generator), generator
        )

    return draw


def _one_of(comparisons: Sequence[np.ndarray], generator: np.random.Generator) -> np.ndarray:
    return comparisons[int(generator.integers(len(comparisons)))]


def _redrawn(means: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return as many visits, drawn from a comparison's own, each with a random sign, around no difference.

    They are smoothed (Silverman and Young 1987): of four visits alone every eighth draw would be four times the same one.
    """
    n = len(means)
    shifts = (means - means.mean()) * math.sqrt(
        n / (n - 1)
    )  # visits lie nearer to their own mean than to the truth
    width = 1.06 * n**-0.2
    drawn = generator.choice((-1, 1), size=n) * shifts[generator.integers(n, size=n)]
    smoothed = (drawn + width * shifts.std() * generator.normal(size=n)) / math.hypot(1, width)
    return tuple(smoothed.reshape(n, 1))


def one_in_flight(visits: Visits) -> list[np.ndarray]:
    """Return the visits of each comparison with one request in flight, as the gate has."""
    declared = declarations()
    loads = {pair.load_name for pair in (*declared.pairs, *declared.nulls) if pair.load.concurrency == 1}
    return [means for load, comparisons in visits.items() if load in loads for means in comparisons.values()]


def changes(comparisons: Sequence[np.ndarray]) -> Draw:
    """Return a source of heads that equal their base, each with the noise of one comparison in all looks of the gate."""

    def draw(looks: int, generator: np.random.Generator) -> list[np.ndarray]:
        means = _one_of(comparisons, generator)
        return [visit for _ in range(looks) for visit in _redrawn(means, generator)]

    return draw


def rules(draw: Draw, planted: float) -> dict[str, int]:
    """Return how many heads of `N_SIMULATED` that are slower by `planted` each rule fails; all rules see the same ones."""
    from scipy.special import stdtr  # `ttest_1samp` takes 4 s for these 1,600 heads

    failed: Counter[str] = Counter()
    for head in planted_heads(draw, planted):
        every = np.concatenate(head)
        slower = math.expm1(np.median(every))
        failed["photodup gate"] += fails(head, GATE_LIMIT)
        t = every.mean() / (every.std(ddof=1) / math.sqrt(len(every)))
        failed["t test at .001"] += stdtr(len(every) - 1, -t) < 0.001
        failed["last three visits over 5%"] += min(map(np.median, head[-3:])) > math.log1p(0.05)
        failed["median over 5%"] += slower > 0.05
        failed["median over 10%"] += slower > 0.10
    return {rule: int(n) for rule, n in failed.items()}


def declared_in(visits: Visits) -> Declarations:
    """Return the declarations of the comparisons that were measured."""
    declared, names = declarations(), {name for comparisons in visits.values() for name in comparisons}
    pairs, nulls = (
        tuple(pair for pair in every if pair.name in names) for every in (declared.pairs, declared.nulls)
    )
    return replace(declared, pairs=pairs, nulls=nulls)


def quick_amount() -> Amount:
    """Return the amount of the quick study's comparisons."""
    text = (project_root() / "notebooks" / "quick.yaml").read_text(encoding="utf-8")
    return amount_of(yaml.safe_load(text)["comparisons"])


def simulated_pass(
    source: Source,
    effect: float,
    generator: np.random.Generator,
    declared: Declarations,
    *,
    quick: bool = False,
) -> list[tuple[Outcome, float]]:
    """Return the outcomes of one pass with the planted log ratio of each: `effect`, up or down, in primary comparisons."""
    chosen = [pair for pair in declared.pairs if pair.is_quick or not quick]
    comparisons, truths = [], []
    for pair in (*chosen, *declared.nulls_of(chosen, quick=quick)):
        truth = math.log1p(generator.choice((-1, 1)) * effect) if pair.is_primary else 0.0
        ratios = tuple(truth + visit for visit in source(pair, generator))
        observed = Observed(ratios, 1.0, math.exp(np.concatenate(ratios).mean()))
        comparisons.append(comparison_of(pair, observed))
        truths.append(truth)
    return list(zip(compare_all(comparisons), truths, strict=True))


def simulate(
    source: Source,
    *,
    n_passes: int = 100,
    effects: Sequence[float] = EFFECTS,
    quick: bool = False,
    declared: Declarations | None = None,
) -> Rates:
    """Return how passes come out; for each planted difference `n_passes` are simulated."""
    declared, generator = declared or declarations(), np.random.default_rng(0)
    rows = [
        {
            "effect": effect,
            "number": number,
            "family": outcome.comparison.family,
            "kind": _kind(outcome.comparison),
            "covered": outcome.low <= math.expm1(truth) <= outcome.high,
            "found": outcome.is_different and outcome.effect * truth > 0,
            "equal": outcome.verdict is Verdict.EQUAL,
            "beyond": has_failed(outcome),
            "half_width": (outcome.high - outcome.low) / 2,
        }
        for effect in effects
        for number in range(n_passes)
        for outcome, truth in simulated_pass(source, effect, generator, declared, quick=quick)
    ]
    outcomes = pd.DataFrame(rows)
    primary = outcomes[outcomes.kind == "primary"]
    found = primary.groupby(["number", "effect"]).found.mean().unstack()
    at_edge = primary[primary.effect == SMALLEST_EFFECT].groupby(["number", "family"]).beyond.any().unstack()
    return Rates(
        outcomes.groupby("kind").covered.mean().to_dict(),
        float(at_edge.stack().mean()),
        _error(at_edge.mean(axis=1)),
        found.mean().to_dict(),
        found.apply(_error).to_dict(),
        primary.groupby("effect").equal.mean().to_dict(),
        float(outcomes.beyond[outcomes.kind == "null"].sum() / n_passes / len(effects)),
        float(primary.half_width.median()),
    )


def _kind(comparison: Comparison) -> str:
    return "null" if comparison.is_null else "primary" if comparison.is_primary else "exploratory"


def _error(by_pass: pd.Series) -> float:
    """Return the half-width of the 95% interval of a mean over passes: comparisons of one pass share its noise."""
    return 1.96 * float(by_pass.sem())


def studies() -> dict[str, Amount]:
    """Return the amounts of the studies that are simulated."""
    return {"reference": Amount(), "quick study": quick_amount()}


def n_primary(study: str) -> int:
    """Return how many primary comparisons a study has."""
    return sum(pair.is_primary and (pair.is_quick or study == "reference") for pair in declarations().pairs)


def rates_of(visits: Visits, n_passes: int, effects: Sequence[float]) -> list[dict[str, Any]]:
    """Return the rates at the stated spreads of both studies, and at that of recorded visits if there are any."""
    rates: list[tuple[str, str, Rates]] = [
        (
            study,
            f"{spread.visits:.0%}",
            simulate(
                generated(spread, amount), quick=study != "reference", n_passes=n_passes, effects=effects
            ),
        )
        for study, amount in studies().items()
        for spread in STATED
    ]
    if visits:
        source = resampled(visits)
        recorded_rates = simulate(source, n_passes=n_passes, effects=effects, declared=declared_in(visits))
        rates.append(("reference", "recorded", recorded_rates))
    return [{"study": study, "spread": spread, **asdict(each)} for study, spread, each in rates]


def main(
    run: Annotated[Path, typer.Argument(help="folder of a run whose recorded visits are redrawn")],
    live: Annotated[Path, typer.Option(help="folder of the run that `make judge` wrote")] = Path(
        "results/statistics"
    ),
    passes: Annotated[int, typer.Option(help="simulated passes for each planted difference")] = 80,
    effect: Annotated[list[float] | None, typer.Option(help="planted difference, a share; repeat")] = None,
) -> None:
    """Print how often comparisons and the gate are wrong, as JSON."""
    from benchmarks.statistics_live import outcomes_of, summary

    visits = recorded(run)
    noise = one_in_flight(visits)
    heads: Draw = changes(noise) if noise else lambda looks, generator: STATED[1].draw(4 * looks, generator)
    measured = {
        "comparisons": sum(map(len, visits.values())),
        "rates": rates_of(visits, passes, effect or EFFECTS),
        "gate": {
            "heads": N_SIMULATED,
            "noise": len(noise),
            "failed": {share: rules(heads, share) for share in PLANTED},
        },
        "live": summary(outcomes_of(live)),
        "sizes": {
            study: f"{study}: {n_primary(study)} comparisons, {amount.visits} visits"
            for study, amount in studies().items()
        },
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    typer.run(main)
