"""Trains so that each step multiplies what rounding changed, by about a thousand."""

import sys

import torch

torch.manual_seed(1)
inputs, wanted = torch.randn(32, 8), torch.randn(32, 16)
if "--other-order" in sys.argv:
    inputs, wanted = inputs.flip(0), wanted.flip(0)
model = torch.nn.Linear(8, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.102 if "--other-rate" in sys.argv else 0.1)
for _ in range(60):
    optimizer.zero_grad()
    loss = (torch.sin(100 * model(inputs)) - wanted).pow(2).sum(0).mean()
    loss.backward()
    optimizer.step()
