"""A Hugging Face model as a workload: GPT-2 of any size with random weights, on random tokens.

``pip install transformers``.
"""

import torch
from pydantic import BaseModel, ConfigDict, Field
from transformers import GPT2Config, GPT2LMHeadModel

from workloads.base import Workload


class Options(BaseModel):
    """What a plan may set under ``workload_options``."""

    model_config = ConfigDict(extra="forbid")

    layers: int = Field(default=2, ge=1)
    heads: int = Field(default=2, ge=1)
    width: int = Field(default=64, ge=1)
    vocabulary: int = Field(default=256, ge=2)
    sequence_length: int = Field(default=64, ge=2)
    learning_rate: float = Field(default=5e-4, gt=0)
    warmup_steps: int = Field(default=100, ge=1)


class CausalLM(Workload):
    """Learns the next token; each batch is a dictionary, as a tokenizer gives it.

    The learning rate warms up step by step.
    """

    Options = Options
    options: Options
    sample_unit = "tokens"

    def build_model(self):
        options = self.options
        config = GPT2Config(
            n_layer=options.layers,
            n_head=options.heads,
            n_embd=options.width,
            vocab_size=options.vocabulary,
            n_positions=options.sequence_length,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
        return GPT2LMHeadModel(config)

    def build_optimizer(self, model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.options.learning_rate)
        warmup_steps = self.options.warmup_steps
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / warmup_steps)
        )
        return optimizer

    def after_step(self, step, *, model, optimizer):
        self.schedule.step()

    def batches(self, *, rank, world_size, device):
        generator = torch.Generator().manual_seed(self.seed * world_size + rank)
        shape = (self.local_batch_size, self.options.sequence_length)
        while True:
            tokens = torch.randint(self.options.vocabulary, shape, generator=generator).to(device)
            yield {"input_ids": tokens, "labels": tokens}

    def compute_loss(self, model, batch):
        return model(**batch).loss

    def count_samples(self, batch):
        return batch["input_ids"].numel()
