"""What all methods share: an encoder with its head, and how views pass through them.

Shapes: B images, S side in pixels, H features of the backbone, D dimensions of the head.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from shared import Pairs
from shared.chunks import in_chunks, split
from shared.momentum import Teacher
from shared.precision import bfloat16
from vision.config import Config
from vision.encoder import encoder_of, head, width_of
from vision.export import started

Compared = tuple[list[Pairs], list[Tensor]]
Given = TypeVar("Given")


@dataclass(frozen=True)
class Step:
    """Where a training is."""

    number: int = 0
    epoch: float = 0.0  # with its fraction, for what starts at a certain epoch
    samples: Tensor | None = None  # (B,), the step's images, those of all processes; CMC's alone


class Networks(nn.Module):
    """The encoder and its head; a method adds its further modules.

    ``images`` is the number of training images; 0: not known.
    """

    # The options of the configuration that the method alone, or with others, has; and its loss.
    options: ClassVar[tuple[str, ...]] = ()
    loss: ClassVar[tuple[str, str] | None] = None  # the only one, and why
    lab: ClassVar[bool] = False  # two networks, of lightness and colours

    def __init__(self, config: Config, images: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder_of(
            config.backbone, config.stem, size=config.image_size, heads=config.heads, lab=self.lab
        )
        if config.init is not None:
            started(self.encoder, config, config.init)
        self.dim = width_of(self.encoder, config.backbone, config.image_size)
        self.head = self.make_head()

    def make_head(self) -> nn.Sequential:
        """A head as the configuration has it."""
        config = self.config
        return head(
            self.dim // 2 if self.lab else self.dim,
            config.head_hidden,
            config.head_output,
            layers=config.head_layers,
            output_norm=config.head_output_norm,
            output_scale=config.head_output_scale,
        )

    def compare(self, views: tuple[Tensor, ...], step: Step) -> Compared:
        """The pairs of each direction of a batch, whose losses are averaged, and the features.

        The views are (B, 3, S, S) each: the student's and the teacher's, and SwAV's small crops;
        one for CMC. Features are the backbone's of the student's views, for CLLR's projection.
        """
        raise NotImplementedError

    def remember(self, pairs: list[Pairs], step: Step) -> None:
        """Keep what later steps compare with; those of all processes."""

    def follow(self, momentum: float) -> None:
        """Update the teacher, if there is one; ``momentum`` is the share of itself it keeps."""
        teacher: Teacher | None = getattr(self, "teacher", None)
        if teacher is not None:
            teacher.follow(self.encoder, self.head, momentum)

    @staticmethod
    def faults(config: Config) -> Iterator[str]:
        """What is inconsistent in a configuration of the method."""
        yield from ()

    def encoded(self, head: Callable[[Tensor], Tensor], view: Tensor) -> tuple[Tensor, Tensor]:
        """The head's (B, D) and the backbone's features (B, H) of a view, in chunks."""

        def both(images: Tensor) -> tuple[Tensor, Tensor]:
            feature = self.encoder(images)
            return head(feature), feature

        embedding, features = self.in_chunks(both, view, self)
        return embedding, features

    def in_chunks(self, function: Callable[[Tensor], Any], view: Tensor, used: nn.Module) -> Any:
        """A function of a view in the configuration's chunks and precision.

        The backward pass calls it again, when every context around the step has been left.
        """
        if self.config.chunk is not None:
            function = partial(_precise, self.config, function)
        return in_chunks(function, split(self.config.chunk, view), used)


def _precise(config: Config, function: Callable[[Tensor], Given], images: Tensor) -> Given:
    with bfloat16(images.device.type, enabled=config.precision == "bfloat16"):
        return function(images)
