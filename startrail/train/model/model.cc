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
  std::vector<at::Tensor> positions{at::empty({0}, at::kLong)};
  for (const Piece& piece : chunk_pieces({options.layout, options.tokens, group->size()}, group->rank()))
    positions.push_back(at::arange(piece.count, at::kLong) * piece.stride + piece.first);
  return {at::cat(positions), std::move(options), std::move(group), recompute};
}

}  // namespace startrail
