// The flags that describe one attention, shared by `attend` and `plan`, and the types that flags name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "startrail/plan/json.h"
#include "startrail/run/attention.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace startrail::cli {

// UserError, naming the flag, when it is none of `valid`.
at::ScalarType parse_type(const std::string& text, const std::string& flag,
                          const std::vector<std::string>& valid = {"float32", "bfloat16"});

struct ShapeFlags {
  int ranks = 16;
  CLI::Option* ranks_option = nullptr;  // tells whether they were given
  std::string grid = "startrail:2";
  int64_t tokens = 4096;
  std::optional<int64_t> key_tokens;
  int64_t batch = 1, heads = 8, dim = 64;
  std::optional<int64_t> key_heads;
  std::string mask = "causal", layout = "zigzag", dtype = "float32", partial = "float32", backward = "auto";
  std::string documents;
  int64_t window = 0, prefix = 0, padding = 0;

  void add_to(CLI::App& command);

  // Everything checked that can be checked before anything runs; UserError otherwise.
  AttentionOptions options() const;
  at::ScalarType type() const;
  int64_t kv_heads() const { return key_heads.value_or(heads); }
  Problem problem(const AttentionOptions& options) const;
  PlanSubject subject(const AttentionOptions& options) const;
};

}  // namespace startrail::cli
