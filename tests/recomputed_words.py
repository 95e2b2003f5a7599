"""Every word of ``results/claims.json``, written anew from docs/claims.md with numpy and scipy.

Nothing of ``shared.report`` is used: records and declared tables alone. ``python -m
tests.recomputed_words`` prints the words that differ.
"""

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from shared.command.cells import every_table
from shared.experiment.records import read_records
from shared.experiment.tables import Claim, Table, Tier

ROOT = Path(__file__).resolve().parents[1]
Values = dict[int, float]
QUIET = ("collapsed", "baseline collapsed", "below the bar", "inert", "one seed", "not run")


def metrics_of(table: Table, tier: Tier, records: dict[str, list[Any]]) -> dict[Any, Any]:
    """For each row and column of a table, by seed, metrics, facts, configuration of the record."""
    found: dict[Any, Any] = {}
    for cell in table.cells(tier):
        for record in records.get(cell.address, ()):
            today = record.upgraded(type(table.config))
            if today.config == cell.content and today.result["protocol"] == table.protocol:
                facts = today.environment.get("facts", {})
                at = found.setdefault((cell.row, cell.column), {})
                at[cell.seed] = (today.result["metrics"], facts, today.config)
    return found


class Column:
    """The values of one metric in one column, with what is known of its rows."""

    def __init__(self, table: Table, column: str, metric: str, found: dict[Any, Any]) -> None:
        self.rows = {row.label: row for row in table.rows}
        self.blocked = table.blocked
        self.values: dict[str, Values] = {}
        self.facts: dict[str, list[dict[str, str]]] = {}
        self.trains: dict[str, bool] = {}
        for (row, at), by_seed in found.items():
            if at == column:
                numbers = {s: float(m[metric]) for s, (m, *_) in by_seed.items() if metric in m}
                if numbers:
                    self.values[row] = numbers
                    self.facts[row] = [facts for _, facts, _ in by_seed.values()]
                    configs = [config for *_, config in by_seed.values()]
                    self.trains[row] = all(config.get("train", True) for config in configs)
        (declared,) = (each for each in table.columns if each.label == column)
        self.classes = declared.classes

    def mean(self, row: str) -> float:
        return float(np.mean(list(self.values[row].values())))

    def collapsed(self, row: str) -> bool:
        if self.rows[row].baseline:
            return False
        ranks = [float(each.get("effective_rank", "inf")) for each in self.facts[row]]
        largest = [x for x in self.values if self.rows[x].majority and self.classes]
        near = bool(largest) and max(self.values[row].values()) <= self.mean(largest[0]) + 1
        return near or max(ranks) < 2

    def pool(self) -> dict[str, Values]:
        return {
            row: values
            for row, values in self.values.items()
            if not self.rows[row].baseline and self.trains[row]
            if len(values) > 1 and not self.collapsed(row)
        }

    def estimates(self, better: str, than: str) -> list[tuple[float, float, float]]:
        """Gain, standard error and degrees of freedom, for each analysis."""
        a, b = (list(self.values[row].values()) for row in (better, than))
        fixed = [self.rows[r].baseline and len(set(v)) == 1 for r, v in ((better, a), (than, b))]
        gain = float(np.mean(a) - np.mean(b))
        if any(fixed):
            spread = b if fixed[0] else a
            if all(fixed) or len(set(spread)) < 2:
                return []
            return [(gain, scipy.stats.sem(spread), len(spread) - 1)]
        if min(len(set(a)), len(set(b))) < 2:
            return []
        with_baseline = self.rows[better].baseline or self.rows[than].baseline
        pool = self.pool()
        if self.blocked and not with_baseline:
            return self._blocked(better, than, pool)
        test = scipy.stats.ttest_ind(a, b, equal_var=False)
        welch = (gain, math.hypot(scipy.stats.sem(a), scipy.stats.sem(b)), float(test.df))
        if not {better, than} <= set(pool):
            return [welch]
        squares = sum(len(v) * np.var(list(v.values())) for v in pool.values())
        freedom = sum(len(v) - 1 for v in pool.values())
        error = math.sqrt(squares / freedom * (1 / len(a) + 1 / len(b)))
        return [(gain, error, float(freedom)), welch]

    def _blocked(
        self, better: str, than: str, pool: dict[str, Values]
    ) -> list[tuple[float, float, float]]:
        first, second = self.values[better], self.values[than]
        seeds = sorted(first.keys() & second.keys())
        differences = [first[seed] - second[seed] for seed in seeds]
        if len(set(differences)) < 2:
            return []
        n = len(seeds)
        paired = (float(np.mean(differences)), float(scipy.stats.sem(differences)), n - 1.0)
        if not {better, than} <= set(pool):
            return [paired]
        here = {
            row: {s: y for s, y in values.items() if s in seeds} for row, values in pool.items()
        }
        here = {row: values for row, values in here.items() if len(values) > 1}
        rows = list(here)
        y, x = [], []
        for row, values in here.items():
            for seed, value in values.items():
                y.append(value)
                x.append([row == each for each in rows] + [seed == each for each in seeds[1:]])
        design, target = np.array(x, float), np.array(y)
        beta, *_ = np.linalg.lstsq(design, target, rcond=None)
        freedom = len(y) - np.linalg.matrix_rank(design)
        variance = float(((target - design @ beta) ** 2).sum()) / freedom
        contrast = np.zeros(design.shape[1])
        contrast[rows.index(better)], contrast[rows.index(than)] = 1, -1
        error = math.sqrt(variance * contrast @ np.linalg.pinv(design.T @ design) @ contrast)
        return [paired, (float(contrast @ beta), error, float(freedom))]


