"""Exact attention over sequences that are split over ranks, on the process groups you have.

    import startrail, startrail.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="startrail", use_cache=False)
    loss = model(**startrail.shard(batch, mesh["cp"])).loss

Names are those of the C++ library, which does the work; docs/python.md says the rest.
"""
from ._attention import (
                         AttentionOptions,
                         Mask,
                         PassCost,
                         Plan,
                         attention,
                         checkpoint_contexts,
                         gather,
                         plan,
                         positions,
                         sent_bytes,
)
from ._batch import Sequence, context_parallel, shard
from ._library import ClusterError
from ._library import version as __version__
from ._runs import Run, load_run

__all__ = ["AttentionOptions", "ClusterError", "Mask", "PassCost", "Plan", "Run", "Sequence", "__version__", "attention",
           "checkpoint_contexts", "context_parallel", "gather", "load_run", "plan", "positions", "sent_bytes", "shard"]
