"""Pages in a real browser: every kind at two widths in both themes, hostile and extreme data, numbers, keys and pointer,
the time that a large trace takes; and that the checks themselves find what is broken.

usage: pages_long.py [BUILD-FOLDER] [TEST...]
"""
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import sample_pages
from browser import Browser, find_chromium
from page_checks import check_page, check_plan_view, human_bytes
from sample_pages import HOSTILE, make_page, make_run, make_trace, page_data
from sample_plans import make_plan

ONE_LOOK = [(1280, False)]
# What a page may take on two cores, in seconds and milliseconds; a test asks for no more than three times as much.
DRAWN_SECONDS, ZOOM_MS = 3, 100

DATA = "JSON.parse(document.getElementById('data').textContent)"

browser: Browser
folder: tempfile.TemporaryDirectory[str]


def setUpModule() -> None:
    global browser, folder
    if find_chromium() is None:
        raise unittest.SkipTest("there is no chromium here to look at pages with: `make test-pages` installs one")
    browser, folder = Browser(), tempfile.TemporaryDirectory()


def tearDownModule() -> None:
    browser.close()
    folder.cleanup()


def write(text: str, name: str = "page") -> Path:
    path = Path(folder.name, name + ".html")
    path.write_text(text, encoding="utf-8")
    return path


def open_page(data: dict[str, Any], tab: str, width: int = 1280) -> None:
    browser.open(f"{write(make_page(data))}#{tab}", width)


def choose(view: str, which: int, option: int) -> None:
    """Takes an option of one of a view's selects."""
    browser.js(f"{{ const one = document.querySelectorAll('#{view} select')[{which}]; one.value = {option};"
               " one.dispatchEvent(new Event('change')); }")


def cells(view: str) -> dict[str, Any]:
    """The named cells of a view: what they show, and the numbers that stand for."""
    return browser.js(f"Object.fromEntries([...document.querySelectorAll('#{view} [data-name]')].map("
                      "e => [e.dataset.name, {text: e.textContent, value: Number(e.dataset.value)}]))")


def small() -> dict[str, Any]:
    """One of each, quick to draw."""
    plan = make_plan("startrail:2", team=2, ring=2, stripe=2, tokens=256)
    return page_data("small", [plan, make_plan("ring", ring=8, tokens=256)], [make_trace(plan, "startrail:2")],
                     [make_run("run", 40)])


class EveryPage(unittest.TestCase):
    """The same checks for each kind of data."""

    def check(self, name: str) -> None:
        data = sample_pages.PAGES[name]()
        self.assertEqual(check_page(browser, write(make_page(data)), data), [])

    def test_plain(self) -> None:
        self.check("plain")

    def test_hostile(self) -> None:
        self.check("hostile")
        self.assertEqual(browser.js("document.getElementById('title').textContent"), HOSTILE)
        self.assertIn("</script>", browser.js("document.querySelector('#run').textContent"))
        self.assertEqual(browser.js("document.querySelectorAll('#run img').length"), 1)  # the only picture that is one

    def test_smallest(self) -> None:
        self.check("smallest")

    def test_uneven(self) -> None:
        self.check("uneven")

    def test_ulysses(self) -> None:
        self.check("ulysses")

    def test_nothing(self) -> None:
        self.check("nothing")
        self.assertIn("nothing to show", browser.js("document.body.textContent"))

    def test_large(self) -> None:
        data = sample_pages.large()
        self.assertAlmostEqual(sum(map(len, data["traces"][0]["spans"])), 60000, delta=300)
        path = write(make_page(data))
        self.assertEqual(check_page(browser, path, data, seconds=30), [])
        took = browser.open(f"{path}#trace")
        zooms = [browser.js("startrail.measureZoom()") for _ in range(5)]
        print(f"64 ranks, 60,000 spans: drawn in {took:.2f} s; a zoom step {statistics.median(zooms):.0f} ms "
              f"({min(zooms):.0f} to {max(zooms):.0f})")
        self.assertLess(took, 3 * DRAWN_SECONDS)
        self.assertLess(statistics.median(zooms), 3 * ZOOM_MS)

    def test_page_is_small(self) -> None:
        self.assertLess(len(make_page(page_data())), 400_000)


