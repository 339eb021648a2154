"""GPT-2 (transformers, random weights) with dropout, as an ordinary module in an ordinary loop.

pip install transformers
python gpt2.py
"""

import scrimp.torch
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=2048, use_cache=False)
model = GPT2LMHeadModel(config)
words = torch.randint(0, 2048, (4, 256))

wrapped = scrimp.torch.wrap(model, {"input_ids": words}, budget="50%")
print(wrapped.explain())
optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
for _ in range(5):
    logits = wrapped(input_ids=words).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")
