// A small convolutional network that learns to tell the classes of labelled pictures apart. With it a DiT's pictures
// are judged: are they recognised as what was asked for?
#pragma once

#include <map>
#include <string>
#include <vector>

#include "startrail/train/data/pictures/pictures.h"

namespace startrail {

struct Recogniser {
  std::vector<at::Tensor> weights;              // of each layer, and its bias
  double accuracy = 0;                          // share of the held-out pictures it is right about
  std::map<int64_t, std::string> skipped = {};  // what is wrong with each picture left out, by its index in the set

  // The class of each picture [count, channels, height, width] from -1 to 1: [count] int64.
  at::Tensor classes_of(const at::Tensor& pictures) const;
};

// Trains on all but the last `held_out` of the set's pictures, in the order of a shuffle: `steps` batches of 128. With
// `skip_bad` pictures that cannot be read are left out; UserError when too few are left.
Recogniser train_recogniser(const Pictures& pictures, const PictureShape& shape, int64_t held_out, int64_t steps,
                            uint64_t seed, bool skip_bad = false);

}  // namespace startrail
