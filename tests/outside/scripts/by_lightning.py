"""The training of ``by_framework`` under Lightning, which starts its ranks itself."""

import lightning
import torch
from by_framework import EPOCHS, RATE, data, given, held_out, model
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model

    def training_step(self, batch, _):
        loss = self.net(**batch)["loss"]
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("held_out", self.net(**batch)["loss"], sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE)


if __name__ == "__main__":  # ddp_spawn's children import it
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=given.strategy,
        max_epochs=EPOCHS,
        accumulate_grad_batches=given.accumulate,
        val_check_interval=given.evaluate_every,
        enable_progress_bar=False,
        log_every_n_steps=5,
    )
    trainer.fit(
        Module(),
        DataLoader(data, batch_size=given.batch),
        DataLoader(held_out, batch_size=given.batch),
    )
