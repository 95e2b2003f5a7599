"""Builders of pairs: which candidates are positives and negatives of which anchors.

Shapes: N anchors, M candidates, D dimensions, B instances of a batch (on this process), G instances
of the batch over all processes (G = B on one).

For training on several processes a builder takes ``gather``: a function (B, D) -> (G, D) that
collects the embeddings of all processes with gradient (:func:`shared.distributed.gather`), so that
negatives come from the global batch. Rows are in the order of the ranks, each process holding its
:func:`shared.distributed.local_slice`. Anchors stay local, and the pairs record that they are part
of a global batch (``blocks``): penalties and :class:`shared.criterion.Criterion` then count over
all processes, so that the mean of their losses over processes is the loss of the global batch.
Pairs built without ``gather`` never communicate.

A batch may hold duplicates: an image that occurs twice in the dataset, a sentence that a book
repeats. With ``ignore_duplicates`` builders ignore duplicates of an anchor's instance instead of
making them negatives: integers (B,), equal for duplicates; or True, which compares the candidates'
rows bit by bit. Keys of a bank are never treated as duplicates by integers. Among labels and
numbers -1 is none: such a row has no class, and no duplicates.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from shared.distributed import local_slice, world_size
from shared.precision import full_precision, upcast
from shared.ranges import COUNT, Pairing, require
from shared.versions import versions_of

Duplicates = bool | Tensor  # see above
NO_LABEL = -1
Gather = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pairs:
    """Anchors, candidates, and the masks of positive and negative pairs.

    Args:
        anchor: (N, D).
        candidate: (M, D); may be the same tensor as ``anchor``.
        positive: (N, M) bool.
        negative: (N, M) bool; a pair in neither mask is ignored.
        blocks: 0: the batch is on one process. Otherwise the candidates come from several
            processes, all of which must compute the same losses, and the anchors of the global
            batch form this many blocks of equal size, each in the order of the processes: 2 for
            :func:`two_views` (all first views, then all second), 1 for the other builders. Set by
            the builders.
        most_positives: P, no anchor has more. Counted if not given, which waits for the device
            once.
        most_non_negatives: likewise of the candidates that are not negatives; only max_margin on an
            accelerator asks for it.

    Raises:
        ValueError: shapes that do not fit together; on the CPU, too, a candidate that is positive
            and negative at once, and an anchor with more than ``most_positives``.
    """

    anchor: Tensor
    candidate: Tensor
    positive: Tensor
    negative: Tensor
    blocks: int = 0
    most_positives: int | None = None
    most_non_negatives: int | None = None
    # From a builder of one positive: (N, Q), the positive and the others that are no negatives, and
    # how often the masks had been changed. On a CPU an index costs a fortieth of a mask.
    _listed: tuple[Tensor, list[int | None]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.anchor.ndim != 2 or self.candidate.ndim != 2:
            raise ValueError(
                f"anchor and candidate are matrices (rows, dimensions); got shapes "
                f"{tuple(self.anchor.shape)} and {tuple(self.candidate.shape)}"
            )
        shape = (len(self.anchor), len(self.candidate))
        for name, mask in (("positive", self.positive), ("negative", self.negative)):
            if mask.shape != shape or mask.dtype != torch.bool:
                raise ValueError(
                    f"{name} is a bool mask of shape {shape}; "
                    f"got {mask.dtype} of shape {tuple(mask.shape)}"
                )
        if not readable(self.positive):
            return
        both = (self.positive & self.negative).view(torch.uint8)  # whose largest is found fastest
        if both.numel() and both.amax():
            raise ValueError("a candidate is positive or negative for an anchor; got both")
        if self.most_positives is not None and self.most_positives < _most(self.positive):
            raise ValueError(
                f"an anchor has {_most(self.positive)} positives, more than most_positives, "
                f"{self.most_positives}; omit it, and it is counted"
            )

    def __repr__(self) -> str:
        anchors, candidates, width = *self.positive.shape, self.anchor.shape[1]
        return f"Pairs({anchors} anchors, {candidates} candidates, {width} dimensions)"

    def positives(self) -> Tensor:
        """The candidate indices of each anchor's positives, (N, P), padded with -1."""
        listed = self._non_negatives()
        return indices_of(self.positive, self.most_positives) if listed is None else listed[:, :1]

    def excluded(self, *, positives: bool) -> Tensor:
        """What a sum over the candidates leaves out, for :func:`fill`: a mask or (N, Q) indices.

        These are the ignored candidates, and with ``positives`` those, too.
        """
        listed = self._non_negatives()
        if listed is not None:
            return listed if positives else listed[:, 1:]
        return ~self.negative if positives else ~(self.negative | self.positive)

    def _non_negatives(self) -> Tensor | None:
        """The builder's list, unless a mask has been changed in place since, or none can tell."""
        if self._listed is None:
            return None
        listed, then = self._listed
        now = versions_of(self.positive, self.negative)
        return listed if now == then and None not in now else None


