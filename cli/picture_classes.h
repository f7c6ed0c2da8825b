// Which classes of a DiT's pictures are drawn, by `train` and `sample`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "startrail/train/model/dit_config.h"

namespace startrail::cli {

constexpr const char* kAlwaysTold = "was never trained without a class (data.class_dropout = 0)";

// Whether the model had data of this class, as far as it says.
bool has_data(int64_t label, const DitConfig& shape);

// Its name, or its number where it has none.
std::string class_name(int64_t label, const DitConfig& shape);

// What is drawn when no class is asked for: the first 8 that had data, or -1 where there are no classes.
std::vector<int64_t> usual_classes(const DitConfig& shape);

// The names and numbers of --classes. Where classes are named 1, 2, 3 an entry may be both: it means the name when all
// entries are names, and is refused otherwise. UserError also for what the model does not have.
std::vector<int64_t> parse_classes(const std::string& text, const DitConfig& shape);

}  // namespace startrail::cli
