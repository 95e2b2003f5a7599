"""Weights from files: finds a network's tensors in a checkpoint, whichever program wrote it.

A checkpoint of torchvision, timm, lightly, solo-learn, MoCo or DINO holds the backbone's tensors
under names that end like the network's, behind a prefix (``module.encoder_q.``, ``backbone.``) and
possibly inside an entry (``state_dict``, ``teacher``); a backbone in an ``nn.Sequential`` has
numbers instead of the names of its parts. A place in the file fits if it fills every tensor of the
network and the only tensors left over below its prefix are heads, queues and the like
(:data:`OUTSIDE`): a further tensor inside the network means that it computes another function. Of
two places that fit, :data:`PREFERRED` says which is used, as in these programs' own evaluations;
others are refused.

An export of this project states its network, and that is compared, too.
"""

import argparse
import functools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from shared.errors import UserError, first_of
from shared.experiment.export import (
    check_facts,
    is_exported,
    is_safetensors,
    read_weights,
    wrapper_of,
)
from shared.experiment.initial import InitialWeights
from shared.notices import remark

# Of a network and its moving average, parts of their prefixes: of the one that is used, the other.
PREFERRED = (
    ("encoder_q", "encoder_k"),  # MoCo v1 and v2
    ("base_encoder", "momentum_encoder"),  # MoCo v3
    ("backbone", "momentum_backbone"),  # solo-learn
    ("backbone", "backbone_momentum"),  # lightly
    ("online", "target"),  # BYOL
    ("teacher", "student"),  # DINO evaluates the average
)
# First parts of names beside a network's own that do not change its features: classifiers,
# projections, queues, other copies, decoders and what only training uses.
OUTSIDE = re.compile(
    r"((last|online|linear|mlp|cls|contrast|contrastive|aux|projection|prediction)_)?"
    r"(fc|heads?|classifiers?|linear|logits|projectors?|projection|predictors?|prediction|"
    r"prototypes?|neck|queue|queue_ptr|memory|loss|criterion|optimi[sz]er)|"
    r"(momentum|teacher|student|target|online|ema|decoder)(_\w+)?|encoder_[kq]|mask_token"
)
COUNTER = "num_batches_tracked"  # of batch norms; not every program writes it, and nothing reads it
# Buffers that programs write or not, computed from the network's shape.
DERIVED = (COUNTER, "position_ids", "relative_position_index", "attn_mask")
SHOWN = 8  # keys, or kinds of keys, that a message names


def initialise(network: nn.Module, init: InitialWeights, remedy: str) -> "Match":
    """Load all tensors of a network, in place, from a checkpoint; return which were used.

    What else the checkpoint holds is printed in one line. An export of this project has to state
    the network's own facts, see :func:`shared.experiment.export.stating`. ``remedy`` is how to
    configure the network that the file holds.
    """
    init.check()
    if init.file.is_dir():
        raise UserError(f"{init.file}: a folder; give the file of weights in it")
    # Files have the names of the library's network, without the wrapper's.
    inner = network.get_submodule(wrapper_of(network.state_dict()).removesuffix("."))
    if is_exported(init.file):
        state, stated = read_weights(init.file)
        # A network made by a user's function states none.
        check_facts(init.file, stated, getattr(network, "facts", {}), remedy)
        states: dict[str, Mapping[str, Tensor]] = {"": state}
    else:
        states = named_tensors(init.file)
    match = best_match(states, inner, init.prefix)
    if not match.tensors or not match.filled:
        raise UserError(f"{init.file}: {unfilled(match, type(inner).__name__, remedy)}")
    check_weights(init.file, match.tensors, inner)
    inner.load_state_dict({**inner.state_dict(), **match.tensors})
    if match.dropped:
        remark(f"init: left {len(match.dropped)} tensors of the file: {_kinds(match.dropped)}")
    return match


def named_tensors(file: Path) -> dict[str, Mapping[str, Tensor]]:
    """The named tensors of a checkpoint, for each of its entries."""
    states = dict(_states(read(file), ""))
    if not states:
        raise UserError(f"{file}: has no named tensors; give a checkpoint with a state_dict")
    return states


