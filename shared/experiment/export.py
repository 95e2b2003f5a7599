"""Exports of all domains: weights, checked folders, the model card.

weights        encoder.safetensors for images, graphs and clips; its metadata say how to build the
               network and have a SHA-256 over the content
config.json    of the run; for text, that of transformers
SHA256SUMS     of every file but the card, as sha256sum writes and checks it
README.md      the model card for the Hugging Face hub, from the template ``card.md.j2``
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from shared.errors import UserError
from shared.experiment.config import always_there, canonical_json
from shared.experiment.data import SUMS, check_sums, write_sums, writing
from shared.experiment.files import replacing
from shared.experiment.initial import FILE
from shared.experiment.records import Record, read_record
from shared.experiment.templates import render
from shared.functions import function_name

CARD = "README.md"
CONFIG = "config.json"
DIGEST = "sha256"  # the key of the metadata
SHOWN = 300  # characters of an error of torch that may name every tensor
REMEDY = "copy or export it again"
RUN_REMEDY = "delete the folder and run its cell again"
# Prefixes of parameters where a library's network is wrapped; files are without them.
WRAPPERS = ("model.", "network.")

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Export:
    """What a domain exports of a trained network; the rest of the card is from the run's record."""

    files: Mapping[str, Path | bytes]  # by name in the exported folder, a file to copy or content
    name: Sequence[str]  # the words of the model's name, before the losses
    losses: Sequence[str]  # that it was trained with; empty for a baseline
    about: str  # what it is and how it was trained
    input: str  # what it takes, with shape and range
    output: str  # what it gives
    loading: str  # how to load the files, Markdown
    pipeline: str  # the hub's name of the task
    modality: str  # the kind of input, in one word
    evaluated: str  # the dataset that it was measured on
    left_out: Sequence[str] = ()  # metrics that the card leaves out
    notes: Sequence[str] = ()  # paragraphs that follow the numbers
    data: str = ""  # the text before the hashes of the data
    library: str = "pytorch"  # the hub's name of the library that loads it
    projected: bool = False  # whether the metrics are of the exported features


# Weights


def save_weights(module: nn.Module, folder: Path, metadata: Mapping[str, str]) -> None:
    """Write ``encoder.safetensors`` with what rebuilding the network needs into a folder."""
    named = module.state_dict()
    prefix = len(wrapper_of(named))
    state = {name[prefix:]: item.detach().cpu().contiguous() for name, item in named.items()}
    metadata = {"format": "pt", **metadata}
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / FILE) as part:
        part.write_bytes(save(state, {**metadata, DIGEST: _digest(state, metadata)}))


def read_weights(path: Path, needs: Sequence[str] = ()) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata, which need these names, of a file that :func:`save_weights` left.

    Of a folder the ``SHA256SUMS`` are checked as well.
    """
    file = file_of(path)
    if path.is_dir() and (path / SUMS).is_file():
        check_sums(path, REMEDY)
    with naming_damage(file), safe_open(file, framework="pt") as stream:
        state = {name: stream.get_tensor(name) for name in stream.keys()}
        metadata = dict(stream.metadata() or {})
    if missing := [name for name in (*needs, DIGEST) if name not in metadata]:
        raise UserError(
            f"{file}: not written by this domain's export (its metadata lack {missing[0]!r}); "
            f"export a run of it"
        )
    if metadata[DIGEST] != _digest(state, metadata):
        raise damaged(file, "its SHA-256 is not the one written into it")
    return state, metadata


def is_exported(file: Path) -> bool:
    """Whether :func:`save_weights` left a file, by its metadata, whatever its name."""
    if not file.is_file() or not is_safetensors(file):
        return False
    with contextlib.suppress(SafetensorError), safe_open(file, framework="pt") as stream:
        return DIGEST in (stream.metadata() or {})
    return False


def is_safetensors(file: Path) -> bool:
    """Whether the extension says so, or the file starts with a length and a JSON header."""
    with file.open("rb") as stream:
        head = stream.read(9)
    return file.suffix == ".safetensors" or (len(head) == 9 and head[5:] == b"\0\0\0{")


def stating(network: Network, /, **facts: str | None) -> Network:
    """The network, with the facts that its export states of it: what its tensors do not show.

    They are by names of the metadata; None is one that the metadata lack.
    """
    network.facts = facts  # type: ignore[assignment] # an attribute of no parameters
    return network


def check_facts(
    file: Path, stated: Mapping[str, str], wanted: Mapping[str, str | None], remedy: str
) -> None:
    """Refuse an export that states another network than the wanted one."""
    for name, value in wanted.items():
        if stated.get(name) != value:
            raise UserError(
                f"{file}: its {name} is {stated.get(name)}, that of the network {value}; {remedy}"
            )


def file_of(path: Path) -> Path:
    """The file of weights itself, or that of an exported folder."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; give an exported folder or its {FILE}")
    return file


