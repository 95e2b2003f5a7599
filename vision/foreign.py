"""Checkpoints of other programs: finds the backbone's tensors, and reports which ones were used.

A checkpoint of torchvision, timm, lightly, solo-learn, MoCo or DINO holds the backbone's tensors
under names that end like the network's, behind a prefix (``module.encoder_q.``, ``backbone.``) and
possibly inside an entry (``state_dict``, ``teacher``). The prefix with the most tensors of matching
name and shape is used; a backbone in an ``nn.Sequential`` has numbers instead of the names of its
parts. In a tie the online network is preferred to its moving average, except for DINO, where it is
the teacher, as in these programs' own evaluations.

A checkpoint that leaves tensors of the network unfilled, or has further blocks, is refused.
"""

import argparse
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from shared.errors import UserError, suggestion
from shared.experiment.data import sha256_of
from shared.experiment.domain import EvaluationRequest, Scores, measure_protocol
from shared.experiment.folders import LeftOut
from vision.config import Backbone, Config, Stem
from vision.data import OWN, describe
from vision.encoder import BUILDERS, make_encoder, name_of
from vision.evaluation import PROTOCOLS, evaluate, record_data
from vision.export import NEEDS, load_encoder
from vision.own import summary

DEFAULT = ("knn-200-v1", "linear-l2-v1")  # neither has a learning rate to tune to the features
AVERAGES = ("momentum", "encoder_k", "target", "ema", "student")  # second choice in a tie
COUNTER = "num_batches_tracked"  # of batch norms; not every program writes it, and nothing reads it
STEMS: tuple[Stem, ...] = ("imagenet", "cifar")  # distinguishable by their tensors
SHOWN = 8  # keys, or kinds of keys, that a message names


@dataclass(frozen=True)
class Match:
    """Where a network's tensors were found in a checkpoint.

    Attributes:
        place: the entry, the prefix, and the naming scheme if parts are numbered.
        tensors: those for the network, by its own names.
        dropped: keys of the entry that are not used.
        missed: names of the network without a tensor.
        deeper: keys behind the prefix that belong to blocks that the network does not have.
    """

    place: str
    tensors: Mapping[str, Tensor]
    dropped: tuple[str, ...]
    missed: tuple[str, ...]
    deeper: tuple[str, ...]

    @property
    def filled(self) -> bool:
        """Whether the checkpoint holds exactly this network."""
        return not self.missed and not self.deeper

    def lines(self) -> tuple[str, ...]:
        """Which tensors were used, dropped and missing, as lines of text."""
        return (
            f"took {len(self.tensors)} tensors from {self.place}",
            f"dropped {len(self.dropped)}: {_kinds(self.dropped)}",
            f"missed {len(self.missed)}: {_some(self.missed)}",
        )


def score(asked: EvaluationRequest) -> Scores:
    """Score a checkpoint, or an export of this project, by named protocols.

    Raises:
        UserError: a file that cannot be read or does not fill the backbone, unknown protocols, or
            unusable data.
    """
    data = asked.data
    if data is None:
        raise UserError("say what to score on: --data FOLDER, or a data set such as CIFAR10")
    name = f"{OWN}{data}" if Path(data).is_dir() else data
    described = describe(name)
    protocols = asked.protocols or DEFAULT
    for each in protocols:
        if each not in PROTOCOLS:
            raise UserError(f"no protocol {each!r}{suggestion(each, PROTOCOLS, 'there are')}")
    if name.startswith(OWN):
        asked.say(summary(Path(data)))
    file = asked.model / "encoder.safetensors" if asked.model.is_dir() else asked.model
    size = int(asked.options.get("size") or 0)
    own = _metadata(file)
    if own:
        if fixed := sorted(asked.options.keys() & {"backbone", "stem", "prefix"}):
            raise UserError(f"{file} states its own network; leave --{fixed[0]} out")
        network = load_encoder(asked.model)
        lines: tuple[str, ...] = (f"took every tensor of {own['backbone']}",)
        size = size or int(own["image_size"])
    else:
        size = size or described.size
        network, match = loaded(file, size=size, **_network_options(asked.options))
        lines = match.lines()
    for line in lines:
        asked.say(line)
    config = Config(
        dataset=name,
        image_size=size,
        statistics=asked.options.get("statistics"),
        precision="float32",
    )
    if config.statistics not in (None, "none"):
        describe(str(config.statistics))
    network = network.to("cuda" if torch.cuda.is_available() else "cpu")

    def protocol_of(each: str) -> Mapping[str, Any]:
        def scored(config: Any, run: Any) -> Mapping[str, Any]:
            record_data(run, name)
            return evaluate(config, network, run)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeftOut)  # the summary has been printed
            return measure_protocol(config, each, scored, asked)

    return Scores(
        facts={"model": str(file), "sha256": sha256_of(file), "keys": list(lines), "data": name},
        protocols={each: protocol_of(each) for each in protocols},
    )


