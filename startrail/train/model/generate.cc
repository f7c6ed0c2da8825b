#include "startrail/train/model/generate.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "startrail/base/error.h"

namespace startrail {

void check_options(const SampleOptions& options) {
  if (options.tokens < 1) throw UserError(cat(options.tokens, " tokens cannot be generated: give 1 or more"));
  if (!(options.temperature >= 0)) throw UserError(cat("temperature ", options.temperature, " must be 0 or more"));
  if (options.top_k < 0) throw UserError(cat("top-k ", options.top_k, " must be 1 or more, or 0 for all"));
  if (!(options.top_p > 0 && options.top_p <= 1))
    throw UserError(cat("top-p ", options.top_p, " must be above 0 and at most 1"));
}

int64_t draw(const at::Tensor& logits, const SampleOptions& options, at::Generator& generator) {
  if (options.temperature == 0) return logits.argmax().item<int64_t>();
  // The highest becomes 0, which no temperature takes beyond what a double holds.
  const at::Tensor lowered = logits.to(at::kDouble) - logits.max();
  const auto [sorted, order] = (lowered / options.temperature).sort(-1, /*descending=*/true);
  at::Tensor chances = sorted.softmax(-1);
  if (options.top_k > 0 && options.top_k < chances.size(0))
    chances.narrow(0, options.top_k, chances.size(0) - options.top_k).zero_();
  // Those before which less than top_p has been gathered: the likeliest always stays.
  if (options.top_p < 1) chances.mul_((chances.cumsum(0) - chances) < options.top_p * chances.sum());
  return order[at::multinomial(chances, 1, false, generator)[0]].item<int64_t>();
}

void check_prompt(const std::vector<int64_t>& prompt, int64_t vocabulary) {
  if (prompt.empty()) throw UserError("the prompt has no token: give at least one");
  for (int64_t token : prompt)
    if (token < 0 || token >= vocabulary)
      throw UserError(cat("token ", token, " of the prompt is beyond the vocabulary of ", vocabulary));
}

void generate(const Llama& model, const std::vector<int64_t>& prompt, const SampleOptions& options,
              const std::function<bool(int64_t)>& on_token) {
  check_options(options);
  check_prompt(prompt, model.shape().vocabulary);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  KeyValueCache cache = model.make_cache(static_cast<int64_t>(prompt.size()) + options.tokens);
  at::Tensor logits = model.next_logits(at::tensor(prompt, at::kLong), cache);
  for (int64_t i = 0; i < options.tokens; ++i) {
    const int64_t token = draw(logits, options, generator);
    if (!on_token(token)) return;
    if (i + 1 < options.tokens) logits = model.next_logits(at::tensor({token}, at::kLong), cache);
  }
}

}  // namespace startrail
