"""Makes pages without the program: data by the page's contract (plans, traces, runs, hostile ones too) and the page itself,
joined from cli/page/ as the program does it.

usage: sample_pages.py FOLDER   writes one page of each kind there, to look at
"""
import base64
import hashlib
import itertools
import json
import math
import random
import struct
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sample_plans import Data, make_plan

SOURCES = Path(__file__).resolve().parent.parent.parent / "cli" / "page"


# ---- the page


def parts() -> tuple[str, str, str]:
    """The frame, the style and the scripts joined in the order of their names."""
    scripts = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.js"))]
    read = lambda name: (SOURCES / name).read_text(encoding="utf-8")
    return read("page.html"), read("style.css"), "".join(scripts)


def make_page(data: Data, frame: str = "", style: str = "", script: str = "", more: str = "") -> str:
    """A page as `startrail show` writes it. A test may give a part of its own; `more` is markup put at the end."""
    own_frame, own_style, own_script = parts()
    frame, style, script = frame or own_frame, style or own_style, script or own_script
    for word in ("{{POLICY}}", "/*STYLE*/", "/*DATA*/", "/*SCRIPT*/"):
        assert frame.count(word) == 1, f"the frame must have {word} once"
    assert "</script" not in script and "<!--" not in script and "</style" not in style
    hash_of = lambda text: "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
    policy = f"default-src 'none'; script-src {hash_of(script)}; style-src {hash_of(style)}; img-src data:"
    # As JSON '<' can only be inside a text: written \u003c, nothing in the data closes the script element.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    for word, value in (("{{POLICY}}", policy), ("/*STYLE*/", style), ("/*SCRIPT*/", script), ("/*DATA*/", text)):
        before, _, after = frame.partition(word)
        frame = before + value + after
    return frame.replace("</body>", more + "</body>") if more else frame


def page_data(title: str = "StarTrail: a sample", plans: Sequence[Data] = (), traces: Sequence[Data] = (),
              runs: Sequence[Data] = ()) -> Data:
    return {"format": 1, "title": title, "plans": list(plans), "traces": list(traces), "runs": list(runs)}


# ---- traces


