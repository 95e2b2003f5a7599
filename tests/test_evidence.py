"""When a verdict counts: constructed records on both sides of every threshold."""

import dataclasses
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_reproduce import call
from toy.tables import TABLES, run_of

from shared.command import verify
from shared.experiment.arithmetic import OTHER_PATHS, path_of
from shared.experiment.records import (
    REPEATED,
    Record,
    content_hash,
    read_record,
    read_repeats,
    record_line,
)
from shared.experiment.tables import Claim, Power, Row, Seeds, Table, Tier, Value, canonical
from shared.report.console import terminal
from shared.report.evidence import (
    NO_POWER,
    OTHER_DATA,
    WITHIN_ARITHMETIC,
    ArithmeticSpread,
    Floor,
    Weighed,
    pooled,
    power_sentence,
    weigh,
)
from shared.report.files import csv_text, latex, markdown, write
from shared.report.measuring import Judged, Measured, measure
from shared.report.page import site
from shared.report.statistics import Verdict, judge
from shared.report.wording import badge, evidence_of, headline, legend_of

ROOT = Path(__file__).resolve().parents[1]
CLAIM = Claim("better is better", "better", "plain", ("left",), 1.0, second="norm")
POWER = Power(2.0, 1.0, ("left",), "Printed.")
PLAIN, BETTER = {0: 1.0, 1: 2.0, 2: 3.0}, {0: 2.9, 1: 4.0, 2: 5.1}  # gain 2 ± 0.1
NEITHER = {0: 0.0, 1: 2.0, 2: 4.0}  # gain 0 ± 1 over PLAIN


def table(**changes: Any) -> Table:
    rows = (
        Row("guess", {"batch_size": 8}, seeds=(0,), floor=True),
        Row("noise", {"batch_size": 16}, floor=True),
        *TABLES["toy"][0].rows,
    )
    given: dict[str, Any] = {"rows": rows, "claims": (CLAIM,), "powers": (POWER,)}
    given |= {"also": ("norm",)}
    return dataclasses.replace(TABLES["toy"][0], **(given | changes))


def records(
    of: Table,
    row: str,
    values: dict[int, float],
    norms: dict[int, float] | None = None,
    *,
    column: str = "left",
    tier: Tier = "paper",
    path: str = "AVX512",
) -> list[Record]:
    norms = values if norms is None else norms
    found = []
    for cell in of.cells(tier, row=row, column=column, seeds=list(values)):
        metrics = {"accuracy": values[cell.seed]}
        metrics |= {"norm": norms[cell.seed]} if cell.seed in norms else {}
        environment = {
            "commit": "c0ffee" * 6 + "beef",
            "dirty": False,
            "command": "",
            "started": "2026-01-02T03:04:05+00:00",
            "hardware": {},
            "versions": {},
            "data": {"left": "ab"},
            "arithmetic": {"cpu_capability": path, "variables": {"A": path}},
        }
        result = {"metrics": metrics, "protocol": "toy-v1", "tier": tier}
        result |= {"seconds": 1.0, "peak_memory_bytes": 1}
        config = canonical(cell.config)
        sha256 = content_hash(config, environment, result)
        found.append(Record(cell.address, config, environment, result, sha256))
    return found


def judged(of: Table, *some: list[Record], tier: Tier = "paper", **options: Any) -> Judged:
    measured = measure(of, tier, [record for each in some for record in each], {}, **options)
    assert isinstance(measured, Measured)
    return measured.verdicts[0]


def test_a_verdict_with_everything_in_its_favour_counts() -> None:
    found = judged(table(), records(table(), "plain", PLAIN), records(table(), "better", BETTER))
    assert (found.verdict.kind, found.against, found.counts) == ("reproduced", (), True)
    assert badge(found, "paper") == "paper tier: reproduced"
    assert found.remarks == (
        "The second read-out, norm, agrees in sign: gain +2.00.",
        # Three seeds at a spread of 1, and at the measured one of 0.1.
        "Power for the declared gain of 2: declared 0.47 (3 seeds, spread 1.00), reached 1.00 "
        "(3 seeds, spread 0.10).",
    )


