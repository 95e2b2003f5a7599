"""CURL: soft actor-critic from pixels whose encoder is also trained by a contrastive loss.

Shapes: B transitions of a batch, 3K channels of an observation, S pixels of a frame, C of a crop,
F numbers that the convolutions give, H width of the latent, A dimensions of an action.

There are three encoders: the online one, trained by the critics and by the contrastive loss; the
momentum encoder, its moving average, which gives the critics' targets and the keys; and the
actor's, which shares the online encoder's convolutions, detached, and has its own head.

All of :meth:`Agent.update` can be captured in a CUDA graph, see :mod:`shared.capture`: one graph
for the steps that train the actor and one for the others. The exceptions are objectives that
synchronise with the device, ``max_margin`` and the nuclear norm:
:attr:`shared.Objective.synchronises`. Gradients are None before each backward pass and are kept
after it.
"""

import copy
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from rl.config import Config
from rl.encoder import Bilinear, Encoder, Head, initialise, lifted
from rl.replay import Batch
from shared import Criterion, band_statistics, cosine, query_key
from shared.chunks import check_chunk, in_chunks, split
from shared.criterion import Similarity
from shared.distributed import gather, local_slice, world_size
from shared.momentum import follow
from shared.precision import bfloat16

CHECK_EVERY = 100  # steps between two looks at the loss on an accelerator
Forward = Callable[[Tensor, Tensor, int], tuple[Tensor, dict[str, Tensor]]]  # see Contrast.loss
LOG_STD = (-10.0, 2.0)  # limits of the policy's logarithmic standard deviation


def make_encoder(config: Config) -> Encoder:
    """The encoder of a configuration, with new weights: (B, 3K, C, C) uint8 -> (B, H)."""
    return Encoder(
        channels=3 * config.stack,
        size=config.crop,
        filters=config.filters,
        layers=config.convolutions,
        latent=config.latent,
        half=config.precision == "bfloat16_convolutions",
    )


def make_criterion(config: Config) -> Criterion:
    """The configuration's criterion for latents; a projection applies to unnormalised queries."""
    if config.similarity not in ("bilinear", "cosine"):
        raise ValueError(f"similarity is 'bilinear' or 'cosine'; got {config.similarity!r}")
    if config.objective.loss.identity == "alignment":
        raise ValueError(
            "alignment has no negatives, and CURL no predictor to prevent collapse; use a loss "
            "with negatives"
        )
    bilinear = config.similarity == "bilinear"
    similarity: Similarity = Bilinear(config.latent) if bilinear else cosine
    return Criterion(config.objective, config.latent, similarity, check_every=CHECK_EVERY)


