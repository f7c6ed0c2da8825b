#include "startrail/train/loop/settings.h"

// toml++ 3.3 asserts where it should report (marzer/tomlplusplus#301): "[[[" in a file would end a debug build.
#define TOML_ASSERT(condition) static_assert(true)
#define TOML_HEADER_ONLY 1  // only this file needs it: no library to install
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "startrail/base/error.h"
#include "startrail/base/nearest.h"

namespace startrail {
namespace {

constexpr size_t kColumns = 100;

std::string_view table_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? "" : name.substr(0, dot);
}

std::string_view key_of(std::string_view name) { return name.substr(name.rfind('.') + 1); }

const Setting* find(const Settings& settings, std::string_view name) {
  const auto found = std::find_if(settings.begin(), settings.end(), [&](const Setting& s) { return s.name == name; });
  return found == settings.end() ? nullptr : &*found;
}

// The tables in the order of their first setting; the unnamed one first, because TOML has no way back to it.
std::vector<std::string_view> tables_of(const Settings& settings) {
  std::vector<std::string_view> tables;
  for (const Setting& setting : settings) {
    const std::string_view table = table_of(setting.name);
    if (std::find(tables.begin(), tables.end(), table) == tables.end())
      tables.insert(table.empty() ? tables.begin() : tables.end(), table);
  }
  return tables;
}

// "a" is a table too when there is only "a.b.c".
bool is_table(const Settings& settings, std::string_view name) {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const Setting& setting) { return setting.name.starts_with(cat(name, ".")); });
}

UserError unknown_table(const Settings& settings, std::string_view place, std::string_view name) {
  std::vector<std::string_view> tables = tables_of(settings);
  std::erase(tables, "");
  std::string nearest;
  if (!tables.empty())
    nearest = cat("; the nearest is [",
                  *std::min_element(tables.begin(), tables.end(),
                                    [&](auto a, auto b) { return edit_distance(a, name) < edit_distance(b, name); }),
                  "], valid are: ", join(tables));
  return UserError(cat(place, "[", name, "] is not a table of settings", nearest));
}

// The nearest has the same key in another table, or else the fewest letters to change.
UserError unknown_setting(const Settings& settings, std::string_view place, std::string_view name) {
  const auto distance = [&](const Setting& setting) {
    const std::string_view key = key_of(setting.name);
    if (key == key_of(name)) return size_t{0};
    const size_t whole = edit_distance(setting.name, name);
    return table_of(name).empty() ? std::min(whole, edit_distance(key, name)) : whole;
  };
  const auto nearest = std::min_element(settings.begin(), settings.end(),
                                        [&](const Setting& a, const Setting& b) { return distance(a) < distance(b); });
  STARTRAIL_CHECK(nearest != settings.end(), "there are no settings");
  std::vector<std::string_view> valid;
  for (const Setting& setting : settings)
    if (table_of(setting.name) == table_of(name)) valid.push_back(key_of(setting.name));
  std::string in_table;
  if (!valid.empty() && !table_of(name).empty()) in_table = cat(", valid in [", table_of(name), "] are: ", join(valid));
  return UserError(cat(place, name, " is not a setting; the nearest is ", nearest->name, in_table));
}

// The shortest text that reads back to the same number.
std::string shortest(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    constexpr std::string_view kLetters = "\"\\\n\t\r", kEscapes = "\"\\ntr";
    const size_t escape = kLetters.find(letter);
    if (escape != std::string_view::npos) {
      out += {'\\', kEscapes[escape]};
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      out += {'\\', 'u', '0', '0', kDigits[byte / 16], kDigits[byte % 16]};
    } else {
      out += letter;
    }
  }
  return out + "\"";
}

// As TOML writes it.
std::string to_text(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<int64_t>(&value)) return std::to_string(*whole);
  if (const auto* text = std::get_if<std::string>(&value)) return in_quotes(*text);
  const std::string number = shortest(std::get<double>(value));
  return number.find_first_not_of("-0123456789") == std::string::npos ? number + ".0" : number;
}

// "1 or more", "one of adam, muon", or "" when every value is valid.
std::string range_of(const Setting& setting) {
  if (!setting.choices.empty()) return cat("one of ", join(setting.choices));
  const bool whole = std::holds_alternative<int64_t*>(setting.value);
  const auto text = [&](double bound) { return whole ? fixed(bound, 0) : shortest(bound); };
  const bool from = std::isfinite(setting.least), to = std::isfinite(setting.most);
  if (from && to) return cat(text(setting.least), " to ", text(setting.most));
  if (from) return cat(text(setting.least), " or more");
  return to ? cat(text(setting.most), " or less") : "";
}

// The help and the range after it.
std::string described(const Setting& setting) {
  const std::string range = range_of(setting);
  return range.empty() ? setting.help : cat(setting.help, " (", range, ")");
}