@pytest.mark.parametrize(("floor", "kind"), [(1.99, "reproduced"), (2.01, "no evidence")])
def test_a_trained_row_below_a_floor_is_no_evidence(floor: float, kind: str) -> None:
    """The base row's mean is 2; of two floors the higher one counts."""
    of = table()
    rows = records(of, "plain", PLAIN), records(of, "better", BETTER)
    low = records(of, "guess", {0: 1.5})
    high = records(of, "noise", {0: floor - 0.5, 1: floor + 0.5})
    found = judged(of, *rows, low, high)
    assert (found.verdict.kind, found.counts) == (kind, kind == "reproduced")
    said = f"Below the floor 'noise' ({floor:.2f}): plain (2.00)."
    assert (said in found.remarks) == (kind == "no evidence")
    # In another column a floor says nothing of this one.
    elsewhere = records(of, "noise", {0: 9.0}, column="right")
    assert judged(of, *rows, elsewhere).verdict.kind == "reproduced"
    # A floor that is not measured is named.
    assert any("Highest floor. None is measured" in line for line in lines(of, *rows))
    assert f"{floor:.2f} (noise; below it:" in " ".join(lines(of, *rows, low, high))


def lines(of: Table, *some: list[Record], **options: Any) -> list[str]:
    return evidence_of(measure(of, "paper", [each for one in some for each in one], {}, **options))


def test_both_rows_below_a_floor_are_named_and_floors_are_not_trained() -> None:
    of = table()
    rows = records(of, "plain", PLAIN), records(of, "better", BETTER)
    found = judged(of, *rows, records(of, "noise", {0: 7.0}))
    assert found.remarks[1] == "Below the floor 'noise' (7.00): better (4.00) and plain (2.00)."
    assert badge(found, "paper") == "paper tier: no evidence"
    # A claim that compares with a floor row is not void because another floor is higher.
    of = table(claims=(dataclasses.replace(CLAIM, than="guess"),))
    some = records(of, "better", BETTER), records(of, "guess", {0: 0.0})
    found = judged(of, *some, records(of, "noise", {0: 3.9}))
    assert found.verdict.kind == "inconclusive"  # one common seed
    found = judged(of, *some, records(of, "noise", {0: 4.1}))
    assert found.verdict.kind == "no evidence"


@pytest.mark.parametrize(
    ("norms", "kind", "sign"),
    [
        ({0: 1.1, 1: 2.1, 2: 3.1}, "reproduced", "agrees in sign: gain +0.10."),
        ({0: 0.9, 1: 1.9, 2: 2.9}, "inconclusive", "disagrees in sign: gain -0.10."),
        (PLAIN, "inconclusive", "disagrees in sign: gain +0.00."),
        ({}, "inconclusive", "is not measured."),
        ({2: 3.5}, "reproduced", "agrees in sign: gain +0.50."),  # of the seeds that have it
    ],
)
def test_a_second_read_out_has_to_agree_in_sign(
    norms: dict[int, float], kind: str, sign: str
) -> None:
    of = table()
    found = judged(of, records(of, "plain", PLAIN), records(of, "better", BETTER, norms))
    assert (found.verdict.kind, found.counts) == (kind, kind == "reproduced")
    assert found.remarks[0].endswith(sign)
    without = table(claims=(dataclasses.replace(CLAIM, second=""),))
    assert judged(of, records(of, "plain", PLAIN), records(of, "better", BETTER, norms)).remarks
    assert (
        judged(
            without, records(of, "plain", PLAIN), records(of, "better", BETTER, norms)
        ).verdict.kind
        == "reproduced"
    )


def test_a_negative_gain_needs_the_second_read_out_as_well() -> None:
    of = table()
    worse = {seed: value - 3 for seed, value in BETTER.items()}
    plain = records(of, "plain", PLAIN)
    assert judged(of, plain, records(of, "better", worse)).verdict.kind == "not reproduced"
    found = judged(of, plain, records(of, "better", worse, BETTER))
    assert found.verdict.kind == "inconclusive"
    # What is open stays open, whatever the second says.
    found = judged(of, plain, records(of, "better", NEITHER, BETTER))
    assert found.verdict.kind == "inconclusive"