def two_views(
    first: Tensor,
    second: Tensor,
    *,
    anchors: Literal["both", "second"] = "both",
    gather: Gather | None = None,
    ignore_duplicates: Duplicates = False,
) -> Pairs:
    """SimCLR's layout: both views are candidates; those of other instances are negatives.

    Args:
        first: (B, D), first view of each instance.
        second: (B, D), second view.
        anchors: ``"both"``: 2B anchors; ``"second"``: only the second views (MMCL's Algorithm 1,
            which is not symmetric).
        gather: see the module.
        ignore_duplicates: see the module.

    Returns:
        Pairs with one positive and 2G - 2 negatives per anchor, fewer with duplicates.

    Raises:
        ValueError: views of different shapes, or other anchors.
    """
    _check_views(first, second)
    if anchors not in ("both", "second"):
        raise ValueError(f"anchors is 'both' or 'second'; got {anchors!r}")
    size = len(first)
    if world_size() == 1:  # so that the candidates are the same tensor as the anchors
        gather = None
    both = torch.cat([first, second])
    everyone = both if gather is None else torch.cat([gather(first), gather(second)])
    anchor = both if anchors == "both" else second
    total = len(everyone) // 2
    start = _start(total, gather)
    in_first = torch.arange(start, start + size, device=first.device)
    in_second = in_first + total
    # Where each anchor's other view is, then where it is itself.
    places = [in_first, in_second]
    if anchors == "both":
        places = [in_second, in_first, in_first, in_second]
    other_and_own = torch.cat(places).view(2, -1)
    blocks = _blocks(gather, 2 if anchors == "both" else 1)
    pairs = _one_positive(anchor, everyone, other_and_own, blocks)
    numbers = _numbers_of(ignore_duplicates, size, gather)
    return _without_copies(pairs, other_and_own, numbers, views=2)


def paired_views(
    first: Tensor,
    second: Tensor,
    pairs: str = "both",
    *,
    gather: Gather | None = None,
    ignore_duplicates: Duplicates = False,
) -> Pairs:
    """The pairs of two views of a batch, by the name used in all configurations.

    Args:
        first: (B, D).
        second: (B, D); row i is the other view of row i of ``first``.
        pairs: "both": anchors of both views, negatives of both (SimCLR); "both_views": anchors are
            the second views, negatives of both (MMCL's Algorithm 1); "first_view": anchors are the
            second views, negatives the other first views (MMCL's program); "second_view": anchors
            are the first views, negatives the other second views (GraphCL's program).
        gather: for several processes, see the module.
        ignore_duplicates: see the module.

    Raises:
        ValueError: an unknown name.
    """
    options: dict[str, Any] = {"gather": gather, "ignore_duplicates": ignore_duplicates}
    match pairs:
        case "both":
            return two_views(first, second, **options)
        case "both_views":
            return two_views(first, second, anchors="second", **options)
        case "first_view":
            return query_key(second, first, **options)
        case "second_view":
            return query_key(first, second, **options)
    raise ValueError(f"pairs is one of {', '.join(get_args(Pairing))}; got {pairs!r}")


def query_key(
    query: Tensor,
    key: Tensor,
    bank: Tensor | None = None,
    *,
    in_batch: bool = True,
    gather: Gather | None = None,
    ignore_duplicates: Duplicates = False,
) -> Pairs:
    """Queries against keys, in one direction (GraphCL, CURL, MoCo); negatives are other keys.

    With ``query_key(second, first)``, :func:`shared.losses.max_margin` is the program of MMCL's
    authors: negatives of the first view only.

    Args:
        query: (B, D).
        key: (B, D); row i is the positive of query i.
        bank: (K, D), further negatives for every query (a queue).
        in_batch: False ignores the keys of other queries, so that only the bank is negative (MoCo).
        gather: see the module; collects the keys.
        ignore_duplicates: see the module.

    Returns:
        Pairs with one positive and G - 1 + K negatives per anchor, or K; fewer with duplicates.

    Raises:
        ValueError: negatives from neither a bank nor the batch.
    """
    _check_views(query, key)
    candidate = key if gather is None else gather(key)
    start = _start(len(candidate), gather)
    if bank is not None:
        candidate = torch.cat([candidate, bank])
    own_index = torch.arange(start, start + len(query), device=query.device)
    pairs = _one_positive(query, candidate, own_index[None], _blocks(gather))
    numbers = _numbers_of(ignore_duplicates, len(query), gather)
    if in_batch:
        return _without_copies(pairs, (own_index,), numbers)
    if bank is None:
        raise ValueError("in_batch=False needs a bank: without one there are no negatives")
    keys = len(candidate) - len(bank)
    negative = torch.zeros_like(pairs.negative)
    negative[:, keys:] = True
    pairs = replace(pairs, negative=negative, most_non_negatives=keys)
    return _without_copies(pairs, (own_index,), numbers)


