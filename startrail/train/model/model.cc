#include "startrail/train/model/model.h"

#include <ATen/ATen.h>

namespace startrail {

int64_t Parameter::size() const {
  int64_t size = 1;
  for (int64_t extent : shape) size *= extent;
  return size;
}

at::Tensor places_of(const Layout& layout, int rank) {
  std::vector<at::Tensor> places{at::empty({0}, at::kLong)};
  for (const Piece& piece : chunk_pieces(layout, rank))
    places.push_back(at::arange(piece.count, at::kLong) * piece.stride + piece.first);
  return at::cat(places);
}

Sequence make_sequence(const Example& example, AttentionOptions options, std::shared_ptr<Group> group, bool recompute) {
  options.tokens = example.tokens;
  options.mask = example.mask;
  at::Tensor positions = places_of({options.layout, options.tokens, group->size()}, group->rank());
  return {std::move(positions), std::move(options), std::move(group), recompute};
}

}  // namespace startrail
