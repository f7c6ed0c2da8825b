// Named settings bound to variables: read from TOML, overridden from the command line, documented and written back.
// Knows nothing of training; config.cc declares the settings there are.
// What is read is kept apart from the variables first, so that it is known which settings were given.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace startrail {

struct Setting {
  std::string name;  // "train.batch"; the part before the last dot is the TOML table
  std::variant<bool*, int64_t*, double*, std::string*> value;
  std::string help;                       // one sentence; what the values mean
  std::vector<std::string> choices = {};  // for texts: the valid ones; empty: any
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
};
using Settings = std::vector<Setting>;

using Value = std::variant<bool, int64_t, double, std::string>;

// The settings that were given a value, by name. What is not in here was left open.
using Overrides = std::map<std::string, Value>;

// All of these throw UserError that names the place (file and line, or the --set), the setting, the rule it breaks and
// the valid choices; for an unknown name the nearest valid one.
Overrides toml_overrides(const Settings& settings, const std::filesystem::path& file);
Overrides text_overrides(const Settings& settings, std::string_view text, std::string_view where);
// Adds "train.batch=4", the value as in TOML; but texts need no quotes, and whole numbers may be written as 1e6.
void add_override(Overrides& overrides, const Settings& settings, std::string_view assignment);

// Gives the variables these values; a whole number may stand for a number.
void set_values(const Settings& settings, const Overrides& overrides);

// The same in one: read, and given to the variables, of which none changes when there is a mistake.
void read_toml(const Settings& settings, const std::filesystem::path& file);
void read_toml_text(const Settings& settings, std::string_view text, std::string_view where);
void set_value(const Settings& settings, std::string_view assignment);

// The setting of this name; UserError when there is none.
const Setting& find_setting(const Settings& settings, std::string_view name);

// Its present value, and as TOML writes it.
Value present_value(const Setting& setting);
std::string value_text(const Setting& setting);

// Every setting as commented TOML with its present value: parses back to the same values.
std::string to_toml(const Settings& settings);
// The same for people: name, type, present value, help, choices or range, table by table.
std::string help_text(const Settings& settings);

}  // namespace startrail
