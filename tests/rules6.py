"""A second program for the rules of version 6: gains, intervals and words from the records.

It shares no code with the suite. From ``results/claims.json`` it takes what a claim says and which
rows and columns are compared; every number and every word is computed again with scipy from
``results/**/*.records.jsonl``. Run from the root of a checkout, ``python tests/rules6.py`` prints
what differs. A comment names the rule of ``docs/claims.md`` that the code below it computes.
"""

import collections
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

LEVEL, LEVEL_AFTER_A_LOOK, LEAST_SEEDS, MARGIN, LEAST_SHARE = 0.05, 0.033, 3, 0.5, 0.01
Row = dict[str, Any]
Test = Callable[[float], float]


def form_of(form: str, above: Test, below: Test, m: float) -> tuple[float, float]:
    """The p values for "as claimed" and for "contrary": rules 3 and 4."""
    if form in ("superiority", "size"):
        return above(0), below(0)
    if form == "comparable":
        return above(-m), below(-m)
    if form == "no gain":
        return below(m), above(m)
    assert form == "null"
    return max(above(-m), below(m)), min(above(m), below(-m))


class Estimate:
    """Rule 2: the gain of the mean over columns, from (values of method, of baseline) of each."""

    def __init__(self, cells: Sequence[tuple[Sequence[float], Sequence[float]]]) -> None:
        self.gain = float(np.mean([np.mean(method) - np.mean(other) for method, other in cells]))
        self.error, self.freedom, self.low, self.high = 0.0, 0.0, math.nan, math.nan
        rows = [row for cell in cells for row in cell]
        if min(map(len, rows)) > 1:
            parts = [
                (np.var(row, ddof=1) / len(row) / len(cells) ** 2, len(row) - 1) for row in rows
            ]
            variance = float(sum(v for v, _ in parts))
            if variance > 1e-24:
                self.error = math.sqrt(variance)
                self.freedom = variance**2 / float(sum(v**2 / f for v, f in parts))
                ends = stats.t.interval(1 - LEVEL, self.freedom, self.gain, self.error)
                self.low, self.high = map(float, ends)

    def above(self, bound: float) -> float:
        """Twice the one-sided p value of a gain above a bound."""
        return min(1.0, 2 * float(stats.t.sf((self.gain - bound) / self.error, self.freedom)))

    def below(self, bound: float) -> float:
        """The same below it."""
        return min(1.0, 2 * float(stats.t.cdf((self.gain - bound) / self.error, self.freedom)))


def mann_whitney(method: Sequence[float], baseline: Sequence[float]) -> tuple[float, bool]:
    """Rule 8: the two-sided p value by enumeration, and whether the method ranks higher."""
    ranks, n = stats.rankdata([*method, *baseline]), len(method)
    expected = n * (len(ranks) + 1) / 2
    sums = np.array([sum(chosen) for chosen in itertools.combinations(ranks, n)])
    seen = sum(ranks[:n])
    return float(np.mean(np.abs(sums - expected) >= abs(seen - expected) - 1e-9)), seen > expected


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for their number."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, p_values[i] * (len(p_values) - rank))
        adjusted[i] = min(1.0, largest)
    return adjusted


def slug(text: str) -> str:
    """A label in an address."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class Records:
    """Every measured number, and the shares of the gradient over whole runs."""

    def __init__(self, results: Path) -> None:
        self._by_cell: dict[Any, dict[str, Any]] = collections.defaultdict(dict)
        for file in sorted(results.rglob("*.records.jsonl")):
            for record in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
                *table, row, column, seed = record["address"].removeprefix("short/").split("/")
                place = "/".join(table), record["result"]["tier"], row, column
                self._by_cell[place][seed] = record
        shares = json.loads((results / "shares.json").read_text(encoding="utf-8"))["shares"]
        self._shares = {
            (each["table"], each["tier"], *map(slug, (each["row"], each["column"]))): max(
                each["terms"].values()
            )
            for each in shares
        }

    @staticmethod
    def place(row: Row, label: str, column: str) -> tuple[str, str, str, str]:
        """Where a cell is: one run of text holds all columns, one of video those of its kind."""
        name = column.split()[0] if row["table"].startswith("video/") else column
        name = "six-tasks" if row["table"].startswith("text/") else slug(name)
        return row["table"], row["tier"], slug(label), name

    def values(self, row: Row, label: str, column: str, metric: str) -> dict[str, float]:
        """The finite numbers of a cell by seed."""
        cells = self._by_cell.get(self.place(row, label, column), {})
        found = {seed: record["result"]["metrics"].get(metric) for seed, record in cells.items()}
        return {
            seed: float(value)
            for seed, value in sorted(found.items())
            if isinstance(value, int | float) and math.isfinite(value)
        }

    def share(self, row: Row, column: str) -> float | None:
        """Rule 7: of the method's largest term, the median over seeds."""
        place = self.place(row, row["method"], column)
        found = []
        for record in self._by_cell[place].values():
            loss = (record["config"].get("objective") or {}).get("loss", {}).get("function", "")
            terms = [
                float(value)
                for name, value in record["environment"].get("facts", {}).items()
                if name.startswith("gradient_share_")
                and name != f"gradient_share_{loss.partition('@')[0]}"
            ]
            found += [max(terms)] if terms else []
        return float(np.median(found)) if found else self._shares.get(place)


