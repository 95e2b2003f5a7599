"""Pretraining on prose and its evaluation: one readable loop.

Shapes: B consecutive sentences of a batch, T tokens of the longest, H width of one encoder.
"""

import dataclasses
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from shared import Criterion, Pairs, context_window, cosine, inner_product
from shared.chunks import check_chunk, in_chunks, split
from shared.criterion import Similarity
from shared.distributed import broadcast, gather, local_slice, replicated
from shared.errors import UserError
from shared.experiment.data import sha256_of, write_sums
from shared.experiment.own import record_own
from shared.experiment.run import Run
from shared.pixels import to_device
from shared.ranges import require_ranges, require_words
from text.config import NAMED_CORPORA, Config
from text.data import corpus_fingerprint, task_fingerprint
from text.encoder import (
    NORMALISED,
    PROJECTION,
    Encode,
    Projected,
    QuickThought,
    QuickThoughtConfig,
    sentence_encoder,
)
from text.neighbours import NEIGHBOURS, Scores, neighbour_accuracies
from text.saved import starting_point
from text.tokens import Batch, Tokens, order_of_batches, prepare

SAVE_EVERY = 120.0  # seconds between two checkpoints, of over 100 MB each
LOG_EVERY = 100  # steps averaged in a line of the log
WATCHED_BLOCKS = 20  # of consecutive sentences, at most, that are scored during the training

Forward = Callable[..., tuple[Tensor, dict[str, Tensor]]]  # see loss_of_batch


def measure(config: Config, run: Run) -> dict[str, object]:
    """Pretrain a pair of encoders on a corpus, and evaluate their vectors on the tasks.

    Args:
        config: what to do.
        run: where it is logged, saved and resumed from.

    Returns:
        The metrics of the protocol: the accuracy on each task and their mean, in percent; if books
        are held out, also those of :mod:`text.neighbours`.
    """
    from text import baselines, evaluation  # scikit-learn, which takes a second to import

    tasks, protocol = config.tasks, config.protocol
    run.record_data(tasks=task_fingerprint(tasks, run.data_root))
    if config.baseline is not None and config.init is not None:
        raise ValueError(f"baseline {config.baseline!r} has no weights to start from; drop init")
    if config.baseline == "majority":
        guessed = 100 / (config.batch_size - 1)  # among a block's other sentences
        return {
            **evaluation.majority(run.data_root, tasks=tasks, protocol=protocol),
            **(dict.fromkeys(NEIGHBOURS, guessed) if config.held_out else {}),
        }
    if config.baseline == "tfidf" and not config.held_out:
        return evaluation.tfidf(run.data_root, tasks=tasks, protocol=protocol, workers=run.workers)

    run.record_data(**{config.corpus: corpus_fingerprint(config.corpus, run.data_root)})
    given = None if config.init is None else starting_point(config.init, config.length)[1]
    tokens, tokenizer = prepare(
        config.corpus,
        config.layout,
        run.data_root,
        vocabulary=config.vocabulary,
        lower_case=config.lower_case,
        tokenizer=given,
        progress=run.progress,
    )
    unread, tokens = held_out(config, tokens)
    if config.baseline == "tfidf":
        metrics = evaluation.tfidf(
            run.data_root, tasks=tasks, protocol=protocol, workers=run.workers
        )
        scores = baselines.tfidf_scores(tokens, unread, len(tokenizer))
    else:
        prepared = counted if config.baseline == "ppmi_svd" else pretrained
        encode, scores = prepared(config, tokens, unread, tokenizer, run)
        metrics = evaluation.evaluate(
            encode, run.data_root, tasks=tasks, protocol=protocol, progress=run.progress
        )
    if not config.held_out:
        return metrics
    return {**metrics, **neighbour_accuracies(scores, unread.chapter, config.batch_size)}


def counted(
    config: Config, tokens: Tokens, unread: Tokens, tokenizer: PreTrainedTokenizerFast, run: Run
) -> tuple[Encode, Scores]:
    """The baseline of word vectors that are counted, and its scores of the held-out sentences."""
    from text import baselines

    vectors = baselines.ppmi_vectors(tokens, len(tokenizer), 2 * config.embedding, config.seed)
    return baselines.encoder(vectors, tokenizer), baselines.vector_scores(vectors, unread)


def pretrained(
    config: Config, tokens: Tokens, unread: Tokens, tokenizer: PreTrainedTokenizerFast, run: Run
) -> tuple[Encode, Scores]:
    """The encoder that is trained, or starts from weights, and its scores of held-out sentences.

    But for the smoke tier, the model is saved beside the run.
    """
    if config.init is not None:
        run.record_data(init=config.init.sha256)
    run.score = partial(neighbours_so_far, config, unread or tokens)
    model, criterion = pretrain(config, tokens, run, words=len(tokenizer), tokenizer=tokenizer)
    run.continue_on_rank_zero()
    scores = model_scores(config, model, unread)
    project = evaluated_projection(config, criterion)
    if run.tier != "smoke":
        save_model(run.folder / "model", model, tokenizer, project)
    return sentence_encoder(model, tokenizer, project=project), scores


