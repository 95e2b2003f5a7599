"""One training step of a domain with every loss, on two devices: do they agree?

CUDA is compared with the CPU, both in float32 without TF32; without a GPU, float32 with float64 on
the CPU. Networks are small, inputs are made up, and every random number is drawn on the CPU, so
that both sides get the same ones.

A step is one call of the domain's own ``train_step`` (of the whole agent in rl). Compared are the
parts of its loss, its gradients as a whole (the norm of the difference over the norm), and the
parts of the loss of a second step on the same batch, which the optimiser's first step has led to.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from shared import (
    Objective,
    Projection,
    alignment,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    margin_nce,
    max_margin,
    term,
)

# Relative. Where float32 rounds otherwise, a ReLU now and then lets pass what it did not, and Adam,
# whose first step is the sign of a gradient, turns round where that is nearly zero. What that comes
# to was seen with float32 beside float64 on one CPU: up to 0.005 of the gradient and 0.07 of the
# next loss, but for S3D, whose many batch norms see few numbers here: 0.04, and 0.06 at a tenth of
# its learning rate. At the whole of it, inputs that differ by 1e-7 gave next losses that differ by
# 0.28, and a GPU beside the CPU 0.56.
TOLERANCES = {"loss": 1e-4, "gradient": 2e-2, "next loss": 0.15}
OF_VIDEO = {"loss": 1e-3, "gradient": 0.1, "next loss": 0.15}
POLARIZED = (term(distance_polarization, weight=0.1),)
CLOSED = term(max_margin, gamma=0.5, cost=100.0, ridge=0.1)
# Every loss by itself; a quick and a solved one with every penalty and projection.
OBJECTIVES: dict[str, Objective] = {
    "info_nce": Objective(term(info_nce, temperature=0.3)),
    "info_nce, positive left out": Objective(
        term(info_nce, temperature=0.3, positive_in_denominator=False)
    ),
    "debiased_nce": Objective(term(debiased_nce, temperature=0.3, tau_plus=0.1)),
    "hard_nce": Objective(term(hard_nce, temperature=0.3, tau_plus=0.1, beta=1.0)),
    "margins": Objective(term(margin_nce, temperature=0.3, angular=0.4, subtractive=0.1)),
    "emphasis and curvature": Objective(
        term(margin_nce, temperature=0.3, emphasis=2.0, curvature=0.5)
    ),
    "max_margin, closed form": Objective(CLOSED),
    "max_margin, projected gradient": Objective(
        term(max_margin, gamma=0.5, cost=100.0, ridge=0.1, solver="projected_gradient", steps=50)
    ),
    "info_nce, polarized": Objective(term(info_nce, temperature=0.3), POLARIZED),
    "max_margin, polarized": Objective(CLOSED, POLARIZED),
    **{
        f"{name}, {norm} projection": Objective(loss, (), Projection(0.1, {"norm": norm}))
        for name, loss in (("info_nce", term(info_nce, temperature=0.3)), ("max_margin", CLOSED))
        for norm in ("l21", "nuclear")
    },
}
# One loss of each family, for the comparison of precisions on the CPU.
FAMILIES = ("info_nce", "hard_nce", "margins", "max_margin, closed form", "info_nce, polarized")
Step = Callable[[Objective, torch.device, torch.dtype], dict[str, Tensor]]


def compared(domain: str, device: str) -> Iterator[tuple[str, dict[str, float]]]:
    """For each kind of step and loss that the domain defines, the errors beside the reference.

    On the CPU only the losses of ``FAMILIES``.
    """
    names = FAMILIES if device == "cpu" else OBJECTIVES
    one = (torch.device("cpu"), torch.float64 if device == "cpu" else torch.float32)
    other = (torch.device(device), torch.float32)
    for kind, step in STEPS[domain]().items():
        objectives = {"": OBJECTIVES["info_nce"]}
        if kind.endswith("every loss"):
            objectives = {name: OBJECTIVES[name] for name in names}
        if "BYOL" in kind:
            objectives = {"alignment": Objective(term(alignment))}
        for name, objective in objectives.items():
            what = ", ".join(filter(None, (kind.removesuffix(", every loss"), name)))
            try:
                sides = [taken(step, objective, *side) for side in (one, other)]
            except ValueError:  # the domain does not define this loss for this step, and says why
                continue
            yield what, errors_of(*sides)


def taken(
    step: Step, objective: Objective, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """A step with all random numbers drawn on the CPU, in single precision."""
    torch.manual_seed(0)
    with drawn_on_the_cpu():
        return {
            name: value.double().cpu() for name, value in step(objective, device, dtype).items()
        }


def errors_of(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest difference of the parts of both losses, and that of the gradients, relative."""
    if set(one) != set(other):
        raise RuntimeError(f"the sides give other parts: {sorted(set(one) ^ set(other))}")
    errors = {"loss": 0.0, "next loss": 0.0}
    for name in set(one) - {"gradient"}:
        kind = "next loss" if name.startswith("next ") else "loss"
        # Low, high and positive scores are of one matrix, and rounded on the scale of its entries.
        start, score, _ = name.partition("score_")
        beside = [value for each, value in one.items() if score and each.startswith(start + score)]
        scale = torch.stack([one[name], *beside]).abs().max().clamp(min=1.0)
        error = float((one[name] - other[name]).abs() / scale)
        errors[kind] = max(errors[kind], error if math.isfinite(error) else math.inf)
    difference = float((one["gradient"] - other["gradient"]).norm() / one["gradient"].norm())
    return errors | {"gradient": difference if math.isfinite(difference) else math.inf}


