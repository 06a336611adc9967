"""A small script of a user's that writes files as scripts do, one way each; it prints what it finds
when it starts."""

import os
import sys
import time
from pathlib import Path

import torch

way, target = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "out"
torch.manual_seed(1)
model = torch.nn.Linear(600, 600)  # its checkpoint has over a mebibyte
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
step = 0
if way == "resume" and Path("checkpoint.pt").exists():
    saved = torch.load("checkpoint.pt")
    model.load_state_dict(saved["model"])
    step = saved["step"]
elif way == "new-folder":
    Path(target).mkdir()
elif way == "lock":
    os.close(os.open("train.lock", os.O_CREAT | os.O_EXCL))
elif way == "cache" and not Path("cache.bin").exists():
    with Path("cache.bin").open("wb") as file:
        for _ in range(10):
            file.write(b"1" * 100)
            time.sleep(0.05)
elif way == "trackers":
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("runs/now")
    Path("wandb").mkdir()
cached = Path("cache.bin").stat().st_size if way == "cache" else 0
print(
    "begins at step",
    step,
    "with",
    sorted(path.name for path in Path().iterdir()),
    cached,
    flush=True,
)
while True:
    optimizer.zero_grad()
    model(torch.ones(8, 600)).square().mean().backward()
    optimizer.step()
    step += 1
    if way == "resume" and step % 4 == 0:
        torch.save({"model": model.state_dict(), "step": step}, "checkpoint.pt")
    elif way == "trackers":
        writer.add_scalar("step", step, step)
    elif way == "late" and step == 10:
        torch.save(model.state_dict(), f"{target}/late.pt")
    elif way == "absolute" and step < 5:
        with Path(target, "log.txt").open("a") as log:
            log.write(f"{step}\n")
