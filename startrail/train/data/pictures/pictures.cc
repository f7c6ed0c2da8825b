#include "startrail/train/data/pictures/pictures.h"

#include <ATen/ATen.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/base/threads.h"
#include "startrail/train/data/pictures/latents.h"
#include "startrail/train/data/pictures/picture_files.h"
#include "startrail/train/data/pictures/resize.h"
#include "startrail/train/data/pictures/shapes.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

std::string to_text(const PictureShape& shape) {
  return cat(shape.channels, " x ", shape.frames, " x ", shape.height, " x ", shape.width);
}

std::string digest(const std::string& text) {
  const XXH128_hash_t sum = XXH3_128bits(text.data(), text.size());
  return hex_text(sum.high64) + hex_text(sum.low64);
}

void check_options(const PicturesOptions& options) {
  const PictureShape& shape = options.shape;
  if (shape.channels < 1 || shape.frames < 1 || shape.height < 1 || shape.width < 1 ||
      std::max({shape.channels, shape.frames, shape.height, shape.width}) > kLargestSide)
    throw UserError(cat("a picture of ", to_text(shape), " (channels, frames, height, width) cannot be: give 1 to ",
                        "65535 for each"));
  if (options.fit != "crop" && options.fit != "resize")
    throw UserError(cat("fit '", options.fit, "' is not known: give crop or resize"));
  if (!std::isfinite(options.scale) || options.scale == 0)
    throw UserError(cat("scale ", options.scale, " would make all latents alike: give another number than 0"));
  if (options.generated < 1)
    throw UserError(cat("a set of ", options.generated, " generated pictures is empty: give 1 or more"));
}

void check_read(const Pictures& set, const PictureShape& shape, int64_t index, const PictureBand& band) {
  STARTRAIL_CHECK(index >= 0 && index < set.count(), "picture ", index, " of ", set.count());
  const bool inside = band.first_frame >= 0 && band.first_frame <= band.end_frame && band.end_frame <= shape.frames &&
                      band.first_row >= 0 && band.first_row <= band.end_row && band.end_row <= shape.height;
  STARTRAIL_CHECK(inside, "frames ", band.first_frame, " to ", band.end_frame, " and rows ", band.first_row, " to ",
                  band.end_row, " of ", to_text(shape));
}

// What generated pictures need not know: files, in classes, some left out.
struct Opened {
  PicturesOptions options;
  PictureFiles found;
  std::vector<std::string> problems = {};  // of those left out

  fs::path path(size_t file) const { return found.root / found.files[file].name; }
};

class FolderPictures : public Pictures {
 public:
  explicit FolderPictures(Opened opened) : opened_(std::move(opened)) {
    std::string facts;
    for (const PictureFile& file : opened_.found.files) {
      for (const int64_t fact : {file.label, file.bytes, file.time_ns}) facts += std::to_string(fact) + ' ';
      facts += file.name + '\0';
    }
    fingerprint_ = digest(facts);
  }
  const std::vector<std::string>& classes() const override { return opened_.found.classes; }
  std::vector<std::string> skipped() const override { return opened_.problems; }

 protected:
  // "1,204 PNG and 33 JPEG pictures in 4 classes" from the number of the first and of the second kind.
  std::string describe(int64_t first, int64_t second, const char* names[2], const char* what) const {
    const auto classes_count = static_cast<int64_t>(classes().size());
    std::vector<std::string> kinds;
    if (first > 0) kinds.push_back(cat(counted(first), " ", names[0]));
    if (second > 0) kinds.push_back(cat(counted(second), " ", names[1]));
    std::vector<std::string> left_out;
    const auto unusable = static_cast<int64_t>(opened_.problems.size());
    if (unusable > 0) left_out.push_back(cat(counted(unusable), " unusable"));
    if (!opened_.found.left_out.empty()) left_out.push_back(opened_.found.left_out);
    return cat(join(kinds, " and "), " ", what, count() == 1 ? "" : "s", " in ", plural(classes_count, "class", "es"),
               left_out.empty() ? "" : cat(" (", join(left_out), " left out)"));
  }

  Opened opened_;
  std::string fingerprint_;  // of the files
};

void check_channels(const ImageHeader& header, const PictureShape& shape, const fs::path& file) {
  if (header.channels > shape.channels)
    throw UserError(
        cat(file.string(), " has colours, but the model has 1 channel: set model.channels=3, or make it gray"));
}