def fill(make: Callable[[], Network], state: Mapping[str, Tensor]) -> Network:
    """The network of ``make`` with the given state, in eval mode."""
    with torch.random.fork_rng(devices=[]):  # leaves the run's random state unchanged
        network = make()
    wanted = network.state_dict()
    if state.keys() != wanted.keys():
        state = {f"{wrapper_of(wanted)}{name}": item for name, item in state.items()}
    network.load_state_dict(state)
    return network.eval()


def remade(module: nn.Module, make: Callable[[], Network]) -> Network:
    """The network of ``make`` with the state of ``module``, in eval mode.

    The module may be compiled, averaged, or wrapped for several devices.
    """
    try:
        return fill(make, _unwrapped(module).state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:SHOWN]
        raise ValueError(f"this is not the network of the configuration: {reason}") from error


def _unwrapped(module: nn.Module) -> nn.Module:
    inner: Any = getattr(module, "_orig_mod", None)  # of torch.compile
    if isinstance(module, nn.DataParallel | DistributedDataParallel | AveragedModel):
        inner = module.module
    return module if inner is None else _unwrapped(inner)


def network_of(path: Path, stated: str, function: Callable[..., Any] | None) -> Any:
    """What makes the network of a file: the user's function, or the name that the file states."""
    if function is None and "@" in stated:
        name = function_name(stated)
        raise UserError(
            f"{path}: its network is made by {name}; pass that function as well: "
            f"load_encoder(path, {name.rpartition('.')[2]})"
        )
    return stated if function is None else function


def damaged(path: Path, reason: str, remedy: str = REMEDY) -> UserError:
    """The error for a file or folder that is not as it was written; one line."""
    return UserError(f"{path}: damaged or edited ({' '.join(reason.split())}); {remedy}")


@contextlib.contextmanager
def naming_damage(path: Path, remedy: str = REMEDY) -> Iterator[None]:
    """Turn exceptions from reading a damaged file into one line that names it."""
    try:
        yield
    except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}", remedy) from error


def wrapper_of(state: Mapping[str, Tensor]) -> str:
    """The prefix of all names, if it is one of :data:`WRAPPERS`; else empty."""
    return next((w for w in WRAPPERS if state and all(name.startswith(w) for name in state)), "")


