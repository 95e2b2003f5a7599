"""Would a wrong formula be noticed? The core is mutated in one place at a time.

Every mutation replaces a piece of source text that occurs exactly once; the mutated modules are
loaded beside the real ones, and a compact battery of comparisons with the reference loops and the
authors' programs has to reject them. A piece of text that is gone fails its test: the list has to
follow the source.
"""

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import distributed
from tests import layouts, reference, test_parity
from tests.test_derivatives import directions, hessian_vector

SHARED = Path(distributed.__file__).parent
MODULES = (
    "pairs",
    "checks",
    "margins",
    "svm",
    "losses",
    "penalties",
    "projection",
)  # in order of imports

# What stops a mutated core: a figure that differs, an operation that fails, a missing warning.
REJECTIONS = (
    AssertionError,
    ArithmeticError,
    LookupError,
    RuntimeError,
    RuntimeWarning,
    pytest.fail.Exception,
)

# (module, text, its replacement)
MUTATIONS: list[tuple[str, str, str]] = [
    # who is compared with whom
    ("pairs", "negative.scatter_(1, outsiders, False)", "pass"),
    ("pairs", "[in_second, in_first, in_first, in_second]", "[in_first, in_second] * 2"),
    ("pairs", "index[:, self.positives().shape[1] :]", "index"),
    ("pairs", "distance <= reach", "distance < reach"),
    ("pairs", "(distance > 0) & ~positive", "~positive"),
    ("pairs", "positive &= document", "positive |= document"),
    ("pairs", "label[each][:, None] == label", "label[each][:, None] != label"),
    ("pairs", "negative[:, : len(label)] &= ~alike", "negative[:, : len(label)] = ~alike"),
    ("pairs", ".repeat(views)", ".repeat_interleave(views)"),
    ("pairs", "any(1).repeat(1, views)", "any(1).repeat_interleave(views, 1)"),
    (
        "pairs",
        "replace(pairs, negative=negative, outsider_index=None",
        "replace(pairs, negative=negative",
    ),
    ("pairs", "torch.unique(bits, dim=0", "torch.unique(bits[:, 7:8], dim=0"),
    (
        "pairs",
        "torch.where(zero, 1.0, rows), dim=1, keepdim=True)",
        "torch.where(zero, 1.0, rows), dim=0, keepdim=True)",
    ),
    ("pairs", "rows / torch.where(zero, 1.0, length)", "rows / length"),
    ("pairs", "torch.where(zero, 1.0, rows), dim=1", "rows, dim=1"),
    # info_nce and what all share
    ("losses", "total[:, None] - score", "total[:, None] + score"),
    (
        "losses",
        "excluded(pairs, positives=not positive_in_denominator)",
        "excluded(pairs, positives=positive_in_denominator)",
    ),
    ("losses", "excluded(pairs, positives=True)", "excluded(pairs, positives=False)"),
    ("losses", "pick(scores, 1 / divisor, positives", "pick(scores, divisor, positives"),
    ("losses", "scale, complete = 1 / divisor", "scale, complete = divisor"),
    ("losses", "total.sub_(similarity", "total.add_(similarity"),
    ("losses", "logical_or_(index < 0)", "logical_or_(index < -1)"),
    ("losses", "[:, None].masked_fill(undefined, 0.0)", "[:, None]"),
    ("losses", "_added(gradient, index, -by_score)", "_added(gradient, index, by_score)"),
    ("losses", "(by_loss * ctx.scale)", "(by_loss * 1)"),
    (
        "losses",
        "torch.where(present, loss, 0.0).sum(1) / present.sum(1).clamp(min=1)",
        "torch.where(present, loss, 0.0).sum(1)",
    ),
    ("losses", "by_total * ctx.scale", "by_total"),
    ("losses", "by_picked * ctx.pick_scale", "by_picked"),
    ("losses", "else gradient.scatter_add_", "else gradient.scatter_"),
    ("losses", "without(softmax, excluded, -math.inf, complete=complete, in_place=True)", "pass"),
    ("pairs", "values.masked_fill_(excluded, fill) if in_place", "values if in_place"),
    ("pairs", "masked_fill(excluded >= 0, fill)", "masked_fill(excluded > 0, fill)"),
    ("losses", "index, pick_scale), softmax", "index, scale), softmax"),
    ("losses", "torch.sub(softmax, largest", "torch.add(softmax, largest"),
    ("losses", ".log_().add_(largest)", ".log_()"),
    ("pairs", "torch.where(excluded < 0, excluded.amax(1, keepdim=True), excluded)", "excluded"),
    ("pairs", "~(self.negative | self.positive)", "~(self.negative & self.positive)"),
    ("pairs", "index.clamp(min=0)), -1, index)", "index.clamp(min=0)), index, -1)"),
    # derivatives of the second order, of the temperature, and under torch.func
    ("losses", "by_score - softmax * by_score.sum", "by_score + softmax * by_score.sum"),
    ("losses", "gradient + scale * (by_score", "gradient + (by_score"),
    ("losses", "gradient.scatter_add if", "gradient.scatter if"),
    (
        "losses",
        "return similarity / temperature, 1.0",
        "return similarity / temperature.detach(), 1.0",
    ),
    (
        "losses",
        "without(similarity * scale, excluded, -math.inf, complete=complete)",
        "without(similarity, excluded, -math.inf, complete=complete)",
    ),
    (
        "losses",
        "without(similarity * scale, excluded, -math.inf, complete=complete)",
        "similarity * scale",
    ),
    ("losses", "index, pick_scale)\n    total", "index, 0)\n    total"),
    ("losses", "known = known.masked_fill(~present.any(1, keepdim=True), 0.0)", "pass"),
    ("losses", "torch.where(count > 0, lowest, 0.0) / temperature", "lowest / temperature"),
    ("losses", "tail = torch.where(small, x, -math.inf).exp()", "tail = x.exp()"),
    ("margins", "(similarity / temperature).detach()", "similarity.detach() / temperature"),
    # supervised pairs
    ("pairs", "positive = alike.scatter(1, own, False)", "positive = alike"),
    ("pairs", "positive, ~alike, index", "positive, ~positive, index"),
    (
        "pairs",
        "torch.cat([own, index], dim=1)\n    return Pairs(\n        embedding",
        "index\n    return Pairs(\n        embedding",
    ),
    # what is refused at the door
    ("checks", "if tuple(similarity.shape) != shape:", "if similarity.ndim != 2:"),
    ("checks", "if not similarity.is_floating_point():", "if similarity.is_complex():"),
    ("checks", "highest <= limit", "lowest <= limit"),
    ("checks", "1 + max(COSINE_SLACK", "2 + max(COSINE_SLACK"),
    ("checks", "& (pairs.positive | pairs.negative)\n", "& pairs.negative\n"),
    ("checks", "isinstance(x, bool) and holds(x)", "isinstance(x, bool)"),
    ("pairs", "if (self.positive & self.negative).any():", "if False:"),
    ("pairs", "torch.equal(listed, mask) and bool", "bool"),
    ("pairs", "bool((index >= 0).sum() == mask.sum())", "True"),
    ("losses", "2 - 2 * similarity.gather", "2 - similarity.gather"),
    ("losses", "similarity = scale_gradient(similarity, weight)", "pass"),
    ("pairs", "negative[:, keys:] = True", "negative[:, :keys] = True"),
    # debiased and hard
    ("losses", "sloped, (1 + beta) / divisor", "sloped, beta / divisor"),
    ("losses", "scores, beta / divisor", "scores, 2 * beta / divisor"),
    ("losses", "scale_gradient(scores, 1 / (1 + beta))", "scores"),
    ("losses", "log_weights.detach(), plain_score", "log_weights.detach(), score"),
    ("losses", "log_weights.detach()", "log_weights"),
    ("losses", "if detach_weights:", "if not detach_weights:"),
    ("losses", "log_sum - log_weights + log_count", "log_sum - log_weights"),
    ("losses", "log_count - 1 / temperature", "log_count + 1 / temperature"),
    ("losses", "log_count + torch.where(count > 0", "torch.where(count > 0"),
    ("losses", "masked_fill(~pairs.negative, math.inf).amin(1)", "amin(1)"),
    ("losses", "math.log(tau_plus) - log_sum", "math.log1p(-tau_plus) - log_sum"),
    ("losses", "- math.log1p(-tau_plus)", "- math.log(tau_plus)"),
    ("losses", "log_positive + log_count + math", "log_positive + math"),
    ("losses", "dim=1) - count.to(score.dtype)", "dim=1) + count.to(score.dtype)"),
    ("losses", "torch.log(-torch.expm1(excess))", "torch.log1p(torch.exp(excess))"),
    (
        "losses",
        "torch.where(log_negatives > log_floor, log_negatives, log_floor)",
        "log_negatives",
    ),
    (
        "losses",
        "_softplus(log_negatives[:, None] - score)",
        "_softplus(score - log_negatives[:, None])",
    ),
    ("losses", "torch.zeros_like(rest)", "torch.ones_like(rest)"),
    # margins
    (
        "losses",
        "weight = weight[:, None]\n        margined = similarity\n",
        "weight = weight[:, None]\n",
    ),
    ("losses", "torch.where(pairs.positive, emphasised, margined)", "emphasised"),
    (
        "losses",
        "positive_weight: Tensor | float = emphasis",
        "positive_weight: Tensor | float = 1.0",
    ),
    ("losses", 'if ratio == "row"', 'if ratio == "positive"'),
    ("losses", 'if attenuation_scope == "row"', 'if attenuation_scope == "positive"'),
    (
        "losses",
        "margined = scale_gradient(margined, row_weight)",
        "margined = row_weight * margined",
    ),
    ("margins", "- sine * math.sin(margin)", "+ sine * math.sin(margin)"),
    ("margins", "similarity * math.cos(margin)", "similarity"),
    ("margins", "SOFTENING = 1e-7", "SOFTENING = 0.0"),
    ("margins", "similarity - margin,", "similarity + margin,"),
    ("margins", "constant + factor * (value - constant)", "factor * value"),
    ("margins", "(1 - angle**exponent)", "(1 - angle)"),
    ("margins", "(1 - angle) ** (1 / exponent)", "(1 - angle) ** exponent"),
    ("margins", "arccos() / math.pi", "arccos()"),
    ("margins", "similarity.detach().clamp(-1, 1)", "similarity.clamp(-1, 1)"),
    ("margins", "plain = _log_denominator(similarity,", "plain = _log_denominator(margined,"),
    ("margins", "mask = pairs.positive | pairs.negative", "mask = pairs.negative"),
    ("margins", "1 - alpha *", "1 + alpha *"),
    ("margins", ".clamp(max=ATTENUATION_CAP)", ""),
    # max_margin and its duals
    ("losses", "offset)).sum(1)", "offset)).mean(1)"),
    ("svm", "torch.expm1(2 * gamma * (cosines - 1))", "torch.expm1(gamma * (cosines - 1))"),
    ("svm", "torch.tanh(gamma * cosines + offset)", "torch.tanh(gamma * cosines)"),
    ("svm", "excess = 1 - points.diagonal()", "excess = points.diagonal() - 1"),
    ("svm", "sub_(mean.T).add_(mean.mean())", "sub_(mean.T)"),
    ("svm", "inverse.diagonal().add_(ridge)", "inverse.diagonal().add_(2 * ridge)"),
    ("svm", "inverse.sub_(1 / ((constant + ridge) * size))", "inverse"),
    ("svm", "1 / size + centred", "1 + centred"),
    ("svm", "centred.mul_(bordered).sum(1)", "centred.mul_(bordered).sum()"),
    ("svm", "second.addmm_(product, below.T, alpha=-1)", "second.addmm_(product, below.T)"),
    ("svm", "below.addmm_(second, product, beta=0,", "below.addmm_(second, product,"),
    ("svm", "first.addmm_(product.T, below, alpha=-1)", "first.addmm_(product.T, below)"),
    ("svm", "matrix[:half, half:] = below.T", "pass"),
    ("svm", "column.mul_(-2)", "column.mul_(-1)"),
    ("svm", "column -= coefficient", "column -= 0 * coefficient"),
    ("svm", "denominator + ridge * removed", "denominator - ridge * removed"),
    ("svm", "bordered[positive, positive] - removed", "bordered[positive, positive] + removed"),
    ("svm", "outsiders == positive[:, None], -1", "outsiders < 0, -1"),
    (
        "svm",
        "excess, ridge\n            ).clamp_(0, cost)",
        "excess, ridge\n            ).clamp_(min=0)",
    ),
    ("svm", "weights.mul_(present[:, None])", "pass"),
    ("svm", "total /= (positives >= 0)", "total *= (positives >= 0)"),
    (
        "svm",
        "weights.scatter_add(1, positive[:, None], -weights",
        "weights.scatter_add(1, positive[:, None], weights",
    ),
    ("svm", "product - product.gather(1, positive[:, None]) + ridge * a", "product + ridge * a"),
    ("svm", "positive[:, None]) + ridge * a", "positive[:, None])"),
    ("svm", "product + excess * a.sum", "product - excess * a.sum"),
    ("svm", "delta(ahead, 2.0)", "delta(ahead, 1.0)"),
    ("svm", "(ahead - step * gradient).clamp(0, cost)", "(ahead - step * gradient).clamp(min=0)"),
    ("svm", "(age - 1) / older", "0 * older"),
    # distance polarization
    ("penalties", "(2 * upper - double).mul_(double.sub_", "(double - 2 * upper).mul_(double.sub_"),
    ("penalties", "double.sub_(2 * lower)", "double.sub_(lower)"),
    ("penalties", "value.div_(4)", "value.div_(2)"),
    ("penalties", ".clamp_(min=0)", ""),
    ("penalties", "without(depth, excluded[rows], 0.0, in_place=True), 1", "depth, 1"),
    ("penalties", "by_value[:, None] / 4", "by_value[:, None] / 2"),
    ("penalties", "slope.sub_((2 * upper", "slope.add_((2 * upper"),
    ("penalties", "_within(slope, double, first, last), excluded", "slope, excluded"),
    ("penalties", "[2 * lower, 2 * upper]", "[lower, upper]"),
    ("penalties", "return value * anchors", "return value"),
    ("penalties", "value * (anchors /", "value * (2 * anchors /"),
    ("penalties", 'positives=among == "negatives"', 'positives=among != "negatives"'),
    ("penalties", "torch.arange(start, start + len(cosines)", "0 * torch.arange(len(cosines)"),
    ("penalties", "count + torch.count_nonzero(pairs.positive)", "count"),
    ("penalties", "cosines.numel() - len(cosines)", "cosines.numel()"),
    ("penalties", "some, 1 - 2 * upper, 1 - 2 * lower)", "some, 1 - 2 * upper, 1 - lower)"),
    # the low-rank projection
    ("projection", "self.reconstruct(every) - every", "self.reconstruct(every) + every"),
    ("projection", ".square().sum(1)\n", ".square().mean(1)\n"),
    ("projection", "reconstruction + self.alpha * size", "reconstruction + size"),
    ("projection", "vector_norm(self.matrix, dim=0)", "vector_norm(self.matrix, dim=1)"),
    ("projection", ".sqrt().mul(real).sum()", ".mul(real).sum()"),
    ("projection", "eigvalsh(wide.T @ wide)", "eigvalsh(wide)"),
    ("projection", "max(1, len(view))", "1"),
    ("projection", "view - unit_rows(self.reconstruct(view))", "view - self.reconstruct(view)"),
    ("projection", "views = [unit_rows(view) for view in views]", "pass"),
    (
        "projection",
        "vector_norm(matrix, dim=0).topk(dimensions)",
        "vector_norm(matrix, dim=0).topk(dimensions, largest=False)",
    ),
    ("projection", "eigenvectors[:, -dimensions:]", "eigenvectors[:, :dimensions]"),
    ("projection", "wide @ kept @ kept.T", "wide @ kept"),
    ("projection", "rest -= torch.outer(direction, direction @ rest)", "pass"),
    ("projection", "if share < COLLAPSED", "if share > COLLAPSED"),
]


