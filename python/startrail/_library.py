"""Loads the operator library, which is built for one minor version of torch."""
from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import time

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
    """At the end of the program: the other ranks are told that this one ends."""
    if os.getpid() != owner:  # a forked child has none of the threads that are waited for
        return
    ops.forget()
    # Gloo's threads let go of a collective's tensors some time after it is done. One that does so while Python ends
    # aborts the process (pytorch#179291): wait until all of them have come to rest.
    for _ in range(20):
        states = _gloo_states()
        if states:
            time.sleep(0.05)  # without Python's lock, which they may be waiting for
        if "R" not in states:
            break


def _gloo_states() -> list[str]:
    """What the threads of torch's Gloo groups are at, as /proc says it: R computes or would."""
    found = []
    for thread in pathlib.Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            name, rest = thread.read_text().split("(", 1)[1].rsplit(")", 1)
            if name.startswith("pt_gloo"):
                found.append(rest.split()[0])
    return found


atexit.register(_forget)

version: str = ops.version()

# A rank that died, does not answer, or does something else than the others. The operators raise it as torch's own type,
# so that it comes out of a backward pass and of compiled code as well.
ClusterError = torch.distributed.DistBackendError

# Communication is an effect that a schema does not show: compilers keep the order of the calls, the same on all ranks.
from torch._library.effects import EffectType  # noqa: E402

for _name in ("attention_forward", "attention_backward"):
    torch.library._register_effectful_op(f"startrail::{_name}", EffectType.ORDERED)
