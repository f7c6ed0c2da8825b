#!/usr/bin/env python3
"""The Python package on 4 ranks against one process, in one launch. usage: python_fast.py <build folder> [unittest's]"""
import os
import sys
import unittest

BUILD = os.path.abspath(sys.argv.pop(1))
os.environ["PYTHONPATH"] = os.pathsep.join([os.path.join(BUILD, "python"), os.environ.get("PYTHONPATH", "")])
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ranks  # noqa: E402


class Python(unittest.TestCase):
    def test_is_exact(self):
        found = ranks.run("checks", "fast", world=4, seconds=300)
        for name, (error, seconds) in found[0].items():
            print(f"  {name}: {error}, {seconds} s", flush=True)

    def test_a_refusal_on_one_rank_is_one_on_all(self):
        found = ranks.run("faults", "refusals", world=4, seconds=120)
        for one in found:
            self.assertEqual([error["text"] for error in one], [error["text"] for error in found[0]])
        texts = [error["text"] for error in found[0]]
        self.assertIn("rank 2: startrail:3 does not fit 4 ranks", texts[0])
        self.assertIn("the ranks do not make the same call: rank 1 makes attention of 97 tokens", texts[1])
        self.assertIn("layout 'spiral' is not known", texts[2])
        self.assertNotIn("rank", texts[2].split(":")[0])
        self.assertIn("the ranks do not make the same call: rank 3 makes", texts[3])
        self.assertIn("rank 1: q [1, 4, ", texts[4])
        self.assertIn("rank 2: q [4, ", texts[5])
        self.assertIn("rank 0: q is Float on cpu, k Int", texts[6])
        self.assertIn("q holds 97 tokens on rank 0, but layout zigzag", texts[7])
        self.assertIn("rank 3: a tensor [24, 2] was given to gather", texts[8])
        self.assertRegex(texts[9], r"rank 1 makes a cut of Long \[1, 97\] #\d+, tokens 97, .*: every rank of a group needs "
                                   "the same")
        self.assertIn("rank 3: attention_mask hides tokens in the middle", texts[10])
        self.assertRegex(texts[11], "rank 2 makes .* grid ring, .* and rank 0 .* grid auto, ")
        self.assertIn("rank 3 makes a cut of", texts[12])
        for error in found[0]:
            self.assertEqual(error["types"][0], "ValueError")
            self.assertLess(error["seconds"], 5)

    def test_a_killed_rank_is_named(self):
        job = ranks.Ranks("faults", "dies", world=4, timeout_s=5, number="SIGKILL")
        found = job.wait(60, expect=(2,))
        for rank in (0, 1, 3):
            first, again = found[rank]["value"]
            self.assertTrue(first["is_cluster_error"], first)
            self.assertIn("rank 2", first["text"])
            self.assertEqual(again["text"], first["text"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
