#!/usr/bin/env python3
"""Ranks as processes, in full: many cases, kills and stops at random moments, real launchers, two hosts, strangers at
the ports. `make test-hosts` runs it; as root it installs the launchers that are missing, otherwise their tests are
skipped. usage: hosts_long.py <build folder> [unittest's options]"""
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("STARTRAIL_CASES", "134")
import hosts_fast  # noqa: E402
from hosts import (STARTRAIL, TORCHRUN, Folder, HostsTest, Job, clean_environment, descendants_of, is_alive,
                   is_rank, launch, losses_of, run, torchrun)  # noqa: E402
from machines import ROOT, Slurm, TwoHosts, need  # noqa: E402

SEED = hosts_fast.SEED
KILLS, ATTEND_KILLS, STOPS = 80, 20, 20


class Exactness(hosts_fast.Exactness):
    """The same with more cases."""


class QuickStart(HostsTest):
    def test_has_the_losses_of_local_ranks(self):
        with Folder() as folder:
            more = ["--set", "train.steps=20", "--set", "validate.every=0", "--set", f"data.path={folder.path}/data.txt"]
            config = ["train", "examples/configs/quickstart.toml", *more]
            for name, command in (("local", [STARTRAIL]), ("gloo", torchrun(8, STARTRAIL))):
                code, text = run([*command, *config, "--set", f"run.folder={folder.path}/{name}"])
                self.assertEqual(code, 0, text)
            self.assertEqual(len(losses_of(folder.path / "local")), 20)
            self.assertEqual(losses_of(folder.path / "gloo"), losses_of(folder.path / "local"))


class Pictures(HostsTest):
    def test_are_trained_drawn_and_evaluated(self):
        with Folder() as folder:
            config = ["train", "examples/configs/shapes.toml", "--set", "train.steps=4", "--set", "validate.every=0",
                      "--set", "train.batch=2", "--set", "validate.windows=4"]
            losses = {}
            for name, start in (("local", [STARTRAIL]), ("gloo", launch(4))):
                code, text = run([*start, *config, "--set", f"run.folder={folder.path}/{name}"])
                self.assertEqual(code, 0, text)
                losses[name] = losses_of(folder.path / name)
            self.assertEqual(losses["gloo"], losses["local"])
            pictures = {}
            for name, start, ranks in (("local", [STARTRAIL], ["--ranks", 4]), ("gloo", launch(4), [])):
                out = folder.path / f"{name}.safetensors"
                code, text = run([*start, "sample", "--checkpoint", folder.path / "gloo", "--count", 1, "--steps", 3, "--grid",
                                  "startrail:2", "--out", out, *ranks])
                self.assertEqual(code, 0, text)
                pictures[name] = out.read_bytes()
                code, text = run([*start, "evaluate", "--checkpoint", folder.path / "gloo", "--windows", 2, "--json", *ranks])
                self.assertEqual(code, 0, text)
                losses[name] = re.search(r'"loss": ([\d.e-]+)', text).group(1)
            self.assertEqual(pictures["gloo"], pictures["local"])
            self.assertEqual(losses["gloo"], losses["local"])


class Traces(HostsTest):
    def test_have_a_common_clock(self):
        """Also of hosts that are one node: here they are processes whose clocks are 1,000 s apart."""
        if not ROOT:
            self.skipTest("clocks that differ on one machine need root")
        with Folder() as folder:
            trace = folder.path / "trace.json"
            prefix = "unshare --time --monotonic {rank}000 --fork env STARTRAIL_NODE=one"
            code, text = run(launch(2, *folder.train("run", "--set", "train.steps=3", "--profile", trace),
                                    options=["--prefix", prefix]))
            self.assertEqual(code, 0, text)
            self.assertIn("on 1 node (one)", text)
            spans = {}
            for event in json.loads(trace.read_text())["traceEvents"]:
                if "ts" in event:
                    spans.setdefault(event["pid"], []).append(event["ts"])
            self.assertEqual(sorted(spans), [0, 1])
            for end in (min, max):  # both ranks take part in every step
                self.assertLess(abs(end(spans[0]) - end(spans[1])), 1e6)


