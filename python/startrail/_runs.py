"""What the command's training runs leave behind."""
from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from typing import Any


@dataclasses.dataclass(frozen=True)
class Run:
    folder: pathlib.Path
    metrics: dict[str, list[Any]]
    """Of each step, by name; nan where a step has none."""
    validation: dict[str, list[Any]]
    """step and loss of each validation."""
    checkpoints: list[pathlib.Path]
    """From the first to the last; transformers loads them as they are."""


def load_run(folder: str | pathlib.Path) -> Run:
    """A run's metrics and checkpoints.

    >>> run = startrail.load_run("runs/quickstart")
    >>> plt.plot(run.metrics["step"], run.metrics["loss"])
    >>> model = AutoModelForCausalLM.from_pretrained(run.checkpoints[-1])
    """
    folder = pathlib.Path(folder)
    file = folder / "metrics.jsonl"
    if not file.exists():
        raise ValueError(f"{folder} holds no run: there is no metrics.jsonl; give the run.folder of `startrail train`")
    steps: dict[int, dict[str, Any]] = {}
    checks: dict[int, Any] = {}
    with open(file, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                if not line.endswith("\n"):  # a run is writing it
                    break
                raise ValueError(f"{file} line {number} is no JSON: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{file} line {number} is no row of a run: {line.strip()[:60]}")
            if "step" not in row or row.get("kind") == "run":  # what the run is, or that it was gone on with
                continue
            if "validation" in row:
                checks[row["step"]] = row["validation"]
            else:
                steps[row["step"]] = row  # after resuming the later one counts

    def value(row: dict[str, Any], name: str) -> Any:
        return math.nan if row.get(name) is None else row[name]

    names = sorted({name for row in steps.values() for name in row}, key=lambda name: (name != "step", name))
    rows = [steps[step] for step in sorted(steps)]
    order = sorted(checks)
    return Run(folder, {name: [value(row, name) for row in rows] for name in names},
               {"step": order, "loss": [math.nan if checks[step] is None else checks[step] for step in order]},
               sorted((folder / "checkpoints").glob("step-*")))
