// Noisy pictures to train a DiT on: examples by number, each with its own noise, level and class, of which every rank
// gets the patches of its own tokens.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "startrail/train/data/pictures/pictures.h"
#include "startrail/train/data/source.h"
#include "startrail/train/model/dit_config.h"

namespace startrail {

struct PictureSourceOptions {
  int64_t together = 1;             // pictures in a sequence, each attending to itself only
  double validation = 0.05;         // share of the pictures held out, when there is no set of them
  int64_t validation_windows = 16;  // at most so many sequences; 0: all
  double class_dropout = 0.1;       // share of the pictures whose class is not told
  std::string times = "uniform";    // how levels of noise are drawn: uniform, or logit-normal, which prefers the middle
  bool skip_bad = false;            // take another picture in place of one that cannot be read
  uint64_t seed = 1;
};

class PictureSource : public Source {
 public:
  // `held_out` may be null. UserError when there are not enough pictures or more classes than the model has.
  PictureSource(std::shared_ptr<const Pictures> pictures, std::shared_ptr<const Pictures> held_out,
                const DitConfig& model, const PictureSourceOptions& options);

  Example training(int64_t index, Order layout, Group& group) const override;
  int64_t validation_count() const override;
  std::optional<Example> validation(int64_t index, Order layout, Group& group) const override;
  int64_t epoch() const override;
  std::string fingerprint() const override;
  std::string describe() const override;
  std::vector<std::string> skipped() const override;
  const std::vector<std::string>& classes() const { return pictures_->classes(); }

 private:
  struct Picture {
    int64_t place = 0;  // in its part: for training, or held out
    double u = 0;       // its level
    bool told = true;   // its class
    uint64_t key = 0;   // of its noise
  };
  // The pictures held out, or those for training: how many, and which of its set each is.
  struct Part {
    const Pictures& set;
    int64_t count = 0;
    const int64_t* indices = nullptr;  // of its pictures; null: it is all of the set
    int64_t offset = 0;                // in bad_
    int64_t index_of(int64_t place) const { return indices ? indices[place] : place; }
  };
  Part part(bool held_out) const;
  std::optional<Example> example(const Part& part, std::vector<Picture> pictures, Order layout, Group& group) const;
  at::Tensor read(const Part& part, Picture& picture, const at::Tensor& places, Group& group) const;
  at::Tensor read(const Pictures& set, int64_t index, const at::Tensor& places) const;

  std::shared_ptr<const Pictures> pictures_, held_out_;
  DitConfig model_;
  PictureSourceOptions options_;
  int64_t training_ = 0, validation_ = 0;  // pictures
  std::vector<int64_t> order_;             // of pictures_, when some are held out: those for training, then the others
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::string> bad_;  // what is wrong by index; those of held_out_ follow those of pictures_
};

}  // namespace startrail