class Signals(HostsTest):
    """Being asked to end saves and stops, whoever asks."""

    def expect_saved(self, job, folder, ask):
        self.assertTrue(job.wait_for("step 1/"), job.text())
        ask()
        self.assertIsNotNone(job.wait(40), job.text())
        self.assertIn("stopped at step", job.text())
        self.assertTrue((folder.path / "run/checkpoints/latest").exists())

    def test_sigterm_to_torchrun(self):
        with Folder() as folder:
            with Job(torchrun(3, STARTRAIL, *folder.train("run", "--set", "train.steps=100000"))) as job:
                self.expect_saved(job, folder, lambda: os.kill(job.process.pid, signal.SIGTERM))

    def test_interrupt_to_launch(self):
        with Folder() as folder:
            with Job(launch(3, *folder.train("run", "--set", "train.steps=100000"))) as job:
                self.expect_saved(job, folder, lambda: os.kill(job.process.pid, signal.SIGINT))

    def test_pause_of_launch_is_one_of_all(self):
        with Folder() as folder:
            more = ["--set", "train.steps=100000", "--set", "parallel.timeout_s=2"]
            with Job(launch(3, *folder.train("run", *more))) as job:
                self.assertTrue(job.wait_for("step 1/"), job.text())
                os.kill(job.process.pid, signal.SIGTSTP)
                time.sleep(1)
                states = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for pid in job.ranks().values()]
                self.assertEqual(states, ["T"] * 3)
                time.sleep(3)
                os.kill(job.process.pid, signal.SIGCONT)
                time.sleep(1)
                self.expect_saved(job, folder, lambda: os.kill(job.process.pid, signal.SIGTERM))

    def test_scancel(self):
        if not ROOT:
            self.skipTest("a Slurm of one node needs root to start")
        need("slurmctld", "slurm-wlm munge")
        with Folder() as folder, Slurm(folder.path / "slurm") as conf:
            command = ["srun", "--overcommit", "-n", 3, STARTRAIL, *folder.train("run", "--set", "train.steps=100000")]
            with Job(command, SLURM_CONF=conf) as job:
                environment = clean_environment(SLURM_CONF=conf)
                self.expect_saved(job, folder, lambda: subprocess.run(["scancel", "-u", "root"], env=environment))


