from pathlib import Path


def write(folder: Path, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    file = target / "model.json"
    file.write_text((folder / "config.json").read_text())
    return file
