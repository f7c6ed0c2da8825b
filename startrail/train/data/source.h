// Where training examples come from. A source gives each rank only its own part of an example, by number, so that a run
// can be resumed at any of them on any number of ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "startrail/train/model/model.h"

namespace startrail {

class Source {
 public:
  virtual ~Source() = default;
  // Example `index` of the run (they never end: epoch follows epoch in another order), as the ranks of `group` share it
  // in this order. All ranks of the group call it.
  virtual Example training(int64_t index, Order layout, Group& group) const = 0;
  virtual int64_t validation_count() const = 0;
  // Nothing when none of the held-out data can be read.
  virtual std::optional<Example> validation(int64_t index, Order layout, Group& group) const = 0;
  // Training examples in an epoch.
  virtual int64_t epoch() const = 0;
  // Changes when the data does.
  virtual std::string fingerprint() const = 0;
  // For people: what it is and how much.
  virtual std::string describe() const = 0;
  // What was wrong with each picture, file or folder that was left out.
  virtual std::vector<std::string> skipped() const { return {}; }
};

}  // namespace startrail
