#include "cli/shape.h"

#include <c10/core/ScalarType.h>
#include <CLI/CLI.hpp>
#include <algorithm>

#include "startrail/base/error.h"
#include "startrail/base/text.h"

namespace startrail::cli {
namespace {

void need(int64_t value, int64_t most, const char* what) {
  if (value < 1 || value > most) throw UserError(cat(value, " ", what, " cannot be computed: give 1 to ", most));
}

}  // namespace

at::ScalarType parse_type(const std::string& text, const std::string& flag, const std::vector<std::string>& valid) {
  if (std::find(valid.begin(), valid.end(), text) == valid.end())
    throw UserError(cat(flag, " '", text, "' is not known; valid: ", join(valid)));
  return text == "float32" ? at::kFloat : text == "bfloat16" ? at::kBFloat16 : at::kDouble;
}

void ShapeFlags::add_to(CLI::App& command) {
  ranks_option = command.add_option("--ranks", ranks, "Ranks that share the sequence")->capture_default_str();
  command
      .add_option("--grid", grid,
                  "How they are arranged: ring, startrail:C, ulysses, usp:U, allgather, mesh:A, or "
                  "heads=1,team=2,ring=4,stripe=2[,order=heads-team-ring-stripe]")
      ->capture_default_str();
  command.add_option("--tokens", tokens, "Length of the whole sequence; need not divide by the ranks")
      ->capture_default_str();
  command.add_option("--key-tokens", key_tokens, "Keys, when they differ from the queries (mask full only)");
  command.add_option("--batch", batch, "Sequences")->capture_default_str();
  command.add_option("--heads", heads, "Query heads")->capture_default_str();
  command.add_option("--kv-heads", key_heads, "Key/value heads (default: as many as heads)");
  command.add_option("--dim", dim, "Size of a head")->capture_default_str();
  command.add_option("--mask", mask, "full or causal")->capture_default_str();
  command.add_option("--window", window, "See only keys nearer than this");
  command.add_option("--documents", documents, "Lengths of packed documents, such as 1000,96,3000");
  command.add_option("--prefix", prefix, "First keys that every query sees (with causal)");
  command.add_option("--padding", padding, "Last tokens that see nothing and are not seen");
  command.add_option("--layout", layout, "Which tokens a rank holds: contiguous, zigzag or striped")
      ->capture_default_str();
  command.add_option("--dtype", dtype, "float32, bfloat16 or float64")->capture_default_str();
  command.add_option("--partial", partial, "Type of partial results on the wire: float32 or bfloat16")
      ->capture_default_str();
  command.add_option("--backward", backward, "What rides the rings backward: keys, queries, or auto (the cheaper)")
      ->capture_default_str();
}

at::ScalarType ShapeFlags::type() const { return parse_type(dtype, "dtype", {"float32", "bfloat16", "float64"}); }

AttentionOptions ShapeFlags::options() const {
  if (ranks < 1 || ranks > 4096) throw UserError(cat(ranks, " ranks cannot run: give 1 to 4096"));
  AttentionOptions options;
  options.grid = parse_grid(grid, ranks);
  options.order = parse_order(layout);
  options.tokens = tokens;
  options.key_tokens = key_tokens.value_or(0);
  if (mask != "full" && mask != "causal")
    throw UserError(cat("mask '", mask,
                        "' is not known; valid masks: full, causal (and --window, --documents, --prefix, --padding)"));
  options.mask.causal = mask == "causal";
  options.mask.window = window;
  options.mask.prefix = prefix;
  options.mask.padding = padding;
  for (const std::string& length : split(documents, ','))
    options.mask.documents.push_back(parse_int(length, "document length"));
  options.backward = parse_direction(backward);
  options.partial = parse_type(partial, "partial");
  if (type() == at::kDouble && options.partial == at::kBFloat16)
    throw UserError("partial bfloat16 does not go with dtype float64: leave it out");
  check_layout({options.order, tokens, ranks});
  // Products of these stay far below 64 bits.
  need(tokens, int64_t{1} << 32, "tokens");
  need(key_tokens.value_or(tokens), int64_t{1} << 32, "key tokens");
  need(batch, 1 << 10, "sequences");
  need(heads, 1 << 10, "heads");
  need(kv_heads(), 1 << 10, "key/value heads");
  need(dim, 1 << 10, "numbers a head");
  check_mask(options.mask, tokens, key_tokens.value_or(tokens));
  check_heads(options.grid, static_cast<int>(heads), static_cast<int>(kv_heads()));
  type();
  return options;
}

PlanSubject ShapeFlags::subject(const AttentionOptions& options) const {
  return {.type = dtype,
          .partial = partial,
          .layout = layout,
          .mask = options.mask,
          .backward = backward_pass(options, problem(options))};
}

Problem ShapeFlags::problem(const AttentionOptions& options) const {
  return make_problem(options, batch, static_cast<int>(heads), static_cast<int>(kv_heads()), dim, type());
}

}  // namespace startrail::cli
