// How far apart two words are, for messages that name what a misspelt one was meant to be.
#pragma once

#include <string_view>

namespace startrail {

// Letters to change, add or leave out to come from one to the other (Levenshtein's).
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace startrail