class Tracer:
    """Plays a plan with made-up speeds and writes what each rank does: a trace by the contract."""

    NAMES = ["step 1", "forward", "backward", "attend", "exchange", "gather", "merge", "all_to_all", "delta", "wait",
             "turn", "p2p"]

    def __init__(self, plan: Data, name: str, source: str, turns: bool):
        self.plan, self.turns, self.chance = plan, turns, random.Random(7)
        ranks = plan["ranks"]
        self.now = [0.0] * ranks
        self.arrived: dict[tuple[int, int, int], float] = {}
        self.out: Data = {
            "name": name, "source": source, "note": "Speeds are made up.", "version": "0.1.0", "ranks": ranks,
            "about": {"grid": plan["grid"], "tokens": plan["problem"]["tokens"], "threads": 2, "comm": "local"},
            "shortened": None, "wait_share": None, "names": list(self.NAMES), "blocks": [],
            "spans": [[] for _ in range(ranks)], "messages": [], "t_us": [0, 0]}

    def span(self, rank: int, start: float, length: float, name: str, category: int, depth: int, *more: int) -> None:
        self.out["spans"][rank].append([round(start, 3), round(length, 3), self.NAMES.index(name), category, depth, *more])

    def block(self, text: str) -> int:
        if text not in self.out["blocks"]:
            self.out["blocks"].append(text)
        return self.out["blocks"].index(text)

    def run(self, pass_names: tuple[str, ...]) -> Data:
        for name in pass_names:
            self.play(next(one for one in self.plan["passes"] if one["pass"] == name))
        ends, waits = self.now, 0.0
        for rank, rows in enumerate(self.out["spans"]):
            rows.append([0, round(ends[rank], 3), 0, 0, 0])
            rows.sort(key=lambda row: (row[0], -row[1], row[4]))
            waits += sum(row[1] for row in rows if row[3] == 4)
        self.out["wait_share"] = round(waits / sum(ends), 4)
        self.out["t_us"] = [0, round(max(ends), 3)]
        return self.out

    def play(self, one: Data) -> None:
        sizes = {(m[1], m[0], m[2]): m for m in one["messages"]}
        begin, at = list(self.now), [0] * self.plan["ranks"]
        # For each rank: which messages (from, to, number) bring a block.
        need: list[dict[int, list[tuple[int, int, int]]]] = [{} for _ in at]
        sent: dict[tuple[int, int], int] = {}
        asked: dict[tuple[int, int], int] = {}
        rows: dict[tuple[int, int, int], list[Any]] = {}
        number = lambda box, pair: (*pair, box.setdefault(pair, 0), box.__setitem__(pair, box[pair] + 1))[:3]

        def post(rank: int, to: int) -> None:
            _, _, _, kind, size = sizes.get((rank, at[rank], to), [0, 0, 0, "p2p", 0])
            key = number(sent, (rank, to))
            there = self.now[rank] + 20 + size / 2500 * self.chance.uniform(.8, 1.4)
            times = [round(at, 3) for at in (self.now[rank], self.now[to], there)]
            row = rows[key] = [rank, to, self.NAMES.index(kind), size, *times, None, -1]
            self.out["messages"].append(row)

        def wait(rank: int, block: int, depth: int) -> bool:
            keys = need[rank].get(block, [])
            if any(key not in rows for key in keys):
                return False
            there = max((rows[key][6] for key in keys), default=0.0)
            if there > self.now[rank]:
                peer = (-1, -1, -1, -1, keys[0][0], rows[keys[0]][3])
                self.span(rank, self.now[rank], there - self.now[rank], "wait", 4, depth, *peer)
                self.now[rank] = there
            for key in need[rank].pop(block, []):
                rows[key][7] = round(self.now[rank], 3)
            return True

        def take(rank: int) -> bool:
            step = one["ranks"][rank][at[rank]]
            op, start = step[0], self.now[rank]
            reads = [block for block in (step[1:3] if op in ("attend", "delta") else step[1:2])]
            if any(key not in rows for block in reads for key in need[rank].get(block, [])):
                return False
            for block in reads:
                wait(rank, block, 3)
            if op == "attend":
                visible, tokens = self.plan["visible"], self.plan["tokens_of"]
                pairs = sum((visible[q][k] or 0) * tokens[q] * tokens[k]
                            for q in one["blocks"][step[1]][1] for k in one["blocks"][step[2]][1])
                if self.turns and self.chance.random() < .6:
                    turn = self.chance.uniform(20, 300)
                    self.span(rank, self.now[rank], turn, "turn", 5, 3)
                    self.now[rank] += turn
                self.now[rank] += 5 + pairs / 60 * (1 if one["pass"] == "forward" else 2.4)
            elif op == "exchange":
                post(rank, step[3])
                need[rank].setdefault(step[2], []).append(number(asked, (step[4], rank)))
                self.now[rank] += 8
            elif op != "delta":
                for peer, _ in step[3]:
                    if peer != rank:
                        post(rank, peer)
                        need[rank].setdefault(step[2], []).append(number(asked, (peer, rank)))
                self.now[rank] += 12
            words = " x ".join(" ".join([one["blocks"][b][0], ",".join(map(str, one["blocks"][b][1]))]) for b in reads)
            pass_name = 1 if one["pass"] == "forward" else 2
            category = 2 if op in ("attend", "delta") else 3
            self.span(rank, start, self.now[rank] - start, op, category, 2, pass_name, 0, at[rank], self.block(words))
            at[rank] += 1
            return True

        busy = True
        while busy:
            busy = any([take(r) for r in range(len(at)) if at[r] < len(one["ranks"][r])])  # all of them, so a list
        for rank in range(len(at)):
            for block in list(need[rank]):
                wait(rank, block, 2)
            name = "forward" if one["pass"] == "forward" else "backward"
            self.span(rank, begin[rank], self.now[rank] - begin[rank], name, 1, 1)


def make_trace(plan: Data, name: str, source: str = "predicted", turns: bool = False) -> Data:
    return Tracer(plan, name, source, turns).run(("forward", plan["backward"]))


