"""What each grid sends and holds for one attention, without running it.

    python examples/python/compare_grids.py
"""
import torch

import startrail

tokens, ranks = 131072, 16
print(f"{tokens} tokens on {ranks} ranks, 32 heads (8 key/value) of 128, bfloat16, causal; forward and backward")
for grid in ("ring", "startrail:2", "startrail:4", "mesh:4", "usp:8", "ulysses", "auto"):
    options = startrail.AttentionOptions(grid=grid, tokens=tokens, mask=startrail.Mask(causal=True))
    plan = startrail.plan(options, ranks=ranks, heads=32, key_heads=8, dim=128, dtype=torch.bfloat16)
    forward, backward = plan.passes["forward"], plan.passes[plan.backward]
    ring = forward.ring_sent_bytes + backward.ring_sent_bytes
    print(f"  {grid:12} sends {plan.sent_bytes / 1e6:7.1f} MB a rank, {plan.sent_bytes / ring:.2f} of ring's; "
          f"holds {max(forward.peak_bytes, backward.peak_bytes) / 1e6:6.1f} MB" +
          (f"   ({plan.grid})" if grid == "auto" else ""))
