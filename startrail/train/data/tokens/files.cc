#include "startrail/train/data/tokens/files.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/train/data/tokens/gitignore.h"
#include "startrail/train/data/tokens/token_folder.h"
#include "startrail/train/store/run_files.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little, "token files are read as they lie on disk");

constexpr const char* kChoices =
    "give a text file, a folder of text files, a folder that `startrail tokenize` made, a .bin file of tokens, or a "
    "folder of those";

bool is_token_file(const fs::path& path) { return path.extension() == ".bin"; }

// Text has no NUL byte. Of a huge file only the beginning is looked at; read() refuses a NUL found later.
bool is_text(const fs::path& path, int64_t bytes) {
  constexpr int64_t kHuge = 64 << 20, kBeginning = 8 << 10, kPiece = 256 << 10;
  const int64_t end = bytes <= kHuge ? bytes : kBeginning;
  const OpenFile file(path.string());
  std::vector<char> piece(static_cast<size_t>(std::min(end, kPiece)));
  for (int64_t from = 0; from < end; from += kPiece) {
    const size_t got = file.read(from, piece.data(), static_cast<size_t>(std::min(kPiece, end - from)));
    if (std::memchr(piece.data(), 0, got)) return false;
  }
  return true;
}

// llm.c's headers: 256 int32, of which the first three are magic, version and the number of tokens.
struct Header {
  uint32_t magic, version;
  int64_t token_bytes;
};
constexpr Header kHeaders[] = {{20240520, 1, 2}, {20240801, 7, 4}};

// Where the tokens of a .bin file are, and how wide: after llm.c's header, or everywhere, uint16, as nanoGPT writes
// them. GPT-2 tokens cannot be mistaken for a header: as tokens, both magics hold one beyond 50256.
std::pair<DataFile, int64_t> token_file(const fs::path& root, const std::string& name) {
  constexpr int64_t kHeaderBytes = 1024, kTokenBytes = 2;
  const fs::path path = root / name;
  const auto fail = [&](auto... why) { throw UserError(cat("token file ", path.string(), " ", why...)); };
  const int64_t bytes = static_cast<int64_t>(fs::file_size(path));
  std::array<uint32_t, 3> header{};
  OpenFile(path.string()).read(0, header.data(), sizeof header);
  const auto* kind = std::find_if(std::begin(kHeaders), std::end(kHeaders),
                                  [&](const Header& known) { return known.magic == header[0]; });
  if (kind == std::end(kHeaders)) {
    if (bytes == 0) fail("is empty: it must hold one token or more");
    if (bytes % kTokenBytes != 0) fail("has an odd size of ", bytes, " bytes: uint16 tokens take 2 each");
    return {{name, 0, bytes / kTokenBytes}, kTokenBytes};
  }
  const int64_t tokens = header[2], needed = kHeaderBytes + tokens * kind->token_bytes;
  if (bytes < kHeaderBytes) fail("is truncated: it has ", bytes, " bytes, its header alone takes ", kHeaderBytes);
  if (header[1] != kind->version)
    fail("has version ", header[1], " of the format: only version ", kind->version, " is read");
  if (bytes != needed)
    fail(bytes < needed ? "is truncated" : "is too long", ": it has ", bytes, " bytes, its header's ", tokens,
         " tokens need ", needed);
  if (tokens == 0) fail("is empty: it must hold one token or more");
  return {{name, kHeaderBytes, tokens}, kind->token_bytes};
}

// The files that a tokens.json describes, or the one called `only`.
DataFiles described_files(const fs::path& root, const std::string& only = "") {
  const TokenFolder tokens = read_token_folder(root);
  DataFiles found{.root = root,
                  .files = {},
                  .is_folder = only.empty(),
                  .token_bytes = tokens.token_bytes(),
                  .left_out = "",
                  .vocabulary = tokens.vocabulary,
                  .end_token = tokens.end_token};
  for (const TokenFile& file : tokens.files)
    if (file.tokens > 0 && (only.empty() || file.name == only)) found.files.push_back({file.name, 0, file.tokens});
  std::sort(found.files.begin(), found.files.end(), [](auto& a, auto& b) { return a.name < b.name; });
  if (found.files.empty())
    throw UserError(cat((root / kTokensFile).string(), " names no tokens", only.empty() ? "" : cat(" in ", only),
                        ": tokenize again"));
  return found;
}

