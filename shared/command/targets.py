"""What the suite is to reach on a GPU, and what such GPUs can at most, as data."""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["bfloat16", "tf32", "float32"]


@dataclass(frozen=True)
class Target:
    """A figure that is to be reached on an H200; ``benchmarks/targets.py`` measures it.

    Args:
        name: what it is called on the command line.
        what: it is of.
        unit: of the figure.
        bound: what is to be reached.
        at_least: whether more is better; else less is.
    """

    name: str
    what: str
    unit: str
    bound: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Whether a figure reaches the target."""
        return value >= self.bound if self.at_least else value <= self.bound

    def missed_by(self, value: float) -> float:
        """How many times too slow a figure is; 1 and less for one that reaches the target."""
        return self.bound / value if self.at_least else value / self.bound


TARGETS = (
    Target("simclr", "SimCLR, ResNet-18, CIFAR-10, batch 256: 200 epochs", "minutes", 10.0),
    Target("closed-form", "MMCL's closed form at batch 256, of a step of SimCLR", "%", 10.0),
    Target("updates", "CURL at batch 512", "updates/s", 100.0, at_least=True),
    Target("cartpole", "CURL, cartpole swingup: 100K environment steps", "minutes", 4.0),
    Target("s3d", "SimCLR, S3D, nine classes of UCF-101: 300 epochs", "minutes", 10.0),
    Target("gru", "quick-thoughts, GRU, batch 400", "steps/s", 40.0, at_least=True),
    Target("dd", "GraphCL on DD: an epoch", "seconds", 0.3),
)


@dataclass(frozen=True)
class Peak:
    """The most that a GPU computes, in TFLOP/s, of products without sparsity.

    Args:
        device: words that all stand in the name that CUDA has for it.
        bfloat16: with bfloat16.
        tf32: with float32 rounded to TF32.
        float32: with float32 as it is.
        source: where the figures are from; where that prints them with sparsity, half of it.
    """

    device: tuple[str, ...]
    bfloat16: float
    tf32: float
    float32: float
    source: str


# The first whose words all stand in a device's name is its own.
PEAKS = (
    Peak(("H200", "NVL"), 835.5, 417.5, 60.0, "NVIDIA H200 data sheet, H200 NVL"),
    Peak(("H200",), 989.5, 494.5, 67.0, "NVIDIA H200 data sheet, H200 SXM"),
    Peak(("H100", "NVL"), 835.5, 417.5, 60.0, "NVIDIA H100 data sheet, H100 NVL"),
    Peak(("H100", "PCIe"), 756.0, 378.0, 51.2, "NVIDIA H100 architecture paper, H100 PCIe"),
    Peak(("H100",), 989.4, 494.7, 66.9, "NVIDIA H100 architecture paper, H100 SXM5"),
    Peak(("A100",), 312.0, 156.0, 19.5, "NVIDIA A100 data sheet"),
)


def peak_of(device: str, precision: Precision) -> tuple[float, str] | None:
    """TFLOP/s that a device of that name reaches at most, and the source; None if unknown.

    Args:
        device: as ``torch.cuda.get_device_name`` has it.
        precision: of the products.
    """
    for peak in PEAKS:
        if all(word.lower() in device.lower() for word in peak.device):
            return float(getattr(peak, precision)), peak.source
    return None
