"""Fine-tune a small Llama with transformers' Trainer, each sequence split over 4 ranks.

    torchrun --nproc-per-node 4 examples/python/finetune_llama.py
"""
import tempfile

import startrail.transformers
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments


class Bytes(torch.utils.data.Dataset):
    """This file, byte by byte, in sequences of 512."""

    text = torch.frombuffer(bytearray(open(__file__, "rb").read() * 8), dtype=torch.uint8).long()

    def __len__(self):
        return len(self.text) // 512

    def __getitem__(self, i):
        ids = self.text[512 * i:512 * (i + 1)]
        return dict(input_ids=ids, labels=ids)


dist.init_process_group("gloo")
torch.manual_seed(0)
# Yours: AutoModelForCausalLM.from_pretrained(folder, attn_implementation="startrail", use_cache=False)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=4, attn_implementation="startrail", use_cache=False))
arguments = TrainingArguments(
    tempfile.mkdtemp(), per_device_train_batch_size=1, max_steps=20, learning_rate=3e-3, logging_steps=5, use_cpu=True,
    report_to=[], save_strategy="no", disable_tqdm=True)
trainer = startrail.transformers.Trainer(model=model, args=arguments, train_dataset=Bytes())
losses = trainer.train().metrics
if dist.get_rank() == 0:
    print(f"mean loss of 20 steps {losses['train_loss']:.3f}; this rank sent "
          f"{startrail.sent_bytes() / 1e6:.1f} MB for attention")
dist.destroy_process_group()