// [channels or 1, rows, width] from 0 to 255 to colours, gray repeated. By hand, as are the sums before: libtorch's
// operations would start threads for them, and every rank is one already.
at::Tensor to_colours(const std::vector<float>& sums, int64_t channels, int64_t rows, int64_t width) {
  at::Tensor result = at::empty({channels, 1, rows, width});
  const int64_t plane = rows * width, planes = static_cast<int64_t>(sums.size()) / plane;
  auto* out = result.mutable_data_ptr<float>();
  for (int64_t channel = 0; channel < channels; ++channel, out += plane) {
    const float* in = sums.data() + channel % planes * plane;
    // Sums of rounded weights may end a hair beyond the range.
    for (int64_t i = 0; i < plane; ++i) out[i] = std::clamp(in[i] / 127.5f - 1, -1.0f, 1.0f);
  }
  return result;
}

// Every input row is resampled once and added to the output rows it has a share in.
at::Tensor read_image(const fs::path& file, ImageFormat format, const PicturesOptions& options,
                      const PictureBand& band) {
  const PictureShape& shape = options.shape;
  const int64_t rows = band.end_row - band.first_row, frames = band.end_frame - band.first_frame, width = shape.width;
  if (rows == 0 || frames == 0) return at::zeros({shape.channels, frames, rows, width});
  const auto image = open_image(file, format);
  const ImageHeader& header = image->header();
  check_channels(header, shape, file);
  const auto [down, across] =
      (options.fit == "crop" ? cover : stretch)(header.height, header.width, shape.height, shape.width);
  std::vector<float> sums(static_cast<size_t>(header.channels * rows * width));
  std::vector<float> row(static_cast<size_t>(header.channels * width));
  int64_t unfinished = band.first_row;
  for (int64_t input = down.first(band.first_row); input < down.end(band.end_row - 1); ++input) {
    resize_row(across, image->read(input), header.channels, row.data());
    while (down.end(unfinished) <= input) ++unfinished;
    for (int64_t output = unfinished; output < band.end_row && down.first(output) <= input; ++output) {
      const float weight = down.weights_of(output)[input - down.first(output)];
      for (int64_t channel = 0; channel < header.channels; ++channel) {
        float* out = sums.data() + (channel * rows + output - band.first_row) * width;
        for (int64_t x = 0; x < width; ++x) out[x] += weight * row[static_cast<size_t>(channel * width + x)];
      }
    }
  }
  return to_colours(sums, shape.channels, rows, width);
}

ImageFormat format_of(PictureKind kind) { return kind == PictureKind::png ? ImageFormat::png : ImageFormat::jpeg; }

class ImagePictures : public FolderPictures {
 public:
  using FolderPictures::FolderPictures;

  int64_t count() const override { return static_cast<int64_t>(opened_.found.files.size()); }
  int64_t label(int64_t index) const override { return opened_.found.files.at(static_cast<size_t>(index)).label; }
  at::Tensor read(int64_t index, const PictureBand& band) const override {
    check_read(*this, opened_.options.shape, index, band);
    const auto file = static_cast<size_t>(index);
    return read_image(opened_.path(file), format_of(opened_.found.files[file].kind), opened_.options, band);
  }
  std::string name(int64_t index) const override { return opened_.path(static_cast<size_t>(index)).string(); }
  std::string name_inside(int64_t index) const override {
    return opened_.found.files.at(static_cast<size_t>(index)).name;
  }
  std::string describe() const override {
    const auto& files = opened_.found.files;
    const auto png =
        std::count_if(files.begin(), files.end(), [](auto& file) { return file.kind == PictureKind::png; });
    const char* names[] = {"PNG", "JPEG"};
    return FolderPictures::describe(png, count() - png, names, "picture");
  }
  std::string fingerprint() const override {
    return digest(cat("images ", to_text(opened_.options.shape), " ", opened_.options.fit, " ", fingerprint_));
  }
};

// Where each file's latents are, in the order of the files.
using LatentLists = std::vector<std::vector<Latent>>;

class LatentPictures : public FolderPictures {
 public:
  LatentPictures(Opened opened, LatentLists lists) : FolderPictures(std::move(opened)) {
    for (size_t file = 0; file < lists.size(); ++file)
      for (Latent& latent : lists[file]) {
        latents_.push_back(std::move(latent));
        files_.push_back(file);
      }
  }