UserError wrong_value(const Setting& setting, std::string_view place, std::string_view value) {
  constexpr const char* kTypes[] = {"true or false", "a whole number", "a number", "a text"};
  std::vector<std::string> rules;
  if (setting.choices.empty()) rules.push_back(kTypes[setting.value.index()]);
  if (const std::string range = range_of(setting); !range.empty()) rules.push_back(range);
  return UserError(cat(place, setting.name, " = ", value, " is not valid: it must be ", join(rules)));
}

bool in_range(const Setting& setting, const Value& value) {
  const auto fits = [&](double number) { return setting.least <= number && number <= setting.most; };  // not nan
  if (const auto* whole = std::get_if<int64_t>(&value)) return fits(static_cast<double>(*whole));
  if (const auto* number = std::get_if<double>(&value)) return fits(*number);
  const auto* text = std::get_if<std::string>(&value);
  const auto& choices = setting.choices;
  return !text || choices.empty() || std::find(choices.begin(), choices.end(), *text) != choices.end();
}

// A value that is not of the setting's type arrives as nothing.
Value checked(const Setting& setting, std::string_view place, const std::optional<Value>& value,
              std::string_view shown) {
  if (!value || !in_range(setting, *value)) throw wrong_value(setting, place, shown);
  return *value;
}

// In the setting's type, or nothing.
std::optional<Value> fitted(const Setting& setting, const Value& value) {
  if (const auto* whole = std::get_if<int64_t>(&value); whole && std::holds_alternative<double*>(setting.value))
    return static_cast<double>(*whole);
  return value.index() == setting.value.index() ? std::optional(value) : std::nullopt;
}

std::string shown(const toml::node& node) {
  if (node.is_table()) return "{...}";
  if (node.is_array()) return "[...]";
  std::ostringstream out;
  out << toml::toml_formatter(node, toml::format_flags::allow_unicode_strings);
  return out.str();
}

std::optional<Value> value_of(const Setting& setting, const toml::node& node) {
  return std::visit(
      [&](auto* target) -> std::optional<Value> {
        using Type = std::remove_pointer_t<decltype(target)>;
        if (const auto value = node.value_exact<Type>()) return Value(*value);
        if constexpr (std::is_same_v<Type, std::string>)  // a choice may be called true
          if (const auto flag = node.value_exact<bool>(); flag && !setting.choices.empty())
            return Value(std::string(*flag ? "true" : "false"));
        if constexpr (std::is_same_v<Type, double>)
          if (const auto whole = node.value_exact<int64_t>()) return Value(static_cast<double>(*whole));
        return std::nullopt;
      },
      setting.value);
}

struct Entry {
  std::string name;
  const toml::node* node;
  toml::source_position position;
};

// What the document gives, each table of settings opened. Not in the file's order, because toml++ sorts by name.
void list_entries(const Settings& settings, const toml::table& table, const std::string& prefix,
                  std::vector<Entry>& entries) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (node.is_table() && is_table(settings, name))
      list_entries(settings, *node.as_table(), name + ".", entries);
    else
      entries.push_back({name, &node, key.source().begin});
  }
}

// Written as in TOML, but a text needs no quotes and a whole number may be written as 1e6.
std::optional<Value> value_of(const Setting& setting, std::string_view text) {
  const bool is_text = std::holds_alternative<std::string*>(setting.value);
  const bool has_quotes = text.size() > 1 && text.front() == text.back() && (text[0] == '"' || text[0] == '\'');
  toml::table table;
  try {
    table = toml::parse(cat("value = ", is_text && !has_quotes ? in_quotes(text) : text));
  } catch (const toml::parse_error&) {
  }
  if (is_text && table.size() != 1)
    throw UserError(cat("--set ", setting.name, " = ", text,
                        " is not one text in UTF-8: put quotes around all of it or write none"));
  const toml::node* node = table.get("value");
  if (!node || table.size() != 1) return std::nullopt;
  const auto number = node->value_exact<double>();
  constexpr double kPast = 9223372036854775808.0;  // 2^63, the first that int64_t does not hold
  if (std::holds_alternative<int64_t*>(setting.value) && number && *number == std::floor(*number) &&
      -kPast <= *number && *number < kPast)
    return static_cast<int64_t>(*number);
  return value_of(setting, *node);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(kBlank)));
  return text.substr(0, text.find_last_not_of(kBlank) + 1);
}

// How many columns a UTF-8 text takes, counting each code point as one.
size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}

std::string padded(std::string text, size_t columns) {
  return text.append(columns - std::min(columns, columns_of(text)), ' ');
}

// The words in lines of at most `columns`; a longer word has a line of its own.
std::vector<std::string> wrap(const std::string& text, size_t columns) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    if (lines.empty() || columns_of(lines.back()) + 1 + columns_of(word) > columns)
      lines.push_back(word);
    else
      lines.back() += " " + word;
  }
  return lines;
}

}  // namespace

