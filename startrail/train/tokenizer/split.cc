#include "startrail/train/tokenizer/split.h"

#include <cctype>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/train/tokenizer/bpe.h"

namespace startrail {
namespace {

using nlohmann::json;

Cut cut_at(const std::string& pattern) { return {Regex(pattern), make_scan(pattern)}; }

Cut cut_at(const json& pattern) {
  if (pattern.contains("Regex")) return cut_at(pattern.at("Regex").get<std::string>());
  std::string literal;
  for (const char letter : pattern.at("String").get<std::string>()) {
    if (std::ispunct(static_cast<unsigned char>(letter))) literal += '\\';
    literal += letter;
  }
  return cut_at(literal);
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
    if (part.value("use_regex", true)) cuts.push_back(cut_at(std::string(kGpt2Pattern)));
  } else if (type == "Split") {
    const std::string behavior = part.at("behavior");
    if (behavior != "Isolated" || part.value("invert", false))
      throw UserError(cat("pre_tokenizer Split with behavior ", behavior, " and invert ",
                          part.value("invert", false) ? "true" : "false",
                          " is not supported: only Isolated and false are"));
    cuts.push_back(cut_at(part.at("pattern")));
  } else if (type == "Digits") {
    cuts.push_back(cut_at(std::string(part.value("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)")));
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

bool cuts_at_lines(const Cuts& cuts) { return cuts.size() == 1 && cuts[0].scan; }

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

}  // namespace startrail
