// Which classes of a DiT's pictures are drawn, and how clearly they are told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "startrail/train/model/dit_config.h"

namespace startrail {

// Whether the model had data of this class, as far as it says.
bool has_data(int64_t label, const DitConfig& shape);

// Its name, or its number where it has none.
std::string class_name(int64_t label, const DitConfig& shape);

// What is drawn when no class is asked for: the first 8 that had data, or -1 where there are no classes.
std::vector<int64_t> usual_classes(const DitConfig& shape);

// The names and numbers of --classes. Where classes are named 1, 2, 3 an entry may be both: it means the name when all
// entries are names, and is refused otherwise. UserError also for what the model does not have.
std::vector<int64_t> parse_classes(const std::string& text, const DitConfig& shape);

// What guidance to draw with: as given, or 4 where the model has learned to draw without a class too and otherwise 1.
// UserError for other than 1 where it has not.
double guidance_of(const std::optional<double>& given, const DitConfig& shape);

}  // namespace startrail
