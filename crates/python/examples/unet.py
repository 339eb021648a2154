"""A U-Net through torch.compile, and how much faster or leaner each budget is.

python unet.py
"""

import time

import scrimp
import scrimp.torch
import torch
import torch.nn.functional as F
from torch import nn


class UNet(nn.Module):
    """Two levels down and up, with skips."""

    def __init__(self, width: int = 16) -> None:
        """Make the layers."""
        super().__init__()
        self.a = nn.Conv2d(3, width, 3, padding=1)
        self.b = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.c = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.d = nn.Conv2d(6 * width, 2 * width, 3, padding=1)
        self.e = nn.Conv2d(3 * width, width, 3, padding=1)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        a = F.silu(self.a(x))
        b = F.silu(self.b(F.max_pool2d(a, 2)))
        c = F.silu(self.c(F.max_pool2d(b, 2)))
        d = F.silu(self.d(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1)))
        return self.out(F.silu(self.e(torch.cat([F.interpolate(d, scale_factor=2.0), a], 1))))


torch.manual_seed(0)
model = UNet()
images, target = torch.randn(4, 3, 128, 128), torch.randint(0, 2, (4, 128, 128))
for budget in ("100%", "70%", "min"):
    torch._dynamo.reset()
    backend = scrimp.torch.backend(budget)
    compiled = torch.compile(model, backend=backend, dynamic=False)
    for _ in range(2):
        start = time.perf_counter()
        F.cross_entropy(compiled(images), target).backward()
        seconds = time.perf_counter() - start
    print(f"{budget:>5}: {backend.plans[0]}, measured {seconds * 1e3:.0f} ms per step")