def with_own_negatives(pairs: Pairs, own: Tensor) -> Pairs:
    """The pairs with further negatives, a separate set for each anchor.

    Every anchor is compared with the sets of all anchors, and those of others are ignored. That
    computes N times as many similarities as needed, but works with every loss and penalty.

    Args:
        pairs: N anchors, M candidates.
        own: (N, S, D), the negatives of each anchor.

    Returns:
        Pairs with M + N S candidates.
    """
    own_mask = torch.eye(len(own), dtype=torch.bool, device=own.device)
    own_mask = own_mask.repeat_interleave(own.shape[1], dim=1)
    return replace(
        pairs,
        candidate=torch.cat([pairs.candidate, own.flatten(0, 1).to(pairs.candidate.dtype)]),
        positive=torch.cat([pairs.positive, torch.zeros_like(own_mask)], dim=1),
        negative=torch.cat([pairs.negative, own_mask], dim=1),
        most_non_negatives=None,
    )


def context_window(
    sentence: Tensor,
    context: Tensor,
    reach: int = 1,
    *,
    document: Tensor | None = None,
    gather: Gather | None = None,
    ignore_duplicates: Duplicates = False,
) -> Pairs:
    """Quick-thoughts: sentences at most ``reach`` places away are positives, itself is ignored.

    Args:
        sentence: (B, D), consecutive sentences under one encoder.
        context: (B, D), the same sentences under the other encoder.
        reach: the number of positive neighbours on each side.
        document: (B,) int; contexts do not cross documents. None: one document.
        gather: see the module; the sentences of the next process follow those of this one. It also
            collects the documents, as (B, 1).
        ignore_duplicates: see the module; a duplicate among the anchor's neighbours stays positive.

    Returns:
        Pairs with up to ``2 * reach`` positives per anchor.

    Raises:
        ValueError: embeddings or documents of another shape, or a reach below 1.
    """
    _check_views(sentence, context)
    require("reach", reach, COUNT)
    size = len(sentence)
    if document is not None:
        _check_whole("document", document, size)
    candidate = context if gather is None else gather(context)
    start = _start(len(candidate), gather)
    position = torch.arange(len(candidate), device=sentence.device)
    position_of_anchor = position[start : start + size]
    distance = (position_of_anchor[:, None] - position[None, :]).abs()
    positive = (distance > 0) & (distance <= reach)
    if document is not None:
        label = document if gather is None else gather(document[:, None])[:, 0]
        positive &= document[:, None] == label[None, :]
    negative = (distance > 0) & ~positive
    most = min(2 * reach, len(candidate))
    pairs = Pairs(sentence, candidate, positive, negative, _blocks(gather), most, most + 1)
    return _without_copies(
        pairs, (position_of_anchor,), _numbers_of(ignore_duplicates, size, gather)
    )


def local_global(
    node: Tensor,
    graph: Tensor,
    owner: Tensor,
    *,
    gather: Gather | None = None,
    ignore_duplicates: Duplicates = False,
) -> Pairs:
    """InfoGraph: each node against every graph; its own graph is the positive.

    Args:
        node: (N, D).
        graph: (B, D).
        owner: (N,) int, the graph of each node.
        gather: see the module; collects the graphs.
        ignore_duplicates: see the module; its numbers are those of the graphs.

    Raises:
        ValueError: an owner that is not one whole number for each node, or (on the CPU) no graph
            of this process.
    """
    _check_whole("owner", owner, len(node))
    if readable(owner) and len(owner) and not 0 <= owner.min() <= owner.max() < len(graph):
        raise ValueError(
            f"owner counts the {len(graph)} graphs from 0; "
            f"got {int(owner.min())} to {int(owner.max())}"
        )
    candidate = graph if gather is None else gather(graph)
    own_index = owner.long() + _start(len(candidate), gather)
    pairs = _one_positive(node, candidate, own_index[None], _blocks(gather))
    return _without_copies(pairs, (own_index,), _numbers_of(ignore_duplicates, len(graph), gather))


