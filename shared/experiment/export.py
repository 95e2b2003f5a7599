"""What exports of all domains have in common: weights, checked folders, the model card.

weights        of an encoder of images, graphs or clips encoder.safetensors, whose metadata say
               how it is built and carry a SHA-256 over the file's content
config.json    of the run; of text, that of transformers
SHA256SUMS     of every file but the card, as sha256sum writes and checks it
README.md      the model card as the Hugging Face hub reads it; ``card.md.j2`` is its form
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from shared.errors import UserError
from shared.experiment.data import SUMS, check_sums, sha256_of, write_sums
from shared.experiment.prepared import writing
from shared.experiment.records import Record, read_record
from shared.experiment.runs import replacing
from shared.experiment.tables import NOT_WRITTEN, canonical_json
from shared.functions import function_name

CARD = "README.md"
FILE = "encoder.safetensors"
CONFIG = "config.json"
DIGEST = "sha256"  # the key of the metadata
REMEDY = "copy or export it again"
RUN_REMEDY = "delete the folder and run its cell again"
# Names of parameters begin with these where the library's network is wrapped; files have its own.
WRAPPERS = ("model.", "network.")

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Export:
    """What a domain says of a trained network; the rest of its card is the run's record.

    Args:
        files: by name in the exported folder, a file to copy or the content.
        name: the words of the model's name, before the losses.
        losses: that it was trained by; none of a baseline.
        about: what it is and how it was trained.
        takes: what goes in.
        gives: what comes out.
        loading: how to load the files, Markdown.
        pipeline: what it does, in the hub's words.
        inputs: what its features are of, in one word.
        evaluated: the dataset that it was measured on.
        left_out: metrics that are no result.
        notes: paragraphs that follow the numbers.
        data: what precedes the hashes of the data.
        library: that loads it, in the hub's words.
        projected: whether the numbers are those of what is exported.
    """

    files: Mapping[str, Path | bytes]
    name: Sequence[str]
    losses: Sequence[str]
    about: str
    takes: str
    gives: str
    loading: str
    pipeline: str
    inputs: str
    evaluated: str
    left_out: Sequence[str] = ()
    notes: Sequence[str] = ()
    data: str = ""
    library: str = "pytorch"
    projected: bool = False


# Weights


def save_weights(module: nn.Module, folder: Path, metadata: Mapping[str, str]) -> None:
    """Write ``encoder.safetensors`` into a folder.

    Args:
        module: on any device.
        folder: made if it is not there; the file in it is replaced in one move.
        metadata: what is needed to rebuild the network.
    """
    state = {name: item.detach().cpu() for name, item in module.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / FILE) as part:
        part.write_bytes(_packed(state, metadata))


def weights_of_run(folder: Path, needs: Sequence[str]) -> tuple[Path | bytes, dict[str, str]]:
    """The weights that a run keeps as :class:`Export` takes them, and their metadata."""
    state, metadata = read_weights(folder / FILE, needs)
    # Earlier versions kept the names of the wrapper.
    return _packed(state, metadata) if _wrapper_of(state) else folder / FILE, metadata


def read_weights(path: Path, needs: Sequence[str] = ()) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file that :func:`save_weights` left.

    Args:
        path: the file; or a folder, whose ``SHA256SUMS`` are compared, too.
        needs: names that the metadata must have.

    Raises:
        UserError: no such file, a damaged one, or one of something else.
    """
    file = file_of(path)
    if path.is_dir() and (path / SUMS).is_file():
        check_sums(path, REMEDY)
    with naming_damage(file), safe_open(file, framework="pt") as stream:
        state = {name: stream.get_tensor(name) for name in stream.keys()}
        metadata = dict(stream.metadata() or {})
    if DIGEST in metadata:
        if metadata[DIGEST] != _digest(state, metadata):
            raise damaged(file, "its SHA-256 is not the one written into it")
    elif path.is_dir():  # of an earlier version, which wrote it into SHA256SUMS alone
        check_sums(path, REMEDY, (FILE, CONFIG) if (path / CARD).exists() else (FILE,))
    if missing := [name for name in needs if name not in metadata]:
        raise UserError(
            f"{file}: not written by this domain's export (its metadata lack {missing[0]!r}); "
            f"export a run of it"
        )
    return state, metadata


