"""Train a small transformer of diffusers (Flux's: text and picture in one sequence), split over 4 ranks.

    torchrun --nproc-per-node 4 examples/python/flux_step.py
"""
import startrail.diffusers
import torch
import torch.distributed as dist
from diffusers import ContextParallelConfig, FluxTransformer2DModel

dist.init_process_group("gloo")
if torch.accelerator.device_count() == 0:
    torch.accelerator.device_count = lambda: 1  # diffusers divides by it; there is no GPU here
torch.manual_seed(0)
model = FluxTransformer2DModel(
    patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=4,
    joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8], guidance_embeds=False)

startrail.diffusers.install("startrail:2")
model.enable_parallelism(config=ContextParallelConfig(ring_degree=dist.get_world_size()))

optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
side = 16
ids = torch.stack([torch.zeros(side * side), torch.arange(side * side) // side, torch.arange(side * side) % side], 1)
for step in range(10):
    picture = torch.sin(ids[None, :, 1:].repeat(1, 1, 2) / 3)  # what it learns to draw, and noise: the same on all ranks
    noise, time = torch.randn(1, side * side, 4), torch.rand(1)
    out = model(hidden_states=(1 - time) * picture + time * noise, encoder_hidden_states=torch.zeros(1, 8, 32),
                pooled_projections=torch.zeros(1, 32), timestep=time, img_ids=ids, txt_ids=torch.zeros(8, 3),
                return_dict=False)[0]
    loss = (out - (noise - picture)).pow(2).mean()
    loss.backward()
    for parameter in model.parameters():  # each rank has its tokens' share
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step + 1}  loss {loss.item():.4f}")
dist.destroy_process_group()
