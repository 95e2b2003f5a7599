"""Would a wrong formula be noticed? The core is mutated in one place at a time.

Every mutation replaces a piece of source text that occurs exactly once; the mutated modules are
loaded beside the real ones, and some test that takes a ``core`` has to reject them. A piece of text
that is gone fails its test: the list has to follow the source.
"""

import functools
import inspect
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import shared
from shared import distributed
from tests import (
    test_checks,
    test_derivatives,
    test_losses,
    test_margins,
    test_pairs,
    test_parity,
    test_penalties,
    test_projection,
    test_svm,
)

SHARED = Path(distributed.__file__).parent
# In order of imports.
MODULES = ("pairs", "checks", "margins", "svm", "losses", "penalties", "projection")
TESTS = (
    test_pairs,
    test_checks,
    test_parity,
    test_margins,
    test_projection,
    test_derivatives,
    test_losses,
    test_penalties,
    test_svm,
)
# What stops a mutated core: a figure that differs, an operation that fails, a missing warning.
REJECTIONS = (
    AssertionError,
    ArithmeticError,
    LookupError,
    RuntimeError,
    RuntimeWarning,
    ValueError,
    pytest.fail.Exception,
)

# (module, text, its replacement)
MUTATIONS: list[tuple[str, str, str]] = [
    # who is compared with whom
    ("pairs", "negative.scatter_(1, non_negatives, False)", "pass"),
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
        "replace(pairs, negative=negative, non_negative_index=None",
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
    ("pairs", "positive = (alike & known).scatter(1, own, False)", "positive = alike & known"),
    ("pairs", "positive = (alike & known).scatter(", "positive = alike.scatter("),
    ("pairs", "negative = ~alike & known", "negative = ~positive & known"),
    ("pairs", "negative = ~alike & known", "negative = ~alike"),
    (
        "pairs",
        "index, non_negatives = _indices(positive), _indices(~negative)",
        "index = non_negatives = _indices(positive)",
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
    ("svm", "non_negatives == positive[:, None], -1", "non_negatives < 0, -1"),
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
    ("svm", "delta(extrapolated, 2.0)", "delta(extrapolated, 1.0)"),
    (
        "svm",
        "(extrapolated - step * gradient).clamp(0, cost)",
        "(extrapolated - step * gradient).clamp(min=0)",
    ),
    ("svm", "(momentum - 1) / next_momentum", "0 * next_momentum"),
    # distance polarization
    ("penalties", "(2 * upper - double).mul_(double.sub_", "(double - 2 * upper).mul_(double.sub_"),
    ("penalties", "double.sub_(2 * lower)", "double.sub_(lower)"),
    ("penalties", "value.div_(4)", "value.div_(2)"),
    ("penalties", ".clamp_(min=0)", ""),
    ("penalties", "without(depth, excluded[rows], 0.0, in_place=True), 1", "depth, 1"),
    ("penalties", "by_value[:, None] / 4", "by_value[:, None] / 2"),
    ("penalties", "slope.sub_((2 * upper", "slope.add_((2 * upper"),
    (
        "penalties",
        "_within(slope, double, first, last, out=gradient[rows])",
        "gradient[rows].copy_(slope)",
    ),
    ("penalties", "[2 * lower, 2 * upper]", "[lower, upper]"),
    ("penalties", "return value * anchors", "return value"),
    ("penalties", "value * (anchors /", "value * (2 * anchors /"),
    ("penalties", 'positives=among == "negatives"', 'positives=among != "negatives"'),
    ("penalties", "torch.arange(start, start + len(cosines)", "0 * torch.arange(len(cosines)"),
    ("penalties", "count + torch.count_nonzero(pairs.positive)", "count"),
    ("penalties", "cosines.numel() - len(cosines)", "cosines.numel()"),
    ("penalties", "numel() - pairs.non_negative_index", "numel() + pairs.non_negative_index"),
    ("penalties", "others += pairs.positives().numel()", "others += 0 * pairs.positives().numel()"),
    ("penalties", "some, 1 - 2 * upper, 1 - 2 * lower,", "some, 1 - 2 * upper, 1 - lower,"),
    ("penalties", "mine.copy_(some)", "mine.copy_(2 * some)"),
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


def load(changed: dict[str, str]) -> ModuleType:
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
    for name in MODULES:
        public = {k: v for k, v in vars(getattr(package, name)).items() if k in shared.__all__}
        vars(package).update(public)
    return package


@functools.cache
def unchanged() -> ModuleType:
    return load({})


def cases(test: Callable[..., None]) -> list[functools.partial[None]]:
    """A test with each of its parameters' values."""
    rows = itertools.product(*map(parameters, getattr(test, "pytestmark", ())))
    return [functools.partial(test, **dict(itertools.chain(*row))) for row in rows]


def parameters(mark: pytest.Mark) -> Iterator[list[tuple[str, Any]]]:
    """What ``parametrize`` gives: names with a value of each."""
    names, rows = mark.args
    for row in rows:
        if isinstance(names, str):
            value = row.values[0] if isinstance(row, type(pytest.param())) else row
            yield [(names, value)]
        else:
            yield list(zip(names, row, strict=True))


TAKE_A_CORE = [
    test
    for module in TESTS
    for name, test in vars(module).items()
    if name.startswith("test_") and "core" in inspect.signature(test).parameters
]
# A case of each test, then a second of each...
CASES = [case for turn in itertools.zip_longest(*map(cases, TAKE_A_CORE)) for case in turn if case]
KILLERS: dict[str, dict[Callable[..., None], None]] = defaultdict(dict)  # the latest last


def rejected(core: ModuleType, module: str) -> Callable[..., None] | None:
    """A case that fails where this module was mutated; what failed lately for it is asked first."""
    killers = KILLERS[module]
    own = ("losses", "margins") if module == "losses" else (module,)
    others = sorted(CASES, key=lambda case: case.func.__module__.rpartition("test_")[2] not in own)
    for case in [*reversed(killers), *others]:
        try:
            case(core=core)
        except REJECTIONS:
            killers.pop(case, None)
            killers[case] = None
            return case
    return None


@functools.cache
def passes_unchanged(case: Callable[..., None]) -> bool:
    case(core=unchanged())
    return True


def test_the_copies_are_copies() -> None:
    real = dict(sys.modules)
    marked = load({"losses": source("losses") + "\nMARK = 1\n"})
    assert marked.losses.MARK == 1
    assert marked.info_nce is not shared.info_nce
    assert not hasattr(shared.losses, "MARK")
    assert {k: v for k, v in sys.modules.items() if k.startswith("shared")} == {
        k: v for k, v in real.items() if k.startswith("shared")
    }
    with pytest.raises(SyntaxError):
        load({"losses": "def"})
    assert sys.modules["shared.losses"] is shared.losses
    CASES[0](core=unchanged())


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
    case = rejected(load({module: original.replace(text, replacement)}), module)
    assert case is not None
    assert passes_unchanged(case)  # it is the mutation that it rejects
