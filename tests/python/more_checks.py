"""What `make test-python` compares beside checks.py: more models, trainers, compilers, and the ways that are wrong."""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks import (
    TOKENS,
    compare,
    diffusers_case,
    expect,
    flux_model,
    make_batch,
    make_model,
    model_case,
    sum_gradients,
    wan_model,
    worst,
)

import startrail as st


def more_models():
    cases = (("startrail:2", "zigzag"), ("auto", "striped"))
    return {
        "qwen2": model_case("Qwen2", cases=cases),
        "qwen3": model_case("Qwen3", dict(head_dim=16), cases),
        "mistral": model_case("Mistral", dict(head_dim=16, sliding_window=11), cases),
        "wan": diffusers_case(wan_model, ("startrail:2", "ring")),
        "flux": diffusers_case(flux_model, ("startrail:2", None)),
    }


def checkpoints():
    """Both kinds give the same gradients; with our contexts attention runs once a layer."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        forwards = 0

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            self.forwards += op is torch.ops.startrail.attention_forward.default
            return op(*args, **(kwargs or {}))

    ran = {}
    for title, how in (("full", {}), ("reentrant", dict(use_reentrant=True)),
                       ("ours", dict(context_fn=st.checkpoint_contexts))):
        def prepare(model, how=how):
            model.train().gradient_checkpointing_enable(dict(use_reentrant=False) | how)
        with Count() as count:
            model_case(cases=(("startrail:2", "zigzag"),), prepare=prepare)
        ran[title] = count.forwards
    assert ran["ours"] == 3 and ran["full"] == 6, ran
    return ran


def naive():
    """Plausible losses, wrong gradients: what shard is for."""
    batch = make_batch()
    want = make_model("Llama", "sdpa")
    loss = want(**batch).loss
    loss.backward()

    def gradients(change, scale=1.0):
        part = st.shard(batch, grid="ring")
        change(part)
        model = make_model("Llama", "startrail")
        out = model(**part).loss
        torch.nan_to_num(out * scale, 0.0).backward()
        sum_gradients(model)
        return worst((a.grad, b.grad) for a, b in zip(model.parameters(), want.parameters()))

    def shifted_inside(part):
        del part["shift_labels"]
        part["labels"] = batch["labels"].index_select(1, st.positions(TOKENS))

    return {"right": gradients(lambda part: None),
            "mean of means": gradients(lambda part: part.pop("num_items_in_batch"), 1 / dist.get_world_size()),
            "labels shifted inside": gradients(shifted_inside),
            "no positions": gradients(lambda part: part.pop("position_ids"))}


def autocast():
    """Operands in autocast's type, as for PyTorch's own attention."""
    q = torch.randn(1, 4, len(st.positions(TOKENS)), 16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = st.attention(q, q, q, st.AttentionOptions(tokens=TOKENS))
        assert out.dtype == F.scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32 and q.grad.isfinite().all()


def context_parallel():
    """torch's signature, SDPA inside a model of one's own."""
    torch.manual_seed(0)
    x, w = torch.randn(2, TOKENS, 64), (torch.randn(64, 64) / 8).requires_grad_()

    def loss_of(x, y):
        heads = (x @ w).view(2, -1, 4, 16).transpose(1, 2)
        out = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return (out.transpose(1, 2).flatten(2) - y).square().sum() / (2 * TOKENS)

    y = torch.randn(2, TOKENS, 64)
    loss = loss_of(x, y)
    (want,) = torch.autograd.grad(loss, w)
    before = x.clone()
    with st.context_parallel(None, buffers=[x, y], buffer_seq_dims=[1, 1], no_restore_buffers={y}, grid="startrail:2"):
        assert x.shape[1] == len(st.positions(TOKENS))
        part = loss_of(x, y)
        (have,) = torch.autograd.grad(part, w)
    assert torch.equal(x, before) and y.shape[1] == len(st.positions(TOKENS))
    dist.all_reduce(have)
    total = part.detach()
    dist.all_reduce(total)
    expect("loss", abs(total.item() - loss.item()) / loss.item(), 1e-6)
    expect("context_parallel of torch's encoder layer", _encoder_layer(), 5e-6)
    return expect("context_parallel", worst([(have, want)]), 5e-6)


def ignored_labels():
    """Those of a batch's own number are those that models leave out."""
    batch = make_batch()
    other = dict(batch, labels=batch["labels"].masked_fill(batch["labels"] == -100, 7))
    want, have = st.shard(batch), st.shard(other, ignore_index=7)
    (want_labels, have_labels) = (one["shift_labels"] for one in (want, have))
    kept = want_labels != 7  # tokens that are 7 count in the first only
    assert torch.equal(have_labels[kept], want_labels[kept]) and (have_labels[~kept] == -100).all()
    assert have["num_items_in_batch"] <= want["num_items_in_batch"]


