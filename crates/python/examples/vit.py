"""A vision transformer (timm) with dropout, clipping and a schedule, in half of what a plan can change.

pip install timm
python vit.py
"""

import scrimp.torch
import timm
import torch

torch.manual_seed(0)
model = timm.create_model("vit_tiny_patch16_224", num_classes=10, drop_rate=0.1, proj_drop_rate=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
images, labels = torch.randn(8, 3, 224, 224), torch.randint(0, 10, (8,))

step = scrimp.torch.fit(model, torch.nn.CrossEntropyLoss(), (images, labels), budget="50%")
print(step.plan)
for _ in range(5):
    loss = step(images, labels)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    print(f"loss {loss.item():.4f}")