def source(module: str) -> str:
    return (SHARED / f"{module}.py").read_text()


def load(changed: dict[str, str]) -> SimpleNamespace:
    """A second copy of the core's modules, some with another source; the real ones stay put."""
    real = {name: item for name, item in sys.modules.items() if name.split(".")[0] == "shared"}
    package = ModuleType("shared")
    package.__path__ = []
    try:
        for name in real:
            del sys.modules[name]
        sys.modules["shared"] = package
        sys.modules["shared.distributed"] = distributed
        for name in MODULES:
            module = ModuleType(f"shared.{name}")
            sys.modules[module.__name__] = module
            text = changed.get(name) or source(name)
            exec(compile(text, f"{name}.py", "exec"), vars(module))
            setattr(package, name, module)
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "shared"]:
            del sys.modules[name]
        sys.modules.update(real)
    names: dict[str, Any] = {}
    for name in MODULES:
        names |= vars(getattr(package, name))
    names["modules"] = package
    return SimpleNamespace(**names)


# The battery: what a copy of the core computes, beside what it has to be


@dataclass(frozen=True)
class Check:
    name: str
    compute: Callable[[SimpleNamespace], tuple[Tensor, ...]]
    expected: tuple[Tensor, ...]
    tolerance: float = 1e-9


def differentiated(value: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    upstream = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).view(value.shape)
    return (value.detach(), *layouts.gradients(value, upstream, leaves))