class Faults(HostsTest):
    """Every kill and stop: the others end in time with the right name, nothing is left, and the run goes on."""

    TIMEOUT = 3

    def setUp(self):
        print(f"\nSTARTRAIL_SEED={SEED}", flush=True)

    def chain(self, kills, stops, seed, start=launch):
        """One run that is harmed again and again until it is through, with the losses of one that was not."""
        rng = random.Random(seed)
        harms = [signal.SIGKILL] * kills + [signal.SIGSTOP] * stops
        rng.shuffle(harms)
        with Folder() as folder:
            steps = 12 * len(harms)
            settings = ["--set", f"train.steps={steps}", "--set", "run.save_every=2"]
            code, text = run([STARTRAIL, *folder.train("straight", *settings, "--set", "parallel.ranks=4")], 600)
            self.assertEqual(code, 0, text)
            done = 0
            for harm in harms:
                fresh = not (folder.path / "run/checkpoints/latest").exists()
                timeout = ["--set", f"parallel.timeout_s={self.TIMEOUT}"]
                command = (folder.train("run", *settings, *timeout) if fresh else
                           ["train", "--resume", folder.path / "run", *timeout])
                options = ["--label", "--grace", self.TIMEOUT + 1] if start is launch else []
                words = start(4, *command, options=options) if start is launch else start(4, STARTRAIL, *command)
                with Job(words) as job:
                    if not job.wait_for(r"step \d+/") or job.process.poll() is not None:
                        self.assertEqual(job.wait(), 0, job.text())
                        break  # it came through before it could be harmed
                    time.sleep(rng.expovariate(4))
                    ranks = job.ranks()
                    if len(ranks) < 4 or job.process.poll() is not None:
                        self.assertEqual(job.wait(), 0, job.text())
                        break
                    ended_by = signal.SIGKILL if harm == signal.SIGSTOP else None
                    self.expect_fault(job, rng.randrange(4), harm, self.TIMEOUT, ended_by)
                    done += 1
            if (folder.path / "run/checkpoints/latest").exists():
                code, text = run(launch(4, "train", "--resume", folder.path / "run"), 600)
                self.assertTrue(code == 0 or "train.steps is" in text, text)
            self.assertEqual(losses_of(folder.path / "run"), losses_of(folder.path / "straight"))
            return done

    def chains(self, total, wanted):
        """Runs chains two at a time until so many harms were done."""
        with ThreadPoolExecutor(2) as pool:
            done, number = 0, 0
            while done < total:
                batch = [pool.submit(self.chain, *wanted, SEED + number + i) for i in range(2)]
                number += 2
                done += sum(one.result() for one in batch)
        return done

    def test_kills_of_training_and_saving(self):
        print(f"{self.chains(KILLS, (10, 0))} kills", flush=True)

    def test_stops_of_training_and_saving(self):
        print(f"{self.chains(STOPS - 5, (0, 4))} stops", flush=True)

    def attend_and_harm(self, seed, harm):
        rng = random.Random(seed)
        command = launch(4, "attend", "--tokens", 6000, "--repeat", 50, "--timeout-s", self.TIMEOUT,
                         options=["--label", "--grace", self.TIMEOUT + 1])
        with Job(command) as job:
            self.assertTrue(job.wait_for("4 ranks by"), job.text())
            time.sleep(rng.uniform(0, 3))
            self.expect_fault(job, rng.randrange(4), harm, self.TIMEOUT,
                              signal.SIGKILL if harm == signal.SIGSTOP else None)

    def test_kills_and_stops_of_attend(self):
        with ThreadPoolExecutor(2) as pool:
            harms = [signal.SIGKILL] * ATTEND_KILLS + [signal.SIGSTOP] * 5
            for done in [pool.submit(self.attend_and_harm, SEED + i, harm) for i, harm in enumerate(harms)]:
                done.result()

    def test_stops_under_torchrun(self):
        for i in range(5):
            with Folder() as folder:
                settings = ["--set", "train.steps=100000", "--set", f"parallel.timeout_s={self.TIMEOUT}"]
                with Job(torchrun(4, STARTRAIL, *folder.train("run", *settings))) as job:
                    self.assertTrue(job.wait_for("step 1/"), job.text())
                    time.sleep(random.uniform(0, 1))
                    self.expect_fault(job, i % 4, signal.SIGSTOP, self.TIMEOUT)

    def test_long_work_is_no_death(self):
        """Work without a message for more than three times the limit."""
        command = launch(2, "attend", "--grid", "ring", "--tokens", 24000, "--heads", 16, "--repeat", 1, "--timeout-s", 2,
                         "--json")
        code, text = run(command, 600)
        self.assertEqual(code, 0, text)
        self.assertGreater(float(re.search(r'"backward_ms": ([\d.]+)', text).group(1)), 2 * 2 * 3 * 1000, text)

    def expect_restart(self, folder, until, *command):
        """Training on two ranks, of which one is killed when `until` is there, goes on from another checkpoint."""
        once = folder.path / "once"
        script = (f'if [ "$RANK" = 1 ] && [ ! -e {once} ]; then touch {once}; "$@" & p=$!; '
                  f'until [ -e {until} ]; do sleep 0.02; done; kill -9 $p; exit 9; fi; exec "$@"')
        with Job(torchrun(2, "sh", "-c", script, "sh", STARTRAIL, "train", *command, options=["--max-restarts", 1])) as job:
            self.assertEqual(job.wait(100), 0, job.text())
            self.assertEqual(len(set(re.findall(r"from step (\d+)", job.text()))), 2, job.text())

    def test_restart_goes_on_with_what_began_with_a_checkpoint(self):
        """Of another run, where by the restart there is one of its own; and of its own, which is removed by then."""
        for name, keep in (("other", 0), ("straight", 1)):
            with Folder() as folder:
                steps = ["--set", "train.steps=40", "--set", "run.save_every=5", "--set", "run.keep=0"]
                code, text = run([STARTRAIL, *folder.train("straight", *steps, "--set", "parallel.ranks=2")])
                self.assertEqual(code, 0, text)
                straight = losses_of(folder.path / "straight")
                begins = folder.path / "straight/checkpoints/step-00000005"
                own = folder.path / name / "checkpoints"
                if name == "straight":
                    for later in own.glob("step-000000[1-4]*"):
                        shutil.rmtree(later)
                self.expect_restart(folder, own / "step-00000015", "--resume", begins, "--set",
                                    f"run.folder={folder.path / name}", "--set", f"run.keep={keep}")
                found = losses_of(folder.path / name)
                self.assertEqual({step: found[step] for step in range(6, 41)}, {step: straight[step] for step in range(6, 41)})

    def test_restart_with_fewer_processes_than_the_file_says_is_refused(self):
        """As the first start would be."""
        from torch.distributed import TCPStore
        with Folder() as folder:
            file = folder.path / "four.toml"
            file.write_text("[parallel]\nranks = 4\n")
            code, text = run([STARTRAIL, *folder.train("run", "--set", "train.steps=2"), file])
            self.assertEqual(code, 0, text)
            store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # as torchrun's, of a job that began
            store.set("startrail/began", "1")
            again = [STARTRAIL, *folder.train("run", "--set", "train.steps=4"), file]
            jobs = [Job(again, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port),
                        TORCHELASTIC_USE_AGENT_STORE="True") for rank in (0, 1)]
            with jobs[0], jobs[1]:
                self.assertEqual([job.wait(60) for job in jobs], [2, 2], jobs[0].text() + jobs[1].text())
                self.assertIn("parallel.ranks is 4, but 2 processes were started", jobs[0].text() + jobs[1].text())

    def test_a_step_that_takes_too_long_is_not_saved(self):
        with Folder() as folder:
            settings = ["--set", "train.tokens=16384", "--set", "model.dim=512", "--set", "model.heads=8",
                        "--set", "model.layers=6", "--set", "train.batch=8", "--set", "model.hidden=1024"]
            with Job(launch(2, *folder.train("run", *settings), options=["--label"])) as job:
                self.assertTrue(job.wait_for(r"\brun +/"), job.text())
                time.sleep(4)
                start = time.monotonic()
                os.kill(job.process.pid, signal.SIGTERM)
                self.assertEqual(job.wait(60), 3, job.text())
                self.assertGreater(time.monotonic() - start, 20)
                self.assertLess(time.monotonic() - start, 30)
                self.assertIn("stopped without saving", job.text())


