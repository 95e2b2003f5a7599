"""Numbers that a device computes and the host reads later, so that neither waits for the other."""

from typing import Any

import torch
from torch import Tensor


class Late:
    """Scalars of any type, at least one, on their way to the host.

    On a GPU they are copied to the host behind the work that is queued there; reading them once
    more work has been queued finds them there, or lets the host wait while the device works.
    """

    def __init__(self, *values: Tensor) -> None:
        device = values[-1].device
        numbers = torch.stack([value.detach().to(device, torch.float32) for value in values])
        self._event: torch.cuda.Event | None = None
        self._numbers = numbers
        if numbers.is_cuda:
            self._numbers = numbers.to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> list[float]:
        """The numbers, in single precision."""
        if self._event is not None:
            self._event.synchronize()
        return self._numbers.tolist()

    def __getstate__(self) -> dict[str, Any]:
        """Copies hold the numbers themselves: an event belongs to a process and its device."""
        return {"_event": None, "_numbers": torch.tensor(self.read())}
