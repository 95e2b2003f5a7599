"""Scores of checkpoints of other programs, whose keys :mod:`shared.experiment.weights` finds."""

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from shared.errors import UserError, suggestion
from shared.experiment.domain import EvaluationRequest, Scores, scores_of
from shared.experiment.export import check_facts, is_exported, read_weights
from shared.experiment.folders import LeftOut
from shared.experiment.weights import Match, best_match, check_weights, named_tensors, unfilled
from vision.config import Backbone, Config, Stem
from vision.datasets import OWN, describe
from vision.encoder import BUILDERS, UNPOOLED, make_encoder, name_of
from vision.evaluation import PROTOCOLS, evaluate
from vision.export import NEEDS, check_architecture, load_encoder, other_stem
from vision.features import record_data, statistics
from vision.own import listed_once, summary

DEFAULT = ("knn-200-v1", "linear-l2-v1")  # neither has a rate that would have to suit the features
STEMS: tuple[Stem, ...] = ("imagenet", "cifar")  # which tensors can tell apart


@listed_once()
def score(request: EvaluationRequest) -> Scores:
    """Score a checkpoint, or an export of this project, by named protocols."""
    data = request.data
    if data is None:
        raise UserError("say what to score on: --data FOLDER, or a data set such as CIFAR10")
    name = f"{OWN}{data}" if Path(data).is_dir() else data
    described = describe(name)
    protocols = request.chosen(PROTOCOLS, *DEFAULT)
    if name.startswith(OWN):
        request.say(summary(Path(data)))
    file = request.model / "encoder.safetensors" if request.model.is_dir() else request.model
    size = int(request.options.get("size") or 0)
    options = _network_options(request.options)
    if is_exported(file):
        if options:
            raise UserError(f"{file} states its own network; omit --{min(options)}")
        network = load_encoder(request.model)
        stated = read_weights(file, NEEDS)[1]
        lines = [f"loaded every tensor of {stated['backbone']}"]
        size = size or int(stated["image_size"])
    else:
        size = size or described.size
        network, match = loaded(file, size=size, **options)
        lines = [*match.lines()]
    for line in lines:
        request.say(line)
    config = Config(
        dataset=name,
        image_size=size,
        statistics=request.options.get("statistics"),
        precision="float32",
    )
    if config.statistics not in (None, "none"):
        describe(str(config.statistics))
    mean, std = statistics(config, described)
    colours = f"mean {', '.join(map(str, mean))} and deviation {', '.join(map(str, std))}"
    request.say(f"colours in [0, 1] are normalised with {colours}; else see --statistics")
    network = network.to("cuda" if torch.cuda.is_available() else "cpu")
    features: dict[str, Tensor] = {}

    def by(config: Any, run: Any) -> Mapping[str, Any]:
        record_data(run, name)
        metrics = evaluate(config, network, run, kept=features)
        metrics.pop("linear_best_top1", None)  # the best epoch is chosen on the test images
        return metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftOut)  # the summary has been printed
        return scores_of(request, file, name, protocols, config, by, keys=list(lines))


def loaded(
    file: Path,
    *,
    size: int = 224,
    backbone: Backbone | None = None,
    stem: Stem | None = None,
    prefix: str | None = None,
    heads: int | None = None,
) -> tuple[nn.Module, Match]:
    """The backbone of a checkpoint, on the CPU, in eval mode, and which tensors were used for it.

    The match says what is assumed where no tensor shows it. Of a ``torch.save`` file only tensors
    and plain values are read.

    size: of images, for networks that are built for one size. backbone: see
    :func:`vision.encoder.make_encoder`; None: the ResNet there that fits. stem: None: 7x7 or 3x3 as
    in the checkpoint, "cifar" for the latter. prefix: of the keys to use, which may begin with the
    entry; None: the only one that fits. heads: None: timm's number.
    """
    if is_exported(file):
        return _exported(file, backbone, stem, heads)
    states = named_tensors(file)
    names: tuple[Backbone, ...] = tuple(BUILDERS) if backbone is None else (backbone,)
    tried: dict[tuple[Backbone, Stem], Match] = {
        (name, first): best_match(states, _outline(name, first, size), prefix)
        for name in names
        for first in (STEMS if name in BUILDERS and stem is None else (stem or "imagenet",))
    }
    (name, first), match = max(
        tried.items(), key=lambda item: (item[1].filled, len(item[1].tensors))
    )
    if not match.filled:
        raise UserError(_unfilled(file, name_of(name), match, states, backbone, prefix))
    if isinstance(name, str):
        check_architecture(file, name)
    network = make_encoder(name, first, size=size, heads=heads)
    check_weights(file, match.tensors, network)
    network.load_state_dict({**network.state_dict(), **match.tensors})
    without = other_stem(network, match)
    for part in without:
        setattr(network, part, nn.Identity())
    return network.eval(), replace(match, assumed=_assumptions(network, name, first, without))


