#include "startrail/plan/plan.h"

#include <numeric>

namespace startrail {

std::vector<int> PlanHead::owned_by(int rank) const {
  std::vector<int> own;
  for (int chunk = 0; chunk < chunks(); ++chunk)
    if (owners[chunk] == rank) own.push_back(chunk);
  return own;
}

std::vector<int> own_chunk_each(int ranks) {
  std::vector<int> owners(ranks);
  std::iota(owners.begin(), owners.end(), 0);
  return owners;
}

}  // namespace startrail