  int64_t count() const override { return static_cast<int64_t>(latents_.size()); }
  int64_t label(int64_t index) const override { return file_of(index).label; }
  at::Tensor read(int64_t index, const PictureBand& band) const override {
    check_read(*this, opened_.options.shape, index, band);
    const auto i = static_cast<size_t>(index);
    const LatentPlace place{opened_.path(files_[i]), latents_[i], file_of(index).bytes, file_of(index).time_ns};
    return read_latent(place, opened_.options.shape, band, opened_.options.scale);
  }
  std::string name(int64_t index) const override {
    const auto i = static_cast<size_t>(index);
    return latent_name(opened_.path(files_.at(i)), latents_[i]);
  }
  std::string name_inside(int64_t index) const override {
    return latent_name(file_of(index).name, latents_[static_cast<size_t>(index)]);
  }
  std::string describe() const override {
    const auto npy =
        std::count_if(latents_.begin(), latents_.end(), [](auto& latent) { return latent.tensor.empty(); });
    const char* names[] = {"npy", "safetensors"};
    return FolderPictures::describe(npy, count() - npy, names, opened_.options.shape.frames > 1 ? "video" : "latent");
  }
  std::string fingerprint() const override {
    return digest(
        cat("latents ", to_text(opened_.options.shape), " ", std::hexfloat, opened_.options.scale, " ", fingerprint_));
  }

 private:
  const PictureFile& file_of(int64_t index) const { return opened_.found.files[files_.at(static_cast<size_t>(index))]; }

  std::vector<Latent> latents_;
  std::vector<size_t> files_;  // of each latent
};

class ShapePictures : public Pictures {
 public:
  explicit ShapePictures(const PicturesOptions& options) : options_(options) {
    if (options.shape.channels != 1 && options.shape.channels != 3)
      throw UserError(
          cat("generated shapes with ", options.shape.channels, " channels cannot be: set model.channels to 1 or 3"));
  }

  int64_t count() const override { return options_.generated; }
  int64_t label(int64_t index) const override { return index % static_cast<int64_t>(classes().size()); }
  const std::vector<std::string>& classes() const override { return shape_classes(); }
  at::Tensor read(int64_t index, const PictureBand& band) const override {
    check_read(*this, options_.shape, index, band);
    return draw_shape(options_.seed, index, options_.shape, band);
  }
  std::string name(int64_t index) const override { return cat("shape ", index); }
  std::string describe() const override {
    return cat(plural(count(), options_.shape.frames > 1 ? "generated video" : "generated picture"), " in 4 classes");
  }
  std::string fingerprint() const override {
    return digest(cat("shapes ", to_text(options_.shape), " ", count(), " ", options_.seed));
  }

 private:
  PicturesOptions options_;
};

void check_unscaled(const PicturesOptions& options) {
  if (options.scale != 1)
    throw UserError(cat("data.scale is for latents, but ", options.path, " has pictures: leave it out"));
}

// What cannot be for any file of this kind.
void check_kind(const PicturesOptions& options, bool latents) {
  const PictureShape& shape = options.shape;
  if (latents && options.fit == "resize")
    throw UserError(cat(options.path, " has latents, which cannot be resized: set data.fit=crop"));
  if (latents) return;
  check_unscaled(options);
  if (shape.channels != 1 && shape.channels != 3)
    throw UserError(cat(options.path, " has PNG or JPEG pictures, which cannot have ", shape.channels,
                        " channels: set model.channels=3, or 1 for gray ones"));
  if (shape.frames != 1)
    throw UserError(cat(options.path, " has PNG or JPEG pictures, but the model has ", shape.frames,
                        " frames: set model.frames=1, or give latents of videos"));
}

// Reads every file's header: the latents of those that hold some, and what is wrong with each file, "" for nothing.
// Several at once, because a cold or distant disk answers late.
LatentLists read_headers(const Opened& opened, std::vector<std::string>& problems) {
  const auto& files = opened.found.files;
  LatentLists latents(files.size());
  problems.assign(files.size(), "");
  const auto read_header = [&](size_t i) {
    try {
      const fs::path path = opened.path(i);
      if (is_latent(files[i].kind))
        latents[i] = list_latents(path, files[i].kind, opened.options.shape);
      else
        check_channels(open_image(path, format_of(files[i].kind))->header(), opened.options.shape, path);
    } catch (const UserError& error) {
      problems[i] = error.what();
    }
  };
  const size_t threads = files.size() < 256 ? 1 : 8;
  run_threads(static_cast<int>(threads), [&](int thread) {
    for (auto i = static_cast<size_t>(thread); i < files.size(); i += threads) read_header(i);
  });
  return latents;
}

