"""ResNet-50 (torchvision) with SGD, in 60 % of what a plan can change.

pip install torchvision
python resnet50.py
"""

import scrimp.torch
import torch
import torchvision

torch.manual_seed(0)
model = torchvision.models.resnet50(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images, labels = torch.randn(4, 3, 128, 128), torch.randint(0, 10, (4,))

step = scrimp.torch.fit(model, torch.nn.CrossEntropyLoss(), (images, labels), budget="60%", progress=print)
print(step.explain())
for _ in range(5):
    loss = step(images, labels)
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")
step.report("resnet50.html")
