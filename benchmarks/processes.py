"""A training step on two processes of a CPU beside one process that does all of it.

Run it as ``python benchmarks/processes.py`` on an idle machine with two cores or more. The step is
SimCLR's on a ResNet-8, whose batch norms take their statistics over both processes. Its elapsed
time is measured in turns: one process with the whole batch, two with half of it each, and two that
have nothing to do with each other, with half of it each: what the machine itself loses when both
cores work.
"""

import os
import statistics
import tempfile
from pathlib import Path
from unittest import mock

import steps
import torch
import torch.distributed as dist
from losses import machine

from shared.command.server import preloaded
from tests.stages import forked
from vision.config import Config

ROUNDS, WARM, TIMED = 5, 4, 16
BATCH = 256


def work(process: int, folder: str, batch: int, together: bool) -> None:
    """One of the processes; the first writes the seconds of a step."""
    torch.set_num_threads(1)
    if together:
        method = f"file://{folder}/rendezvous"
        dist.init_process_group("gloo", init_method=method, rank=process, world_size=2)
    config = Config(backbone="resnet8", stem="strided", batch_size=batch, warmup_epochs=0.0)
    with mock.patch.multiple(steps, WARM=WARM, TIMED=TIMED):
        seconds = steps.timed("", config, steps.vision_loop(config)).seconds
    if process == 0:
        Path(folder, "seconds").write_text(str(seconds))
    if together:
        dist.destroy_process_group()


def seconds_of(processes: int, batch: int, *, together: bool = False) -> float:
    """Elapsed seconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        forked.run(work, (folder, batch, together), processes, *preloaded("vision"))
        return float(Path(folder, "seconds").read_text())


def main() -> None:
    """Measure in turns, and print the medians."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rounds = []
    for _ in range(ROUNDS):
        rounds.append(
            (
                seconds_of(1, BATCH),
                seconds_of(2, BATCH, together=True),
                seconds_of(2, BATCH // 2),
            )
        )
        print(" ".join(f"{seconds:.3f}" for seconds in rounds[-1]), flush=True)
    one, two, apart = map(statistics.median, zip(*rounds, strict=True))
    print(f"{machine(1)}, batch {BATCH}, medians of {ROUNDS} rounds")
    print(f"one process                  {one:.3f} s")
    print(f"two, half of the batch each  {two:.3f} s, efficiency {one / two / 2:.0%}")
    print(f"two that share nothing       {apart:.3f} s, efficiency {one / apart / 2:.0%}")


if __name__ == "__main__":
    main()
