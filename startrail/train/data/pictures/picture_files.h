// Which files a folder of pictures means, and the class of each. Looks at names, sizes and times only. Used by
// pictures.cc, which reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace startrail {

enum class PictureKind { png, jpeg, npy, safetensors };

bool is_latent(PictureKind kind);

struct PictureFile {
  std::string name;  // relative to the root
  int64_t label;     // of the classes
  PictureKind kind;
  int64_t bytes, time_ns;  // its size, and its last change since 1970
};

struct PictureFiles {
  std::filesystem::path root;
  std::vector<std::string> classes;   // sorted
  std::vector<PictureFile> files;     // sorted by class, then by name; all images or all latents
  std::vector<std::string> problems;  // a sentence for each file or folder left out because something is wrong with it
  std::string left_out;  // what is no picture: "20 .webp, 1 linked folder, 2 runs or models"; "" for nothing
};

// `without` is a folder below that is left out, or "". Problems are subfolders without pictures (when there are some
// elsewhere), pictures beside subfolders that have some, images among latents or the other way round, whichever are
// fewer, what cannot be looked at, and links back to the path. UserError when the path is no folder. There may be no
// files.
PictureFiles find_pictures(const std::string& path, const std::string& without);

}  // namespace startrail
