#include "startrail/layout/mask.h"

#include <algorithm>
#include <numeric>

#include "startrail/base/error.h"

namespace startrail {

void check_mask(const Mask& mask, int64_t query_tokens, int64_t key_tokens) {
  if (query_tokens != key_tokens && !mask.full())
    throw UserError(cat("mask '", to_text(mask), "' needs as many keys as queries, but there are ", query_tokens,
                        " queries and ", key_tokens, " keys; only mask full may differ"));
  if (mask.window < 0) throw UserError(cat("window ", mask.window, " is negative: give 1 or more, or 0 for none"));
  if (mask.prefix < 0 || mask.prefix > key_tokens)
    throw UserError(cat("prefix ", mask.prefix, " does not fit ", key_tokens, " tokens: give 0 to ", key_tokens));
  if (mask.padding < 0 || mask.padding >= query_tokens)
    if (mask.padding != 0)
      throw UserError(
          cat("padding ", mask.padding, " does not fit ", query_tokens, " tokens: give 0 to ", query_tokens - 1));
  if (mask.prefix > 0 && !mask.causal)
    throw UserError(
        cat("prefix ", mask.prefix, " has no meaning with mask full, where every key is seen: use mask causal"));
  if (mask.prefix > 0 && (mask.window > 0 || !mask.documents.empty()))
    throw UserError(cat("prefix ", mask.prefix, " cannot be joined with a window or documents: choose one of them"));
  if (mask.documents.empty()) return;
  for (int64_t length : mask.documents)
    if (length < 1 || length > query_tokens)
      throw UserError(cat("a document of ", length, " tokens is not possible: give lengths of 1 to ", query_tokens));
  const int64_t sum = std::accumulate(mask.documents.begin(), mask.documents.end(), int64_t{0});
  if (sum + mask.padding != query_tokens)
    throw UserError(cat("documents add up to ", sum, " tokens", mask.padding ? cat(" plus padding ", mask.padding) : "",
                        ", but there are ", query_tokens, ": they must be equal (padding may fill the rest)"));
}

std::string to_text(const Mask& mask) {
  std::string text = mask.causal ? "causal" : "full";
  if (mask.window > 0) text += cat(", window ", mask.window);
  if (!mask.documents.empty()) text += cat(", documents ", join(mask.documents, "+"));
  if (mask.prefix > 0) text += cat(", prefix ", mask.prefix);
  if (mask.padding > 0) text += cat(", padding ", mask.padding);
  return text;
}

Band::Band(const Mask& mask, int64_t query_tokens, int64_t key_tokens) : mask_(mask), keys_(key_tokens - mask.padding) {
  check_mask(mask, query_tokens, key_tokens);
  mask_.window = std::min(mask.window, key_tokens);  // a larger one sees no more, and sums with it could overflow
  if (mask.documents.empty()) return;
  starts_.push_back(0);
  for (int64_t length : mask.documents) starts_.push_back(starts_.back() + length);
}

Span Band::keys_of(int64_t query) const {
  if (mask_.padding > 0 && query >= keys_) return {keys_, keys_};
  int64_t begin = 0, end = keys_;
  if (mask_.causal) end = std::min(end, std::max(query + 1, mask_.prefix));
  if (mask_.window > 0) {
    begin = std::max(begin, query - mask_.window + 1);
    end = std::min(end, query + mask_.window);
  }
  if (!starts_.empty()) {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), query);
    begin = std::max(begin, *(next - 1));
    end = std::min(end, *next);
  }
  return {begin, end};
}

}  // namespace startrail
