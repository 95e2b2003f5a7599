"""MoCo: queries against the keys of a momentum teacher, of a queue or of the batch.

Shapes: B images, D dimensions of the head, Q keys of the queue.
"""

from collections.abc import Iterator

from torch import Tensor

from shared import Pairs, query_key
from shared.distributed import gather, world_size
from shared.momentum import Teacher, bank_size, enqueue, mixed_negatives, random_bank
from shared.notices import notice
from shared.pairs import with_own_negatives
from shared.ranges import COUNT, require
from vision.config import Config
from vision.encoder import head
from vision.methods.base import Compared, Networks, Step


class MoCoV2(Networks):
    """Negatives come from a queue only (He et al. 2020), which is no longer than the images.

    With ``config.mixed``, mixtures of the hardest ones are added (Kalantidis et al. 2020).
    """

    options = ("mixed",)
    teacher: Teacher
    queue: Tensor

    def __init__(self, config: Config, images: int) -> None:
        super().__init__(config, images)
        self.teacher = Teacher(self.encoder, self.head)
        keys = config.queue
        if 0 < images < keys:
            keys = bank_size(keys, images)
            notice(
                f"queue {config.queue} is longer than the {images} images, so that it would hold "
                f"keys of the query's own image as negatives: {keys} are kept"
            )
        self.register_buffer("queue", random_bank(keys, config.head_output))

    def compare(self, views: tuple[Tensor, ...], step: Step) -> Compared:
        """Queries of the first view against keys of the second."""
        feature = self.encoder(views[0])
        query = self.head(feature)
        pairs = query_key(query, self.teacher(views[1]), self.queue, in_batch=False, gather=gather)
        if self.config.mixed is not None and step.epoch >= self.config.mixed_from:
            hardest, two, one = self.config.mixed
            numbers = {"hardest": hardest, "pairs": two, "with_query": one}
            mixed = mixed_negatives(query, self.queue, **numbers, together=True)
            pairs = with_own_negatives(pairs, mixed)
        return [pairs], [feature]

    def remember(self, pairs: list[Pairs], step: Step) -> None:
        """Replace the oldest keys of the queue by those of the batch."""
        (direction,) = pairs
        enqueue(self.queue, direction.candidate[: len(direction.anchor) * world_size()])

    @staticmethod
    def faults(config: Config) -> Iterator[str]:
        """Of the queue and the mixtures."""
        require("queue", config.queue, COUNT)
        mixed = config.mixed
        if mixed is not None and (min(mixed) < 0 or not 1 <= mixed[0] <= config.queue):
            yield (
                f"mixed is (N, s, s'), N from 1 to the queue's {config.queue} and the others at "
                f"least 0; got {mixed}"
            )


class MoCoV3(Networks):
    """Predicted queries against the teacher's keys of the batch (Chen et al. 2021).

    One direction, first to second view; with ``config.symmetric`` both.
    """

    options = ("symmetric", "chunk")
    teacher: Teacher

    def __init__(self, config: Config, images: int) -> None:
        super().__init__(config, images)
        self.predictor = head(config.head_output, config.predictor_hidden, config.head_output)
        self.teacher = Teacher(self.encoder, self.head)

    def compare(self, views: tuple[Tensor, ...], step: Step) -> Compared:
        """Queries against keys, in one direction or both."""
        first, second = views
        directions = [(first, second), (second, first)][: 2 if self.config.symmetric else 1]
        pairs, features = [], []
        for query_view, key_view in directions:
            query, feature = self.encoded(lambda x: self.predictor(self.head(x)), query_view)
            key = self.in_chunks(self.teacher, key_view, self.teacher)
            pairs.append(query_key(query, key, gather=gather))
            features.append(feature)
        return pairs, features
