"""A ResNet trained by Lightning on the two views of lightly's SimCLR transform.

Needs torchvision, lightly and pytorch-lightning beside the suite: pip install lightly torchvision.
"""

from shared.experiment.compat import make_torchvision_importable

make_torchvision_importable()  # a CUDA build of torchvision beside a CPU build of torch

import torch
from lightly.transforms import SimCLRTransform
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData
from torchvision.models import resnet18

from shared import Objective, hard_nce, term


class Contrastive(LightningModule):
    """An encoder with its head, trained on two views of each image."""

    def __init__(self):
        super().__init__()
        self.encoder = resnet18()
        self.encoder.fc = torch.nn.Identity()
        self.head = torch.nn.Sequential(
            torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128)
        )
        self.criterion = Objective(term(hard_nce, temperature=0.5, tau_plus=0.1, beta=1.0)).build(
            dim=128
        )

    def training_step(self, batch, index):
        """The loss of a batch: two views (B, 3, S, S), and labels, which are not used."""
        (first, second), _ = batch
        first, second = self.head(self.encoder(first)), self.head(self.encoder(second))
        loss = self.criterion.of_views(first, second, step=self.global_step)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        """SGD of all that is trained, what the criterion has included."""
        return torch.optim.SGD(self.parameters(), lr=0.06, momentum=0.9)


if __name__ == "__main__":
    images = FakeData(64, (3, 32, 32), transform=SimCLRTransform(input_size=32))  # yours
    # Whole batches only: the loss compares with the others of a batch.
    loader = DataLoader(images, batch_size=32, shuffle=True, drop_last=True)
    model = Contrastive()
    trainer = Trainer(max_epochs=1, logger=False, enable_checkpointing=False)
    trainer.fit(model, loader)
    print(f"loss {trainer.callback_metrics['loss']:.3f}")