def held_out(config: Config, tokens: Tokens) -> tuple[Tokens, Tokens]:
    """The sentences of the held-out books, and those of the training books; each file is a book."""
    books = config.held_out
    if books >= max(1, len(tokens.books)):
        raise UserError(
            f"the first {books} books of {config.corpus} cannot be held out: it has "
            f"{len(tokens.books)}; lower held_out"
        )
    first = int(np.searchsorted(tokens.chapter, tokens.books[books])) if books else 0
    return tokens.part(0, first), tokens.part(first, len(tokens))


def model_scores(config: Config, model: QuickThought, tokens: Tokens) -> Scores:
    """A model's scores of the sentences of a block, by the similarity that it is trained with."""
    similarity = cosine if config.similarity == "cosine" else inner_product

    @torch.no_grad()
    def scores(start: int, stop: int) -> Tensor:
        batch = tokens.batch(start, stop, config.length)
        f, g = model(batch.ids.to(next(model.parameters()).device), batch.mask)
        return similarity(f.float(), g.float())

    return scores


def neighbours_so_far(
    config: Config, tokens: Tokens, model: QuickThought, **_: object
) -> dict[str, float]:
    """A model's accuracies of finding neighbours, on the last of the sentences."""
    last = tokens.part(max(0, len(tokens) - WATCHED_BLOCKS * config.batch_size), len(tokens))
    return neighbour_accuracies(model_scores(config, model, last), last.chapter, config.batch_size)


