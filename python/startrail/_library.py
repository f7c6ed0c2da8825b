"""Loads the operator library, which is built for one minor version of torch."""
from __future__ import annotations

import atexit
import os
import pathlib

import torch
import torch.distributed

TORCH = "2.13"  # c10d, which the library talks to, is in no stable interface of torch

_minor = ".".join(torch.__version__.split(".")[:2])
if _minor != TORCH:
    raise ImportError(f"this StarTrail is built for torch {TORCH}, but torch {torch.__version__} is installed; "
                      f"pip install 'torch=={TORCH}.*', or build StarTrail for your torch")
torch.ops.load_library(  # type: ignore[no-untyped-call]
    pathlib.Path(__file__).parent / "libstartrail_operators.so")
ops = torch.ops.startrail


def _forget(owner: int = os.getpid()) -> None:
    if os.getpid() == owner:  # a forked child has none of the threads that are waited for
        ops.forget()


atexit.register(_forget)  # the other ranks are told that this one ends

version: str = ops.version()

# A rank that died, does not answer, or does something else than the others. The operators raise it as torch's own type,
# so that it comes out of a backward pass and of compiled code as well.
ClusterError = torch.distributed.DistBackendError

# Communication is an effect that a schema does not show: compilers keep the order of the calls, the same on all ranks.
from torch._library.effects import EffectType  # noqa: E402

for _name in ("attention_forward", "attention_backward"):
    torch.library._register_effectful_op(f"startrail::{_name}", EffectType.ORDERED)
