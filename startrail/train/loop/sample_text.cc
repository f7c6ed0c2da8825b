#include "startrail/train/loop/sample_text.h"

#include <algorithm>
#include <memory>
#include <set>

#include "startrail/base/error.h"
#include "startrail/train/data/tokens/token_folder.h"
#include "startrail/train/loop/estimate.h"
#include "startrail/train/tokenizer/tokenizer.h"

namespace startrail {
namespace {

// What the model's tokens are, and how they are read and written.
class Writing {
 public:
  Writing(const TextOptions& options, const LlamaConfig& shape) {
    const std::filesystem::path own = options.folder / kTokenizerFile;
    const bool given = !options.tokenizer.empty();
    if (given || std::filesystem::exists(own)) {
      tokenizer_ = std::make_unique<Tokenizer>(given ? options.tokenizer : own);
      ends_ = end_ids(options.folder);
    }
    if (tokenizer_ && tokenizer_->vocabulary() > shape.vocabulary)
      throw UserError(cat("the tokenizer has ", tokenizer_->vocabulary(), " tokens, but the model's vocabulary is ",
                          shape.vocabulary));
    bytes_ = !tokenizer_ && shape.vocabulary == 256;
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
    if (tokens.empty() && !ends_.empty()) tokens = {*ends_.begin()};
    if (tokens.empty() && tokenizer_) throw UserError("the prompt has no token: give --prompt a text to go on from");
    if (tokens.empty())
      throw UserError("this model is not byte-level: give --prompt token ids such as 1,2,3, or --tokenizer");
    return tokens;
  }

  bool ends(int64_t token) const { return ends_.contains(token); }

  // The next piece of a text of which `written` letters are there, for these tokens of it.
  std::string write(const std::vector<int64_t>& tokens, size_t written, bool first) const {
    if (bytes_) return {static_cast<char>(tokens.back())};
    if (!tokenizer_) return cat(first ? "" : ",", tokens.back());
    // Decoded from the start each time: a character may need several tokens.
    return tokenizer_->decode(tokens).substr(written);
  }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::set<int64_t> ends_;
  bool bytes_ = false;
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

void warn_of_length(const TextOptions& options, const LlamaConfig& shape, size_t prompt) {
  const int64_t tokens = static_cast<int64_t>(prompt) + options.sampling.tokens;
  if (tokens > shape.max_tokens && shape.rope.type == "default" && options.on_warning)
    options.on_warning(cat("a prompt of ", prompt, " tokens and ", options.sampling.tokens, " more go past the ",
                           shape.max_tokens, " positions of the model (max_position_embeddings), which has no rope ",
                           "scaling: expect nonsense beyond them"));
}

}  // namespace

std::vector<WrittenText> sample_texts(const TextOptions& options,
                                      const std::function<bool(size_t, std::string_view)>& on_text) {
  check_options(options.sampling);
  const auto model = load_llama(options.folder, options.type, options.which);
  const Writing writing(options, model->shape());
  std::vector<WrittenText> texts;
  size_t longest = 0;
  for (const std::string& prompt : options.prompts) {
    texts.push_back({prompt, writing.read(prompt), {}, ""});
    check_prompt(texts.back().prompt_ids, model->shape().vocabulary);  // before it is shown
    longest = std::max(longest, texts.back().prompt_ids.size());
  }
  check_room(options, model->shape(), longest);
  warn_of_length(options, model->shape(), longest);
  bool goes_on = true;
  for (size_t number = 0; number < texts.size() && goes_on; ++number) {
    WrittenText& text = texts[number];
    goes_on = on_text(number, text.prompt);
    if (!goes_on) break;
    generate(*model, text.prompt_ids, options.sampling, [&](int64_t token) {
      if (writing.ends(token)) return false;
      text.ids.push_back(token);
      const std::string piece = writing.write(text.ids, text.text.size(), text.prompt.empty() && text.ids.size() == 1);
      text.text += piece;
      return goes_on = on_text(number, piece);
    });
  }
  return texts;
}

}  // namespace startrail
