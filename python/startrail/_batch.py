"""A batch cut into this rank's tokens, and torch's context_parallel with StarTrail under it."""
from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

from ._attention import (
    GRID,
    LAYOUT,
    AttentionOptions,
    GroupLike,
    Mask,
    Piece,
    attention,
    gather,
    group_name,
    layout_arguments,
    positions,
    process_group,
    scale_argument,
)
from ._library import ops

_IGNORED = -100  # what models of transformers leave out of their losses


@dataclasses.dataclass(frozen=True)
class Sequence:
    """How a batch was cut, carried with it to every attention layer, which adds its own causal, window and scale."""

    tokens: int
    group: str
    grid: str = GRID
    layout: str = LAYOUT
    lengths: tuple[int, ...] = ()
    pieces: tuple[tuple[Piece, ...], ...] = ()
    documents: tuple[int, ...] = ()
    prefix: int = 0
    backward: str = "auto"

    def options(self, causal: bool, window: int = 0, scale: float | None = None) -> AttentionOptions:
        """For a layer. The same object for the same layer's arguments, so that what is kept with it stays."""
        if torch.compiler.is_compiling():
            return self._options(causal, window, scale)
        kept: dict[Any, AttentionOptions] = self.__dict__.setdefault("_kept", {})
        key = (causal, window, scale)
        if key not in kept:
            kept[key] = self._options(causal, window, scale)
        return kept[key]

    def _options(self, causal: bool, window: int, scale: float | None) -> AttentionOptions:
        mask = Mask(causal, window, self.documents, self.prefix)
        return AttentionOptions(grid=self.grid, tokens=self.tokens, layout=self.layout, mask=mask, backward=self.backward,
                                scale=scale_argument(scale), lengths=self.lengths, pieces=self.pieces)

    def positions(self) -> torch.Tensor:
        """The tokens this rank holds."""
        return positions(self.tokens, self.group, self.layout, self.lengths, self.pieces)

    def gather(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """`startrail.gather` for a tensor of this rank's tokens along `dim`, such as the model's logits."""
        return gather(x, self.tokens, self.group, self.layout, dim, self.lengths, self.pieces)


def _pack(batch: Mapping[str, Any], mask: torch.Tensor) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Padded rows as one row of documents."""
    keep = mask.bool()
    rows, tokens = keep.shape
    packed = {key: value[keep].unsqueeze(0) if torch.is_tensor(value) and value.shape[:2] == (rows, tokens) else value
              for key, value in batch.items() if key != "attention_mask"}
    return packed, tuple(int(n) for n in keep.sum(1).tolist() if n > 0)


def _documents(batch: Mapping[str, Any], tokens: int) -> tuple[int, ...]:
    """Where the positions start again, as collators without padding write it: the documents of one row."""
    places = batch.get("position_ids")
    if places is None:
        return ()
    if places.dim() != 2 or places.shape[1] != tokens:
        raise ValueError(f"position_ids {list(places.shape)} do not fit: give [batch, {tokens}]")
    starts = (places[:, 1:] != places[:, :-1] + 1).nonzero()
    if not len(starts):
        return ()
    if places.shape[0] > 1 or bool(places[0, starts[:, 1] + 1].any()):
        raise ValueError("position_ids jump: where documents are packed give one row whose positions start again at 0, or "
                         "documents=")
    ends = [0, *(starts[:, 1] + 1).tolist(), tokens]
    return tuple(end - start for start, end in zip(ends, ends[1:]))


def _check_padding(mask: torch.Tensor) -> None:
    """A row is tokens with padding before or after them."""
    changes = mask.bool()[:, 1:] != mask.bool()[:, :-1]
    inner = mask.bool()[:, 0] & mask.bool()[:, -1] & changes.any(1)
    if bool((changes.sum(1) > 2).any() | inner.any()):
        raise ValueError("attention_mask hides tokens in the middle of a row: only padding before or after can be left out")


def shard(batch: Mapping[str, Any], group: GroupLike = None, *, grid: str = GRID, layout: str = LAYOUT,
          lengths: tuple[int, ...] = (), pieces: tuple[tuple[Piece, ...], ...] = (), documents: tuple[int, ...] = (),
          prefix: int = 0, backward: str = "auto", ignore_index: int = -100,
          data_group: dist.ProcessGroup | DeviceMesh | None = None) -> dict[str, Any]:
    """This rank's part of a batch that all ranks of `group` hold whole, ready for a model of transformers.

    Every tensor [batch, tokens, ...] is cut. Positions are those of the whole sequence, or of its document. Labels are
    shifted before they are cut, and valid ones counted over the whole batch, and over `data_group`, the ranks that hold
    other sequences; so the loss of a rank is its share of the sum, and gradients are to be summed over all ranks (where
    DDP or FSDP average them, multiply the loss by their number). Padding in `attention_mask` is left out: padded rows
    become one row of documents. The part's labels are its `shift_labels`; `labels` is empty, so that a model which
    shifts for itself fails.

    >>> loss = ddp(**startrail.shard(batch, mesh["cp"], data_group=mesh["dp"])).loss * world
    """
    name = group_name(group)
    with _refused_by_all(name):
        how = Sequence(0, name, grid, layout, tuple(lengths), pieces, tuple(documents), prefix, backward)
        sequence, cut, count = _cut(batch, how, ignore_index)
    _agree(sequence, [value for value in batch.values() if torch.is_tensor(value)])
    if count is not None:
        if data_group is not None:
            dist.all_reduce(count, group=process_group(data_group))
        cut["num_items_in_batch"] = count
    return cut


if not TYPE_CHECKING:
    shard = torch.compiler.disable(shard)  # it compares what ranks hold, which a tracer has not


@contextlib.contextmanager
def _refused_by_all(group: str) -> Iterator[None]:
    """What one rank refuses, all refuse, instead of waiting for it."""
    try:
        yield
    except Exception as error:
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(*(() if isinstance(error, ValueError) else (ValueError,))):
            ops.agree_on_batch([], "", said, group)
        raise


def _agree(sequence: Sequence, tensors: list[torch.Tensor]) -> None:
    """ValueError on all ranks when they were not given the same; a warning, once, when only batches were cut so far."""
    values = {field.name: getattr(sequence, field.name) for field in dataclasses.fields(sequence) if field.name != "group"}
    how = ", ".join(f"{name} {value}" for name, value in values.items() if value)
    if ops.agree_on_batch(tensors, how, "", sequence.group):
        warnings.warn("startrail has cut several batches and no attention of StarTrail ran on them, so each rank attends "
                      'to its own tokens only: a model for shard needs attn_implementation="startrail", one inside '
                      "context_parallel calls torch.nn.functional.scaled_dot_product_attention by that name", stacklevel=4)


def _cut(batch: Mapping[str, Any], how: Sequence, ignore_index: int
         ) -> tuple[Sequence, dict[str, Any], torch.Tensor | None]:
    """`how` with the batch's tokens and documents, this rank's part, and how many labels count in all. Sends nothing."""
    documents = how.documents
    first = batch.get("input_ids", batch.get("inputs_embeds"))
    if first is None:
        raise ValueError("the batch has neither input_ids nor inputs_embeds: shard cannot tell its length")
    for key in ("input_ids", "inputs_embeds", "attention_mask", "position_ids", "labels", "shift_labels"):
        if batch.get(key) is not None and not torch.is_tensor(batch[key]):
            raise ValueError(f"{key} is a {type(batch[key]).__name__}: give tensors [batch, tokens, ...]")
    mask = batch.get("attention_mask")
    if mask is not None and mask.dim() != 2:
        raise ValueError(f"attention_mask {list(mask.shape)} is no mask of tokens: give [batch, tokens], or documents=, "
                         "prefix=, and causal and windows by the model's config")
    if mask is not None and not bool(mask.all()):
        if documents:
            raise ValueError("attention_mask has padding and documents= says where documents are: give one of them")
        if batch.get("position_ids") is not None:
            raise ValueError("attention_mask has padding and position_ids are given: leave them out, they follow")
        _check_padding(mask)
        batch, documents = _pack(batch, mask)
        first = batch.get("input_ids", batch.get("inputs_embeds"))
        assert first is not None
    if first.dim() < 2:
        raise ValueError(f"input_ids {list(first.shape)} are no batch: give [batch, tokens]")
    tokens = int(first.shape[1])
    if documents and batch.get("position_ids") is not None:
        raise ValueError("documents= and position_ids both say where documents start: give one of them")
    documents = documents or _documents(batch, tokens)
    if documents and sum(documents) != tokens:
        raise ValueError(f"documents of {'+'.join(map(str, documents))} tokens do not add up to {tokens}")
    sequence = dataclasses.replace(how, tokens=tokens, documents=tuple(documents))
    _check_all_hold_some(sequence)
    mine = sequence.positions().to(first.device)
    cut: dict[str, Any] = {}
    for key, value in batch.items():
        if not torch.is_tensor(value):
            cut[key] = value
        elif value.dim() >= 2 and value.shape[1] == tokens:
            cut[key] = value.index_select(1, mine)
        else:
            raise ValueError(f"{key} {list(value.shape)} has no second dimension of {tokens} tokens to cut: leave it out")
    if cut.get("position_ids") is None:
        where = torch.cat([torch.arange(n, device=first.device) for n in (documents or (tokens,))])
        cut["position_ids"] = where.index_select(0, mine).expand(first.shape[0], -1)
    # Without it transformers takes the jump between a zigzag's two pieces for the start of another document.
    cut["attention_mask"] = torch.ones(first.shape[0], mine.numel(), dtype=torch.bool, device=first.device)
    cut["startrail"] = sequence
    shifted = _shifted(batch, documents or (tokens,), ignore_index)
    if shifted is None:
        return sequence, cut, None
    shifted = shifted.masked_fill(shifted == ignore_index, _IGNORED)
    cut["shift_labels"] = shifted.index_select(1, mine)
    # Models compute a loss when labels are there at all. One that reads these, to shift them inside the part or as the
    # tokens' own classes, would be silently wrong: it stops, as none fit its logits.
    cut["labels"] = shifted.new_empty(shifted.shape[0], 0)
    return sequence, cut, shifted.ne(_IGNORED).sum()


def _check_all_hold_some(sequence: Sequence) -> None:
    """Layers of transformers take no empty sequences; attention alone does."""
    layout = layout_arguments(sequence.layout, sequence.lengths, sequence.pieces)
    held = ops.chunks(sequence.tokens, sequence.group, *layout)
    if 0 in held:
        raise ValueError(f"rank {held.index(0)} of {len(held)} would hold none of {sequence.tokens} tokens, and layers "
                         "beside attention cannot take none: give longer sequences, or fewer ranks")


def _shifted(batch: Mapping[str, Any], documents: tuple[int, ...], ignore_index: int) -> torch.Tensor | None:
    """Each token's label is the next one's; the last of a document has none."""
    if batch.get("shift_labels") is not None or batch.get("labels") is None:
        return batch.get("shift_labels")
    shifted: torch.Tensor = F.pad(batch["labels"], (0, 1), value=ignore_index)[:, 1:].clone()
    shifted[:, torch.tensor(documents).cumsum(0) - 1] = ignore_index
    return shifted


def count_labels(batch: Mapping[str, Any], documents: tuple[int, ...] = (), ignore_index: int = -100) -> torch.Tensor:
    """The labels of a whole batch that count in its loss."""
    mask = batch.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        batch, documents = _pack(batch, mask)
    labels = batch.get("labels", batch.get("shift_labels"))
    if labels is None:
        raise ValueError("the batch has no labels")
    tokens = int(labels.shape[1])
    shifted = _shifted(batch, documents or _documents(batch, tokens) or (tokens,), ignore_index)
    assert shifted is not None
    return shifted.ne(ignore_index).sum()


def _length(buffers: list[torch.Tensor], dims: list[int], keep: set[torch.Tensor]) -> int:
    """Of the sequence that context_parallel is to cut."""
    if not buffers or len(buffers) != len(dims):
        raise ValueError(f"{len(buffers)} buffers and {len(dims)} buffer_seq_dims: give at least one, and as many of both")
    for one, dim in zip(buffers, dims):
        if not -one.dim() <= dim < one.dim():
            raise ValueError(f"a buffer {list(one.shape)} has no dimension {dim}: give that of the sequence")
        if one.requires_grad:
            raise ValueError("a buffer that requires a gradient is cut in place, which autograd cannot follow: take the "
                             "tokens of startrail.positions from it instead")
    tokens = buffers[0].shape[dims[0]]
    if any(one.shape[dim] != tokens for one, dim in zip(buffers, dims)):
        raise ValueError("the buffers' sequences differ in length: give buffers of one sequence")
    if len({id(one) for one in buffers}) != len(buffers):
        raise ValueError("a buffer is given twice, and would be cut twice: give each once")
    if any(all(one is not other for one in buffers) for other in keep):
        raise ValueError("no_restore_buffers has a tensor that is not among buffers: give only those")
    return tokens


@contextlib.contextmanager
def context_parallel(mesh: GroupLike, *, buffers: list[torch.Tensor] | None = None,
                     buffer_seq_dims: list[int] | None = None,
                     no_restore_buffers: set[torch.Tensor] | None = None, grid: str = GRID, layout: str = LAYOUT,
                     documents: tuple[int, ...] = ()) -> Iterator[Sequence]:
    """torch.distributed.tensor.experimental.context_parallel, call for call: cuts the buffers in place along their
    sequence, and lets scaled_dot_product_attention attend to the whole of it. The backward pass belongs inside. Ranks may
    hold different numbers of tokens: sum the loss over a rank's own and divide by all, as means of ranks do not add up.

    >>> with startrail.context_parallel(mesh["cp"], buffers=[x, y], buffer_seq_dims=[1, 1], no_restore_buffers={x, y}):
    ...     loss = F.mse_loss(model(x), y, reduction="sum") / count_of_the_whole; loss.backward()
    """
    buffers, dims, keep = buffers or [], buffer_seq_dims or [], no_restore_buffers or set()
    name = group_name(mesh)
    with _refused_by_all(name):
        sequence = Sequence(_length(buffers, dims, keep), name, grid, layout, documents=tuple(documents))
    _agree(sequence, buffers)
    mine = sequence.positions()
    whole = [None if any(one is other for other in keep) else one.detach().clone() for one in buffers]
    for one, dim in zip(buffers, dims):
        part = one.detach().index_select(dim, mine.to(one.device))
        one.data = part
    true_attention = F.scaled_dot_product_attention

    def split_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                        attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
                        scale: float | None = None, enable_gqa: bool = False) -> torch.Tensor:
        if attn_mask is not None or dropout_p:
            raise ValueError("inside context_parallel attention takes no mask as a tensor and no dropout: use is_causal, "
                             "and documents= of context_parallel")
        if query.shape[2] != len(mine) or key.shape[2] != len(mine):
            raise ValueError(f"{query.shape[2]} queries and {key.shape[2]} keys, but this rank holds {len(mine)} tokens of "
                             "the sequence that context_parallel has cut")
        return attention(query, key, value, sequence.options(is_causal, 0, scale), sequence.group)

    true_heads = F.multi_head_attention_forward

    def split_heads(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("need_weights", True):
            raise ValueError("MultiheadAttention computes the weights it is to give back by itself, each rank those of its "
                             "own tokens: give need_weights=False")
        return true_heads(*args, **kwargs)

    # torch's fused encoder layers attend without scaled_dot_product_attention, each rank to its own tokens.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    F.scaled_dot_product_attention = split_attention
    F.multi_head_attention_forward = split_heads
    try:
        yield sequence
    finally:
        F.scaled_dot_product_attention = true_attention
        F.multi_head_attention_forward = true_heads
        torch.backends.mha.set_fastpath_enabled(fused)
        for one, before in zip(buffers, whole):
            if before is not None:
                one.data = before
