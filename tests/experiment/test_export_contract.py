"""One contract of the exports of agents, encoders of control, graphs and clips.

A finished run is exported, its export computes what the run's network did, also by the code of its
card, and a byte cut off any file, or another network in it, is refused.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import graph.export
import rl.export
import video.export
from graph.data import load
from graph.encoder import make_encoder
from graph.evaluation import embed
from rl.agent import Agent, Contrast
from rl.export import ENCODER_NAMES, POLICY_NAMES
from rl.train import save_weights
from shared.errors import UserError
from shared.experiment.data import SUMS
from shared.experiment.export import CARD, CONFIG
from shared.experiment.run import Run
from video.encoder import encoder_of

AGENT = rl.Config(
    task="finger_spin", action_repeat=2, frame_size=20, crop=16, filters=4, convolutions=2, latent=6
)
PROBE = rl.ProbeConfig(**{**vars(AGENT), "protocol": "state-probe-v1"})
GRAPHS = graph.Config(dataset="atlas", network="GCN", hidden=6, layers=2, readout="mean")
CLIPS = video.Config(width=0.125, clip_frames=8, size=32, batch_norm_epsilon=1e-3)


def moved(module: nn.Module) -> nn.Module:
    """The module with weights and statistics that no initialisation gives."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for item in module.parameters():
            item += 0.1 * torch.randn(item.shape, generator=generator)
        for item in module.buffers():
            if item.is_floating_point():
                item += 0.05 * torch.rand(item.shape, generator=generator)
    return module.eval()


def pictures(size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (5, 9, size, size), dtype=torch.uint8, generator=generator)


def agent(folder: Path, config: Any = AGENT) -> Callable[..., Tensor]:
    with Run(folder, config, tier="short") as run:
        made = moved(Agent(config, 2))
        save_weights(run, made, POLICY_NAMES)
        curve = [{"step": 1000, "return": 4.0, "episodes": [4.0], "seconds": 1.0}]
        run.finish({"return": 4.0, "details": {"curve": curve}})
    return lambda: made.act(pictures(20), sample=False)  # type: ignore[operator]


def probe(folder: Path, config: Any = PROBE) -> Callable[..., Tensor]:
    with Run(folder, config, tier="short") as run:
        made = moved(Contrast(config))
        save_weights(run, made, ENCODER_NAMES)
        run.finish({"r2": 40.5, "details": {"targets": {"position[0]": 40.5}}})
    return lambda: made.encoder(pictures(16))  # type: ignore[operator]


def graphs(folder: Path) -> Callable[..., Tensor]:
    made = moved(make_encoder(GRAPHS, 1).double())
    with Run(folder, GRAPHS) as run:
        graph.save_encoder(made, folder, config=GRAPHS, features=1)
        run.finish({"accuracy": 61.5})
    return lambda: torch.from_numpy(embed(made, load("atlas", folder)))


def clips(folder: Path) -> Callable[..., Tensor]:
    made = moved(encoder_of(CLIPS))
    with Run(folder, CLIPS, tier="short") as run:
        video.export.save_encoder(made, folder, config=CLIPS)
        run.finish({"top1": 61.25, "R@1": 40.5, "details": {"test_videos": 306}})
    return lambda: made(a_clip())


def a_clip() -> Tensor:
    return torch.randn(2, 3, 8, 32, 32, generator=torch.Generator().manual_seed(1))


# How a run is made, the module that exports it, how its network is loaded and what it is given, and
# the input and the output of the card's code.
CASES: dict[str, tuple[Any, Any, str, Callable[[Any], Any], str, str]] = {
    "agent": (agent, rl.export, "load", lambda act: act(pictures(20)), "(1, 9, 20, 20)", "action"),
    "probe": (probe, rl.export, "load", lambda of: of(pictures(16)), "(1, 9, 16, 16)", "features"),
    "graphs": (
        graphs,
        graph.export,
        "load_encoder",
        lambda encoder: torch.from_numpy(embed(encoder, load("atlas", Path()))),
        "",
        "encoder",
    ),
    "clips": (clips, video.export, "load_encoder", lambda of: of(a_clip()), "1, 3, 8, 32, 32", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_an_export_is_the_network_of_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, module, loader, given, shape, result = CASES[name]
    expected = make(tmp_path / "run")
    target = module.write(tmp_path / "run", tmp_path / "export")
    assert {CONFIG, SUMS, CARD} < {path.name for path in target.iterdir()}
    before = torch.get_rng_state()
    network = getattr(module, loader)(target)
    assert torch.equal(torch.get_rng_state(), before)  # a run goes on as if nothing was loaded
    with torch.no_grad():
        wanted = expected()
        assert wanted.std(0).max() > 1e-6  # the inputs differ
        torch.testing.assert_close(given(network), wanted, rtol=1e-6, atol=1e-9)
        (code,) = re.findall(r"```python\n(.*?)```", (target / CARD).read_text(), re.DOTALL)
        zeros = re.search(rf"torch\.zeros\({re.escape(shape)}[^)]*\)", code)
        names: dict[str, Any] = {"given": a_clip()}
        if name in ("agent", "probe"):
            names["given"] = pictures(20 if name == "agent" else 16)
        assert zeros is not None or name == "graphs"
        monkeypatch.chdir(target)
        exec(code.replace(zeros[0], "given") if zeros else code, names)
        found = given(names["encoder"]) if name == "graphs" else names[result or "features"]
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_a_byte_less_and_another_network_are_refused(name: str, tmp_path: Path) -> None:
    make, module, loader, *_ = CASES[name]
    make(tmp_path / "run")
    target = module.write(tmp_path / "run", tmp_path / "export")
    (weights,) = target.glob("*.safetensors")
    for file in (weights, target / CONFIG):
        content = file.read_bytes()
        file.write_bytes(content[:-1])
        with pytest.raises(UserError, match=f"the SHA-256 of {file.name} is not the one in"):
            getattr(module, loader)(target)
        file.write_bytes(content)
    getattr(module, loader)(target)
    # In the folder of the run: a tensor less, which is another network.
    (kept,) = (tmp_path / "run").glob("*.safetensors")
    state = load_file(kept)
    state.pop(next(iter(state)))
    save_file(state, kept)
    with pytest.raises(UserError):
        module.write(tmp_path / "run", tmp_path / "other")
    assert not (tmp_path / "other").exists()