class Contrast(nn.Module):
    """An encoder, its moving average, the criterion between the two, and their optimisers.

    Args:
        config: gives sizes, objective and learning rate.
        device: the final device: the optimisers are made for the parameters there. Weights are
            drawn on the CPU, so that they are the same on every device.

    Attributes:
        encoder: of the queries, trained.
        momentum_encoder: of the keys, without gradient; see :meth:`follow`.
        criterion: with its trained parameters (W, L).
        optimisers: of a contrastive step, by name and in order: the encoder's, and that of encoder
            and criterion; with ``double_step=False`` only the latter.

    Raises:
        ValueError: see :func:`make_criterion` and :class:`rl.encoder.Encoder`.
    """

    def __init__(self, config: Config, device: torch.device | str = "cpu") -> None:
        super().__init__()
        check_chunk(config.chunk)
        self.config = config
        self.encoder = make_encoder(config)
        self.momentum_encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        self.criterion = make_criterion(config)
        self.to(device)
        encoder = list(self.encoder.parameters())
        self.optimisers: dict[str, torch.optim.Adam] = {}
        if config.double_step:
            self.optimisers["encoder_optimiser"] = adam(encoder, config.learning_rate)
        self.optimisers["contrast_optimiser"] = adam(
            [*encoder, *self.criterion.parameters()], config.learning_rate
        )

    def loss(self, anchor: Tensor, positive: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The contrastive loss (a scalar) and its parts by name, detached.

        Besides the criterion's parts: the share of negative pairs inside the band of distance
        polarization (with the limits of the objective's penalty if it has one, else the defaults),
        their mean cosine, lowest and highest score, and the mean score of the positives.

        Args:
            anchor: (B, 3K, C, C) uint8, crops that give the queries.
            positive: (B, 3K, C, C) uint8, crops of the same observations that give the keys.
            step: named in errors.

        Raises:
            FloatingPointError: NaN or infinite latents or loss.
        """
        query = self.encoded(self.encoder, anchor)
        with torch.no_grad():
            key = self.encoded(self.momentum_encoder, positive)
        pairs = query_key(query, key, gather=gather)
        loss, parts = self.criterion(pairs, step=step)
        with torch.no_grad():
            key = pairs.candidate  # those of all processes
            scores = self.criterion.similarity(query, key)
            lowest, highest = scores.aminmax()
            if world_size() > 1:
                lowest, highest = gather(lowest[None]).amin(), gather(highest[None]).amax()
            parts = {
                **band_statistics(pairs, cosine(query, key)),
                "score_low": lowest,
                "score_high": highest,
                "score_positive": scores.diagonal(local_slice(len(key)).start).mean(),
                **parts,
            }
        return loss, parts

    def encoded(self, encoder: nn.Module, crops: Tensor) -> Tensor:
        """Latents (B, H) of crops in the configuration's precision and chunks."""

        def latents(part: Tensor) -> Tensor:
            with autocast(self.config, part):
                latent: Tensor = encoder(part)
                return latent

        features: Tensor = in_chunks(latents, split(self.config.chunk, crops), encoder)
        return features

    def update(
        self, anchor: Tensor, positive: Tensor, step: int, forward: Forward | None = None
    ) -> dict[str, Tensor]:
        """One backward pass and a step of each optimiser; the parts of :meth:`loss`.

        Args:
            anchor: see :meth:`loss`.
            positive: see :meth:`loss`.
            step: see :meth:`loss`.
            forward: :meth:`loss`, on several processes as :func:`shared.distributed.replicated`.
        """
        loss, parts = (forward or self.loss)(anchor, positive, step)
        descend(loss, *self.optimisers.values())
        return {"contrastive_loss": loss.detach(), **parts}

    def follow(self) -> None:
        """Update the momentum encoder."""
        follow(self.momentum_encoder, self.encoder, self.config.encoder_momentum)


class Actor(nn.Module):
    """The policy: (B, F) of the convolutions -> mean and log-std of a Gaussian, (B, A) each."""

    def __init__(self, convolved: int, latent: int, hidden: int, action_dimensions: int) -> None:
        super().__init__()
        self.head = Head(convolved, latent)
        self.policy = perceptron(latent, hidden, 2 * action_dimensions)

    def forward(self, convolved: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std before the squashing by tanh."""
        return gaussian_of(lifted(self.policy(self.head(convolved))))


class Critics(nn.Module):
    """Two values of an action, (B, H) and (B, A) -> (B, 2)."""

    def __init__(self, latent: int, action_dimensions: int, hidden: int) -> None:
        super().__init__()
        self.first = perceptron(latent + action_dimensions, hidden, 1)
        self.second = perceptron(latent + action_dimensions, hidden, 1)

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        """Both values of each action."""
        both = torch.cat([latent, action], dim=1)
        return lifted(torch.cat([self.first(both), self.second(both)], dim=1))


class Agent(nn.Module):
    """Soft actor-critic on the latents of :class:`Contrast`.

    Args:
        config: names sizes, rates and the objective.
        action_dimensions: A.
        device: the final device; see :class:`Contrast`.

    Attributes:
        contrast: encoder and momentum encoder, which the critics also use.
        actor: the policy on the convolutions' output.
        critics: two Q networks.
        target_critics: their moving average, without gradient.
        log_temperature: logarithm of alpha, a scalar.
        optimisers: by name, for checkpoints; includes those of the contrast if it is trained.

    Raises:
        ValueError: see :class:`Contrast`.

    Source: Laskin et al. 2020 (CURL) and the order of their program; Haarnoja et al. 2018.
    """

    def __init__(
        self, config: Config, action_dimensions: int, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.config = config
        self.target_entropy = -float(action_dimensions)
        self.contrast = Contrast(config, device)
        encoder, latent, hidden = self.contrast.encoder, config.latent, config.hidden
        self.actor = Actor(encoder.convolutions.outputs, latent, hidden, action_dimensions)
        self.critics = Critics(latent, action_dimensions, hidden)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.initial_temperature)))
        self.to(device)
        rate = config.learning_rate
        self.optimisers = {
            "critic_optimiser": adam([*encoder.parameters(), *self.critics.parameters()], rate),
            "actor_optimiser": adam(self.actor.parameters(), rate),
            "temperature_optimiser": adam(
                [self.log_temperature], config.temperature_learning_rate, first_beta=0.5
            ),
        }
        if config.contrastive:
            self.optimisers |= self.contrast.optimisers

    @torch.no_grad()
    def act(self, observation: Tensor, *, sample: bool) -> Tensor:
        """Actions in [-1, 1], (B, A) float32, from the observations' centre crops.

        Args:
            observation: (B, 3K, S, S) uint8, frames of ``frame_size`` or crops of ``crop``.
            sample: draw from the policy; False takes the mean of its Gaussian.

        Raises:
            ValueError: observations of another shape or type.
        """
        size, channels = self.config.crop, 3 * self.config.stack
        shapes = [(channels, side, side) for side in (self.config.frame_size, size)]
        if observation.dtype != torch.uint8 or tuple(observation.shape[1:]) not in shapes:
            raise ValueError(
                f"observations are (B, {', '.join(map(str, shapes[0]))}) uint8; got "
                f"{tuple(observation.shape)} {str(observation.dtype).removeprefix('torch.')}"
            )
        start = (observation.shape[-1] - size) // 2
        window = slice(start, start + size)
        crop = observation[:, :, window, window]
        with autocast(self.config, crop):
            mean, log_std = self.actor(self.contrast.encoder.convolutions(crop))
        if sample:
            mean = mean + torch.randn_like(mean) * log_std.exp()
        action: Tensor = mean.tanh()
        return action

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """One update of everything; its parts as detached scalars by name.

        Actor, temperature and targets are updated every ``update_every`` steps, and their parts
        (``actor_loss``, ``entropy``, ``temperature``) are returned at those steps only.

        Args:
            batch: B transitions; the crop of the observation is also the anchor.
            step: the number of the update.

        Raises:
            FloatingPointError: NaN or infinite latents, losses or parameters, on the CPU; on an
                accelerator :meth:`check_finite` checks them.
        """
        on_cpu = batch.observation.device.type == "cpu"
        parts = self.update_critics(batch)
        if on_cpu and not torch.isfinite(parts["critic_loss"]):
            raise FloatingPointError(
                f"the critics' loss is not finite at step {step}; lower the learning rate or "
                f"check the rewards"
            )
        if step % self.config.update_every == 0:
            parts |= self.update_actor(batch.observation)
            follow(self.target_critics, self.critics, self.config.critic_momentum)
            self.contrast.follow()
        if self.config.contrastive:
            parts |= self.contrast.update(batch.observation, batch.positive, step)
        if on_cpu:
            self.check_finite(step)
        return parts

    def update_critics(self, batch: Batch) -> dict[str, Tensor]:
        """Train encoder and critics on the targets; ``critic_loss`` and ``q_mean``."""
        encoder, momentum = self.contrast.encoder, self.contrast.momentum_encoder
        shapes = [tuple(of.shape) for of in (batch.action, batch.reward, batch.terminated)]
        if not shapes[0][:1] == shapes[1] == shapes[2]:
            raise ValueError(
                f"actions are (B, A), rewards and terminated (B,); got "
                f"{', '.join(map(str, shapes))}"
            )
        with torch.no_grad():
            with autocast(self.config, batch.next_observation):
                gaussian = self.actor(encoder.convolutions(batch.next_observation))
            next_action, log_probability = squashed_sample(*gaussian)
            with autocast(self.config, batch.next_observation):
                following = self.target_critics(momentum(batch.next_observation), next_action)
            value = following.amin(1) - self.log_temperature.exp() * log_probability
            # A time limit ends an episode whose last state would have a successor.
            target = batch.reward + self.config.discount * value * (1 - batch.terminated)
        with autocast(self.config, batch.observation):
            values = self.critics(encoder(batch.observation), batch.action)
        loss = (values - target[:, None]).square().mean(0).sum()
        descend(loss, self.optimisers["critic_optimiser"])
        return {"critic_loss": loss.detach(), "q_mean": values.detach().mean()}

    def update_actor(self, observation: Tensor) -> dict[str, Tensor]:
        """Train the actor, then the temperature; ``actor_loss``, ``entropy`` and ``temperature``.

        The entropy is a sample estimate for the squashed policy; the temperature is that before its
        step.

        Args:
            observation: (B, 3K, C, C) uint8.
        """
        encoder = self.contrast.encoder
        with torch.no_grad(), autocast(self.config, observation):
            convolved = encoder.convolutions(observation)
            latent = encoder.head(convolved)
        with autocast(self.config, observation):
            gaussian = self.actor(convolved)
        action, log_probability = squashed_sample(*gaussian)
        with autocast(self.config, observation):
            values = self.critics(latent, action)
        temperature = self.log_temperature.exp()
        loss = (temperature.detach() * log_probability - values.amin(1)).mean()
        descend(loss, self.optimisers["actor_optimiser"])
        entropy = -log_probability.detach().mean()
        descend(
            temperature * (entropy - self.target_entropy), self.optimisers["temperature_optimiser"]
        )
        return {
            "actor_loss": loss.detach(),
            "entropy": entropy,
            "temperature": temperature.detach(),
        }

    def check_finite(self, step: int) -> None:
        """Check all parameters, which synchronises with the device, and there a projection, too.

        Args:
            step: named in the error.

        Raises:
            FloatingPointError: one that is NaN or infinite, by its name.
        """
        names, parameters = zip(*self.named_parameters(), strict=True)
        with torch.no_grad():
            finite = torch.isfinite(torch.stack(torch._foreach_norm(parameters))).tolist()
        if not all(finite):
            raise FloatingPointError(
                f"{names[finite.index(False)]} is NaN or infinite at step {step}; lower the "
                f"learning rate"
            )
        projection = self.contrast.criterion.projection
        if projection is not None and projection.matrix.device.type != "cpu":
            projection.warn_if_collapsed()  # captured updates do not check this


def gaussian_of(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and bounded log-std, (B, A) each, from the output of a policy's last layer, (B, 2A)."""
    mean, raw = outputs.chunk(2, dim=-1)
    low, high = LOG_STD
    return mean, low + 0.5 * (high - low) * (raw.tanh() + 1)


def squashed_sample(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """A sample from a tanh-squashed Gaussian, (B, A), and its log-density, (B,).

    Source: Haarnoja et al. 2018, Appendix C; 1e-6 inside the logarithm as in CURL's program.
    """
    noise = torch.randn_like(mean)
    action = (mean + noise * log_std.exp()).tanh()
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    squashing = (1 - action.square() + 1e-6).log()
    return action, (gaussian - squashing).sum(1)


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two hidden layers with ReLU, (B, inputs) -> (B, outputs), with orthogonal weights."""
    layers = nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs),
    )
    return layers.apply(initialise)


def autocast(config: Config, images: Tensor) -> AbstractContextManager[None]:
    """The configuration's precision on the device of the images.

    Each forward pass of a network needs a separate context: within one, weights first cast without
    gradient would stay without it.
    """
    return bfloat16(images.device.type, enabled=config.precision == "bfloat16")


def adam(
    parameters: Iterable[Tensor], learning_rate: float, first_beta: float = 0.9
) -> torch.optim.Adam:
    """Adam for parameters on their final device; on an accelerator it can be captured."""
    parameters = list(parameters)
    return torch.optim.Adam(
        parameters,
        learning_rate,
        betas=(first_beta, 0.999),
        fused=True,
        capturable=parameters[0].device.type == "cuda",
    )


def descend(loss: Tensor, *optimisers: torch.optim.Optimizer) -> None:
    """One backward pass to the optimisers' parameters and no others, and a step of each in turn."""
    groups = [group for optimiser in optimisers for group in optimiser.param_groups]
    owned = dict.fromkeys(parameter for group in groups for parameter in group["params"])
    for optimiser in optimisers:
        optimiser.zero_grad(set_to_none=True)
    loss.backward(inputs=list(owned))
    for optimiser in optimisers:
        optimiser.step()
