"""Ranks that refuse, differ, die or fall silent. Each returns what its call raised: the type's names, the text, and how
long it took."""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import startrail as st

TOKENS = 97


def call(tokens=TOKENS, grid="startrail:2", backward=False, **change):
    mine = st.positions(tokens)
    q = torch.ones(1, 4, len(mine), 16, requires_grad=backward)
    out = st.attention(q, q, q, st.AttentionOptions(grid, tokens, mask=st.Mask(causal=True), **change))
    if backward:
        out.sum().backward()
    return out


def raised(body):
    start = time.monotonic()
    try:
        body()
    except Exception as error:  # noqa: BLE001
        return {"types": [base.__name__ for base in type(error).__mro__], "text": str(error).split("\n")[0],
                "seconds": time.monotonic() - start, "is_cluster_error": isinstance(error, st.ClusterError)}
    return None


def refusals():
    """One rank only: an error on all of them, and then they go on."""
    rank, found = dist.get_rank(), []
    q = torch.ones(1, 4, len(st.positions(TOKENS)), 16)
    options = lambda **change: st.AttentionOptions(**{**dict(grid="ring", tokens=TOKENS), **change})
    found.append(raised(lambda: st.attention(q, q, q, options(grid="startrail:3" if rank == 2 else "ring"))))
    found.append(raised(lambda: st.attention(q, q, q, options(scale=0.5 if rank == 1 else 0.25))))
    found.append(raised(lambda: st.attention(q, q, q, options(layout="spiral"))))
    narrow = q[..., :8] if rank == 3 else q
    found.append(raised(lambda: st.attention(narrow, narrow, narrow, options())))
    # What one rank's own tensors are, and what all of them forgot to cut.
    found.append(raised(lambda: st.attention(q, q[..., :8] if rank == 1 else q, q, options(scale=0.1))))
    found.append(raised(lambda: st.attention(q[0] if rank == 2 else q, q, q, options(scale=0.2))))
    found.append(raised(lambda: st.attention(q, q.int() if rank == 0 else q, q, options(scale=0.3))))
    whole = torch.ones(1, 4, TOKENS, 16)
    found.append(raised(lambda: st.attention(whole, whole, whole, options(scale=0.4))))
    mine = torch.ones(len(st.positions(TOKENS)) - (rank == 3), 2)
    found.append(raised(lambda: st.gather(mine, TOKENS, dim=0)))
    # Rows of its own on each rank, as a sampler for data parallelism gives them; and a batch that one rank cannot cut.
    ids = torch.arange(TOKENS)[None]
    found.append(raised(lambda: st.shard(dict(input_ids=ids + (rank == 1)))))
    found.append(raised(lambda: st.shard(dict(input_ids=ids, attention_mask=(ids != 5) | (rank != 3)))))
    found.append(raised(lambda: st.shard(dict(input_ids=ids), grid="ring" if rank == 2 else "auto")))

    def parallel():
        with st.context_parallel(None, buffers=[ids + (rank == 3)], buffer_seq_dims=[1]):
            pass

    found.append(raised(parallel))
    call()  # all is well again
    return found


def wrong_length_of_a_known_call():
    """What one rank alone can refuse, in a call that all know."""
    call()
    dist.barrier()
    mine = len(st.positions(TOKENS)) + (dist.get_rank() == 2)
    q = torch.ones(1, 4, mine, 16)
    return raised(lambda: st.attention(q, q, q, st.AttentionOptions("startrail:2", TOKENS, mask=st.Mask(causal=True))))


def known_against_new():
    call()
    dist.barrier()
    return raised(lambda: call(grid="ring") if dist.get_rank() == 2 else call())


def known_against_known():
    call()
    call(grid="ring")
    dist.barrier()
    return raised(lambda: call(grid="ring") if dist.get_rank() == 2 else call())


def one_call_less():
    """A rank that goes its own way, as with a loss that it alone skips."""
    call()
    dist.barrier()
    return raised(lambda: time.sleep(20) if dist.get_rank() == 1 else call())


def ends_early():
    """A rank whose program ends, as by an error in its own code."""
    call()
    dist.barrier()
    return None if dist.get_rank() == 1 else raised(call)


def dies(number, backward=True):
    """Rank 2 ends in the middle of many calls."""
    call(backward=backward)
    if dist.get_rank() == 2:
        for _ in range(20):
            call(backward=backward)
        os.kill(os.getpid(), getattr(signal, number))
    def many():
        for _ in range(100000):
            call(backward=backward)
    found = raised(many)
    again = raised(call)
    return found, again


def collectives_at_the_end():
    """Whose tensors Gloo's threads may hold when the program ends, as its group is still referred to."""
    global kept
    kept = dist.group.WORLD
    call()
    for _ in range(50):
        for work in [dist.all_to_all_single(torch.empty(8), torch.ones(8), async_op=True) for _ in range(4)]:
            work.wait()


def forks():
    """A child that ends as programs do; the status it gave."""
    call()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    for _ in range(100):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        status = -1
    call()  # all is well with its parent
    return status


def computes_long():
    """Three ranks wait for one that computes for longer than the timeout."""
    tokens = 20000
    lengths = (tokens - 3, 1, 1, 1)
    q = torch.randn(1, 8, lengths[dist.get_rank()], 64)
    start = time.monotonic()
    out = st.attention(q, q, q, st.AttentionOptions("ring", tokens, lengths=lengths))
    assert out.isfinite().all()
    return time.monotonic() - start
