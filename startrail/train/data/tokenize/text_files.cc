#include "startrail/train/data/tokenize/text_files.h"

#include <algorithm>
#include <cstring>

#include "startrail/base/error.h"
#include "startrail/train/data/tokenize/text_stream.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kChoices = "give text, .jsonl, either packed as .gz or .zst, or folders of them";

bool is_lines(std::string_view path) {
  const std::string_view packing = packing_of(path);
  path.remove_suffix(packing.size());
  // A plain .json is usually one object over many lines; packed ones are lines wherever they are published.
  return ends_as(path, ".jsonl") || ends_as(path, ".ndjson") || (!packing.empty() && ends_as(path, ".json"));
}

bool is_text(const std::string& path) {
  char start[4096];
  TextStream stream(path);
  const size_t bytes = stream.read(start, sizeof start);
  return std::memchr(start, 0, bytes) == nullptr;
}

TextFile text_file(const std::string& path) {
  const auto [bytes, time_ns] = OpenFile(path).state();
  return {path, is_lines(path), bytes, time_ns};
}

void add_folder(const fs::path& folder, const std::vector<fs::path>& left_out, TextFiles& found) {
  std::vector<fs::directory_entry> entries;
  for (const auto& entry : fs::directory_iterator(folder))
    if (!entry.path().filename().string().starts_with('.')) entries.push_back(entry);
  std::ranges::sort(entries, {}, [](const fs::directory_entry& entry) { return entry.path().filename().string(); });
  for (const auto& entry : entries) {
    if (entry.is_directory()) {
      // Links to folders may go round in a circle.
      if (!entry.is_symlink() && std::ranges::count(left_out, fs::weakly_canonical(entry.path())) == 0)
        add_folder(entry.path(), left_out, found);
    } else if (entry.is_regular_file()) {
      const std::string path = entry.path().string();
      if (is_text(path))
        found.files.push_back(text_file(path));
      else
        ++found.left_out;
    }
  }
}

}  // namespace

TextFiles find_texts(const std::vector<std::string>& paths, const fs::path& out, const fs::path& leave_out) {
  const fs::path own = fs::weakly_canonical(out);
  TextFiles found;
  for (const std::string& path : paths) {
    const fs::file_status status = fs::status(path);
    if (!fs::exists(status)) throw UserError(cat(path, " does not exist: ", kChoices));
    if (fs::is_directory(status)) {
      if (fs::weakly_canonical(path) == own)
        throw UserError(cat(path, " is --out too: what is written would become text; give another folder"));
      add_folder(path, {own, fs::weakly_canonical(leave_out)}, found);
    } else if (fs::is_regular_file(status)) {
      if (!is_text(path)) throw UserError(cat(path, " is binary, it holds NUL bytes: ", kChoices));
      found.files.push_back(text_file(path));
    } else {
      throw UserError(cat(path, " is no file and no folder: ", kChoices));
    }
  }
  if (found.files.empty())
    throw UserError(
        cat(join(paths), " holds no text", found.left_out > 0 ? ", only binary files" : "", ": ", kChoices));
  return found;
}

}  // namespace startrail