def same_label(embedding: Tensor, label: Tensor, *, gather: Gather | None = None) -> Pairs:
    """Supervised contrast: the others of an anchor's class are its positives, itself is ignored.

    With two views of each instance, ``same_label(torch.cat([first, second]), label.repeat(2))`` and
    :func:`shared.losses.info_nce` are SupCon. An anchor that is alone in its class has no positive
    and therefore no loss, and :class:`shared.criterion.Criterion` takes the mean over the others.
    A row without a label has neither positives nor negatives, and is neither to others.

    Args:
        embedding: (B, D).
        label: (B,) int, the class of each row, -1 for none.
        gather: see the module; collects the embeddings, and the labels as (B, 1).

    Returns:
        Pairs with the classes' other members as positives and all other classes as negatives.
        Counting them waits for the device once.

    Raises:
        ValueError: labels that are not one whole number for each row.

    Source: Khosla et al. 2020 (SupCon), Eq. 2. Eq. 2 of LMCL (Chen et al. 2021) has the same
    classes, and one positive in each tuple.
    """
    _check_whole("label", label, len(embedding))
    candidate = embedding if gather is None else gather(embedding)
    start = _start(len(candidate), gather)
    everyone = label if gather is None else gather(label[:, None])[:, 0]
    own_index = torch.arange(start, start + len(embedding), device=embedding.device)[:, None]
    alike = label[:, None] == everyone[None, :]
    known = (label != NO_LABEL)[:, None] & (everyone != NO_LABEL)[None, :]
    positive = (alike & known).scatter(1, own_index, False)
    negative = ~alike & known
    return Pairs(embedding, candidate, positive, negative, _blocks(gather), _most(positive))


def cosine(anchor: Tensor, candidate: Tensor) -> Tensor:
    """Cosine of every anchor with every candidate, (N, D) and (M, D) -> (N, M).

    A row of zeros has cosine 0 with everything. Rows of any representable length are supported.
    Half precision is promoted to float32, and autocast has no effect.
    """
    anchor, candidate = _comparable(anchor, candidate)
    unit = unit_rows(anchor)
    other = unit if candidate is anchor else unit_rows(candidate)
    with full_precision(unit):
        return unit @ other.T


def inner_product(anchor: Tensor, candidate: Tensor) -> Tensor:
    """Plain inner products, (N, D) and (M, D) -> (N, M): quick-thoughts' raw scores.

    Precision is that of :func:`cosine`.
    """
    anchor, candidate = _comparable(anchor, candidate)
    with full_precision(anchor):
        return anchor @ candidate.T


def unit_rows(rows: Tensor) -> Tensor:
    """Rows divided by their Euclidean length; rows of zeros stay zero, with finite derivatives."""
    if readable(rows) and rows.numel():
        length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        shortest, longest = length.detach().aminmax()
        limits = torch.finfo(rows.dtype)
        # Squares are then far from overflow and underflow.
        if limits.tiny**0.25 < float(shortest) and float(longest) < limits.max**0.25:
            return rows / length
    # Scaling by a power of 2 brings the largest entry between 1/2 and 1 and changes no digit. It is
    # applied in two factors, since a single one may overflow. Rows of subnormal numbers count as
    # zeros, since their derivatives would overflow.
    largest = rows.detach().abs().amax(1, keepdim=True) if rows.numel() else rows.new_zeros(1, 1)
    zero = largest < torch.finfo(rows.dtype).tiny
    exponent = -torch.frexp(largest.masked_fill(zero | ~largest.isfinite(), 0.0)).exponent
    half = exponent.div(2, rounding_mode="floor")
    one = torch.ones_like(largest)
    rows = rows * torch.ldexp(one, half) * torch.ldexp(one, exponent - half)
    length = torch.linalg.vector_norm(torch.where(zero, 1.0, rows), dim=1, keepdim=True)
    return rows / torch.where(zero, 1.0, length)


def _start(count: int, gather: Gather | None) -> int:
    """The index of this process's first row among the ``count`` rows of all processes."""
    return 0 if gather is None else local_slice(count).start


def _blocks(gather: Gather | None, blocks: int = 1) -> int:
    return 0 if gather is None or world_size() == 1 else blocks