Overrides toml_overrides(const Settings& settings, const std::filesystem::path& file) {
  std::error_code ignored;  // a file that is not there is met when it is opened
  if (std::filesystem::is_directory(file, ignored))
    throw UserError(cat(file.string(), " is a folder: give a TOML file"));
  std::ifstream in(file, std::ios::binary);
  if (!in) throw_file_error(file.string(), "cannot be read", errno);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  return text_overrides(settings, text, file.string());
}

Overrides text_overrides(const Settings& settings, std::string_view text, std::string_view where) {
  toml::table document;
  try {
    document = toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw UserError(cat(where, ":", error.source().begin.line, " is not TOML: ", error.description()));
  }
  std::vector<Entry> entries;
  list_entries(settings, document, "", entries);
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.position < b.position; });
  Overrides overrides;
  for (const auto& [name, node, position] : entries) {
    const std::string place = cat(where, ":", position.line, ": ");
    if (const Setting* setting = find(settings, name))
      overrides[name] = checked(*setting, place, value_of(*setting, *node), shown(*node));
    else if (is_table(settings, name))
      throw UserError(cat(place, name, " = ", shown(*node), " is not valid: it must be a table, [", name, "]"));
    else if (node->is_table())
      throw unknown_table(settings, place, name);
    else
      throw unknown_setting(settings, place, name);
  }
  return overrides;
}

void add_override(Overrides& overrides, const Settings& settings, std::string_view assignment) {
  const size_t equals = assignment.find('=');
  const std::string_view name = trimmed(assignment.substr(0, equals));
  if (equals == std::string_view::npos || name.empty())
    throw UserError(cat("--set '", assignment, "' is not of the form NAME=VALUE"));
  const std::string_view text = trimmed(assignment.substr(equals + 1));
  const Setting* setting = find(settings, name);
  if (!setting) throw unknown_setting(settings, "--set ", name);
  overrides[setting->name] = checked(*setting, "--set ", value_of(*setting, text), text);
}

void set_values(const Settings& settings, const Overrides& overrides) {
  for (const auto& [name, given] : overrides) {
    const Setting& setting = find_setting(settings, name);
    const Value value = checked(setting, "", fitted(setting, given), to_text(given));
    std::visit([&](auto* target) { *target = std::get<std::remove_pointer_t<decltype(target)>>(value); },
               setting.value);
  }
}

void read_toml(const Settings& settings, const std::filesystem::path& file) {
  set_values(settings, toml_overrides(settings, file));
}

void read_toml_text(const Settings& settings, std::string_view text, std::string_view where) {
  set_values(settings, text_overrides(settings, text, where));
}

void set_value(const Settings& settings, std::string_view assignment) {
  Overrides overrides;
  add_override(overrides, settings, assignment);
  set_values(settings, overrides);
}

const Setting& find_setting(const Settings& settings, std::string_view name) {
  if (const Setting* setting = find(settings, name)) return *setting;
  throw unknown_setting(settings, "", name);
}

Value present_value(const Setting& setting) {
  return std::visit([](const auto* value) { return Value(*value); }, setting.value);
}

std::string value_text(const Setting& setting) { return to_text(present_value(setting)); }

std::string to_toml(const Settings& settings) {
  std::string out;
  for (const std::string_view table : tables_of(settings)) {
    if (!table.empty()) out += cat(out.empty() ? "" : "\n", "[", table, "]\n");
    for (const Setting& setting : settings) {
      if (table_of(setting.name) != table) continue;
      for (const std::string& line : wrap(described(setting), kColumns - 2)) out += cat("# ", line, "\n");
      out += cat(key_of(setting.name), " = ", to_text(present_value(setting)), "\n");
    }
  }
  return out;
}

std::string help_text(const Settings& settings) {
  constexpr const char* kTypes[] = {"true/false", "whole number", "number", "text"};
  constexpr size_t kType = 12, kValue = 12;  // columns; a longer value has the rest of its line to itself
  size_t name_columns = 0;
  for (const Setting& setting : settings) name_columns = std::max(name_columns, columns_of(setting.name));
  const size_t indent = 2 + name_columns + 2 + kType + 2 + kValue + 2;
  std::string out;
  for (const std::string_view table : tables_of(settings)) {
    if (!out.empty()) out += "\n";
    for (const Setting& setting : settings) {
      if (table_of(setting.name) != table) continue;
      std::string line = cat("  ", padded(setting.name, name_columns), "  ",
                             padded(kTypes[setting.value.index()], kType), "  ", to_text(present_value(setting)));
      if (columns_of(line) + 2 > indent) out += std::exchange(line, "") + "\n";
      for (const std::string& part : wrap(described(setting), kColumns - std::min(indent, kColumns / 2)))
        out += padded(std::exchange(line, ""), indent) + part + "\n";
      if (!line.empty()) out += line + "\n";
    }
  }
  return out;
}

}  // namespace startrail
