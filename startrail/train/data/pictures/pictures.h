// Training data as pictures: a folder of PNG and JPEG files, of latents in .npy and .safetensors files (pictures or
// videos), or shapes that a generator draws. Opening reads headers only; a picture, or the part of it that a rank
// holds, is decoded when it is read. Used by the training of picture models; nothing here knows of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "startrail/train/data/listing.h"
#include "startrail/train/data/pictures/image_file.h"  // also for write_png

namespace startrail {

// A picture has one frame, a video several.
struct PictureShape {
  int64_t channels = 3, frames = 1, height = 32, width = 32;
};

// A part of a picture: whole rows [first_row, end_row) of the frames [first_frame, end_frame).
struct PictureBand {
  int64_t first_frame = 0, end_frame = 1, first_row = 0, end_row = 0;
};

constexpr const char* kShapes = "shapes";  // the path that means generated pictures
constexpr const char* kSkipAdvice = "; data.on_error=skip goes on without such files";

struct PicturesOptions {
  std::string path;            // a folder of pictures or latents, or kShapes
  PictureShape shape;          // what every picture is brought to
  std::string fit = "crop";    // "crop": scaled so that it just covers the shape, then its middle; "resize": stretched
  bool skip_bad = false;       // leave out files that cannot be used instead of refusing the set
  double scale = 1;            // what latents are multiplied by
  int64_t generated = 100000;  // how many pictures the generator has
  uint64_t seed = 1;           // of the generator
  std::string without;         // a folder inside path that is not data (a run's own output); may be empty
  Listing listing = {};        // how the files are found
};

// A set of pictures in a fixed order. Safe to read from many threads at once.
class Pictures {
 public:
  virtual ~Pictures() = default;
  virtual int64_t count() const = 0;
  virtual int64_t label(int64_t index) const = 0;               // of classes()
  virtual const std::vector<std::string>& classes() const = 0;  // sorted; one class "all" when there are no subfolders
  // The band of picture `index`: [channels, frames, rows, width of the shape] float32; colours are -1 to 1, latents as
  // they are times the scale. The same numbers whatever the band. UserError that names the file when it cannot be read.
  virtual at::Tensor read(int64_t index, const PictureBand& band) const = 0;
  virtual std::string name(int64_t index) const = 0;  // its file, its file and tensor, or "shape 17"
  virtual std::string name_inside(int64_t index) const { return name(index); }  // the same wherever the set's folder is
  virtual std::string describe() const = 0;     // "1,204 PNG and 33 JPEG pictures in 4 classes (2 .webp left out)"
  virtual std::string fingerprint() const = 0;  // changes when the files, their sizes, times or the options do
  // What was wrong with each file or folder left out when it was opened.
  virtual std::vector<std::string> skipped() const { return {}; }
};

// Classes are the folder's subfolders, of which links count too; what is in deeper folders belongs to them. Hidden
// files are ignored; files of other kinds, links to deeper folders and folders that training wrote (run_files.h) are
// left out, and describe() says how many. UserError, naming the file or folder, for a header that is bad or does not
// fit the shape and for what find_pictures calls a problem, unless they are to be skipped; or when there is nothing to
// read.
std::shared_ptr<const Pictures> open_pictures(const PicturesOptions& options);

}  // namespace startrail
