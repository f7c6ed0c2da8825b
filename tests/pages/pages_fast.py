"""A page of each kind, made by the program and drawn by a real browser: the smoke test of `make test`.
Where there is no Chromium it says so and is skipped; pages_long.py looks closer.

usage: pages_fast.py BUILD-FOLDER
"""
import subprocess
import sys
import tempfile
from pathlib import Path

from browser import Browser, find_chromium

SKIPPED = 77  # ctest's word for it, in cmake/Library.cmake


def main() -> int:
    program = Path(sys.argv[1]).resolve() / "startrail"
    if find_chromium() is None:
        print("skipped: there is no chromium here to look at pages with; `make test-pages` installs one")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        trace, page, run = (str(Path(folder, name)) for name in ("trace.json", "page.html", "run"))
        small = ["--ranks", "4", "--tokens", "100", "--heads", "4", "--dim", "8"]
        commands = [["attend", *small, "--repeat", "1", "--profile", trace],
                    ["train", "--set", "data.path=docs", "--set", "train.tokens=64", "--set", "train.steps=4", "--set",
                     "parallel.ranks=4", "--set", "model.layers=1", "--set", f"run.folder={run}"],
                    ["show", *small, "--grid", "heads=2,ring=2", "--compare", "ring", trace, run, "--out", page]]
        for command in commands:
            done = subprocess.run([program, *command], capture_output=True, text=True)
            if done.returncode != 0:
                print(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
                return 1
        browser = Browser()
        try:
            seconds = browser.open(page)
            tabs = browser.js("[...document.querySelectorAll('[role=tab]')].map(tab => tab.textContent)")
            print(f"drawn in {seconds:.2f} s, with {', '.join(tabs)}")
            asked = [url for url in browser.requests if not url.startswith(("file:", "data:", "about:"))]
            wrong = browser.problems + asked + ([] if browser.state() == "drawn" else [browser.state()])
            print("\n".join(wrong))
            return 1 if wrong or len(tabs) != 3 else 0
        finally:
            browser.close()


sys.exit(main())
