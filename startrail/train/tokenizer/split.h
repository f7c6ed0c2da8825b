// What happens to text before BPE: the pre_tokenizer of a tokenizer.json cuts it into pieces, and its normalizer may
// ask for NFC (nfc.h). Used by tokenizer.cc only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "startrail/base/text.h"
#include "startrail/train/tokenizer/regex.h"
#include "startrail/train/tokenizer/scan.h"

namespace startrail {

// One step: it isolates what a pattern matches, scanned by hand where the pattern is known; or, without a pattern, it
// puts a space before a piece that has none.
struct Cut {
  std::optional<Regex> regex;
  std::optional<Scan> scan;
};
using Cuts = std::vector<Cut>;

// From the file's "pre_tokenizer". UserError for kinds that are not supported.
Cuts make_cuts(const nlohmann::json& pre_tokenizer);

// Calls `piece` with every piece of a text that is not empty, in order, from the given step on; none is empty.
template <class Piece>
void cut(const Cuts& cuts, std::string_view text, const Piece& piece, size_t step = 0) {
  const auto next = [&](std::string_view part) { cut(cuts, part, piece, step + 1); };
  if (step == cuts.size()) {
    piece(text);
  } else if (const auto& [regex, scan] = cuts[step]; scan) {
    split_valid(
        text,
        [&, &rules = *scan](std::string_view letters) {
          for (size_t size; !letters.empty(); letters.remove_prefix(size)) {
            size = rules.next(letters);
            next(letters.substr(0, size));
          }
        },
        next);
  } else if (regex) {
    regex->split(text, [&](std::string_view part, bool) { next(part); });
  } else {
    next(text.starts_with(' ') ? text : cat(" ", text));
  }
}

// Whether the pieces of a text are the same when it is cut before, where may_cut_after() allows it.
bool cuts_at_lines(const Cuts& cuts);

// From the file's "normalizer": whether it is NFC. UserError for kinds other than NFC and none.
bool needs_nfc(const nlohmann::json& normalizer);

}  // namespace startrail