NCE: list[tuple[str, dict[str, Any]]] = [
    ("info_nce", {"temperature": 0.4}),
    ("info_nce", {"temperature": 0.4, "positive_in_denominator": False}),
    ("debiased_nce", {"temperature": 0.4, "tau_plus": 0.1}),
    ("debiased_nce", {"temperature": 0.4, "tau_plus": 0.8}),
    ("hard_nce", {"temperature": 0.4, "tau_plus": 0.2, "beta": 0.7}),
    ("hard_nce", {"temperature": 0.4, "tau_plus": 0.2, "beta": 0.7, "detach_weights": True}),
    ("hard_nce", {"temperature": 0.4, "tau_plus": 0.6, "beta": 0.7, "floor": "minimum"}),
]
MARGINS: list[dict[str, Any]] = [
    {"angular": 0.6, "subtractive": 0.2},
    {"subtractive": 0.3, "emphasis": 2.0},
    {"curvature": 0.7},
    {"curvature": 2.5, "curvature_form": "algorithm_3"},
    {"angular": 0.5, "ratio": "row"},
    {"angular": 0.5, "ratio": "positive"},
    {"attenuation": 0.6},
    {"attenuation": 0.9, "attenuation_scope": "positive"},
]
MACHINES: list[dict[str, Any]] = [
    {"gamma": 2.0},
    {"gamma": 0.5, "cost": 0.4},
    {"kernel": "linear", "ridge": 0.5},
    {"kernel": "tanh", "gamma": 0.8, "offset": 0.3, "unit_diagonal": True, "ridge": 2.0},
]
BANDS: list[dict[str, Any]] = [
    {"reduction": "anchor_sum", "among": "negatives"},
    {"reduction": "mean", "among": "all"},
    {"reduction": "sum", "among": "anchors"},
    {"reduction": "mean", "among": "anchors"},
]


