"""A plain PyTorch loop: DistributedDataParallel over 2 data ranks x sequences split over 2 context ranks.

    torchrun --nproc-per-node 4 examples/python/ddp_loop.py
"""
import startrail.transformers
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

import startrail

dist.init_process_group("gloo")
world = dist.get_world_size()
mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "cp"))
data_group = mesh["dp"]

torch.manual_seed(0)  # the same weights everywhere
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=4, attn_implementation="startrail", use_cache=False))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
draw = torch.Generator().manual_seed(data_group.get_local_rank())  # each data rank has its own sequences

for step in range(10):
    start = torch.randint(0, 200, (1, 1), generator=draw)
    ids = (start + torch.arange(1001)) % 256
    part = startrail.shard(dict(input_ids=ids, labels=ids), mesh["cp"], data_group=data_group)  # the two lines: this,
    loss = ddp(**part).loss * world                                           # and the factor, as DDP averages
    loss.backward()
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    shown = loss.detach() / world
    dist.all_reduce(shown)
    if dist.get_rank() == 0:
        print(f"step {step + 1}  loss {shown.item():.4f}")
dist.destroy_process_group()
