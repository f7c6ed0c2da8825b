#!/usr/bin/env python3
"""Ranks as processes, as far as every change should be tried: exact as local ranks, trained to the same bits, ended well.
usage: hosts_fast.py <build folder> [names of tests]"""
import contextlib
import json
import os
import random
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from hosts import STARTRAIL, WORKER, Folder, HostsTest, Job, launch, losses_of, run, run_together, torchrun

SEED = int(os.environ.get("STARTRAIL_SEED", random.randrange(1 << 30)))
CASES = int(os.environ.get("STARTRAIL_CASES", 20))  # of each number of processes


@contextlib.contextmanager
def by_hand(commands, size=None):
    """A job for each of the commands, as the ranks of one that has `size`, without a launcher."""
    port = str(random.randrange(20000, 30000))
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Job(command, RANK=str(rank), WORLD_SIZE=str(size or len(commands)), LOCAL_RANK=str(rank),
                                       MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
               for rank, command in enumerate(commands)]


class Exactness(HostsTest):
    def test_is_that_of_local_ranks_to_the_bit(self):
        print(f"STARTRAIL_SEED={SEED} STARTRAIL_CASES={CASES}", flush=True)
        for processes in (2, 4, 8):
            code, text = run(torchrun(processes, WORKER, CASES, SEED + processes))
            self.assertEqual(code, 0, text)
            self.assertIn(f"{CASES} cases on {processes} processes, 0 failed", text)

    def test_holds_for_the_command(self):
        code, text = run(launch(4, "attend", "--tokens", 500, "--repeat", 1, "--check"))
        self.assertEqual(code, 0, text)
        self.assertIn("passed: against a float64 reference", text)
        self.assertEqual(text.count("startrail:2 on 4 ranks"), 1, text)  # only rank 0 speaks


class Nodes(HostsTest):
    def test_are_named_and_what_crosses_is_counted(self):
        """With a node for each rank, all that is sent crosses."""
        words = ["attend", "--tokens", 300, "--repeat", 1, "--json"]
        code, text = run(launch(4, *words, options=["--prefix", "env STARTRAIL_NODE=n{rank}"]))
        self.assertEqual(code, 0, text)
        found = json.loads(text[text.index("{"):])
        self.assertEqual(found["nodes"], ["n0", "n1", "n2", "n3"])
        self.assertEqual(found["comm"], "gloo")
        sent = sum(kind["mean"] for way in found["bytes"].values() for kind in way.values())
        self.assertEqual(found["crossing_bytes"]["mean"], sent)
        self.assertIn("on 4 nodes (n0, n1, n2, n3)", text)