def nce_checks(layout: str) -> list[Check]:
    case = layouts.make(layout, 5)
    checks = []
    for name, numbers in NCE:

        def compute(
            core: SimpleNamespace, name: str = name, numbers: dict[str, Any] = numbers
        ) -> tuple[Tensor, ...]:
            leaves = case.fresh()
            pairs = case.pairs(leaves, core)
            similarity = core.cosine(pairs.anchor, pairs.candidate)
            return differentiated(getattr(core, name)(pairs, similarity, **numbers), leaves)

        leaves = case.fresh()
        plain = case.layout(leaves)
        similarity = reference.cosines(plain.anchor, plain.candidate)
        value = getattr(reference, name)(similarity, plain.positives, plain.negatives, **numbers)
        checks.append(Check(f"{name} {numbers}", compute, differentiated(value, leaves)))
    return checks


def derivative_checks(layout: str) -> list[Check]:
    """Hessian-vector products, also of ``torch.func``, and the temperature's gradient."""
    case = layouts.make(layout, 4)
    checks = []
    for name, numbers in NCE:

        def compute(
            core: SimpleNamespace, name: str = name, numbers: dict[str, Any] = numbers
        ) -> tuple[Tensor, ...]:
            leaves = case.fresh()
            pairs = case.pairs(leaves, core)
            similarity = core.cosine(pairs.anchor, pairs.candidate)
            temperature = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
            value = getattr(core, name)(
                pairs, similarity, **{**numbers, "temperature": temperature}
            )
            (slope,) = torch.autograd.grad(value.sum(), temperature, retain_graph=True)
            return slope, *hessian_vector(value, leaves)

        leaves = case.fresh()
        plain = case.layout(leaves)
        similarity = reference.cosines(plain.anchor, plain.candidate)
        temperature = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
        value = getattr(reference, name)(
            similarity,
            plain.positives,
            plain.negatives,
            **{**numbers, "temperature": temperature},
        )
        (slope,) = torch.autograd.grad(value.sum(), temperature, retain_graph=True)
        expected = (slope, *hessian_vector(value, leaves))
        checks.append(Check(f"derivatives {name} {numbers}", compute, expected))

        def transformed(
            core: SimpleNamespace, name: str = name, numbers: dict[str, Any] = numbers
        ) -> tuple[Tensor, ...]:
            leaves = tuple(case.leaves)

            def total(*leaves: Tensor) -> Tensor:
                pairs = case.pairs(list(leaves), core)
                similarity = core.cosine(pairs.anchor, pairs.candidate)
                losses: Tensor = getattr(core, name)(pairs, similarity, **numbers)
                upstream = torch.linspace(0.5, 1.5, len(losses), dtype=losses.dtype)
                return (upstream * losses).sum() / len(losses)

            places = tuple(range(len(leaves)))
            along = tuple(directions(list(leaves)))
            return torch.func.jvp(torch.func.grad(total, places), leaves, along)[1]

        checks.append(Check(f"transformed {name} {numbers}", transformed, expected[1:]))

    def weight(core: SimpleNamespace) -> tuple[Tensor, ...]:
        """The weights of margins are constants, for a learned temperature, too."""
        temperature = torch.tensor(0.4, requires_grad=True)
        pairs = case.pairs(list(case.leaves), core)
        cosines = core.cosine(pairs.anchor, pairs.candidate)
        made = core.attenuation_weight(pairs, cosines, temperature=temperature, alpha=0.8)
        return (torch.tensor(made.requires_grad),)

    return [*checks, Check("weights are constants", weight, (torch.tensor(False),))]