def check_weights(file: Path, tensors: Mapping[str, Tensor], network: nn.Module) -> None:
    """Refuse weights of a training that diverged, and quantised ones, whose scale is elsewhere."""
    wanted = network.state_dict()
    for key, tensor in tensors.items():
        if wanted[key].is_floating_point() and not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(f"{file}: {key} is {kind}; give weights of floating point")
        if not torch.isfinite(tensor).all():
            raise UserError(f"{file}: {key} is NaN or infinite; did its training diverge?")


def unfilled(match: "Match", name: str, remedy: str) -> str:
    """Why a checkpoint does not hold exactly a network of that name, and the remedy."""
    if match.rivals:
        return (
            f"holds two of {name}: {match.place}, and {match.rivals[0]}; choose with prefix=, or "
            f"save one of them alone"
        )
    if match.extra and not match.missing:
        return f"has tensors that {name} has no place for: {listed(match.extra)}; {remedy}"
    total = len(match.tensors) + len(match.missing)
    return (
        f"does not fill {name}: {len(match.missing)} of {total} tensors missing or of another "
        f"shape ({listed(match.missing)}), found were {len(match.tensors)} from {match.place}, "
        f"unexpected are {listed(match.dropped)}; {remedy}"
    )


@dataclass(frozen=True)
class Match:
    """Where a network's tensors were found in a checkpoint."""

    place: str  # the entry, the prefix, and the naming scheme if parts are numbered
    tensors: Mapping[str, Tensor]  # those for the network, by its own names
    dropped: tuple[str, ...] = ()  # keys of the entry that are not used
    missing: tuple[str, ...] = ()  # names of the network without a tensor
    # Keys below the prefix that have no place in the network and change its function.
    extra: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()  # other places that fit as well
    # Of the network's parts, if the file has numbers for them.
    numbers: Mapping[str, int] = field(default_factory=dict)
    assumed: str = ""  # what the network computes that no tensor shows

    @property
    def filled(self) -> bool:
        """Whether the checkpoint holds exactly this network, once."""
        return not (self.missing or self.extra or self.rivals)

    def lines(self) -> tuple[str, ...]:
        """Which tensors were used, dropped and missing, as lines of text."""
        return (
            f"loaded {len(self.tensors)} tensors from {self.place}",
            f"dropped {len(self.dropped)}: {_kinds(self.dropped)}",
            f"missed {len(self.missing)}: {listed(self.missing)}",
            *([f"assumed, since no tensor shows it: {self.assumed}"] if self.assumed else []),
        )


def read(file: Path) -> Mapping[str, Any]:
    """The content of a file: tensors by name, or the object that ``torch.save`` was given."""
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; give a checkpoint, or an exported folder")
    with file.open("rb") as stream:
        head = stream.read(32).lstrip()
    for start, why in _NO_CHECKPOINTS.items():
        if head.startswith(start):
            raise UserError(f"{file}: {why}")
    if is_safetensors(file):
        try:
            with safe_open(file, framework="pt") as stream:
                return {name: stream.get_tensor(name) for name in stream.keys()}
        except SafetensorError as error:
            raise UserError(f"{file}: damaged ({error}); copy it again") from error
    try:
        # DINO's and MAE's programs keep their arguments, a plain object, beside the weights.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is not a checkpoint can raise anything
        raise UserError(f"{file}: {_why_refused(str(error))}") from error
    if isinstance(content, Mapping):
        return content
    raise UserError(
        f"{file}: holds a {type(content).__name__}, not named tensors; save a state_dict"
    )


# First bytes of files that are mistaken for checkpoints, and what they are.
_NO_CHECKPOINTS = {
    b"version https://git-lfs": "is a pointer of git-lfs; get the file itself: git lfs pull",
    b"<": "is a web page, not the file that was to be downloaded; download it again",
    b"\x89HDF": "is an HDF5 file (Keras); save its weights as a state_dict of torch",
    b"\x93NUMPY": "is an array of numpy; save a state_dict of torch",
}


