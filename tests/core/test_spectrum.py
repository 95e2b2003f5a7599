"""Effective rank: known spectra, and what does not change it."""

import math

import pytest
import torch

from shared.spectrum import effective_rank


def test_equal_variances_have_the_full_rank_and_a_line_has_one() -> None:
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(64, 9, dtype=torch.float64) - 0)[0]
    basis = torch.linalg.qr(basis - basis.mean(0))[0]
    assert effective_rank(basis) == pytest.approx(9)
    assert effective_rank(basis[:, :1] @ torch.ones(1, 9, dtype=torch.float64)) == pytest.approx(1)


def test_a_spectrum_by_hand() -> None:
    torch.manual_seed(0)
    basis = torch.randn(64, 2, dtype=torch.float64)
    basis = torch.linalg.qr(basis - basis.mean(0))[0]
    shares = (0.75, 0.25)
    expected = math.exp(-sum(share * math.log(share) for share in shares))
    features = basis * torch.tensor([3.0, 1.0])
    rotation = torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64))[0]
    for each in (features, 100 * features @ rotation + 7.0, (features + 1).float()):
        assert effective_rank(each) == pytest.approx(expected, rel=1e-4)


def test_equal_features_have_none() -> None:
    assert effective_rank(torch.full((50, 4), 0.1)) == 0
    assert effective_rank(torch.ones(1, 4)) == 0
