#!/usr/bin/env python3
"""All of the Python package: models, trainers, compilers, faults, examples, installing. usage: python_long.py <build>
[unittest's]"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = os.path.abspath(sys.argv.pop(1))
os.environ["PYTHONPATH"] = os.pathsep.join([os.path.join(BUILD, "python"), os.environ.get("PYTHONPATH", "")])
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(BUILD, "python")]
import ranks  # noqa: E402


def show(name, value):
    print(f"  {name}: {json.dumps(value, default=str)}", flush=True)


class Models(unittest.TestCase):
    def test_more_models(self):
        show("errors", ranks.run("more_checks", "more_models")[0])

    def test_checkpoints(self):
        show("attention ran", ranks.run("more_checks", "checkpoints")[0])

    def test_the_naive_ways_are_wrong(self):
        found = ranks.run("more_checks", "naive")[0]
        show("errors", found)
        self.assertLess(found.pop("right"), 5e-6)
        for name, error in found.items():
            self.assertGreater(error, 0.1, name)

    def test_refusals(self):
        found = ranks.run("refused", "refusals")
        for one in found:
            self.assertEqual(re.sub("[0-9]+", "N", str(one)), re.sub("[0-9]+", "N", str(found[0])))
        expected = {
            "whole batch": "no sequence came along", "generate": "no sequence came along",
            "padding given to the model": "has padding", "dropout": "attention dropout 0.1", "rope": "rope dynamic",
            "softcap": "softcap is not computed", "sinks": "s_aux is not computed", "not compared": "type gemma were not",
            "cache": "use_cache=False", "mask of pairs": "is no mask of tokens",
            "padding and documents": "give one of them", "documents": "do not add up", "no input": "neither input_ids",
            "documents twice": "both say where", "flat": "are no batch", "few tokens": "rank 0 of 4 would hold none of 3",
            "an empty rank": "rank 1 of 4 would hold none", "scale": "no factor of scores",
            "context weights": "need_weights=False", "own loss": "compute_loss_func need", "own count": "leave it True",
            "hole": "in the middle of a row", "jump": "position_ids jump", "flat positions": "position_ids [97] do not fit",
            "no tokens": "cu_seq_lens_q [3] has no", "keys alone": "give key_tokens too", "layout and lengths": "leave out",
            "forward mode": "no forward-mode derivative", "no ranks": "0 ranks cannot be planned",
            "gather": "has no gradient", "vmap": "cannot be transformed", "func.grad": "cannot be transformed",
            "token classes": "to match target batch_size (0)", "shifts by itself": "to match target batch_size (0)",
            "half": "valid types: float32, bfloat16, float64", "double backward": "not",
            "position_bias": "position_bias is not", "head_mask": "head_mask is not", "cu_seq_lens_q": "cu_seq_lens_q is",
            "cu_seq_lens_k": "cu_seq_lens_k is", "output_attentions": "output_attentions is", "mask tensor": "as a tensor",
            "cross attention": "cross attention", "layer kinds": "chunked_attention", "overlay": "documents= to startrail",
            "mesh names": "name them dp and cp", "stream": "a dataset without a length", "context mask": "use is_causal",
            "context dropout": "no dropout", "buffers": "give at least one", "buffer twice": "given twice",
            "buffer kept": "not among buffers", "diffusers mask": "compute a mask", "diffusers dropout": "compute dropout",
            "diffusers causal": "a causal mask", "diffusers lse": "return_lse", "accelerate": "MULTI_CPU",
            "noise": "neftune_noise_alpha scales", "compiled checkpoints": "context_fn=startrail.checkpoint_contexts",
            "mesh of two": "a mesh of 2 dimensions", "no member": "none of the group's", "a group of numbers": "type list",
            "lists": "input_ids is a list", "context scale": "scale 0.0 is no factor", "buffer dim": "no dimension 3",
            "buffer with gradient": "autograd cannot follow", "few pieces": "pieces for 2 ranks, not for 4",
            "traced": "without data", "stream to evaluate": "a dataset without a length"}
        self.assertEqual(set(found[0]), set(expected))
        for name, part in expected.items():
            self.assertIn(part, found[0][name], name)

    def test_autocast_and_context_parallel(self):
        ranks.run("more_checks", "autocast")
        ranks.run("more_checks", "ignored_labels")
        ranks.run("more_checks", "unused_shards")
        show("context_parallel", ranks.run("more_checks", "context_parallel")[0])

    def test_data_parallel(self):
        show("errors", ranks.run("more_checks", "data_parallel")[0])

    def test_trainer(self):
        with tempfile.TemporaryDirectory() as folder:
            (want, weights), = ranks.run("more_checks", "trainer_alone", world=1, folder=folder)
            split = ranks.run("more_checks", "trainer", folder=folder)
            both = ranks.run("more_checks", "trainer_on_mesh", folder=folder)
            for number, (have, split_weights) in enumerate([*split, *both]):
                self.assertEqual(len(have), len(want))
                first = [row[3] is not None for row in want].index(True)
                for at, (mine, theirs) in enumerate(zip(have, want)):
                    for a, b in zip(mine, theirs):
                        self.assertEqual(a is None, b is None)
                        # Data ranks evaluate batches of other rows, where a batch has several.
                        if a is not None and (number < len(split) or at != first):
                            self.assertLess(abs(a - b), 2e-5 * abs(b), (have, want))
                for name, value in weights.items():
                    self.assertLess((value - split_weights[name]).abs().max().item(), 1e-6)
            show("losses, norms", have)

    def test_trainer_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            for whole, again in ranks.run("more_checks", "resumed", folder=folder):
                self.assertEqual(len(whole), 9)
                self.assertEqual(again, whole)


class Compilers(unittest.TestCase):
    def test_opcheck(self):
        ranks.run("more_checks", "opcheck")

    def test_aot_eager(self):
        show("errors", ranks.run("more_checks", "compiled", backend="aot_eager", seconds=900)[0])

    def test_inductor(self):
        show("errors", ranks.run("more_checks", "compiled", backend="inductor", grids=("startrail:2",), timeout_s=600,
                                 seconds=900)[0])


class Faults(unittest.TestCase):
    def faults(self, function, expect=(), timeout_s=4, **arguments):
        return ranks.Ranks("faults", function, world=4, timeout_s=timeout_s, **arguments).wait(90, expect)

    def check_all_raised(self, found, parts, limit=8):
        for result in found:
            error = result["value"]
            self.assertTrue(error["is_cluster_error"], error)
            self.assertLess(error["seconds"], limit)
            for part in parts:
                self.assertIn(part, error["text"])

    def test_known_against_new(self):
        found = self.faults("known_against_new")
        self.check_all_raised(found, ["rank 2", "grid ring", "grid startrail:2"])

    def test_known_against_known(self):
        found = self.faults("known_against_known")
        self.check_all_raised(found, ["rank 2", "grid ring", "grid startrail:2"])

    def test_one_call_less(self):
        found = self.faults("one_call_less")
        self.check_all_raised([found[0], *found[2:]], ["rank 1 was in none"])

    def test_a_rank_that_ends_early(self):
        found = self.faults("ends_early", timeout_s=60)
        self.check_all_raised([found[0], *found[2:]], ["rank 1", "had ended"], limit=15)

    def test_a_wrong_length_of_one_rank(self):
        found = self.faults("wrong_length_of_a_known_call")
        self.assertEqual(found[2]["value"]["types"][0], "ValueError")
        self.check_all_raised([found[0], found[1], found[3]], ["rank 2 failed: q holds"])

    def test_a_dead_rank_is_named(self):
        for number in ("SIGKILL", "SIGSEGV"):
            for _ in range(5):
                found = self.faults("dies", expect=(2,), number=number)
                for rank in (0, 1, 3):
                    first, again = found[rank]["value"]
                    self.assertTrue(first["is_cluster_error"])
                    self.assertIn("rank 2", first["text"])
                    self.assertEqual(again["text"], first["text"])

    def test_a_stopped_rank_is_named(self):
        job = ranks.Ranks("faults", "dies", world=4, timeout_s=4, number="SIGSTOP")
        for rank in (0, 1, 3):
            job.processes[rank].wait(60)
        job.signal(2)
        found = job.wait(30, expect=(2,))
        for rank in (0, 1, 3):
            self.assertIn("rank 2", found[rank]["value"][0]["text"])
            self.assertLess(found[rank]["value"][0]["seconds"], 30)

    def test_a_forked_child_ends(self):
        """It has none of the threads that are waited for at the end."""
        for code in ranks.run("faults", "forks", timeout_s=20, seconds=60):
            self.assertEqual(code, 0)

    def test_programs_end_in_order(self):
        """torch aborts one in some where a thread of Gloo lets go of a tensor while Python ends."""
        for _ in range(4):
            job = ranks.Ranks("faults", "collectives_at_the_end", world=8)
            job.wait(120)
            self.assertEqual([process.returncode for process in job.processes], [0] * 8)

    def test_a_rank_that_computes_is_not_dead(self):
        seconds = ranks.run("faults", "computes_long", timeout_s=2, seconds=120)
        self.assertGreater(max(seconds), 2.5)


class Package(unittest.TestCase):
    def run_in(self, *command, **options):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_examples(self):
        for example in sorted((ROOT / "examples/python").glob("*.py")):
            self.assertLess(len(example.read_text().splitlines()), 60, example)
            command = [sys.executable]
            if "torchrun" in example.read_text():
                command += ["-m", "torch.distributed.run", "--nproc-per-node", "4"]
            out = self.run_in(*command, str(example), env=dict(os.environ, ACCELERATE_USE_CPU="true"))
            show(example.name, out.strip().splitlines()[-1])

    def test_the_command(self):
        self.assertIn("usage", self.run_in(sys.executable, "-m", "startrail", "--help").lower())

    def test_refuses_in_the_words_of_the_command(self):
        import startrail
        for given in (dict(grid="startrail:3"), dict(grid="heads=2,team=2,ring=2"), dict(layout="spiral"), dict(tokens=0),
                      dict(kernel="fast"), dict(backward="both"), dict(heads=3, grid="ulysses")):
            given = {**dict(grid="ring", tokens=97, heads=4, layout="zigzag", kernel="auto", backward="auto"), **given}
            words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
            done = subprocess.run([sys.executable, "-m", "startrail", "attend", "--ranks", "4", *words],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, (given, done.stderr))
            heads = given.pop("heads")
            with self.assertRaises(ValueError) as refused:
                startrail.plan(startrail.AttentionOptions(**given), ranks=4, heads=heads)
            self.assertEqual(done.stderr.strip(), f"startrail: {str(refused.exception).splitlines()[0]}")

    def test_a_run_is_read(self):
        """What the command trained: its metrics, and its checkpoint in transformers."""
        import transformers

        import startrail
        with tempfile.TemporaryDirectory() as folder:
            settings = ("data.path=startrail", "train.steps=3", "train.tokens=64", "model.layers=1",
                        f"run.folder={folder}/run")
            self.run_in(sys.executable, "-m", "startrail", "train", *(word for one in settings for word in ("--set", one)))
            run = startrail.load_run(f"{folder}/run")
            self.assertEqual(run.metrics["step"], [1, 2, 3])
            self.assertTrue(all(0 < loss < 10 for loss in run.metrics["loss"]))
            model = transformers.AutoModelForCausalLM.from_pretrained(run.checkpoints[-1])
            self.assertEqual(model.config.num_hidden_layers, 1)
            with open(f"{folder}/run/metrics.jsonl", "a") as file:
                file.write("7\n")
            with self.assertRaisesRegex(ValueError, "line [0-9]+ is no row of a run: 7"):
                startrail.load_run(f"{folder}/run")

    def test_other_versions_are_refused(self):
        for name, other in (("transformers", "4.57.1"), ("diffusers", "0.43.0"), ("torch", "2.14.0")):
            part = "startrail" if name == "torch" else f"startrail.{name}"
            said = subprocess.run([sys.executable, "-c", f"import {name}; {name}.__version__ = '{other}'; import {part}"],
                                  capture_output=True, text=True).stderr
            self.assertRegex(said, rf"ImportError: .*{name}.*{re.escape(other)}.*pip install '{name}==")

    def test_types_and_lint(self):
        self.run_in(sys.executable, "-m", "mypy")
        self.run_in(sys.executable, "-m", "ruff", "check", "python", "examples/python", "tests/python")

    def test_installs_from_a_clone_and_as_a_wheel(self):
        """Into environments of their own, where the first example runs; another torch is refused."""
        with tempfile.TemporaryDirectory() as folder:
            clone = f"{folder}/clone"
            self.run_in("git", "clone", "-q", str(ROOT), clone)
            clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TORCH_DIR")}
            pythons = []
            for name in ("first", "second"):
                self.run_in(sys.executable, "-m", "venv", f"{folder}/{name}")
                pythons.append(f"{folder}/{name}/bin/python")
            pip = lambda python, *words: self.run_in(python, "-m", "pip", "install", "-qq", *words, env=clean)
            done = subprocess.run([pythons[0], "-m", "pip", "install", clone], capture_output=True, text=True, env=clean)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("pip install torch==2.13.0 first", " ".join((done.stdout + done.stderr).split()))
            for python in pythons:
                pip(python, "torch==2.13.0", "numpy", "transformers==5.22.2", "accelerate==1.15")
            pip(pythons[0], clone)
            self.run_in(pythons[0], "-m", "pip", "wheel", "-qq", "--no-deps", "-w", f"{folder}/dist", clone, env=clean)
            wheel, = Path(f"{folder}/dist").iterdir()
            self.assertRegex(wheel.name, r"^startrail-.*-py3-none-.*linux.*\.whl$")
            show("wheel", f"{wheel.name}, {wheel.stat().st_size / 1e6:.2f} MB")
            pip(pythons[1], str(wheel))
            for python in pythons:
                out = self.run_in(python, "-m", "torch.distributed.run", "--nproc-per-node", "4",
                                  f"{clone}/examples/python/finetune_llama.py", env=dict(clean, ACCELERATE_USE_CPU="true"))
                show("example", out.strip().splitlines()[-1])
                self.assertIn("attend", self.run_in(python, "-m", "startrail", "--help", env=clean))
            library = Path(self.run_in(pythons[1], "-c", "import startrail; print(startrail.__file__)", env=clean).strip())
            said = subprocess.run([pythons[1], "-c", "import torch; torch.__version__ = '2.14.0'; import startrail"],
                                  capture_output=True, text=True, env=clean)
            self.assertIn("pip install 'torch==2.13.*'", said.stderr)
            for file in (library.parent / "libstartrail_operators.so", library.parent / "startrail"):
                self.assertFalse(folder.encode() in file.read_bytes(), f"{file.name} names folders of where it was built")
            needs = self.run_in("readelf", "-d", str(library.parent / "startrail"))
            for name in ("png", "jpeg", "pcre2", "utf8proc", "zstd"):  # what the machine may lack
                self.assertNotIn(f"[lib{name}", needs)

    def test_host_cost(self):
        found = ranks.run("more_checks", "host_cost", world=1)[0]
        show("us a call", {name: round(1e6 * value, 1) for name, value in found.items()})


if __name__ == "__main__":
    unittest.main(verbosity=2)