// Leaves out what has a problem. A class keeps its number, also when nothing of it is left.
void leave_out(const std::vector<std::string>& problems, Opened& opened, LatentLists& latents) {
  std::vector<PictureFile> files;
  LatentLists lists;
  for (size_t i = 0; i < problems.size(); ++i) {
    if (!problems[i].empty()) {
      opened.problems.push_back(problems[i]);
      continue;
    }
    files.push_back(std::move(opened.found.files[i]));
    lists.push_back(std::move(latents[i]));
  }
  opened.found.files = std::move(files);
  latents = std::move(lists);
}

// Everything but the pictures themselves: what there is and where, without what cannot be used.
struct Found {
  Opened opened;
  LatentLists latents;  // empty for images
};

Found find(const PicturesOptions& options) {
  Opened opened{options, find_pictures(options.path, options.without)};
  opened.problems = opened.found.problems;
  if (opened.found.files.empty() && opened.problems.empty())
    throw UserError(cat("picture folder ", options.path, " has no pictures",
                        opened.found.left_out.empty() ? "" : cat(" (", opened.found.left_out, " left out)"),
                        ": give one with .png, .jpg, .jpeg, .npy or .safetensors files"));
  const auto refuse = [&](const char* advice) {
    const auto more = static_cast<int64_t>(opened.problems.size()) - 1;
    throw UserError(
        cat(opened.problems.front(), more == 0 ? "" : cat(" (and ", plural(more, "more problem"), ")"), advice));
  };
  const auto check_left = [&] {
    if (opened.found.files.empty()) refuse(options.skip_bad ? "; nothing else is left" : "");
  };
  check_left();
  // Before the headers are read, of which there may be millions.
  if (!opened.problems.empty() && !options.skip_bad) refuse(kSkipAdvice);
  const bool latents = is_latent(opened.found.files.front().kind);
  check_kind(options, latents);
  std::vector<std::string> problems;
  LatentLists lists = read_headers(opened, problems);
  leave_out(problems, opened, lists);
  check_left();
  if (!opened.problems.empty() && !options.skip_bad) refuse(kSkipAdvice);
  if (!latents) lists.clear();
  return {std::move(opened), std::move(lists)};
}

using nlohmann::json;

std::string to_text(const Found& found) {
  const PictureFiles& of = found.opened.found;
  json files = json::array(), latents = json::array();
  for (const PictureFile& file : of.files)
    files.push_back({file.name, file.label, static_cast<int>(file.kind), file.bytes, file.time_ns});
  for (const auto& list : found.latents) {
    json& one = latents.emplace_back(json::array());
    for (const Latent& latent : list)
      one.push_back({latent.tensor, static_cast<int>(latent.type), latent.offset, latent.extents});
  }
  return pack_list({{"root", of.root.string()},
                    {"classes", of.classes},
                    {"files", std::move(files)},
                    {"left_out", of.left_out},
                    {"problems", found.opened.problems},
                    {"latents", std::move(latents)}});
}

Found read_found(const std::string& text, const PicturesOptions& options) {
  const json told = unpack_list(text);
  Found found{{options,
               {told.at("root").get<std::string>(), told.at("classes"), {}, {}, told.at("left_out")},
               told.at("problems")},
              {}};
  for (const json& file : told.at("files")) {
    const PictureFile& one = found.opened.found.files.emplace_back(
        PictureFile{file.at(0), file.at(1), static_cast<PictureKind>(file.at(2).get<int>()), file.at(3), file.at(4)});
    if (options.listing.check) check_listed(found.opened.found.root / one.name, one.bytes, true);
  }
  for (const json& list : told.at("latents")) {
    auto& latents = found.latents.emplace_back();
    for (const json& one : list)
      latents.push_back({one.at(0), static_cast<at::ScalarType>(one.at(1).get<int>()), one.at(2), one.at(3)});
  }
  return found;
}

}  // namespace

std::shared_ptr<const Pictures> open_pictures(const PicturesOptions& options) {
  check_options(options);
  if (options.path == kShapes) {
    check_unscaled(options);
    return std::make_shared<ShapePictures>(options);
  }
  if (options.generated != PicturesOptions{}.generated)
    throw UserError(cat("data.generated is for generated shapes, but data.path is ", options.path, ": leave it out"));
  const auto look = [&] { return find(options); };
  Found found =
      options.listing.once ? read_found(options.listing.once([&] { return to_text(look()); }), options) : look();
  if (!found.latents.empty())
    return std::make_shared<LatentPictures>(std::move(found.opened), std::move(found.latents));
  return std::make_shared<ImagePictures>(std::move(found.opened));
}

}  // namespace startrail
