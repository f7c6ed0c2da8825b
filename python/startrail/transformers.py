"""StarTrail under transformers: importing this registers `attn_implementation="startrail"`.

    import startrail, startrail.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="startrail", use_cache=False)
    loss = model(**startrail.shard(batch, mesh["cp"])).loss

What would be silently wrong on a part of a sequence is refused by name.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from ._attention import GRID, LAYOUT, attention, checkpoint_contexts, process_group
from ._batch import Sequence, count_labels, shard

# Trainer's methods that are replaced below: where one had another name, its own would run and weigh labels wrongly.
_REPLACED = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader", "prediction_step", "get_cp_size",
             "_get_num_items_in_batch", "_prepare_inputs", "_track_num_input_tokens", "_get_collator_with_removed_columns")
if not transformers.__version__.startswith("5.") or not all(hasattr(transformers.Trainer, name) for name in _REPLACED):
    raise ImportError(f"startrail.transformers is written for transformers 5.22, and {transformers.__version__} differs; "
                      "pip install 'transformers==5.22.*'")

MODELS = {"llama", "qwen2", "qwen3", "mistral"}
"""Models that were compared with one process. Others may mix tokens outside of attention, where nothing can see it:
recurrent layers, losses that balance experts, pooling over the last token."""

allow_any_model = False
"""Set it to True to run a model that is not in MODELS, at your own risk."""

# What reaches an attention function and changes its result; all else (position_ids, use_cache, ...) does not.
_CHANGES = ("softcap", "s_aux", "position_bias", "head_mask", "cu_seq_lens_q", "cu_seq_lens_k", "output_attentions")


def _check_config(config: Any, who: str) -> None:
    kind = getattr(config, "model_type", None)
    if kind not in MODELS and not allow_any_model:
        raise ValueError(f"{who}: models of type {kind} were not compared with one process; compared: "
                         f"{', '.join(sorted(MODELS))}; startrail.transformers.allow_any_model = True runs it all the same")
    rope = getattr(config, "rope_parameters", None) or {}
    for one in rope.values() if rope and all(isinstance(value, dict) for value in rope.values()) else [rope]:
        if one.get("rope_type") in ("dynamic", "longrope"):
            raise ValueError(f"{who}: rope {one['rope_type']} takes the length from a rank's own positions, so ranks would "
                             "differ; use linear, llama3 or yarn")


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None,
                      is_causal: bool | None = None, sliding_window: int | None = None,
                      startrail: Sequence | None = None, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """What transformers calls for each attention layer."""
    who = type(module).__name__
    if startrail is None:
        raise ValueError(f"{who}: no sequence came along. Give the model startrail.shard(batch, ...); to generate, or for "
                         "whole sequences, model.set_attn_implementation('sdpa')")
    _check_config(getattr(module, "config", None), who)
    if attention_mask is not None:
        raise ValueError(f"{who}: a mask as a tensor; StarTrail takes masks by rule (causal, window, documents, prefix)")
    if dropout:
        raise ValueError(f"{who}: attention dropout {dropout}; set config.attention_dropout = 0")
    for name in _CHANGES:
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise ValueError(f"{who}: {name} is not computed by StarTrail")
    if key.shape[2] != query.shape[2]:
        raise ValueError(f"{who}: {query.shape[2]} queries on {key.shape[2]} keys, by a cache or cross attention; set "
                         "use_cache=False")
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    window = sliding_window or 0
    if window and not causal:
        window += 1  # transformers' two-sided window holds both ends
    out = attention(query, key, value, startrail.options(causal, window, scaling), startrail.group)
    return out.transpose(1, 2), None


def attention_mask(*_args: Any, mask_function: Any = causal_mask_function,
                   attention_mask: torch.Tensor | None = None, local_size: int | None = None, config: Any = None,
                   **_kwargs: Any) -> None:
    """Makes no mask; refuses those that a layer's own arguments do not say."""
    if attention_mask is not None and not torch.compiler.is_compiling() and not bool(attention_mask.all()):
        raise ValueError("attention_mask has padding: give the model startrail.shard(batch, ...), which packs it")
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise ValueError(f"layers of kind {', '.join(sorted(kinds))} mix tokens in a way that StarTrail does not split")
    if local_size is None and mask_function not in (causal_mask_function, bidirectional_mask_function):
        raise ValueError("the model lays more over its causal mask, such as packed positions or blocks of images: give "
                         "documents= to startrail.shard")


