#include "startrail/train/data/pictures/picture_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <map>
#include <optional>
#include <tuple>

#include "startrail/base/error.h"
#include "startrail/train/store/run_files.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

std::string ending_of(const fs::path& file) {
  std::string ending = file.extension().string();
  for (char& letter : ending) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return ending;
}

std::optional<PictureKind> kind_of(const std::string& ending) {
  if (ending == ".png") return PictureKind::png;
  if (ending == ".jpg" || ending == ".jpeg") return PictureKind::jpeg;
  if (ending == ".npy") return PictureKind::npy;
  if (ending == ".safetensors") return PictureKind::safetensors;
  return {};
}

class Walk {
 public:
  Walk(const std::string& path, const std::string& without) : without_(without) {
    found_.root = path;
    std::vector<fs::path> folders;
    for (const fs::path& entry : list(found_.root))
      if (visit(entry, "", 0)) folders.push_back(entry);  // links too: sets of some of another's classes are made so
    const size_t beside = found_.files.size();
    for (const fs::path& folder : folders) add_class(folder);
    if (!found_.files.empty())  // else no class is to blame
      for (const fs::path& folder : empty_)
        found_.problems.push_back(cat("class folder ", folder.string(), " has no pictures: fill or remove it"));
    if (found_.files.size() == beside)
      found_.classes = {"all"};
    else
      leave_out(beside);
    leave_out_strangers();
    found_.left_out = describe_left_out();
    const auto order = [](const PictureFile& a, const PictureFile& b) {
      return std::tie(a.label, a.name) < std::tie(b.label, b.name);
    };
    std::sort(found_.files.begin(), found_.files.end(), order);
  }

  PictureFiles result() && { return std::move(found_); }

 private:
  // What a folder holds, sorted, without hidden files.
  std::vector<fs::path> list(const fs::path& folder) {
    std::vector<fs::path> entries;
    std::error_code error;
    if (fs::exists(folder / ".", error))  // not so when it can be listed but what is in it not opened
      for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
        if (const std::string name = entry->path().filename().string(); !name.starts_with('.') && name != "Thumbs.db")
          entries.push_back(entry->path());
    if (error) add_problem(cat("picture folder ", folder.string()), error.value());
    std::sort(entries.begin(), entries.end());
    return entries;
  }

  void add_problem(const std::string& name, int code) {
    try {
      throw_file_error(name, "cannot be read", code);
    } catch (const UserError& error) {  // a disk that fails is no file's fault
      found_.problems.push_back(cat(error.what(), ": repair or remove it"));
    }
  }

  bool is_left_out(const fs::path& folder) {
    std::error_code none;
    const bool output = is_output(folder);
    outputs_ += output ? 1 : 0;
    return output || (!without_.empty() && fs::equivalent(folder, without_, none));
  }

  // Whether it is a link to the root or to a folder that the root lies in.
  bool leads_back(const fs::path& folder) const {
    if (!fs::is_symlink(folder)) return false;
    const fs::path target = fs::canonical(folder), root = fs::canonical(found_.root);
    return std::mismatch(target.begin(), target.end(), root.begin(), root.end()).first == target.end();
  }

  void add_class(const fs::path& folder) {
    if (leads_back(folder)) {
      found_.problems.push_back(
          cat(folder.string(), " is a link to a folder that it lies in, all of which would be a class: remove it"));
      return;
    }
    if (is_left_out(folder)) return;
    const size_t files = found_.files.size(), problems = found_.problems.size();
    const std::string name = folder.filename().string();
    const bool left_out = enter(folder, name + "/", static_cast<int64_t>(found_.classes.size()));
    const bool empty = found_.files.size() == files;
    if (empty && left_out) return;  // a folder of runs is no class
    found_.classes.push_back(name);
    if (empty && found_.problems.size() == problems) empty_.push_back(folder);
  }

  // The first files, which lie beside the classes' folders.
  void leave_out(size_t beside) {
    for (size_t i = 0; i < beside; ++i)
      found_.problems.push_back(
          cat(path_of(found_.files[i]), " lies beside folders, which are classes: move it into one of them, or away"));
    found_.files.erase(found_.files.begin(), found_.files.begin() + static_cast<int64_t>(beside));
  }