def margin_checks(layout: str) -> list[Check]:
    case = layouts.make(layout, 5)
    plain = case.layout(list(case.leaves))
    similarity = reference.cosines(plain.anchor, plain.candidate)
    checks = []
    for numbers in MARGINS:

        def compute(core: SimpleNamespace, numbers: dict[str, Any] = numbers) -> tuple[Tensor, ...]:
            leaf = similarity.clone().requires_grad_()
            pairs = case.pairs(list(case.leaves), core)
            value = core.margin_nce(pairs, leaf, temperature=0.4, **numbers)
            return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]

        renamed = {
            "curvature_exponent" if key == "curvature" else key: item
            for key, item in numbers.items()
        }
        expected = reference.margin_nce(
            similarity, plain.positives, plain.negatives, temperature=0.4, **renamed
        )
        checks.append(Check(f"margin_nce {numbers}", compute, expected))

    def align(core: SimpleNamespace) -> tuple[Tensor, ...]:
        leaf = similarity.clone().requires_grad_()
        value = core.alignment(case.pairs(list(case.leaves), core), leaf, curvature=0.7)
        return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]

    expected = reference.alignment(similarity, plain.positives, curvature_exponent=0.7)
    checks.append(Check("alignment", align, expected))
    return checks


def machine_checks(layout: str) -> list[Check]:
    case = layouts.make(layout, 5)
    checks = []
    for numbers in MACHINES:
        cost = numbers.get("cost", 100.0)

        def fixed_steps(delta: Any, cost: float = cost) -> Any:
            start = reference.dual_closed_form(delta, cost)
            return reference.dual_projected_gradient(delta, start, cost, 3, 0.03)

        solvers: list[tuple[dict[str, Any], Any, float]] = [
            ({}, None, 1e-9),
            (
                {"solver": "projected_gradient", "steps": 3, "step_size": 0.03},
                fixed_steps,
                1e-9,
            ),
        ]
        if "cost" in numbers or "ridge" not in numbers:
            solvers += [
                (
                    {"solver": solver, "steps": 50},
                    lambda delta, cost=cost: reference.dual_exact(delta, cost),
                    tolerance,
                )
                for solver, tolerance in (("projected_gradient", 5e-4), ("exact", 1e-7))
            ]
        for options, solve, tolerance in solvers:

            def compute(
                core: SimpleNamespace,
                numbers: dict[str, Any] = numbers,
                options: dict[str, Any] = options,
            ) -> tuple[Tensor, ...]:
                core.modules.svm.EXACT_STEPS = 2000
                core.modules.svm.LARGEST_FACTORISED = 2
                leaves = case.fresh()
                pairs = case.pairs(leaves, core)
                similarity = core.cosine(pairs.anchor, pairs.candidate)
                return differentiated(
                    core.max_margin(pairs, similarity, **numbers, **options), leaves
                )

            leaves = case.fresh()
            value = reference.max_margin(case.layout(leaves), solve, **numbers)
            expected = differentiated(value, leaves)
            checks.append(Check(f"max_margin {numbers} {options}", compute, expected, tolerance))
    return checks


