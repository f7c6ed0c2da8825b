#include "startrail/train/data/picture_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <tuple>

#include "startrail/base/error.h"
#include "startrail/train/data/files.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

std::optional<PictureKind> kind_of(const fs::path& file) {
  std::string ending = file.extension().string();
  for (char& letter : ending) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
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
    for (const fs::directory_entry& entry : fs::directory_iterator(found_.root)) {
      if (is_hidden(entry)) continue;
      if (entry.is_directory())  // links too: a set of some of another's classes is often made of them
        folders.push_back(entry.path());
      else
        add_file(entry, "", 0);
    }
    std::sort(folders.begin(), folders.end());
    const size_t beside = found_.files.size();
    for (const fs::path& folder : folders) add_class(folder);
    if (found_.files.size() == beside)
      found_.classes = {"all"};
    else
      leave_out(beside);
    leave_out_strangers();
    const auto order = [](const PictureFile& a, const PictureFile& b) {
      return std::tie(a.label, a.name) < std::tie(b.label, b.name);
    };
    std::sort(found_.files.begin(), found_.files.end(), order);
  }

  PictureFiles result() && { return std::move(found_); }

 private:
  static bool is_hidden(const fs::directory_entry& entry) { return entry.path().filename().string().starts_with('.'); }

  bool is_left_out(const fs::path& folder) {
    std::error_code none;
    const bool output = is_output(folder);
    found_.outputs += output ? 1 : 0;
    return output || (!without_.empty() && fs::equivalent(folder, without_, none));
  }

  void add_class(const fs::path& folder) {
    if (is_left_out(folder)) return;
    const size_t before = found_.files.size();
    const std::string name = folder.filename().string();
    const bool left_out = enter(folder, name + "/", static_cast<int64_t>(found_.classes.size()));
    const bool empty = found_.files.size() == before;
    if (empty && left_out) return;  // a folder of runs is no class
    found_.classes.push_back(name);
    if (empty) found_.problems.push_back(cat("class folder ", folder.string(), " has no pictures: fill or remove it"));
  }

  // The first files, which lie beside the classes' folders.
  void leave_out(size_t beside) {
    for (size_t i = 0; i < beside; ++i)
      found_.problems.push_back(
          cat(path_of(found_.files[i]), " lies beside folders, which are classes: move it into one of them, or away"));
    found_.files.erase(found_.files.begin(), found_.files.begin() + static_cast<int64_t>(beside));
  }

  // Images among latents, or the other way round: the kind that has fewer bytes.
  void leave_out_strangers() {
    auto& files = found_.files;
    int64_t difference = 0;
    for (const PictureFile& file : files) difference += is_latent(file.kind) ? file.bytes : -file.bytes;
    const bool expected = difference > 0;
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
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (is_hidden(entry)) continue;
      if (!entry.is_directory())
        add_file(entry, prefix, label);
      else if (entry.is_symlink())  // may lead back to where we are
        continue;
      else if (is_left_out(entry.path()))
        left_out = true;
      else
        left_out |= enter(entry.path(), prefix + entry.path().filename().string() + "/", label);
    }
    return left_out;
  }

  void add_file(const fs::directory_entry& entry, const std::string& prefix, int64_t label) {
    const auto kind = kind_of(entry.path());
    if (!kind) return;
    struct stat status {};
    const bool there = stat(entry.path().c_str(), &status) == 0;  // else a broken link: opening it gives the error
    if (there && !S_ISREG(status.st_mode)) return;
    PictureFile file{prefix + entry.path().filename().string(), label, *kind, status.st_size,
                     int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
    found_.files.push_back(std::move(file));
  }

  PictureFiles found_;
  fs::path without_;
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
