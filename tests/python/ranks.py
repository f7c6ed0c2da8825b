"""Starts ranks as processes of one machine, over Gloo, and gives back what they return."""
import datetime
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Failed(Exception):
    pass


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Ranks:
    """`function`, the name of one in `module`, on each of `world` ranks, with keyword arguments."""

    def __init__(self, module, function, world=4, timeout_s=60, **arguments):
        self.folder = tempfile.TemporaryDirectory()
        self.timeout_s = timeout_s
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(world),
                           LOCAL_WORLD_SIZE=str(world), OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE",
                           TOKENIZERS_PARALLELISM="false", ACCELERATE_USE_CPU="true", HF_HUB_OFFLINE="1")
        call = pickle.dumps((module, function, timeout_s, arguments)).hex()
        self.processes = []
        for rank in range(world):
            with open(f"{self.folder.name}/{rank}.log", "wb") as out:
                self.processes.append(subprocess.Popen(
                    [sys.executable, __file__, call, f"{self.folder.name}/{rank}.pickle"], stdout=out, stderr=out,
                    env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank))))

    def wait(self, seconds=600, expect=None):
        """What each rank returned; an exception where it raised one. `expect`: ranks that may not return."""
        until = time.monotonic() + seconds
        try:
            for process in self.processes:
                process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            logs = "".join(f"--- rank {rank}\n{self.log(rank)[-2000:]}" for rank in range(len(self.processes)))
            raise Failed(f"the ranks did not end in {seconds} s\n{logs}") from None
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        results = []
        for rank in range(len(self.processes)):
            file = Path(f"{self.folder.name}/{rank}.pickle")
            results.append(pickle.loads(file.read_bytes()) if file.exists() else None)
        lost = [rank for rank, result in enumerate(results) if result is None and rank not in (expect or ())]
        if lost:
            raise Failed(f"rank {lost[0]} ended with {self.processes[lost[0]].returncode}\n{self.log(lost[0])}")
        self.folder.cleanup()
        return results

    def log(self, rank):
        return Path(f"{self.folder.name}/{rank}.log").read_text(errors="replace")

    def signal(self, rank, number=signal.SIGKILL):
        self.processes[rank].send_signal(number)


def run(module, function, world=4, seconds=600, **arguments):
    """Results of all ranks; the first error of any is raised here."""
    job = Ranks(module, function, world, **arguments)
    results = job.wait(seconds)
    for rank, result in enumerate(results):
        if isinstance(result, dict) and "error" in result:
            raise Failed(f"rank {rank}: {result['error']}")
    return [result["value"] for result in results]


def main():
    module, function, timeout_s, arguments = pickle.loads(bytes.fromhex(sys.argv[1]))
    sys.path.insert(0, str(HERE))
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    try:
        result = {"value": getattr(__import__(module), function)(**arguments)}
    except SystemExit:  # of a child that was forked
        raise
    except BaseException as error:  # noqa: BLE001
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}", "type": type(error).__name__,
                  "bases": [base.__name__ for base in type(error).__mro__], "seconds": time.time()}
    Path(sys.argv[2] + ".part").write_bytes(pickle.dumps(result))
    os.rename(sys.argv[2] + ".part", sys.argv[2])
    sys.stdout.flush()
    if "error" not in result:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