def test_a_claim_may_be_judged_by_another_metric_and_in_one_tier_alone() -> None:
    claims = (
        dataclasses.replace(CLAIM, metric="norm", second="accuracy", tiers=("short",)),
        dataclasses.replace(CLAIM, second="", tiers=("paper",)),
    )
    of = table(claims=claims, seeds={"paper": (0, 1, 2), "short": (0, 1, 2), "smoke": (0,)})
    worse = {seed: value - 2 for seed, value in PLAIN.items()}
    found = measure(
        of,
        "short",
        [
            *records(of, "plain", PLAIN, PLAIN, tier="short"),
            *records(of, "better", worse, BETTER, tier="short"),
        ],
        {},
    ).verdicts
    (short,) = found
    assert short.claim is claims[0]
    assert short.verdict.gain == pytest.approx(2.0)
    assert short.verdict.kind == "undecided"
    assert badge(short, "short") == "short tier, at this budget: undecided"
    (paper,) = measure(of, "paper", records(of, "plain", PLAIN), {}).verdicts
    assert paper.claim is claims[1]


def test_without_declared_power_nothing_counts() -> None:
    of = table(powers=())
    rows = records(of, "plain", PLAIN), records(of, "better", BETTER)
    found = judged(of, *rows)
    assert (found.verdict.kind, found.against, found.counts) == ("reproduced", (NO_POWER,), False)
    assert badge(found, "paper") == "paper tier: reproduced, does not count"
    assert found.remarks[-1] == "Does not count: no power was declared."
    assert "Power. Nothing was declared for any column; no verdict counts there." in lines(
        of, *rows
    )
    # Of another tier, or another column, is not declared either.
    for power in (
        dataclasses.replace(POWER, tier="short"),
        dataclasses.replace(POWER, columns=("right",)),
    ):
        assert judged(table(powers=(power,)), *rows).against == (NO_POWER,)
    # What is open does not count anyway.
    vague = judged(of, rows[0], records(of, "better", NEITHER))
    assert (vague.verdict.kind, vague.against, vague.counts) == ("inconclusive", (), False)


def test_declared_power_says_whether_the_declared_seeds_suffice() -> None:
    few = power_sentence(POWER, 3)
    assert few.startswith(
        "left: to see a gain of 2 at a spread of 1 with 80% power takes 5 seeds; "
    )
    assert few.endswith("only 3 are declared. Printed.")
    assert "; 5 are declared. Printed." in power_sentence(POWER, 5)
    # The claim rests on the seeds that both rows have.
    of = table(fewer=(Seeds((0, 1), ("left",), ("plain",)),))
    assert "only 2 are declared" in lines(of, records(of, "plain", {0: 1.0}))[0]


@pytest.mark.parametrize(("step", "counts"), [(2.7, True), (2.9, False)])
def test_a_gain_within_the_arithmetic_spread_does_not_count(step: float, counts: bool) -> None:
    """The gain is 2; one seed under two paths that lie ``step`` apart deviates by step / sqrt 2."""
    of = table()
    rows = records(of, "plain", PLAIN), records(of, "better", BETTER)
    repeat = records(of, "plain", {1: 2.0 + step}, path="AVX2")
    found = judged(of, *rows, repeats=repeat)
    assert (found.verdict.kind, found.counts) == ("reproduced", counts)
    assert found.against == (() if counts else (WITHIN_ARITHMETIC,))
    said = f"The gain does not exceed the arithmetic spread of {step / math.sqrt(2):.2f}: so far "
    assert any(each.startswith(said) for each in found.remarks) is not counts
    shown = " ".join(lines(of, *rows, repeats=repeat))
    assert f"left {step / math.sqrt(2):.2f}, beside 1.00 over seeds (1 cells, 2 runs)" in shown


