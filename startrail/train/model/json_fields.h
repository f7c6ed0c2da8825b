// Values of a config.json, with errors that name the file and the key. `where` names the file.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>

#include "startrail/base/error.h"

namespace startrail {

template <class Value>
Value get(const nlohmann::json& object, const char* key, std::string_view where) {
  if (!object.contains(key) || object[key].is_null()) throw UserError(cat(where, " has no '", key, "'"));
  const nlohmann::json& value = object[key];
  // Whole numbers are not cut from others without a word.
  const bool cut = std::is_integral_v<Value> && value.is_number_float();
  try {
    if (!cut) return value.get<Value>();
  } catch (const nlohmann::json::exception&) {
  }
  throw UserError(cat(where, ": '", key, "' is ", value.dump(), ", which is not of the right type"));
}

template <class Value>
Value get_or(const nlohmann::json& object, const char* key, Value otherwise, std::string_view where) {
  return object.contains(key) && !object[key].is_null() ? get<Value>(object, key, where) : otherwise;
}

}  // namespace startrail