// Goes through a folder and sorts what it finds.
class Walk {
 public:
  Walk(fs::path root, fs::path leave_out) : root_(std::move(root)), leave_out_(std::move(leave_out)) {
    read_rules_above();
    enter("");
  }

  DataFiles result() && {
    std::sort(token_files_.begin(), token_files_.end());
    DataFiles found{root_, std::move(texts_), true, 1, ""};
    if (!found.files.empty())
      check_meant(found);
    else
      for (const std::string& name : token_files_) add_tokens(found, name);
    std::sort(found.files.begin(), found.files.end(), [](auto& a, auto& b) { return a.name < b.name; });
    std::vector<std::string> counts;
    const auto add = [&](size_t count, const char* what) {
      if (count > 0) counts.push_back(cat(count, " ", what));
    };
    add(found.is_bytes() ? token_files_.size() : 0, ".bin");
    add(binary_, "binary");
    add(empty_, "empty");
    add(ignored_, "ignored by .gitignore");
    add(outputs_, outputs_ == 1 ? "run or model" : "runs or models");
    found.left_out = join(counts);
    return found;
  }

 private:
  void add_tokens(DataFiles& found, const std::string& name) const {
    const auto [file, token_bytes] = token_file(root_, name);
    if (!found.files.empty() && found.token_bytes != token_bytes)
      throw UserError(cat("token files ", (root_ / found.files.back().name).string(), " and ", name, " have ",
                          found.token_bytes, " and ", token_bytes, " bytes a token: give a folder of one kind"));
    found.token_bytes = token_bytes;
    found.files.push_back(file);
  }

  // Text beside token files is the data, as in a code base with a .bin somewhere; but not a note beside much data.
  void check_meant(const DataFiles& texts) const {
    int64_t text = 0, tokens = 0;
    for (const DataFile& file : texts.files) text += file.tokens;
    for (const std::string& name : token_files_) tokens += static_cast<int64_t>(fs::file_size(root_ / name));
    if (tokens > text)
      throw UserError(cat("data folder ", root_.string(), " has ", human_bytes(static_cast<double>(text)),
                          " of text and ", human_bytes(static_cast<double>(tokens)), " in .bin files (",
                          token_files_.front(), "): give a .bin file itself, or name *.bin in a .gitignore file there ",
                          "to take the text"));
  }

  struct Level {
    std::string above;  // from the folder of the .gitignore file to the root, or
    size_t prefix;      // how much of a path to skip: what makes it relative to that file
    Gitignore rules;
  };

  void read_rules(const fs::path& folder, const std::string& above, size_t prefix) {
    const fs::path file = folder / ".gitignore";
    if (!fs::is_regular_file(file)) return;
    std::string text(fs::file_size(file), '\0');
    text.resize(OpenFile(file.string()).read(0, text.data(), text.size()));
    levels_.push_back({above, prefix, Gitignore(text)});
  }

  // A part of a repository is ignored as the whole is.
  void read_rules_above() {
    std::vector<fs::path> folders{fs::canonical(root_)};
    for (std::error_code none; !fs::exists(folders.back() / ".git", none);) {
      if (!folders.back().has_relative_path()) return;  // in no repository
      folders.push_back(folders.back().parent_path());
    }
    for (size_t i = folders.size() - 1; i > 0; --i)
      read_rules(folders[i], folders[0].lexically_relative(folders[i]).string() + "/", 0);
  }