def polarization_checks(layout: str) -> list[Check]:
    case = layouts.make(layout, 5)
    checks = []
    for numbers in BANDS:

        def compute(core: SimpleNamespace, numbers: dict[str, Any] = numbers) -> tuple[Tensor, ...]:
            leaves = case.fresh()
            pairs = case.pairs(leaves, core)
            similarity = core.cosine(pairs.anchor, pairs.candidate)
            value = core.distance_polarization(pairs, similarity, upper=0.6, **numbers).mean()
            return differentiated(value, leaves)

        leaves = case.fresh()
        plain = case.layout(leaves)
        chosen = plain.negatives
        if numbers["among"] == "all":
            chosen = [p + n for p, n in zip(plain.positives, plain.negatives, strict=True)]
        among = plain.candidate
        if numbers["among"] == "anchors":
            among, count = plain.anchor, len(plain.anchor)
            chosen = [[j for j in range(count) if j != i] for i in range(count)]
        value = reference.distance_polarization(
            reference.cosines(plain.anchor, among),
            chosen,
            lower=0.1,
            upper=0.6,
            reduction=numbers["reduction"],
        )
        expected = differentiated(value, leaves)
        checks.append(Check(f"distance_polarization {numbers}", compute, expected))

    def share(core: SimpleNamespace) -> tuple[Tensor, ...]:
        pairs = case.pairs(list(case.leaves), core)
        similarity = core.cosine(pairs.anchor, pairs.candidate)
        return (core.band_statistics(pairs, similarity, upper=0.6)["share_in_band"].double(),)

    plain = case.layout(list(case.leaves))
    cosines = reference.cosines(plain.anchor, plain.candidate)
    listed = [float(cosines[i, j]) for i, others in enumerate(plain.negatives) for j in others]
    inside = sum(-0.2 < c < 0.8 for c in listed) / len(listed)
    expected = (torch.tensor(inside, dtype=torch.float64),)
    return [*checks, Check("band_statistics", share, expected, 1e-6)]


def projection_checks() -> list[Check]:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    # The second largest column lies along the largest: a pivoted QR has no use for it.
    start[:, 1] *= 4 / start[:, 1].norm()
    start[:, 3] = 0.9 * start[:, 1]
    views = list(torch.randn(2, 4, 5, generator=generator, dtype=torch.float64))
    checks = []

    def made(core: SimpleNamespace, options: dict[str, Any]) -> Any:
        built = core.LowRankProjection(5, rows=3, **options).double()
        with torch.no_grad():
            built.matrix.copy_(start)
        return built

    for norm in ("l21", "nuclear", "none"):
        options = {"norm": norm, "alpha": 0.7}

        def paper(core: SimpleNamespace, options: dict[str, Any] = options) -> tuple[Tensor, ...]:
            built = made(core, options)
            return differentiated(built(views)[0], [built.matrix])

        leaf = start.clone().requires_grad_()
        value = reference.low_rank_paper(leaf, torch.cat(views), **options)
        checks.append(Check(f"projection {norm}", paper, differentiated(value, [leaf])))

    def authors(core: SimpleNamespace) -> tuple[Tensor, ...]:
        built = made(core, {"form": "authors", "norm": "none"})
        return differentiated(built(views)[0], [built.matrix])

    leaf = start.clone().requires_grad_()
    value = reference.low_rank_authors(leaf, views)
    checks.append(Check("projection authors", authors, differentiated(value, [leaf])))
    for selection in ("columns", "svd", "qr"):
        checks.append(
            Check(
                f"project {selection}",
                lambda core, selection=selection: (
                    made(core, {}).project(views[0], dimensions=2, selection=selection),
                ),
                (views[0] @ reference.reduced_matrix(start, 2, selection).T,),
            )
        )
    return checks