def pretrain(
    config: Config,
    tokens: Tokens,
    run: Run,
    *,
    words: int,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> tuple[QuickThought, Criterion]:
    """Train the encoders of a configuration on tokens, those of a corpus or your own.

    Args:
        config: how; its fields about corpora and evaluation are not used.
        tokens: of consecutive sentences.
        run: where it is logged, saved and resumed from.
        words: V, the tokenizer's vocabulary size.
        tokenizer: of the tokens; needed with ``config.init``, whose own it has to be.

    Returns:
        The encoders, on the GPU if there is one, and the criterion with its trained parameters.
    """
    check_chunk(config.chunk)
    record_own(run, config, "corpus", NAMED_CORPORA, tokens.ids, tokens.offsets, tokens.chapter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if config.init is None:
        model = QuickThought(shape_of(config, words))
    else:
        model, its = starting_point(config.init, config.length)
        if tokenizer is None or tokenizer.get_vocab() != its.get_vocab():
            raise ValueError("tokens of init have its tokenizer: give it to prepare and pretrain")
        if model.config.kind != config.encoder:
            raise UserError(f"{config.init.file}: set encoder={model.config.kind}, which it holds")
    criterion = make_criterion(config, model.dim)
    nn.ModuleList([model, criterion]).to(device)
    if not config.train:
        return model, criterion
    per_epoch = len(tokens) // config.batch_size
    if per_epoch == 0:
        raise UserError(
            f"batch_size {config.batch_size} is larger than the {len(tokens)} sentences of the "
            f"corpus; lower it, or add more text"
        )
    if not has_neighbours(tokens, config.batch_size):
        raise UserError(
            f"no sentence of the corpus {config.corpus} has a neighbour of its chapter in a batch "
            f"of {config.batch_size}: there are no positives; is layout={config.layout!r} right?"
        )
    require_ranges(config)
    parameters = [*model.parameters(), *criterion.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
    run.keep_checkpoint = False
    first = run.track(model=model, criterion=criterion, optimiser=optimiser)
    forward = replicated(loss_of_batch, model, criterion)

    model.train()
    total = config.epochs * per_epoch
    total = total if config.steps is None else min(total, config.steps)
    local = local_slice(config.batch_size)
    for step in run.steps(total, "pretraining", log_every=LOG_EVERY, save_every=SAVE_EVERY):
        epoch, number = divmod(step, per_epoch)
        if number == 0 or step == first:
            order = order_of_batches(per_epoch, config.seed, epoch, config.order == "shuffled")
        start = int(order[number]) * config.batch_size
        batch = tokens.batch(start + local.start, start + local.stop, config.length)
        run.means.add(train_step(config, model, criterion, optimiser, batch, step, forward))
    return model, criterion


def has_neighbours(tokens: Tokens, batch_size: int) -> bool:
    """Whether any batch has two consecutive sentences of one chapter."""
    whole = len(tokens) // batch_size
    chapters = np.asarray(tokens.chapter[: whole * batch_size]).reshape(whole, batch_size)
    return bool((chapters[:, 1:] == chapters[:, :-1]).any())


def loss_of_batch(
    config: Config, model: QuickThought, criterion: Criterion, batch: Batch, step: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of B consecutive sentences and its parts."""
    device = next(model.parameters()).device
    half = config.precision == "bfloat16" and device.type == "cuda"
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        chunks = split(config.chunk, to_device(batch.ids, device), batch.mask)
        f, g = in_chunks(model, chunks, model)
    if half:  # for the encoders only: scores are computed in float32
        f, g = f.float(), g.float()
    if config.dropout:
        mask = (broadcast(torch.rand(1, f.shape[1])) > config.dropout).to(f)
        f, g = f * mask, g * mask
    pairs = pairs_of(config, f, g, to_device(batch.chapter, device))
    features = None if criterion.projection is None else torch.cat([f, g], dim=1)
    loss, parts = criterion(pairs, features=features, step=step)
    return loss, parts


def train_step(
    config: Config,
    model: QuickThought,
    criterion: Criterion,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    step: int,
    forward: Forward = loss_of_batch,
) -> dict[str, Tensor]:
    """One step of the optimiser on B consecutive sentences; the parts of the loss.

    On several processes the batch is this one's part of it, and ``forward`` is
    :func:`loss_of_batch` wrapped by :func:`shared.distributed.replicated`.
    """
    loss, parts = forward(config, model, criterion, batch, step)
    optimiser.zero_grad()
    loss.backward()
    # Each separately, as in S2V's create_train_op.
    for parameter in nn.ModuleList([model, criterion]).parameters():
        nn.utils.clip_grad_norm_(parameter, config.clip)
    optimiser.step()
    return {"loss": loss.detach(), **parts}


def pairs_of(config: Config, f: Tensor, g: Tensor, chapter: Tensor) -> Pairs:
    """Sentences (B, H) against contexts (B, H); neighbours in the same chapter are positives."""
    pairs = context_window(f, g, config.reach, document=chapter, gather=gather)
    if config.diagonal == "masked":
        return pairs
    return dataclasses.replace(pairs, negative=pairs.negative | _self_mask(pairs.negative))


def make_criterion(config: Config, dim: int) -> Criterion:
    """The configuration's criterion for encoders of width ``dim``; its projection sees [f ; g]."""
    projection = config.objective.projection
    if projection is not None and projection.kwargs.get("unit_features"):
        raise ValueError("the projection of sentence vectors has no unit_features; omit it")
    require_words(config)
    similarity: Similarity = cosine if config.similarity == "cosine" else inner_product
    if config.diagonal == "zero":
        if similarity is cosine:
            raise ValueError("diagonal='zero' is defined for quick-thoughts' inner products only")
        similarity = inner_product_without_self
    return Criterion(config.objective, 2 * dim, similarity, check_every=LOG_EVERY)


def inner_product_without_self(sentence: Tensor, context: Tensor) -> Tensor:
    """Inner products (B, H), (B, H) -> (B, B), 0 for a sentence with itself, as in S2V."""
    scores = inner_product(sentence, context)
    return scores.masked_fill(_self_mask(scores), 0.0)


def _self_mask(scores: Tensor) -> Tensor:
    """Mask of a sentence with itself; rows are of this process, columns of all processes."""
    everyone = torch.eye(scores.shape[1], dtype=torch.bool, device=scores.device)
    return everyone[local_slice(scores.shape[1])]


def shape_of(config: Config, words: int) -> QuickThoughtConfig:
    """The architecture of the configuration's encoders, for a vocabulary of ``words`` words."""
    alike = ("embedding", "hidden", "bidirectional", "layers", "heads", "length")
    shape = {name: getattr(config, name) for name in alike}
    return QuickThoughtConfig(kind=config.encoder, vocab_size=words, **shape)


def evaluated_projection(config: Config, criterion: Criterion) -> Projected | None:
    """CLLR's L for evaluation, reduced to the configuration's dimensions."""
    if criterion.projection is None:
        return None
    matrix = criterion.projection.matrix
    extract = criterion.projection.extractor(dimensions=config.projection_dimensions)
    identity = torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    return Projected(extract(identity).T.contiguous(), config.normalise_projected)


def save_model(
    folder: Path, model: QuickThought, tokenizer: PreTrainedTokenizerFast, project: Projected | None
) -> None:
    """Write a folder for ``from_pretrained``, with the projection, atomically."""
    transformers.utils.logging.disable_progress_bar()
    part = folder.with_name(f".{folder.name}.part")
    for left in (part, folder):  # from an interrupted attempt
        shutil.rmtree(left, ignore_errors=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    if project is not None:
        metadata = {NORMALISED: "true"} if project.normalise else None
        save_file({"matrix": project.matrix.cpu()}, part / PROJECTION, metadata)
    write_sums(part, {file.name: sha256_of(file) for file in sorted(part.iterdir())})
    part.replace(folder)