def _one_positive(anchor: Tensor, candidate: Tensor, ignored: Tensor, blocks: int) -> Pairs:
    """One positive per anchor, the first row of (Q, N) candidates that are no negatives."""
    negative = torch.ones(len(anchor), len(candidate), dtype=torch.bool, device=anchor.device)
    negative.scatter_(1, ignored.T, False)
    positive = torch.zeros_like(negative).scatter_(1, ignored[0][:, None], True)
    pairs = Pairs(anchor, candidate, positive, negative, blocks, 1, len(ignored))
    object.__setattr__(pairs, "_listed", (ignored.T, versions_of(positive, negative)))
    return pairs


def _numbers_of(ignore_duplicates: Duplicates, count: int, gather: Gather | None) -> Duplicates:
    """The integers that mark duplicates, for all processes; True or False come back unchanged."""
    if isinstance(ignore_duplicates, bool):
        return ignore_duplicates
    _check_whole("ignore_duplicates", ignore_duplicates, count)
    return ignore_duplicates if gather is None else gather(ignore_duplicates[:, None])[:, 0]


def _without_copies(
    pairs: Pairs, own_indices: Iterable[Tensor], numbers: Duplicates, views: int = 1
) -> Pairs:
    """The pairs without negatives that are duplicates of the anchor's instance.

    own_indices: (N,) int each, the candidates of the anchor's own instance. numbers: of the
    instances, equal for duplicates, -1 for none; or whether to compare rows. views: the number of
    views of all instances that the candidates are, one after the other.
    """
    if numbers is False:
        return pairs
    if isinstance(numbers, Tensor):
        label = numbers.to(pairs.negative.device).repeat(views)
    else:  # as bytes, where 0 and -0 differ
        bits = pairs.candidate.detach().contiguous().view(torch.uint8)
        label = torch.unique(bits, dim=0, return_inverse=True)[1]
    alike = torch.stack([label[index][:, None] == label[None, :] for index in own_indices]).any(0)
    alike &= label != NO_LABEL
    # A duplicate in one view is one in all views.
    alike = alike.unflatten(1, (views, -1)).any(1).repeat(1, views)
    negative = pairs.negative.clone()
    negative[:, : len(label)] &= ~alike
    return replace(pairs, negative=negative, most_non_negatives=None)


def blocks_of_rows(matrix: Tensor) -> list[slice]:
    """Blocks of rows that fit into a processor's cache; all rows on an accelerator."""
    # 1 MB of float32.
    if not matrix.numel():
        return []
    size = len(matrix)
    if matrix.device.type == "cpu":
        size = max(1, 2**18 // matrix.shape[1])
    return [slice(start, start + size) for start in range(0, len(matrix), size)]


def fill(values: Tensor, excluded: Tensor, value: float) -> Tensor:
    """The values, (N, M), changed in place to ``value`` at :meth:`Pairs.excluded`."""
    if excluded.dtype == torch.bool:
        return values.masked_fill_(excluded, value)
    return values.scatter_(1, excluded, value)


def readable(tensor: Tensor) -> bool:
    """Whether a value can be read without waiting for an accelerator, and outside of vmap."""
    return tensor.device.type == "cpu" and not torch._C._are_functorch_transforms_active()


def _most(mask: Tensor) -> int:
    """The largest number of entries of a row; it waits for the device."""
    return int(mask.sum(1, dtype=torch.int32).max()) if mask.numel() else 0


def indices_of(mask: Tensor, most: int | None = None) -> Tensor:
    """The columns of a mask's entries, (N, most), padded with -1; None: as many as there are."""
    most = _most(mask) if most is None else min(most, mask.shape[1])
    if most == 1:  # the fastest, as it is vectorised
        numbers = torch.arange(1, mask.shape[1] + 1, dtype=torch.int32, device=mask.device)
        return (mask * numbers).amax(1, keepdim=True).long() - 1
    present, index = mask.to(torch.uint8).topk(most, dim=1)
    return torch.where(present.bool(), index, -1)


def _check_views(first: Tensor, second: Tensor) -> None:
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(
            f"both inputs are matrices with one row per instance and the same width; got "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )


def _comparable(anchor: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
    """Both in at least single precision; one tensor stays one tensor."""
    one = upcast(anchor)
    return one, one if anchor is candidate else upcast(candidate)


def _check_whole(name: str, numbers: object, count: int) -> None:
    """Raise a ``ValueError`` unless these are integers, one for each of ``count`` rows."""
    if not isinstance(numbers, Tensor):
        raise ValueError(f"{name} is a torch tensor; got {type(numbers).__name__}")
    if numbers.shape != (count,) or numbers.is_floating_point() or numbers.is_complex():
        raise ValueError(
            f"{name} holds one whole number for each of the {count} rows; "
            f"got {numbers.dtype} of shape {tuple(numbers.shape)}"
        )
