"""A step of every domain with every loss: on a GPU beside the CPU, or in float32 beside float64."""

from collections.abc import Iterator

import pytest
import torch

from shared.precision import without_tf32
from tests.stages import agreement

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.slow),
    pytest.param("cuda", marks=pytest.mark.cuda),
]


@pytest.fixture
def exact_products(exact: None) -> Iterator[None]:
    """Products in float32 itself, by the same algorithm each time: red means a fault."""
    with without_tf32():
        yield


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("domain", sorted(agreement.STEPS))
def test_a_step_agrees_with_its_reference(domain: str, device: str) -> None:
    tolerances = agreement.OF_VIDEO if domain == "video" else agreement.TOLERANCES
    found = dict(agreement.compared(domain, device))
    assert len(found) >= (5 if device == "cpu" else 10)
    outside = {
        f"{step}: {kind} {error:.1e}"
        for step, errors in found.items()
        for kind, error in errors.items()
        if not error <= tolerances[kind]
    }
    assert not outside


def test_errors_are_seen() -> None:
    one = {"loss": torch.tensor(2.0), "next loss": torch.tensor(1.0), "gradient": torch.ones(4)}
    assert set(agreement.errors_of(one, one).values()) == {0.0}
    other = one | {"gradient": torch.tensor([1.0, 1.0, 1.0, -1.0])}
    assert agreement.errors_of(one, other)["gradient"] == 1.0
    errors = agreement.errors_of(one, one | {"loss": torch.tensor(2.2)})
    assert errors["loss"] == pytest.approx(0.1)
    for name in ("loss", "gradient"):
        undefined = torch.full_like(one[name], torch.nan)
        assert agreement.errors_of(one, one | {name: undefined})[name] == torch.inf
    with pytest.raises(RuntimeError, match="other parts"):
        agreement.errors_of(one, {name: one[name] for name in ("loss", "gradient")})