class Launchers(HostsTest):
    """The real ones, of which each says which rank a process is in its own way."""

    def expect_attend(self, command, launcher, processes, **environment):
        words = [*command, STARTRAIL, "attend", "--tokens", 500, "--repeat", 1, "--check", "--grid", "ring"]
        code, text = run(words, 120, **environment)
        self.assertEqual(code, 0, text)
        self.assertIn(f"{processes} ranks by {launcher}, over Gloo, on 1 node", text)
        self.assertEqual(text.count("passed: against a float64 reference"), 1, text)

    def test_torchrun(self):
        self.expect_attend([*TORCHRUN, "--nproc-per-node", 3, "--no-python"], "torchrun", 3)

    def test_launch(self):
        code, text = run(launch(3, "attend", "--tokens", 500, "--repeat", 1, "--check", "--grid", "ring"))
        self.assertEqual(code, 0, text)
        self.assertIn("3 ranks by startrail launch", text)

    def test_open_mpi(self):
        need("mpirun.openmpi", "openmpi-bin")
        options = ["--oversubscribe"] + (["--allow-run-as-root"] if ROOT else [])
        self.expect_attend(["mpirun.openmpi", *options, "-n", 4], "Open MPI", 4)
        self.expect_attend(["mpirun.openmpi", *options, "-n", 2, "sh", "-c", '"$@"; exit $?', "sh"], "Open MPI", 2)
        self.expect_attend(["mpirun.openmpi", *options, "-n", 3, "-x", "MASTER_ADDR=127.0.0.1", "-x", "MASTER_PORT=29713"],
                           "Open MPI", 3)

    def test_mpich(self):
        need("mpirun.mpich", "mpich")
        self.expect_attend(["mpirun.mpich", "-n", 4], "MPICH", 4)
        self.expect_attend(["mpirun.mpich", "-n", 2, "sh", "-c", '"$@"; exit $?', "sh"], "MPICH", 2)
        self.expect_attend(["mpirun.mpich", "-n", 3, "-genv", "MASTER_ADDR", "127.0.0.1", "-genv", "MASTER_PORT", "29714"],
                           "MPICH", 3)

    def test_slurm(self):
        if not ROOT:
            self.skipTest("a Slurm of one node needs root to start")
        need("slurmctld", "slurm-wlm munge")
        with Folder() as folder, Slurm(folder.path / "slurm") as conf:
            self.expect_attend(["srun", "--overcommit", "-n", 4], "srun", 4, SLURM_CONF=conf)
            code, text = run(["srun", "--overcommit", "-n", 4, STARTRAIL,
                              *folder.train("run", "--set", "train.steps=3")], 120, SLURM_CONF=conf)
            self.assertEqual(code, 0, text)
            self.assertEqual(len(losses_of(folder.path / "run")), 3)


