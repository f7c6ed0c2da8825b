"""Runs the example of docs/data.md as it is written, and compares the loss that transformers gives with ours.

usage: example_reference.py FOLDER    an empty folder to run it in
Blocks marked python are files, whose names are in their first lines; those marked sh are run.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

HEADING = "## From text to a fine-tuned model"
folder, home = Path(sys.argv[1]), Path(__file__).resolve().parent.parent
for name in ("build", "docs", ".venv"):
    (folder / name).symlink_to(home / name)
section = (home / "docs/data.md").read_text().split(f"\n{HEADING}\n")[1].split("\n## ")[0]
output = ""
for kind, text in re.findall(r"^```(python|sh)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
    if kind == "python":
        (folder / re.match(r"# ([\w.]+):", text)[1]).write_text(text)
        continue
    # Through a pipe, since the output of a test's own would be taken for its result.
    done = subprocess.run(["bash", "-ec", text], cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    if done.returncode != 0:
        sys.exit(f"{text}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    output += done.stdout
ours = re.search(r"^loss (\S+) nats a token", output, re.MULTILINE)
theirs = re.search(r"^Qwen3ForCausalLM (\S+)$", output, re.MULTILINE)
if not ours or not theirs or abs(float(ours[1]) - float(theirs[1])) > 2e-4:
    sys.exit(f"the losses are not there, or differ:\n{output}")
