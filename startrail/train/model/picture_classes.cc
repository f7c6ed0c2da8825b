#include "startrail/train/model/picture_classes.h"

#include <algorithm>
#include <cmath>

#include "startrail/base/error.h"
#include "startrail/base/text.h"

namespace startrail {
namespace {

constexpr const char* kAlwaysTold = "was never trained without a class (data.class_dropout = 0)";

std::string known_classes(const DitConfig& shape) {
  constexpr size_t kMost = 20;
  if (shape.classes == 0) return "none";
  std::vector<std::string> names = shape.names;
  if (names.size() > kMost) {
    names.resize(kMost);
    names.push_back("...");
  }
  return cat("0 to ", shape.classes - 1, names.empty() ? "" : cat(" (", join(names), ")"),
             shape.guided ? ", and -1 for none" : "");
}

}  // namespace

bool has_data(int64_t label, const DitConfig& shape) {
  return shape.names.empty() || label < static_cast<int64_t>(shape.names.size());
}

std::string class_name(int64_t label, const DitConfig& shape) {
  const bool named = label >= 0 && label < static_cast<int64_t>(shape.names.size());
  return named ? shape.names[static_cast<size_t>(label)] : cat(label);
}

std::vector<int64_t> usual_classes(const DitConfig& shape) {
  constexpr int64_t kMost = 8;
  if (shape.classes == 0) return {-1};
  std::vector<int64_t> classes;
  for (int64_t i = 0; i < std::min(shape.classes, kMost) && has_data(i, shape); ++i) classes.push_back(i);
  return classes;
}

std::vector<int64_t> parse_classes(const std::string& text, const DitConfig& shape) {
  const auto by_name = [&](const std::string& part) -> std::optional<int64_t> {
    const int64_t place = std::find(shape.names.begin(), shape.names.end(), part) - shape.names.begin();
    const bool found = place < std::min(shape.classes, static_cast<int64_t>(shape.names.size()));
    return found ? std::optional(place) : std::nullopt;
  };
  const auto by_number = [&](const std::string& part) -> std::optional<int64_t> {
    try {
      const int64_t number = parse_int(part, "class");
      return number >= -1 && number < shape.classes ? std::optional(number) : std::nullopt;
    } catch (const UserError&) {
      return std::nullopt;
    }
  };
  const std::vector<std::string> parts = split(text, ',');
  const bool names =
      std::all_of(parts.begin(), parts.end(), [&](const auto& part) { return part == "-1" || by_name(part); });
  std::vector<int64_t> classes;
  for (const std::string& part : parts) {
    const auto name = by_name(part), number = by_number(part);
    if (!name && !number)
      throw UserError(cat("--classes '", part, "' is not known: this model has ", known_classes(shape)));
    if (name && number && name != number && !names)
      throw UserError(cat("--classes ", part, " could mean the class of that name, number ", *name, ", or number ",
                          *number, ", named ", class_name(*number, shape), ": give names only, of ",
                          known_classes(shape)));
    classes.push_back(name ? *name : *number);
    if (classes.back() < 0 && shape.classes > 0 && !shape.guided)
      throw UserError(cat("--classes -1 cannot be: this model ", kAlwaysTold));
  }
  return classes;
}

double guidance_of(const std::optional<double>& given, const DitConfig& shape) {
  const bool guided = shape.classes > 0 && shape.guided;
  if (!given) return guided ? 4 : 1;
  if (!std::isfinite(*given)) throw UserError(cat("--guidance ", *given, " must be a number such as 4"));
  if (!guided && *given != 1)
    throw UserError(
        cat("--guidance ", *given, " cannot be: this model ", shape.classes > 0 ? kAlwaysTold : "has no classes"));
  return *given;
}

}  // namespace startrail