@contextmanager
def drawn_on_the_cpu() -> Iterator[None]:
    """Noise and permutations that the code draws on its device are drawn on the CPU."""
    randperm, randint = torch.randperm, torch.randint

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape).to(like)

    def order(count: int, *, device: Any = None, **options: Any) -> Tensor:
        return randperm(count, **options).to(device or "cpu")

    def whole(*bounds: Any, device: Any = None, **options: Any) -> Tensor:
        return randint(*bounds, **options).to(device or "cpu")

    with (
        mock.patch("torch.randn_like", noise),
        mock.patch("torch.randperm", order),
        mock.patch("torch.randint", whole),
    ):
        yield


def outcome(
    modules: Iterable[nn.Module], step: Callable[[], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """The parts of the loss of a step, its gradients, and the parts of the loss of the next."""
    parts = dict(step())
    trained = nn.ModuleList(modules).parameters()
    gradient = torch.cat([x.grad.to_dense().flatten() for x in trained if x.grad is not None])
    following = {f"next {name}": value for name, value in step().items()}
    return (
        {name: value.clone() for name, value in parts.items()} | following | {"gradient": gradient}
    )


def of_kind(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The module there and so; what its layers are given is cast to their own kind, too.

    Between their networks domains lift features to single precision by name.
    """

    def cast(layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            each.to(dtype) if isinstance(each, Tensor) and each.is_floating_point() else each
            for each in given
        )

    for layer in module.modules():
        if dtype == torch.float64 and next(layer.parameters(recurse=False), None) is not None:
            layer.register_forward_pre_hook(cast)
    return module.to(device, dtype)


def vision(**always: Any) -> dict[str, Step]:
    """SimCLR with every loss, the other methods with their own."""
    from shared import Criterion
    from vision.config import Config
    from vision.methods import networks_of
    from vision.methods.base import Step
    from vision.methods.swav import swapped_prediction
    from vision.train import make_optimiser, make_step

    def kind(**changes: Any) -> Step:
        def step(objective: Objective, device: torch.device, dtype: torch.dtype) -> Any:
            config = Config(
                backbone="resnet8",
                stem="strided",
                head_hidden=64,
                head_output=32,
                predictor_hidden=64,
                batch_size=32,
                **{"precision": "float32", "queue": 64, "objective": objective} | changes | always,
            )
            networks = networks_of(config, 2 * config.batch_size).to(device, dtype).train()
            criterion = Criterion(config.objective, networks.dim).to(device, dtype)
            modules = nn.ModuleList([networks, criterion])
            optimiser = make_optimiser(config, modules)
            views = [torch.randn(config.batch_size, 3, 32, 32) for _ in range(2)]
            views += [torch.randn(config.batch_size, 3, 16, 16) for _ in range(config.small_crops)]
            if config.method == "cmc":
                views = [view.sigmoid() for view in views]
            given = tuple(view.to(device, dtype) for view in views)
            step = Step(samples=torch.arange(config.batch_size).to(device))
            train_step = make_step(config, networks, criterion, optimiser)
            return outcome(modules, lambda: train_step(given, step))

        return step

    return {
        "SimCLR, every loss": kind(),
        "MoCo v2": kind(method="moco_v2"),
        "MoCo v3": kind(method="moco_v3", symmetric=True),
        "BYOL": kind(method="byol"),
        "SwAV": kind(
            method="swav",
            prototypes=16,
            small_crops=2,
            small_size=16,
            queue=32,
            objective=Objective(term(swapped_prediction)),
        ),
        "CMC": kind(method="cmc", statistics="none"),
    }


def text(**always: Any) -> dict[str, Step]:
    """quick-thoughts' GRU with every loss, bags of words with one."""
    from text.config import Config
    from text.encoder import QuickThought
    from text.tokens import Batch
    from text.train import make_criterion, shape_of, train_step

    def kind(**changes: Any) -> Step:
        def step(objective: Objective, device: torch.device, dtype: torch.dtype) -> Any:
            config = Config(
                embedding=32,
                hidden=48,
                batch_size=40,
                precision="float32",
                objective=objective,
                **changes | always,
            )
            model = QuickThought(shape_of(config, 500))
            criterion = make_criterion(config, model.dim)
            modules = nn.ModuleList([model, criterion]).to(device, dtype).train()
            parameters = modules.parameters()
            optimiser = torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
            lengths = torch.randint(3, 20, (config.batch_size,))
            mask = torch.arange(20) < lengths[:, None]
            ids = torch.randint(2, 500, mask.shape).where(mask, 1)
            batch = Batch(ids, mask, torch.arange(config.batch_size) // 10)
            return outcome(
                modules, lambda: train_step(config, model, criterion, optimiser, batch, 0)
            )

        return step

    return {
        "GRU, cosine, every loss": kind(similarity="cosine"),
        "GRU, inner product": kind(),
        "bag of words": kind(encoder="bag_of_words"),
    }


def rl(**always: Any) -> dict[str, Step]:
    """An update of the whole agent with every loss, and with the paper's similarity."""
    from rl.agent import Agent
    from rl.config import Config
    from rl.replay import Batch

    def kind(**changes: Any) -> Step:
        def step(objective: Objective, device: torch.device, dtype: torch.dtype) -> Any:
            config = Config(
                crop=44,
                filters=8,
                hidden=64,
                batch_size=16,
                objective=objective,
                **changes | always,
            )
            agent = of_kind(Agent(config, 2, device=device), device, dtype)
            shape = (config.batch_size, 3 * config.stack, config.crop, config.crop)
            crops = torch.randint(0, 256, (3, *shape), dtype=torch.uint8).to(device)
            action = 2 * torch.rand(config.batch_size, 2) - 1
            reward = torch.rand(config.batch_size)
            terminated = (torch.arange(config.batch_size) % 4 == 0).to(device, dtype)
            given = Batch(*crops, action.to(device, dtype), reward.to(device, dtype), terminated)
            return outcome([agent], lambda: agent.update(given, 2))

        return step

    return {
        "the agent, cosine, every loss": kind(similarity="cosine"),
        "the agent, bilinear": kind(),
        "the agent, no contrast": kind(contrastive=False),
    }


def graph(**always: Any) -> dict[str, Step]:
    """GIN with every loss on the embedded graphs."""
    from graph.config import Config
    from graph.data import ATLAS, load
    from graph.encoder import Encoder, ProjectionHead
    from graph.train import losses, views

    graphs = load(ATLAS, Path())

    def step(objective: Objective, device: torch.device, dtype: torch.dtype) -> Any:
        config = Config(dataset=ATLAS, batch_size=64, objective=objective, **always)
        given = dataclasses.replace(graphs, x=graphs.x.to(dtype))
        encoder = Encoder(given.x.shape[1], config.hidden, config.layers).to(device, dtype)
        head = ProjectionHead(encoder.dim).to(device, dtype)
        criterion = objective.build(encoder.dim).to(device, dtype)
        modules = nn.ModuleList([encoder, head, criterion]).train()
        optimiser = torch.optim.Adam(modules.parameters(), lr=config.learning_rate)
        pair = [each.to(device) for each in next(views(config, given, 0))]

        def learn() -> dict[str, Tensor]:
            loss, parts = losses(config, encoder, head, criterion, *pair, 0)
            loss.backward()
            optimiser.step()
            return {"loss": loss.detach(), **parts}

        return outcome(modules, learn)

    return {"GIN, every loss": step}


def video(**always: Any) -> dict[str, Step]:
    """S3D with every loss, and with MoCo's queue."""
    from shared import Criterion
    from video.config import Config
    from video.encoder import Networks
    from video.train import train_step

    def kind(**changes: Any) -> Step:
        def step(objective: Objective, device: torch.device, dtype: torch.dtype) -> Any:
            config = Config(
                clip_frames=8,
                size=32,
                width=0.125,
                head_hidden=64,
                head_output=32,
                queue=64,
                batch_size=16,
                precision="float32",
                objective=objective,
                **{"learning_rate": 1e-4} | changes | always,
            )
            networks = of_kind(Networks(config, queue=config.queue), device, dtype).train()
            criterion = Criterion(objective, networks.dim).to(device, dtype)
            modules = nn.ModuleList([networks, criterion])
            optimiser = torch.optim.Adam(modules.parameters(), lr=config.learning_rate)
            clips = torch.randn(2, config.batch_size, 3, 8, 32, 32).to(device, dtype)
            pair = (clips[0], clips[1])
            return outcome(
                modules, lambda: train_step(config, networks, criterion, optimiser, pair, 0)
            )

        return step

    return {"SimCLR, every loss": kind(method="simclr"), "MoCo": kind(method="moco")}


# By domain, and with changes of its configuration if wanted.
STEPS: dict[str, Callable[..., dict[str, Step]]] = {
    "vision": vision,
    "text": text,
    "rl": rl,
    "graph": graph,
    "video": video,
}
