"""Training steps of the suite's own loops beside bare networks and what others would use instead.

Run it as ``python benchmarks/peers.py`` (extra ``bench``); ``--write`` writes docs/numerics.md.
The loops are those of benchmarks/steps.py. After each of their steps every peer takes one, of a
copy of the network with an optimiser of the same kind, so that views, loss and loop differ.
"""

import argparse
import contextlib
import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import steps
import torch
from losses import info_nce_methods, lightly_loss, machine, write_section
from PIL import Image
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVC
from torch import Tensor, nn

from graph.config import Config as GraphConfig
from graph.evaluation import COSTS, svm_ten_fold
from graph.train import views
from shared.experiment.compat import make_torchvision_importable
from shared.precision import without_tf32
from text.config import Config as TextConfig
from video.config import Config as VideoConfig
from vision.config import Config as VisionConfig

TURNS = 10  # the first is not counted
OURS, BARE = "ours", "bare network"
nt_xent = info_nce_methods()["cross_entropy, filled diagonal"]
Ways = dict[str, Callable[[], object]]
Times = dict[str, list[float]]  # seconds of processor time by way, in the order they were taken


def take_turn(ways: Ways, times: Times) -> None:
    """Time each way once."""
    for name, way in ways.items():
        start = time.process_time()
        way()
        times.setdefault(name, []).append(time.process_time() - start)


def plain_step(modules: nn.ModuleList, optimiser: Any, loss: Callable[..., Tensor]) -> None:
    """Forward, backward and update."""
    optimiser.zero_grad()
    loss(*modules).backward()
    optimiser.step()


def beside(config: Any, loop: steps.Loop, losses: dict[str, Any], *parts: str) -> Times:
    """Alternate the steps of a loop with plain steps of copies of ``parts`` of its modules."""
    ways, times = Ways(), Times({OURS: []})

    class Alternated(steps.TimedRun):
        def track(self, **objects: Any) -> int:
            optimiser = objects["optimiser"]
            modules = nn.ModuleList([objects[part] for part in parts])
            for name, loss in losses.items():
                copied = copy.deepcopy(modules)
                optimiser_of_copy = type(optimiser)(copied.parameters(), **optimiser.defaults)
                ways[name] = partial(plain_step, copied, optimiser_of_copy, loss)
            return 0

        def steps(self, total: int, what: str, **options: Any) -> Iterator[int]:
            for step in range(TURNS):
                start = time.process_time()
                yield step
                times[OURS].append(time.process_time() - start)
                take_turn(ways, times)
            raise steps.Finished

    with (
        tempfile.TemporaryDirectory() as folder,
        Alternated(Path(folder), config) as run,
        contextlib.suppress(steps.Finished),
    ):
        loop(run)
    return times


def of_passes(networks: Any, *views: Tensor, loss: Callable[..., Tensor] = nt_xent) -> Tensor:
    """Give the loss of two views under an encoder and its head, in one pass or two."""
    return loss(*torch.cat([networks.head(networks.encoder(view)) for view in views]).chunk(2))


def vision() -> Times:
    """SimCLR on images of 32 x 32, ResNet-8, B = 256."""
    make_torchvision_importable()
    from lightly.transforms.simclr_transform import SimCLRTransform

    config = VisionConfig(backbone="resnet8", stem="strided", batch_size=256, precision="float32")
    pictures = [Image.effect_noise((32, 32), 100).convert("RGB") for _ in range(256)]
    transform = SimCLRTransform(input_size=32, gaussian_blur=0.0)
    last = {"memory_format": torch.channels_last}
    ready = [torch.randn(256, 3, 32, 32).contiguous(**last) for _ in range(2)]

    def by_lightly(networks: Any) -> Tensor:
        both = map(torch.stack, zip(*map(transform, pictures), strict=True))
        return of_passes(networks, *(x.contiguous(**last) for x in both), loss=lightly_loss())

    losses = {"lightly": by_lightly, BARE: lambda modules: of_passes(modules, *ready)}
    return beside(config, steps.vision_loop(config), losses, "networks")