@pytest.mark.parametrize(("tier", "denied"), [("paper", 3.0), ("short", 2.0)])
def test_a_no_counts_where_the_spread_does_not_reach_the_gain_that_it_denies(
    tier: Tier, denied: float
) -> None:
    """The published gain, in a shorter tier the declared one; a gain of nothing is no objection."""
    published = Value(5.0, 0.1), Value(2.0, 0.1)
    same = {seed: value + 0.01 * (-1) ** seed for seed, value in PLAIN.items()}
    verdict = judge(CLAIM, same, PLAIN, *published, tier, POWER)
    assert verdict.kind == {"paper": "not reproduced", "short": "no gain"}[tier]
    assert verdict.gain is not None
    given: dict[str, Any] = {"power": POWER, "seeds": 3, "second": verdict.gain}
    for sd, counts in ((denied - 0.1, True), (denied + 0.1, False)):
        found = weigh(verdict, CLAIM, tier, arithmetic=ArithmeticSpread(sd, 1.0, 1, 2), **given)
        assert found.against == (() if counts else (WITHIN_ARITHMETIC,))
        said = (
            f"The gain of {denied:g} that is denied is no further away than the arithmetic spread"
        )
        assert any(said in each for each in found.remarks) is not counts
    # A loss where nothing is published or declared denies any gain.
    lost = {seed: value - 1 + 0.01 * (-1) ** seed for seed, value in PLAIN.items()}
    verdict = judge(CLAIM, lost, PLAIN, None, None, tier, None)
    given = {"power": None, "second": -1.0}
    for sd, counts in ((0.9, True), (1.1, False)):
        found = weigh(verdict, CLAIM, tier, arithmetic=ArithmeticSpread(sd, 1.0, 1, 2), **given)
        assert (WITHIN_ARITHMETIC in found.against) is not counts


def test_rows_on_different_data_are_compared_but_do_not_count() -> None:
    of = table()
    plain, better = records(of, "plain", PLAIN), records(of, "better", BETTER)

    def on(data: dict[str, str]) -> Judged:
        """With other data of one of the better row's seeds."""
        first, *rest = better
        other = dataclasses.replace(first, environment=first.environment | {"data": data})
        return judged(of, plain, [other, *rest])

    found = on({"left": "cd", "expert": "ab"})
    assert (found.verdict.kind, found.against) == ("reproduced", (OTHER_DATA,))
    assert "Its rows were measured on different data: left." in found.remarks
    # What one row alone has read makes no difference.
    assert on({"left": "ab", "expert": "ab"}).counts
    assert on({}).counts


def test_which_repeats_count() -> None:
    of = table()
    rows = records(of, "plain", PLAIN), records(of, "better", BETTER)
    same = records(of, "plain", {0: 5.0})  # on the path of the record
    stale = [dataclasses.replace(same[0], config=same[0].config | {"offset": 9.0})]
    (other_data,) = records(of, "plain", {0: 5.0}, path="AVX2")
    other_data = dataclasses.replace(
        other_data, environment=other_data.environment | {"data": {"left": "cd"}}
    )
    unknown = records(of, "plain", {0: 5.0}, path="AVX2")
    del unknown[0].environment["arithmetic"]
    without_record = records(of, "plain", {7: 5.0}, path="AVX2")
    for some in (same, stale, [other_data], unknown, without_record):
        measured = measure(of, "paper", [*rows[0], *rows[1]], {}, repeats=some)
        assert measured.repeats == ()
        assert "Arithmetic spread. Not measured for any column." in evidence_of(measured)
    # Two paths of one seed, one of another; the path of the first given twice.
    some = [
        *records(of, "plain", {0: 4.0, 1: 2.0}, path="AVX2"),
        *records(of, "plain", {0: 1.0}, path="plain"),
        *records(of, "plain", {0: 4.0}, path="AVX2"),
    ]
    measured = measure(of, "paper", [*rows[0], *rows[1]], {}, repeats=some)
    assert [path_of(r.environment) for r in measured.repeats] == [
        path_of(r.environment) for r in (some[0], some[2], some[1])
    ]
    # Seed 0: 1, 4, 1 (squares 6, 2 degrees); seed 1: 2, 2 (0, 1): sqrt(6 / 3).
    assert f"left {math.sqrt(2):.2f}, beside 1.00 over seeds (2 cells, 5 runs)" in " ".join(
        evidence_of(measured)
    )


