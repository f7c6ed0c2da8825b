"""attention() and what goes with it, as the C++ library has them."""
from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from ._library import ops

GroupLike = dist.ProcessGroup | DeviceMesh | str | None
Piece = tuple[int, int, int]
"""first, count, stride: the tokens first, first + stride, ..."""

GRID, LAYOUT = "auto", "zigzag"  # everywhere the same defaults

_forward = ops.attention_forward.default


@dataclasses.dataclass(frozen=True)
class Mask:
    """Which keys a query sees; as rules, so that empty tiles cost nothing."""

    causal: bool = False
    window: int = 0
    """Only keys nearer than this, itself counted; with causal the last `window` keys."""
    documents: tuple[int, ...] = ()
    """Lengths of packed documents: a query sees keys of its own."""
    prefix: int = 0
    """With causal: the first keys, which every query sees."""
    padding: int = 0
    """The last tokens, which see nothing and are seen by nobody."""


@dataclasses.dataclass(frozen=True)
class AttentionOptions:
    """The same on all ranks of a group.

    >>> AttentionOptions(tokens=131072, mask=Mask(causal=True))
    >>> AttentionOptions(grid="startrail:2", tokens=97, layout="striped")
    >>> AttentionOptions(tokens=72, lengths=(20, 16, 18, 18))      # chunks of these lengths, one after the other
    """

    grid: str = GRID
    """"auto" (the one that sends least), ring, startrail:C, ulysses, usp:U, mesh:A, allgather, or "team=2,stripe=4"."""
    tokens: int = 0
    """Of the whole sequence."""
    key_tokens: int = 0
    """0: as many as tokens."""
    layout: str = LAYOUT
    """Which tokens each rank holds: zigzag (even causal work), contiguous, striped, or "listed" with `pieces`."""
    mask: Mask | None = None
    scale: float = 0.0
    """0: 1 / sqrt(dim)."""
    backward: str = "auto"
    """What rides the rings in the backward pass: keys, queries, or auto, the cheaper."""
    lengths: tuple[int, ...] = ()
    """Tokens of each rank, one after the other: a short form of `listed`."""
    pieces: tuple[tuple[Piece, ...], ...] = ()
    """The pieces of each rank: what layout "listed" means."""
    key_lengths: tuple[int, ...] = ()
    key_pieces: tuple[tuple[Piece, ...], ...] = ()
    kernel: str = "auto"


def layout_arguments(layout: str, lengths: Sequence[int], pieces: Sequence[Sequence[Piece]]) -> tuple[str, list[int]]:
    """A layout as the operators take it."""
    if lengths and (pieces or layout not in (LAYOUT, "listed")):
        raise ValueError(f"lengths= lays tokens out by itself: leave out {'pieces=' if pieces else f'layout={layout!r}'}")
    if lengths:
        return "lengths", list(lengths)
    if pieces and layout == LAYOUT:
        layout = "listed"
    flat: list[int] = []
    for rank in pieces:
        flat.append(len(rank))
        for piece in rank:
            flat.extend(piece)
    return layout, flat


def group_name(group: GroupLike) -> str:
    """Of a process group, a one-dimensional mesh, a name, or None for all ranks."""
    if isinstance(group, str):
        return group
    if group is None:
        group = dist.group.WORLD
        if group is None:
            raise ValueError("there is no process group yet: call torch.distributed.init_process_group first")
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"a mesh of {group.ndim} dimensions: give one of them, such as mesh['cp']")
        group = group.get_group()
    if isinstance(group, int):  # what torch gives ranks that are not in a new group
        raise ValueError("this rank is none of the group's: only those call")
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"a group of type {type(group).__name__}: give a ProcessGroup, a mesh of one dimension, or None")
    return group.group_name


def scale_argument(scale: float | None) -> float:
    """A scale as torch's functions take it, for our options."""
    if scale == 0.0:
        raise ValueError("scale 0.0 is no factor of scores: give a positive number, or None for 1 / sqrt(dim)")
    return scale or 0.0


def process_group(group: GroupLike) -> dist.ProcessGroup:
    found: dist.ProcessGroup = torch._C._distributed_c10d._resolve_process_group(
        group_name(group))  # type: ignore[arg-type]
    return found


def _arguments(options: AttentionOptions) -> tuple[Any, ...]:
    mask = options.mask or Mask()
    layout, pieces = layout_arguments(options.layout, options.lengths, options.pieces)
    _, key_pieces = layout_arguments(options.layout, options.key_lengths, options.key_pieces)
    return (options.grid, layout, options.tokens, options.key_tokens, pieces, key_pieces, mask.causal, mask.window,
            list(mask.documents), mask.prefix, mask.padding, options.scale, options.backward, options.kernel)


