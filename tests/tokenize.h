// What the fast and the long tests of `startrail tokenize` share.
#pragma once

#include <cstdint>

namespace startrail {

// Compares with Hugging Face's tokenizers on mixed text and three tokenizers, through tests/tokenizer_reference.py.
void expect_reference_tokens(int64_t bytes);

// Kills `startrail tokenize` at so many moments, each run going on where the last was, and compares with one run.
void kill_and_tokenize(int kills);

}  // namespace startrail
