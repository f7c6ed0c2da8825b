#include "startrail/train/tokenizer/split.h"

#include <cctype>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/train/tokenizer/bpe.h"

namespace startrail {
namespace {

using nlohmann::json;

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// All marks but the variation selectors of emoji, and every other letter that NFC replaces or joins to the one before.
constexpr const char* kNotSurelyNfc =
    R"((?![\x{fe00}-\x{fe0f}])\p{M}|[\x{374}\x{37e}\x{387}\x{958}-\x{95f}\x{9dc}-\x{9df}\x{a33}-\x{a5e}\x{b5c}\x{b5d})"
    R"(\x{f43}-\x{f69}\x{1161}-\x{11c2}\x{1f71}-\x{1ffd}\x{2000}\x{2001}\x{2126}\x{212a}\x{212b}\x{2329}\x{232a})"
    R"(\x{2adc}\x{f900}-\x{fad9}\x{fb1d}-\x{fb4e}\x{1d15e}-\x{1d1c0}\x{2f800}-\x{2fa1d}])";

Regex regex_of(const json& pattern) {
  if (pattern.contains("Regex")) return Regex(pattern.at("Regex").get<std::string>());
  std::string literal;
  for (const char letter : pattern.at("String").get<std::string>()) {
    if (std::ispunct(static_cast<unsigned char>(letter))) literal += '\\';
    literal += letter;
  }
  return Regex(literal);
}

void add_cuts(const json& part, Cuts& cuts, bool& byte_level) {
  const std::string type = type_of(part);
  if (type == "Sequence") {
    for (const json& inner : part.at("pretokenizers")) add_cuts(inner, cuts, byte_level);
    return;
  }
  if (byte_level)
    throw UserError(cat("pre_tokenizer ", type, " after ByteLevel is not supported: ByteLevel must be last"));
  if (type == "ByteLevel") {
    byte_level = true;
    if (part.value("add_prefix_space", true)) cuts.emplace_back();
    if (part.value("use_regex", true)) cuts.emplace_back(kGpt2);
  } else if (type == "Split") {
    const std::string behavior = part.at("behavior");
    if (behavior != "Isolated" || part.value("invert", false))
      throw UserError(cat("pre_tokenizer Split with behavior ", behavior, " and invert ",
                          part.value("invert", false) ? "true" : "false",
                          " is not supported: only Isolated and false are"));
    cuts.emplace_back(regex_of(part.at("pattern")));
  } else if (type == "Digits") {
    cuts.emplace_back(part.value("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
  } else {
    throw UserError(cat("pre_tokenizer ", type,
                        " is not supported: only ByteLevel is, alone or last in a Sequence after Split and Digits"));
  }
}

}  // namespace

Cuts make_cuts(const json& pre_tokenizer) {
  Cuts cuts;
  bool byte_level = false;
  add_cuts(pre_tokenizer, cuts, byte_level);
  if (!byte_level)
    throw UserError(
        cat("pre_tokenizer ", type_of(pre_tokenizer), " without ByteLevel is not supported: ByteLevel must be last"));
  return cuts;
}

void cut(const Cuts& cuts, std::string_view text, const std::function<void(std::string_view)>& piece, size_t step) {
  if (step == cuts.size())
    piece(text);
  else if (cuts[step])
    cuts[step]->split(text, [&](std::string_view part, bool) { cut(cuts, part, piece, step + 1); });
  else
    cut(cuts, text.starts_with(' ') ? text : cat(" ", text), piece, step + 1);
}

bool needs_nfc(const json& normalizer) {
  const std::string type = type_of(normalizer);
  if (type == "Sequence") {
    bool any = false;
    for (const json& inner : normalizer.at("normalizers")) any = needs_nfc(inner) || any;
    return any;
  }
  if (type != "NFC" && !normalizer.is_null())
    throw UserError(cat("normalizer ", type, " is not supported: only NFC and none (null) are"));
  return type == "NFC";
}

void check_nfc(std::string_view text) {
  static const Regex suspect(kNotSurelyNfc);
  suspect.split(text, [&](std::string_view piece, bool matches) {
    if (matches)
      throw UserError(
          cat("the text has '", piece, "' at byte ", piece.data() - text.data(),
              ", which this tokenizer's NFC normalization may change: StarTrail does not normalize, so only "
              "text without combining marks and compatibility letters is taken"));
  });
}

}  // namespace startrail