class Plans(unittest.TestCase):
    GRIDS = {"ring": {"ring": 6}, "mesh:2": {"team": 2, "stripe": 3}, "allgather": {"stripe": 5}, "ulysses": {"heads": 4},
             "usp:2": {"heads": 2, "ring": 3}, "all": {"heads": 2, "team": 2, "ring": 2, "stripe": 2}}

    def test_every_grid_and_pass(self) -> None:
        """Grids with uneven and empty chunks, each pass of each: coverage and numbers."""
        shape = {"tokens": 19, "model_heads": 4, "per_node": 2, "window": 7}
        plans = [make_plan(name, **grid, **shape) for name, grid in self.GRIDS.items()]
        open_page(page_data("grids", plans), "plan")
        for i, plan in enumerate(plans):
            for number, one in enumerate(plan["passes"]):
                with self.subTest(plan["name"], pass_name=one["pass"]):
                    choose("plan", 0, i)
                    choose("plan", 2, number)
                    self.assertIn(one["pass"], browser.js("document.querySelector('#plan h2 + .note').textContent"))
                    self.assertEqual(check_plan_view(browser, plan), [])
        self.assertEqual((browser.state(), browser.problems), ("drawn", []))

    def test_bytes_and_ratios_as_the_command_writes_them(self) -> None:
        values = [0, 1, 999, 1000, 1005, 9994, 9995, 12250, 12350, 99950, 100500, 999500, 532480, 8396800, 12250000,
                  2 ** 40, 10 ** 17]
        open_page(page_data(), "")
        self.assertEqual(browser.js(f"{values}.map(startrail.bytes)"), [human_bytes(value) for value in values])
        self.assertEqual(browser.js("[[1, 16], [3, 16], [5, 8], [1, 3], [7, 0]].map(([a, b]) => startrail.ratio(a, b))"),
                         [f"{1 / 16:.3f}", f"{3 / 16:.3f}", "0.625", "0.333", "–"])

    def test_pointer_tells_of_a_rank_and_chooses_it(self) -> None:
        open_page(small(), "plan")
        x, y = browser.js("(() => { const b = document.querySelector('#plan [data-rank=\"3\"]').getBoundingClientRect();"
                          " return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.assertTrue(browser.js("document.getElementById('tip').textContent").startswith("rank 3"))
        for kind in ("mousePressed", "mouseReleased"):
            browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.assertIn("Steps of rank 3", browser.js("document.querySelector('#plan').textContent"))

    def test_problems_that_differ_are_said(self) -> None:
        open_page(page_data("differ", [make_plan("ring", ring=4), make_plan("ring", ring=4, tokens=64)]), "plan")
        self.assertIn("do not answer the same problem", browser.js("document.querySelector('#plan .alarm').textContent"))


class Traces(unittest.TestCase):
    def test_where_the_time_went(self) -> None:
        """Times counted here another way: spans by hand, a wait inside an attend, a turn, a wait outside of any step."""
        names = ["step", "forward", "attend", "wait", "turn", "exchange"]
        rows = [[0, 100, 0, 0, 0], [0, 90, 1, 1, 1], [10, 40, 2, 2, 2], [10, 5, 3, 4, 3], [15, 3, 4, 5, 3],
                [60, 20, 5, 3, 2], [62, 10, 3, 4, 3], [120, 30, 3, 4, 0]]
        trace = {"name": "by hand", "source": "measured", "note": "", "version": None, "ranks": 1, "about": {},
                 "shortened": None, "wait_share": .15, "names": names, "blocks": [], "spans": [rows], "messages": [],
                 "t_us": [0, 150]}
        open_page(page_data("t", traces=[trace]), "trace")
        shown = {name: cell["value"] for name, cell in cells("trace").items()}
        self.assertEqual(shown, {"total_us": 100, "compute_us": 32, "comm_us": 10, "wait_us": 15, "turn_us": 3,
                                 "rest_us": 40, "exposed": .15, "wait_share": .15})
        self.assertNotIn("differs", browser.js("document.querySelector('#trace table').textContent"))

    def test_a_share_that_differs_is_said(self) -> None:
        data = small()
        data["traces"][0]["wait_share"] += .03
        open_page(data, "trace")
        self.assertIn("differs", browser.js("document.querySelector('#trace table').textContent"))

    def test_wheel_zooms_and_drag_moves(self) -> None:
        open_page(small(), "trace")
        picture = lambda: (browser.settle(), browser.js("document.querySelector('#trace .sticky canvas').toDataURL()"))[1]
        x, y = browser.js("(() => { const b = document.querySelector('#trace canvas.lanes').getBoundingClientRect();"
                          " return [b.x + b.width / 2, b.y + 60]; })()")
        seen = [picture()]
        mouse = lambda kind, at, **more: browser.call("Input.dispatchMouseEvent", type=kind, x=at, y=y, **more)
        mouse("mouseWheel", x, deltaX=0, deltaY=-100, modifiers=2)  # with Ctrl
        seen.append(picture())
        mouse("mousePressed", x, button="left", clickCount=1)
        mouse("mouseMoved", x - 80, button="left", buttons=1)
        mouse("mouseReleased", x - 80, button="left", clickCount=1)
        seen.append(picture())
        self.assertEqual(len(set(seen)), 3, "the axis must change with the wheel and with a drag")
        mouse("mouseMoved", x)
        self.assertIn("rank", browser.js("document.getElementById('tip').textContent"))


class Runs(unittest.TestCase):
    def test_smoothing_looks_only_back(self) -> None:
        open_page(small(), "run")
        one, two = browser.js("[[4, 2, 8], [4, 2, 8, 100]].map(ys => startrail.smooth([1, 2, 3, 4], ys, 2))")
        self.assertEqual(one, two[:3])
        self.assertEqual(browser.js("startrail.smooth([1, 2, 3], [5, null, 5], 2)"), [5, None, 5])
        self.assertAlmostEqual(browser.js("startrail.smooth([1, 3], [1, 4], 2)")[1], (1 * .5 + 4) / 1.5)

    def test_thinning_keeps_spikes(self) -> None:
        kept = browser.js("(() => { const xs = [...Array(10000).keys()];"
                          " const ys = xs.map(i => i === 777 ? 9 : i === 5 ? null : 0);"
                          " return startrail.thin(xs, ys, 0, 9999, 100); })()")
        self.assertIn(777, kept)
        self.assertLessEqual(len(kept), 202)
        self.assertNotIn(5, kept)

    def test_table_shows_what_was_given(self) -> None:
        run = make_run("run", 40)
        run["loss"][-1] = None  # the last number counts
        open_page(page_data("r", runs=[run]), "run")
        shown = {name: cell["text"] for name, cell in cells("run").items()}
        self.assertEqual(shown["loss"], f"{run['loss'][-2]:.4f}")
        self.assertEqual(shown["validation"], f"{run['validation'][-1][1]:.4f}")
        self.assertEqual((shown["peak_bytes"], shown["estimated_bytes"]), (human_bytes(max(run["peak_bytes"])), "12.1 MB"))
        self.assertEqual(browser.js("document.querySelectorAll('#run path[stroke-dasharray=\"6 5\"]').length"), 1)

    def test_every_choice_draws(self) -> None:
        open_page(sample_pages.hostile(), "run")
        for i in range(browser.js("document.querySelectorAll('#run select').length")):
            for value in range(browser.js(f"document.querySelectorAll('#run select')[{i}].options.length")):
                choose("run", i, value)
        browser.js("document.querySelector('#run .run-toggle').click()")
        self.assertEqual((browser.state(), browser.problems), ("drawn", []))
        broken = "[...document.querySelectorAll('#run path')].filter(e => /NaN|Infinity/.test(e.outerHTML)).length"
        self.assertEqual(browser.js(broken), 0)


class Frame(unittest.TestCase):
    def test_theme_button_and_tabs(self) -> None:
        open_page(small(), "plan")
        ground = lambda: browser.js("getComputedStyle(document.body).backgroundColor")
        before = ground()
        browser.js("document.getElementById('theme').click()")
        self.assertNotEqual(ground(), before)
        browser.js("document.querySelector('[role=tab]').focus()")
        browser.press("ArrowRight")
        self.assertEqual(browser.js("document.querySelector('section:not([hidden])').id"), "trace")
        self.assertEqual(browser.js("document.activeElement.textContent"), "Trace")

    def test_prints(self) -> None:
        open_page(small(), "plan")
        self.assertGreater(len(browser.call("Page.printToPDF")["data"]), 20000)
        self.assertEqual((browser.state(), browser.problems), ("drawn", []))

    def test_another_format_is_refused(self) -> None:
        open_page(page_data() | {"format": 2}, "")
        self.assertEqual(browser.state(), "failed")
        self.assertIn("format 2", browser.js("document.getElementById('failure').textContent"))


class ChecksFindWhatIsBroken(unittest.TestCase):
    """A check that has never failed proves nothing."""

    def found(self, data: dict[str, Any] | None = None, **parts: str) -> str:
        data = data or small()
        return "\n".join(check_page(browser, write(make_page(data, **parts)), data, ONE_LOOK))

    def changed(self, old: str, new: str) -> str:
        script = sample_pages.parts()[2]
        self.assertEqual(script.count(old), 1, old)
        return script.replace(old, new)

    def test_nothing_is_found_where_nothing_is(self) -> None:
        self.assertEqual(self.found(), "")

    def test_a_changed_attend(self) -> None:
        data = copy.deepcopy(small())
        attends = [step for step in data["plans"][0]["passes"][0]["ranks"][2] if step[0] == "attend"]
        attends[0][2] = attends[1][2]
        self.assertIn("not every pair of chunks is met exactly once", self.found(data))

    def test_a_misspelt_name(self) -> None:
        script = self.changed("view.met = count_met(", "view.met = count_mett(")
        self.assertRegex(self.found(script=script), "not drawn.*count_mett")

    def test_a_picture_from_the_net(self) -> None:
        self.assertIn("example.com", self.found(more='<img src="https://example.com/x.png" alt="x">'))

    def test_lanes_not_painted(self) -> None:
        script = self.changed("made.lanes.forEach((lane, r) => paint_lane(", "made.lanes.forEach((lane, r) => String(")
        self.assertIn("lanes are not painted", self.found(script=script))

    def test_a_blank_matrix(self) -> None:
        self.assertIn("blank canvas", self.found(script=self.changed("\n    matrix.draw();", "")))

    def test_a_number_that_is_not_the_given_one(self) -> None:
        script = self.changed("value >= 999.5 && unit < 5", "value >= 99.5 && unit < 5")
        self.assertIn("is written", self.found(script=script))
        script = self.changed("prefix, volume: pass.volume, peak", "prefix, volume: pass.ring_volume, peak")
        self.assertIn("volume.total is", self.found(script=script))

    def test_something_too_wide_or_without_a_name(self) -> None:
        style = sample_pages.parts()[1] + "\nheader { width: 1400px; max-width: none; }"
        self.assertIn("wider than the window", self.found(style=style))
        script = self.changed("button('›', () => go(beat + 1), {'aria-label': 'next beat'})", "button('', () => {})")
        self.assertIn("without a name", self.found(script=script))

    def test_keys_that_do_nothing(self) -> None:
        script = self.changed("if (arrow) go(beat + arrow);", "if (arrow) go(beat);")
        self.assertIn("the right arrow", self.found(script=script))

    def test_the_data_cannot_leave_their_place(self) -> None:
        text = make_page(sample_pages.hostile())
        data = text.split('id="data">')[1].split("</script>")[0]
        self.assertNotIn("<", data)
        self.assertEqual(json.loads(data)["title"], HOSTILE)


class OfTheProgram(unittest.TestCase):
    """Pages that `startrail show` wrote."""

    def startrail(self, *words: Any) -> str:
        done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def show(self, *words: Any) -> Path:
        page = Path(folder.name, "shown.html")
        self.startrail("show", *words, "--out", page)
        return page

    def test_plans_have_the_numbers_of_the_command(self) -> None:
        for flags in ("--ranks 16 --grid startrail:2", "--ranks 6 --grid team=3 --tokens 100 --window 7 --layout striped",
                      "--ranks 12 --grid heads=2,team=3,ring=2 --heads 6 --tokens 1001 --documents 500,1,500",
                      "--ranks 8 --grid usp:4 --heads 8 --kv-heads 2 --dtype bfloat16 --ranks-per-node 4"):
            with self.subTest(flags):
                page = self.show(*flags.split(), "--compare", "ring")
                plan = json.loads(self.startrail("plan", "--json", "--check", *flags.split()))
                self.assertEqual(check_page(browser, page), [])
                browser.open(f"{page}#plan")
                printed = self.startrail("plan", *flags.split())
                for number, one in enumerate(plan["passes"]):
                    choose("plan", 2, number)
                    self.assertEqual(check_plan_view(browser, plan), [])
                    shown = cells("plan")
                    self.assertEqual(shown["volume.total"]["value"], one["volume"]["total"])
                    sent, held = (line.split() for line in printed.splitlines() if line.split()[:1] == [one["pass"]])
                    words = " ".join(sent), " ".join(held)
                    self.assertIn(f" {shown['volume.total']['text']} {shown['ring_volume.total']['text']} ", words[0])
                    self.assertIn(f" {shown['peak_bytes']['text']} {shown['ring_peak_bytes']['text']} ", words[1])

    def test_a_trace_waits_as_long_as_its_run_says(self) -> None:
        traces = []
        for grid in ("startrail:2", "ring"):
            traces.append(Path(folder.name, f"{len(traces)}.json"))
            self.startrail("attend", "--ranks", 8, "--tokens", 1024, "--grid", grid, "--repeat", 1, "--profile", traces[-1])
        page = self.show(*traces)
        self.assertEqual(check_page(browser, page), [])
        made = browser.js(f"{DATA}.traces.map(startrail.read_trace).map(made => "
                          "[made.exposed, made.trace.wait_share, made.messages.length, made.messages.every(m => m.sure)])")
        for exposed, counted, messages, sure in made:
            self.assertAlmostEqual(exposed, counted, delta=0.01)
            self.assertGreater(messages, 50)
            self.assertTrue(sure, "an arrow is inferred")

    def test_a_trace_of_64_ranks_is_drawn_soon(self) -> None:
        trace = Path(folder.name, "large.json")
        self.startrail("attend", "--ranks", 64, "--tokens", 2048, "--heads", 2, "--dim", 16, "--grid", "ring", "--repeat", 1,
                       "--profile", trace)
        page = self.show(trace)
        took = browser.open(page)
        zooms = [browser.js("startrail.measureZoom()") for _ in range(5)]
        print(f"64 ranks, a trace of {trace.stat().st_size / 1e6:.1f} MB: drawn in {took:.2f} s; a zoom step "
              f"{statistics.median(zooms):.0f} ms")
        self.assertEqual(browser.state(), "drawn")
        self.assertGreater(trace.stat().st_size, 5_000_000)
        self.assertLess(took, 3 * DRAWN_SECONDS)
        self.assertLess(statistics.median(zooms), 3 * ZOOM_MS)

    def test_hostile_names_and_bytes(self) -> None:
        run = Path(folder.name, "<img src=x>&")
        (run / "samples").mkdir(parents=True)
        rows = [{"kind": "run", "format": 1, "step": 0, "name": HOSTILE, "loss_unit": HOSTILE, "config": {HOSTILE: HOSTILE}},
                {"step": 1, "loss": None}, {"step": 2, "loss": 3}]
        (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"step":3,"lo')
        (run / "samples/step-00000002.json").write_bytes(b'{"prompt": "\xff\xfe", "text": "</script>"}')
        (run / "samples/step-00000003.json").write_text(json.dumps({"prompt": HOSTILE, "text": HOSTILE}))
        title = HOSTILE.replace("\0", "")  # which no argument can hold
        page = self.show(run, "--title", title)
        self.assertEqual(check_page(browser, page), [])
        self.assertEqual(browser.js("document.getElementById('title').textContent"), title)
        self.assertEqual(browser.js("document.querySelectorAll('#run img').length"), 0)

    def test_a_run_with_samples(self) -> None:
        run = Path(folder.name, "run")
        self.startrail("train", "--set", "data.path=docs", "--set", "train.tokens=64", "--set", "train.steps=12", "--set",
                       "parallel.ranks=4", "--set", "model.layers=1", "--set", "run.save_every=4", "--set", f"run.folder={run}")
        page = self.show(run)
        self.assertEqual(check_page(browser, page), [])
        self.assertEqual(browser.js(f"{DATA}.runs[0].samples.map(one => one.step)"), [4, 8, 12])


if __name__ == "__main__":
    names = sys.argv[1:]
    PROGRAM = Path(names[0] if names and Path(names[0]).is_dir() else "build").resolve() / "startrail"
    unittest.main(argv=[sys.argv[0], *names[1 if names and Path(names[0]).is_dir() else 0:]], verbosity=2)
