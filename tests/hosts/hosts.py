"""What the tests of ranks as processes share: jobs that are started, watched, harmed and cleared away."""
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BUILD = Path(sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "build").resolve()
STARTRAIL = str(BUILD / "startrail")
WORKER = str(BUILD / "hosts_worker")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
LAUNCHER_NAMES = ("RANK", "WORLD_SIZE", "MASTER_", "OMPI_", "PMI_", "SLURM_", "TORCHELASTIC_", "STARTRAIL_")
# A model that takes a step in some hundredths of a second.
SMALL = ["--set", "model.layers=2", "--set", "model.dim=32", "--set", "model.heads=4", "--set", "model.kv_heads=2",
         "--set", "model.hidden=64", "--set", "train.tokens=96", "--set", "train.precision=float32",
         "--set", "validate.every=0", "--set", "validate.windows=2"]


def clean_environment(**more):
    """Without what a launcher around the tests may have set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_NAMES)}
    return {**kept, "OMP_WAIT_POLICY": "PASSIVE", **more}


def children_of(pid):
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(entry.name))
    return found


def descendants_of(pid):
    found = children_of(pid)
    for child in list(found):
        found += descendants_of(child)
    return found


def variable_of(pid, name):
    try:
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(name.encode() + b"="):
                return variable.split(b"=", 1)[1].decode()
    except OSError:
        pass
    return None


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def is_rank(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe") in (STARTRAIL, WORKER)
    except OSError:
        return False


class Job:
    """A command under way, its output in a file. Whatever happens, none of its processes is left at its end."""

    def __init__(self, command, **environment):
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen([str(word) for word in command], stdout=self.output, stderr=subprocess.STDOUT,
                                        env=clean_environment(**environment), start_new_session=True)
        self.seen = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.seen |= set(descendants_of(self.process.pid))
        for pid in [self.process.pid, *self.seen]:
            if is_alive(pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.process.wait()
        self.output.close()

    def text(self):
        # Not by the file's own place, which is the processes' too: what they write meanwhile would go there.
        return os.pread(self.output.fileno(), os.fstat(self.output.fileno()).st_size, 0).decode(errors="replace")

    def ranks(self):
        """Process ids by rank."""
        everyone = descendants_of(self.process.pid)
        self.seen |= set(everyone)
        return {int(variable_of(pid, "RANK") or -1): pid for pid in everyone if is_rank(pid)}

    def wait_for(self, pattern, seconds=60):
        """Until the output has it; False when the job ended or took longer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if re.search(pattern, self.text()):
                return True
            if self.process.poll() is not None:
                return bool(re.search(pattern, self.text()))
            time.sleep(0.02)
        return False

    def wait(self, seconds=120):
        """The exit code, or None when it does not end."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def run(command, seconds=300, **environment):
    """(exit code, output)"""
    with Job(command, **environment) as job:
        code = job.wait(seconds)
        return code, job.text()


def launch(processes, *command, options=()):
    return [STARTRAIL, "launch", "--processes", processes, *options, "--", *command]


def torchrun(processes, *command, options=()):
    return [*TORCHRUN, "--nproc-per-node", processes, *options, "--no-python", *command]


def losses_of(run_folder):
    """By step, from the run's own file."""
    found = {}
    for line in (Path(run_folder) / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "loss" in entry:
            found[entry["step"]] = entry["loss"]
    return found


def run_together(at_once):
    """Runs the tests of the main module, or those that are named, several at once: mostly they wait."""
    loader, module = unittest.defaultTestLoader, sys.modules["__main__"]
    names = [name for name in sys.argv[1:] if not name.startswith("-")]
    suite = loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)

    def flat(tests):
        return [one for test in tests for one in (flat(test) if isinstance(test, unittest.TestSuite) else [test])]

    def one(test):
        start, result = time.monotonic(), unittest.TestResult()
        test(result)
        problems = [text for _, text in result.failures + result.errors]
        ended = "FAILED" if problems else f"skipped: {result.skipped[0][1]}" if result.skipped else "ok"
        print("\n".join([f"{test.id()}: {ended} ({time.monotonic() - start:.1f} s)", *problems]), flush=True)
        return not problems

    with ThreadPoolExecutor(at_once) as pool:
        well = list(pool.map(one, flat(suite)))
    print(f"{len(well)} tests, {len(well) - sum(well)} failed", flush=True)
    sys.exit(0 if well and all(well) else 1)


class Folder(tempfile.TemporaryDirectory):
    """With some text to train on."""

    def __enter__(self):
        self.path = Path(super().__enter__())
        generator = random.Random(1)
        words = ["ring", "star", "trail", "token", "team", "stripe", "heads", "grid"]
        (self.path / "data.txt").write_text(" ".join(generator.choice(words) for _ in range(4000)))
        return self

    def train(self, run_name, *more):
        return ["train", *SMALL, "--set", f"data.path={self.path}/data.txt", "--set", f"run.folder={self.path}/{run_name}",
                *more]


class HostsTest(unittest.TestCase):
    """Adds what is expected of a job that was harmed."""

    SLACK = 0.3  # seconds that a busy machine may take besides

    def expect_fault(self, job, victim, harm, limit, ended_by=None):
        """Harms one rank and expects the others to end within the limit, all but silent and with the right name said.

        ended_by: the signal that ends the victim at last, when it is not `harm`.
        """
        ranks = job.ranks()
        self.assertIn(victim, ranks, job.text())
        others = {rank: pid for rank, pid in ranks.items() if rank != victim}
        start = time.monotonic()
        os.kill(ranks[victim], harm)
        while any(is_alive(pid) for pid in others.values()) and time.monotonic() - start < limit + 5:
            time.sleep(0.02)
        took = time.monotonic() - start
        left = [rank for rank, pid in others.items() if is_alive(pid)]
        self.assertEqual(left, [], f"still there after {took:.1f} s: {job.text()}")
        self.assertLessEqual(took, limit + self.SLACK, job.text())
        code = job.wait(60)
        text = job.text()
        self.assertIsNotNone(code, text)
        said = re.findall(r"startrail: (rank \d+ on .*(?:ended without a word|sign of life).*)", text)
        self.assertTrue(said, text)
        for verdict in said:
            self.assertTrue(verdict.startswith(f"rank {victim} on "), f"rank {victim} was harmed: {text}")
        codes = re.search(r"exit codes by rank: (.*)", text)
        if codes:
            by_rank = {int(rank): int(end) for rank, end in re.findall(r"(\d+): (\d+)", codes.group(1))}
            for rank in others:
                self.assertEqual(by_rank[rank], 3, text)
            self.assertEqual(by_rank[victim], 128 + (ended_by or harm), text)
        self.assertFalse([pid for pid in job.seen if is_alive(pid)], "processes were left")
        return took