def unused_shards():
    """A warning, once, when batches are cut and no attention of ours runs on them."""
    import warnings
    model = make_model("Llama", "sdpa")
    true_attention = F.scaled_dot_product_attention

    def by_name(group):
        x = torch.ones(1, 4, TOKENS, 16)
        with st.context_parallel(group, buffers=[x], buffer_seq_dims=[2]):
            true_attention(x, x, x)

    for body in (lambda group: model(**st.shard(make_batch(), group)), by_name):
        group = dist.new_group(list(range(dist.get_world_size())))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(4):
                body(group)
        said = [str(one.message) for one in said if "startrail" in str(one.message)]
        assert len(said) == 1 and "each rank attends to its own tokens only" in said[0], said
    group = dist.new_group(list(range(dist.get_world_size())))
    model = make_model("Llama", "startrail")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            model(**st.shard(make_batch(), group))


def _encoder_layer():
    """torch's own layer, which attends by a fused kernel when it may: not inside context_parallel."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 96, batch_first=True).eval()
    x = torch.randn(2, TOKENS, 64)
    with torch.no_grad():
        want = layer(x)
        with st.context_parallel(None, buffers=[x], buffer_seq_dims=[1]) as sequence:
            have = sequence.gather(layer(x))
    assert torch.backends.mha.get_fastpath_enabled()
    return worst([(have, want)])


class Rows(torch.utils.data.Dataset):
    def __init__(self, count=16, labels=None):
        self.count, self.labels = count, labels

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        ids = torch.randint(0, 101, (TOKENS,), generator=torch.Generator().manual_seed(i))
        labels = ids.clone()
        labels[:-self.labels if self.labels else 60 + i] = -100
        return dict(input_ids=ids, labels=labels, words=list(range(i)))  # no model takes these, nor a collator


def trained(trainer, model, folder, batch=2, **more):
    """4 steps of 2 batches with clipping, then evaluations of 5 rows in batches of 2 and of 1, and a prediction of 5 rows
    in batches of 3, with as many labels in each: losses, gradient norms, tokens seen and losses of evaluation; weights."""
    import transformers
    arguments = transformers.TrainingArguments(
        folder, per_device_train_batch_size=batch, gradient_accumulation_steps=2, max_steps=4, learning_rate=1e-2,
        optim="sgd", lr_scheduler_type="constant", logging_steps=1, report_to=[], save_strategy="no", use_cpu=True,
        max_grad_norm=1.0, disable_tqdm=True, train_sampling_strategy="sequential", eval_strategy="steps", eval_steps=4,
        per_device_eval_batch_size=batch, prediction_loss_only=True, include_num_input_tokens_seen="all")
    one = trainer(model=model, args=arguments, train_dataset=Rows(), eval_dataset={"few": Rows(5)}, **more)
    one.train()
    arguments.per_device_eval_batch_size = 1
    one.evaluate()
    arguments.per_device_eval_batch_size = 3
    one.state.log_history.append(one.predict(Rows(5, labels=20)).metrics)
    return ([[row.get(name) for name in ("loss", "grad_norm", "num_input_tokens_seen", "eval_few_loss", "test_loss")]
             for row in one.state.log_history],
            {name: value.detach().clone() for name, value in one.model.state_dict().items()})


def resumed(folder):
    """A run that goes on in the middle of a shuffled epoch makes the steps of one that was not stopped."""
    import startrail.transformers
    import transformers

    def run(where, **more):
        arguments = transformers.TrainingArguments(
            where, per_device_train_batch_size=2, max_steps=9, learning_rate=1e-2, optim="sgd", logging_steps=1,
            report_to=[], save_strategy="steps", save_steps=7, use_cpu=True, disable_tqdm=True)
        one = startrail.transformers.Trainer(model=make_model("Llama", "startrail"), args=arguments, train_dataset=Rows(10),
                                             grid="startrail:2")
        one.train(**more)
        return [row["loss"] for row in one.state.log_history if "loss" in row]

    return run(f"{folder}/whole"), run(f"{folder}/again", resume_from_checkpoint=f"{folder}/whole/checkpoint-7")


def trainer(folder):
    import startrail.transformers
    return trained(startrail.transformers.Trainer, make_model("Llama", "startrail"), f"{folder}/{dist.get_rank()}",
                   grid="startrail:2")


def trainer_on_mesh(folder):
    """2 data ranks of 1 row each x 2 context ranks."""
    import startrail.transformers
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    return trained(startrail.transformers.Trainer, make_model("Llama", "startrail"), f"{folder}/mesh{dist.get_rank()}",
                   batch=1, mesh=mesh)


def trainer_alone(folder):
    """transformers' own, in one process that it does not take for a rank."""
    import transformers
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    dist.destroy_process_group()
    found = trained(transformers.Trainer, make_model("Llama", "sdpa"), folder)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return found


