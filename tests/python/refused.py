"""What the Python package refuses because it would be silently wrong: `refusals` gives the texts."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks import TOKENS, make_batch, make_model

import startrail as st


def refusals():
    """Everything that would be silently wrong, on all ranks: the texts."""
    import startrail.transformers as stt
    import transformers
    batch, part = make_batch(), lambda: st.shard(make_batch())
    small = dict(vocab_size=101, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=16, attn_implementation="startrail")

    def model(kind, **change):
        torch.manual_seed(0)
        return getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**{**small, **change}))

    def any_model(body):
        stt.allow_any_model = True
        try:
            return body()
        finally:
            stt.allow_any_model = False

    q = torch.ones(1, 4, len(st.positions(TOKENS)), 16)
    options = st.AttentionOptions(tokens=TOKENS)
    llama = make_model("Llama", "startrail")
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[0, 90:] = 0
    bodies = {
        "whole batch": lambda: llama(**batch),
        "generate": lambda: llama.generate(batch["input_ids"][:, :8], max_new_tokens=2),
        "padding given to the model": lambda: llama(**{**part(), "attention_mask": mask[:, -len(st.positions(TOKENS)):]}),
        "dropout": lambda: make_model("Llama", "startrail", attention_dropout=0.1).train()(**part()),
        "rope": lambda: make_model("Llama", "startrail", rope_parameters=dict(
            rope_type="dynamic", factor=2.0, rope_theta=1e4))(**part()),
        "softcap": lambda: any_model(lambda: model("Gemma2")(**part(), use_cache=False)),
        "sinks": lambda: any_model(lambda: model("GptOss", num_local_experts=2)(**part(), use_cache=False)),
        "not compared": lambda: model("Gemma")(**part(), use_cache=False),
        "cache": lambda: llama(**part(), use_cache=True, past_key_values=_cache(llama)),
        "mask of pairs": lambda: st.shard(dict(batch, attention_mask=torch.ones(2, 1, TOKENS, TOKENS))),
        "padding and documents": lambda: st.shard(dict(batch, attention_mask=mask), documents=(50, 47)),
        "documents": lambda: st.shard(batch, documents=(50, 46)),
        "documents twice": lambda: st.shard(dict(batch, position_ids=torch.arange(TOKENS).expand(2, -1)),
                                            documents=(50, 47)),
        "flat": lambda: st.shard(dict(input_ids=batch["input_ids"][0])),
        "few tokens": lambda: st.shard(dict(input_ids=batch["input_ids"][:, :3])),
        "an empty rank": lambda: st.shard(batch, lengths=(50, 0, 40, 7)),
        "scale": lambda: st.attention(q, q, q, st.AttentionOptions(tokens=TOKENS, scale=-1.0)),
        "no input": lambda: st.shard(dict(labels=batch["labels"])),
        "hole": lambda: st.shard(dict(batch, attention_mask=torch.ones(2, TOKENS).index_fill(1, torch.tensor([5]), 0))),
        "jump": lambda: st.shard(dict(batch, position_ids=torch.arange(TOKENS).remainder(50).expand(2, -1))),
        "flat positions": lambda: st.shard(dict(batch, position_ids=torch.arange(TOKENS))),
        "no tokens": lambda: st.shard(dict(batch, cu_seq_lens_q=torch.tensor([0, 50, TOKENS]))),
        "keys alone": lambda: st.attention(q, q, q, st.AttentionOptions("ring", TOKENS, key_lengths=(25, 24, 24, 24))),
        "layout and lengths": lambda: st.attention(q, q, q, st.AttentionOptions("ring", TOKENS, layout="striped",
                                                                                lengths=(25, 24, 24, 24))),
        "forward mode": lambda: _forward_mode(q, options),
        "no ranks": lambda: st.plan(options, ranks=0, heads=4),
        "gather": lambda: st.gather(torch.ones(1, len(st.positions(TOKENS)), requires_grad=True), TOKENS),
        "token classes": lambda: _token_classes(small)(**part(), use_cache=False),
        "shifts by itself": lambda: llama(**{**part(), "shift_labels": None}),
        "vmap": lambda: torch.func.vmap(lambda x: st.attention(x, x, x, options))(q[None]),
        "func.grad": lambda: torch.func.grad(lambda x: st.attention(x, x, x, options).sum())(q),
        "half": lambda: st.attention(q.half(), q.half(), q.half(), options),
        "mesh of two": lambda: st.attention(q, q, q, options, dist.device_mesh.init_device_mesh("cpu", (2, 2))),
        "no member": lambda: st.attention(q, q, q, options, dist.GroupMember.NON_GROUP_MEMBER),
        "a group of numbers": lambda: st.shard(batch, [0, 1]),
        "lists": lambda: st.shard(dict(input_ids=[[1, 2, 3]])),
        "traced": lambda: _traced(),
        "few pieces": lambda: st.positions(TOKENS, pieces=(((0, 50, 1),), ((50, 47, 1),))),
        "double backward": lambda: _double_backward(q, options),
        **_of_functions(q),
    }
    found = {}
    for name, body in bodies.items():
        try:
            body()
            found[name] = "NOT REFUSED"
        except (ValueError, RuntimeError) as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return found


def _traced():
    """Tensors without data, as compilers trace with."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        st.shard(dict(input_ids=torch.zeros(1, TOKENS, dtype=torch.long)))