def edge_checks() -> list[Check]:
    """Finite and known at the edges: no negatives, zero rows, angle 0, a certain softmax."""
    rows = torch.eye(3, dtype=torch.float64)

    def angle_0(core: SimpleNamespace) -> tuple[Tensor, ...]:
        leaf = torch.ones(3, 3, dtype=torch.float64, requires_grad=True)
        pairs = core.query_key(rows, rows)
        loss = core.margin_nce(pairs, leaf, temperature=0.5, angular=0.3, curvature=0.7)
        gradient = torch.autograd.grad(loss.sum(), leaf)[0]
        return (torch.isfinite(gradient).all(),)

    def floored(core: SimpleNamespace) -> tuple[Tensor, ...]:
        leaf = floor_rows.clone().requires_grad_()
        positive = torch.tensor([[True, False, False, False], [True, False, False, False]])
        negative = torch.tensor([[False, True, True, False], [False, True, True, True]])
        pairs = core.Pairs(rows[:2], torch.eye(4, dtype=torch.float64), positive, negative)
        value = core.debiased_nce(pairs, leaf, temperature=0.5, tau_plus=0.7, floor="minimum")
        return differentiated(value, [leaf])

    def far(core: SimpleNamespace) -> tuple[Tensor, ...]:
        """Scores a thousand apart, both ways: beyond the range of exp."""
        leaf = torch.tensor([[1.0, -1.0], [1.0, -1.0]], dtype=torch.float64, requires_grad=True)
        pairs = core.query_key(rows[:2], rows[:2])
        value = core.debiased_nce(pairs, leaf, temperature=0.002, tau_plus=0.0)
        gradient = torch.autograd.grad(value.sum(), leaf)[0]
        return (
            torch.isfinite(
                torch.stack(
                    [
                        gradient,
                        *hessian_vector(
                            core.debiased_nce(pairs, leaf, temperature=0.002, tau_plus=0.0), [leaf]
                        ),
                    ]
                )
            ).all(),
        )

    def certain(core: SimpleNamespace) -> tuple[Tensor, ...]:
        pairs = core.query_key(rows, rows)
        return (core.attenuation_weight(pairs, rows, temperature=0.01, alpha=1.0),)

    def zero_row(core: SimpleNamespace) -> tuple[Tensor, ...]:
        leaf = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
        other = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
        similarity = core.cosine(leaf, leaf)
        (gradient,) = torch.autograd.grad(similarity.sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), leaf)
        # As if a row of zeros had length 1: other has cosine 0 with it, and the slope of other.
        slope = torch.autograd.grad(core.cosine(leaf, other).sum(), leaf)[0]
        return similarity.detach(), torch.isfinite(second).all(), slope

    def one_pair(core: SimpleNamespace) -> tuple[Tensor, ...]:
        found = []
        for name, numbers in NCE:
            leaf = rows[:1].clone().requires_grad_()
            pairs = core.query_key(leaf, rows[1:2])
            value = getattr(core, name)(pairs, core.cosine(leaf, rows[1:2]), **numbers)
            found.append(differentiated(value, [leaf]))
        return tuple(torch.cat([value[:, None], gradient], dim=1) for value, gradient in found)

    # The lowest entry is ignored in the first row; the floor rules in both.
    floor_rows = torch.tensor([[0.9, 0.2, 0.3, -0.9], [0.9, 0.2, 0.3, 0.1]], dtype=torch.float64)
    leaf = floor_rows.clone().requires_grad_()
    lowest = reference.debiased_nce(
        leaf, [[0], [0]], [[1, 2], [1, 2, 3]], temperature=0.5, tau_plus=0.7, floor="minimum"
    )
    yes = torch.tensor(True)
    nothing = torch.zeros(1, 4, dtype=torch.float64)
    return [
        Check("angle 0", angle_0, (yes,)),
        Check("far", far, (yes,)),
        Check("floored", floored, differentiated(lowest, [leaf])),
        Check("certain softmax", certain, (torch.full((3,), 100.0, dtype=torch.float64),)),
        Check(
            "zero row",
            zero_row,
            (
                torch.zeros(2, 2, dtype=torch.float64),
                yes,
                torch.tensor([[0.6, 0.8]] * 2, dtype=torch.float64),
            ),
        ),
        Check("one pair", one_pair, (nothing,) * len(NCE)),
    ]


