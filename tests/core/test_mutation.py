"""Would a wrong formula be noticed? The core is mutated in one place at a time.

Mutants are made from the syntax tree of the functions below: an operator, operand, constant,
argument, call or statement is changed or left out. The mutated module and those after it are loaded
beside the real ones, and some test that takes a ``core`` has to reject them.
"""

import ast
import functools
import importlib
import inspect
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import pytest

import shared
from shared import distributed

SHARED = Path(distributed.__file__).parent
# In order of imports.
MODULES = ("ranges", "pairs", "checks", "svm", "losses", "margins", "penalties", "projection")
TESTS = [
    importlib.import_module(f"tests.core.test_{name}")
    for name in "pairs checks parity margins projection derivatives losses penalties svm".split()
]
# What stops a mutated core: a figure that differs, an operation that fails, a missing warning.
REJECTIONS = (Exception, pytest.fail.Exception)
# The functions that are mutated, by module.
FUNCTIONS = {
    "ranges": "_number",
    "pairs": "query_key context_window same_label _one_positive _without_copies indices_of",
    "margins": "margin_nce alignment angular_margin subtractive_margin curvature_weight "
    "margin_ratio attenuation_weight _log_denominator",
    "svm": "_bordered_inverse _invert_definite _closed_form _projected_gradient.delta "
    "_with_positive",
    "losses": "info_nce _hard_nce max_margin scale_gradient _LogSumExpAndPick.forward "
    "_LogSumExpAndPick.backward _softmax _logsumexp_and_pick _picked _divided _log_mean_exp "
    "mean_over_positives _softplus",
    "penalties": "distance_polarization _depth _Band.forward _Band.backward _within _count _chosen",
    "projection": "LowRankProjection.forward LowRankProjection.reconstruct "
    "LowRankProjection.norm_of_matrix reduce_matrix",
}
# Mutants that no test can reject, by the reason.
EQUIVALENT = {
    "one process: with several they are what test_distributed.py compares": [
        "pairs.context_window: start + size -> size",
        "pairs.query_key: start + len(query) -> len(query)",
        "pairs.same_label: start + len(embedding) -> len(embedding)",
        "penalties._chosen: start + len(cosines) -> len(cosines)",
        "projection.LowRankProjection.forward: row_counts(view).sum().clamp(min=1)"
        " -> row_counts(view).sum()",
    ],
    "only the absolute value, or the square, of the difference is used": [
        "pairs.context_window: position_of_anchor[:, None] - position[None, :]"
        " -> position[None, :] - position_of_anchor[:, None]",
        "projection.LowRankProjection.forward: self.reconstruct(every) - every"
        " -> every - self.reconstruct(every)",
        "projection.LowRankProjection.forward: view - unit_rows(self.reconstruct(view))"
        " -> unit_rows(self.reconstruct(view)) - view",
    ],
    "nothing is differentiated there": [
        "losses.max_margin: pairs.candidate.detach() -> pairs.candidate",
        "losses.max_margin: similarity.detach() -> similarity",
        "pairs._without_copies: pairs.candidate.detach() -> pairs.candidate",
        "projection.LowRankProjection.forward: penalty.detach() -> penalty",
        "projection.LowRankProjection.forward: reconstruction.detach() -> reconstruction",
        "projection.LowRankProjection.forward: size.detach() -> size",
    ],
    "saves time or memory, and changes no number": [
        "losses._LogSumExpAndPick.forward: ctx.set_materialize_grads(False) -> pass",
        "losses._softmax: :len(block) -> len(block):",
        "svm._invert_definite: size // 2 -> 2",
    ],
    "what it guards against is left out by the condition or the comparison after it": [
        "losses._LogSumExpAndPick.backward: "
        "torch.where(index >= 0, by_picked * ctx.pick_scale, 0.0) -> by_picked * ctx.pick_scale",
        "losses._hard_nce: (excess < 0) & (count > 0) -> excess < 0",
        "losses._hard_nce: (excess < 0) & (count > 0) -> count > 0",
        "losses._hard_nce: (excess < 0) & (count > 0) -> (excess < 0) | (count > 0)",
        "losses._hard_nce: -1.0 -> 1.0",
        "losses._log_mean_exp: present.sum(1).clamp(min=1) -> present.sum(1)",
        "losses._softmax: -math.inf -> math.inf",
        "losses._softplus: -math.inf -> math.inf",
        "penalties._chosen: start + len(cosines) -> start",
        "svm._closed_form: others.clamp(min=0) -> others",
        "svm._closed_form: real[:, :, None] & real[:, None, :] -> real[:, :, None]",
        "svm._closed_form: column.masked_fill_(~negative[rows], 0.0) -> pass",
        "svm._closed_form: column.masked_fill_(~negative[rows], 0.0) -> column",
    ],
    "both sides are equal at the bound, or no number meets it": [
        "losses._softmax: block.amax(1, keepdim=True).clamp_(finite.min, finite.max)"
        " -> block.amax(1, keepdim=True).clamp_(finite.min)",
        "margins.curvature_weight: (1 - angle ** exponent).clamp(min=0) -> 1 - angle ** exponent",
    ],
    "the same number: NaN, 1 times it, or the next one in the same direction": [
        "margins.margin_nce: row_weight * weight -> weight",
        "penalties._Band.backward: 3.0 -> 1.5",
        "svm._bordered_inverse: inverse.add_ -> inverse.sub_",
    ],
    "the constant of a kernel, and the eigenvalue of its direction, drop out": [
        "svm._bordered_inverse: centred.diagonal().mean().clamp(min=0) -> centred.diagonal().mean()"
    ],
    "what is left there is 0 but for rounding": [
        "svm._with_positive: weights.scatter_add -> weights.scatter"
    ],
    "the first step brings it into the box": ["svm.dual_weights: cost -> math.inf"],
}
# What no rule makes: in a function, each expression or statement of this text becomes the other.
MISTAKES = """
pairs.Pairs.__post_init__: both.numel() and both.amax() -> False
pairs.two_views: [in_second, in_first, in_first, in_second] -> [in_first, in_second] * 2
pairs.same_label: ~alike & known -> ~positive & known
pairs._without_copies: bits -> bits[:, 7:8]
pairs._without_copies: alike.unflatten(1, (views, -1)).any(1).repeat(1, views)
    -> alike.unflatten(1, (views, -1)).any(1).repeat_interleave(views, 1)
pairs.unit_rows: torch.linalg.vector_norm(torch.where(zero, 1.0, rows), dim=1, keepdim=True)
    -> torch.linalg.vector_norm(torch.where(zero, 1.0, rows), dim=0, keepdim=True)
pairs.context_window: distance <= reach -> distance < reach
pairs.unit_rows: torch.where(zero, 1.0, rows) -> rows
pairs.unit_rows: torch.where(zero, 1.0, length) -> length
ranges._number: holds(x) -> True
checks.check_similarity: tuple(similarity.shape) != shape -> similarity.ndim != 2
checks.check_similarity: not similarity.is_floating_point() -> similarity.is_complex()
checks.check_cosines: highest <= limit -> lowest <= limit
checks.check_cosines: 1 + max(COSINE_SLACK, 2 * torch.finfo(values.dtype).eps) -> 2 + COSINE_SLACK
checks.check_cosines: pairs.positive | pairs.negative -> pairs.negative
margins: 1e-07 -> 0.0
losses.scale_gradient: constant + factor * (value - constant) -> factor * value
margins.margin_ratio: similarity -> margined
margins._log_denominator: (similarity / temperature).detach() -> similarity.detach() / temperature
svm.kernel_values: 2 * gamma -> gamma
svm.kernel_values: gamma * cosines + offset -> gamma * cosines
svm.dual_weights: 1 - points.diagonal() -> points.diagonal() - 1
svm.dual_weights: (~pairs.negative).scatter(1, positive[:, None], False) -> ~pairs.negative
svm.dual_weights: cost -> math.inf
svm.dual_weights: weights.mul_(present[:, None]) -> weights
svm.dual_weights: (positives >= 0).sum(1).clamp(min=1)[:, None]
    -> 1 / (positives >= 0).sum(1).clamp(min=1)[:, None]
svm._bordered_inverse: inverse.diagonal().add_(ridge) -> inverse.diagonal().add_(2 * ridge)
svm._bordered_inverse: centred.mul_(bordered).sum(1) -> centred.mul_(bordered).sum()
svm._projected_gradient: 2.0 -> 1.0
svm._projected_gradient: cost -> math.inf
svm._projected_gradient: (momentum - 1) / next_momentum -> 0
losses._divided: temperature -> temperature.detach()
losses._LogSumExpAndPick.forward: pick_scale -> scale
losses._logsumexp_and_pick: pick_scale -> 0.0 * scale
losses._hard_nce: beta / divisor -> 2 * beta / divisor
losses._hard_nce: plain_score -> score
losses._hard_nce: detach_weights -> not detach_weights
losses._hard_nce: math.log(tau_plus) -> math.log1p(-tau_plus)
losses._hard_nce: math.log1p(-tau_plus) -> math.log(tau_plus)
losses._hard_nce: torch.log(-torch.expm1(excess)) -> torch.log1p(torch.exp(excess))
losses.max_margin: (weights * svm.kernel_values(similarity, kernel, gamma, offset)).sum(1)
    -> (weights * svm.kernel_values(similarity, kernel, gamma, offset)).mean(1)
margins.margin_nce: emphasis -> 1.0
margins.margin_nce: ratio == 'row' -> ratio == 'positive'
margins.margin_nce: attenuation_scope == 'row' -> attenuation_scope == 'positive'
margins.margin_nce: scale_gradient(margined, row_weight) -> row_weight * margined
penalties._Band.backward: _within(slope, double, first, last, out=gradient[rows])
    -> gradient[rows].copy_(slope)
penalties.distance_polarization: anchors / count.clamp(min=1).to(value.dtype) -> 1
penalties._chosen: torch.arange(start, start + len(cosines), device=cosines.device)
    -> 0 * torch.arange(len(cosines))
penalties.band_statistics: 1 - 2 * lower -> 1 - lower
penalties.band_statistics: buffer.copy_(block) -> buffer.copy_(2 * block)
penalties._Band.backward: [2 * lower, 2 * upper] -> [lower, upper]
projection.LowRankProjection.norm_of_matrix: torch.linalg.vector_norm(matrix, dim=0)
    -> torch.linalg.vector_norm(matrix, dim=1)
projection.LowRankProjection.warn_if_collapsed: share < COLLAPSED -> share > COLLAPSED
projection.nuclear_norm: torch.where(real, squares, 1.0).sqrt() -> squares
projection.LowRankProjection.forward: (self.reconstruct(every) - every).square().sum(1)
    -> (self.reconstruct(every) - every).square().mean(1)
projection.nuclear_norm: wide.T @ wide -> wide
projection.reduce_matrix: torch.linalg.eigh(wide.T @ wide).eigenvectors[:, -dimensions:]
    -> torch.linalg.eigh(wide.T @ wide).eigenvectors[:, :dimensions]
projection.reduce_matrix: torch.linalg.vector_norm(matrix, dim=0).topk(dimensions)
    -> (-torch.linalg.vector_norm(matrix, dim=0)).topk(dimensions)
""".strip().replace("\n    ->", " ->")
MISTAKES_IN: dict[str, list[list[str]]] = defaultdict(list)
for line in MISTAKES.splitlines():
    function, _, change = line.partition(": ")
    MISTAKES_IN[function].append(change.split(" -> "))
