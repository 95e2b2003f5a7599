"""The rules for claims as data, and the function that applies them; ``docs/claims.md`` says why.

One judge serves the papers' claims and a user's comparison: :func:`measured` computes gain,
interval, p values and counts from the values of both rows, and :func:`word_of` looks the word up.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from shared.experiment.tables import Form
from shared.report.statistics import Estimate, gain_of, holm, rank_test, summarise

Word = Literal[
    "as claimed", "contrary", "undecided", "depends on the data", "not testable", "not run", ""
]
Values = Mapping[int, float]  # by seed
Cell = tuple[Values, Values]  # of the method, of the baseline
LEVEL, LEVEL_AFTER_A_LOOK = 0.05, 0.033
LEAST_SEEDS = 3
MARGIN = 0.5  # points
LEAST_SHARE = 0.01  # of the gradient on the embeddings
LEAST_FAILED, LEAST_FAILED_PART = 3, 0.25
# By form the p values for "as claimed" and for "contrary", from those of a gain above and below a
# bound, and the margin, 0 where there is none.
Test = Callable[[float], float]
FORMS: Mapping[Form, Callable[[Test, Test, float], tuple[float, float]]] = {
    "superiority": lambda above, below, _: (above(0), below(0)),
    "size": lambda above, below, _: (above(0), below(0)),
    "comparable": lambda above, below, m: (above(-m), below(-m)),
    "no gain": lambda above, below, m: (below(m), above(m)),
    "null": lambda above, below, m: (max(above(-m), below(m)), min(above(m), below(-m))),
}


@dataclass(frozen=True)
class Gain:
    """A method against its baseline in some columns: the mean of the gains, and what tests it."""

    form: Form
    margin: float  # 0 where there is none
    columns: Mapping[str, Estimate]  # by label, of each measured column
    in_mean: tuple[str, ...]  # those with seeds enough, or all that are measured where none has
    estimate: Estimate  # of the mean over these
    levels: tuple[float, float]  # means of method and baseline over these
    signs: Mapping[str, int]  # of these, 1 or -1 where significant after Holm over them, else 0
    # p values for "as claimed" and for "contrary"; None with too few seeds.
    tests: tuple[float, float] | None
    failed: tuple[
        tuple[int, int], tuple[int, int]
    ]  # of method and baseline: failed, and of how many
    ranked: bool  # whether the exact rank test gave them, with failed runs below all others
    post_hoc: bool  # whether seeds of either row were added after a look
    # What the rules ask besides; a user's comparison leaves it as it is.
    beside: bool = False  # whether it stands beside another comparison, which has the word
    untuned: bool = False  # whether another loss meets a baseline that was not tuned alike
    declared: int = 0  # columns
    data_sets: int = 0  # that a claim about consistency needs to be contradicted
    share: float | None = None  # of the method's term in the gradient, if known of whole runs
    chosen_here: bool = False  # whether the suite chose the term's number
    adjusted: tuple[float, float] = field(default=(1.0, 1.0))  # ``tests`` after Holm
    enough: bool = False  # whether both rows have three finished seeds in a column

    @property
    def p(self) -> float | None:
        """The smaller of the two p values."""
        return min(self.tests) if self.tests else None

    @property
    def above(self) -> int:
        """In how many columns the gain is above 0, after Holm over them."""
        return sum(sign > 0 for sign in self.signs.values())

    @property
    def below(self) -> int:
        """In how many it is below."""
        return sum(sign < 0 for sign in self.signs.values())

    @property
    def decided(self) -> bool:
        """Whether it is significant after Holm, and by more than seeds added after a look need."""
        if self.p is None or min(self.adjusted) >= LEVEL:
            return False
        return self.p < LEVEL_AFTER_A_LOOK or not self.post_hoc

    @property
    def loses_a_column(self) -> bool:
        """Whether a column lies wholly below the margin of "no worse"."""
        intervals = (self.columns[label].interval for label in self.in_mean)
        return self.form == "comparable" and any(i and i[1] < -self.margin for i in intervals)

    @property
    def smallest_margin(self) -> float | None:
        """The smallest margin at which a claim of no difference, or none worse, would hold."""
        interval = self.estimate.interval
        if interval is None or self.form in ("superiority", "size"):
            return None
        low, high = interval
        if self.form == "comparable":
            ends = (self.columns[label].interval for label in self.in_mean)
            return max(0.0, -low, *(-end[1] for end in ends if end))
        return max(0.0, high if self.form == "no gain" else max(-low, high))


# The word of a comparison, and its reason, are those of the first line whose condition holds.
RULES: Sequence[tuple[Callable[[Gain], bool], Word, Callable[[Gain], str]]] = (
    (lambda g: not g.columns, "not run", lambda _: ""),
    (lambda g: g.beside, "", lambda _: ""),
    (lambda g: g.p is None and g.enough, "undecided", lambda _: "no spread over seeds"),
    (lambda g: g.p is None, "undecided", lambda _: "too few seeds"),
    (
        lambda g: g.chosen_here and g.share is not None and g.share < LEAST_SHARE,
        "not testable",
        lambda _: "",
    ),
    (
        lambda g: 2 * len(g.in_mean) < g.declared,
        "undecided",
        lambda g: f"{len(g.in_mean)} of {g.declared} columns",
    ),
    (lambda g: g.above > 0 and g.below > 0, "depends on the data", lambda _: ""),
    (
        lambda g: g.decided and g.adjusted[1] < g.adjusted[0] and len(g.in_mean) < g.data_sets,
        "undecided",
        lambda g: f"{len(g.in_mean)} of {g.data_sets} data sets",
    ),
    (lambda g: g.decided and g.adjusted[1] < g.adjusted[0], "contrary", lambda _: ""),
    (lambda g: g.decided and not g.loses_a_column, "as claimed", lambda _: ""),
    (lambda g: g.p is not None and g.p < LEVEL, "undecided", lambda _: "after adjustment"),
    (lambda _: True, "undecided", lambda _: ""),
)


def word_of(gain: Gain) -> tuple[Word, str]:
    """The word of a comparison and its reason, empty for none."""
    return next((word, why(gain)) for holds, word, why in RULES if holds(gain))


def measured(
    cells: Mapping[str, Cell],
    form: Form = "superiority",
    margin: float = 0.0,
    *,
    one_run: bool = False,
    failed: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0)),
    post_hoc: bool = False,
) -> Gain:
    """The gain of a method over its baseline.

    Args:
        cells: by column the values of both rows; columns in which one has none are left out.
        form: of the claim.
        margin: of the claim.
        one_run: whether one run gives all columns, so that each seed has a mean.
        failed: of method and baseline the number of failed seeds, and of how many.
        post_hoc: whether seeds of either row were added after a look.
    """
    cells = {label: cell for label, cell in cells.items() if all(cell)}
    columns = {
        label: gain_of([(list(method.values()), list(baseline.values()))])
        for label, (method, baseline) in cells.items()
    }
    if not cells:
        none = (math.nan, math.nan)
        return Gain(form, margin, {}, (), Estimate(0.0), none, {}, None, failed, False, post_hoc)
    enough = {label: cell for label, cell in cells.items() if min(map(len, cell)) >= LEAST_SEEDS}
    in_mean = enough or cells
    lists = [tuple(list(row.values()) for row in cell) for cell in in_mean.values()]
    if one_run:
        lists = [tuple(_means([cell[row] for cell in in_mean.values()]) for row in (0, 1))]
    pairs = [(method, baseline) for method, baseline in lists]
    estimate = gain_of(pairs)
    levels = [
        sum(summarise(cell[row].values()).mean for cell in in_mean.values()) / len(in_mean)
        for row in (0, 1)
    ]
    tested = {label: columns[label] for label in in_mean if columns[label].error is not None}
    of_columns = holm([min(e.above(0), e.below(0)) for e in tested.values()])
    signs = {
        label: (1 if e.gain > 0 else -1) if p < LEVEL else 0
        for (label, e), p in zip(tested.items(), of_columns, strict=True)
    }
    tests = None
    ranked = any(k >= LEAST_FAILED and k >= LEAST_FAILED_PART * n for k, n in failed)
    if ranked:
        method, baseline = ([*pairs[0][row], *[-math.inf] * failed[row][0]] for row in (0, 1))
        p, higher = rank_test(method, baseline)
        tests = (p, 1.0) if higher else (1.0, p)
    elif enough and estimate.error is not None:
        tests = FORMS[form](estimate.above, estimate.below, margin)
    return Gain(
        form,
        margin,
        columns,
        tuple(in_mean),
        estimate,
        (levels[0], levels[1]),
        signs,
        tests,
        failed,
        ranked,
        post_hoc,
        enough=bool(enough),
    )


Key = TypeVar("Key")


def adjust(family: Mapping[Key, Gain]) -> dict[Key, Gain]:
    """The gains of one family with their p values adjusted by Holm; those without one as they are.

    A comparison that stands beside another has no p value in it.
    """
    p_values = {
        key: gain.p for key, gain in family.items() if gain.p is not None and not gain.beside
    }
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    result = dict(family)
    for key, p in adjusted.items():
        tests = family[key].tests
        assert tests is not None
        both = (p, 1.0) if tests[0] <= tests[1] else (1.0, p)
        result[key] = replace(family[key], adjusted=both)
    return result


def _means(columns: Sequence[Values]) -> list[float]:
    """The mean over columns of each seed that has a value in all."""
    seeds = sorted(set.intersection(*(set(column) for column in columns)))
    return [sum(column[seed] for column in columns) / len(columns) for seed in seeds]
