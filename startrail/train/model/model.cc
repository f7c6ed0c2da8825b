#include "startrail/train/model/model.h"

#include <ATen/ATen.h>

namespace startrail {

int64_t Parameter::size() const {
  int64_t size = 1;
  for (int64_t extent : shape) size *= extent;
  return size;
}

Sequence make_sequence(const Example& example, AttentionOptions options, std::shared_ptr<Group> group, bool recompute) {
  options.tokens = example.tokens;
  options.mask = example.mask;
  at::Tensor positions = places_of({options.order, options.tokens, group->size()}, group->rank());
  return {std::move(positions), std::move(options), std::move(group), recompute};
}

}  // namespace startrail
