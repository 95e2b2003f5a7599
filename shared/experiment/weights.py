"""Weights from files: finds a network's tensors in a checkpoint, whichever program wrote it.

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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from shared.errors import UserError
from shared.experiment.data import sha256_of, sha256_of_files
from shared.experiment.export import FILE, WRAPPERS

AVERAGES = ("momentum", "encoder_k", "target", "ema", "student")  # taken only if there is no other
COUNTER = "num_batches_tracked"  # of batch norms; not every program writes it, and nothing reads it
SHOWN = 8  # keys, or kinds of keys, that a message names


@dataclass(frozen=True)
class InitialWeights:
    """Weights that training starts from, identified in configurations by their content alone.

    Attributes:
        file: a checkpoint, or a folder that holds a model.
        sha256: of the file, or over names and contents of the folder's files.
    """

    file: Path = field(compare=False)
    sha256: str

    @classmethod
    def of(cls, path: Path | str) -> "InitialWeights":
        """The weights of a checkpoint, of an exported folder, or of a model of transformers.

        Raises:
            UserError: there is no such file, or the folder holds no model.
        """
        path = Path(path)
        if path.is_dir() and (path / FILE).is_file():
            path = path / FILE
        return cls(path.absolute(), _sha256(path))

    def check(self) -> None:
        """Compare the content with the configured one.

        Raises:
            UserError: it has changed, or is gone.
        """
        if _sha256(self.file) != self.sha256:
            raise UserError(
                f"{self.file}: changed since it was configured as init (SHA-256 "
                f"{self.sha256[:16]}...); restore it, or set init again for a new run"
            )


def _sha256(path: Path) -> str:
    if path.is_dir():
        files = [each for each in path.iterdir() if each.is_file() and each.name[0] != "."]
        if not any(each.suffix in (".safetensors", ".bin") for each in files):
            raise UserError(f"{path}: no model in this folder; give an export or a checkpoint")
        return sha256_of_files(files)
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; give a checkpoint or an exported folder")
    return sha256_of(path)


def initialise(network: nn.Module, init: InitialWeights, remedy: str) -> "Match":
    """Load all tensors of a network from a checkpoint, and return which were used.

    Args:
        network: is filled in place, on its device and in its precision.
        init: of the configuration.
        remedy: how to configure the network that the file holds.

    Raises:
        UserError: a file that has changed, cannot be read, or does not fill the network.
    """
    init.check()
    if init.file.is_dir():
        raise UserError(f"{init.file}: a folder; give the file of weights in it")
    states = named_tensors(init.file)
    # Files have the names of the library's network, without the wrapper's.
    names = network.state_dict()
    wrapper = next((each for each in WRAPPERS if all(name.startswith(each) for name in names)), "")
    inner = network.get_submodule(wrapper.removesuffix(".")) if names else network
    match = best_match(states, inner)
    if not match.tensors or not match.filled:
        raise UserError(f"{init.file}: {unfilled(match, type(inner).__name__)}; {remedy}")
    check_finite(init.file, match.tensors)
    inner.load_state_dict({**inner.state_dict(), **match.tensors})
    return match


def named_tensors(file: Path) -> dict[str, Mapping[str, Tensor]]:
    """The named tensors of a checkpoint, for each of its entries.

    Raises:
        UserError: a file that cannot be read, or holds none.
    """
    states = dict(_states(read(file), ""))
    if not states:
        raise UserError(f"{file}: has no named tensors; give a checkpoint with a state_dict")
    return states


def check_finite(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights of a training that diverged.

    Raises:
        UserError: a tensor is NaN or infinite.
    """
    for key, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise UserError(f"{file}: {key} is NaN or infinite; did its training diverge?")


def unfilled(match: "Match", name: str) -> str:
    """Why a checkpoint does not fit a network of that name: missing and unexpected keys."""
    if match.deeper:
        return f"has more blocks than {name}: {some(match.deeper)}"
    total = len(match.tensors) + len(match.missed)
    return (
        f"does not fill {name}: {len(match.missed)} of {total} tensors missing or of another "
        f"shape ({some(match.missed)}), found were {len(match.tensors)} from {match.place}, "
        f"unexpected are {some(match.dropped)}"
    )


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
            f"missed {len(self.missed)}: {some(self.missed)}",
        )


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
    except Exception as error:  # a file that is not a checkpoint can raise anything
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
            f"is not run; where it was made, save its weights alone: torch.save("
            f"model.state_dict(), NEW); a damaged file reads like this, too: copy it again"
        )
    if "TorchScript" in said:
        return "is a TorchScript archive; save the state_dict of the original model"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said).strip()
    reason = re.split(r"(?<=[a-z)])\. |\n", plain)[0]
    if not reason or "eights only" in reason or "weights_only" in reason:  # torch's advice
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
            sequence = isinstance(module, nn.Sequential | nn.ModuleList)
            return bool(children) and part.isdecimal() and sequence
        module = children[part]
    return False


def _kinds(keys: tuple[str, ...]) -> str:
    """Keys counted by their first two parts."""
    counts = Counter(".".join(key.split(".")[:2]) for key in keys)
    shown = [f"{kind} ({count})" for kind, count in counts.most_common(SHOWN)]
    return ", ".join(shown) + (", ..." if len(counts) > SHOWN else "") or "none"


def some(names: Sequence[str]) -> str:
    """The first of some keys, for a message."""
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "") or "none"
