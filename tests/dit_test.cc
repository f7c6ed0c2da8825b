// The DiT against diffusers, on one rank and on many, and back again; what diffusers lacks (rotary positions, video,
// pictures packed into one sequence) against a reference written here;
// and drawing on any grid.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <filesystem>
#include <map>

#include "startrail/base/testing.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/train/loop/trainer.h"
#include "startrail/train/model/diffusion.h"
#include "startrail/train/model/parameters.h"
#include "startrail/train/model/weights.h"
#include "tests/python.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGrids[] = {"startrail:2", "ring", "heads=2,team=2,ring=1,stripe=2"};

double relative(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kDouble);
  return ((got.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

// Pictures [count, channels, frames, height, width] as a rank's example.
Example make_example(const DitConfig& shape, const at::Tensor& pictures, const at::Tensor& targets,
                     const std::vector<Condition>& conditions, Order layout, const Group& group) {
  std::vector<at::Tensor> input, target;
  for (int64_t i = 0; i < pictures.size(0); ++i) {
    input.push_back(to_patches(pictures[i], shape.patch));
    target.push_back(to_patches(targets[i], shape.patch));
  }
  Example example{pictures.size(0) * shape.tokens(), {}, {}, {}, conditions};
  if (pictures.size(0) > 1) example.mask.documents.assign(pictures.size(0), shape.tokens());
  const at::Tensor places = places_of({layout, example.tokens, group.size()}, group.rank());
  example.input = at::cat(input).index_select(0, places);
  example.target = at::cat(target).index_select(0, places);
  return example;
}

struct Outcome {
  double loss = 0;
  at::Tensor output;  // patches [tokens, features], in the order of the ranks' chunks when there are several
  std::map<std::string, at::Tensor> gradients;
};

// One pass of a model whose weights `fill` gives, the row of them.
Outcome run_model(const DitConfig& shape, const at::Tensor& row, const at::Tensor& pictures, const at::Tensor& targets,
                  const std::vector<Condition>& conditions, const std::string& grid, int ranks, bool recompute) {
  Outcome outcome;
  run_ranks(ranks, 2, [&](const std::shared_ptr<Group>& group) {
    Dit model(shape);
    ParameterRow parameters(model, at::kFloat);
    parameters.weights().copy_(row);
    AttentionOptions options;
    options.grid = parse_grid(grid, ranks);
    const Example example = make_example(shape, pictures, targets, conditions, options.order, *group);
    const Sequence sequence = make_sequence(example, options, group, recompute);
    at::Tensor output;
    {
      const at::NoGradGuard no_grad;
      output = model.predict(example.input, conditions, sequence);
    }
    const Loss loss = model.loss(example, sequence);
    torch::autograd::backward({loss.sum / static_cast<double>(example.tokens)});
    at::Tensor sum = at::zeros({parameters.size()}, at::kDouble);
    for (const at::Tensor& one : group->channel().all_gather(parameters.gradients())) sum.add_(one);
    double total = 0;
    for (double one : group->control().gather(loss.sum.item<double>())) total += one;
    const auto outputs = group->channel().all_gather(output);
    if (group->rank() != 0) return;
    outcome.loss = total / static_cast<double>(example.tokens);
    outcome.output = at::cat(outputs);
    int64_t offset = 0;
    for (const Parameter& parameter : model.parameters()) {
      outcome.gradients[parameter.name] = sum.narrow(0, offset, parameter.size()).view(parameter.shape);
      offset += parameter.size();
    }
  });
  return outcome;
}

// Every gradient within 1e-4 of what it should be, in norm. That of a key's bias is zero but for rounding, as it moves
// all scores of a row alike: it is held to the size of the query's.
void expect_like(const std::map<std::string, at::Tensor>& gradients,
                 const std::function<at::Tensor(const std::string&)>& expected) {
  for (const auto& [name, gradient] : gradients) {
    std::string yardstick = name;
    if (const size_t key = name.find("to_k.bias"); key != std::string::npos) yardstick.replace(key, 4, "to_q");
    const double size = expected(yardstick).to(at::kDouble).norm().item<double>();
    EXPECT_LT((gradient - expected(name)).norm().item<double>(), 1e-4 * size) << name;
    EXPECT_GT(size, 0) << name;
  }
}

TEST(Dit, IsLikeDiffusersAndBack) {
  const TempFolder folder;
  python(cat("dit_reference.py make ", folder.path()));
  for (const char* kind : {"plain", "variance"}) {
    SCOPED_TRACE(kind);
    const fs::path made = folder.path(kind);
    const TensorFile reference = read_tensors(made / "reference.safetensors");
    const auto shape = std::get<DitConfig>(read_config(made));
    const Dit model(shape);
    const at::Tensor row = read_shard(open_weights(made), model, {0, count_parameters(model)});
    const at::Tensor picture = reference.at("picture").unsqueeze(1), target = reference.at("target").unsqueeze(1);
    const std::vector<Condition> conditions{
        {reference.at("time").item<double>(), reference.at("label").item<int64_t>()}};
    const at::Tensor expected =
        to_patches(reference.at("output").narrow(0, 0, shape.channels).unsqueeze(1), shape.patch);
    const auto expect_same = [&](const std::string& grid, int ranks, bool recompute) {
      SCOPED_TRACE(cat(grid, " on ", ranks, recompute ? ", recomputing" : ""));
      const Outcome outcome =
          run_model(shape, row, picture.unsqueeze(0), target.unsqueeze(0), conditions, grid, ranks, recompute);
      EXPECT_LT(relative(outcome.output, expected), 1e-5);
      EXPECT_NEAR(outcome.loss, reference.at("loss").item<double>(), 1e-5 * outcome.loss);
      expect_like(outcome.gradients, [&](const std::string& name) { return reference.at("grad." + name); });
    };
    expect_same("ring", 1, true);
    expect_same("ring", 1, false);
    if (kind == std::string("plain"))
      for (const char* grid : kGrids) expect_same(grid, 8, true);
    const auto loaded = load_model(made, at::kFloat);
    EXPECT_EQ(export_model(*loaded, made / "out", at::kFloat), "diffusion_pytorch_model.safetensors");
  }
  python(cat("dit_reference.py check ", folder.path()));
}

// --- What diffusers has no twin for

at::Tensor random_row(const DitConfig& shape, int seed) {
  at::manual_seed(seed);
  const Dit model(shape);
  return at::randn({count_parameters(model)}) * 0.15;
}

// The model written once more, from the paper's formulas: one picture, plain tensor code, float64.
class Reference {
 public:
  Reference(const DitConfig& shape, const at::Tensor& row) : shape_(shape) {
    int64_t offset = 0;
    const Dit model(shape);
    for (const Parameter& parameter : model.parameters()) {
      weights_[parameter.name] = row.narrow(0, offset, parameter.size()).view(parameter.shape).to(at::kDouble);
      offset += parameter.size();
    }
  }

  // [channels, frames, height, width] -> the same.
  at::Tensor operator()(const at::Tensor& picture, const Condition& given) const {
    const int64_t dim = shape_.dim(), heads = shape_.heads, head = shape_.head_dim;
    const auto [frames, rows, columns] = shape_.patches();
    at::Tensor x = at::zeros({shape_.tokens(), dim}, at::kDouble);
    const at::Tensor kernel =
        weight("pos_embed.proj.weight").view({dim, shape_.channels, shape_.patch[0], shape_.patch[1], shape_.patch[2]});
    const auto cut = [&](const at::Tensor& whole, int64_t t, int64_t y, int64_t c) {
      return whole.narrow(1, t * shape_.patch[0], shape_.patch[0])
          .narrow(2, y * shape_.patch[1], shape_.patch[1])
          .narrow(3, c * shape_.patch[2], shape_.patch[2]);
    };
    std::vector<std::array<int64_t, 3>> where;
    for (int64_t t = 0; t < frames; ++t)
      for (int64_t y = 0; y < rows; ++y)
        for (int64_t c = 0; c < columns; ++c) {
          const auto token = static_cast<int64_t>(where.size());
          x[token] = (kernel * cut(picture.to(at::kDouble), t, y, c)).sum({1, 2, 3, 4}) + weight("pos_embed.proj.bias");
          where.push_back({t, y, c});
        }
    if (shape_.positions == "sine")
      for (size_t token = 0; token < where.size(); ++token) x[static_cast<int64_t>(token)] += sines(where[token], dim);

    const auto linear = [&](const at::Tensor& in, const std::string& name) {
      return in.matmul(weight(name + ".weight").t()) + weight(name + ".bias");
    };
    const auto normed = [&](const at::Tensor& in, double eps) {
      const at::Tensor centred = in - in.mean(-1, true);
      return centred / (centred.square().mean(-1, true) + eps).sqrt();
    };
    const auto condition = [&](int64_t layer) {
      const std::string prefix = cat("transformer_blocks.", layer, ".norm1.emb.");
      std::vector<double> waves;
      for (bool sine : {false, true})
        for (int i = 0; i < 128; ++i) {
          const double angle = given.time * std::exp(-std::log(10000.0) * i / 127);
          waves.push_back(sine ? std::sin(angle) : std::cos(angle));
        }
      at::Tensor c = linear(at::silu(linear(at::tensor(waves, at::kDouble), prefix + "timestep_embedder.linear_1")),
                            prefix + "timestep_embedder.linear_2");
      if (shape_.classes > 0)
        c = c +
            weight(prefix + "class_embedder.embedding_table.weight")[given.label < 0 ? shape_.classes : given.label];
      return at::silu(c);
    };
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      const std::string prefix = cat("transformer_blocks.", layer, ".");
      const auto m = linear(condition(layer), prefix + "norm1.linear").chunk(6);
      at::Tensor h = normed(x, 1e-6) * (m[1] + 1) + m[0];
      const auto split = [&](const char* name) {
        return linear(h, prefix + name).view({-1, heads, head}).transpose(0, 1);
      };
      at::Tensor q = split("attn1.to_q"), k = split("attn1.to_k");
      if (shape_.positions == "rotary") {
        q = turned(q, where);
        k = turned(k, where);
      }
      const at::Tensor scores = q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(head));
      h = scores.softmax(-1).matmul(split("attn1.to_v")).transpose(0, 1).reshape({-1, dim});
      x = x + m[2] * linear(h, prefix + "attn1.to_out.0");
      h = normed(x, shape_.norm_eps) * (m[4] + 1) + m[3];
      x = x + m[5] * linear(at::gelu(linear(h, prefix + "ff.net.0.proj"), "tanh"), prefix + "ff.net.2");
    }
    const auto m = linear(condition(0), "proj_out_1").chunk(2);
    x = linear(normed(x, 1e-6) * (m[1] + 1) + m[0], "proj_out_2");
    at::Tensor out = at::empty_like(picture, at::kDouble);
    for (size_t token = 0; token < where.size(); ++token)
      cut(out, where[token][0], where[token][1], where[token][2])
          .copy_(x[static_cast<int64_t>(token)]
                     .view({shape_.patch[0], shape_.patch[1], shape_.patch[2], shape_.out_channels})
                     .narrow(3, 0, shape_.channels)
                     .permute({3, 0, 1, 2}));
    return out;
  }

  const at::Tensor& weight(const std::string& name) const { return weights_.at(name); }

 private:
  // A quarter of the features tells the frame of a video; row and column share the rest.
  std::array<int64_t, 3> shares(int64_t features) const {
    return shape_.size[0] > 1 ? std::array{features / 4, 3 * features / 8, 3 * features / 8}
                              : std::array{int64_t{0}, features / 2, features / 2};
  }
  at::Tensor sines(const std::array<int64_t, 3>& where, int64_t dim) const {
    std::vector<double> all;
    const auto share = shares(dim);
    for (int axis : {0, 2, 1})
      for (bool cosine : {false, true})
        for (int64_t i = 0; i < share[axis] / 2; ++i) {
          const double angle = static_cast<double>(where[axis]) *
                               std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(share[axis]));
          all.push_back(cosine ? std::cos(angle) : std::sin(angle));
        }
    return at::tensor(all, at::kDouble);
  }
  // Feature i and i + half turn together, as a complex number.
  at::Tensor turned(const at::Tensor& x, const std::vector<std::array<int64_t, 3>>& where) const {
    at::Tensor out = x.clone();
    const auto share = shares(shape_.head_dim);
    const int64_t half = shape_.head_dim / 2;
    for (size_t token = 0; token < where.size(); ++token) {
      int64_t i = 0;
      for (int axis = 0; axis < 3; ++axis)
        for (int64_t wave = 0; wave < share[axis] / 2; ++wave, ++i) {
          const double angle = static_cast<double>(where[token][axis]) *
                               std::pow(10000.0, -2.0 * static_cast<double>(wave) / static_cast<double>(share[axis]));
          const auto t = static_cast<int64_t>(token);
          const at::Tensor a = x.select(1, t).select(1, i), b = x.select(1, t).select(1, i + half);
          out.select(1, t).select(1, i).copy_(a * std::cos(angle) - b * std::sin(angle));
          out.select(1, t).select(1, i + half).copy_(b * std::cos(angle) + a * std::sin(angle));
        }
    }
    return out;
  }

  DitConfig shape_;
  std::map<std::string, at::Tensor> weights_;
};

