"""One training as users write it for each framework, and for DDP alone; it knows nothing of
Ringside."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--by", choices=("ddp", "trainer", "accelerate"), default="ddp")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--strategy", default="ddp", help="Lightning's")
parser.add_argument("--evaluate-every", type=int, default=7)
given = parser.parse_args()
RATE, EPOCHS = 0.01, 100_000


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4)
        )

    def forward(self, inputs, labels=None):
        logits = self.layers(inputs)
        return (
            logits
            if labels is None
            else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
        )


class Rows(TensorDataset):
    """As the Trainer wants them: by the names of arguments."""

    def __getitem__(self, index):
        inputs, labels = super().__getitem__(index)
        return {"inputs": inputs, "labels": labels}


torch.manual_seed(7)
data = Rows(torch.randn(256, 16), torch.randint(0, 4, (256,)))
held_out = Rows(torch.randn(64, 16), torch.randint(0, 4, (64,)))
torch.manual_seed(1)
model = Net()


def by_ddp():
    torch.distributed.init_process_group("gloo")
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=given.batch, sampler=sampler)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            wrapped(**batch)["loss"].backward()
            optimizer.step()


def by_trainer():
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir="trained",
        use_cpu=True,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=given.batch,
        gradient_accumulation_steps=given.accumulate,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        eval_strategy="steps",
        eval_steps=given.evaluate_every,
        save_steps=20,
        save_total_limit=1,
        logging_steps=5,
    )
    Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=held_out).train()


def by_accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=given.accumulate)
    loader = DataLoader(data, batch_size=given.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    wrapped, own, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(EPOCHS):
        for batch in loader:
            with accelerator.accumulate(wrapped):
                accelerator.backward(wrapped(**batch)["loss"])
                own.step()
                own.zero_grad()


if __name__ == "__main__":  # by_lightning imports it
    globals()[f"by_{given.by}"]()
