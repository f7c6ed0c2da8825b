#include "cli/page/page.h"

#include <nlohmann/json.hpp>

#include "cli/page/source.h"
#include "startrail/base/error.h"
#include "startrail/base/version.h"

namespace startrail::cli {
namespace {

// What a policy calls a script: its sum, here from hexadecimal digits.
std::string policy_name(std::string_view sha256) {
  std::string bytes;
  for (size_t i = 0; i < sha256.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(sha256.substr(i, 2)), nullptr, 16));
  return cat("'sha256-", base64(bytes), "'");
}

void put(std::string& page, std::string_view place, std::string_view text) {
  const size_t at = page.find(place);
  STARTRAIL_CHECK(at != std::string::npos, "the page has no ", place);
  page.replace(at, place.size(), text);
}

}  // namespace

std::string base64(std::string_view bytes) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (size_t j = 0; j < 4; ++j) text += j <= count ? kLetters[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

std::string make_page(nlohmann::json data, const std::string& title) {
  data.update({{"format", kPageFormat}, {"version", kVersion}, {"title", title}});
  // Texts of a byte-level model are often no UTF-8. No '<' is left, so nothing can end the element the data are in.
  std::string text = data.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace), escaped;
  for (const char letter : text) letter == '<' ? escaped += "\\u003c" : escaped += letter;
  std::string page = kPageSource;
  put(page, "{{POLICY}}",
      cat("default-src 'none'; script-src ", policy_name(kScriptSum), "; style-src ", policy_name(kStyleSum),
          "; img-src data:"));
  put(page, "/*STYLE*/", kStyleSource);
  put(page, "/*SCRIPT*/", kScriptSource);
  put(page, "/*DATA*/", escaped);  // last, since a text in it may name any place
  return page;
}

}  // namespace startrail::cli
