#include "startrail/cluster/cluster.h"

#include "startrail/base/error.h"

namespace startrail {

Cluster make_cluster(int ranks, int ranks_per_node) {
  if (ranks_per_node < 1 || ranks_per_node > ranks)
    throw UserError(cat(ranks_per_node, " ranks per node do not fit ", ranks, " ranks: choose 1 to ", ranks));
  return {ranks, ranks_per_node};
}

}  // namespace startrail
