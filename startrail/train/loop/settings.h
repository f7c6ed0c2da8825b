// Named settings bound to variables: read from TOML, overridden from the command line, documented and written back.
// Knows nothing of training; config.cc declares the settings there are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
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

// All of these throw UserError that names the place (file and line, or the --set), the setting, the rule it breaks and
// the valid choices; for an unknown name the nearest valid one. Values before the wrong one are set already.
void read_toml(const Settings& settings, const std::filesystem::path& file);
void read_toml_text(const Settings& settings, std::string_view text, std::string_view where);
// "train.batch=4", the value as in TOML; but texts need no quotes, and whole numbers may be written as 1e6.
void set_value(const Settings& settings, std::string_view assignment);

// Its present value as TOML writes it.
std::string value_text(const Setting& setting);

// Every setting as commented TOML with its present value: parses back to the same values.
std::string to_toml(const Settings& settings);
// The same for people: name, type, present value, help, choices or range, table by table.
std::string help_text(const Settings& settings);

}  // namespace startrail