class Training(HostsTest):
    def test_has_the_losses_of_local_ranks_and_goes_on_across(self):
        with Folder() as folder:
            code, text = run([STARTRAIL, *folder.train("local", "--set", "train.steps=12", "--set", "parallel.ranks=8",
                                                       "--set", "parallel.grid=startrail:2")])
            self.assertEqual(code, 0, text)
            local = losses_of(folder.path / "local")
            self.assertEqual(len(local), 12)
            whole = ["--set", "parallel.grid=startrail:2", "--set", "run.save_every=6"]
            code, text = run(torchrun(8, STARTRAIL, *folder.train("gloo", "--set", "train.steps=12", *whole, "--profile",
                                                                  folder.path / "trace.json")))
            self.assertEqual(code, 0, text)
            self.assertIn("8 ranks by torchrun, over Gloo, on 1 node", text)
            self.assertEqual(losses_of(folder.path / "gloo"), local)
            trace = json.loads((folder.path / "trace.json").read_text())
            events = trace["traceEvents"]
            names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
            self.assertEqual(names, {f"rank {rank}" for rank in range(8)})
            # Each arrow has both its ends, and ranks waited as long as the steps say.
            ends = [sorted(event["id"] for event in events if event["ph"] == end) for end in "sf"]
            self.assertGreater(len(ends[0]), 100)
            self.assertEqual(*ends)
            steps = [event for event in events if event.get("cat") == "step"]
            waits = sum(event["dur"] for event in events if event.get("cat") == "wait" and any(
                step["pid"] == event["pid"] and step["ts"] <= event["ts"] < step["ts"] + step["dur"] for step in steps))
            self.assertAlmostEqual(waits / sum(step["dur"] for step in steps), trace["otherData"]["wait_share"], delta=0.01)
            self.assertEqual(trace["otherData"]["comm"], "gloo")
            # From the middle: by 4 processes what 8 began, and by local ranks what processes did.
            middle = str(folder.path / "gloo/checkpoints/step-00000006")
            for name, command in (("four", launch(4, "train", "--resume", middle)),
                                  ("threads", [STARTRAIL, "train", "--resume", middle])):
                code, text = run([*command, "--set", f"run.folder={folder.path}/{name}"])
                self.assertEqual(code, 0, text)
                for step, loss in losses_of(folder.path / name).items():
                    self.assertAlmostEqual(loss, local[step], delta=2e-5)
                if name == "threads":
                    self.assertEqual(losses_of(folder.path / name)[12], local[12])

    def test_stops_with_a_checkpoint(self):
        with Folder() as folder, Job(launch(2, *folder.train("run", "--set", "train.steps=100000"))) as job:
            self.assertTrue(job.wait_for("step 1/"), job.text())
            os.kill(job.process.pid, signal.SIGTERM)
            self.assertEqual(job.wait(30), 75, job.text())
            self.assertRegex(job.text(), r"stopping: finishing step \d+ and saving it takes about \d+ s; once more, 2 s")
            self.assertIn("stopped at step", job.text())
            self.assertTrue((folder.path / "run/checkpoints/latest").exists())

    def test_stops_while_it_is_validated(self):
        with Folder() as folder:
            more = ["--set", "train.steps=100", "--set", "validate.every=3", "--set", "validate.windows=100000",
                    "--set", "train.tokens=64"]
            with Job(launch(2, *folder.train("run", *more))) as job:
                metrics = folder.path / "run/metrics.jsonl"
                while not metrics.exists() or len(metrics.read_text().splitlines()) < 4:  # its head, three steps
                    self.assertIsNone(job.process.poll(), job.text())
                    time.sleep(0.02)
                os.kill(job.process.pid, signal.SIGTERM)
                self.assertEqual(job.wait(30), 75, job.text())
                self.assertIn("stopped at step 3 of 100", job.text())
            self.assertTrue((folder.path / "run/checkpoints/step-00000003").exists())


