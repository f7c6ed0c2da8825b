#include "startrail/train/data/pictures/picture_source.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <ATen/ATen.h>
#include <algorithm>
#include <cmath>

#include "startrail/base/error.h"
#include "startrail/base/random.h"
#include "startrail/train/model/diffusion.h"

namespace startrail {
namespace {

constexpr uint64_t kSplit = 0x73706c6974;  // what is held out, and its noise, must not depend on a run's seed

// What is drawn for a picture.
enum Draw : uint64_t { kLevel, kLevelToo, kClass, kNoise };  // a normal number takes two

// A level of noise: any alike, or rather one in the middle (the logistic of a normal number).
double level_of(const std::string& times, uint64_t key) {
  if (times == "uniform") return uniform(key, kLevel);
  return 1 / (1 + std::exp(-normal(key, kLevel)));
}

// By their names' hashes: a picture that comes or goes does not move others between training and validation, but for
// the one that keeps the share.
std::vector<int64_t> order_of_names(const Pictures& pictures) {
  std::vector<std::pair<uint64_t, int64_t>> hashes;
  for (int64_t i = 0; i < pictures.count(); ++i) {
    const std::string name = pictures.name_inside(i);
    hashes.emplace_back(XXH3_64bits(name.data(), name.size()), i);
  }
  std::sort(hashes.begin(), hashes.end());
  std::vector<int64_t> order;
  for (const auto& [hash, index] : hashes) order.push_back(index);
  return order;
}

}  // namespace

PictureSource::PictureSource(std::shared_ptr<const Pictures> pictures, std::shared_ptr<const Pictures> held_out,
                             const DitConfig& model, const PictureSourceOptions& options)
    : pictures_(std::move(pictures)), held_out_(std::move(held_out)), model_(model), options_(options) {
  training_ = pictures_->count();
  if (held_out_) {
    validation_ = held_out_->count();
    if (held_out_->classes() != pictures_->classes())
      throw UserError(cat("the validation pictures have the classes ", join(held_out_->classes()),
                          ", but those for training ", join(pictures_->classes())));
  } else {
    validation_ = static_cast<int64_t>(options.validation * static_cast<double>(training_));
    if (options.validation > 0 && training_ > 1) validation_ = std::max<int64_t>(1, validation_);
    training_ -= validation_;
    order_ = order_of_names(*pictures_);
  }
  if (training_ < 1) throw UserError("no picture is left for training: lower data.validation");
  const auto classes = static_cast<int64_t>(pictures_->classes().size());
  if (model.classes > 0 && classes > model.classes)
    throw UserError(cat("the data has ", classes, " classes, but the model only ", model.classes,
                        ": set model.classes to ", classes));
}

int64_t PictureSource::epoch() const { return std::max<int64_t>(1, training_ / options_.together); }

int64_t PictureSource::validation_count() const {
  if (validation_ == 0) return 0;
  const int64_t all = std::max<int64_t>(1, validation_ / options_.together);
  return options_.validation_windows > 0 ? std::min(all, options_.validation_windows) : all;
}

// With the split, which decides what is trained on and in which order.
std::string PictureSource::fingerprint() const {
  return cat(pictures_->fingerprint(), "/by name ", training_, "+",
             held_out_ ? held_out_->fingerprint() : std::to_string(validation_));
}

PictureSource::Part PictureSource::part(bool held_out) const {
  if (held_out_)
    return {held_out ? *held_out_ : *pictures_, held_out ? validation_ : training_, nullptr,
            held_out ? pictures_->count() : 0};
  return {*pictures_, held_out ? validation_ : training_, order_.data() + (held_out ? training_ : 0), 0};
}

std::string PictureSource::describe() const {
  std::vector<std::string> names;
  for (const std::string& name : pictures_->classes())
    if (names.size() < 10) names.push_back(cat(names.size(), " ", name));
  const bool more = names.size() < pictures_->classes().size();
  return cat(pictures_->describe(), names.size() > 1 ? cat(": ", join(names), more ? ", ..." : "") : "", "; ",
             validation_, held_out_ ? " more" : " of them", " for validation");
}

std::vector<std::string> PictureSource::skipped() const {
  std::vector<std::string> all = pictures_->skipped();
  if (held_out_ && held_out_ != pictures_)
    for (std::string& problem : held_out_->skipped()) all.push_back(std::move(problem));
  const std::lock_guard lock(mutex_);
  for (const auto& [index, problem] : bad_) all.push_back(problem);
  return all;
}

Example PictureSource::training(int64_t index, Order layout, Group& group) const {
  std::vector<Picture> pictures;
  for (int64_t i = 0; i < options_.together; ++i) {
    const int64_t number = index * options_.together + i, round = number / training_;
    const uint64_t key = mix(options_.seed, static_cast<uint64_t>(number));
    pictures.push_back({shuffled(number % training_, training_, options_.seed, round), level_of(options_.times, key),
                        uniform(key, kClass) >= options_.class_dropout, mix(key, kNoise)});
  }
  auto made = example(part(false), std::move(pictures), layout, group);
  if (!made) throw UserError(cat("no picture can be read; the first error: ", skipped().front()));
  return *std::move(made);
}

std::optional<Example> PictureSource::validation(int64_t index, Order layout, Group& group) const {
  std::vector<Picture> pictures;
  const int64_t used = validation_count() * options_.together;
  for (int64_t i = 0; i < options_.together; ++i) {
    const int64_t number = index * options_.together + i;
    // The same noise every time, and levels spread evenly.
    const double u = (static_cast<double>(shuffled(number, used, kSplit, 1)) + 0.5) / static_cast<double>(used);
    pictures.push_back({number % validation_, u, true, mix(kSplit, static_cast<uint64_t>(number))});
  }
  return example(part(true), std::move(pictures), layout, group);
}

// The patches at `places` of a picture, [count, features], from the frames and rows that hold them.
at::Tensor PictureSource::read(const Pictures& set, int64_t index, const at::Tensor& places) const {
  if (places.size(0) == 0) return at::empty({0, model_.channels * model_.patch_size()}, at::kFloat);
  const auto [frames, rows, columns] = model_.patches();
  const auto& patch = model_.patch;
  const int64_t first = places.min().item<int64_t>(), last = places.max().item<int64_t>(), plane = rows * columns;
  PictureBand band{first / plane * patch[0], (last / plane + 1) * patch[0], 0, model_.size[1]};
  if (first / plane == last / plane) {
    band.first_row = first % plane / columns * patch[1];
    band.end_row = (last % plane / columns + 1) * patch[1];
  }
  const int64_t start = first / plane * plane + band.first_row / patch[1] * columns;  // the band's first patch
  return to_patches(set.read(index, band), patch).index_select(0, places - start);
}

// The same; in place of a picture that cannot be read the next one of its part, and `picture` says which; nothing when
// none can. The ranks agree on it, as damage may lie in one's rows only.
at::Tensor PictureSource::read(const Part& part, Picture& picture, const at::Tensor& places, Group& group) const {
  for (int64_t tries = 0; tries < part.count; ++tries, picture.place = (picture.place + 1) % part.count) {
    const int64_t index = part.index_of(picture.place);
    at::Tensor patches;
    bool bad = false;
    {
      const std::lock_guard lock(mutex_);
      bad = bad_.contains(part.offset + index);
    }
    try {
      if (!bad) patches = read(part.set, index, places);
    } catch (const UserError& error) {
      if (!options_.skip_bad) throw UserError(cat(error.what(), kSkipAdvice));
      bad = true;
      const std::lock_guard lock(mutex_);
      bad_.emplace(part.offset + index, error.what());
    }
    if (!options_.skip_bad) return patches;
    const auto all = group.control().gather(bad ? 1.0 : 0.0);
    if (std::find(all.begin(), all.end(), 1.0) == all.end()) return patches;
    const std::lock_guard lock(mutex_);
    bad_.emplace(part.offset + index, cat(part.set.name(index), " could not be read by another rank"));
  }
  return {};
}

std::optional<Example> PictureSource::example(const Part& part, std::vector<Picture> pictures, Order layout,
                                              Group& group) const {
  const int64_t each = model_.tokens(), count = static_cast<int64_t>(pictures.size());
  Example example{count * each, {}, {}, {}};
  if (count > 1) example.mask.documents.assign(count, each);
  const at::Tensor places = places_of({layout, example.tokens, group.size()}, group.rank());
  std::vector<uint64_t> keys;
  std::vector<at::Tensor> parts, orders;
  at::Tensor signal = at::empty({count}, at::kFloat), noise = at::empty({count}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor own = (places.floor_divide(each) == i).nonzero().squeeze(1);
    Picture& picture = pictures[i];
    parts.push_back(read(part, picture, places.index_select(0, own) - i * each, group));
    if (!parts.back().defined()) return std::nullopt;
    orders.push_back(own);
    const Level level = level_at(model_.objective, picture.u);
    signal[i] = level.signal;
    noise[i] = level.noise;
    keys.push_back(picture.key);
    const bool told = model_.classes > 0 && picture.told;
    example.conditions.push_back({level.time, told ? part.set.label(part.index_of(picture.place)) : -1});
  }
  at::Tensor clean = at::cat(parts);
  if (layout != Order::contiguous) clean = at::empty_like(clean).index_copy_(0, at::cat(orders), clean);
  const at::Tensor whose = places.floor_divide(each), noises = noise_rows(keys, places, each, clean.size(1));
  const auto row_of = [&](const at::Tensor& each_picture) { return each_picture.index_select(0, whose).unsqueeze(1); };
  example.input = clean * row_of(signal) + noises * row_of(noise);
  example.target = objective_target(model_.objective, clean, noises);
  return example;
}

}  // namespace startrail
