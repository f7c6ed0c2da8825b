#include "cli/shape.h"

#include <c10/core/ScalarType.h>

#include "startrail/base/error.h"

namespace startrail::cli {
namespace {

at::ScalarType parse_type(const std::string& text, const std::string& flag) {
  if (text == "float32") return at::kFloat;
  if (text == "bfloat16") return at::kBFloat16;
  if (text == "float64") return at::kDouble;
  throw UserError(cat(flag, " '", text, "' is not known; valid: float32, bfloat16, float64"));
}

void need_positive(int64_t value, const char* what) {
  if (value < 1) throw UserError(cat(value, " ", what, " cannot be computed: give 1 or more"));
}

}  // namespace

void ShapeFlags::add_to(CLI::App& command) {
  command.add_option("--ranks", ranks, "Ranks that share the sequence")->capture_default_str();
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

at::ScalarType ShapeFlags::type() const { return parse_type(dtype, "dtype"); }

AttentionOptions ShapeFlags::options() const {
  if (ranks < 1 || ranks > 4096) throw UserError(cat(ranks, " ranks cannot run: give 1 to 4096"));
  AttentionOptions options;
  options.grid = parse_grid(grid, ranks);
  options.layout = parse_order(layout);
  options.tokens = tokens;
  options.key_tokens = key_tokens;
  if (mask != "full" && mask != "causal")
    throw UserError(cat("mask '", mask, "' is not known; valid masks: full, causal"));
  options.mask.causal = mask == "causal";
  options.mask.window = window;
  options.mask.prefix = prefix;
  options.mask.padding = padding;
  for (const std::string& length : split(documents, ','))
    options.mask.documents.push_back(parse_int(length, "document length"));
  options.backward = parse_direction(backward);
  options.partial = parse_type(partial, "partial");
  if (options.partial == at::kDouble) throw UserError("partial 'float64' is not known; valid: float32, bfloat16");
  check_layout({options.layout, tokens, ranks});
  if (key_tokens < 0) throw UserError(cat(key_tokens, " key tokens cannot be split: give 1 or more"));
  check_mask(options.mask, tokens, key_tokens > 0 ? key_tokens : tokens);
  need_positive(batch, "sequences");
  need_positive(heads, "heads");
  need_positive(kv_heads(), "key/value heads");
  need_positive(dim, "numbers a head");
  check_heads(options.grid, static_cast<int>(heads), static_cast<int>(kv_heads()));
  type();
  return options;
}

Problem ShapeFlags::problem(const AttentionOptions& options) const {
  return make_problem(options, ranks, batch, static_cast<int>(heads), static_cast<int>(kv_heads()), dim, type());
}

}  // namespace startrail::cli
