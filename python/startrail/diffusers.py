"""StarTrail under diffusers' context parallelism.

    startrail.diffusers.install("startrail:2")
    model.enable_parallelism(config=ContextParallelConfig(ring_degree=world))

From then on attention of a model that is context parallel, of whatever degree, is StarTrail's on that many ranks. As with
diffusers' own, each rank's gradients are its share: sum them over the ranks.
"""
from __future__ import annotations

from typing import Any

import diffusers
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

from ._attention import GRID, AttentionOptions, attention, process_group, scale_argument
from ._library import ops

if not diffusers.__version__.startswith("0.42."):  # what is replaced here is no interface of theirs
    raise ImportError(f"startrail.diffusers is written for diffusers 0.42, but {diffusers.__version__} is installed; "
                      "pip install 'diffusers==0.42.*'")

_NAME = AttentionBackendName.NATIVE


def uninstall() -> None:
    """diffusers' own attention again."""
    current = _AttentionBackendRegistry._backends[_NAME]
    _AttentionBackendRegistry._backends[_NAME] = getattr(current, "startrail_native", current)


def install(grid: str = GRID) -> None:
    """Takes the place of the backend `native` wherever a model is context parallel: the names of backends are a closed
    list in diffusers, so there is no place of our own."""
    uninstall()
    native = _AttentionBackendRegistry._backends[_NAME]

    def split_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                        attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
                        scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False,
                        _parallel_config: Any = None) -> Any:
        if _parallel_config is None:  # not parallel, or cross attention to tokens that every rank holds
            return native(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, return_lse)
        refused = {"a mask": attn_mask is not None, "dropout": bool(dropout_p), "a causal mask": is_causal,
                   "return_lse": return_lse}
        for what, asked in refused.items():
            if asked:
                raise ValueError(f"StarTrail under diffusers does not compute {what}; startrail.diffusers.uninstall() "
                                 "gives diffusers' own attention back")
        group = process_group(_parallel_config.context_parallel_config._flattened_mesh)
        # The order of tokens means nothing here, so text beside picture is exact. Ranks may hold different numbers: those
        # of text and picture are cut apart.
        lengths = ops.local_lengths(query.shape[1], key.shape[1], group.group_name)
        tokens, keys = lengths[:group.size()], lengths[group.size():]
        options = AttentionOptions(grid, tokens=sum(tokens), key_tokens=sum(keys) if keys != tokens else 0,
                                   lengths=tuple(tokens), key_lengths=tuple(keys) if keys != tokens else (),
                                   scale=scale_argument(scale))
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        return attention(q, k, v, options, group).transpose(1, 2)

    split_attention.startrail_native = native  # type: ignore[attr-defined]
    constraints = _AttentionBackendRegistry._constraints[_NAME]
    _AttentionBackendRegistry.register(_NAME, constraints, supports_context_parallel=True)(split_attention)
