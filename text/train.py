"""Pretraining on prose and its evaluation: one readable loop.

Shapes: B consecutive sentences of a batch, T tokens of the longest, H width of one encoder.
"""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from shared import Criterion, Pairs, context_window, cosine, inner_product
from shared.errors import UserError
from shared.experiment.data import sha256_of, write_sums
from shared.experiment.runs import Run
from shared.objective import Similarity
from text import counts
from text.config import Config
from text.data import chapters_of, corpus_fingerprint, task_fingerprint
from text.encoder import QuickThought, QuickThoughtConfig, sentence_encoder
from text.evaluate import evaluate, majority, tfidf
from text.neighbours import NEIGHBOURS, Scores, neighbour_accuracies
from text.tokens import Batch, Tokens, expand, order_of_batches, prepare

SAVE_EVERY = 120.0  # seconds between two checkpoints, of over 100 MB each
LOG_EVERY = 100  # steps that a line of the log is the mean of


def run(config: Config, run: Run) -> dict[str, object]:
    """Pretrain a pair of encoders on a corpus, and evaluate their vectors by the tasks.

    Args:
        config: what to do.
        run: where it is logged, saved and resumed from.

    Returns:
        The metrics of the protocol: accuracy of each task, and their mean, in percent; where books
        are held out also those of :mod:`text.neighbours`.
    """
    tasks, protocol = config.tasks, config.protocol
    run.record_data(tasks=task_fingerprint(tasks, run.data_root))
    if config.baseline == "majority":
        guessed = 100 / (config.batch_size - 1)  # among a block's other sentences
        return {
            **majority(run.data_root, tasks=tasks, protocol=protocol),
            **(dict.fromkeys(NEIGHBOURS, guessed) if config.held_out else {}),
        }
    if config.baseline == "tfidf" and not config.held_out:
        return tfidf(run.data_root, tasks=tasks, protocol=protocol, workers=run.workers)

    run.record_data(**{config.corpus: corpus_fingerprint(config.corpus, run.data_root)})
    tokens, tokenizer = prepare(
        config.corpus,
        config.layout,
        run.data_root,
        vocabulary=config.vocabulary,
        lower_case=config.lower_case,
        progress=run.progress,
    )
    unread, tokens = held_out(config, tokens, run.data_root)
    scores: Scores
    if config.baseline == "tfidf":
        found = tfidf(run.data_root, tasks=tasks, protocol=protocol, workers=run.workers)
        scores = counts.tfidf_scores(tokens, unread, len(tokenizer))
    else:
        if config.baseline == "ppmi_svd":
            vectors = counts.ppmi_vectors(tokens, len(tokenizer), 2 * config.embedding, config.seed)
            encode = counts.encoder(vectors, tokenizer)
            scores = counts.vector_scores(vectors, unread)
        else:
            model, criterion = pretrain(config, tokens, run, words=len(tokenizer))
            scores = model_scores(config, model, unread)
            matrix = evaluated_projection(config, criterion)
            if config.word_vectors is not None:
                file = run.data_root / config.word_vectors
                model, tokenizer = expand(model, tokenizer, file)
            if run.tier != "smoke":
                save_model(run.folder / "model", model, tokenizer, matrix)
            project = None if matrix is None else lambda both: both @ matrix.T
            encode = sentence_encoder(model, tokenizer, project=project)
        found = evaluate(
            encode, run.data_root, tasks=tasks, protocol=protocol, progress=run.progress
        )
    if not config.held_out:
        return found
    return {**found, **neighbour_accuracies(scores, unread.chapter, config.batch_size)}


def held_out(config: Config, tokens: Tokens, data_root: Path) -> tuple[Tokens, Tokens]:
    """The sentences of the books that are not trained on, and those that are.

    Raises:
        UserError: the corpus has no more books than those.
    """
    first = 0
    if config.held_out:
        chapters = chapters_of(config.held_out, config.corpus, config.layout, data_root)
        first = int(np.searchsorted(tokens.chapter, chapters))
    return tokens.part(0, first), tokens.part(first, len(tokens))


def model_scores(config: Config, model: QuickThought, tokens: Tokens) -> Scores:
    """What a model's f and g say of the sentences of a block, by the similarity it trains with."""
    similarity = cosine if config.similarity == "cosine" else inner_product

    @torch.no_grad()
    def scores(start: int, stop: int) -> Tensor:
        batch = tokens.batch(start, stop, config.length)
        f, g = model(batch.ids.to(next(model.parameters()).device), batch.mask)
        return similarity(f.float(), g.float())

    return scores