def large_trace(ranks: int = 64, spans: int = 60000) -> Data:
    """Steps of attends that hold waits, with exchanges between them, and a message for each exchange."""
    each, chance = spans // ranks, random.Random(3)
    out: Data = {"name": f"large, {ranks} ranks", "source": "measured", "note": "", "version": "0.1.0", "ranks": ranks,
                 "about": {}, "shortened": "step 3 of 3 only, the file has 41 MB", "wait_share": None, "blocks": [],
                 "messages": [], "names": ["step 1", "forward", "attend", "exchange", "wait", "p2p"], "spans": []}
    for rank in range(ranks):
        rows, now = [], 0.0
        while len(rows) < each - 2:
            attend, wait = chance.uniform(60, 300), chance.uniform(0, 80)
            rows.append([round(now, 3), 6.5, 3, 3, 2, 1, 0, len(rows)])
            out["messages"].append([rank, (rank + 1) % ranks, 5, 1 << 20, round(now, 3), round(now, 3), round(now + 90, 3),
                                    round(now + 100, 3), -1])
            rows.append([round(now + 7, 3), round(wait + attend, 3), 2, 2, 2, 1, 0, len(rows)])
            rows.append([round(now + 7, 3), round(wait, 3), 4, 4, 3, -1, -1, -1, -1, (rank - 1) % ranks, 1 << 20])
            now += 7 + wait + attend
        out["spans"].append([[0, round(now, 3), 0, 0, 0], [0, round(now, 3), 1, 1, 1], *rows])
    out["t_us"] = [0, max(rows[0][1] for rows in out["spans"])]
    return out


# ---- runs


