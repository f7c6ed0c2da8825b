#include "startrail/plan/plan.h"

namespace startrail {

std::vector<int> share_of(const std::vector<int>& chunks, size_t shares, size_t index) {
  const size_t size = chunks.size() / shares;
  return {chunks.begin() + index * size, chunks.begin() + (index + 1) * size};
}

Block out_of(const Step& attend) { return {Data::out, attend.in.chunks, attend.in.slice}; }
Block query_grad_of(const Step& attend) { return {Data::query_grad, attend.in.chunks, attend.in.slice}; }
Block keys_grad_of(const Step& attend) { return {Data::keys_grad, attend.out.chunks, attend.out.slice}; }

}  // namespace startrail
