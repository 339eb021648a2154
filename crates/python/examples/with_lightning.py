"""A vision transformer of torchvision (random weights) as a LightningModule, in 60 % of the memory.

pip install lightning torchvision
python with_lightning.py
"""

import lightning
import scrimp.torch
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import VisionTransformer


class Classifier(lightning.LightningModule):  # type: ignore[misc]
    """Knows nothing of plans, except where its network comes from."""

    def __init__(self, network: nn.Module) -> None:
        """Keep the network, planned or not."""
        super().__init__()
        self.network = network

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss."""
        images, labels = batch
        loss = nn.functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """An ordinary one."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


torch.manual_seed(0)
network = VisionTransformer(32, 8, num_layers=4, num_heads=4, hidden_dim=64, mlp_dim=256, dropout=0.1)
data = TensorDataset(torch.randn(80, 3, 32, 32), torch.randint(0, 10, (80,)))

trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    log_every_n_steps=5,
)
trainer.fit(Classifier(scrimp.torch.wrap(network, budget="60%")), DataLoader(data, 8))
print(network.scrimp.explain())