def make_png(side: int) -> bytes:
    """A small coloured square."""
    rows = b"".join(b"\0" + b"".join(bytes([x * 32 % 256, y * 32 % 256, 128]) for x in range(side)) for y in range(side))
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def make_run(name: str, steps: int = 480, seed: int = 1, **more: Any) -> Data:
    chance, run = random.Random(seed), {}
    step = list(range(1, steps + 1))
    bend = lambda s: 2.1 + 3.4 * math.exp(-s / (steps / 6)) + chance.gauss(0, .08)
    run["loss"] = [round(bend(s) + (3 if s == 17 else 0), 5) for s in step]  # a spike that must survive thinning
    run["tokens_per_second"] = [round(8000 + 600 * math.sin(s / 30) + chance.gauss(0, 250), 1) for s in step]
    run["wait_share"] = [round(min(1, max(0, .28 + chance.gauss(0, .03))), 4) for _ in step]
    run["peak_bytes"] = [12400000 + (300000 if s > steps / 5 else 0) for s in step]
    run["learning_rate"] = [3e-3 * min(1, s / 20) * (.1 + .45 * (1 + math.cos(math.pi * s / steps))) for s in step]
    run["gradient_norm"] = [round(abs(chance.gauss(.9, .2)) + (30 if s == 17 else 0), 4) for s in step]
    run["seconds"] = [round(2048 / v, 5) for v in run["tokens_per_second"]]
    run["elapsed"] = [round(t * 1.02, 4) for t in itertools.accumulate(run["seconds"])]
    run["tokens"] = [2048 * s for s in step]
    every = max(1, steps // 6)
    config = [["parallel.grid", "startrail:2"], ["parallel.ranks", "8"], ["data.tokens", "2048"]]
    valid = lambda s: [s, round(2.2 + 3.2 * math.exp(-s / (steps / 6)), 5), run["elapsed"][s - 1]]
    return {"name": name, "folder": "runs/" + name, "version": "0.1.0", "loss_unit": "nats a token", "kind": "gpt",
            "config": config, "estimated_bytes": 12100000, "step": step, **run,
            "validation": [valid(s) for s in step[every - 1::every]], "samples": [], **more}


PIXEL = "data:image/png;base64," + base64.b64encode(make_png(8)).decode()
HOSTILE = "</script><script>alert(1)</script><!-- '\"&<b>bold</b>\u2028\\ \u0000 {{POLICY}} /*DATA*/ /*SCRIPT*/"


# ---- pages to look at and to check


def plain() -> Data:
    plan, ring = (make_plan("startrail:2", team=2, ring=4, stripe=2, per_node=4), make_plan("ring", ring=16, per_node=4))
    words = "e onk std:: o ()\nnord std::m iges;\n                      for"
    samples = [{"step": 240, "prompt": "#include <", "text": "roames lad"}, {"step": 480, "prompt": "#inc", "text": words},
               {"step": 480, "image": PIXEL, "caption": "a picture of 8 x 8"}]
    runs = [make_run("quickstart", samples=samples), make_run("ring", steps=300, seed=2, estimated_bytes=10900000)]
    traces = [make_trace(plan, "startrail:2, 16 ranks", turns=True), make_trace(ring, "ring, 16 ranks", turns=True)]
    return page_data(plans=[plan, ring], traces=traces, runs=runs)


def hostile() -> Data:
    """Names and texts that try to leave their place, numbers that are not there, pictures from elsewhere."""
    plan = make_plan(HOSTILE, team=2, ring=2)
    plan["problem"]["mask"] = HOSTILE
    trace = make_trace(plan, HOSTILE, "measured", turns=True)
    trace["names"] = [name + HOSTILE for name in trace["names"]]
    trace.update(note=HOSTILE, shortened=HOSTILE, about={HOSTILE: HOSTILE}, wait_share=.9)
    for i, message in enumerate(trace["messages"]):  # times that are not known
        message[4], message[6] = message[4] if i % 3 else None, message[6] if i % 3 == 2 else None
    pictures = [PIXEL, "https://example.com/x.png", "data:image/svg+xml;base64,PHN2Zy8+", "javascript:alert(1)"]
    run = make_run(HOSTILE, steps=50, loss_unit=HOSTILE, kind=HOSTILE, config=[[HOSTILE, HOSTILE]], estimated_bytes=None,
                   samples=[{"step": i, "image": one, "caption": HOSTILE} for i, one in enumerate(pictures)]
                   + [{"step": 9, "prompt": HOSTILE, "text": HOSTILE}])
    for name in ("loss", "peak_bytes", "gradient_norm"):
        run[name][10:20] = [None] * 10
    run["learning_rate"], run["elapsed"] = [None] * 50, [None] * 50
    run["validation"][1][1] = None
    return page_data(HOSTILE, [plan], [trace], [run])


def smallest() -> Data:
    """One rank, one step, empty lists."""
    plan = make_plan("ring", tokens=1)
    empty = {"name": "empty", "source": "measured", "note": "", "version": "0.1.0", "ranks": 1, "about": {},
             "shortened": None, "wait_share": None, "names": [], "blocks": [], "spans": [[]], "messages": [],
             "t_us": [0, 0]}
    none = make_run("none", steps=1)
    none.update({name: [] for name in ("step", "loss", "tokens_per_second", "wait_share", "peak_bytes", "learning_rate",
                                       "gradient_norm", "seconds", "elapsed", "tokens", "validation", "config")})
    return page_data("one rank", [plan], [make_trace(plan, "one rank"), empty], [make_run("one step", steps=1), none])


def uneven() -> Data:
    """Chunks of different sizes and empty ones, heads, masks, and grids without a ring; four plans to choose from."""
    shape = {"tokens": 21, "model_heads": 8, "kv_heads": 2, "dim": 16, "documents": [9, 1, 11], "checked": False}
    return page_data("uneven", [
        make_plan("", heads=2, team=2, ring=2, stripe=2, **shape), make_plan("usp:4", heads=4, ring=4, **shape),
        make_plan("mesh:4", team=4, stripe=4, **shape), make_plan("allgather", stripe=16, **shape)])


def large() -> Data:
    plans = [make_plan("startrail:4", team=4, ring=4, stripe=4, per_node=8), make_plan("ring", ring=64, per_node=8)]
    return page_data("large", plans, [large_trace()], [make_run(f"run {i}", 5000, i) for i in range(3)])


def ulysses() -> Data:
    return page_data("ulysses", [make_plan("ulysses", heads=8), make_plan("startrail:2", team=2, ring=2, stripe=2)])


PAGES = {"plain": plain, "hostile": hostile, "smallest": smallest, "uneven": uneven, "large": large, "ulysses": ulysses,
         "nothing": page_data}

if __name__ == "__main__":
    for page, make in ((name, PAGES[name]) for name in sys.argv[2:] or PAGES):
        path = Path(sys.argv[1]) / (page + ".html")
        path.write_text(make_page(make()), encoding="utf-8")
        print(path, path.stat().st_size, "bytes")