def refusals(core: SimpleNamespace) -> None:
    """What the door does not let in, and what it does."""
    rows = torch.eye(3, dtype=torch.float64)
    pairs, mask = core.query_key(rows, rows), torch.eye(3, dtype=torch.bool)
    index = torch.tensor([[0], [1], [2]])
    negative = rows.masked_fill(mask.roll(1, 0), -1.002)
    refused: list[Callable[[], Any]] = [
        lambda: core.info_nce(pairs, rows[:, :1], temperature=0.5),
        lambda: core.info_nce(pairs, rows.long(), temperature=0.5),
        lambda: core.info_nce(pairs, rows, temperature=-0.5),
        lambda: core.margin_nce(pairs, 1.002 * rows, temperature=0.5),
        lambda: core.margin_nce(pairs, negative, temperature=0.5),
        lambda: core.Pairs(rows, rows, mask, mask),
        lambda: core.Pairs(rows, rows, mask, ~mask, index.flip(0)),
        lambda: core.Pairs(rows, rows, mask, ~mask, index.repeat(1, 2)),
    ]
    for place, call in enumerate(refused):
        with pytest.raises(ValueError, match=r"got|is no|are no"):
            pytest.fail(f"refusal {place}: {call()}")
    core.Pairs(rows, rows, mask, ~mask, index, index)
    core.margin_nce(pairs, 1.0009 * rows, temperature=0.5)


def collapse_warning(core: SimpleNamespace) -> None:
    """Silent at the start, a warning at a thousandth of it (warnings are errors in these tests)."""
    made = core.LowRankProjection(3)
    made.warn_if_collapsed()
    with torch.no_grad():
        made.matrix.mul_(5e-4)
    with pytest.warns(RuntimeWarning, match="collapsed"):
        made.warn_if_collapsed()


@functools.cache
def battery() -> list[Check]:
    checks = projection_checks() + edge_checks()
    for layout in ("two views", "query key bank", "bank alone", "documents", "masks", "copies"):
        checks += nce_checks(layout) + polarization_checks(layout)
    for layout in ("same label", "masks", "two views"):
        checks += derivative_checks(layout)
    checks += nce_checks("same label") + nce_checks("equal rows")
    for layout in ("second view", "query key bank"):
        checks += margin_checks(layout)
    for layout in ("query key", "two views", "documents", "masks"):
        checks += machine_checks(layout)
    return checks


@functools.cache
def authors_cases() -> list[dict[str, Any]]:
    return list(json.loads((test_parity.FOLDER / "losses.json").read_text()))


# By module, how the checks are called that see most of its mutations: they come first, as the
# first rejection ends the examination.
FIRST = {
    "margins": ("margin_nce", "alignment", "weights", "certain"),
    "svm": ("max_margin",),
    "penalties": ("distance_polarization", "band_statistics"),
    "projection": ("project",),
}


def examine(core: SimpleNamespace, module: str = "") -> None:
    """Raises an exception of some kind unless this copy of the core computes what it should."""
    collapse_warning(core)
    refusals(core)
    first = FIRST.get(module, ())
    for check in sorted(battery(), key=lambda check: not check.name.startswith(first)):
        found = check.compute(core)
        scale = max(1.0, float(check.expected[0].double().abs().max()))
        torch.testing.assert_close(
            found,
            check.expected,
            rtol=check.tolerance,
            atol=check.tolerance * scale,
            msg=lambda text, name=check.name: f"{name}: {text}",
        )
    for case in authors_cases():
        test_parity.check(case, core)


def test_the_core_as_it_is_passes() -> None:
    examine(load({}))


def test_the_copies_are_copies() -> None:
    import shared.losses

    real = dict(sys.modules)
    marked = load({"losses": source("losses") + "\nMARK = 1\n"})
    assert marked.MARK == 1
    assert marked.info_nce is not shared.losses.info_nce
    assert not hasattr(shared.losses, "MARK")
    assert {k: v for k, v in sys.modules.items() if k.startswith("shared")} == {
        k: v for k, v in real.items() if k.startswith("shared")
    }
    with pytest.raises(SyntaxError):
        load({"losses": "def"})
    assert sys.modules["shared.losses"] is shared.losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "text", "replacement"),
    MUTATIONS,
    ids=[f"{module}: {' '.join(text.split())}" for module, text, _ in MUTATIONS],
)
def test_a_mutated_core_is_rejected(module: str, text: str, replacement: str) -> None:
    original = source(module)
    assert original.count(text) == 1, (
        f"{text!r} occurs {original.count(text)} times in shared/{module}.py; "
        f"bring this list up to date"
    )
    mutated = load({module: original.replace(text, replacement)})
    with pytest.raises(REJECTIONS):
        examine(mutated, module)
