"""SentEval's linear classifier, trained by Adam with early stopping; many are trained at once.

Conneau and Kiela 2018, the program's classifier without a hidden layer. All of them start from the
same seed, so that classifiers with equally many rows see the same batches. Each is a linear map
with a bias, both under weight decay; the loss is the mean cross-entropy over 64 rows. After every
fourth epoch it is scored on validation rows, and the first best state is kept; training ends at the
sixth score without improvement, or after 204 epochs. The validation rows are given by the caller,
or are the first twentieth of the shuffled training rows, which are then held out. (Before torch
0.4.1 the program's loss was the sum over a batch.)

Shapes: n rows, d features, F classifiers' training sets, C weight decays, K classes, B rows of a
batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

SEED = 1111
BATCH = 64
PASSES = 4  # epochs between two scores
PATIENCE = 5  # scores without improvement that are tolerated
MOST_PASSES = 204
HELD_OUT = 0.05
RATE, BETAS, EPSILON = 1e-3, (0.9, 0.999), 1e-8  # torch's Adam
LARGEST_BLOCK = 2**25  # entries of the batches that are held at a time


def predictions(
    features: Tensor,
    labels: Tensor,
    training: Sequence[tuple[np.ndarray, np.ndarray | None]],
    decays: Sequence[float],
) -> Tensor:
    """Classes (F, C, n), int64, that the classifiers predict for all rows, of features (n, d).

    training: for each classifier its training rows and its validation rows; None: a twentieth of
    the former.
    """
    classes = int(labels.max()) + 1
    predicted = torch.empty(
        len(training), len(decays), len(features), dtype=torch.int64, device=features.device
    )
    # Classifiers of one size share the order of the batches, and whether rows are held out.
    alike: dict[tuple[int, bool], list[int]] = {}
    for number, (rows, validation) in enumerate(training):
        alike.setdefault((len(rows), validation is None), []).append(number)
    largest = max(1, LARGEST_BLOCK // (BATCH * features.shape[1]))
    for members in alike.values():
        for start in range(0, len(members), largest):
            block = members[start : start + largest]
            weight, bias = _trained(
                features, labels, [training[number] for number in block], decays, classes
            )
            for position, number in enumerate(block):
                scores = torch.einsum("ckd,nd->cnk", weight[position], features)
                predicted[number] = (scores + bias[position][:, None]).argmax(2)
    return predicted


def _trained(
    features: Tensor,
    labels: Tensor,
    training: Sequence[tuple[np.ndarray, np.ndarray | None]],
    decays: Sequence[float],
    classes: int,
) -> tuple[Tensor, Tensor]:
    """The best weights (F, C, K, d) and biases (F, C, K) of classifiers with equally many rows."""
    random = np.random.RandomState(SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        start = nn.Linear(features.shape[1], classes)
    sets, device = len(training), features.device
    rows = [torch.from_numpy(indices) for indices, _ in training]
    validation = [None if indices is None else torch.from_numpy(indices) for _, indices in training]
    if validation[0] is None:
        order = torch.from_numpy(random.permutation(len(rows[0])))
        held = int(HELD_OUT * len(order))
        validation = [indices[order[:held]] for indices in rows]
        rows = [indices[order[held:]] for indices in rows]
    table = torch.stack(rows).to(device)  # (F, rows of each)
    checked = [indices.to(device) for indices in validation if indices is not None]

    shape = (sets, len(decays))
    weight = start.weight.detach().to(features).expand(*shape, -1, -1).clone()
    bias = start.bias.detach().to(features).expand(*shape, -1).clone()
    decay = torch.tensor(decays, dtype=features.dtype, device=device)[:, None]
    moments = [torch.zeros_like(tensor) for tensor in (weight, weight, bias, bias)]
    best_weight, best_bias = weight.clone(), bias.clone()
    best = torch.full(shape, -1, device=device)
    worse = torch.zeros(shape, dtype=torch.int64, device=device)
    active = torch.ones(shape, dtype=torch.bool, device=device)
    step = 0
    for _ in range(0, MOST_PASSES, PASSES):
        if not active.any():
            break
        at_work = active.any(1).nonzero()[:, 0]
        for _ in range(PASSES):
            order = torch.from_numpy(random.permutation(table.shape[1])).to(device)
            for batch in order.split(BATCH):
                step += 1
                chosen = table[at_work][:, batch]  # (P, B)
                inputs = features[chosen]  # (P, B, d)
                scores = torch.einsum("pckd,pbd->pcbk", weight[at_work], inputs)
                scores += bias[at_work][:, :, None]
                slope = scores.softmax(3)
                slope.scatter_add_(
                    3,
                    labels[chosen][:, None, :, None].expand(-1, len(decays), -1, 1),
                    slope.new_full((1,), -1.0).expand(*slope.shape[:3], 1),
                )
                slope /= len(batch)
                _adam(
                    (weight, torch.einsum("pcbk,pbd->pckd", slope, inputs), decay[..., None]),
                    moments[:2],
                    at_work,
                    step,
                )
                _adam((bias, slope.sum(2), decay), moments[2:], at_work, step)
        for number in at_work.tolist():
            held_out = checked[number]
            scores = torch.einsum("ckd,nd->cnk", weight[number], features[held_out])
            scores += bias[number][:, None]
            right = (scores.argmax(2) == labels[held_out]).sum(1)
            better = active[number] & (right > best[number])
            best[number] = torch.where(better, right, best[number])
            best_weight[number, better] = weight[number, better]
            best_bias[number, better] = bias[number, better]
            missed = active[number] & ~better
            active[number] &= ~(missed & (worse[number] >= PATIENCE))
            worse[number] += missed
    return best_weight, best_bias


def _adam(
    what: tuple[Tensor, Tensor, Tensor], moments: Sequence[Tensor], at_work: Tensor, step: int
) -> None:
    """One step, counted from 1, of torch's Adam, whose weight decay is part of the gradient.

    what: parameters (F, ...); gradients (P, ...) and weight decays of the active classifiers.
    moments: first and second, (F, ...). at_work: (P,), indices of the active classifiers.
    """
    parameter, gradient, decay = what
    first, second = moments
    old = parameter[at_work]
    gradient = gradient + decay * old
    m = first[at_work].lerp(gradient, 1 - BETAS[0])
    v = second[at_work].lerp(gradient.square(), 1 - BETAS[1])
    first[at_work], second[at_work] = m, v
    scale = (1 - BETAS[1] ** step) ** 0.5
    moved = m / (v.sqrt() / scale + EPSILON)
    parameter[at_work] = old - RATE / (1 - BETAS[0] ** step) * moved
