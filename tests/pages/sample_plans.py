"""Plans by the page's contract, made from a grid alone as startrail/plan/make.cc makes them: steps, messages and their
bytes, what the mask lets through. Bytes held are near the truth, not it. For pages that are made without the program.
"""
import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Any

AXES = ("heads", "team", "ring", "stripe")
LINES = {"ring": "rings", "team": "teams", "stripe": "stripes", "heads": "head_groups"}
PASSES = ("forward", "backward_keys", "backward_queries")
KINDS = ("p2p", "gather", "merge", "all_to_all")
Data = dict[str, Any]


class Maker:
    """The steps of each rank of a grid in one pass, with blocks as a table; see startrail/plan/make.cc."""

    def __init__(self, axes: dict[str, int], pass_name: str):
        self.axes, self.pass_name = axes, pass_name
        self.ranks = math.prod(axes.values())
        self.blocks: list[list[Any]] = []
        self.index: dict[tuple[Any, ...], int] = {}

    def line(self, rank: int, axis: str) -> list[int]:
        stride = math.prod(self.axes[a] for a in AXES[:AXES.index(axis)])
        place = rank // stride % self.axes[axis]
        return [rank + (i - place) * stride for i in range(self.axes[axis])]

    def lines(self, axis: str) -> list[list[int]]:
        return [self.line(r, axis) for r in range(self.ranks) if self.line(r, axis)[0] == r]

    def gathered(self, rank: int, axis: str) -> list[int]:
        return [owner for member in self.line(rank, axis) for owner in self.line(member, "heads")]

    def block(self, data: str, chunks: list[int], piece: int = -1) -> int:
        key = (data, tuple(chunks), piece)
        if key not in self.index:
            self.index[key] = len(self.blocks)
            self.blocks.append([data, chunks] + ([piece] if piece >= 0 else []))
        return self.index[key]

    def steps(self, rank: int) -> list[list[Any]]:
        forward, steps, own = self.pass_name == "forward", [], self.line(rank, "heads")
        piece = own.index(rank) if self.axes["heads"] > 1 else -1
        members = lambda axis: [[r, [r] if axis == "heads" else self.line(r, "heads")] for r in self.line(rank, axis)]

        def trade(data: str, to_heads: bool) -> None:
            home, mine = self.block(data, [rank]), self.block(data, own, piece)
            if self.axes["heads"] > 1:
                steps.append(["all_to_all", *((home, mine) if to_heads else (mine, home)), members("heads")])

        def share(op: str, data: str, axis: str) -> None:
            mine, all_of = self.block(data, own, piece), self.block(data, self.gathered(rank, axis), piece)
            if self.axes[axis] > 1:
                steps.append([op, *((mine, all_of) if op == "gather" else (all_of, mine)), members(axis)])

        if forward:
            trade("query", True)
            trade("keys", True)
        else:
            trade("out_grad", True)
            steps.append(["delta", *(self.block(data, own, piece) for data in ("out_grad", "saved", "query"))])
        share("gather", "query", "team")
        share("gather", "keys", "stripe")
        self.ride(rank, piece, steps)
        if forward:
            share("merge", "out", "team")
            trade("out", False)
        else:
            share("merge", "query_grad", "team")
            share("merge", "keys_grad", "stripe")
            trade("query_grad", False)
            trade("keys_grad", False)
        return steps

    def ride(self, rank: int, piece: int, steps: list[list[Any]]) -> None:
        keys_ride = self.pass_name != "backward_queries"
        riding, axis, grad = ("keys", "stripe", "keys_grad") if keys_ride else ("query", "team", "query_grad")
        data, along = ("query", "team") if keys_ride else ("keys", "stripe")
        stays = self.block(data, self.gathered(rank, along), piece)
        ring = self.line(rank, "ring")
        size, at = len(ring), ring.index(rank)
        visitor = lambda data, step: self.block(data, self.gathered(ring[(at - step) % size], axis), piece)
        peers = [ring[(at + 1) % size], ring[(at - 1) % size]]
        exchange = lambda data, sent, got: steps.append(["exchange", visitor(data, sent), visitor(data, got), *peers])
        for step in range(size):
            if step + 1 < size:
                exchange(riding, step, step + 1)
            if self.pass_name != "forward" and step >= 2:
                exchange(grad, step - 1, step)
            visits = visitor(riding, step)
            steps.append(["attend", *((stays, visits) if keys_ride else (visits, stays))])
        if self.pass_name != "forward" and size > 1:
            exchange(grad, size - 1, size)


