"""What is compared with one process, on every rank of a group."""
import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F

import startrail as st

TOKENS = 97  # nothing divides it


def relative(have, want, whole=None):
    """The largest difference, as a share of the largest value of `want`, or of `whole` where want is a part of it."""
    scale = (want if whole is None else whole).double().abs().max().clamp_min(1e-30)
    return ((have.double() - want.double()).abs().max() / scale).item() if have.numel() else 0.0


def worst(comparisons):
    """The largest `relative` of any comparison on any rank."""
    error = max(relative(*one) for one in comparisons)
    all_of = torch.tensor(error)
    dist.all_reduce(all_of, dist.ReduceOp.MAX)
    return all_of.item()


def expect(title, error, limit):
    if not error <= limit:
        raise AssertionError(f"{title}: {error:.2e} is more than {limit:.0e}")
    return error


def grids(ranks):
    return [f"heads={u},team={a},ring={c},stripe={b}"
            for u, a, c, b in itertools.product(range(1, ranks + 1), repeat=4) if u * a * c * b == ranks]


def seen_by(mask, tokens=TOKENS):
    i = torch.arange(tokens)
    seen = torch.ones(tokens, tokens, dtype=torch.bool)
    if mask.causal:
        seen &= (i[:, None] >= i) | (i < mask.prefix)
    if mask.window:
        seen &= (i[:, None] - i).abs() < mask.window
    if mask.documents:
        document = torch.repeat_interleave(torch.arange(len(mask.documents)), torch.tensor(mask.documents))
        seen &= document[:, None] == document
    return seen


MASKS = [st.Mask(), st.Mask(causal=True), st.Mask(causal=True, window=13), st.Mask(causal=True, documents=(50, 1, 46)),
         st.Mask(causal=True, prefix=20)]
# Every second token from 0 on the last rank, the rest in two pieces on the first and third, none on the second.
LISTED = (((1, 20, 2),), (), ((41, 28, 2),), ((0, 49, 2),))
LAYOUTS = [dict(layout="zigzag"), dict(layout="striped"), dict(layout="contiguous"), dict(lengths=(40, 0, 7, 50)),
           dict(layout="listed", pieces=LISTED)]


def sdpa(q, k, v, g, seen):
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, attn_mask=seen, enable_gqa=True)
    out.backward(g)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def split(q, k, v, g, options, positions):
    cut = lambda t: t.index_select(2, positions)
    leaves = [cut(t).clone().requires_grad_() for t in (q, k, v)]
    out = st.attention(*leaves, options)
    out.backward(cut(g))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def attention_everywhere():
    """All grids, layouts and masks, in three types."""
    torch.manual_seed(0)
    ranks, errors = dist.get_world_size(), {}
    wide = [torch.randn(2, n, TOKENS, 16, dtype=torch.float64) for n in (4, 2, 2, 4)]
    for mask in MASKS:
        seen = seen_by(mask)
        for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 3e-6), (torch.bfloat16, None)):
            given = [t.to(dtype) for t in wide]
            want = sdpa(*(t.double() for t in given), seen)
            if limit is None:
                limit = 1.3 * max(map(relative, sdpa(*given, seen), want))
            for grid, layout in itertools.product(grids(ranks), LAYOUTS):
                options = st.AttentionOptions(grid=grid, tokens=TOKENS, mask=mask, **layout)
                mine = st.positions(TOKENS, **layout)
                have = split(*given, options, mine)
                error = worst((a, b.index_select(2, mine), b) for a, b in zip(have, want))
                expect(f"{dtype} {grid} {layout} {mask}", error, limit)
                errors[str(dtype)] = max(errors.get(str(dtype), 0), error)
    return errors


def cross_attention():
    """Other lengths of queries and keys, and everyone's tokens gathered."""
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(1, 4, n, 16, dtype=torch.float64) for n in (TOKENS, 31, 31, TOKENS))
    want = sdpa(q, k, v, g, torch.ones(TOKENS, 31, dtype=torch.bool))
    mine, keys = st.positions(TOKENS), st.positions(31)
    leaves = [q[:, :, mine].clone().requires_grad_(), *(t[:, :, keys].clone().requires_grad_() for t in (k, v))]
    out = st.attention(*leaves, st.AttentionOptions("startrail:2", TOKENS, key_tokens=31))
    out.backward(g[:, :, mine])
    error = worst([(out.detach(), want[0][:, :, mine]), (leaves[0].grad, want[1][:, :, mine]),
                   (leaves[1].grad, want[2][:, :, keys]), (leaves[2].grad, want[3][:, :, keys])])
    assert torch.equal(st.gather(q[:, :, mine], TOKENS, dim=2), q)
    return expect("cross attention", error, 1e-12)


# --- transformers

SMALL = dict(vocab_size=101, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, use_cache=False)


def make_model(kind, implementation, **change):
    import startrail.transformers  # noqa: F401
    import transformers
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **change}, attn_implementation=implementation)
    return getattr(transformers, f"{kind}ForCausalLM")(config).float()


def make_batch(rows=2):
    ids = torch.randint(0, 101, (rows, TOKENS), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, :60] = -100  # the labels of some ranks are few, those of one none
    return dict(input_ids=ids, labels=labels)


def sum_gradients(model, group=None):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=group)


def compare(title, model, want, loss, part_loss, limit=5e-6):
    """A model's gradients, summed over ranks, and its loss."""
    total = part_loss.detach().clone()
    dist.all_reduce(total)
    expect(f"{title}, loss", abs(total.item() - loss.item()) / abs(loss.item()), limit)
    pairs = [(a.grad, b.grad) for a, b in zip(model.parameters(), want.parameters())]
    return expect(f"{title}, gradients", worst(pairs), limit)


