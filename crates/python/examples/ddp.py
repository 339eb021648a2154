"""Data parallel training in two processes on this machine.

torchrun --nproc-per-node 2 ddp.py
"""

import scrimp.torch
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1))]
model = nn.Sequential(*layers, nn.Linear(256, 10))
torch.manual_seed(dist.get_rank())
x, y = torch.randn(512, 256), torch.randint(0, 10, (512,))

wrapped = scrimp.torch.wrap(model, x, budget="60%")
parallel = nn.parallel.DistributedDataParallel(wrapped)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
for _ in range(5):
    loss = nn.functional.cross_entropy(parallel(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}, {wrapped.plan}")
dist.destroy_process_group()
