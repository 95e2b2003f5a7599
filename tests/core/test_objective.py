"""An objective is the sum of its parts."""

import copy
import math
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import shared
from shared import (
    Objective,
    Pairs,
    Projection,
    consistency,
    cosine,
    distance_polarization,
    hard_nce,
    info_nce,
    inner_product,
    lazy,
    margin_nce,
    max_margin,
    query_key,
    same_label,
    term,
    two_views,
)
from shared.experiment.config import canonical
from shared.lazy import LazyImport
from shared.objective import SHARE_PREFIX
from tests.stages import layouts, reference

NCE = term(info_nce, temperature=0.3)
POLARIZED = (
    term(distance_polarization, weight=0.2, reduction="mean"),
    term(consistency, weight=0.3, temperature=0.5),
)
OBJECTIVES = {
    "weighted": Objective(term(hard_nce, weight=2.0, temperature=0.3, tau_plus=0.1, beta=1.0)),
    "by hand": Objective(term(margin_nce, weight=2.0, temperature=0.3, angular=0.4)),
    "solver": Objective(term(max_margin, gamma=2.0), POLARIZED),
    "penalties": Objective(NCE, POLARIZED),
    "l21": Objective(NCE, POLARIZED[:1], Projection(0.1, {"norm": "l21", "alpha": 0.5})),
    "authors": Objective(NCE, (), Projection(0.1, {"form": "authors", "norm": "none", "rows": 2})),
}