def data_parallel():
    """DDP x context and FSDP2 x context on 2 x 2 ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    batch, world = make_batch(), dist.get_world_size()
    want = make_model("Llama", "sdpa")
    loss = want(**batch).loss
    loss.backward()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    row = mesh["dp"].get_local_rank()
    part = st.shard({key: value[row:row + 1] for key, value in batch.items()}, mesh["cp"],
                    data_group=mesh["dp"])
    model = make_model("Llama", "startrail")
    wrapped = DistributedDataParallel(model)
    out = wrapped(**part).loss
    (out * world).backward()
    ddp = compare("DDP x CP", model, want, loss, out)
    model = make_model("Llama", "startrail")
    both = mesh._flatten("dp_cp")
    for layer in model.model.layers:
        fully_shard(layer, mesh=both)
    fully_shard(model, mesh=both)
    out = model(**part).loss
    (out * world).backward()
    pairs = [(a.grad.full_tensor(), b.grad) for a, b in zip(model.parameters(), want.parameters())]
    return ddp, expect("FSDP2 x CP", worst(pairs), 5e-6)


def compiled(backend, grids=("startrail:2", "ulysses")):
    """No graph break, gradients of one process, and one graph for several lengths."""
    import torch._dynamo as dynamo
    torch.manual_seed(0)
    seen = []

    def spy(graph, example):
        seen.append([str(node.target) for node in graph.graph.nodes if "startrail" in str(node.target)])
        return graph

    model = make_model("Llama", "startrail")
    torch.compile(model, backend=spy, fullgraph=True)(**st.shard(make_batch(), grid="startrail:2"))
    assert len(seen) == 1 and len(seen[0]) == 3, seen
    dynamo.reset()
    batch = make_batch()
    want = make_model("Llama", "sdpa")
    loss = want(**batch).loss
    loss.backward()
    errors = {}
    for grid in grids:
        model = make_model("Llama", "startrail")
        out = torch.compile(model, backend=backend, fullgraph=True)(**st.shard(batch, grid=grid)).loss
        out.backward()
        sum_gradients(model)
        errors[grid] = compare(f"{backend} {grid}", model, want, loss, out)
        dynamo.reset()
    errors["two"] = two_attentions(backend)
    dynamo.reset()
    if backend == "aot_eager":
        step = torch.compile(lambda batch: model(**st.shard(batch)).loss, backend=backend)  # shard breaks the graph
        assert torch.allclose(step(batch), model(**st.shard(batch)).loss, rtol=1e-5)
        _compiled_checkpoints(batch, want, loss)
        function = torch.compile(lambda x, n: st.attention(x, x, x, st.AttentionOptions("ring", n)), backend=backend,
                                 fullgraph=True, dynamic=True)
        for tokens in (97, 131, 64):
            x = torch.randn(1, 2, len(st.positions(tokens)), 16)
            assert torch.equal(function(x, tokens), st.attention(x, x, x, st.AttentionOptions("ring", tokens)))
        places = torch.compile(lambda: st.positions(TOKENS), backend=backend, fullgraph=True)()
        assert torch.equal(places, st.positions(TOKENS))
    return errors


def _compiled_checkpoints(batch, want, loss):
    """Ours work in compiled models; torch's own do not, as docs/python.md says until they do."""
    for contexts in (dict(context_fn=st.checkpoint_contexts), {}):
        model = make_model("Llama", "startrail").train()
        model.gradient_checkpointing_enable(dict(use_reentrant=False, **contexts))
        call = torch.compile(model, backend="aot_eager")
        try:
            out = call(**st.shard(batch, grid="startrail:2")).loss
        except AssertionError as error:
            assert not contexts and "saved_with_vc_check" in str(error), error
            continue
        assert contexts, "torch's contexts work now: say so in docs/python.md, and let Trainer take them"
        out.backward()
        sum_gradients(model)
        compare("compiled, with our contexts", model, want, loss, out)
    torch._dynamo.reset()


