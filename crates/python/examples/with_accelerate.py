"""peft's LoRA on a Llama (random weights) in a loop with Accelerate, in 80 % of the memory.

pip install transformers accelerate peft
python with_accelerate.py
"""

from typing import Any

import scrimp.torch
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=64, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4, vocab_size=256
)
lora = LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
model = get_peft_model(LlamaForCausalLM(config), lora)
texts: Any = [{"input_ids": words, "labels": words} for words in torch.randint(0, 256, (80, 64))]

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
planned, optimizer, loader = accelerator.prepare(
    scrimp.torch.wrap(model, budget="80%"), optimizer, DataLoader(texts, batch_size=4, shuffle=True)
)
for batch in loader:
    with accelerator.accumulate(planned):
        loss = planned(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")
print(model.scrimp.explain())