def loaded(
    file: Path,
    *,
    size: int = 224,
    backbone: Backbone | None = None,
    stem: Stem | None = None,
    prefix: str | None = None,
) -> tuple[nn.Module, Match]:
    """The backbone of a checkpoint, on the CPU, in eval mode, and which tensors were used for it.

    Args:
        file: safetensors, or a ``torch.save`` file, of which only tensors and plain values are
            read.
        size: of images, for networks that are built for one size.
        backbone: see :func:`vision.encoder.make_encoder`; None: the ResNet there that fits.
        stem: its first layers; None: 7x7 or 3x3 as in the checkpoint, "cifar" for the latter.
        prefix: of the keys to use; None: the one with the most matching tensors.

    Raises:
        UserError: a file that cannot be read, or that does not fill the network.
        ValueError: an unknown backbone.
    """
    states = dict(_states(read(file), ""))
    if not states:
        raise UserError(f"{file}: has no named tensors; give a checkpoint with a state_dict")
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
    for key, tensor in match.tensors.items():
        if not torch.isfinite(tensor).all():
            raise UserError(f"{file}: {key} is NaN or infinite; did its training diverge?")
    network = make_encoder(name, first, size=size)
    network.load_state_dict({**network.state_dict(), **match.tensors})
    return network.eval(), match


def read(file: Path) -> Mapping[str, Any]:
    """The content of a file: tensors by name, or the object that ``torch.save`` was given.

    Raises:
        UserError: no such file, or one that is damaged or holds more than tensors and plain values.
    """
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; give a checkpoint, or an exported folder")
    if why := _no_checkpoint(file):
        raise UserError(f"{file}: {why}")
    if _is_safetensors(file):
        try:
            with safe_open(file, framework="pt") as stream:
                return {name: stream.get_tensor(name) for name in stream.keys()}
        except SafetensorError as error:
            raise UserError(f"{file}: damaged ({error}); copy it again") from error
    try:
        # DINO's and MAE's programs keep their arguments, a plain object, beside the weights.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is no checkpoint can raise anything
        raise UserError(f"{file}: {_why_refused(str(error))}") from error
    if isinstance(content, Mapping):
        return content
    raise UserError(
        f"{file}: holds a {type(content).__name__}, no named tensors; save a state_dict"
    )


def _is_safetensors(file: Path) -> bool:
    """Whether the extension says so, or the file starts with a length and a JSON header."""
    with file.open("rb") as stream:
        head = stream.read(9)
    return file.suffix == ".safetensors" or (len(head) == 9 and head[5:] == b"\0\0\0{")


# First bytes of files that are mistaken for checkpoints, and what they are.
_NO_CHECKPOINTS = {
    b"version https://git-lfs": "is a pointer of git-lfs; get the file itself: git lfs pull",
    b"<": "is a web page, not the file that was to be downloaded; download it again",
    b"\x89HDF": "is of HDF5 (Keras); save its weights as a state_dict of torch",
    b"\x93NUMPY": "is an array of numpy; save a state_dict of torch",
}


