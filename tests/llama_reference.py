"""What transformers makes of a Llama model: the yardstick of llama_twin.cc.

usage: llama_reference.py make FOLDER TOKENS    for every kind of model random weights in FOLDER/KIND, and
                                               reference.safetensors: tokens, logits, loss and every gradient
       llama_reference.py check FOLDER         loads every FOLDER/KIND/out and compares its logits with the reference
"""
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

SHAPE = dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
             intermediate_size=160, max_position_embeddings=8192, rms_norm_eps=1e-5)
KINDS = {
    "plain": {},
    "tied": dict(tie_word_embeddings=True),
    "linear": dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "llama3": dict(rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                        high_freq_factor=4.0, original_max_position_embeddings=512)),
    "yarn": dict(rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                      original_max_position_embeddings=512)),
}


def make(folder, kind, tokens):
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, **KINDS[kind]))
    with torch.no_grad():  # larger than the usual start, so that attention is not near uniform
        for name, parameter in model.named_parameters():
            parameter.mul_(4) if parameter.dim() == 2 else parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    row = torch.randint(0, SHAPE["vocab_size"], (int(tokens) + 1,))
    out = model(row[None, :-1])
    loss = torch.nn.functional.cross_entropy(out.logits[0].float(), row[1:])
    loss.backward()
    result = {"tokens": row, "logits": out.logits[0].detach().contiguous(), "loss": loss.detach()[None]}
    for name, parameter in model.named_parameters():
        result[f"grad.{name}"] = parameter.grad.contiguous()
    save_file(result, f"{folder}/reference.safetensors")


def check(folder, reference):
    model, loading = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    wrong = {key: value for key, value in loading.items() if value}
    if wrong:
        sys.exit(f"transformers did not load all of {folder}: {wrong}")
    expected = load_file(reference)
    with torch.no_grad():
        logits = model(expected["tokens"][None, :-1]).logits[0]
    error = (logits - expected["logits"]).abs().max().item()
    if not error < 1e-5:
        sys.exit(f"logits differ by {error}")


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for kind in KINDS:
        folder = f"{sys.argv[2]}/{kind}"
        if sys.argv[1] == "make":
            make(folder, kind, sys.argv[3])
        else:
            check(f"{folder}/out", f"{folder}/reference.safetensors")


main()
