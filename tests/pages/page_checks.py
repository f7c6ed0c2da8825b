"""What every page must be, whoever made it: drawn, silent, asking nobody, no wider than the window, painted, named, and
true to its data. check_page() returns what is wrong, a line each, so that a test can also demand that it finds something.
"""
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from browser import Browser

LOOKS = [(1280, False), (1280, True), (400, False), (400, True)]  # width, dark
VOLUMES = ("total", "p2p", "gather", "merge", "all_to_all")

# A canvas's pixels, read from a copy: to read the page's own again and again would make the browser complain of it.
PIXELS = """const pixels = canvas => {
  const copy = document.createElement('canvas');
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const context = copy.getContext('2d', {willReadFrequently: true});
  context.drawImage(canvas, 0, 0);
  return context.getImageData(0, 0, canvas.width, canvas.height).data;
};"""
# Canvases with fewer than three colours; those that only repeat what a text says are hidden from readers and may be so.
BLANK = "(() => {" + PIXELS + """
return [...document.querySelectorAll('section:not([hidden]) canvas:not([aria-hidden])')].filter(canvas => {
  const data = pixels(canvas), seen = new Set();
  for (let i = 0; i < data.length && seen.size < 3; i += 4)
    if (data[i + 3]) seen.add(data[i] >> 4 << 8 | data[i + 1] >> 4 << 4 | data[i + 2] >> 4);
  return seen.size < 3;
}).map(canvas => canvas.ariaLabel); })()"""
# Rows of pixels of each timeline that have the colour of computing in them.
PAINTED = "(() => {" + PIXELS + """
return [...document.querySelectorAll('#trace canvas.lanes')].map(canvas => {
  const probe = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--compute').trim();
  probe.fillRect(0, 0, 1, 1);
  const [r, g, b] = probe.getImageData(0, 0, 1, 1).data, {width, height} = canvas, data = pixels(canvas);
  let rows = 0;
  for (let y = 0; y < height; y++)
    for (let x = 0, i = 4 * y * width; x < width; x++, i += 4)
      if (data[i] === r && data[i + 1] === g && data[i + 2] === b) { rows++; break; }
  return rows;
}); })()"""
NAMELESS = """[...document.querySelectorAll('[role=img], [role=application], img, button, input, select, summary')]
  .filter(e => e.checkVisibility() && !(e.ariaLabel || e.alt || e.labels?.length || e.textContent.trim()))
  .map(e => e.outerHTML.slice(0, 80))"""
CELLS = """[...document.querySelectorAll('#plan [data-name]')].map(e => [e.dataset.name, e.dataset.value, e.textContent])"""


def human_bytes(value: float) -> str:
    """human_bytes of startrail/base/text.cc."""
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    unit = 0
    while value >= 999.5 and unit < 5:
        value, unit = value / 1000, unit + 1
    return f"{value:.{0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2}f} {units[unit]}"


def given_cells(one: dict[str, Any]) -> dict[str, int]:
    """The numbers of a pass that the page must show as given, by the names of their cells."""
    cells = {f"{name}.{kind}": one[name][kind] for name in ("volume", "ring_volume") for kind in VOLUMES}
    cells |= {name: one[name] for name in ("peak_bytes", "ring_peak_bytes")}
    return cells


def check_numbers(browser: Browser, plan: dict[str, Any], pass_name: str) -> list[str]:
    """The cost table that is on the page now, against the plan. A kind that nobody sends has no row."""
    given = given_cells(next(one for one in plan["passes"] if one["pass"] == pass_name))
    cells = [cell for cell in browser.js(CELLS) if cell[1] is not None and "leaves_node" not in cell[0]]
    shown = {name: (int(value), text) for name, value, text in cells}
    wrong = [f"{pass_name}: {name} is not shown" for name, value in given.items() if name not in shown and value]
    for name, (value, text) in shown.items():
        if not name.startswith("rival.") and value != given[name]:
            wrong.append(f"{pass_name}: {name} is {value}, not {given[name]}")
        if text != human_bytes(value):
            wrong.append(f"{pass_name}: {name} {value} is written {text}, not {human_bytes(value)}")
    return wrong