def file_of(path: Path) -> Path:
    """The file of weights itself, or that of an exported folder.

    Raises:
        UserError: there is none.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; give an exported folder or its {FILE}")
    return file


def fill(make: Callable[[], Network], state: Mapping[str, Tensor]) -> Network:
    """The network that ``make`` gives, with a state that a module or a file had, in eval mode.

    Raises:
        RuntimeError: names or shapes that are not those of the network.
    """
    with torch.random.fork_rng(devices=[]):  # a run's random numbers go on as they are
        made = make()
    wanted = made.state_dict()
    if state.keys() != wanted.keys():
        state = {f"{_wrapper_of(wanted)}{name}": item for name, item in state.items()}
    made.load_state_dict(state)
    return made.eval()


def remade(module: nn.Module, make: Callable[[], nn.Module]) -> nn.Module:
    """The network that ``make`` gives, with the state of ``module``, in eval mode.

    Raises:
        ValueError: ``make`` gives another network.
    """
    try:
        return fill(make, module.state_dict())
    except RuntimeError as error:
        raise ValueError(f"this is not the network of the configuration: {error}") from error


def network_of(path: Path, said: str, given: Callable[..., Any] | None) -> Any:
    """What makes the network of a file: the function given, or the name that the file says.

    Raises:
        UserError: a function of one's own made it, and none is given.
    """
    if given is None and "@" in said:
        name = function_name(said)
        raise UserError(
            f"{path}: its network is made by {name}; give that function, too: "
            f"load_encoder(path, {name.rpartition('.')[2]})"
        )
    return said if given is None else given


def damaged(path: Path, reason: str, remedy: str = REMEDY) -> UserError:
    """That a file or folder is not as it was written, in one line."""
    return UserError(f"{path}: damaged or edited ({' '.join(reason.split())}); {remedy}")


@contextlib.contextmanager
def naming_damage(path: Path, remedy: str = REMEDY) -> Iterator[None]:
    """Turn what reading a damaged file raises into one line that names it."""
    try:
        yield
    except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}", remedy) from error


def _wrapper_of(state: Mapping[str, Tensor]) -> str:
    """What all names begin with, if it is one of :data:`WRAPPERS`; else nothing."""
    return next((each for each in WRAPPERS if all(name.startswith(each) for name in state)), "")


def _packed(state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The content of a file of weights, under the names of the network that is wrapped."""
    wrapper = _wrapper_of(state)
    state = {name.removeprefix(wrapper): item.contiguous() for name, item in state.items()}
    metadata = {"format": "pt", **metadata}
    return save(state, {**metadata, DIGEST: _digest(state, metadata)})


