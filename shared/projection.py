"""CLLR's trainable projection of the embedding to a low-dimensional space (Chen et al. 2022).

Shapes: B instances, H dimensions of the feature, R rows of L.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from shared.distributed import gather, row_counts, share_of_mean
from shared.notices import notice
from shared.objective import check_projection
from shared.pairs import unit_rows
from shared.precision import full_precision, upcast
from shared.ranges import COUNT, require

COLLAPSED = 1e-3  # of its initial norm: the features of L then carry no information

Form = Literal["paper", "authors"]
Norm = Literal["l21", "nuclear", "none"]
Selection = Literal["columns", "svd"]


class LowRankProjection(nn.Module):
    """The matrix L with its penalty; ``L features`` is the feature that CLLR evaluates.

    ``form="paper"``: ``mean_i |L'L f_i - f_i|^2 + alpha |L|`` with the l2,1 norm (sum of column
    norms) or the nuclear norm. ``form="authors"``: what their program computes, without a norm of
    L: features and reconstructions are scaled to unit length, and each view contributes the
    Frobenius norm of their difference, divided by B. For features of length 1 and alpha >= 2 the
    paper's penalty is smallest at L = 0; a criterion warns of a collapse. Features take the
    precision of L, single precision if that is half; autocast has no effect on the penalty.

    Args:
        dim: H.
        form: see above.
        norm: ``"l21"``, ``"nuclear"`` or ``"none"``; the authors' form takes ``"none"`` only.
        alpha: weight of the norm inside the penalty.
        rows: R; None is H. The authors' program uses 512 rows for H = 2048.
        init: ``"identity"`` (ones on the diagonal, the penalty starts small) or ``"normal"``
            (standard normal, the authors'); None takes the form's own.
        unit_features: scale features to unit length first (the authors' form always does).

    Raises:
        ValueError: an argument out of range, or a norm in the authors' form.

    Source: Chen et al. 2022, Eqs. 6, 7, 8 and 10 and Algorithm 1; program functioncs/CLLR.
    """

    initial_norm: Tensor

    def __init__(
        self,
        dim: int,
        *,
        form: Form = "paper",
        norm: Norm = "l21",
        alpha: float = 10.0,
        rows: int | None = None,
        init: Literal["identity", "normal"] | None = None,
        unit_features: bool = False,
    ) -> None:
        super().__init__()
        require("dim", dim, COUNT)
        check_projection(
            {
                "form": form,
                "norm": norm,
                "alpha": alpha,
                "rows": rows,
                "init": init,
                "unit_features": unit_features,
            }
        )
        rows = dim if rows is None else rows
        init = init or ("identity" if form == "paper" else "normal")
        start = torch.eye(rows, dim) if init == "identity" else torch.randn(rows, dim)
        self.form, self.norm, self.alpha, self.unit_features = form, norm, alpha, unit_features
        self.matrix = nn.Parameter(start)
        self.register_buffer("initial_norm", torch.linalg.matrix_norm(start))

    def forward(
        self, features: Tensor | Sequence[Tensor], *, together: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The penalty (a scalar) and its parts.

        Args:
            features: (B, H), or one such matrix for each view.
            together: the instances are this process's part of a global batch; the mean over
                processes of the penalty is then that of the global batch.

        Raises:
            ValueError: features that are not matrices of width H.
        """
        views = list(features) if isinstance(features, Sequence) else [features]
        self._check_features(views)
        views = [view.to(upcast(self.matrix).dtype) for view in views]
        with full_precision(self.matrix):
            if self.form == "authors":
                views = [unit_rows(view) for view in views]
                parts = []
                for view in views:
                    norm = torch.linalg.matrix_norm(view - unit_rows(self.reconstruct(view)))
                    if together:  # the norm over all processes is the norm of their norms
                        norm = torch.linalg.vector_norm(gather(norm[None]))
                    count = row_counts(view).sum().clamp(min=1) if together else max(1, len(view))
                    parts.append(norm / count)
                penalty = torch.stack(parts).sum()
                return penalty, {"reconstruction": penalty.detach()}
            every = torch.cat(views)
            every = unit_rows(every) if self.unit_features else every
            errors = (self.reconstruct(every) - every).square().sum(1)
            reconstruction = errors.mean() if len(errors) else errors.sum()  # 0 without instances
            if together:
                reconstruction = share_of_mean(errors)
            size = self.norm_of_matrix()
            parts_by_name = {"reconstruction": reconstruction.detach(), "norm": size.detach()}
            return reconstruction + self.alpha * size, parts_by_name

    def _check_features(self, views: Sequence[Tensor]) -> None:
        width = self.matrix.shape[1]
        for view in views:
            if view.ndim != 2 or view.shape[1] != width:
                raise ValueError(
                    f"features are of shape (B, {width}), as the projection was built "
                    f"(dim={width}); got {tuple(view.shape)}"
                )

    def reconstruct(self, features: Tensor) -> Tensor:
        """``L'L features``, (B, H) -> (B, H)."""
        matrix = upcast(self.matrix)
        projected: Tensor = features.to(matrix.dtype) @ matrix.T
        return projected @ matrix

    def norm_of_matrix(self) -> Tensor:
        """The norm of L that the penalty uses; 0 for ``"none"``."""
        matrix = upcast(self.matrix)
        if self.norm == "l21":
            columns: Tensor = torch.linalg.vector_norm(matrix, dim=0)
            return columns.sum()
        if self.norm == "nuclear":
            return nuclear_norm(matrix)
        return matrix.new_zeros(())

    def project(self, features: Tensor, *, dimensions: int = 256) -> Tensor:
        """The evaluated feature of a batch, (B, H) -> (B, R); see :meth:`extractor`."""
        return self.extractor(dimensions=dimensions)(features)

    @torch.no_grad()
    def extractor(self, *, dimensions: int = 256) -> Callable[[Tensor], Tensor]:
        """The function to the evaluated feature: ``L features`` with L reduced to ``dimensions``.

        Args:
            dimensions: kept columns of largest norm for l2,1, else singular directions of largest
                value; all of them where H is smaller.

        Returns:
            A function (B, H) -> (B, R) without gradient, for any number of batches.
        """
        self.warn_if_collapsed()
        selection: Selection = "columns" if self.norm == "l21" else "svd"
        matrix = reduce_matrix(upcast(self.matrix.detach()), dimensions, selection)

        @torch.no_grad()
        def extract(features: Tensor) -> Tensor:
            self._check_features([features])
            features = features.to(matrix.dtype)
            return (unit_rows(features) if self.unit_features else features) @ matrix.T

        return extract

    def share_left(self) -> Tensor:
        """The norm of L as a share of its initial one, a scalar."""
        share: Tensor = torch.linalg.matrix_norm(self.matrix.detach()) / self.initial_norm
        return share

    def warn_if_collapsed(self, share: Tensor | None = None) -> bool:
        """Raise a ``RuntimeWarning`` when under 1/1000 of the norm is left, and say whether it is.

        ``share`` is :meth:`share_left`, of an earlier step or of now.
        """
        share = self.share_left() if share is None else share
        has_collapsed = bool(share < COLLAPSED)
        if has_collapsed:
            notice(
                f"the projection L has collapsed to {float(share):.1e} of its initial norm: its "
                f"features carry no information; lower alpha ({self.alpha})"
            )
        return has_collapsed


def extractor_of(
    projection: LowRankProjection | None, dimensions: int
) -> Callable[[Tensor], Tensor] | None:
    """The function to the evaluated feature, see :meth:`LowRankProjection.extractor`; or None."""
    return None if projection is None else projection.extractor(dimensions=dimensions)


def nuclear_norm(matrix: Tensor) -> Tensor:
    """The sum of the singular values, a scalar, from the eigenvalues of ``L'L``.

    LAPACK's singular value decomposition can fail, or silently give wrong vectors, for many equal
    singular values, such as those of the identity that L starts from. Eigenvalues that are zero up
    to rounding get no gradient, which is a valid subgradient. For equal singular values second
    derivatives are NaN.
    """
    if not torch.isfinite(matrix).all():
        return matrix.sum()  # not finite either; the criterion's error names the step
    wide = matrix.double()
    squares = torch.linalg.eigvalsh(wide.T @ wide)
    real = squares > squares.detach().max() * torch.finfo(squares.dtype).eps * len(squares)
    norm: Tensor = torch.where(real, squares, 1.0).sqrt().mul(real).sum()
    return norm.to(matrix.dtype)


def reduce_matrix(matrix: Tensor, dimensions: int, selection: Selection) -> Tensor:
    """L (R, H) with all but ``dimensions`` columns or singular directions set to zero."""
    require("dimensions", dimensions, COUNT)
    if dimensions >= matrix.shape[1]:
        return matrix
    if selection == "svd":
        # The right singular vectors of L are the eigenvectors of L'L, in ascending order.
        wide = matrix.double()
        kept = torch.linalg.eigh(wide.T @ wide).eigenvectors[:, -dimensions:]
        truncated: Tensor = wide @ kept @ kept.T
        return truncated.to(matrix.dtype)
    kept = torch.linalg.vector_norm(matrix, dim=0).topk(dimensions).indices
    reduced = torch.zeros_like(matrix)
    reduced[:, kept] = matrix[:, kept]
    return reduced
