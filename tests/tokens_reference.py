"""What tokenizers and transformers make of tokens: the other side of tokens_test.cc.

usage: tokens_reference.py make FOLDER          a tokenizer of ids up to 128,255 in FOLDER/tokenizer, and text in
                                               FOLDER/text and FOLDER/other.jsonl
       tokens_reference.py check FOLDER MODEL LOSS TOKENS
                                               loads the folder MODEL with its tokenizer, and compares its loss on
                                               FOLDER/other.jsonl, in sequences of TOKENS, with LOSS
"""
import json
import os
import sys

import numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 128256
END = "<|end_of_text|>"
WORDS = "the ring of ranks passes its keys around and each team merges what it has seen of the row".split()


def documents(seed, count):
    draw = numpy.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(5, 60))) + f" {i}." for i in range(count)]


def make_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(documents(0, 200), trainers.BpeTrainer(
        vocab_size=400, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    # As large as Llama 3's: ids that only uint32 holds.
    file = json.loads(tokenizer.to_str())
    file["model"]["vocab"] = {token: 100000 + id for token, id in file["model"]["vocab"].items()}
    file["model"]["vocab"][END] = file["added_tokens"][0]["id"] = 128001
    file["model"]["vocab"]["<|last|>"] = VOCABULARY - 1
    file["added_tokens"].append({**file["added_tokens"][0], "content": "<|last|>", "id": VOCABULARY - 1})
    os.makedirs(folder)
    with open(f"{folder}/tokenizer.json", "w") as out:
        json.dump(file, out)


def write_lines(file, texts):
    with open(file, "w") as out:
        out.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def make(folder):
    make_tokenizer(f"{folder}/tokenizer")
    os.makedirs(f"{folder}/text")
    write_lines(f"{folder}/text/b.jsonl", documents(1, 60))
    with open(f"{folder}/text/a.txt", "w") as out:
        out.write("\n".join(documents(2, 60)))
    write_lines(f"{folder}/other.jsonl", documents(3, 12))


def check(folder, model_folder, loss, tokens):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    original = Tokenizer.from_file(f"{folder}/tokenizer/tokenizer.json")
    for text in documents(4, 5) + ["Ünïcode, 42  spaces\n"]:
        ids = tokenizer(text)["input_ids"]
        assert ids == original.encode(text).ids, (ids, original.encode(text).ids)
        assert tokenizer.decode(ids) == text, (tokenizer.decode(ids), text)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == (END, 128001), tokenizer.eos_token
    model, loading = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, output_loading_info=True)
    assert not any(loading.values()), loading
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 128001
    assert model.config.vocab_size == VOCABULARY
    row = torch.tensor([id for text in documents(3, 12) for id in [*original.encode(text).ids, 128001]])
    assert row.min() > 65535
    count, losses = (len(row) - 1) // tokens, []
    with torch.no_grad():
        for i in range(count):
            part = row[i * tokens:(i + 1) * tokens + 1]
            losses.append(torch.nn.functional.cross_entropy(model(part[None, :-1]).logits[0], part[1:]).item())
        written = model.generate(**tokenizer("the ring", return_tensors="pt"), max_new_tokens=4, do_sample=False)
    print(json.dumps(written[0].tolist()))
    if abs(sum(losses) / count - loss) > 1e-4:
        sys.exit(f"transformers' loss is {sum(losses) / count}, not {loss}")


if sys.argv[1] == "make":
    make(sys.argv[2])
else:
    check(sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
