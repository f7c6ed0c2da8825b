// A set of ranks that work together, as one of them sees it: who they are, and how they talk. Tensors go through
// `channel`, small things through `control`, and `meter` counts.
#pragma once

#include <memory>
#include <vector>

#include "startrail/run/comm/channel.h"
#include "startrail/run/comm/control.h"
#include "startrail/run/comm/meter.h"
#include "startrail/run/comm/slots.h"

namespace startrail {

class Group {
 public:
  // All ranks of the backend. `slots` are shared by ranks that share cores; null: there is no need to.
  explicit Group(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<ComputeSlots> slots = nullptr);
  ~Group();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }

  // Some ranks of this group, this one among them, in the order given: such as those that share a sequence. They count
  // for themselves and talk through the same backend; messages between two ranks keep the order in which they are
  // posted, whichever of the two groups posts them.
  std::shared_ptr<Group> part(const std::vector<int>& ranks) const;

  Channel& channel() { return channel_; }
  Control& control() { return control_; }
  Meter& meter() { return meter_; }

  // Held while computing; waits for a free slot where ranks share cores.
  Turn compute() { return Turn(slots_.get(), meter_.trace()); }
  // Throws when another rank of this process has failed; asked between tiles, so that long work ends soon.
  void check_alive() const {
    if (slots_) slots_->check();
  }

 private:
  Group(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<ComputeSlots> slots, std::vector<int> members);

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<ComputeSlots> slots_;
  std::vector<int> members_;  // the backend's ranks
  int rank_;
  Meter meter_;
  Channel channel_;
  Control control_;
};

}  // namespace startrail