class Refusals(HostsTest):
    """One sentence, said once, by all processes' exit with 2."""

    def expect(self, command, sentence, **environment):
        code, text = run(command, **environment)
        self.assertEqual(code, 2, text)
        self.assertEqual(text.count(sentence), 1, text)

    def test_are_said_once(self):
        with Folder() as folder, ThreadPoolExecutor(2) as pool:
            cases = [
                (launch(4, "attend", "--ranks", 8), "--ranks 8 does not go with the 4 processes that were started"),
                (launch(2, "attend", "--grid", "rings"), "grid 'rings'"),
                (launch(2, *folder.train("run", "--set", "parallel.ranks=4")),
                 "parallel.ranks is 4, but 2 processes were started"),
                (launch(2, "plan"), "plan runs in one process, but startrail launch started 2 of them"),
                (launch(2, "attend", options=["--address", "192.0.2.1"]), "--address 192.0.2.1 is not one of this host"),
                ([STARTRAIL, "attend", "--comm", "gloo"], "--comm gloo needs one process for each rank"),
                ([STARTRAIL, "attend", "--comm", "mpi"], "comm 'mpi' is not known; valid: auto, local, gloo"),
            ]
            for done in [pool.submit(self.expect, *case) for case in cases]:
                done.result()

    def test_name_the_ranks_that_differ(self):
        with Folder() as folder:
            train = [STARTRAIL, *folder.train("run")]
            cases = [([*train, "--set", "train.seed=2"], "train.seed: train.seed is 2 at rank 1"),
                     ([*train, "--profile", folder.path / "trace.json"], "--profile: --profile is "),
                     ([STARTRAIL, "attend"], "the command: the command is attend at rank 1")]
            for other, differs in cases:
                with by_hand([train, other]) as jobs:
                    self.assertEqual([job.wait(60) for job in jobs], [2, 2], jobs[0].text() + jobs[1].text())
                    text = jobs[0].text() + jobs[1].text()
                    self.assertEqual(text.count(f"rank 1 differs from rank 0 in {differs}"), 1, text)
            self.assertFalse((folder.path / "run").exists())

    def test_name_the_rank_that_cannot_use_the_run_folder(self):
        with Folder() as folder:
            (folder.path / "elsewhere").mkdir()
            train = [STARTRAIL, *folder.train("run"), "--set", "run.folder=mine"]
            with by_hand([["sh", "-c", f'cd {place}; exec "$@"', "sh", *train]
                          for place in (folder.path, folder.path / "elsewhere")]) as jobs:
                self.assertEqual([job.wait(60) for job in jobs], [2, 2], jobs[0].text() + jobs[1].text())
                text = jobs[0].text() + jobs[1].text()
            self.assertRegex(text, r"rank 1 on \S+ cannot use run.folder mine: it does not see what rank 0 wrote there; it "
                                   "must be the same folder for all ranks")
            self.assertNotIn("step 1/", text)

    def test_gpt_writes_text_on_one_rank(self):
        with Folder() as folder:
            code, text = run([STARTRAIL, *folder.train("run", "--set", "train.steps=1")])
            self.assertEqual(code, 0, text)
            self.expect(launch(2, "sample", "--checkpoint", folder.path / "run"),
                        "a GPT writes its text on one rank, but startrail launch started 2 processes")
            code, text = run(launch(2, "evaluate", "--checkpoint", folder.path / "run", "--json"))
            self.assertEqual(code, 0, text)
            self.assertEqual(text.count('"loss"'), 1, text)


class Meeting(HostsTest):
    def test_behind_shells(self):
        """mpirun may start scripts that start the ranks: the port is made of the launcher's number, this process's."""
        command = ["sh", "-c", '"$@"; exit $?', "sh", STARTRAIL, "attend", "--tokens", 100, "--repeat", 1, "--grid", "ring"]
        jobs = [Job(command, OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK=str(rank),
                    OMPI_COMM_WORLD_LOCAL_SIZE="2") for rank in (0, 1)]
        with jobs[0], jobs[1]:
            for job in jobs:
                self.assertEqual(job.wait(60), 0, job.text())
            self.assertIn("2 ranks by Open MPI", jobs[0].text())

    def test_without_rank_0_ends_at_once(self):
        """Rank 2 never comes, and rank 0, which has the store, is killed while the others wait."""
        with by_hand([[STARTRAIL, "attend"]] * 2, size=3) as jobs:
            time.sleep(3)
            os.kill(jobs[0].process.pid, signal.SIGKILL)
            self.assertEqual(jobs[1].wait(10), 3, jobs[1].text())