def text() -> Times:
    """quick-thoughts, GRU 128, B = 100."""
    config = TextConfig(epochs=100, batch_size=100, hidden=128, embedding=128)
    batch = steps.text_tokens(config).batch(0, 100, config.length)
    near = torch.ones(100, 100).triu(-1).tril(1).fill_diagonal_(0)

    def plain(model: Any) -> Tensor:
        first, second = model(batch.ids, batch.mask)
        scores = (first @ second.T).fill_diagonal_(-torch.inf).log_softmax(1)
        return torch.mean(-scores.where(near > 0, 0).sum(1) / near.sum(1))

    return beside(config, steps.text_loop(config), {BARE: plain}, "model")


def graph() -> Times:
    """GraphCL, a batch of 128 graphs like DD's."""
    config = GraphConfig(dataset="DD", epochs=1000, batch_size=128, precision="float32")
    (ready,) = views(config, steps.graphs_like("DD", 128), 0)

    def bare(encoder: Any, head: Any) -> Tensor:
        arguments = ((x.x, x.edge_index, x.batch, x.num_graphs) for x in ready)
        return nt_xent(*(head(encoder(*view)) for view in arguments))

    return beside(config, steps.graph_loop(config, 128), {BARE: bare}, "encoder", "head")


def video() -> Times:
    """SimCLR, S3D of a quarter's width, clips of 8 x 48 x 48, B = 16."""
    make_torchvision_importable()
    from torchvision.transforms import v2

    small: dict[str, Any] = {"clip_frames": 8, "size": 48, "width": 0.25, "batch_size": 16}
    config = VideoConfig(method="simclr", epochs=100, **small)
    ready, stored = torch.randn(32, 3, 8, 48, 48), steps.clips_of_noise(config, 16).frames
    jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    strong = [jitter, v2.RandomGrayscale(0.2), v2.RandomApply([v2.GaussianBlur(13)])]
    weak = [v2.RandomResizedCrop(48, (0.2, 1.0), antialias=True), v2.RandomHorizontalFlip()]
    scale = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]
    transform = v2.Compose([*weak, v2.RandomApply(strong, 0.4), *scale])

    def by_torchvision(networks: Any) -> Tensor:
        clips = torch.stack([transform(clip) for clip in 2 * stored.split(8)])
        return of_passes(networks, clips.transpose(1, 2))

    losses = {"torchvision": by_torchvision, BARE: lambda modules: of_passes(modules, ready)}
    return beside(config, steps.video_loop(config), losses, "networks")


def svm() -> Times:
    """SVM of graph embeddings, ten folds of 188."""
    labels = np.arange(188) % 3 % 2
    features = np.random.default_rng(0).normal(size=(188, 160)) + labels[:, None] * 0.3
    ours = partial(svm_ten_fold, features, labels, 0)
    theirs = partial(cross_val_score, GridSearchCV(SVC(), {"C": list(COSTS)}), features, labels)
    times = Times()
    for _ in range(TURNS):
        take_turn({OURS: ours, "GridSearchCV": partial(theirs, cv=10)}, times)
    return times


def milliseconds(samples: list[float]) -> str:
    """Their median."""
    return f"{1e3 * statistics.median(samples):.3g} ms"


def against(ours: list[float], theirs: list[float]) -> str:
    """The time of another way, and how many times as long as that of a turn ours takes."""
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return f"{milliseconds(theirs)} ({ratio:.2f})"


def main() -> None:
    """Print the table, and write it if that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/numerics.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = f"""
Measured by `python benchmarks/peers.py --write` on {machine(1)}:
median processor time of a training step, and in parentheses the median ratio of this suite's to the
other's. The bare network has the same optimiser, a plain loss, and views that are ready.

| step | this suite | another library | bare network |\n|---|---|---|---|
"""
    print(table, end="", flush=True)
    with without_tf32():  # as in a run
        for step in (vision, text, graph, video, svm):
            times = {name: values[1:] for name, values in step().items()}
            ours, what = times.pop(OURS), (step.__doc__ or "")[:-1]
            others = {name: against(ours, theirs) for name, theirs in times.items()}
            bare = others.pop(BARE, "")
            library = ", ".join(f"{name} {text}" for name, text in others.items())
            line = f"| {what} | {milliseconds(ours)} | {library} | {bare} |\n"
            print(line, end="", flush=True)
            table += line
    if options.write:
        write_section("\n## Training steps compared with other libraries\n", table)


if __name__ == "__main__":
    main()
