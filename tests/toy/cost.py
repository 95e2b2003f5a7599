from pathlib import Path

from toy.train import Config


def estimate(config: Config, data_root: Path) -> tuple[float, float]:
    """Minutes and gigabytes; every call leaves a line, where there is a folder for it."""
    if data_root.is_dir():
        with (data_root / "calls.txt").open("a") as stream:
            stream.write(f"{config.offset} {config.seed}\n")
    return 100.0 + config.offset, 3.0
