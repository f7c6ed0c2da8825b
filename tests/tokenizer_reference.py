"""Mixed text, three byte-level BPE tokenizers trained on it, and the tokens that Hugging Face's tokenizers gives.

usage: tokenizer_reference.py <folder> <bytes of text>
Writes corpus.jsonl, and for each tokenizer a folder with its tokenizer.json and expected.bin: uint16, documents one after
the other, each followed by the end token.
"""
import json
import random
import sys
import unicodedata
from pathlib import Path

import numpy
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
END = "<|endoftext|>"


def documents(size):
    chance = random.Random(5)
    files = [path.read_text() for path in sorted(Path().glob("docs/*.md")) + sorted(Path().glob("startrail/*/*.cc"))]
    letters = [chr(point) for point in range(0x20000) if unicodedata.category(chr(point)) not in ("Cn", "Cs", "Co")]
    marks = [letter for letter in letters if unicodedata.combining(letter)]
    odd = ["", " ", "\n", "\r\n\r\n", "a" * 5000, " " * 3000, "\u661f" * 4000, END, f"a{END}b {END}", "<mark>", " <mark> x",
           "e\u0301 \u1112\u1161\u11ab \u212b \u0958", "\U0001f469\u200d\U0001f4bb\ufe0f \U0001f680", "it's IT'S I'\u017f we'LL",
           "1234567 1.5e-3 \u0661\u0662", "x" * 300_000 if size > 2_000_000 else "x" * 10_000, "\x00\x01\x7f", "a\u0301" * 2000]
    made = list(odd)
    total = sum(len(text.encode()) for text in made)
    while total < size:
        kind = chance.randrange(6)
        if kind < 3:
            source = chance.choice(files)
            at = chance.randrange(len(source))
            text = source[at:at + chance.randrange(1, 6000)]
        elif kind == 3:  # one script at a time, as people write
            at = chance.randrange(len(letters) - 300)
            text = "".join(chance.choice(letters[at:at + 300] + [" "] * 40) for _ in range(chance.randrange(600)))
        elif kind == 4:
            text = "".join(chance.choice("aeoucnk\u00e9 ") + chance.choice(marks + [""] * 3000) for _ in range(chance.randrange(900)))
        else:
            text = chance.choice(odd[:15]) + "".join(chance.choice(letters) for _ in range(chance.randrange(300)))
        made.append(text)
        total += len(text.encode())
    return made


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(name, texts):
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    tokenizer.normalizer = normalizers.NFC() if name == "qwen2" else None
    tokenizer.pre_tokenizer = {"gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False), "llama3": split(WORDS % "{1,3}"),
                               "qwen2": split(WORDS % "")}[name]
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=6000, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken("<mark>", lstrip=name == "gpt2", rstrip=name == "qwen2", normalized=True)])
    return tokenizer


def main():
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    texts = documents(size)
    folder.mkdir(exist_ok=True)
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as out:
        for number, text in enumerate(texts):
            out.write(json.dumps({"id": number, "text": text}, ensure_ascii=number % 3 == 0) + "\n")
    for name in ("gpt2", "llama3", "qwen2"):
        tokenizer = train(name, [text for text in texts if len(text) < 10_000][:1500])
        (folder / name).mkdir(exist_ok=True)
        tokenizer.save(str(folder / name / "tokenizer.json"))
        end = tokenizer.token_to_id(END)
        ids = [id for one in tokenizer.encode_batch(texts, add_special_tokens=False) for id in [*one.ids, end]]
        numpy.array(ids, numpy.uint16).tofile(folder / name / "expected.bin")


main()