TEST(Dit, OfEveryFormIsTheReferenceOnOneRankAndOnMany) {
  for (const auto& [frames, positions, classes] :
       {std::tuple(1, "sine", 0), std::tuple(1, "rotary", 3), std::tuple(6, "sine", 3), std::tuple(6, "rotary", 0)}) {
    SCOPED_TRACE(cat(frames, " frames, ", positions, ", ", classes, " classes"));
    DitConfig shape;
    shape.layers = 2;
    shape.heads = 4;
    shape.head_dim = 16;
    shape.classes = classes;
    shape.positions = positions;
    shape.size = {frames, 16, 24};
    shape.patch = {frames > 1 ? 2 : 1, 2, 4};
    const at::Tensor row = random_row(shape, 3);
    const at::Tensor pictures = at::randn({2, 3, frames, 16, 24}), targets = at::randn({2, 3, frames, 16, 24});
    const std::vector<Condition> both{{61.5, classes > 0 ? 2 : -1}, {12, -1}};
    // Each for itself, and both in one sequence.
    std::array<Outcome, 2> alone;
    std::array<at::Tensor, 2> outputs;
    for (int64_t i : {0, 1}) {
      SCOPED_TRACE(cat("picture ", i));
      Outcome& one = alone[i];
      one = run_model(shape, row, pictures.narrow(0, i, 1), targets.narrow(0, i, 1), {both[i]}, "ring", 1, i == 0);
      const at::Tensor wide = row.to(at::kDouble).requires_grad_();
      const Reference reference(shape, wide);
      const at::Tensor drawn = reference(pictures[i], both[i]);
      const at::Tensor loss = (drawn - targets[i]).square().mean();
      torch::autograd::backward({loss});
      outputs[i] = to_patches(drawn.detach(), shape.patch);
      EXPECT_LT(relative(one.output, outputs[i]), 1e-5);
      EXPECT_NEAR(one.loss, loss.item<double>(), 1e-5 * one.loss);
      const Reference gradient(shape, wide.grad());
      expect_like(one.gradients, [&](const std::string& name) { return gradient.weight(name); });
    }
    const auto& [first, second] = alone;
    const at::Tensor expected = at::cat({outputs[0], outputs[1]});
    for (const char* grid : {"ring", "startrail:2", "heads=2,team=2,ring=1,stripe=2"}) {
      const int ranks = grid == std::string("ring") ? 3 : 8;
      SCOPED_TRACE(grid);
      const Outcome packed = run_model(shape, row, pictures, targets, both, grid, ranks, true);
      EXPECT_LT(relative(packed.output, expected), 1e-5);
      EXPECT_NEAR(packed.loss, (first.loss + second.loss) / 2, 1e-5 * packed.loss);
      expect_like(packed.gradients,
                  [&](const std::string& name) { return (first.gradients.at(name) + second.gradients.at(name)) / 2; });
    }
  }
}

