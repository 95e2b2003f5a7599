import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from rl.agent import Agent, Contrast, make_criterion
from rl.config import Config
from rl.encoder import Bilinear
from rl.replay import Batch
from shared import Objective, alignment, cosine, distance_polarization, max_margin, term

SMALL = Config(
    frame_size=17,
    crop=13,
    stack=2,
    filters=4,
    convolutions=2,
    latent=6,
    hidden=8,
    batch_size=5,
    learning_rate=1e-2,
    temperature_learning_rate=3e-3,
)
A = 2


def config(**changes: Any) -> Config:
    return dataclasses.replace(SMALL, **changes)


def crops(seed: int, count: int = 5, size: int = 13) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 6, size, size), dtype=torch.uint8, generator=generator)


def batch(seed: int = 0, count: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(
        observation=crops(10 * seed + 1, count),
        next_observation=crops(10 * seed + 2, count),
        positive=crops(10 * seed + 3, count),
        action=2 * torch.rand(count, A, generator=generator) - 1,
        reward=3 * torch.rand(count, generator=generator),
        terminated=(torch.arange(count) % 3 == 1).float(),
    )


def made(seed: int = 0, **changes: Any) -> Agent:
    torch.manual_seed(seed)
    return Agent(config(**changes), A)


def nontrivial(**changes: Any) -> Agent:
    """In float64, no two parameters alike; the targets are not the online networks."""
    agent = made(**changes).double()
    with torch.no_grad():
        for parameter in agent.parameters():
            if parameter is not agent.log_temperature:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return agent


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


# The whole update, written once more from the authors' order


class PlainAdam:
    def __init__(self, names: list[str], rate: float, beta: float = 0.9) -> None:
        self.names, self.rate, self.beta, self.steps = names, rate, beta, 0
        self.first: dict[str, Any] = dict.fromkeys(names, 0.0)
        self.second: dict[str, Any] = dict.fromkeys(names, 0.0)

    def step(self, values: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
        self.steps += 1
        for name in self.names:
            gradient = gradients[name]
            self.first[name] = self.beta * self.first[name] + (1 - self.beta) * gradient
            self.second[name] = 0.999 * self.second[name] + 0.001 * gradient**2
            mean = self.first[name] / (1 - self.beta**self.steps)
            variance = self.second[name] / (1 - 0.999**self.steps)
            with torch.no_grad():
                values[name] -= self.rate * mean / (variance.sqrt() + 1e-8)


class Plain:
    """An agent of tensors by name."""

    def __init__(self, agent: Agent) -> None:
        self.config = agent.config
        config = agent.config
        self.values = {name: v.requires_grad_() for name, v in snapshot(agent).items()}
        rate = config.learning_rate
        encoder, criterion = self.names("contrast.encoder."), self.names("contrast.criterion.")
        self.critic_adam = PlainAdam([*encoder, *self.names("critics.")], rate)
        self.actor_adam = PlainAdam(self.names("actor."), rate)
        self.temperature_adam = PlainAdam(
            ["log_temperature"], config.temperature_learning_rate, beta=0.5
        )
        self.encoder_adam = PlainAdam(encoder, rate)
        self.contrast_adam = PlainAdam([*encoder, *criterion], rate)

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.values if name.startswith(prefix)]

    def convolve(self, prefix: str, images: Tensor) -> Tensor:
        x = images.double() / 255
        for place in range(self.config.convolutions):
            name = f"{prefix}convolutions.layers.{place}"
            weight, bias = self.values[f"{name}.weight"], self.values[f"{name}.bias"]
            x = conv2d(x, weight, bias, stride=1 if place else 2).clamp(min=0)
        return x.reshape(len(x), -1)

    def head(self, prefix: str, x: Tensor) -> Tensor:
        x = self.linear(f"{prefix}head.linear", x)
        x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
        return x * self.values[f"{prefix}head.norm.weight"] + self.values[f"{prefix}head.norm.bias"]

    def encode(self, prefix: str, images: Tensor) -> Tensor:
        return self.head(prefix, self.convolve(prefix, images))

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.values[f"{name}.weight"].T + self.values[f"{name}.bias"]

    def perceptron(self, name: str, x: Tensor) -> Tensor:
        x = self.linear(f"{name}.0", x).clamp(min=0)
        return self.linear(f"{name}.4", self.linear(f"{name}.2", x).clamp(min=0))

    def act(self, images: Tensor) -> tuple[Tensor, Tensor]:
        convolved = self.convolve("contrast.encoder.", images).detach()
        both = self.perceptron("actor.policy", self.head("actor.", convolved))
        mean, log_std = both[:, :A], -10 + 6 * (both[:, A:].tanh() + 1)
        noise = torch.randn(len(images), A, dtype=torch.float64)
        action = (mean + log_std.exp() * noise).tanh()
        density = -(noise**2) / 2 - log_std - math.log(2 * math.pi) / 2
        return action, (density - (1 - action**2 + 1e-6).log()).sum(1)

    def judge(self, prefix: str, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([latent, action], dim=1)
        one, two = (self.perceptron(f"{prefix}{name}", both)[:, 0] for name in ("first", "second"))
        return one, two

    def gradients(self, loss: Tensor, names: list[str]) -> dict[str, Tensor]:
        wanted = [self.values[name] for name in names]
        return dict(zip(names, torch.autograd.grad(loss, wanted), strict=True))

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """One update; the losses by the names that the agent's parts have."""
        losses: dict[str, Tensor] = {}
        with torch.no_grad():
            action, log_probability = self.act(batch.next_observation)
            latent = self.encode("contrast.momentum_encoder.", batch.next_observation)
            following = torch.minimum(*self.judge("target_critics.", latent, action))
            alpha = self.values["log_temperature"].exp()
            value = following - alpha * log_probability
            target = batch.reward + self.config.discount * value.masked_fill(
                batch.terminated > 0, 0
            )
        latent = self.encode("contrast.encoder.", batch.observation)
        one, two = self.judge("critics.", latent, batch.action.double())
        loss = ((one - target) ** 2).mean() + ((two - target) ** 2).mean()
        losses["critic_loss"] = loss.detach()
        self.critic_adam.step(self.values, self.gradients(loss, self.critic_adam.names))

        if step % 2 == 0:
            action, log_probability = self.act(batch.observation)
            latent = self.encode("contrast.encoder.", batch.observation).detach()
            value = torch.minimum(*self.judge("critics.", latent, action))
            alpha = self.values["log_temperature"].exp()
            loss = (alpha.detach() * log_probability - value).mean()
            losses |= {"actor_loss": loss.detach(), "temperature": alpha.detach().clone()}
            losses["entropy"] = -log_probability.mean().detach()
            self.actor_adam.step(self.values, self.gradients(loss, self.actor_adam.names))
            loss = (alpha * (-log_probability + A).detach()).mean()
            gradients = self.gradients(loss, ["log_temperature"])
            self.temperature_adam.step(self.values, gradients)
            rates = {
                ("target_critics.", "critics."): self.config.critic_momentum,
                ("contrast.momentum_encoder.", "contrast.encoder."): self.config.encoder_momentum,
            }
            with torch.no_grad():
                for (slow, quick), share in rates.items():
                    for name in self.names(slow):
                        online = self.values[quick + name.removeprefix(slow)]
                        self.values[name] *= 1 - share
                        self.values[name] += share * online
        if self.config.contrastive:
            losses["contrastive_loss"] = self.contrast(batch)
        return losses

    def contrast(self, batch: Batch) -> Tensor:
        query = self.encode("contrast.encoder.", batch.observation)
        key = self.encode("contrast.momentum_encoder.", batch.positive).detach()
        logits = query @ self.values["contrast.criterion.similarity.W"] @ key.T
        logits = logits - logits.max(1, keepdim=True).values
        loss = (logits.exp().sum(1).log() - logits.diagonal()).mean()
        gradients = self.gradients(loss, self.contrast_adam.names)
        if self.config.double_step:
            self.encoder_adam.step(self.values, gradients)
        self.contrast_adam.step(self.values, gradients)
        return loss.detach()


@pytest.mark.parametrize("changes", [{}, {"double_step": False}, {"contrastive": False}], ids=str)
def test_updates_are_those_of_a_plain_program(changes: dict[str, Any]) -> None:
    """Eight updates in double precision: critics, actor, temperature, targets and contrast."""
    agent = nontrivial(**changes)
    plain = Plain(agent)
    for step in range(7, 15):
        torch.manual_seed(step)
        parts = agent.update(batch(step), step)
        torch.manual_seed(step)
        losses = plain.update(batch(step), step)
        assert {name: float(parts[name]) for name in losses} == pytest.approx(
            {name: float(value) for name, value in losses.items()}, abs=1e-10
        )
    expected = {name: value.detach() for name, value in plain.values.items()}
    torch.testing.assert_close(snapshot(agent), expected, atol=1e-9, rtol=0)


def test_what_an_agent_starts_from() -> None:
    """Averages are what they follow; W is from U[0, 1), as in CURL's program; alpha is 0.1."""
    agent = made(latent=50)
    contrast = agent.contrast
    copies = {agent.target_critics: agent.critics, contrast.momentum_encoder: contrast.encoder}
    for slow, quick in copies.items():
        assert not any(parameter.requires_grad for parameter in slow.parameters())
        for one, other in zip(slow.parameters(), quick.parameters(), strict=True):
            assert torch.equal(one, other)
            assert one.data_ptr() != other.data_ptr()
    weight = contrast.criterion.similarity.W.detach()
    assert 0 <= float(weight.min()) < 0.01
    assert 0.99 < float(weight.max()) < 1
    assert float(weight.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(weight.std()) == pytest.approx(12**-0.5, rel=0.03)
    assert float(agent.log_temperature.detach().exp()) == pytest.approx(0.1)
    one, other = (critic[0].weight for critic in (agent.critics.first, agent.critics.second))
    assert not torch.equal(one, other)


# Who moves, and by what


def test_the_actor_moves_every_so_many_updates() -> None:
    agent = made(update_every=3)
    found = [agent.update(batch(), step) for step in range(4)]
    assert ["actor_loss" in parts for parts in found] == [True, False, False, True]
    for parts in found:
        assert {"critic_loss", "q_mean", "contrastive_loss", "share_in_band"} < set(parts)
        assert all(value.shape == () and not value.requires_grad for value in parts.values())


# The contrastive step


def test_scores_and_statistics_are_those_of_the_batch() -> None:
    torch.manual_seed(0)
    contrast = Contrast(SMALL).double()
    _, parts = contrast.loss(crops(1), crops(2), 0)
    query = contrast.encoder(crops(1)).detach()
    key = contrast.momentum_encoder(crops(2))
    scores = query @ contrast.criterion.similarity.W.detach() @ key.T
    cosines = nn.functional.cosine_similarity(query[:, None], key[None], dim=2)
    negative = [float(cosines[i, j]) for i in range(5) for j in range(5) if i != j]
    expected = {
        "score_low": float(scores.min()),
        "score_high": float(scores.max()),
        "score_positive": float(scores.trace()) / 5,
        "mean_cosine": sum(negative) / 20,
        "share_in_band": sum(0.1 < (1 - c) / 2 < 0.5 for c in negative) / 20,
    }
    assert {name: float(parts[name]) for name in expected} == pytest.approx(expected, rel=1e-6)
    band = Objective(
        SMALL.objective.loss, (term(distance_polarization, weight=0.1, lower=0.0, upper=1.0),)
    )
    torch.manual_seed(0)
    other = Contrast(config(objective=band)).double()
    assert float(other.loss(crops(1), crops(2), 0)[1]["share_in_band"]) == 1.0


def test_what_has_no_meaning_is_refused() -> None:
    assert make_criterion(config(similarity="cosine")).similarity is cosine
    assert isinstance(make_criterion(SMALL).similarity, Bilinear)
    column = dataclasses.replace(batch(), reward=torch.ones(5, 1))
    for call, word in (
        (lambda: make_criterion(config(similarity="dot")), "dot"),
        (lambda: Contrast(config(objective=Objective(term(max_margin)))), "cosines"),
        (lambda: Contrast(config(objective=Objective(term(alignment)))), "negatives"),
        (lambda: Agent(config(crop=4), A), "too small"),
        (lambda: made().update_critics(column), r"\(5, 1\)"),
    ):
        with pytest.raises(ValueError, match=word):
            call()


# Acting


def test_it_acts_on_the_centre_crop() -> None:
    agent = made(frame_size=17)
    frames = crops(5, count=3, size=17)
    action = agent.act(frames, sample=False)
    assert action.shape == (3, A)
    assert action.dtype == torch.float32
    assert not action.requires_grad
    assert float(action.abs().max()) > 0
    assert torch.equal(action, agent.act(frames[:, :, 2:15, 2:15], sample=False))
    border = frames.clone()
    border[:, :, :2] = border[:, :, -2:] = 0
    assert torch.equal(action, agent.act(border, sample=False))
    for wrong in (frames[:, :, 1:], frames[0], frames.movedim(1, 3), frames / 255):
        with pytest.raises(ValueError, match=r"\(B, 6, 17, 17\) uint8"):
            agent.act(wrong, sample=False)
    convolved = agent.contrast.encoder.convolutions(frames[:, :, 2:15, 2:15])
    mean, log_std = agent.actor(convolved)
    assert torch.equal(action, mean.tanh())
    torch.manual_seed(1)
    drawn = agent.act(frames, sample=True)
    torch.manual_seed(1)
    assert torch.equal(drawn, (mean + torch.randn(3, A) * log_std.exp()).tanh())
    assert not torch.equal(drawn, action)


# Numbers that are none


def test_losses_and_parameters_that_are_not_finite_are_named_with_the_step() -> None:
    agent, rewards = made(), batch()
    rewards.reward[2] = math.nan
    with pytest.raises(FloatingPointError, match=r"critics.* step 41"):
        agent.update(rewards, 41)
    agent = made()
    agent.check_finite(1)
    nn.init.constant_(agent.actor.policy[2].weight, math.inf)
    with pytest.raises(FloatingPointError, match=r"actor\.policy\.2\.weight .* step 42"):
        agent.check_finite(42)
    agent = made()
    nn.init.constant_(agent.actor.policy[0].bias, math.nan)
    with pytest.raises(FloatingPointError, match="step 43"):
        agent.update(batch(), 43)
    contrast = Contrast(SMALL)
    nn.init.constant_(contrast.encoder.head.norm.bias, math.nan)
    with pytest.raises(FloatingPointError, match="at step 44"):
        contrast.update(crops(1), crops(2), 44)


# Precision, checkpoints, devices


def test_in_half_precision_everything_is_trained_and_losses_are_near() -> None:
    exact, half = made(), made(precision="bfloat16")
    before = snapshot(half)
    results = []
    for agent in (exact, half):
        torch.manual_seed(1)
        results.append(agent.update(batch(), 2))
    assert all(value.dtype == torch.float32 for value in results[1].values())
    for name in ("critic_loss", "contrastive_loss", "temperature"):
        assert float(results[1][name]) == pytest.approx(float(results[0][name]), rel=0.05), name
        if name != "temperature":
            assert float(results[1][name]) != float(results[0][name])
    for name, value in snapshot(half).items():
        assert not torch.equal(value, before[name])
        assert value.dtype == torch.float32


@pytest.mark.cuda
def test_on_a_gpu_it_starts_from_the_same_weights_and_gives_the_same_losses() -> None:
    torch.manual_seed(0)
    here = Contrast(SMALL)
    torch.manual_seed(0)
    there = Contrast(SMALL, device="cuda")
    for one, two in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.equal(one, two.cpu())
    expected, _ = here.loss(crops(1), crops(2), 1)
    actual, _ = there.loss(crops(1).cuda(), crops(2).cuda(), 1)
    assert float(actual.detach()) == pytest.approx(float(expected.detach()), rel=1e-2)
