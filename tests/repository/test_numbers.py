"""Numbers that name one thing are one number: in README, documents, notebooks' prose, answers, pages and `--help`.

Each has one source, a record or the code; what another place says of it is compared with that. A planted change of any of
them is found, with the place, what it says and what the source has.
"""

import json
import re
from collections.abc import Iterator

from repository.test_docs import DOCUMENTS, prose_of
from support.paths import ROOT

from photodup.bench.link.emulate import PRESETS
from photodup.embedding.imaging import IMAGE_SIZE
from photodup.photos.library.settings import DEFAULT_RULES
from photodup.serving.service.settings import ServiceSettings
from photodup.study.notebook.files import notebooks

US_EAST = PRESETS["us-east"]
REFERENCE = ROOT / "results/reference-cpu"


def result_of(run: str, name: str) -> dict:
    (path,) = (ROOT / "results" / run / "records").glob(f"{name}*.json")
    return json.loads(path.read_text(encoding="utf-8"))["result"]


def answer_of(number: str, pattern: str) -> str:
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    return re.search(pattern, prose_of(path))[1]


def facts() -> dict[str, str]:
    """The pattern of a sentence, its groups being the numbers -> those numbers by their source."""
    last, first = (result_of(run, "copies-drawn") for run in ("drawn-again", "drawn"))
    fp32_bytes = 3 * IMAGE_SIZE**2 * 4
    finders = {program: (row["n_harmless"], row["n_wrong"]) for program, row in last["beside"].items()}
    finders["photodup"] = last["n_harmless_suggested"], last["n_wrong"]
    waits = {
        row["name"]: row["value"]
        for row in json.loads((ROOT / "results/waits/bench.json").read_text(encoding="utf-8"))["rows"]
    }
    return {
        r"take \[([\d.]+ seconds) of a core": f"{waits['1,000 of them, to the last group'] / 1000:.2f} seconds",
        **{
            rf"\| {program}[^|]* \| (\d+ \| \d+) \|": " | ".join(map(str, counts))
            for program, counts in finders.items()
        },
        r"(\d+ of \d+) suggestions (?:is|are|was|were) wrong": f"{last['n_wrong']} of {last['n_suggested']}",
        r"(?:in the draw before,?|an earlier draw:) (\d+ of \d+)": f"{first['n_wrong']} of {first['n_suggested']}",
        r"\b(6\d\d) KB": f"{fp32_bytes / 1000:.0f}",
        r"\b(60\d[, ]?\d{3}) bytes": f"{fp32_bytes:,}",
        r"\b(15[0-2]) KB": f"{fp32_bytes / 4000:.0f}",
        r"`us-east` has (\d+ ms and \d+ Mbit/s)": f"{US_EAST.rtt_ms:g} ms and {US_EAST.rate_mbit_s:g} Mbit/s",
        r"waits up to (\d+ ms) \(`BATCH_DELAY_MS`\)": f"{ServiceSettings.model_fields['batch_delay_ms'].default:g} ms",
        r"([\d.]+) ?% of the\s+simulated families": answer_of("14", r"planted, ([\d.]+) ?% of families"),
    }


def texts() -> Iterator[tuple[str, str]]:
    """Each place that a reader sees, and its text."""
    for path in (*DOCUMENTS, ROOT / "CHANGELOG.md", *notebooks(), *(ROOT / "tools").glob("*/README.md")):
        yield str(path.relative_to(ROOT)), prose_of(path)
    yield "index.html", re.sub(r"<[^>]+>", "", (REFERENCE / "index.html").read_text(encoding="utf-8"))
    for path in (ROOT / "lib/photodup/cli").glob("*.py"):
        yield f"--help of {path.name}", path.read_text(encoding="utf-8")


def plain(number: str) -> str:
    return re.sub(r"[,\s]", "", number)


def differing(places: list[tuple[str, str]]) -> list[str]:
    """A line for each number that is not its source's."""
    return [
        f"{name}: {number!r}, its source has {expected!r}"
        for pattern, expected in facts().items()
        for name, text in places
        for number in re.findall(pattern, text)
        if plain(number) != plain(expected)
    ]


def test_numbers_of_one_thing_are_one_number():
    assert not differing(list(texts()))


def test_the_documented_order_of_the_keep_rules_is_the_default():
    text = (ROOT / "docs/photos.md").read_text(encoding="utf-8").partition("Its default is ")[2]
    assert re.findall(r"`(\w+)`\s\(", text.partition("If none reproduces")[0]) == list(DEFAULT_RULES)


def test_each_number_is_said_somewhere_and_a_changed_one_is_found():
    places = list(texts())
    for pattern in facts():
        name, text = next((name, text) for name, text in places if re.search(pattern, text))
        match = re.search(pattern, text)
        other = re.sub(r"(\d)(\D*)$", lambda last: f"{(int(last[1]) + 1) % 10}{last[2]}", match[1])
        (line,) = differing([(name, text[: match.start(1)] + other + text[match.end(1) :])])
        assert line.startswith(name) and repr(other) in line
