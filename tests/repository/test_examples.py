"""The loops of docs/examples run as they stand, each where its libraries are installed."""

import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shared import Objective, Term, info_nce, max_margin, term, two_views

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {path.stem: path for path in (ROOT / "docs/examples").glob("*.py")}
EXAMPLES.pop("losses")  # which tests/repository/test_readme.py loads
NEEDED = {
    "hugging_face_trainer": ("transformers", "accelerate"),
    "lightning_and_lightly": ("torchvision", "lightly", "pytorch_lightning"),
    "pyg": ("torch_geometric",),
}


def test_every_example_is_run_here_and_linked_from_the_losses() -> None:
    assert EXAMPLES.keys() == NEEDED.keys()
    page = (ROOT / "docs/losses.md").read_text(encoding="utf-8")
    for path in EXAMPLES.values():
        assert f"(examples/{path.name})" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NEEDED))
def test_an_example_trains(name: str, tmp_path: Path) -> None:
    missing = [each for each in NEEDED[name] if importlib.util.find_spec(each) is None]
    if missing:
        pytest.skip(f"docs/examples/{name}.py needs {', '.join(missing)}")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES[name])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"loss (\S+)", done.stdout.splitlines()[-1])
    assert found
    assert 0 < float(found[1]) < 2 * math.log(64)  # near that of chance, and no NaN
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("loss", [term(info_nce, temperature=0.5), term(max_margin, gamma=2.0)])
def test_two_embeddings_in_and_a_loss_out(loss: Term) -> None:
    first, second = torch.randn(2, 16, 8, requires_grad=True)
    criterion = Objective(loss).build(dim=8)
    value = criterion.of_views(first, second)
    expected = criterion(two_views(first, second))[0]
    assert torch.equal(value, expected)
    # of any length
    torch.testing.assert_close(criterion.of_views(3 * first, 0.1 * second), value)
    value.backward()


def test_the_loss_of_views_names_the_step_and_refuses_what_is_no_pair_of_views() -> None:
    criterion = Objective(term(info_nce, temperature=0.5)).build(dim=8)
    views = torch.randn(2, 16, 8)
    with pytest.raises(FloatingPointError, match="at step 7"):
        criterion.of_views(views[0] / 0, views[1], step=7)
    with pytest.raises(ValueError, match="same width"):
        criterion.of_views(views[0], views[1, :8])
    with pytest.raises(ValueError, match=r"criterion\.of_views\(first, second\)"):
        criterion(*views)