class Comparison:
    """A line of the frame with its columns, computed again."""

    def __init__(self, row: Row, columns: Sequence[Row], claim: Row, records: Records) -> None:
        self.row, self.claim, self.columns = row, claim, columns
        cells = {
            each["column"]: [
                records.values(row, row[label], each["column"], each["metric"])
                for label in ("method", "baseline")
            ]
            for each in columns
        }
        # Rules 1 and 2: a column with fewer seeds stands below and is not in the mean.
        enough = {name: cell for name, cell in cells.items() if min(map(len, cell)) >= LEAST_SEEDS}
        self.in_mean = enough or cells
        lists: list[Any] = [
            tuple(list(each.values()) for each in cell) for cell in self.in_mean.values()
        ]
        if row["table"].startswith("text/") and len(lists) > 1:
            lists = [tuple(np.mean([cell[i] for cell in lists], axis=0) for i in (0, 1))]
        self.estimate = Estimate(lists)
        self.of_column = {
            name: Estimate([(list(cell[0].values()), list(cell[1].values()))])
            for name, cell in cells.items()
        }
        self.seeds = [min(len(cell[i]) for cell in self.in_mean.values()) for i in (0, 1)]
        # Rule 4: the margin.
        images = row["table"].startswith("vision/")
        graphs = row["table"].startswith("graph/") and len(self.in_mean) > 1
        self.margin = claim["margin"] or (MARGIN if images or graphs else 0.0)
        if claim["form"] in ("superiority", "size"):
            self.margin = 0.0
        # Rule 8, else rule 2: the test.
        failed = [tuple(map(int, text.split(" of "))) if text else (0, 0) for text in row["failed"]]
        self.tests: tuple[float, float] | None = None
        self.ranked = any(k >= 3 and 4 * k >= n for k, n in failed)
        if self.ranked:
            p, higher = mann_whitney(*([*lists[0][i], *[-math.inf] * failed[i][0]] for i in (0, 1)))
            self.tests = (p, 1.0) if higher else (1.0, p)
        elif enough and self.estimate.error:
            tests = self.estimate.above, self.estimate.below
            self.tests = form_of(claim["form"], *tests, self.margin)
        self.p = min(self.tests) if self.tests else None
        self.for_claim, self.against = 1.0, 1.0  # p values after Holm
        # Rules 1 and 3: the columns of the mean, after Holm over them.
        tested = [e for name, e in self.of_column.items() if name in self.in_mean and e.error]
        adjusted = holm([min(e.above(0), e.below(0)) for e in tested])
        signs = [np.sign(e.gain) * (p < LEVEL) for e, p in zip(tested, adjusted, strict=True)]
        self.above, self.below = signs.count(1), signs.count(-1)
        worse = [e.high < -self.margin for e in tested]
        self.loses_a_column = claim["form"] == "comparable" and any(worse)
        shares = [records.share(row, name) for name in self.in_mean]
        self.share = max((share for share in shares if share is not None), default=None)

    @property
    def word(self) -> str:
        """Rule 3."""
        row, measured = self.row, len(self.in_mean)
        decided = min(self.for_claim, self.against) < LEVEL and (
            not row["post_hoc"] or (self.p or 0) < LEVEL_AFTER_A_LOOK
        )
        if self.claim["scope"] != "each" or row["beside"]:
            return ""
        word = "undecided"
        if self.p is None:
            word = "undecided (too few seeds)"
        elif row["chosen_here"] and self.share is not None and self.share < LEAST_SHARE:
            word = "not testable"
        elif 2 * measured < row["of"]:
            word = f"undecided ({measured} of {row['of']} columns)"
        elif self.above and self.below:
            word = "depends on the data"
        elif decided and self.against < self.for_claim:
            word = "contrary"
            if measured < self.claim["data_sets"]:
                word = f"undecided ({measured} of {self.claim['data_sets']} data sets)"
        elif decided and not self.loses_a_column:
            word = "as claimed"
        elif self.p < LEVEL:
            word = "undecided (after adjustment)"
        if not self.claim["paper"]:
            word = {"as claimed": "yes", "contrary": "no"}.get(word, word)
        return f"{word}{', untuned' * row['untuned']}"

    def differences(self) -> Iterator[str]:
        """What the frame says otherwise, a line each."""
        row, e = self.row, self.estimate
        ends = (None, None) if math.isnan(e.low) else (e.low, e.high)
        expected = {"gain": e.gain, "low": ends[0], "high": ends[1], "p": self.p}
        expected |= {"share": self.share, "seeds_method": self.seeds[0]}
        for each in self.columns:
            of = self.of_column[each["column"]]
            for name, number in (("gain", of.gain), ("low", None if not of.error else of.low)):
                if not close(each[name], number):
                    yield f"{each['column']}: {name} is {each[name]}, not {number}"
        for name, number in expected.items():
            if not close(row[name], number):
                yield f"{name} is {row[name]}, not {number}"
        if (row["above"], row["below"], row["word"]) != (self.above, self.below, self.word):
            yield f"{row['word']!r} +{row['above']} -{row['below']}, not {self.word!r}"


