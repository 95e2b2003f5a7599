"""A BERT trained by the Trainer of transformers: two dropout masks of a sentence are its views.

Needs transformers and accelerate beside the suite: pip install "transformers[torch]".
"""

import tempfile

from shared.experiment.compat import make_torchvision_importable

make_torchvision_importable()  # a CUDA build of torchvision beside a CPU build of torch

import torch
from transformers import BertConfig, BertModel, Trainer, TrainingArguments

from shared import Objective, info_nce, term


class Contrastive(torch.nn.Module):
    """An encoder whose every forward pass is a contrastive loss, as in SimCSE."""

    def __init__(self, bert, criterion):
        super().__init__()
        self.bert = bert
        self.criterion = criterion  # a part of the model, so that what it trains is trained

    def forward(self, input_ids, attention_mask):
        """The loss of B sentences of T tokens, (B, T) each, under the name the Trainer reads."""
        batch = {"input_ids": input_ids, "attention_mask": attention_mask}
        # Two passes: dropout makes two vectors of each sentence, those of its first token.
        first, second = (self.bert(**batch).last_hidden_state[:, 0] for _ in range(2))
        return {"loss": self.criterion.of_views(first, second)}


if __name__ == "__main__":
    # Yours: BertModel.from_pretrained(...), and sentences by its tokenizer.
    shape = {"vocab_size": 100, "hidden_size": 32, "num_attention_heads": 4}
    bert = BertModel(BertConfig(**shape, num_hidden_layers=2))
    ids = torch.randint(5, 100, (64, 12))
    sentences = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in ids]
    model = Contrastive(bert, Objective(term(info_nce, temperature=0.05)).build(dim=32))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=32,
            num_train_epochs=1,
            dataloader_drop_last=True,  # the loss compares with the others of a batch
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trained = Trainer(model, arguments, train_dataset=sentences).train()
    print(f"loss {trained.training_loss:.3f}")