def bound_of(claim: Claim) -> float:
    """The gain on whose one side the claim is true."""
    margin = claim.margin or 0.0
    return -margin if claim.form == "comparable" else margin if claim.form == "no gain" else 0.0


def p_of(claim: Claim, estimate: tuple[float, float, float]) -> float:
    gain, error, freedom = estimate
    t = scipy.stats.t(freedom)
    if claim.form == "null":
        margin = claim.margin or 0.0
        sides = t.sf((gain + margin) / error), t.cdf((gain - margin) / error)
        return min(1.0, 2 * max(sides))
    return float(2 * t.sf(abs(gain - bound_of(claim)) / error))


def holm(p: list[float]) -> list[float]:
    adjusted, last = dict.fromkeys(range(len(p)), 0.0), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda each: p[each])):
        last = min(1.0, max(last, (len(p) - rank) * p[place]))
        adjusted[place] = last
    return list(adjusted.values())


def inert_rows(
    table: Table, tier: Tier, found: dict[Any, Any], shares: list[dict[str, Any]]
) -> set[str]:
    """Rows whose penalties and projection have less than a hundredth of the gradient."""
    inert = set()
    for row in {label for label, _ in found}:
        numbers = []
        for (label, _), by_seed in found.items():
            for _, facts, _ in by_seed.values() if label == row else ():
                terms = {k: float(v) for k, v in facts.items() if k.startswith("gradient_share_")}
                # Of the loss and the others the loss is the one that a cell's configuration names.
                (config, *_) = (c.config for c in table.cells(tier) if c.row == row)
                loss = config.objective.loss.function.__name__ if terms else ""  # type: ignore[attr-defined]
                terms.pop(f"gradient_share_{loss}", None)
                numbers += [max(terms.values())] if terms else []
        if not numbers:
            numbers = [
                max(each["terms"].values())
                for each in shares
                if (each["table"], each["tier"], each["row"]) == (table.address, tier, row)
            ]
        if numbers and np.median(numbers) < 0.01:
            inert.add(row)
    return inert


def readings() -> Iterator[dict[str, Any]]:
    """All readings, with the word of those that need no family."""
    records: dict[str, list[Any]] = {}
    for record in read_records(ROOT / "results"):
        records.setdefault(record.address, []).append(record)
    file = ROOT / "results" / "shares.json"
    shares = json.loads(file.read_text())["shares"] if file.exists() else []
    for table, tier in itertools.product(every_table(), ("paper", "short")):
        if tier not in table.tiers or not table.claims:
            continue
        found = metrics_of(table, tier, records)
        inert = inert_rows(table, tier, found, shares)
        for claim in table.claims:
            for pair in claim.comparisons:
                for label in pair.columns if tier in pair.tiers else ():
                    declared = next(c for c in table.columns if c.label == label)
                    metric = pair.metric or table.metric_of(declared)
                    column = Column(table, label, metric, found)
                    one = {
                        "claim": claim,
                        "setting": table.setting(tier).word,
                        "at": (table.address, tier, pair.better, pair.than, label, claim.id),
                        "published": published_gain(table, pair.better, pair.than, label, metric),
                    }
                    yield one | judged(column, claim, pair.better, pair.than, inert)


def published_gain(
    table: Table, better: str, than: str, label: str, metric: str
) -> tuple[float, float | None] | None:
    """The published gain and its standard error."""
    (column,) = (each for each in table.columns if each.label == label)
    names = {row.label: row.published or "" for row in table.rows}
    if names[better] == names[than]:  # two readings of one printed row
        return None
    values = [table.published.value(names[row], label) for row in (better, than)]
    if metric != table.metric_of(column) or values[0] is None or values[1] is None:
        return None
    s1, s2 = values[0].std, values[1].std
    n = table.published.runs or 3
    error = None if s1 is None or s2 is None else math.sqrt((s1**2 + s2**2) / n)
    return round(values[0].mean - values[1].mean, 9), error