def _why_refused(message: str) -> str:
    """Why torch refused a file, from its message, in one line without terminal colours."""
    # torch names the class of an object that is not a tensor.
    culprit = re.search(r"(?:Unsupported (?:global|class)|GLOBAL):? (?:GLOBAL )?([\w.]+)", message)
    if culprit:
        return (
            f"damaged, or holds {culprit[1]}, and code in a file is not run; where it was made, "
            f"save its weights alone: torch.save(model.state_dict(), NEW)"
        )
    if "TorchScript" in message:
        return "is a TorchScript archive; save the state_dict of the original model"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message).strip()
    reason = re.split(r"(?<=[a-z)])\. |\n", plain)[0]
    if not reason or "eights only" in reason or "weights_only" in reason:  # torch's advice
        reason = "not written by torch.save"
    return f"cannot be read ({reason}); copy it again, or save its state_dict with torch.save"


class _Place(NamedTuple):
    """Where a network may be in a checkpoint."""

    entry: str
    prefix: str
    numbered: bool  # whether its parts have numbers in place of names


def best_match(
    states: Mapping[str, Mapping[str, Tensor]], network: nn.Module, prefix: str | None = None
) -> Match:
    """Where a network's tensors are, by name and shape: a place that fits, or else the nearest.

    ``states`` are the tensors of each entry of the checkpoint; ``prefix`` may begin with an entry.
    """
    wanted = network.state_dict()
    keys_at: dict[_Place, dict[str, str]] = {}  # by place and name in the network
    for entry, state in states.items():
        parts = _parts_by_number(wanted, state)
        for key, tensor in state.items():
            for before, first, rest in _splits(key):
                inside = before.removesuffix(".")  # with or without the entry
                chosen = inside, ".".join(filter(None, (entry, inside)))
                if prefix is not None and prefix.removesuffix(".") not in chosen:
                    continue
                for numbered in (False, True):
                    part = parts.get(before, {}).get(first) if numbered else first
                    name = f"{part}{rest}"
                    if name in wanted and wanted[name].shape == tensor.shape:
                        keys_at.setdefault(_Place(entry, before, numbered), {})[name] = key
    if not keys_at:
        return Match("nowhere", {}, (), tuple(sorted(wanted)))
    required = [name for name in wanted if not name.endswith(COUNTER)]
    matches = {
        place: _match_at(place, keys, states[place.entry], wanted)
        for place, keys in keys_at.items()
        if all(name in keys for name in required)
    }
    fits = _distinct({place: match for place, match in matches.items() if not match.extra})
    if fits:
        rivals = tuple(matches[place].place for place in fits[1:])
        return replace(matches[fits[0]], rivals=rivals)
    # For the error: the place with the most tensors.
    nearest = max(keys_at, key=lambda place: (len(keys_at[place]), not place.numbered, place))
    return _match_at(nearest, keys_at[nearest], states[nearest.entry], wanted)


def _match_at(
    place: _Place,
    keys: Mapping[str, str],
    state: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
) -> Match:
    """The match of one place, whose ``keys`` are by the names of the network's tensors."""
    used = set(keys.values())
    parts = _parts_by_number(wanted, state).get(place.prefix, {}) if place.numbered else {}
    modules = {name[:end] for name in wanted for end, sign in enumerate(name) if sign == "."}
    extra, behind = [], {}
    for key in sorted(state):
        if key in used or not key.startswith(place.prefix) or key.endswith(DERIVED):
            continue
        first, dot, rest = key.removeprefix(place.prefix).partition(".")
        if place.numbered and first.isdecimal() and first not in parts:
            behind[int(first), rest] = key
        elif not _is_outside(modules, f"{parts.get(first, first)}{dot}{rest}"):
            extra.append(key)
    # What follows a network in an nn.Sequential is a classifier or projection if it begins with a
    # matrix, otherwise a further block or a normalisation.
    head = behind.get((min(behind)[0], "weight")) if behind else None
    if head is None or state[head].ndim != 2:
        extra.extend(behind.values())
    words = [
        f"entry {place.entry!r}," if place.entry else "",
        f"prefix {place.prefix!r}" if place.prefix else "no prefix",
        "parts by number" if place.numbered else "",
    ]
    return Match(
        " ".join(filter(None, words)),
        {name: state[key] for name, key in keys.items()},
        dropped=tuple(sorted(set(state) - used)),
        missing=tuple(name for name in wanted if name not in keys and not name.endswith(COUNTER)),
        extra=tuple(extra),
        numbers={part: int(number) for number, part in parts.items()},
    )