def two_attentions(backend):
    """Two that do not depend on each other, on parts of different lengths: the same order on all ranks."""
    torch.manual_seed(dist.get_rank())
    layout = dict(lengths=(60, 5, 12, 20))
    options = st.AttentionOptions("startrail:2", TOKENS, **layout)
    causal = st.AttentionOptions("startrail:2", TOKENS, mask=st.Mask(causal=True), **layout)

    def body(a, b, c):
        one = st.attention(a, a, a, options)
        two = st.attention(b, b, b, options)
        return one * 2, two.sin(), st.attention(c, c, c, causal)

    count = len(st.positions(TOKENS, **layout))
    inputs = [torch.randn(1, 2, count, 16, requires_grad=True) for _ in range(3)]
    results = []
    for function in (body, torch.compile(body, backend=backend, fullgraph=True)):
        for _ in range(3):
            out = function(*inputs)
            sum(one.sum() for one in out).backward()
            results.append([*(one.detach() for one in out), *(one.grad for one in inputs)])
            for one in inputs:
                one.grad = None
    return expect("two attentions", max(worst(zip(have, results[0])) for have in results[1:]), 1e-6)


def opcheck():
    """torch's own checks of operators: schema, fake tensors, autograd, aot; also with heads in the grid."""
    found = []
    name = dist.group.WORLD.group_name
    for grid, batch, first in (("ring", 1, True), ("startrail:2", 2, False), ("ulysses", 2, True), ("usp:2", 1, False)):
        count = len(st.positions(TOKENS))
        make = lambda h: (torch.randn(batch, h, count, 16) if first else torch.randn(batch, count, h, 16).transpose(1, 2))
        q, k, v = (make(h).requires_grad_() for h in (4, 2, 2))
        arguments = (q, k, v, name, grid, "zigzag", TOKENS, 0, [], [], True, 0, [], 0, 0, 0.0, "auto", "auto")
        found.append(torch.library.opcheck(torch.ops.startrail.attention_forward.default, arguments))
    queries, keys = (25, 24, 24, 24), (20, 10, 12, 8)  # cross attention, cut as diffusers does
    q, k, v = (torch.randn(1, 4, of[dist.get_rank()], 16, requires_grad=True) for of in (queries, keys, keys))
    for grid in ("ring", "ulysses"):
        arguments = (q, k, v, name, grid, "lengths", sum(queries), sum(keys), queries, keys, False, 0, [], 0, 0, 0.0,
                     "auto", "auto")
        found.append(torch.library.opcheck(torch.ops.startrail.attention_forward.default, arguments))
    assert all(value == "SUCCESS" for one in found for value in one.values()), found
    return found


def host_cost():
    """Seconds of a call of one token on a group of one, and of PyTorch's own."""
    import time
    group = dist.new_subgroups(1)[0]
    q = torch.randn(1, 1, 1, 16)
    options = st.AttentionOptions("ring", 1)
    bodies = {"startrail": lambda: st.attention(q, q, q, options, group),
              "sdpa": lambda: F.scaled_dot_product_attention(q, q, q)}
    times = {name: [] for name in bodies}
    for _ in range(9):
        for name, body in bodies.items():
            for _ in range(50):
                body()
            start = time.perf_counter()
            for _ in range(300):
                body()
            times[name].append((time.perf_counter() - start) / 300)
    return {name: sorted(values)[4] for name, values in times.items()}