def _exported(
    file: Path, backbone: Backbone | None, stem: Stem | None, heads: int | None
) -> tuple[nn.Module, Match]:
    """An export of this project, which has to agree with what is asked for."""
    stated = read_weights(file, NEEDS)[1]
    named = {"backbone": backbone, "stem": stem, "heads": None if heads is None else str(heads)}
    wanted = {name: value for name, value in named.items() if isinstance(value, str)}
    check_facts(file, stated, wanted, "omit it")
    network = load_encoder(file, backbone if callable(backbone) else None)
    return network, Match("an export of this project", network.state_dict())


def _assumptions(network: nn.Module, name: Backbone, stem: Stem, without: Sequence[str]) -> str:
    """What a network computes that no tensor shows, and how to choose otherwise."""
    if name in BUILDERS:
        first: Any = network.get_submodule("conv1")
        pooling = "no pooling" if stem in UNPOOLED or "maxpool" in without else "pooling"
        text = (
            f"a {first.kernel_size[0]}x{first.kernel_size[0]} stem of stride {first.stride[0]}, "
            f"padding {first.padding[0]} and {pooling}"
        )
        if "relu" in without:
            text += ", no ReLU after it"
        return text + (
            "" if stem == "imagenet" else "; solo-learn's has padding 2; else see --stem"
        )
    attention = next((module for module in network.modules() if hasattr(module, "num_heads")), None)
    if attention is None:
        return f"timm's {name_of(name)} in what tensors do not show"
    return f"{attention.num_heads} attention heads, timm's number unless --heads gives another"


def _outline(backbone: Backbone, stem: Stem, size: int) -> nn.Module:
    """A network to compare names and shapes with."""
    if isinstance(backbone, str) and backbone in BUILDERS:
        return _resnet_outline(backbone, stem)
    return make_encoder(backbone, stem, size=size)


@functools.cache  # a checkpoint is compared with all of them, whatever it is
def _resnet_outline(backbone: str, stem: Stem) -> nn.Module:
    with torch.device("meta"):
        return make_encoder(backbone, stem)


def _unfilled(
    file: Path,
    name: str,
    match: Match,
    states: Mapping[str, Mapping[str, Tensor]],
    backbone: Backbone | None,
    prefix: str | None,
) -> str:
    """Why a checkpoint does not fit a network, and which of the networks here it does fit."""
    remedy = "name its network with --backbone"
    if backbone is not None:
        others = [
            builder
            for builder in BUILDERS
            for stem in STEMS
            if best_match(states, _outline(builder, stem, 224), prefix).filled
        ]
        remedy = f"use --backbone {others[-1]}" if others else "use another --backbone, or --size"
    return f"{file}: {unfilled(match, name, remedy)}"


def _network_options(options: Mapping[str, str]) -> dict[str, Any]:
    known = ("backbone", "stem", "prefix", "heads")
    values: dict[str, Any] = {name: options[name] for name in known if name in options}
    if "heads" in values:
        values["heads"] = int(values["heads"])
    if (stem := values.get("stem")) is not None and stem not in get_args(Stem):
        raise UserError(f"no stem {stem!r}{suggestion(stem, get_args(Stem), 'there are')}")
    return values