def _digest(state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over the metadata without it, and the name, type, shape and bytes of each tensor."""
    rest = {name: text for name, text in metadata.items() if name != DIGEST}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(state):
        tensor = state[name]
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# Folders


def export_run(
    folder: Path,
    target: Path,
    kind: type,
    needs: Sequence[str],
    describe: Callable[[Path, Record], Export],
) -> Path:
    """Write the model of a finished run and its card to the folder ``target``, and return it.

    The folder is new or empty; it is filled under another name and moved when it is complete.
    ``kind`` is the domain's class of configurations, ``needs`` are the files that a run with a
    model keeps. ``describe`` checks them, and gives what to export of a folder and its record in
    today's form.
    """
    record = read_record(folder, folder.name)
    if record is None:
        raise UserError(
            f"{folder}: not a finished run (no result.json); run its cell first, or end a run of "
            f"your own with run.finish(metrics)"
        )
    if record.result["tier"] == "smoke":
        raise UserError(
            f"{folder}: a smoke run only shows that the code runs; export one of another tier"
        )
    record = record.upgraded(kind)
    if lacking := sorted(always_there(kind) - record.config.keys()):
        raise UserError(
            f"{folder}: this run trains no model of this domain (its configuration has no "
            f"{lacking[0]!r}); export one that does, or name the run's domain with --domain"
        )
    files = [folder / name for name in needs]
    if missing := [file for file in files if not file.is_file()]:
        raise UserError(
            f"{missing[0]}: the run has no such file; baselines train no model, any other run "
            f"has to be run again (--again)"
        )
    if (files[0].parent / SUMS).is_file():
        check_sums(files[0].parent, RUN_REMEDY, [file.name for file in files])
    export = describe(folder, record)
    with _new_folder(target.resolve()) as part:
        sums = {}
        for name, source in export.files.items():
            content = source.read_bytes() if isinstance(source, Path) else source
            sums[name] = hashlib.sha256(content).hexdigest()
            (part / name).parent.mkdir(exist_ok=True)
            (part / name).write_bytes(content)
        write_sums(part, sums)
        check_sums(part, REMEDY, sums)
        metrics = record.result["metrics"]
        card = render(
            Path(__file__).with_name("card.md.j2"),
            export=export,
            name="-".join([*export.name, *export.losses]).replace("_", "-").lower(),
            metrics={n: value for n, value in numeric(metrics).items() if n not in export.left_out},
            details=numeric(metrics.get("details", {})),
            config=record.config,
            result=record.result,
            environment=record.environment,
            files=sums,
            written=canonical_json(record.config),
        )
        (part / CARD).write_text(card, encoding="utf-8")
    return target


@contextlib.contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``target`` if the block succeeds."""
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise UserError(f"{target} exists; choose another folder with --to, or delete it")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    with writing(target, "choose another folder with --to"):
        part.mkdir(parents=True)
        try:
            yield part
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


# The model card


def numeric(content: Mapping[str, Any]) -> dict[str, float]:
    """The numeric entries of a result."""
    return {name: value for name, value in content.items() if isinstance(value, int | float)}


def loss_names(objective: Mapping[str, Any]) -> list[str]:
    """The names of an objective's loss and penalties."""
    terms = [objective["loss"], *objective["penalties"]]
    return [function_name(term["function"]) for term in terms]


def training_of(config: Mapping[str, Any], inputs: str) -> str:
    """How a canonical configuration trains an encoder on ``inputs``, for the card."""
    if not config.get("train", True):
        return f"not trained at all, as initialised with seed {config['seed']}: a baseline"
    method = f" by {config['method']}" if "method" in config else ""
    steps = f", at most {config['steps']} steps" if config.get("steps") is not None else ""
    if "init" in config:
        method += f" from the weights with SHA-256\n{config['init']['sha256']}"
    return (
        f"trained without labels on {inputs}{method} with\nthe loss "
        f"`{' + '.join(loss_names(config['objective']))}`: {config['epochs']} "
        f"epoch{'s' * (config['epochs'] != 1)}{steps}, "
        f"batches of {config['batch_size']}, seed {config['seed']}"
    )


def loading(package: str, made_by: str, use: str = "") -> str:
    """How to load an encoder of a package, for the card, with a line that uses it.

    ``made_by`` is the canonical name of what makes the network.
    """
    module, _, name = function_name(made_by).rpartition(".")
    by_user = "@" in made_by
    return python_block(
        "from pathlib import Path",
        "",
        "import torch",
        *([f"from {module} import {name}  # yours, which made the network"] * by_user),
        f"from {package}.export import load_encoder",
        "",
        f'encoder = load_encoder(Path("."){f", {name}" * by_user})  # checks every SHA-256',
        *([use] * bool(use)),
    )


def python_block(*lines: str) -> str:
    """A block of code in Markdown."""
    return "\n".join(["```python", *lines, "```"])
