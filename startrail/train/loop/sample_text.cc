#include "startrail/train/loop/sample_text.h"

#include <algorithm>
#include <memory>

#include "startrail/base/error.h"
#include "startrail/train/loop/estimate.h"
#include "startrail/train/tokenizer/tokenizer.h"

namespace startrail {
namespace {

// What the model's tokens are, and how they are read and written.
class Script {
 public:
  Script(const TextOptions& options, const LlamaConfig& shape) {
    if (!options.tokenizer.empty()) tokenizer_ = std::make_unique<Tokenizer>(options.tokenizer);
    if (tokenizer_ && tokenizer_->vocabulary() > shape.vocabulary)
      throw UserError(cat("the tokenizer has ", tokenizer_->vocabulary(), " tokens, but the model's vocabulary is ",
                          shape.vocabulary));
    bytes_ = !tokenizer_ && shape.vocabulary == 256;
    first_ = options.prompt.empty();
  }

  std::vector<int64_t> read(const std::string& prompt) const {
    std::vector<int64_t> tokens;
    if (tokenizer_)
      tokens = tokenizer_->encode(prompt);
    else if (bytes_)
      for (const char letter : prompt) tokens.push_back(static_cast<unsigned char>(letter));
    else
      for (const std::string& part : split(prompt, ',')) tokens.push_back(parse_int(part, "token"));
    if (tokens.empty() && bytes_) tokens = {0};  // the end of the document before: a new one begins
    if (tokens.empty())
      throw UserError("this model is not byte-level: give --prompt token ids such as 1,2,3, or --tokenizer");
    return tokens;
  }

  std::string write(int64_t token) {
    if (bytes_) return {static_cast<char>(token)};
    if (!tokenizer_) return cat(std::exchange(first_, false) ? "" : ",", token);
    // Decoded from the start each time: a character may need several tokens.
    drawn_.push_back(token);
    const std::string text = tokenizer_->decode(drawn_);
    return text.substr(std::exchange(written_, text.size()));
  }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  bool bytes_ = false, first_ = true;
  std::vector<int64_t> drawn_;
  size_t written_ = 0;
};

void check_room(const TextOptions& options, const LlamaConfig& shape, size_t prompt) {
  const double each = 2.0 * static_cast<double>(shape.layers * shape.key_heads * shape.head_dim) *
                      static_cast<double>(c10::elementSize(options.type));
  const double room = static_cast<double>(available_memory()) / each - static_cast<double>(prompt);
  if (static_cast<double>(options.sampling.tokens) > room)
    throw UserError(cat("--tokens ", options.sampling.tokens, " need ",
                        human_bytes(each * static_cast<double>(options.sampling.tokens)),
                        " for keys and values, which is not free: give ", fixed(std::max(0.0, room), 0), " or fewer"));
}

}  // namespace

void sample_text(const TextOptions& options, const std::function<bool(std::string_view)>& on_text) {
  check_options(options.sampling);
  const auto model = load_llama(options.folder, options.type, options.which);
  Script script(options, model->shape());
  const std::vector<int64_t> prompt = script.read(options.prompt);
  check_prompt(prompt, model->shape().vocabulary);  // before it is shown
  check_room(options, model->shape(), prompt.size());
  if (!on_text(options.prompt)) return;
  generate(*model, prompt, options.sampling, [&](int64_t token) { return on_text(script.write(token)); });
}

}  // namespace startrail