def judged(column: Column, claim: Claim, better: str, than: str, inert: set[str]) -> dict[str, Any]:
    """The word of a reading, if it has one without the others; else its p value and interval."""
    if better not in column.values or than not in column.values:
        return {"word": "not run"}
    if column.collapsed(than):
        return {"word": "baseline collapsed"}
    if column.collapsed(better):
        return {"word": "collapsed"}
    rows = [column.rows[each] for each in (better, than)]
    bars = [column.mean(x) for x in column.values if column.rows[x].bar]
    level = (column.mean(better) + column.mean(than)) / 2
    if bars and not any(row.baseline for row in rows) and level < max(bars):
        return {"word": "below the bar"}
    if claim.form in ("superiority", "size") and {better, than} & inert:
        return {"word": "inert"}
    counts = [len(column.values[r.label]) for r in rows if not (r.baseline and r.seeds)]
    if min(counts) < 2:
        return {"word": "one seed"}
    estimates = column.estimates(better, than)
    if not estimates:
        return {"word": "open"}
    half = {each: scipy.stats.t.ppf(0.975, each[2]) * each[1] for each in estimates}
    widest = max(estimates, key=lambda each: half[each])
    gain = widest[0]
    return {
        "p": max(p_of(claim, each) for each in estimates),
        "gain": gain,
        "widest": widest,
        "interval": (gain - half[widest], gain + half[widest]),
    }


def with_words(some: list[dict[str, Any]]) -> None:
    """Give every reading of one claim at one setting its word."""
    family = [each for each in some if "p" in each]
    for one, adjusted in zip(family, holm([each["p"] for each in family]), strict=True):
        claim, gain, (low, high) = one["claim"], one["gain"], one["interval"]
        holds = one["p"] if claim.scope == "every" else adjusted
        margin = claim.margin or 0.0
        if claim.form == "null":
            agrees, disagrees = holds < 0.05, low > margin or high < -margin
        else:
            right = (gain > bound_of(claim)) != (claim.form == "no gain")
            agrees, disagrees = right and holds < 0.05, not right and adjusted < 0.05
        one["word"] = "agrees" if agrees else "disagrees" if disagrees else "open"
        if one["setting"] == "paper's":
            size = (claim.size, 0.0) if claim.form == "size" else one["published"]
            excluded = False
            if size is not None and claim.form not in ("null", "no gain"):
                _, error, freedom = one["widest"]
                theirs = error if size[1] is None else size[1]
                t = (gain - size[0]) / math.hypot(error, theirs)
                excluded = 2 * scipy.stats.t.cdf(t, freedom) < 0.05
            one["word"] = "open"
            if agrees:
                one["word"] = "partly" if excluded else "confirmed"
            elif disagrees or excluded:
                one["word"] = "contradicted"


def word_of(some: list[dict[str, Any]]) -> str:
    """The word of a finding."""
    claim: Claim = some[0]["claim"]
    at_paper = some[0]["setting"] == "paper's"
    words = [each["word"] for each in some]
    telling = [word for word in words if word not in QUIET]
    good = sum(word in ("agrees", "confirmed", "partly") for word in telling)
    bad = sum(word in ("disagrees", "contradicted") for word in telling)
    yes, no = ("confirmed", "contradicted") if at_paper else ("agrees", "disagrees")
    if set(words) == {"not run"}:
        return "not run"
    if not telling:
        return "open" if "one seed" in words else "uninformative"
    if claim.scope == "every":
        whole = good == len(words)
        return no if bad else yes if whole else "open"
    if claim.scope == "most":
        return yes if 2 * good > len(words) else no if 2 * bad >= len(words) else "open"
    if good and bad:
        return "mixed"
    if good:
        return yes if good == len(telling) and "partly" not in telling else "partly"
    return no if bad else "open"


def recomputed() -> tuple[dict[Any, Any], dict[Any, str]]:
    """Word, gain, interval and p value of all readings, and the words of all findings."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for one in readings():
        groups.setdefault((one["claim"].id, one["setting"]), []).append(one)
    for some in groups.values():
        with_words(some)
    every = {
        one["at"]: (one["word"], [one["gain"], *one["interval"], one["p"]] if "p" in one else None)
        for some in groups.values()
        for one in some
    }
    return every, {key: word_of(some) for key, some in groups.items()}


def differing(content: dict[str, Any], ours: tuple[dict[Any, Any], dict[Any, str]]) -> list[str]:
    """What the content of a file of claims says otherwise than recomputed, a line each."""
    readings_, findings = ours
    lines = []
    seen = set()
    for one in content["readings"]:
        key = tuple(one[x] for x in ("address", "tier", "better", "than", "column", "claim"))
        word, numbers = readings_.get(key, ("none", None))
        seen.add(key)
        if one["outcome"] != word:
            lines.append(f"{key}: {one['outcome']}, recomputed: {word}")
        theirs = [one[x] for x in ("gain", "low", "high", "p")]
        if numbers and not np.allclose(np.array(theirs, float), numbers, rtol=1e-6, atol=1e-9):
            lines.append(f"{key}: {theirs}, recomputed: {numbers}")
    of_findings = {
        (each["claim"], each["setting"]): each["outcome"] for each in content["findings"]
    }
    for place in sorted({*findings, *of_findings}):
        if findings.get(place) != of_findings.get(place):
            lines.append(f"{place}: {of_findings.get(place)}, recomputed: {findings.get(place)}")
    return lines + [f"{key}: missing" for key in readings_.keys() - seen]


if __name__ == "__main__":
    claims = json.loads((ROOT / "results/claims.json").read_text())
    print(*differing(claims, recomputed()), sep="\n")