def _token_classes(small):
    import transformers
    return transformers.LlamaForTokenClassification(transformers.LlamaConfig(**small, num_labels=101)).float()


def _forward_mode(q, options):
    with torch.autograd.forward_ad.dual_level():
        st.attention(torch.autograd.forward_ad.make_dual(q, q), q, q, options)


def _of_functions(q):
    """What transformers, diffusers and torch may hand to our functions, one by one."""
    import diffusers.models.attention_dispatch as dispatch
    import startrail.diffusers
    import startrail.transformers as stt
    import transformers
    layer = torch.nn.Module()
    layer.config = make_model("Llama", "sdpa").config
    sequence = st.shard(make_batch())["startrail"]
    attend = lambda key=q, mask=None, **more: stt.attention_forward(layer, q, key, key, mask, startrail=sequence, **more)
    bodies = {name: lambda name=name: attend(**{name: torch.ones(1)})
              for name in ("position_bias", "head_mask", "cu_seq_lens_q", "cu_seq_lens_k")}
    bodies["output_attentions"] = lambda: attend(output_attentions=True)
    bodies["mask tensor"] = lambda: attend(mask=torch.ones(1))
    bodies["cross attention"] = lambda: attend(key=torch.ones(1, 4, 3, 16))
    bodies["layer kinds"] = lambda: stt.attention_mask(config=type("C", (), {"layer_types": ["chunked_attention"]}))
    bodies["overlay"] = lambda: stt.attention_mask(mask_function=lambda *_: True)
    bodies["mesh names"] = lambda: stt.Trainer(mesh=dist.device_mesh.init_device_mesh(
        "cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)))

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([dict(input_ids=torch.arange(TOKENS))])

    trainer = lambda arguments=None, **more: stt.Trainer(
        model=make_model("Llama", "startrail"), args=transformers.TrainingArguments(
            "unused", max_steps=1, use_cpu=True, report_to=[], **(arguments or {})), **more)
    bodies["own loss"] = lambda: trainer(compute_loss_func=lambda *_: None)
    bodies["own count"] = lambda: trainer(dict(average_tokens_across_devices=False))
    bodies["noise"] = lambda: trainer(dict(neftune_noise_alpha=5.0))
    bodies["compiled checkpoints"] = lambda: trainer(dict(torch_compile=True, gradient_checkpointing=True))
    bodies["accelerate"] = _accelerate
    bodies["stream to evaluate"] = lambda: trainer().get_eval_dataloader(Stream())
    bodies["stream"] = lambda: trainer(train_dataset=Stream()).get_train_dataloader()

    def inside(**more):
        x = torch.zeros(1, TOKENS, 8)
        with st.context_parallel(None, buffers=[x], buffer_seq_dims=[1]):
            F.scaled_dot_product_attention(q, q, q, **more)

    bodies["context mask"] = lambda: inside(attn_mask=torch.ones(1, 1))
    bodies["context scale"] = lambda: inside(scale=0.0)
    bodies["context dropout"] = lambda: inside(dropout_p=0.1)

    def weights():
        x = torch.zeros(1, TOKENS, 8)
        with st.context_parallel(None, buffers=[x], buffer_seq_dims=[1]):
            torch.nn.MultiheadAttention(8, 2, batch_first=True)(x, x, x)

    bodies["context weights"] = weights
    enter = lambda buffers, **more: st.context_parallel(
        None, buffers=buffers, buffer_seq_dims=[1] * len(buffers), **more).__enter__()
    x = torch.zeros(1, TOKENS, 8)
    bodies["buffers"] = lambda: enter([])
    bodies["buffer twice"] = lambda: enter([x, x])
    bodies["buffer dim"] = lambda: st.context_parallel(None, buffers=[x], buffer_seq_dims=[3]).__enter__()
    bodies["buffer with gradient"] = lambda: enter([x.clone().requires_grad_()])
    bodies["buffer kept"] = lambda: enter([x], no_restore_buffers={torch.zeros(1)})
    startrail.diffusers.install("ring")
    split = dispatch._AttentionBackendRegistry._backends[dispatch.AttentionBackendName.NATIVE]
    startrail.diffusers.uninstall()
    for name, more in (("diffusers mask", dict(attn_mask=q)), ("diffusers dropout", dict(dropout_p=0.1)),
                       ("diffusers causal", dict(is_causal=True)), ("diffusers lse", dict(return_lse=True))):
        bodies[name] = lambda more=more: split(q, q, q, _parallel_config=object(), **more)
    return bodies


def _accelerate():
    """Not ours: accelerate's own context parallelism, which takes no ranks on CPUs."""
    import accelerate
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.Accelerator(cpu=True, parallelism_config=accelerate.ParallelismConfig(cp_size=dist.get_world_size()))


def _cache(model):
    from transformers import DynamicCache
    cache = DynamicCache(config=model.config)
    width = model.config.hidden_size // model.config.num_attention_heads
    for layer in range(model.config.num_hidden_layers):
        cache.update(torch.zeros(2, 2, 3, width), torch.zeros(2, 2, 3, width), layer)
    return cache


def _double_backward(q, options):
    q = q.clone().requires_grad_()
    (grad,) = torch.autograd.grad(st.attention(q, q, q, options).square().sum(), q, create_graph=True)
    grad.sum().backward()