def _no_checkpoint(file: Path) -> str | None:
    """What kind of file this is, by its first bytes, if it cannot hold readable weights."""
    with file.open("rb") as stream:
        head = stream.read(32).lstrip()
    if not head:
        return "is empty; copy it again"
    found = (what for start, what in _NO_CHECKPOINTS.items() if head.startswith(start))
    return next(found, None)


def _why_refused(said: str) -> str:
    """Why torch refused a file, from its message, in one line without terminal colours."""
    # torch names the class of an object that is not a tensor.
    culprit = re.search(r"(?:Unsupported (?:global|class)|GLOBAL):? (?:GLOBAL )?([\w.]+)", said)
    if culprit:
        return (
            f"holds {culprit[1]}, which is neither a tensor nor a plain value, and code in a file "
            f"is not run; if you trust it, save its weights alone: torch.save(torch.load(FILE, "
            f"weights_only=False)['state_dict'], NEW), or .state_dict() of a whole model"
        )
    if "TorchScript" in said:
        return "is a TorchScript archive; save the state_dict of the original model"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said).strip()
    reason = re.split(r"(?<=[a-z)])\. |\n", plain)[0]
    if not reason or reason.startswith("Weights only load failed"):
        reason = "not written by torch.save"
    return (
        f"cannot be read as tensors and plain values alone ({reason}); copy it again, or save its "
        f"state_dict as safetensors or with torch.save"
    )


def best_match(
    states: Mapping[str, Mapping[str, Tensor]], network: nn.Module, prefix: str | None = None
) -> Match:
    """Where most of a network's tensors are, by name and shape.

    Args:
        states: tensors by key, for each entry of the checkpoint.
        network: to be filled.
        prefix: of the keys to use; None: any.
    """
    wanted = network.state_dict()
    found: dict[tuple[str, str, bool], dict[str, str]] = {}  # names to keys, by place
    for entry, state in states.items():
        numbers = _numbers(network, state)
        for key, tensor in state.items():
            for before, first, rest in _splits(key):
                if prefix not in (None, before):
                    continue
                for numbered in (False, True):
                    part = numbers.get(before, {}).get(first) if numbered else first
                    name = f"{part}{rest}"
                    if name in wanted and wanted[name].shape == tensor.shape:
                        found.setdefault((entry, before, numbered), {})[name] = key
    if not found:
        return Match("nowhere", {}, (), tuple(sorted(wanted)), ())
    entry, before, numbered = max(
        found, key=lambda place: (len(found[place]), not _averaged(place), not place[2], place)
    )
    keys, state = found[entry, before, numbered], states[entry]
    dropped = tuple(sorted(set(state) - set(keys.values())))
    parts = _numbers(network, state).get(before, {}) if numbered else {}
    deeper = [
        key
        for key in dropped
        for each, first, rest in _splits(key)
        if each == before
        and (
            _is_deeper(network, f"{parts.get(first, first)}{rest}")
            # a convolution after the last part, where a classifier might be
            or (numbered and first.isdecimal() and first not in parts and state[key].ndim == 4)
        )
    ]
    place = [
        f"entry {entry!r}," if entry else "",
        f"prefix {before!r}" if before else "no prefix",
        "parts by number" if numbered else "",
    ]
    return Match(
        " ".join(filter(None, place)),
        {name: state[key] for name, key in keys.items()},
        dropped,
        tuple(name for name in wanted if name not in keys and not name.endswith(COUNTER)),
        tuple(deeper),
    )


def _outline(backbone: Backbone, stem: Stem, size: int) -> nn.Module:
    """A network to compare names and shapes with, on the meta device if it is defined here."""
    with torch.device("meta" if backbone in BUILDERS else "cpu"):
        return make_encoder(backbone, stem, size=size)


def _states(content: Any, entry: str) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """The named tensors of each entry of a checkpoint, with the entry's name."""
    if not isinstance(content, Mapping):
        return
    texts = {key: value for key, value in content.items() if isinstance(key, str)}
    if tensors := {key: value for key, value in texts.items() if isinstance(value, Tensor)}:
        yield entry, tensors
    for key, value in texts.items():
        yield from _states(value, f"{entry}.{key}" if entry else key)