def model_case(kind="Llama", change=None, cases=(("auto", "zigzag"),), limit=5e-6, prepare=None):
    change = change or {}
    batch = make_batch()
    want = make_model(kind, "sdpa", **change)
    loss = want(**batch).loss
    loss.backward()
    found = 0.0
    for grid, layout in cases:
        model = make_model(kind, "startrail", **change)
        if prepare:
            prepare(model)
        part = model(**st.shard(batch, grid=grid, layout=layout)).loss
        part.backward()
        sum_gradients(model)
        found = max(found, compare(f"{kind} {grid} {layout}", model, want, loss, part, limit))
    return found


def llama():
    # With layout contiguous the first rank's tokens have no label.
    labels = make_batch()["labels"][:, 1:]
    assert not labels[:, :24].ne(-100).any()
    return model_case(cases=(("auto", "zigzag"), ("ring", "contiguous"), ("startrail:2", "zigzag"), ("usp:2", "striped"),
                             ("mesh:2", "zigzag")))


def documents():
    """Packed documents, told or seen by their positions, and padded rows packed by shard."""
    ids = torch.randint(0, 101, (1, TOKENS), generator=torch.Generator().manual_seed(2))
    lengths = (30, 1, 66)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    labels = ids.clone()
    labels[:, [0, 30, 31]] = -100  # the first token of each is no label
    want = make_model("Llama", "sdpa")
    loss = want(input_ids=ids, labels=labels, position_ids=positions).loss
    loss.backward()
    found = 0.0
    padded = torch.zeros(3, 66, dtype=torch.long)
    mask = torch.zeros(3, 66, dtype=torch.long)
    for row, (part, n) in enumerate(zip(ids[0].split(lengths), lengths)):
        padded[row, :n], mask[row, :n] = part, 1
    for title, batch, given in (
            ("documents", dict(input_ids=ids, labels=ids.clone(), position_ids=None), dict(documents=lengths)),
            ("positions", dict(input_ids=ids, labels=ids.clone(), position_ids=positions), {}),
            ("padded rows", dict(input_ids=padded, labels=padded.masked_fill(mask == 0, -100), attention_mask=mask,
                                  position_ids=None), {})):
        model = make_model("Llama", "startrail")
        part = model(**st.shard(batch, grid="startrail:2", **given)).loss
        part.backward()
        sum_gradients(model)
        found = max(found, compare(title, model, want, loss, part))
    return found


# --- diffusers

def flux_model():
    from diffusers import FluxTransformer2DModel
    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=4,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8], guidance_embeds=False)
    draw = torch.Generator().manual_seed(1)
    random = lambda *shape: torch.randn(*shape, generator=draw)
    ids = torch.stack([torch.zeros(64), torch.arange(64) // 8, torch.arange(64) % 8], 1)
    inputs = dict(hidden_states=random(1, 64, 4), encoder_hidden_states=random(1, 8, 32),
                  pooled_projections=random(1, 32), timestep=torch.tensor([0.5]), img_ids=ids, txt_ids=torch.zeros(8, 3),
                  return_dict=False)
    return model, inputs, random(1, 64, 4)


def wan_model():
    from diffusers import WanTransformer3DModel
    torch.manual_seed(0)
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=4, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16,
        freq_dim=32, ffn_dim=32, num_layers=2, cross_attn_norm=True, qk_norm="rms_norm_across_heads", rope_max_seq_len=32)
    draw = torch.Generator().manual_seed(1)
    random = lambda *shape: torch.randn(*shape, generator=draw)
    inputs = dict(hidden_states=random(1, 4, 2, 8, 8), timestep=torch.tensor([5]), encoder_hidden_states=random(1, 7, 16),
                  return_dict=False)
    return model, inputs, random(1, 4, 2, 8, 8)


def diffusers_case(make, grids_of_four):
    """Forward and backward beside one process; None is diffusers' own, whose ring does not run on its CPU attention."""
    import startrail.diffusers
    from diffusers import ContextParallelConfig
    torch.accelerator.device_count = lambda: 1  # enable_parallelism divides by it: 0 without a GPU
    want, inputs, target = make()
    loss = (want(**inputs)[0] - target).pow(2).mean()
    loss.backward()
    errors = {}

    def measure(grid, **degree):
        startrail.diffusers.install(grid) if grid else startrail.diffusers.uninstall()
        model, inputs, target = make()
        model.enable_parallelism(config=ContextParallelConfig(**degree))
        out = (model(**inputs)[0] - target).pow(2).mean()
        out.backward()
        sum_gradients(model)
        pairs = [(a.grad, b.grad) for a, b in zip(model.parameters(), want.parameters()) if b.grad is not None]
        return worst([*pairs, (out.detach()[None], loss.detach()[None])])

    ranks = dist.get_world_size()
    for grid in grids_of_four:
        if grid:
            errors[grid] = expect(f"{make.__name__} {grid}", measure(grid, ring_degree=ranks), 5e-6)
            continue
        errors["diffusers' own ulysses"] = measure(None, ulysses_degree=ranks)
        try:
            errors["diffusers' own ring"] = measure(None, ring_degree=ranks)
        except ValueError as error:
            errors["diffusers' own ring"] = str(error)
    startrail.diffusers.uninstall()
    return errors


def flux():
    return diffusers_case(flux_model, ("startrail:2", "ring"))


def fast():
    """One launch for everything that `make test` compares."""
    import time
    found = {}
    for check in (attention_everywhere, cross_attention, llama, documents, flux):
        start = time.monotonic()
        value = check()
        found[check.__name__] = (value, round(time.monotonic() - start, 1))
    return found
