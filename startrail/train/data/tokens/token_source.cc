#include "startrail/train/data/tokens/token_source.h"

#include <ATen/ATen.h>
#include <algorithm>

#include "startrail/base/error.h"
#include "startrail/base/random.h"

namespace startrail {
namespace {

// Everyone's values, in rank order.
std::vector<int64_t> gather_values(const std::vector<int64_t>& mine, Group& group) {
  std::vector<int64_t> all;
  for (const auto& part : group.control().gather(mine)) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace

TokenSource::TokenSource(Corpora data, const TokenSourceOptions& options) : data_(std::move(data)), options_(options) {
  if (data_.training.tokens() < options.tokens + 1)
    throw UserError(cat("the training data (", data_.training.describe(), ") has ", data_.training.tokens(),
                        " tokens, but one sequence needs ", options.tokens + 1,
                        ": give more data, or set train.tokens to ", std::max<int64_t>(1, data_.training.tokens() - 1),
                        " or less"));
  if (options.documents && data_.training.end_token() < 0)
    throw UserError(
        "data.documents needs to know what ends a document in token files: set data.end_token (50256 for "
        "GPT-2's tokens)");
}

std::string TokenSource::describe() const { return cat(data_.summary, options_.documents ? "; documents packed" : ""); }

int64_t TokenSource::epoch() const { return (data_.training.tokens() - 1) / options_.tokens; }

Example TokenSource::training(int64_t index, Order layout, Group& group) const {
  const int64_t windows = epoch(), round = index / windows;
  const int64_t slack = data_.training.tokens() - 1 - windows * options_.tokens;
  const auto shift =
      static_cast<int64_t>(mix(options_.seed, static_cast<uint64_t>(round)) % static_cast<uint64_t>(slack + 1));
  const int64_t place = shuffled(index % windows, windows, options_.seed, round);
  return window(data_.training, shift + place * options_.tokens, options_.tokens, layout, group);
}

int64_t TokenSource::validation_count() const {
  const int64_t tokens = data_.validation.tokens();
  if (tokens < 2) return 0;
  const int64_t all = std::max<int64_t>(1, (tokens - 1) / options_.tokens);
  return options_.validation_windows > 0 ? std::min(all, options_.validation_windows) : all;
}

std::optional<Example> TokenSource::validation(int64_t index, Order layout, Group& group) const {
  const int64_t available = data_.validation.tokens() - 1, tokens = std::min(options_.tokens, available);
  const int64_t all = available / tokens, used = validation_count();
  return window(data_.validation, index * all / used * tokens, tokens, layout, group);
}

Example TokenSource::window(const Corpus& corpus, int64_t first, int64_t tokens, Order layout, Group& group) const {
  const Layout split{layout, tokens, group.size()};
  const int64_t own = chunk_tokens(split, group.rank());
  Example example{tokens, {.causal = true}, at::empty({own}, at::kLong), at::empty({own}, at::kLong)};
  auto* input = example.input.data_ptr<int64_t>();
  auto* target = example.target.data_ptr<int64_t>();
  std::vector<int64_t> ends;  // places in the sequence where a document ends
  int64_t offset = 0;
  for (const Piece& piece : chunk_pieces(split, group.rank())) {
    corpus.read(first + piece.first, piece.count, piece.stride, input + offset);
    corpus.read(first + piece.first + 1, piece.count, piece.stride, target + offset);
    for (int64_t i = 0; options_.documents && i < piece.count; ++i) {
      if (input[offset + i] != corpus.end_token()) continue;
      ends.push_back(piece.at(i));
      target[offset + i] = -1;  // the next document is not this one's to foretell
    }
    offset += piece.count;
  }
  if (!options_.documents) return example;
  ends = gather_values(ends, group);
  std::sort(ends.begin(), ends.end());
  if (ends.empty() || ends.back() != tokens - 1) ends.push_back(tokens - 1);
  int64_t before = -1;
  for (int64_t end : ends) example.mask.documents.push_back(end - std::exchange(before, end));
  return example;
}

}  // namespace startrail
