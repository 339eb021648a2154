"""A Llama with grouped-query attention (random weights) and transformers' Trainer, in 60 % of the memory.

pip install transformers accelerate
python with_trainer.py
"""

import scrimp.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=256,
)
model = LlamaForCausalLM(config)
texts = [{"input_ids": words, "labels": words} for words in torch.randint(0, 256, (160, 64))]

trainer = Trainer(
    model=scrimp.torch.wrap(model, budget="60%"),
    args=TrainingArguments(
        output_dir="out",
        max_steps=20,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
    ),
    train_dataset=texts,
    eval_dataset=texts[:8],
)
trainer.train()
print(trainer.evaluate())
print(model.generate(texts[0]["input_ids"][None, :4], max_new_tokens=8))
print(model.scrimp.explain())