def test_a_path_is_what_was_taken_not_how_it_was_asked_for() -> None:
    one, other = (
        {"arithmetic": {"blas": "AVX2", "variables": {"MKL_CBWR": asked}}} for asked in ("", "AVX2")
    )
    assert path_of(one) == path_of(other) != path_of({"arithmetic": {"blas": "AVX512"}})
    assert path_of({}) is None


def test_deviations_are_pooled_by_degrees_of_freedom() -> None:
    assert pooled([[1.0, 3.0], [2.0], [0.0, 0.0, 3.0]]) == pytest.approx(math.sqrt((2 + 6) / 3))
    assert pooled([[1.0], []]) is None
    assert pooled([]) is None


def weighed(tier: Tier, **options: Any) -> Weighed:
    verdict = judge(CLAIM, BETTER, PLAIN, None, None, tier, POWER)
    given: dict[str, Any] = {"power": POWER, "seeds": 3, "second": 1.0}
    return weigh(verdict, CLAIM, tier, **(given | options))


def test_the_words_of_the_tiers() -> None:
    """Only the paper tier reproduces a paper or leaves it inconclusive; a short one has its own."""
    assert weighed("short").verdict.kind == "gain"
    assert weighed("short", second=-1.0).verdict.kind == "undecided"
    assert weighed("paper", second=-1.0).verdict.kind == "inconclusive"
    for tier in ("paper", "short"):
        floored = weighed(tier, floor=Floor("guess", 3.0), trained=[("plain", 2.0)])
        assert floored.verdict.kind == "no evidence"
        exact = weighed(tier, floor=Floor("guess", 2.0), trained=[("plain", 2.0)])
        assert exact.verdict.kind in ("gain", "same direction")
    spread = ArithmeticSpread(9.0, 1.0, 1, 2)
    assert weighed("short", arithmetic=spread).against == (WITHIN_ARITHMETIC,)
    idle = Verdict("not run", "")
    assert weigh(idle, CLAIM, "short", floor=Floor("guess", 3.0)) == Weighed(idle, (), ())
    said = Judged(CLAIM, "left", weighed("short").verdict, (0, 1, 2))
    assert badge(said, "short") == "short tier, at this budget: gain"
    assert badge(dataclasses.replace(said, verdict=idle), "short") == "short tier: not run"


def test_every_form_of_the_report_says_it() -> None:
    of = table(fewer=(Seeds((), ("right",), ("better",)), Seeds((0, 1), ("right",), ("noise",))))
    rows = [
        *records(of, "plain", PLAIN),
        *records(of, "better", BETTER),
        *records(of, "guess", {0: 2.5}),
        *records(of, "noise", {0: 2.0, 1: 2.2}, column="right"),
    ]
    measured = measure(of, "paper", rows, {})
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(terminal(measured))
    pages = "".join(site([measured]).values())
    texts = [markdown(measured), pages, " ".join(capture.get().split()), latex(measured)]
    for text in texts:
        assert "paper tier: no evidence" in text
        assert "Highest floor. left 2.50 (guess; below it: plain)" in text
        # Of the row with fewer than the tier.
        assert "2 seeds" in text or "$^{2/2}$" in text
    # A row without a part in a column has neither a number nor a reason nor a printed number.
    assert "| better | **measured here** | 4.00 ± 1.10 |  |" in texts[0]
    assert "| *3.00* |  |" in texts[0]
    assert not any("better" in line for line in legend_of(measured))
    line = next(each for each in csv_text(measured).splitlines() if ",better,no,right," in each)
    assert ",0,0," in line
    assert "2.10$\\pm$0.14$^{2/2}$" in latex(measured)
    assert "seeds 0-2 (fewer where a cell says so);" in headline(measured)


