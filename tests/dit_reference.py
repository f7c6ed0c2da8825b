"""What diffusers makes of a DiT: the yardstick of dit_test.cc.

usage: dit_reference.py make FOLDER     for every kind of model random weights in FOLDER/KIND, and reference.safetensors:
                                       a picture, a time and a class, the output, the loss against a target and every
                                       gradient
       dit_reference.py check FOLDER    loads every FOLDER/KIND/out and compares its output with the reference
"""
import sys

import torch
from diffusers import DiTTransformer2DModel
from diffusers.utils import logging
from safetensors.torch import load_file, save_file

SHAPE = dict(num_attention_heads=4, attention_head_dim=16, num_layers=2, in_channels=3, num_embeds_ada_norm=5)
KINDS = {
    "plain": dict(sample_size=32, patch_size=2),
    "variance": dict(sample_size=24, patch_size=4, out_channels=6),
}


def run(model, picture, time, label):
    return model(picture[None], timestep=time, class_labels=label).sample[0]


def make(folder, kind):
    torch.manual_seed(7)
    model = DiTTransformer2DModel(**SHAPE, **KINDS[kind]).eval()
    side = KINDS[kind]["sample_size"]
    with torch.no_grad():  # larger than the usual start, so that attention is not near uniform
        for parameter in model.parameters():
            parameter.mul_(2).add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    picture, target = torch.randn(3, side, side), torch.randn(3, side, side)
    time, label = torch.tensor([737]), torch.tensor([3])
    out = run(model, picture, time, label)
    loss = torch.nn.functional.mse_loss(out[:3], target)
    loss.backward()
    result = {"picture": picture, "target": target, "time": time, "label": label, "output": out.detach().contiguous(),
              "loss": loss.detach()[None]}
    for name, parameter in model.named_parameters():
        result[f"grad.{name}"] = parameter.grad.contiguous()
    save_file(result, f"{folder}/reference.safetensors")


def check(folder, reference):
    model, loading = DiTTransformer2DModel.from_pretrained(folder, output_loading_info=True)
    wrong = {key: value for key, value in loading.items() if value}
    if wrong:
        sys.exit(f"diffusers did not load all of {folder}: {wrong}")
    expected = load_file(reference)
    with torch.no_grad():
        out = run(model.eval(), expected["picture"], expected["time"], expected["label"])
    error = (out - expected["output"]).abs().max().item()
    if not error < 1e-5:
        sys.exit(f"outputs differ by {error}")


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    for kind in KINDS:
        folder = f"{sys.argv[2]}/{kind}"
        if sys.argv[1] == "make":
            make(folder, kind)
        else:
            check(f"{folder}/out", f"{folder}/reference.safetensors")


main()