def close(one: float | None, other: float | None) -> bool:
    """Whether two numbers are equal to nine digits, or both missing."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


def word_of_claim(comparisons: Sequence[Comparison]) -> str:
    """Rule 3: the one word of a claim about every column, or most of them."""
    scope = comparisons[0].claim["scope"]
    tests, columns = [], 0
    for c in comparisons:
        columns += 0 if c.row["beside"] else len(c.in_mean)
        for name in c.in_mean if c.p is not None and not c.row["beside"] else ():
            e = c.of_column[name]
            tests.append(form_of(c.claim["form"], e.above, e.below, c.margin))
    adjusted = holm([min(test) for test in tests])
    pairs = list(zip(tests, adjusted, strict=True))
    claimed = sum((t[0] if scope == "every" else p) < LEVEL and t[0] < t[1] for t, p in pairs)
    contrary = sum(p < LEVEL and t[1] < t[0] for t, p in pairs)
    more_than_half = columns // 2 + 1
    word = "undecided"
    if claimed >= (columns if scope == "every" else more_than_half):
        word = "as claimed"
    elif contrary >= (1 if scope == "every" else more_than_half):
        word = "contrary"
    return f"{word} (+{claimed} -{contrary} of {columns})"


def differences(results: Path, file: Path | None = None) -> list[str]:
    """What ``claims.json``, or another file, says otherwise than the records, a line each."""
    data = json.loads((file or results / "claims.json").read_text(encoding="utf-8"))
    records, found = Records(results), []
    rows: list[Row] = data["comparisons"]
    starts = [i for i, row in enumerate(rows) if not row["column"]] + [len(rows)]
    for start, end in itertools.pairwise(starts):
        claim = data["claims"][rows[start]["claim"]]
        found.append(Comparison(rows[start], rows[start + 1 : end], claim, records))
    families: dict[Any, list[Comparison]] = collections.defaultdict(list)
    for c in found:
        families[c.row["claim"], c.row["scale"]].append(c)
    lines: list[str] = []
    for (name, _), family in families.items():
        tested = [c for c in family if c.p is not None and not c.row["beside"]]
        for c, p in zip(tested, holm([c.p or 0.0 for c in tested]), strict=True):
            assert c.tests is not None
            for_claim = c.tests[0] <= c.tests[1]
            c.for_claim, c.against = (p, 1.0) if for_claim else (1.0, p)
        for c in family:
            rows_of = f"{name}: {c.row['method']} over {c.row['baseline']}"
            lines += [f"{rows_of}: {text}" for text in c.differences()]
        if family[0].claim["scope"] != "each" and data["claims"][name]["word"] != word_of_claim(
            family
        ):
            lines.append(f"{name}: {data['claims'][name]['word']}, not {word_of_claim(family)}")
    return lines


if __name__ == "__main__":
    print("\n".join(differences(Path("results"))) or "no difference")
