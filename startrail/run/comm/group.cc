#include "startrail/run/comm/group.h"

#include <algorithm>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "startrail/base/error.h"

namespace startrail {
namespace {

std::vector<int> first_numbers(int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

Group::Group(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<ComputeSlots> slots)
    : Group(backend, std::move(slots), first_numbers(backend->getSize())) {}

Group::Group(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<ComputeSlots> slots, std::vector<int> members)
    : backend_(std::move(backend)),
      slots_(std::move(slots)),
      members_(std::move(members)),
      rank_(static_cast<int>(std::find(members_.begin(), members_.end(), backend_->getRank()) - members_.begin())),
      channel_(backend_, members_, meter_),
      control_(backend_, members_, meter_) {
  STARTRAIL_CHECK(rank_ < size(), "rank ", backend_->getRank(), " is not of its own group");
}

Group::~Group() = default;

std::shared_ptr<Group> Group::part(const std::vector<int>& ranks) const {
  std::vector<int> members;
  for (int rank : ranks) {
    STARTRAIL_CHECK(rank >= 0 && rank < size(), "rank ", rank, " of ", size());
    STARTRAIL_CHECK(std::find(members.begin(), members.end(), members_[rank]) == members.end(), "rank ", rank,
                    " twice");
    members.push_back(members_[rank]);
  }
  std::shared_ptr<Group> part(new Group(backend_, slots_, std::move(members)));
  part->meter_.record_to(meter_.shared_trace());
  return part;
}

}  // namespace startrail