def test_repeats_are_kept_beside_the_records_and_checked(tmp_path: Path) -> None:
    of = table()
    rows = [*records(of, "plain", PLAIN), *records(of, "better", BETTER)]
    repeats = records(of, "plain", {0: 1.5, 1: 2.0}, path="AVX2")
    write(tmp_path, measure(of, "paper", rows, {}, repeats=repeats))
    file = tmp_path / f"toy/toy/table-1{REPEATED}"
    assert read_repeats(tmp_path) == repeats
    assert len(measure(of, "paper", rows, {}, repeats=read_repeats(tmp_path)).repeats) == 2

    def faults() -> str:
        checked = verify.check([of], tmp_path, tmp_path / "runs")
        return "\n".join(checked.faults)

    assert faults() == ""
    checked = verify.check([of], tmp_path, tmp_path / "runs")
    assert [(group.name, len(group.records), group.count) for group in checked.groups] == [
        ("toy/toy/table-1", 6, 6),
        ("toy/toy/table-1, repeated", 2, 2),
    ]
    assert len(checked.counted) == 6  # repeats are not what is run anew

    def put(*some: Record) -> None:
        file.write_text("".join(map(record_line, some)))

    put(repeats[0], repeats[0])
    assert faults().endswith(
        "line 2: toy/toy/table-1/plain/left/seed-0 is under no other code path"
    )
    put(rows[0])
    assert "seed-0 is under no other code path" in faults()
    put(*records(of, "noise", {0: 1.0}, path="AVX2"))
    assert "noise/left/seed-0 repeats a cell without a record" in faults()
    stale = repeats[0].config | {"offset": 9.0}
    put(dataclasses.replace(repeats[0], config=stale, sha256=None))
    assert "does not count: stale" in faults()
    dirty = repeats[0].environment | {"dirty": True}
    put(dataclasses.replace(repeats[0], environment=dirty, sha256=None))
    assert "was not measured at a clean commit" in faults()
    content = json.loads(record_line(repeats[0]))
    content["result"]["metrics"]["accuracy"] = 1.6
    file.write_text(json.dumps(content) + "\n")
    assert "was altered" in faults()


@pytest.mark.slow
def test_cells_are_repeated_under_other_paths_and_reported(
    tmp_path: Path, at_once: Callable[..., tuple[str, str]]
) -> None:
    chosen = ("toy", "toy", "--row", "plain", "--column", "left", "--seeds", "0")
    at_once(*chosen)
    # Every path is the command line anew: in this process it would be pytest's.
    said, _ = call(tmp_path, "arithmetic", *chosen)
    assert [line.split(":")[0] for line in said.splitlines() if line.startswith("code path")] == [
        f"code path {name}" for name in OTHER_PATHS
    ]
    address = "toy/toy/table-1/plain/left/seed-0"
    for name, variables in OTHER_PATHS.items():
        record = read_record(run_of(tmp_path / f"runs/arithmetic/{name}", address), address)
        assert record is not None
        steered = record.environment["arithmetic"]["variables"]
        assert variables.items() <= steered.items()
    for name in OTHER_PATHS:  # each of them is skipped as any run is
        said, _ = at_once(*chosen, "--runs", f"runs/arithmetic/{name}")
        assert "1 cells are done already" in said
    # The repeats are nobody's cells, and not among the runs that are checked as such.
    assert "of no cell as it is declared" not in "".join(at_once("verify", "toy"))
    at_once("report")
    counted = read_repeats(tmp_path / "results")
    assert {path_of(r.environment) for r in counted} == {
        path
        for name in OTHER_PATHS
        if (r := read_record(run_of(tmp_path / f"runs/arithmetic/{name}", address), address))
        if (path := path_of(r.environment))
        != path_of(read_record(run_of(tmp_path / "runs", address), address).environment)
    }
    assert counted
    assert "Arithmetic spread, the same seed under other code paths. left" in (
        tmp_path / "results/toy/toy/table-1.md"
    ).read_text(encoding="utf-8")
    _, err = at_once("arithmetic", "toy", "tory", code=2)
    assert "error: toy has no paper 'tory'" in err