  // Images among latents, or the other way round. By the number of files: one preview may be larger than all latents.
  void leave_out_strangers() {
    auto& files = found_.files;
    const auto latents = std::count_if(files.begin(), files.end(), [](auto& file) { return is_latent(file.kind); });
    const bool expected = 2 * static_cast<size_t>(latents) > files.size();
    for (const PictureFile& file : files)
      if (is_latent(file.kind) != expected)
        found_.problems.push_back(cat(path_of(file), " is ", expected ? "a picture" : "a latent", ", but most of ",
                                      found_.root.string(), " are ", expected ? "latents" : "pictures",
                                      ": give a folder that has only one of them"));
    std::erase_if(files, [&](const PictureFile& file) { return is_latent(file.kind) != expected; });
  }

  std::string path_of(const PictureFile& file) const { return (found_.root / file.name).string(); }

  // Adds the files of a folder and those below it. Returns whether a folder was left out.
  bool enter(const fs::path& folder, const std::string& prefix, int64_t label) {
    bool left_out = false;
    for (const fs::path& entry : list(folder)) {
      if (!visit(entry, prefix, label)) continue;
      if (fs::is_symlink(entry))  // may lead back to where we are
        ++linked_;
      else if (is_left_out(entry))
        left_out = true;
      else
        left_out |= enter(entry, prefix + entry.filename().string() + "/", label);
    }
    return left_out;
  }

  // Whether it is a folder. If not, adds it or counts it as left out.
  bool visit(const fs::path& entry, const std::string& prefix, int64_t label) {
    const std::string ending = ending_of(entry);
    const auto kind = kind_of(ending);
    struct stat status {};
    const bool there = stat(entry.c_str(), &status) == 0;
    if (there && S_ISDIR(status.st_mode)) return true;
    if (!there && !kind)  // perhaps a link to a class that is gone
      add_problem(entry.string(), errno);
    else if (there && !S_ISREG(status.st_mode))
      ++special_;
    else if (!kind)
      ++others_[ending.empty() ? "without an ending" : ending];
    else  // also when it is not there: opening it gives the error
      found_.files.push_back({prefix + entry.filename().string(), label, *kind, status.st_size,
                              int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec});
    return false;
  }

  std::string describe_left_out() const {
    constexpr size_t kShown = 4;
    std::vector<std::pair<int64_t, std::string>> kinds;
    for (const auto& [kind, count] : others_) kinds.emplace_back(-count, kind);
    std::sort(kinds.begin(), kinds.end());  // the most first
    std::vector<std::string> parts;
    int64_t more = 0;
    for (const auto& [negative, kind] : kinds)
      if (parts.size() < kShown)
        parts.push_back(cat(counted(-negative), " ", kind));
      else
        more -= negative;
    if (more > 0) parts.push_back(cat(counted(more), " of other kinds"));
    if (special_ > 0) parts.push_back(plural(special_, "special file"));
    if (linked_ > 0) parts.push_back(plural(linked_, "linked folder"));
    if (outputs_ > 0) parts.push_back(cat(outputs_, outputs_ == 1 ? " run or model" : " runs or models"));
    return join(parts);
  }

  PictureFiles found_;
  fs::path without_;
  std::vector<fs::path> empty_;            // classes without pictures
  std::map<std::string, int64_t> others_;  // files of other kinds, by their endings
  int64_t special_ = 0;                    // pipes, sockets and devices
  int64_t linked_ = 0, outputs_ = 0;       // folders
};

}  // namespace

bool is_latent(PictureKind kind) { return kind == PictureKind::npy || kind == PictureKind::safetensors; }

PictureFiles find_pictures(const std::string& path, const std::string& without) {
  constexpr const char* choices = "give a folder of PNG and JPEG files or of latents, or \"shapes\"";
  try {
    if (path.empty()) throw UserError(cat("no path of pictures is given: ", choices));
    const fs::file_status status = fs::status(path);
    if (!fs::exists(status)) throw UserError(cat("picture folder ", path, " does not exist: ", choices));
    if (!fs::is_directory(status)) throw UserError(cat("picture path ", path, " is no folder: ", choices));
    return Walk(path, without).result();
  } catch (const fs::filesystem_error& error) {
    throw UserError(cat("picture folder ", error.path1().string(), " cannot be read: ", error.code().message()));
  }
}

}  // namespace startrail
