#include "startrail/train/data/tokenize/batch_encoder.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/train/tokenizer/letters.h"

namespace startrail {
namespace {

using nlohmann::json;

// Takes one field out of an object, without building the rest.
class FieldReader : public nlohmann::json_sax<json> {
 public:
  explicit FieldReader(const std::string& field) : field_(field) {}

  // The field's text. UserError, in words that follow the line's name, when there is none.
  std::string read(std::string_view line) {
    if (!json::sax_parse(line.begin(), line.end(), this)) throw UserError(cat("is not JSON (at byte ", error_at_, ")"));
    if (!is_object_) throw UserError("is no JSON object");
    if (kind_.empty())
      throw UserError(cat("has no field '", field_, "'; it has: ", names_.empty() ? "none" : join(names_)));
    if (kind_ != "text") throw UserError(cat("has ", kind_, " in its field '", field_, "', not text"));
    return std::move(text_);
  }

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("true or false"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool string(string_t& text) override {
    if (depth_ == 1 && wanted_) text_ = std::move(text);
    return value("text");
  }
  bool binary(binary_t&) override { return value("bytes"); }
  bool start_object(std::size_t) override {
    if (depth_ == 0) is_object_ = true;
    value("an object");
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    constexpr size_t kMostNames = 12;
    wanted_ = name == field_;
    if (names_.size() < kMostNames) names_.push_back(name);
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override {
    value("a list");
    ++depth_;
    return true;
  }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    error_at_ = at;
    return false;
  }

 private:
  bool value(const char* kind) {
    if (depth_ == 1 && wanted_) kind_ = kind;
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  const std::string& field_;
  std::string text_, kind_;  // the last of them, where a name is there twice
  std::vector<std::string> names_;
  int depth_ = 0;
  bool is_object_ = false, wanted_ = false;
  size_t error_at_ = 0;
};

void check_utf8(std::string_view text) {
  if (const size_t valid = valid_size(text); valid < text.size())
    throw UserError(cat("is not UTF-8 text (at byte ", valid, ")"));
}

template <class Token>
void append(const std::vector<uint32_t>& tokens, std::vector<char>& out) {
  static_assert(std::endian::native == std::endian::little);
  const size_t before = out.size();
  out.resize(before + tokens.size() * sizeof(Token));
  char* at = out.data() + before;
  for (const uint32_t token : tokens) {
    const auto written = static_cast<Token>(token);
    std::memcpy(at, &written, sizeof written);
    at += sizeof written;
  }
}

}  // namespace

BatchEncoder::BatchEncoder(const Tokenizer& tokenizer, const std::vector<TextFile>& files, Options options)
    : tokenizer_(tokenizer), files_(files), options_(std::move(options)) {}

void BatchEncoder::encode(Batch& batch) {
  for (const Batch::Item& item : batch.items) {
    const TextFile& file = files_[static_cast<size_t>(item.file)];
    const auto part = std::string_view(batch.text).substr(item.begin, item.end - item.begin);
    tokens_.clear();
    try {
      if (!item.bad.empty()) {
        if (item.ends) batch.bad.push_back(cat(file.path, " ", item.bad));
        continue;
      }
      std::string field;
      check_utf8(part);
      if (file.lines) field = FieldReader(options_.text_field).read(part);
      const std::string_view text = file.lines ? field : part;
      tokenizer_.encode(text, memo_, tokens_);
      batch.text_bytes += static_cast<int64_t>(text.size());
    } catch (const UserError& error) {
      // A file of text may be in several parts: its lines are counted up to the byte that is wrong.
      const int64_t above = file.lines ? 0 : std::ranges::count(part.substr(0, valid_size(part)), '\n');
      batch.bad.push_back(cat(file.path, " line ", item.line + above, " ", error.what()));
      continue;
    }
    if (item.ends) tokens_.push_back(options_.end_token);
    batch.documents += item.ends ? 1 : 0;
    batch.token_count += std::ssize(tokens_);
    options_.token_bytes == 2 ? append<uint16_t>(tokens_, batch.tokens) : append<uint32_t>(tokens_, batch.tokens);
  }
  batch.text = {};
}

}  // namespace startrail