class Hosts(HostsTest):
    def setUp(self):
        if not ROOT:
            self.skipTest("two hosts on one machine need root")
        need("ip", "iproute2")

    def start(self, hosts, folder, *more, options=()):
        command = folder.train("run", *more)
        return [Job(hosts.torchrun(i, STARTRAIL, *command, options=options)) for i in (0, 1)]

    def test_train_together_and_report_what_crosses(self):
        with TwoHosts() as hosts, Folder() as folder:
            code, text = run([STARTRAIL, *folder.train("local", "--set", "train.steps=8", "--set", "parallel.ranks=4")])
            self.assertEqual(code, 0, text)
            jobs = self.start(hosts, folder, "--set", "train.steps=8", "--profile", folder.path / "trace.json")
            with jobs[0], jobs[1]:
                for job in jobs:
                    self.assertEqual(job.wait(), 0, jobs[0].text() + jobs[1].text())
                self.assertIn("4 ranks by torchrun, over Gloo, on 2 nodes (host0, host1)", jobs[0].text())
                self.assertNotIn("step 1/8", jobs[1].text())
            self.assertEqual(losses_of(folder.path / "run"), losses_of(folder.path / "local"))
            # The crossing bytes of attend are those that the plan counts for two ranks a node.
            jobs = [Job(hosts.torchrun(i, STARTRAIL, "attend", "--tokens", 1000, "--repeat", 1, "--grid", "startrail:2"))
                    for i in (0, 1)]
            with jobs[0], jobs[1]:
                self.assertEqual([job.wait() for job in jobs], [0, 0], jobs[0].text() + jobs[1].text())
                self.assertIn("between the 2 nodes go", jobs[0].text())

    def test_are_reached_by_launch_with_a_prefix(self):
        with TwoHosts() as hosts:
            options = ["--address", "10.78.0.1", "--port", 29711, "--prefix", f"ip netns exec {hosts.name}-{{rank}}"]
            code, text = run(launch(2, "attend", "--grid", "ring", "--tokens", 500, "--repeat", 1, "--check", options=options))
            self.assertEqual(code, 0, text)
            self.assertIn("passed: against a float64 reference", text)

    def test_cut_gives_a_verdict_on_each_side(self):
        with TwoHosts() as hosts, Folder() as folder:
            jobs = self.start(hosts, folder, "--set", "train.steps=100000", "--set", "parallel.timeout_s=4")
            with jobs[0], jobs[1]:
                self.assertTrue(jobs[0].wait_for("step 1/"), jobs[0].text() + jobs[1].text())
                ranks = [pid for job in jobs for pid in descendants_of(job.process.pid) if is_rank(pid)]
                self.assertEqual(len(ranks), 4)
                hosts.cut()
                start = time.monotonic()
                while any(is_alive(pid) for pid in ranks) and time.monotonic() - start < 20:
                    time.sleep(0.05)
                self.assertLessEqual(time.monotonic() - start, 4.5, jobs[0].text() + jobs[1].text())
                self.assertRegex(jobs[0].text(), r"rank 2 on host1, rank 3 on host1 gave no sign of life for 3\.\d s")
                self.assertRegex(jobs[1].text(), r"rank 0 on host0, where the ranks meet, cannot be reached from here")

    def test_restart_goes_on(self):
        with TwoHosts() as hosts, Folder() as folder:
            settings = ["--set", "train.steps=60", "--set", "run.save_every=5", "--set", "parallel.timeout_s=4"]
            code, text = run([STARTRAIL, *folder.train("straight", *settings, "--set", "parallel.ranks=4")])
            self.assertEqual(code, 0, text)
            jobs = self.start(hosts, folder, *settings, options=["--max-restarts", 2])
            with jobs[0], jobs[1]:
                while not (folder.path / "run/checkpoints/latest").exists() and jobs[0].process.poll() is None:
                    time.sleep(0.02)
                victim = next(pid for pid in descendants_of(jobs[1].process.pid) if is_rank(pid))
                os.kill(victim, signal.SIGKILL)
                for job in jobs:
                    self.assertEqual(job.wait(150), 0, jobs[0].text() + jobs[1].text())
                self.assertRegex(jobs[0].text(), r"from step \d+")
            self.assertEqual(losses_of(folder.path / "run"), losses_of(folder.path / "straight"))