  // `prefix` is "" or the folder's path below the root with a slash at its end.
  void enter(const std::string& prefix) {
    const fs::path folder = root_ / prefix;
    const size_t levels = levels_.size();
    read_rules(folder, "", prefix.size());
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) visit(entry, prefix);
    levels_.erase(levels_.begin() + static_cast<std::ptrdiff_t>(levels), levels_.end());
  }

  void visit(const fs::directory_entry& entry, const std::string& prefix) {
    const std::string file = entry.path().filename().string(), name = prefix + file;
    if (file == ".git" || file == ".gitignore") return;
    std::error_code error;
    const fs::file_status status = entry.status(error);
    if (error == std::errc::permission_denied) throw fs::filesystem_error("status", entry.path(), error);
    const bool is_folder = fs::is_directory(status);
    if (is_folder ? entry.is_symlink() : !fs::is_regular_file(status)) return;  // also broken links, sockets, ...
    if (ignored(name, is_folder)) {
      ++ignored_;
    } else if (is_folder && (is_output(entry.path()) || fs::equivalent(entry.path(), leave_out_, error))) {
      ++outputs_;
    } else if (is_folder) {
      enter(name + "/");
    } else if (is_token_file(entry.path())) {
      token_files_.push_back(name);
    } else if (const auto bytes = static_cast<int64_t>(entry.file_size()); bytes == 0) {
      ++empty_;
    } else if (!is_text(entry.path(), bytes)) {
      ++binary_;
    } else {
      texts_.push_back({name, 0, bytes});
    }
  }

  // The nearest .gitignore file that speaks of it decides.
  bool ignored(std::string_view name, bool is_folder) const {
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level)
      if (const auto answer = level->rules.ignores(cat(level->above, name.substr(level->prefix)), is_folder))
        return *answer;
    return false;
  }

  fs::path root_, leave_out_;
  std::vector<Level> levels_;
  std::vector<DataFile> texts_;
  std::vector<std::string> token_files_;
  size_t binary_ = 0, empty_ = 0, ignored_ = 0, outputs_ = 0;
};

DataFiles find_single(const fs::path& path) {
  const fs::path root = path.parent_path();
  const std::string name = path.filename().string();
  if (is_token_file(path) && is_token_folder(root)) return described_files(root, name);
  if (is_token_file(path)) {
    const auto [file, token_bytes] = token_file(root, name);
    return {root, {file}, false, token_bytes, ""};
  }
  const int64_t bytes = static_cast<int64_t>(fs::file_size(path));
  if (bytes == 0) throw UserError(cat("data file ", path.string(), " is empty: ", kChoices));
  if (!is_text(path, bytes))
    throw UserError(cat("data file ", path.string(), " is binary, it holds NUL bytes: ", kChoices));
  return {root, {{name, 0, bytes}}, false, 1, ""};
}

}  // namespace

DataFiles find_data_files(const std::string& path, const std::string& leave_out) {
  if (path.empty()) throw UserError(cat("no data path is given: ", kChoices));
  try {
    const fs::file_status status = fs::status(path);
    if (!fs::exists(status)) throw UserError(cat("data path ", path, " does not exist: ", kChoices));
    if (fs::is_regular_file(status)) return find_single(path);
    if (!fs::is_directory(status)) throw UserError(cat("data path ", path, " is no file and no folder: ", kChoices));
    if (is_token_folder(path)) return described_files(path);
    check_not_unfinished(path);
    DataFiles found = Walk(path, leave_out).result();
    if (found.files.empty())
      throw UserError(cat("data folder ", path, " has no text and no .bin token files",
                          found.left_out.empty() ? "" : cat(" (", found.left_out, " left out)"), ": ", kChoices));
    return found;
  } catch (const fs::filesystem_error& error) {
    throw UserError(cat("data path ", error.path1().string(), " cannot be read: ", error.code().message()));
  }
}

DataFiles find_data_files(const std::string& path, const std::string& leave_out, const Listing& listing) {
  if (!listing.once) return find_data_files(path, leave_out);
  using nlohmann::json;
  const json told = unpack_list(listing.once([&] {
    const DataFiles found = find_data_files(path, leave_out);
    json files = json::array();
    for (const DataFile& file : found.files) files.push_back({file.name, file.offset, file.tokens});
    return pack_list({{"root", found.root.string()},
                      {"files", std::move(files)},
                      {"is_folder", found.is_folder},
                      {"token_bytes", found.token_bytes},
                      {"left_out", found.left_out},
                      {"vocabulary", found.vocabulary},
                      {"end_token", found.end_token}});
  }));
  DataFiles found{told.at("root").get<std::string>(),
                  {},
                  told.at("is_folder"),
                  told.at("token_bytes"),
                  told.at("left_out"),
                  told.at("vocabulary"),
                  told.at("end_token")};
  for (const json& file : told.at("files")) {
    found.files.push_back({file.at(0), file.at(1), file.at(2)});
    const DataFile& last = found.files.back();
    if (listing.check)
      check_listed(found.root / last.name, last.offset + last.tokens * found.token_bytes, found.is_bytes());
  }
  return found;
}

}  // namespace startrail