def _digest(state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over the metadata without itself, and every tensor's name, type, shape and bytes."""
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
    """Put a finished run's model and its card into ``target``, a folder, and return it.

    It is filled beside its place and moved there when it is complete.

    Args:
        folder: of the run.
        target: of a new folder, or of an earlier export, which it replaces.
        kind: the domain's class of configurations.
        needs: the files, below that of the run, that a run with a model keeps.
        describe: checks them, and says what to export; told the run's folder and its record in
            today's form.

    Raises:
        UserError: a run that is not finished, of the smoke tier, of another domain or without a
            model; damaged files; a folder that holds other files.
    """
    record = read_record(folder, folder.name)
    if record is None:
        raise UserError(f"{folder}: not a finished run (no result.json); run its cell first")
    if record.result["tier"] == "smoke":
        raise UserError(f"{folder}: a smoke run proves the path only; export one of another tier")
    record = record.upgraded(kind)
    needed = [each.name for each in fields(kind) if NOT_WRITTEN not in each.metadata]
    if lacking := [name for name in needed if name not in record.config]:
        raise UserError(
            f"{folder}: this run trains no model of this domain (its configuration has no "
            f"{lacking[0]!r}); export one that does, or name the run's domain with --domain"
        )
    files = [folder / name for name in needs]
    if missing := [file for file in files if not file.is_file()]:
        raise UserError(
            f"{missing[0]}: the run keeps no such file; baselines train no model, any other run "
            f"has to be run again (--again)"
        )
    if (files[0].parent / SUMS).is_file():
        check_sums(files[0].parent, RUN_REMEDY, [file.name for file in files])
    export = describe(folder, record)
    with _taking_the_place_of(target.resolve()) as part:
        sums = {}
        for name, source in export.files.items():
            (part / name).parent.mkdir(exist_ok=True)
            if isinstance(source, Path):
                sums[name] = sha256_of(source)
                shutil.copyfile(source, part / name)
            else:
                sums[name] = hashlib.sha256(source).hexdigest()
                (part / name).write_bytes(source)
        write_sums(part, sums)
        check_sums(part, REMEDY, sums)
        (part / CARD).write_text(_card(export, record, sums), encoding="utf-8")
    return target


@contextlib.contextmanager
def _taking_the_place_of(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` to fill, which takes its place if all goes well."""
    if target.is_file():
        raise UserError(f"{target}: is a file; name a folder with --to")
    there = {str(each.relative_to(target)) for each in target.rglob("*") if not each.is_dir()}
    known = {SUMS, CARD, FILE}
    if SUMS in there:
        lines = (target / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
        known |= {line.partition("  ")[2] for line in lines}
    if foreign := sorted(there - known):
        raise UserError(
            f"{target}: holds {foreign[0]}, which no export wrote; name another folder with --to"
        )
    part, before = (
        target.with_name(f".{target.name}.{os.getpid()}.{end}") for end in ("part", "before")
    )
    with writing(target, "name another folder with --to"):
        part.mkdir(parents=True)
        try:
            yield part
            if target.exists():
                target.rename(before)
            part.rename(target)
            shutil.rmtree(before, ignore_errors=True)
        finally:
            shutil.rmtree(part, ignore_errors=True)


# The model card


def _card(export: Export, record: Record, sums: Mapping[str, str]) -> str:
    """The text of the card; ``sums`` are the SHA-256 of the files, by name."""
    # nothing is HTML here, so nothing is escaped
    forms = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    metrics = record.result["metrics"]
    return forms.get_template("card.md.j2").render(
        export=export,
        name="-".join([*export.name, *export.losses]).replace("_", "-").lower(),
        metrics={name: metrics[name] for name in numbers(metrics) if name not in export.left_out},
        details=numbers(metrics.get("details", {})),
        config=record.config,
        result=record.result,
        environment=record.environment,
        files=sums,
        written=canonical_json(record.config),
    )


def numbers(content: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a result, without its lists and words."""
    return {name: value for name, value in content.items() if isinstance(value, int | float)}


def loss_names(objective: Mapping[str, Any]) -> list[str]:
    """The names of an objective's loss and penalties."""
    terms = [objective["loss"], *objective["penalties"]]
    return [function_name(term["function"]) for term in terms]


def training_of(config: Mapping[str, Any], inputs: str) -> str:
    """How a canonical configuration trains an encoder on its inputs, for the card."""
    if not config.get("train", True):
        return f"not trained at all, as initialised with seed {config['seed']}: a baseline"
    method = f" by {config['method']}" if "method" in config else ""
    steps = f", at most {config['steps']} steps" if config.get("steps") is not None else ""
    if "init" in config:
        method += f" from the weights with SHA-256\n{config['init']['sha256']}"
    return (
        f"trained without labels on {inputs}{method} with\nthe loss "
        f"`{' + '.join(loss_names(config['objective']))}`: {config['epochs']} epochs{steps}, "
        f"batches of {config['batch_size']}, seed {config['seed']}"
    )


def loading(
    package: str, made_by: str, use: str = "", library: str = "", alone: Sequence[str] = ()
) -> str:
    """How to load an encoder, for the card.

    Args:
        package: of this project.
        made_by: the network's name, canonical.
        use: a line with the ``encoder``.
        library: that has the network, too.
        alone: how to load it with that library alone, after ``import torch`` and ``load_file``.
    """
    module, _, name = function_name(made_by).rpartition(".")
    own = "@" in made_by
    lines = [f"from {module} import {name}  # yours, which made the network"] if own else []
    given = f", {name}" if own else ""
    here = python(
        "from pathlib import Path",
        "",
        "import torch",
        *lines,
        f"from {package}.export import load_encoder",
        "",
        f'encoder = load_encoder(Path("."){given})  # this folder; checks every SHA-256',
        *([use] if use else []),
    )
    if not alone:
        return here
    elsewhere = python("import torch", "from safetensors.torch import load_file", *alone)
    return f"{here}\n\nor with {library} alone:\n\n{elsewhere}"


def python(*lines: str) -> str:
    """A block of code in Markdown."""
    return "\n".join(["```python", *lines, "```"])