class Strangers(HostsTest):
    """Whoever connects to our ports while a job runs does it no harm."""

    def listening(self, pid):
        """(address, port) of a process's listening sockets."""
        inodes = set()
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found = re.match(r"socket:\[(\d+)\]", os.readlink(entry))
            except OSError:
                continue
            if found:
                inodes.add(found.group(1))
        sockets = []
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                sockets.append((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
        tcp6 = Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]
        self.assertFalse([line for line in tcp6 if line.split()[3] == "0A" and line.split()[9] in inodes])
        return sockets

    def test_do_no_harm(self):
        with Folder() as folder, Job(launch(4, *folder.train("run", "--set", "train.steps=400"))) as job:
            self.assertTrue(job.wait_for("step 1/"), job.text())
            ports = [one for pid in job.ranks().values() for one in self.listening(pid)]
            self.assertGreaterEqual(len(ports), 4)
            for address, _ in ports:
                self.assertEqual(address, "127.0.0.1")

            def bother(port):
                for noise in (os.urandom(64), os.urandom(65536), b"GET / HTTP/1.1\r\n\r\n", bytes(4096), b"\xff" * 4096):
                    for _ in range(100):
                        try:
                            with socket.socket() as one:
                                one.setblocking(False)
                                one.connect_ex(("127.0.0.1", port))
                                time.sleep(0.0005)
                                one.send(noise)
                        except OSError:
                            pass

            threads = [threading.Thread(target=bother, args=(port,)) for _, port in ports]
            for one in threads:
                one.start()
            held = []
            for _ in range(500):
                for _, port in ports:
                    one = socket.socket()
                    one.setblocking(False)
                    one.connect_ex(("127.0.0.1", port))
                    held.append(one)
            for one in threads:
                one.join()
            self.assertEqual(job.wait(), 0, job.text())
            for one in held:
                one.close()
            self.assertIn("step 400/400", job.text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
