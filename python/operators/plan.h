// A plan for Python: its text, bytes and memory.
#pragma once

#include <string>

#include "startrail/run/attention.h"

namespace startrail {

// {"grid", "scheme", "ranks", "backward", "text", "passes": [cost_json of each]}
std::string plan_json(const AttentionOptions& options, const AttentionShape& shape);

}  // namespace startrail