def _is_outside(modules: Collection[str], name: str) -> bool:
    """Whether a name below a network's prefix is of a head or the like, see :data:`OUTSIDE`.

    ``modules`` are the network's that hold tensors.
    """
    parts = name.split(".")
    for depth, part in enumerate(parts):
        if ".".join(parts[: depth + 1]) not in modules:
            # A head of the network's own may have lost its classifier.
            beside = depth == 0 or OUTSIDE.fullmatch(parts[0]) is not None
            return beside and OUTSIDE.fullmatch(part) is not None
    return False


def _distinct(matches: Mapping[_Place, Match]) -> list[_Place]:
    """Places without those of equal tensors, and without the averages of the others."""
    distinct: list[_Place] = []
    for place, match in matches.items():
        if not any(_equal(match, matches[other]) for other in distinct):
            distinct.append(place)
    names = {place: f"{place.entry}.{place.prefix}".replace("module.", "") for place in distinct}
    averages = {
        name.replace(preferred, average)
        for name in names.values()
        for preferred, average in PREFERRED
        if preferred in name and average not in name
    }
    return [place for place in distinct if names[place] not in averages]


def _equal(first: Match, second: Match) -> bool:
    return all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())


def _states(content: Any, entry: str) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """The named tensors of each entry of a checkpoint, with the entry's name."""
    if not isinstance(content, Mapping):
        return
    texts = {key: value for key, value in content.items() if isinstance(key, str)}
    if tensors := {key: value for key, value in texts.items() if isinstance(value, Tensor)}:
        yield entry, tensors
    for key, value in texts.items():
        yield from _states(value, f"{entry}.{key}" if entry else key)


def _parts_by_number(
    wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> dict[str, dict[str, str]]:
    """For each prefix, which number stands for which part of the network with these tensors.

    Programs that put a network's parts into an ``nn.Sequential`` omit different parts without
    tensors (ReLU, pooling, both) and number the rest differently; the order is always the same.
    """
    parts = list(dict.fromkeys(name.partition(".")[0] for name in wanted if "." in name))
    numbers: dict[str, set[int]] = {}  # by prefix
    for key in state:
        for before, first, _ in _splits(key):
            if first.isdecimal():
                numbers.setdefault(before, set()).add(int(first))
    return {
        before: dict(zip(map(str, sorted(of_prefix)), parts, strict=False))
        for before, of_prefix in numbers.items()
    }


@functools.lru_cache(maxsize=10_000)  # keys of a checkpoint, which many networks are tried on
def _splits(key: str) -> tuple[tuple[str, str, str], ...]:
    """A key as prefix, first part and rest of a name, for every place where the name may begin."""
    parts = key.split(".")
    # lightly's own ResNets call the residual branch "shortcut".
    names = ["downsample" if part == "shortcut" else part for part in parts]
    return tuple(
        (
            "".join(f"{part}." for part in parts[:number]),
            first,
            "".join(f".{name}" for name in names[number + 1 :]),
        )
        for number, first in enumerate(parts)
    )


def _kinds(keys: tuple[str, ...]) -> str:
    """Keys counted by their first two parts."""
    counts = Counter(".".join(key.split(".")[:2]) for key in keys)
    return listed([f"{kind} ({count})" for kind, count in counts.most_common()])


def listed(names: Sequence[str]) -> str:
    """The first of some keys, for a message."""
    return first_of(names, SHOWN) or "none"