AttentionInterface.register("startrail", attention_forward)
AttentionMaskInterface.register("startrail", attention_mask)


class _Batches(BatchSampler):
    """Trainer tells it the epoch; also where it skips batches, since accelerate wraps these and not the loader then."""

    def set_epoch(self, epoch: int) -> None:
        if isinstance(self.sampler, DistributedSampler):
            self.sampler.set_epoch(epoch)


class _Loader(DataLoader):  # type: ignore[type-arg]
    def set_epoch(self, epoch: int) -> None:
        if isinstance(self.batch_sampler, _Batches):
            self.batch_sampler.set_epoch(epoch)


class Trainer(transformers.Trainer):
    """transformers' Trainer with every sequence split over ranks: losses and gradient norms are those of one process.

    `mesh` has the dimensions "dp" and "cp", or "cp" alone; without it all ranks share each sequence. Batches are per dp
    rank. The model needs attn_implementation="startrail" and use_cache=False.

    >>> startrail.transformers.Trainer(model=model, args=args, train_dataset=data, mesh=mesh).train()
    """

    def __init__(self, *args: Any, mesh: DeviceMesh | None = None, grid: str = GRID, layout: str = LAYOUT,
                 **kwargs: Any) -> None:
        if not dist.is_initialized():
            raise ValueError("there is no process group yet: start with torchrun, and call "
                             "torch.distributed.init_process_group before making the Trainer")
        names = mesh.mesh_dim_names or () if mesh is not None else ()
        if mesh is not None and ("cp" not in names or not set(names) <= {"dp", "cp"}):
            raise ValueError(f"a mesh with dimensions {', '.join(names) or 'without names'}: name them dp and cp, or cp")
        self._context = process_group(mesh["cp"] if mesh is not None else None)
        self._data = process_group(mesh["dp"]) if mesh is not None and "dp" in names else None
        self._grid, self._layout = grid, layout
        super().__init__(*args, **kwargs)
        model: Any = self.model
        if model.config._attn_implementation != "startrail":
            raise ValueError(f"the model attends with {model.config._attn_implementation}, each rank to its own tokens "
                             'only: load it with attn_implementation="startrail"')
        if not type(model).__name__.endswith("ForCausalLM"):
            raise ValueError(f"{type(model).__name__} is no model of the next token: its loss needs whole sequences")
        if self.args.parallelism_config is not None:
            raise ValueError("parallelism_config would split sequences a second time: leave it out")
        if self.label_smoother is not None or self.compute_metrics is not None or self.compute_loss_func is not None:
            raise ValueError("label smoothing, compute_metrics and compute_loss_func need whole sequences: leave them out")
        checkpointing: Any = self.args.gradient_checkpointing_kwargs or {}
        contexts = checkpointing.get("context_fn")
        if self.args.torch_compile and self.args.gradient_checkpointing and contexts is not checkpoint_contexts:
            raise ValueError("torch_compile with gradient_checkpointing needs gradient_checkpointing_kwargs="
                             "dict(use_reentrant=False, context_fn=startrail.checkpoint_contexts)")
        if self.args.neftune_noise_alpha is not None:
            raise ValueError("neftune_noise_alpha scales its noise by the length of a rank's own part: leave it out")
        if not self.args.average_tokens_across_devices:
            raise ValueError("average_tokens_across_devices=False would weigh ranks' tokens differently: leave it True")

    def _place(self) -> tuple[int, int]:
        """How many ranks hold different rows, and which of them this is."""
        return (self._data.size(), self._data.rank()) if self._data is not None else (1, 0)

    def _loader(self, dataset: Dataset[Any], batch: int, shuffle: bool) -> DataLoader[Any]:
        if isinstance(dataset, IterableDataset):
            raise ValueError("a dataset without a length cannot be given out to ranks by index: give one with __len__ and "
                             "__getitem__")
        replicas, rank = self._place()
        seed = self.args.data_seed if self.args.data_seed is not None else self.args.seed
        sampler: DistributedSampler[Any] = DistributedSampler(dataset, replicas, rank, shuffle=shuffle, seed=seed)
        return _Loader(dataset, batch_sampler=_Batches(sampler, batch, self.args.dataloader_drop_last),
                       collate_fn=self._get_collator_with_removed_columns(self.data_collator),
                       num_workers=self.args.dataloader_num_workers,
                       persistent_workers=self.args.dataloader_persistent_workers,
                       prefetch_factor=self.args.dataloader_prefetch_factor)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Every rank of a context group gets the same batches and takes its tokens of them."""
        if self.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset")
        strategy = getattr(self.args, "train_sampling_strategy", "random")
        if strategy not in ("random", "sequential"):
            raise ValueError(f"train_sampling_strategy {strategy} is not supported; valid: random, sequential")
        return self._loader(self.train_dataset, self.args.per_device_train_batch_size, strategy == "random")

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        dataset: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]  # type: ignore[index]
        if dataset is None or isinstance(dataset, dict):
            raise ValueError("Trainer: evaluation requires an eval_dataset; several are evaluated one by one")
        loader = self._loader(dataset, self.args.per_device_eval_batch_size, False)
        # The sampler gives data ranks equally many rows: the first again where their number does not divide.
        replicas, rank = self._place()
        self._rows_left = (len(dataset) - rank + replicas - 1) // replicas
        return loader

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        return self.get_eval_dataloader(test_dataset)

    def get_cp_size(self) -> int:
        """So that Trainer counts each row once."""
        return self._context.size()

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        before = self.state.num_input_tokens_seen
        super()._track_num_input_tokens(inputs)  # type: ignore[no-untyped-call]
        self.state.num_input_tokens_seen = before + (self.state.num_input_tokens_seen - before) // self._context.size()

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor:
        """Trainer would count each label once for each rank."""
        count = sum((count_labels(one) for one in batch_samples), torch.zeros((), dtype=torch.int64)).to(device)
        if self._data is not None:
            dist.all_reduce(count, group=self._data)
        return count

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        part: dict[str, Any] = shard(super()._prepare_inputs(inputs), self._context, grid=self._grid, layout=self._layout)
        part.pop("num_items_in_batch", None)  # Trainer brings that of all batches of a step
        return part

    def prediction_step(self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool,
                        ignore_keys: list[str] | None = None) -> tuple[torch.Tensor | None, None, None]:
        """The loss of a whole batch, on every rank; it counts once for each of its rows."""
        held = len(next(value for value in inputs.values() if torch.is_tensor(value)))
        rows = min(held, self._rows_left)
        self._rows_left -= rows
        if 0 < rows < held:
            inputs = {key: value[:rows] if torch.is_tensor(value) else value for key, value in inputs.items()}
        count = count_labels(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = model(**self._prepare_inputs(inputs), num_items_in_batch=count).loss.detach()
        dist.all_reduce(loss, group=self._context)

        def gathered(_losses: torch.Tensor) -> torch.Tensor:  # of as many as a full batch has rows
            if self._data is None:
                return torch.cat([loss[None]] * rows)
            mine = torch.tensor([loss.item(), rows], dtype=torch.float64)
            everyone = [torch.empty_like(mine) for _ in range(self._data.size())]
            dist.all_gather(everyone, mine, group=self._data)
            return torch.cat([one[0].repeat(int(one[1])) for one in everyone])

        self.gather_function = gathered  # evaluation asks for it right after this
        return loss, None, None