def pretrain(
    config: Config, tokens: Tokens, run: Run, *, words: int
) -> tuple[QuickThought, Criterion]:
    """Train the encoders of a configuration on tokens, those of a corpus or your own.

    Args:
        config: how; its fields about corpora and evaluation are not looked at.
        tokens: of consecutive sentences.
        run: where it is logged, saved and resumed from.
        words: V, how many the tokenizer knows.

    Returns:
        The encoders, on the GPU where there is one, and the criterion with what of it was trained.

    Raises:
        ValueError: a configuration that has no meaning.
        UserError: fewer sentences than a batch has.
        FloatingPointError: the training diverged.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = QuickThought(shape_of(config, words))
    criterion = make_criterion(config, model.dim)
    modules = nn.ModuleList([model, criterion]).to(device)
    if not config.train:
        return model, criterion
    per_epoch = len(tokens) // config.batch_size
    if per_epoch == 0:
        raise UserError(
            f"batch_size {config.batch_size} is larger than the {len(tokens)} sentences of the "
            f"corpus; lower it, or give more text"
        )
    optimiser = torch.optim.Adam(modules.parameters(), lr=config.learning_rate, fused=True)
    run.keep_checkpoint = False
    first = run.track(model=model, criterion=criterion, optimiser=optimiser)

    model.train()
    total = config.epochs * per_epoch
    total = total if config.steps is None else min(total, config.steps)
    for step in run.steps(total, "pretraining", log_every=LOG_EVERY, save_every=SAVE_EVERY):
        epoch, place = divmod(step, per_epoch)
        if place == 0 or step == first:
            order = order_of_batches(per_epoch, config.seed, epoch, config.order == "shuffled")
        start = int(order[place]) * config.batch_size
        batch = tokens.batch(start, start + config.batch_size, config.length)
        run.means.add(train_step(config, model, criterion, optimiser, batch, step))
    return model, criterion


def train_step(
    config: Config,
    model: QuickThought,
    criterion: Criterion,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    step: int,
) -> dict[str, Tensor]:
    """One step of the optimiser on B consecutive sentences; the parts of the loss.

    Raises:
        FloatingPointError: NaN or infinite vectors or loss.
    """
    device = next(model.parameters()).device
    half = config.precision == "bfloat16" and device.type == "cuda"
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        f, g = model(batch.ids.to(device, non_blocking=True), batch.mask)
    pairs = pairs_of(config, f, g, batch.chapter.to(device, non_blocking=True))
    features = None if criterion.projection is None else torch.cat([f, g], dim=1).float()
    loss, parts = criterion(pairs, features=features, step=step)
    optimiser.zero_grad()
    loss.backward()
    for group in optimiser.param_groups:
        for parameter in group["params"]:  # each by itself, as S2V's create_train_op does
            nn.utils.clip_grad_norm_(parameter, config.clip)
    optimiser.step()
    return {"loss": loss.detach(), **parts}


def pairs_of(config: Config, f: Tensor, g: Tensor, chapter: Tensor) -> Pairs:
    """Sentences (B, H) against their contexts (B, H); neighbours of one chapter are positives."""
    pairs = context_window(f, g, config.reach, document=chapter)
    if config.diagonal == "masked":
        return pairs
    own = torch.eye(len(f), dtype=torch.bool, device=f.device)
    return dataclasses.replace(
        pairs, negative=pairs.negative | own, outsider_index=pairs.positive_index
    )


def make_criterion(config: Config, dim: int) -> Criterion:
    """The configuration's criterion for encoders of width ``dim``; its projection sees [f ; g].

    Raises:
        ValueError: an objective that is not defined for the configuration's similarity.
    """
    projection = config.objective.projection
    if projection is not None and projection.options.get("unit_features"):
        raise ValueError("the projection of sentence vectors has no unit_features; leave it out")
    if config.similarity not in ("inner_product", "cosine"):
        raise ValueError(f"similarity is 'inner_product' or 'cosine'; got {config.similarity!r}")
    if config.diagonal not in ("masked", "zero"):
        raise ValueError(f"diagonal is 'masked' or 'zero'; got {config.diagonal!r}")
    similarity: Similarity = cosine if config.similarity == "cosine" else inner_product
    if config.diagonal == "zero":
        if similarity is cosine:
            raise ValueError("diagonal='zero' is a reading of quick-thoughts' inner products only")
        similarity = inner_product_without_self
    return Criterion(config.objective, 2 * dim, similarity, check_every=LOG_EVERY)


def inner_product_without_self(sentence: Tensor, context: Tensor) -> Tensor:
    """Inner products (B, H), (B, H) -> (B, B) with 0 for a sentence and itself, as S2V has them."""
    scores = inner_product(sentence, context)
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    return scores.masked_fill(own, 0.0)


def shape_of(config: Config, words: int) -> QuickThoughtConfig:
    """What the configuration's encoders are built of, for a tokenizer of so many words."""
    return QuickThoughtConfig(
        kind=config.encoder,
        vocab_size=words,
        embedding=config.embedding,
        hidden=config.hidden,
        bidirectional=config.bidirectional,
        layers=config.layers,
        heads=config.heads,
        length=config.length,
    )


def evaluated_projection(config: Config, criterion: Criterion) -> Tensor | None:
    """CLLR's L as it is evaluated, (R, 2H): reduced to the configuration's dimensions."""
    if criterion.projection is None:
        return None
    matrix = criterion.projection.matrix
    extract = criterion.projection.extractor(dimensions=config.projection_dimensions)
    identity = torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    return extract(identity).T.contiguous()


def save_model(
    folder: Path, model: QuickThought, tokenizer: PreTrainedTokenizerFast, matrix: Tensor | None
) -> None:
    """Write what ``from_pretrained`` reads, and the projection, to a folder that is all or none."""
    transformers.utils.logging.disable_progress_bar()
    part = folder.with_name(f".{folder.name}.part")
    for left in (part, folder):  # of an attempt that was interrupted
        shutil.rmtree(left, ignore_errors=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    if matrix is not None:
        save_file({"matrix": matrix.cpu()}, part / "projection.safetensors")
    write_sums(part, {file.name: sha256_of(file) for file in sorted(part.iterdir())})
    part.replace(folder)