class Faults(HostsTest):
    """A rank that is killed or stopped is named, and the others end within parallel.timeout_s, 3 s here."""

    SLACK = 2  # the time itself is what hosts_long.py is strict about

    def train_and_harm(self, victim, harm, ended_by=None):
        with Folder() as folder:
            more = ["--set", "train.steps=100000", "--set", "run.save_every=2", "--set", "parallel.timeout_s=3"]
            options = ["--label", "--grace", 3]
            with Job(launch(4, *folder.train("run", *more), options=options)) as job:
                self.assertTrue(job.wait_for("step 1/"), job.text())
                while not (folder.path / "run/checkpoints/latest").exists():
                    time.sleep(0.02)
                time.sleep(random.uniform(0, 0.5))
                self.expect_fault(job, victim, harm, 3, ended_by)
            code, text = run([STARTRAIL, "train", "--resume", folder.path / "run", "--dry-run"])
            self.assertEqual(code, 0, text)

    def attend_and_harm(self, victim, harm, ended_by=None):
        command = launch(4, "attend", "--tokens", 8192, "--repeat", 50, "--timeout-s", 3, options=["--label", "--grace", 3])
        with Job(command) as job:
            self.assertTrue(job.wait_for("4 ranks by"), job.text())
            time.sleep(random.uniform(0.5, 1.5))
            self.expect_fault(job, victim, harm, 3, ended_by)

    def test_all_ends_well(self):
        with ThreadPoolExecutor(2) as pool:
            cases = [(self.train_and_harm, 2, signal.SIGKILL), (self.train_and_harm, 0, signal.SIGKILL),
                     (self.train_and_harm, 1, signal.SIGSTOP, signal.SIGKILL),
                     (self.train_and_harm, 0, signal.SIGSTOP, signal.SIGKILL),
                     (self.attend_and_harm, 3, signal.SIGKILL), (self.attend_and_harm, 1, signal.SIGSTOP, signal.SIGKILL)]
            for done in [pool.submit(*case) for case in cases]:
                done.result()

    def test_two_at_once_leave_one_verdict(self):
        """Also when the two are those that would speak otherwise."""
        with Folder() as folder:
            more = ["--set", "train.steps=100000", "--set", "parallel.timeout_s=3"]
            with Job(launch(4, *folder.train("run", *more))) as job:
                self.assertTrue(job.wait_for("step 1/"), job.text())
                ranks = job.ranks()
                for rank in (0, 1):
                    os.kill(ranks[rank], signal.SIGKILL)
                self.assertIsNotNone(job.wait(30), job.text())
                self.assertEqual(job.text().count("ended without a word"), 1, job.text())

    def test_a_pause_of_all_is_no_death(self):
        with Folder() as folder:
            settings = ["--set", "train.steps=100000", "--set", "parallel.timeout_s=2"]
            with Job(launch(3, *folder.train("run", *settings))) as job:
                self.assertTrue(job.wait_for("step 1/"), job.text())
                ranks = job.ranks().values()
                for harm in (signal.SIGSTOP, signal.SIGCONT):
                    for pid in ranks:
                        os.kill(pid, harm)
                    time.sleep(3)
                self.assertIsNone(job.process.poll(), job.text())
                os.kill(job.process.pid, signal.SIGTERM)
                self.assertEqual(job.wait(30), 75, job.text())

    def test_restart_goes_on_by_itself(self):
        with Folder() as folder:
            steps = ["--set", "train.steps=30", "--set", "run.save_every=5"]
            code, text = run([STARTRAIL, *folder.train("straight", *steps, "--set", "parallel.ranks=2")])
            self.assertEqual(code, 0, text)
            # A rank that is killed once, in the middle.
            once = folder.path / "once"
            script = (f'if [ "$RANK" = 1 ] && [ ! -e {once} ]; then touch {once}; "$@" & p=$!; '
                      f'until [ -e {folder.path}/run/checkpoints/latest ]; do sleep 0.02; done; kill -9 $p; exit 9; '
                      'fi; exec "$@"')
            with Job(torchrun(2, "sh", "-c", script, "sh", STARTRAIL, *folder.train("run", *steps),
                              options=["--max-restarts", 1])) as job:
                self.assertEqual(job.wait(100), 0, job.text())
                self.assertTrue(re.search(r"from step (5|10|15|20|25)", job.text()), job.text())
            self.assertEqual(losses_of(folder.path / "run"), losses_of(folder.path / "straight"))


if __name__ == "__main__":
    run_together(3)
