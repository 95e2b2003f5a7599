"""SimCLR: both views through one network (Chen et al. 2020)."""

from torch import Tensor

from shared.distributed import gather
from shared.pairs import paired_views
from vision.methods.base import Compared, Networks, Step


class SimCLR(Networks):
    """The views pass separately, so that a batch norm sees one at a time."""

    options = ("pairs", "chunk")

    def compare(self, views: tuple[Tensor, ...], step: Step) -> Compared:
        """Both views, as ``config.pairs`` says."""
        both = [self.encoded(self.head, view) for view in views]
        (x, z), features = ([outputs[item] for outputs in both] for item in (0, 1))
        return [paired_views(x, z, self.config.pairs, gather=gather)], features