@pytest.mark.parametrize("layout", ["two views", "masks"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_criterion_gives_the_sum_of_the_loops(name: str, layout: str) -> None:
    objective, case = OBJECTIVES[name], layouts.make(layout, 4)
    criterion = objective.build(3).double()
    matrix = None
    if criterion.projection is not None:
        torch.manual_seed(0)
        matrix = criterion.projection.matrix.data.normal_()
    mine, other = case.fresh(), case.fresh()
    found = layouts.differentiated(criterion(case.pairs(mine))[0], mine)
    expected = layouts.objective_of_loops(objective, case.layout(other), matrix)
    layouts.assert_close(found, layouts.differentiated(expected, other))


def test_the_parts_are_named_and_detached() -> None:
    """The projection is of features of their own, wider than the embeddings."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 6, 4, generator=generator, requires_grad=True)
    features = torch.randn(2, 6, 9, generator=generator)
    objective = Objective(
        term(hard_nce, weight=0.5, temperature=0.5, tau_plus=0.1, beta=1.0),
        penalties=(term(distance_polarization, weight=0.2, lower=0.2, upper=0.7),),
        projection=Projection(0.1, {"alpha": 3.0, "init": "normal"}),
    )
    criterion = objective.build(9)
    total, parts = criterion(two_views(*rows), features=list(features))
    assert set(parts) == {
        "hard_nce",
        "distance_polarization",
        "share_in_band",
        "mean_cosine",
        "projection_reconstruction",
        "projection_norm",
    }
    assert not any(part.requires_grad for part in parts.values())
    assert criterion.projection is not None
    penalty, _ = criterion.projection(list(features))
    both = parts["projection_reconstruction"] + 3.0 * parts["projection_norm"]
    assert float(penalty.detach()) == pytest.approx(float(both))
    assert float(total.detach()) == pytest.approx(
        0.5 * float(parts["hard_nce"])
        + 0.2 * float(parts["distance_polarization"])
        + 0.1 * float(penalty.detach()),
        rel=1e-6,
    )
    pairs = two_views(*rows.detach())
    distance = (1 - cosine(pairs.anchor, pairs.candidate)[pairs.negative]) / 2
    share = ((distance > 0.2) & (distance < 0.7)).float().mean()
    assert float(parts["share_in_band"]) == pytest.approx(float(share))


def test_a_function_that_is_there_twice_has_two_parts() -> None:
    sharp, smooth = term(info_nce, temperature=0.1), term(info_nce, temperature=1.0)
    pairs = two_views(torch.randn(4, 3), torch.randn(4, 3))
    _, parts = Objective(sharp, penalties=(smooth, smooth)).build(3)(pairs)
    assert list(parts) == ["info_nce", "info_nce_2", "info_nce_3"]
    for name, loss in zip(parts, (sharp, smooth, smooth), strict=True):
        assert parts[name] == Objective(loss).build(3)(pairs)[0]


def test_a_learned_similarity_takes_part_in_the_loss_and_not_in_the_penalty() -> None:
    similarity = layouts.Bilinear(3)
    numbers: dict[str, Any] = {"temperature": 1.0, "tau_plus": 0.1, "beta": 0.5, "floor": "minimum"}
    objective = Objective(term(hard_nce, **numbers), (term(distance_polarization, weight=0.2),))
    criterion = objective.build(3, similarity)
    assert [name for name, _ in criterion.named_parameters()] == ["similarity.matrix"]
    matrix = similarity.matrix.detach().clone().requires_grad_()
    case = layouts.make("query key", 4)
    mine, other = case.fresh(), case.fresh()
    found = layouts.differentiated(criterion(case.pairs(mine))[0], [*mine, similarity.matrix])
    layout = case.layout(other)
    scores = layout.anchor @ matrix @ layout.candidate.T
    loss = reference.hard_nce(scores, layout.positives, layout.negatives, **numbers).mean()
    expected = loss + 0.2 * reference.distance_polarization(layout)
    layouts.assert_close(found, layouts.differentiated(expected, [*other, matrix]))
    assert (found[-1] != 0).all()


LATER = """
import sys
import shared
from shared.lazy import info_nce

objective = shared.Objective(shared.term(info_nce, temprature=0.5))
assert "torch" not in sys.modules
objective.build(4)
"""


def test_a_loss_that_is_yet_to_be_imported_is_checked_by_the_criterion() -> None:
    command = [sys.executable, "-c", LATER]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert "ValueError: info_nce takes no temprature" in done.stderr


def test_a_loss_by_its_name_is_that_loss() -> None:
    names = [name for name, value in vars(lazy).items() if isinstance(value, LazyImport)]
    assert len(names) == 8
    for name in names:
        assert getattr(lazy, name).load() is getattr(shared, name)
    named, given = term(lazy.info_nce, temperature=0.5), term(info_nce, temperature=0.5)
    assert named == given
    assert given == named
    assert repr(named) == repr(given)
    assert canonical(named) == canonical(given)
    assert named != term(info_nce, temperature=0.4)
    assert named != term(info_nce, temperature=0.5, weight=2.0)
    assert named != term(margin_nce, temperature=0.5)
    pairs = two_views(*torch.randn(2, 5, 3).unbind())
    assert torch.equal(Objective(named).build(3)(pairs)[0], Objective(given).build(3)(pairs)[0])


def test_a_term_by_itself_has_no_weight() -> None:
    made = term(distance_polarization, weight=3.0, lower=0.2)
    assert (made.weight, made.kwargs) == (3.0, {"lower": 0.2})
    rows = torch.eye(2)
    value = made(query_key(rows, rows), torch.full((2, 2), 0.4))
    assert value.tolist() == pytest.approx([0.1 * 0.2, 0.1 * 0.2])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_inside_autocast_the_criterion_computes_in_single_precision(name: str) -> None:
    criterion = OBJECTIVES[name].build(8)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 5, generator=generator, requires_grad=True)
    inputs = torch.randn(2, 6, 5, generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, second = (nn.functional.linear(view, weight) for view in inputs)
        assert first.dtype == torch.bfloat16
        value, parts = criterion(two_views(first, second))
    same, _ = criterion(two_views(first.float(), second.float()))
    assert value.dtype == torch.float32
    assert all(part.dtype == torch.float32 for part in parts.values())
    assert torch.equal(value, same)
    value.backward()
    assert torch.isfinite(weight.grad).all()


def test_a_loss_that_is_not_finite_is_named_as_such() -> None:
    def infinite(anchor: Tensor, candidate: Tensor) -> Tensor:
        return (anchor @ candidate.T) * math.inf

    criterion = Objective(term(info_nce, temperature=0.5)).build(3, infinite)
    with pytest.raises(FloatingPointError, match="the loss is not finite"):
        criterion(query_key(torch.ones(3, 3), torch.ones(3, 3)))
    matrix = Objective(term(info_nce, temperature=0.5), projection=Projection()).build(3)
    assert matrix.projection is not None
    with torch.no_grad():
        matrix.projection.matrix[0, 0] = math.nan
    with pytest.raises(FloatingPointError, match="the loss is not finite at step 0"):
        matrix(query_key(torch.ones(3, 3), torch.ones(3, 3)), step=0)


def test_the_criterion_can_be_saved_and_loaded() -> None:
    objective = Objective(
        term(info_nce, temperature=0.5), projection=Projection(kwargs={"init": "normal"})
    )
    first, second = objective.build(4), objective.build(4)
    second.load_state_dict(first.state_dict())
    pairs = two_views(torch.randn(3, 4), torch.randn(3, 4))
    assert torch.equal(first(pairs)[0], second(pairs)[0])


def test_a_learned_temperature_belongs_to_the_criterion() -> None:
    shared = nn.Parameter(torch.tensor(0.5))
    objective = Objective(
        term(info_nce, temperature=shared), (term(consistency, temperature=shared),)
    )
    criterion = objective.build(3)
    (own,) = criterion.parameters()
    optimiser = torch.optim.SGD(criterion.parameters(), lr=0.1)
    criterion(two_views(torch.eye(3), torch.eye(3).flip(0)))[0].backward()
    optimiser.step()
    assert own.item() != 0.5
    assert [each.item() for each in objective.build(3).parameters()] == [0.5]
    assert shared.grad is None


@pytest.mark.parametrize("how", ["func", "assign", "meta", "copy"])
def test_a_learned_temperature_that_is_replaced_is_the_one_that_counts(how: str) -> None:
    """Two temperatures of equal value, of which one has two uses."""
    one, other = (nn.Parameter(torch.tensor(0.5)) for _ in "12")
    penalties = (term(consistency, temperature=other), term(consistency, temperature=one))
    criterion = Objective(term(info_nce, temperature=one), penalties).build(3)
    state = {"learned.0": torch.tensor(0.3), "learned.1": torch.tensor(0.9)}
    numbers = [term(consistency, temperature=x) for x in (0.9, 0.3)]
    expected = Objective(term(info_nce, temperature=0.3), tuple(numbers)).build(3)
    rows = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    pairs = two_views(*rows)
    if how == "func":
        value, _ = torch.func.functional_call(criterion, state, (pairs,))
        assert criterion(pairs)[0] != value
    else:
        if how == "meta":
            criterion = criterion.to("meta").to_empty(device="cpu")
        if how == "copy":
            criterion = pickle.loads(pickle.dumps(copy.deepcopy(criterion)))
        criterion.load_state_dict(state, assign=how == "assign")
        value, _ = criterion(pairs)
        value.backward()
        assert all(each.grad for each in criterion.parameters())
    assert value.item() == pytest.approx(expected(pairs)[0].item())


@pytest.mark.slow  # compiling takes seconds
def test_a_compiled_criterion_gives_the_same_numbers() -> None:
    temperature = nn.Parameter(torch.tensor(0.5))
    objective = Objective(
        term(margin_nce, temperature=temperature, angular=0.2),
        penalties=(term(distance_polarization, weight=0.1),),
        projection=Projection(kwargs={"alpha": 0.1}),
    )
    criterion = objective.build(4)
    compiled = torch.compile(copy.deepcopy(criterion), backend="aot_eager")
    rows = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    found, expected = (
        layouts.differentiated(each(two_views(*leaves))[0], [*leaves, *each.parameters()])
        for each in (compiled, criterion)
        for leaves in [rows.clone().requires_grad_().unbind()]
    )
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_embeddings_that_are_not_finite_are_an_error_that_names_the_step(bad: float) -> None:
    rows, broken = torch.eye(3), torch.eye(3)
    broken[1, 1] = bad
    for loss in (NCE, term(max_margin)):
        criterion = Objective(loss).build(3)
        # Also where no anchor has a positive.
        for pairs in (
            query_key(rows, broken),
            query_key(broken, rows),
            same_label(broken, torch.arange(3)),
        ):
            with pytest.raises(FloatingPointError, match="are NaN or infinite at step 12"):
                criterion(pairs, step=12)


def weighted_sum(pairs: Pairs, similarity: Tensor, *, weight: float = 1.0) -> Tensor:
    return weight * similarity.sum(1)


def mean(pairs: Pairs, similarity: Tensor, scale: float = 1.0) -> Tensor:
    return scale * similarity.mean()


def in_place(pairs: Pairs, similarity: Tensor, *, what: str) -> Tensor:
    """A margin on the positives, or only the harder half of the negatives; both in place."""
    tensor = similarity if what == "similarity" else getattr(pairs, what)
    if what == "similarity":
        tensor[pairs.positive] -= 0.2
    else:
        tensor[similarity < similarity.median()] = 0
    return similarity.sum(1)


@pytest.mark.parametrize("what", ["similarity", "positive", "negative"])
def test_a_term_that_changes_what_others_are_computed_of_is_refused(what: str) -> None:
    rows = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for objective in (
        Objective(term(in_place, what=what), POLARIZED),
        Objective(NCE, (term(in_place, what=what), *POLARIZED)),
    ):
        with pytest.raises(ValueError, match=f"{what} in place"):
            objective.build(3)(two_views(*rows))


def test_changes_in_place_are_not_looked_for_where_nothing_counts_them() -> None:
    """In inference mode, and under transforms."""
    criterion, rows = Objective(NCE, POLARIZED).build(3), torch.randn(2, 4, 3)
    expected = criterion(two_views(*rows))[0]
    with torch.inference_mode():
        assert torch.equal(criterion(two_views(*rows))[0], expected)
    slopes = torch.func.grad(
        lambda views: NCE(pairs := two_views(*views), cosine(pairs.anchor, pairs.candidate)).sum()
    )
    assert slopes(rows).isfinite().all()


ROWS = torch.eye(3)
PAIRS = two_views(ROWS, ROWS)
LEARNED = torch.tensor(0.5, requires_grad=True)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: Objective(NCE).build(3)(ROWS, ROWS), r"two_views\(first, second\)"),
        (lambda: Objective(NCE).build(3)(two_views(ROWS[:1], ROWS[:1])), "2 anchors .* has none"),
        (lambda: Objective(NCE, projection=Projection()).build(5)(PAIRS), r"\(6, 3\)"),
        (lambda: Objective(max_margin), r"term\(max_margin"),
        (lambda: Projection(kwargs={"dim": -1}), "dim"),
        (lambda: Projection(kwargs={"norm": "l1"}), "nuclear"),
        (lambda: max_margin(PAIRS), r"cosine\(pairs.anchor, pairs.candidate\)"),
        (lambda: max_margin(ROWS, ROWS), r"two_views\(first, second\)"),
        (lambda: info_nce(PAIRS, ROWS), "temperature"),
        (lambda: term(lazy.info_nce, temprature=0.5), "temprature"),
        (lambda: term(hard_nce, temperature=0.5), "beta, tau_plus"),
        (lambda: term(distance_polarization, similarity=0.5), "similarity"),
        (lambda: term(mean, scale=2.0), "keyword"),
        (lambda: Objective(term(mean)).build(3)(PAIRS), r"got \(\)"),
        # Else the weight is the term's, and the function's stays 1.
        (lambda: term(weighted_sum, weight=3.0), "weight"),
        (lambda: term(info_nce, temperature=LEARNED.exp()), "Parameter"),
        (lambda: Objective(term(max_margin)).build(3, inner_product), "cosines"),
        (lambda: Objective(term(margin_nce, temperature=1)).build(3, inner_product), "cosines"),
        (lambda: Objective(OBJECTIVES["weighted"].loss).build(3, inner_product), "floor"),
    ],
)
def test_unusable_terms_are_refused_in_one_line(call: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()
    assert "\n" not in str(caught.value)


def step_of_views(objective: Objective, step: int) -> tuple[dict[str, Tensor], list[Tensor]]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
    criterion = objective.build(dim=5)
    features = [network(torch.randn(12, 6)) for _ in range(2)]
    loss, parts = criterion(two_views(*features), features=features, step=step)
    loss.backward()
    trained = [*network.parameters(), *criterion.parameters()]
    return parts, [each.grad for each in trained if each.grad is not None]


@pytest.mark.parametrize("name", ["penalties", "authors", "l21", "solver"])
def test_measuring_shares_of_the_gradient_changes_no_bit_of_it(name: str) -> None:
    parts, measured = step_of_views(OBJECTIVES[name], 100)
    others, plain = step_of_views(OBJECTIVES[name], 101)
    assert len(measured) == len(plain) > 3
    assert all(map(torch.equal, measured, plain))
    shares = {key: value for key, value in parts.items() if key.startswith(SHARE_PREFIX)}
    assert parts.keys() - others.keys() == shares.keys()
    assert len(shares) > 1
    assert sum(shares.values()) == pytest.approx(1, abs=1e-6)


def test_the_share_of_a_term_is_that_of_its_gradient_on_the_embeddings() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(2, 8, 5, dtype=torch.float64).requires_grad_()
    loss, penalty = term(info_nce, temperature=0.5), term(distance_polarization, weight=0.7)
    pairs = two_views(first, second)
    parts = Objective(loss, (penalty,)).build(dim=5)(pairs, step=0)[1]
    similarity = cosine(pairs.anchor, pairs.candidate)
    values = (loss(pairs, similarity).mean(), 0.7 * penalty(pairs, similarity).mean())
    norms = [
        torch.autograd.grad(each, pairs.anchor, retain_graph=True)[0].norm() for each in values
    ]
    share = float(norms[1] / (norms[0] + norms[1]))
    assert 0.01 < share < 0.99
    assert float(parts[f"{SHARE_PREFIX}distance_polarization"]) == pytest.approx(share, rel=1e-6)
    with torch.no_grad():
        assert not any(
            key.startswith(SHARE_PREFIX)
            for key in Objective(loss, (penalty,)).build(dim=5)(pairs, step=0)[1]
        )
    assert not any(
        key.startswith(SHARE_PREFIX) for key in Objective(loss).build(dim=5)(pairs, step=0)[1]
    )


@pytest.mark.parametrize("beyond", [True, False])
def test_shares_with_a_projection_are_measured_where_all_terms_lead(beyond: bool) -> None:
    """On its input, where embeddings are computed from that; else on the embeddings."""
    torch.manual_seed(0)
    objective = OBJECTIVES["authors"]
    first, second = torch.randn(2, 12, 5).requires_grad_()
    if beyond:
        views = [torch.tanh(each) for each in (first, second)]
        pairs, features, inputs = two_views(*views), [first, second], [first, second]
    else:
        pairs = query_key(first, second)
        features, inputs = torch.cat([first, second]), [pairs.anchor, pairs.candidate]
    criterion = objective.build(dim=5)
    assert criterion.projection is not None
    criterion.projection.matrix.data.normal_()  # at the identity the gradient is zero
    parts = criterion(pairs, features=features, step=0)[1]
    loss = objective.loss(pairs, cosine(pairs.anchor, pairs.candidate)).mean()
    values = loss, 0.1 * criterion.projection(features)[0]
    norms = [
        torch.cat([g.flatten() for g in torch.autograd.grad(v, inputs, retain_graph=True)]).norm()
        for v in values
    ]
    share = float(norms[1] / sum(norms))
    assert share > 0
    assert float(parts[f"{SHARE_PREFIX}projection"]) == pytest.approx(share, rel=1e-4)
    detached = criterion(pairs, features=features if beyond else first.detach(), step=0)[1]
    assert any(key.startswith(SHARE_PREFIX) for key in detached) is beyond


@pytest.mark.parametrize("name", ["penalties", "authors"])
def test_shares_are_left_out_behind_a_reentrant_checkpoint_and_the_run_goes_on(name: str) -> None:
    torch.manual_seed(0)
    head, views = nn.Linear(5, 5), torch.randn(2, 12, 5)
    criterion = OBJECTIVES[name].build(dim=5)

    def step(reentrant: bool) -> tuple[dict[str, Tensor], Tensor]:
        features = [each.clone().requires_grad_() for each in views]
        embeddings = [checkpoint(head, each, use_reentrant=reentrant) for each in features]
        head.zero_grad()
        loss, parts = criterion(two_views(*embeddings), features=features, step=0)
        loss.backward()
        return parts, head.weight.grad.clone()

    (parts, found), (expected_parts, expected) = step(True), step(False)
    assert torch.equal(found, expected)
    # With a projection they are measured on the features, beyond the checkpoint.
    left_out = expected_parts.keys() - parts.keys()
    shares = {key for key in expected_parts if key.startswith(SHARE_PREFIX)}
    assert left_out == (shares if name == "authors" else set())
    assert shares