def check_plan_view(browser: Browser, plan: dict[str, Any] | None) -> list[str]:
    """Coverage, keys and numbers of the plan that is shown."""
    wrong, slider = [], "document.querySelector('#plan input[type=range]')"
    text = lambda: browser.js("document.querySelector('#plan').textContent")
    if "exactly once" not in text() or "NOT each" in text():
        wrong.append("not every pair of chunks is met exactly once")
    browser.js("document.activeElement.blur()")
    last, before = int(browser.js(slider + ".max")), int(browser.js(slider + ".value"))
    browser.press("ArrowRight")
    if int(browser.js(slider + ".value")) != min(last, before + 1):
        wrong.append("the right arrow does not go to the next beat")
    browser.press("ArrowLeft")
    if int(browser.js(slider + ".value")) != max(0, min(last, before + 1) - 1):
        wrong.append("the left arrow does not go to the beat before")
    plays = "[...document.querySelectorAll('#plan button')].some(one => one.textContent === 'Pause')"
    browser.press(" ")
    if not browser.js(plays):
        wrong.append("space does not play")
    browser.press(" ")
    if browser.js(plays):
        wrong.append("space does not pause")
    browser.js(f"{slider}.value = {last}; {slider}.dispatchEvent(new Event('input'))")
    done = browser.js("document.querySelector('#plan').textContent.match(/([\\d,]+) of ([\\d,]+) pairs/)?.slice(1)")
    if not done or done[0] != done[1]:
        wrong.append(f"the last beat has not met all pairs: {done}")
    if plan:
        name = browser.js("document.querySelector('#plan h2 + .note span').textContent").split(" ")[0]
        wrong += check_numbers(browser, plan, name)
    return wrong


def check_trace_view(browser: Browser, ranks: list[int]) -> list[str]:
    """Lanes and keys of the traces that are shown; `ranks`: how many lanes with computing each must have."""
    wrong = []
    for painted, lanes in zip(browser.js(PAINTED), ranks):
        if painted < 4 * lanes:
            wrong.append(f"lanes are not painted: {painted} rows of pixels for {lanes} ranks")
    browser.js("document.querySelector('#trace canvas.lanes').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        browser.press(key)
    said = browser.js("document.querySelector('#trace .live').textContent")
    if ranks and ranks[0] > 1 and not said.startswith("rank 1"):
        wrong.append(f"the arrow keys do not tell of rank 1: {said[:60]}")
    picture = lambda: browser.js("document.querySelector('#trace .sticky canvas').toDataURL()")
    browser.press("0")
    all_of_it = picture()
    browser.press("+")
    if ranks and picture() == all_of_it:
        wrong.append("+ does not zoom in")
    browser.press("0")
    if picture() != all_of_it:
        wrong.append("0 does not show all again")
    return wrong


def check_view(browser: Browser, width: int, data: dict[str, Any] | None) -> list[str]:
    """The view that is open."""
    view = browser.js("document.querySelector('section:not([hidden])')?.id")
    wide = browser.js("document.documentElement.scrollWidth")
    wrong = [f"wider than the window: {wide}"] if wide > width else []
    empty = data is not None and any(not any(trace["spans"]) for trace in data["traces"])  # a trace of nothing is blank
    wrong += [f"a blank canvas: {name}" for name in browser.js(BLANK) if view != "trace" or not empty]
    wrong += [f"without a name: {one}" for one in browser.js(NAMELESS)]
    if view == "plan":
        wrong += check_plan_view(browser, data["plans"][0] if data else None)
    if view == "trace":
        computes = lambda rows: any(row[3] == 2 for row in rows)
        wrong += check_trace_view(browser, [sum(map(computes, one["spans"])) for one in data["traces"]] if data else [])
    return [f"{view}: {one}" for one in wrong]


def check_page(browser: Browser, page: str | Path, data: dict[str, Any] | None = None,
               looks: Sequence[tuple[int, bool]] = LOOKS, seconds: float = 10) -> list[str]:
    """All views of a page at the given widths and themes; `data` is what it was made of, where that is known."""
    wrong: list[str] = []
    for width, dark in looks:
        took = browser.open(page, width, dark=dark)
        found = [f"{took:.1f} s to draw"] if took > seconds else []
        if browser.state() != "drawn":
            found.append("not drawn: " + str(browser.js("document.getElementById('failure').textContent")))
        tabs = browser.js("document.querySelectorAll('[role=tab]').length")
        for i in range(max(1, tabs)):
            browser.js(f"document.querySelectorAll('[role=tab]')[{i}]?.click()")
            browser.settle()
            if browser.state() == "drawn":
                found += check_view(browser, width, data)
        if browser.state() != "drawn" and not found:
            found.append("failed after it was drawn: " + str(browser.js("document.getElementById('failure').textContent")))
        found += [f"the console says: {problem[:200]}" for problem in browser.problems]
        found += [f"asked for {url}" for url in browser.requests if not url.startswith(("file:", "data:", "about:"))]
        wrong += [f"{width} px, {'dark' if dark else 'light'}: {one}" for one in found]
    return wrong