def chunk_positions(tokens: int, ranks: int, layout: str) -> list[list[int]]:
    pieces = [range(tokens * i // (2 * ranks), tokens * (i + 1) // (2 * ranks)) for i in range(2 * ranks)]
    if layout == "zigzag":
        return [[*pieces[r], *pieces[2 * ranks - 1 - r]] for r in range(ranks)]
    return [[*pieces[2 * r], *pieces[2 * r + 1]] for r in range(ranks)]


def visible_shares(positions: list[list[int]], causal: bool, window: int, documents: list[int]) -> list[list[float | None]]:
    """[query chunk][key chunk]: the share of pairs that the mask lets through, none of no pairs."""
    ends = list(itertools.accumulate(documents))

    def band(q: int) -> tuple[int, int]:
        at = bisect.bisect_right(ends, q) if ends else 0
        begin, end = (ends[at - 1] if at else 0, ends[at] if at < len(ends) else 1 << 40) if ends else (0, 1 << 40)
        return max(begin, q - window + 1 if window else 0), min(end, q + 1) if causal else end

    def share(queries: list[int], keys: list[int]) -> float | None:
        seen = sum(bisect.bisect_left(keys, high) - bisect.bisect_left(keys, low) for low, high in map(band, queries))
        return round(seen / (len(queries) * len(keys)), 4) if queries and keys else None

    return [[share(q, k) for k in positions] for q in positions]


class Sizes:
    """Bytes of blocks on the wire; mirrors startrail/plan/volume.cc for 4-byte values and partial results."""

    def __init__(self, tokens_of: list[int], heads: int, kv_heads: int, dim: int, slices: int):
        self.tokens_of, self.dim = tokens_of, dim
        self.query_heads, self.key_heads = heads // slices, max(1, kv_heads // slices)

    def block(self, data: str, chunks: list[int], forward: bool) -> int:
        value = 4 * self.dim
        each = self.key_heads * 2 * value if data.startswith("keys") else self.query_heads * (
            value + 4 if data == "out" else 2 * (value + 4) if data == "query" and not forward else value)
        return each * sum(self.tokens_of[c] for c in chunks)

    def trade(self, data: str, chunk: int) -> int:
        heads = self.key_heads * 2 if data.startswith("keys") else self.query_heads
        return heads * 4 * self.dim * self.tokens_of[chunk]


def messages_of(rank: int, steps: list[list[Any]], blocks: list[list[Any]], sizes: Sizes, forward: bool) -> list[list[Any]]:
    out = []
    for i, step in enumerate(steps):
        if step[0] == "exchange":
            out.append([i, rank, step[3], "p2p", sizes.block(*blocks[step[1]][:2], forward)])
        elif step[0] in ("gather", "merge", "all_to_all"):
            data, chunks = blocks[step[1]][:2]
            for peer, owned in step[3]:
                if peer == rank:
                    continue
                if step[0] == "all_to_all":
                    size = sizes.trade(data, peer if len(blocks[step[1]]) > 2 else rank)
                else:
                    size = sizes.block(data, owned if step[0] == "merge" else chunks, forward)
                out.append([i, rank, peer, step[0], size])
    return [message for message in out if message[4] > 0]


def held_by(steps: list[list[Any]], blocks: list[list[Any]], sizes: Sizes, forward: bool) -> list[int]:
    """Bytes held during each step and at the end: a block from its first step to its last. Near the truth, not it."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, step in enumerate(steps):
        for block in step[1:4] if step[0] == "delta" else step[1:3]:
            first.setdefault(block, i)
            last[block] = i
    size = lambda block: sizes.block(*blocks[block][:2], forward)
    return [sum(size(b) for b in first if first[b] <= i <= last[b]) for i in range(len(steps) + 1)]


def make_pass(axes: dict[str, int], name: str, sizes: Sizes, nodes: list[int] | None) -> Data:
    maker = Maker(axes, name)
    ranks = [maker.steps(r) for r in range(maker.ranks)]
    forward = name == "forward"
    messages = [m for r, steps in enumerate(ranks) for m in messages_of(r, steps, maker.blocks, sizes, forward)]
    by_rank = [dict.fromkeys((*KINDS, "out"), 0) for _ in ranks]
    for _, sender, to, kind, size in messages:
        by_rank[sender][kind] += size
        by_rank[sender]["out"] += size if nodes and nodes[sender] != nodes[to] else 0
    volume = {kind: max(row[kind] for row in by_rank) for kind in KINDS}
    volume["total"] = max(sum(row[kind] for kind in KINDS) for row in by_rank)
    held = [held_by(steps, maker.blocks, sizes, forward) for steps in ranks]
    return {"pass": name, "slices": axes["heads"], "blocks": maker.blocks, "ranks": ranks, "messages": messages,
            "volume": volume, "peak_bytes": max(map(max, held)), "held_bytes": held,
            "leaves_node": max(row["out"] for row in by_rank) if nodes else None}


def make_plan(name: str, heads: int = 1, team: int = 1, ring: int = 1, stripe: int = 1, tokens: int = 4096,
              model_heads: int = 8, kv_heads: int = 0, dim: int = 64, causal: bool = True, window: int = 0,
              documents: Sequence[int] = (),
              layout: str = "zigzag", per_node: int = 0, checked: bool = True) -> Data:
    axes = {"heads": heads, "team": team, "ring": ring, "stripe": stripe}
    maker = Maker(axes, "forward")
    ranks, kv_heads = maker.ranks, kv_heads or model_heads
    positions = chunk_positions(tokens, ranks, layout)
    tokens_of = [len(chunk) for chunk in positions]
    nodes = [r // per_node for r in range(ranks)] if per_node else None
    passes = [make_pass(axes, one, Sizes(tokens_of, model_heads, kv_heads, dim, heads), nodes) for one in PASSES]
    alone = {"heads": 1, "team": 1, "ring": ranks, "stripe": 1}
    rival = [make_pass(alone, one, Sizes(tokens_of, model_heads, kv_heads, dim, 1), nodes) for one in PASSES]
    cheaper = min(rival[1:], key=lambda one: one["volume"]["total"])
    for one in passes:
        other = rival[0] if one["pass"] == "forward" else cheaper
        one["ring_volume"], one["ring_peak_bytes"] = other["volume"], other["peak_bytes"]
    mask = ["causal" if causal else "full", f"window {window}" if window else "",
            "documents " + "+".join(map(str, documents)) if documents else ""]
    grid = ",".join(f"{axis}={size}" for axis, size in axes.items())
    return {
        "format": 1, "kind": "plan", "version": "0.1.0", "name": name or grid, "grid": grid, "ranks": ranks, "axes": axes,
        "order": list(AXES), "lines": {LINES[axis]: maker.lines(axis) for axis in AXES},
        "problem": {"tokens": tokens, "key_tokens": tokens, "batch": 1, "heads": model_heads, "kv_heads": kv_heads,
                    "dim": dim, "dtype": "float32", "partial": "float32", "mask": ", ".join(filter(None, mask)),
                    "layout": layout},
        "tokens_of": tokens_of, "key_tokens_of": tokens_of,
        "visible": visible_shares(positions, causal, window, list(documents)), "nodes": nodes, "checked": checked,
        "backward": min(passes[1:], key=lambda one: one["volume"]["total"])["pass"], "passes": passes,
    }