def _kept_arguments(options: AttentionOptions) -> tuple[Any, ...]:
    """Made once for each options, since making them takes as long as a small call; compilers see the plain ones."""
    if torch.compiler.is_compiling():
        return _arguments(options)
    kept: tuple[Any, ...] | None = options.__dict__.get("_kept")
    if kept is None:
        kept = _arguments(options)
        object.__setattr__(options, "_kept", kept)
    return kept


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttentionOptions,
              group: GroupLike = None) -> torch.Tensor:
    """Exact attention of this rank's queries to the keys of all ranks; differentiable once.

    q [batch, heads, local tokens, dim], k and v [batch, key heads, local tokens, dim], the tokens that `positions` says;
    float32, bfloat16 or float64. Returns out like q. Every rank of the group makes the same calls in the same order.
    ValueError when something does not fit, on all ranks; ClusterError when one of them is lost.

    >>> mine = startrail.positions(tokens, group)
    >>> out = startrail.attention(q[:, :, mine], k[:, :, mine], v[:, :, mine],
    ...                           AttentionOptions(tokens=tokens, mask=Mask(causal=True)), group)
    """
    out: torch.Tensor = _forward(q, k, v, group_name(group), *_kept_arguments(options))[0]
    return out


def positions(tokens: int, group: GroupLike = None, layout: str = LAYOUT, lengths: Sequence[int] = (),
              pieces: Sequence[Sequence[Piece]] = ()) -> torch.Tensor:
    """The tokens of the sequence that this rank holds, in its order: [local tokens] int64."""
    mine: torch.Tensor = ops.positions(tokens, group_name(group), *layout_arguments(layout, lengths, pieces))
    return mine


def gather(x: torch.Tensor, tokens: int, group: GroupLike = None, layout: str = LAYOUT, dim: int = 1,
           lengths: Sequence[int] = (), pieces: Sequence[Sequence[Piece]] = ()) -> torch.Tensor:
    """The whole sequence, on every rank, from the tokens that each holds along `dim`. For looking at results: it has no
    gradient, since whether ranks' losses are to be summed is not known here.

    >>> logits = startrail.gather(model(**part).logits.detach(), tokens, group)
    """
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("gather has no gradient: give it x.detach(), and compute the loss on the rank's own tokens")
    name, numbers = layout_arguments(layout, lengths, pieces)
    whole: torch.Tensor = ops.gather(x.movedim(dim, 0), group_name(group), tokens, name, numbers)
    return whole.movedim(0, dim)


@dataclasses.dataclass(frozen=True)
class PassCost:
    """What the rank that sends or holds most does in one pass, beside Ring Attention on as many ranks."""

    sent_bytes: int
    ring_sent_bytes: int
    peak_bytes: int
    ring_peak_bytes: int
    kinds: dict[str, int]
    """sent_bytes by kind: p2p, gather, merge, all_to_all."""


@dataclasses.dataclass(frozen=True)
class Plan:
    grid: str
    scheme: str
    ranks: int
    backward: str
    text: str
    passes: dict[str, PassCost]
    """forward, backward_keys and backward_queries."""

    @property
    def sent_bytes(self) -> int:
        """Forward and the backward that is taken."""
        return self.passes["forward"].sent_bytes + self.passes[self.backward].sent_bytes

    def __str__(self) -> str:
        return self.text


def plan(options: AttentionOptions, ranks: int, heads: int, key_heads: int | None = None, dim: int = 64, batch: int = 1,
         dtype: torch.dtype = torch.bfloat16) -> Plan:
    """Rings, steps, bytes and memory of one attention, without running it; as `startrail plan` prints them.

    >>> print(startrail.plan(AttentionOptions("startrail:2", tokens=131072), ranks=16, heads=32, key_heads=8, dim=128))
    """
    key_heads = heads if key_heads is None else key_heads
    found = json.loads(ops.plan(ranks, batch, heads, key_heads, dim, dtype, "", *_arguments(options)))
    passes = {one["pass"]: PassCost(one["volume"]["total"], one["ring_volume"]["total"], one["peak_bytes"],
                                    one["ring_peak_bytes"], {k: v for k, v in one["volume"].items() if k != "total"})
              for one in found["passes"]}
    return Plan(found["grid"], found["scheme"], found["ranks"], found["backward"], found["text"], passes)


def sent_bytes(group: GroupLike = None) -> int:
    """What this rank has sent through StarTrail in this group so far."""
    return sum(ops.sent_bytes(group_name(group)))


def checkpoint_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For torch.utils.checkpoint: everything is recomputed but attention, which is never run twice.

    >>> checkpoint(block, x, use_reentrant=False, context_fn=startrail.checkpoint_contexts)
    >>> model.gradient_checkpointing_enable(dict(use_reentrant=False, context_fn=startrail.checkpoint_contexts))
    """
    def policy(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        keep = op is ops.attention_forward.default
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    make: Callable[..., Any] = functools.partial(create_selective_checkpoint_contexts, policy)
    first, second = make()
    return first, second