RULED = {f"{module}.{name}" for module, names in FUNCTIONS.items() for name in names.split()}
EVERY = sorted(RULED.union(MISTAKES_IN))
OPERATORS: dict[type[ast.AST], type[Any]] = {
    ast.Add: ast.Sub,
    ast.Mult: ast.Div,
    ast.BitAnd: ast.BitOr,
    ast.Eq: ast.NotEq,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
}
OPERATORS |= {other: one for one, other in OPERATORS.items()} | {ast.Pow: ast.Mult}
NAMES = {
    "add": "sub",
    "add_": "sub_",
    "amin": "amax",
    "log": "log1p",
    "repeat": "repeat_interleave",
    "sin": "cos",
    "zeros_like": "ones_like",
}
NAMES |= {other: one for one, other in NAMES.items()}
NAMES |= {"expm1": "exp", "mul_": "div_", "scatter_add": "scatter", "scatter_add_": "scatter_"}
# Tests that take long, which others spare.
COSTLY = (
    "test_blocks_of_rows_change_nothing",
    "test_edges_are_finite_and_equal_the_loops",
    "test_band_statistics_of_several_blocks_of_rows_and_of_no_negatives",
)
LATEST = 5  # killers that are asked first
LIBRARIES = ("math", "torch")
# Calls that are left out, all but what they are applied to.
UNWRAPPED = set(
    "arccos clamp clamp_ detach exp exp_ expm1 log log_ sqrt tanh add_ logical_or_ masked_fill "
    "masked_fill_ max mul mul_ scatter sub_ scale_gradient unit_rows _softplus".split()
)
DROPPED = ("alpha", "beta")  # arguments that are left out
TECHNICAL = ("enabled", "in_place", "keepdim")  # arguments that change no number
# Neither types nor defaults; nor conditions, which mostly choose between two ways to the same
# numbers: for the others see MISTAKES.
SKIPPED = ("annotation", "returns", "decorator_list", "defaults", "kw_defaults", "test", "items")


