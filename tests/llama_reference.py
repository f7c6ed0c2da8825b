"""What transformers makes of a Llama model and its relatives: the yardstick of llama_twin.cc.

usage: llama_reference.py make FOLDER TOKENS    for every kind of model random weights in FOLDER/KIND, and
                                               reference.safetensors: tokens, logits, loss, every gradient, and the
                                               losses of some steps of AdamW
       llama_reference.py check FOLDER         loads every FOLDER/KIND/out and compares its kind and logits with the
                                               reference
"""
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

SHAPE = dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
             intermediate_size=160, max_position_embeddings=8192, rms_norm_eps=1e-5)
KINDS = {
    "plain": {},
    "tied": dict(tie_word_embeddings=True, attention_bias=True),
    "linear": dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "llama3": dict(rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                        high_freq_factor=4.0, original_max_position_embeddings=512)),
    "yarn": dict(rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                      original_max_position_embeddings=512)),
    # Windows shorter than the sequence, in the last layer, in the first one, in all.
    "qwen2": dict(model_type="qwen2", use_sliding_window=True, sliding_window=50, max_window_layers=1),
    "qwen3": dict(model_type="qwen3", head_dim=16, attention_bias=True, use_sliding_window=True, sliding_window=40,
                  layer_types=["sliding_attention", "full_attention"]),
    "mistral": dict(model_type="mistral", sliding_window=70),
}
# Of 12 steps, each on LENGTH tokens that begin STRIDE after those of the step before.
STEPS, LENGTH, STRIDE = 12, 96, 20


def config_of(kind):
    return AutoConfig.for_model(**{"model_type": "llama", **SHAPE, **KINDS[kind]})


def loss_of(model, row):
    logits = model(row[None, :-1]).logits[0]
    return logits, torch.nn.functional.cross_entropy(logits.float(), row[1:])


def steps_of(model, row):
    """The loss before each of some steps of AdamW, with the settings that ShardedAdamW has by itself."""
    split = [{"params": [p for p in model.parameters() if (p.dim() == 2) == matrix], "weight_decay": 0.1 * matrix}
             for matrix in (True, False)]
    adamw = torch.optim.AdamW(split, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(STEPS):
        adamw.zero_grad()
        loss = loss_of(model, row[step * STRIDE:step * STRIDE + LENGTH + 1])[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def make(folder, kind, tokens):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config_of(kind))
    with torch.no_grad():  # larger than the usual start, so that attention is not near uniform
        for name, parameter in model.named_parameters():
            parameter.mul_(4) if parameter.dim() == 2 else parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    row = torch.randint(0, SHAPE["vocab_size"], (int(tokens) + 1,))
    logits, loss = loss_of(model, row)
    loss.backward()
    result = {"tokens": row, "logits": logits.detach().contiguous(), "loss": loss.detach()[None]}
    for name, parameter in model.named_parameters():
        result[f"grad.{name}"] = parameter.grad.clone()
    result["steps"] = steps_of(model, row)
    save_file(result, f"{folder}/reference.safetensors")


def check(folder, kind, reference):
    model, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    wrong = {key: value for key, value in loading.items() if value}
    if wrong:
        sys.exit(f"transformers did not load all of {folder}: {wrong}")
    given = config_of(kind)
    for key in ("model_type", "head_dim", "attention_bias", "use_sliding_window", "sliding_window", "layer_types"):
        if hasattr(given, key) and getattr(given, key) != getattr(model.config, key):
            sys.exit(f"{folder}: {key} is {getattr(model.config, key)}, and was {getattr(given, key)}")
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
            check(f"{folder}/out", kind, f"{folder}/reference.safetensors")


main()