TEST(DitSampling, IsTheSamePictureOnAnyGrid) {
  for (const char* objective : {"flow", "ddpm"}) {
    DitConfig shape;
    shape.layers = 2;
    shape.classes = 3;
    shape.objective = objective;
    const at::Tensor row = random_row(shape, 5) * 0.3;
    const auto drawn = [&](int ranks, const std::string& grid) {
      at::Tensor pictures;
      run_ranks(ranks, 2, [&](const std::shared_ptr<Group>& group) {
        Dit model(shape);
        ParameterRow parameters(model, at::kFloat);
        parameters.weights().copy_(row);
        AttentionOptions options;
        options.grid = parse_grid(grid, ranks);
        const at::Tensor mine = draw(model, {{0, 2, -1}, 6, 2.0, 9}, options, group);
        if (group->rank() == ranks - 1) pictures = mine;
      });
      return pictures;
    };
    const at::Tensor one = drawn(1, "ring");
    EXPECT_EQ(one.sizes(), at::IntArrayRef({3, 3, 1, 32, 32}));
    EXPECT_GT((one[0] - one[1]).abs().max().item<double>(), 0.1);  // each has its own noise
    for (const char* grid : {"ring", "startrail:2", "team=4,stripe=2"})
      EXPECT_LT(relative(drawn(8, grid), one), 1e-4) << objective << " " << grid;
  }
}

}  // namespace
}  // namespace startrail