def alternatives(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of a node."""
    match node:
        case ast.BinOp(left, op, right):
            yield left
            yield right
            if type(op) in OPERATORS:
                yield ast.BinOp(left, OPERATORS[type(op)](), right)
            if isinstance(op, ast.Sub):
                yield ast.BinOp(right, op, left)
        case ast.AugAssign(target, op, value):
            yield ast.Pass()
            yield ast.Assign([target], value)
            yield ast.AugAssign(target, OPERATORS[type(op)](), value)
        case ast.Compare(left, [op], right) if type(op) in OPERATORS:
            yield ast.Compare(left, [OPERATORS[type(op)]()], right)
        case ast.UnaryOp(_, operand):
            yield operand
        case ast.keyword(name, ast.Constant(bool() as value)) if name not in TECHNICAL:
            yield ast.keyword(name, ast.Constant(not value))
        case ast.Constant(int() | float() as value) if value > 1:
            yield ast.Constant(type(value)(value / 2))
        case ast.Attribute(value, name) if name in NAMES:
            yield ast.Attribute(value, NAMES[name], ast.Load())
        case ast.Call(ast.Attribute(_, "where"), [condition, first, second]):
            yield first
            yield second
            yield ast.Call(node.func, [condition, second, first], [])
        case ast.Call(called, arguments, keywords):
            for keyword in keywords:
                if keyword.arg in DROPPED:
                    rest = [each for each in keywords if each is not keyword]
                    yield ast.Call(called, arguments, rest)
            match called:
                case ast.Attribute(value, name) if name in UNWRAPPED:
                    yield arguments[0] if ast.unparse(value) in LIBRARIES else value
                case ast.Name(name) if name in UNWRAPPED:
                    yield arguments[0]
            if len(arguments) > 1 and "clamp" in ast.unparse(called):
                yield ast.Call(called, arguments[:-1], keywords)
        case ast.Slice(lower, upper) if (lower is None) != (upper is None):
            yield ast.Slice(upper, lower)
        case ast.Expr(ast.Call()) | ast.Assign([ast.Subscript()]) | ast.Assign(_, ast.Name()):
            yield ast.Pass()
        case ast.List([first, second, *rest]):
            yield ast.List([second, first, *rest], ast.Load())


class Mutant(NamedTuple):
    """A change of one function: ``put`` puts another node in the place of one below ``top``."""

    module: str
    name: str
    put: Callable[[ast.AST], None]
    node: ast.AST
    other: ast.AST
    top: Any

    def code(self) -> CodeType:
        self.put(self.other)
        try:
            changed = ast.Module([self.top], []) if isinstance(self.top, ast.stmt) else self.top
            return compile(changed, f"{self.module}.py", "exec")
        finally:
            self.put(self.node)


def mutants(function: str) -> Iterator[Mutant]:
    """All mutants of a function, named by the text before and after."""
    module, *names = function.split(".")
    root: Any = tree(module)
    top = root
    for name in names:
        (root,) = (each for each in root.body if getattr(each, "name", "") == name)
        if isinstance(top, ast.Module) and module != "ranges":  # which calls its own at import
            top = root
    count: dict[str, int] = defaultdict(int)
    for node, put, skipped in places(root):
        text = ast.unparse(node)
        others = [] if skipped or function not in RULED else [*alternatives(node)]
        if isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store):
            others += [
                ast.parse(new, mode="eval").body
                for old, new in MISTAKES_IN[function]
                if old == text
            ]
        for other in others:
            ast.fix_missing_locations(ast.copy_location(other, node))
            name = f"{function}: {text} -> {ast.unparse(other)}"
            count[name] += 1
            name += f" ({count[name]})" * (count[name] > 1)
            yield Mutant(module, name, put, node, other, top)


def places(root: ast.AST, skipped: bool = False) -> Iterator[tuple[ast.AST, Any, bool]]:
    """The nodes below a node, what puts another in the place of each, and if no rule changes it."""
    for field, value in ast.iter_fields(root):
        nodes = value if isinstance(value, list) else [value]
        for index, node in enumerate(nodes):
            if isinstance(node, ast.AST) and not is_check(node):
                put = functools.partial(setattr, root, field)
                if nodes is value:
                    put = functools.partial(value.__setitem__, index)
                passed_by = skipped or field in SKIPPED
                yield node, put, passed_by
                yield from places(node, passed_by)


def is_check(node: ast.AST) -> bool:
    """Whether a node refuses input, or is a message of what does."""
    return isinstance(node, ast.Raise | ast.JoinedStr) or (
        isinstance(node, ast.Expr)
        and bool(re.match(r"(self\.)?_?(check|require)", ast.unparse(node)))
    )


def source(module: str) -> str:
    return (SHARED / f"{module}.py").read_text()


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(source(module))


@functools.cache
def compiled(module: str) -> CodeType:
    return compile(source(module), f"{module}.py", "exec")


def load(changed: dict[str, CodeType]) -> ModuleType:
    """A second copy of the core, with more code at the end of some modules; the real one stays put.

    Modules before the first changed one are those of the unchanged copy.
    """
    first = min(map(MODULES.index, changed), default=0)
    kept = {name: getattr(unchanged(), name) for name in MODULES[:first]}
    real = {name: sys.modules[name] for name in imported_of_shared()}
    package = ModuleType("shared")
    package.__path__ = []
    try:
        for name in real:
            del sys.modules[name]
        sys.modules["shared"] = package
        sys.modules["shared.distributed"] = distributed
        for name in MODULES:
            module = kept.get(name) or ModuleType(f"shared.{name}")
            sys.modules[module.__name__] = module
            if name not in kept:
                exec(compiled(name), vars(module))
            if name in changed:
                exec(changed[name], vars(module))
            setattr(package, name, module)
    finally:
        for name in imported_of_shared():
            del sys.modules[name]
        sys.modules.update(real)
    for name in MODULES:
        public = {k: v for k, v in vars(getattr(package, name)).items() if k in shared.__all__}
        vars(package).update(public)
    return package


def imported_of_shared() -> list[str]:
    return [name for name in sys.modules if name == "shared" or name.startswith("shared.")]


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


def rejected(mutant: Mutant) -> Callable[..., None] | None:
    """A case that fails on a mutant; what failed lately on one of its module is asked first."""
    killers = KILLERS[mutant.module]
    core = load({mutant.module: mutant.code()})
    name = mutant.name.partition(":")[0].rpartition(".")[2].strip("_")
    for case in [*[*reversed(killers)][:LATEST], *ordered(mutant.module, name)]:
        try:
            case(core=core)
        except REJECTIONS:
            killers.pop(case, None)
            killers[case] = None
            return case
    return None


@functools.cache
def ordered(module: str, name: str) -> list[functools.partial[None]]:
    """The cases: first those of the module's tests, of these those that name the function."""
    own = {"losses": ("losses", "margins"), "ranges": ("checks",)}.get(module, (module,))
    return sorted(
        CASES,
        key=lambda case: (
            case.func.__module__.rpartition("test_")[2] not in own,
            case.func.__name__ in COSTLY,
            name not in str(case.keywords),
        ),
    )


@functools.cache
def passes_unchanged(case: functools.partial[None]) -> bool:
    case(core=unchanged())
    return True


def test_the_copies_are_copies() -> None:
    real = {name: sys.modules[name] for name in imported_of_shared()}
    marked = load({"losses": compile("MARK = 1", "losses.py", "exec")})
    assert marked.losses.MARK == 1
    assert marked.info_nce is not shared.info_nce
    assert marked.cosine is not shared.cosine
    assert not hasattr(shared.losses, "MARK")
    with pytest.raises(ZeroDivisionError):
        load({"losses": compile("1 / 0", "losses.py", "exec")})
    assert {name: sys.modules[name] for name in imported_of_shared()} == real
    CASES[0](core=unchanged())


@pytest.mark.slow
@pytest.mark.parametrize("function", EVERY)
def test_mutants_are_rejected(function: str) -> None:
    alive = []
    for mutant in mutants(function):
        if mutant.name not in itertools.chain(*EQUIVALENT.values()):
            case = rejected(mutant)
            if case is None:
                alive.append(mutant.name)
            else:
                assert passes_unchanged(case)  # it is the mutation that it rejects
    assert alive == [], "write a test that fails on each, or say in EQUIVALENT why none can"


def test_what_is_listed_is_made() -> None:
    made = {mutant.name for function in EVERY for mutant in mutants(function)}
    assert made >= {*itertools.chain(*EQUIVALENT.values())}
    for function in EVERY:
        texts = {ast.unparse(mutant.node) for mutant in mutants(function)}
        assert texts >= {old for old, _ in MISTAKES_IN[function]}