def _numbers(network: nn.Module, state: Mapping[str, Tensor]) -> dict[str, dict[str, str]]:
    """For each prefix, which number stands for which of the network's parts.

    Programs that put a network's parts into an ``nn.Sequential`` omit different parts without
    tensors (ReLU, pooling, both) and number the rest differently; the order is always the same.
    """
    filled = [name for name, child in network.named_children() if child.state_dict()]
    found: dict[str, set[int]] = {}
    for key in state:
        for before, first, _ in _splits(key):
            if first.isdecimal():
                found.setdefault(before, set()).add(int(first))
    return {
        before: dict(zip(map(str, sorted(numbers)), filled, strict=False))
        for before, numbers in found.items()
    }


def _splits(key: str) -> Iterator[tuple[str, str, str]]:
    """A key as prefix, first part and rest of a name, for every place where the name may begin."""
    parts = key.split(".")
    for place, first in enumerate(parts):
        # lightly's own ResNets use this name for the residual branch
        rest = ["downsample" if each == "shortcut" else each for each in parts[place + 1 :]]
        yield "".join(f"{part}." for part in parts[:place]), first, "".join(f".{r}" for r in rest)


def _averaged(place: tuple[str, str, bool]) -> bool:
    entry, before, _ = place
    return any(word in f"{entry}.{before}" for word in AVERAGES)


def _is_deeper(network: nn.Module, name: str) -> bool:
    """Whether a name belongs to a block after the last one of the network's sequence."""
    module = network
    for part in name.split("."):
        children = dict(module.named_children())
        if part not in children:
            return bool(children) and part.isdecimal() and isinstance(module, nn.Sequential)
        module = children[part]
    return False


def _unfilled(
    file: Path,
    name: str,
    match: Match,
    states: Mapping[str, Mapping[str, Tensor]],
    backbone: Backbone | None,
    prefix: str | None,
) -> str:
    """Why a checkpoint does not fit a network, and which of the networks here it does fit."""
    if match.deeper:
        what = f"has more blocks than {name}: {_some(match.deeper)}"
    else:
        total = len(match.tensors) + len(match.missed)
        what = f"does not fill {name}: {len(match.missed)} of {total} tensors missing or of another"
        what += (
            f" shape ({_some(match.missed)}), found were {len(match.tensors)} from {match.place}"
        )
    remedy = "name its network with --backbone"
    if backbone is not None:
        others = [
            each
            for each in BUILDERS
            for stem in STEMS
            if best_match(states, _outline(each, stem, 224), prefix).filled
        ]
        remedy = f"take --backbone {others[-1]}" if others else "take another --backbone, or --size"
    return f"{file}: {what}; {remedy}"


def _metadata(file: Path) -> Mapping[str, str]:
    """The metadata of an export of this project; empty for other files."""
    if file.suffix != ".safetensors" or not file.is_file():
        return {}
    try:
        with safe_open(file, framework="pt") as stream:
            metadata: dict[str, str] = stream.metadata() or {}
    except SafetensorError:
        return {}
    return metadata if metadata.keys() >= set(NEEDS) else {}


def _network_options(options: Mapping[str, str]) -> dict[str, Any]:
    found = {name: options[name] for name in ("backbone", "stem", "prefix") if name in options}
    if (stem := found.get("stem")) is not None and stem not in get_args(Stem):
        raise UserError(f"no stem {stem!r}{suggestion(stem, get_args(Stem), 'there are')}")
    return found


def _kinds(keys: tuple[str, ...]) -> str:
    """Keys counted by their first two parts."""
    counts = Counter(".".join(key.split(".")[:2]) for key in keys)
    shown = [f"{kind} ({count})" for kind, count in counts.most_common(SHOWN)]
    return ", ".join(shown) + (", ..." if len(counts) > SHOWN else "") or "none"


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "") or "none"
