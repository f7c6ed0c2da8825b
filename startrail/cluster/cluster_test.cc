#include "startrail/cluster/cluster.h"

#include <gtest/gtest.h>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

TEST(Cluster, NeighboursFillANode) {
  const Cluster cluster = make_cluster(10, 4);
  const int node[] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2};
  EXPECT_EQ(cluster.nodes(), 3);
  for (int rank = 0; rank < 10; ++rank) {
    EXPECT_EQ(cluster.node_of(rank), node[rank]) << rank;
    for (int other = 0; other < 10; ++other)
      EXPECT_EQ(cluster.crosses(rank, other), node[rank] != node[other]) << rank << " to " << other;
  }
}

TEST(Cluster, OneNodeHasNoSlowLinks) {
  const Cluster cluster = make_cluster(8, 8);
  EXPECT_EQ(cluster.nodes(), 1);
  EXPECT_FALSE(cluster.crosses(0, 7));
}

TEST(Cluster, OneRankANodeCrossesAlways) {
  const Cluster cluster = make_cluster(8, 1);
  EXPECT_EQ(cluster.nodes(), 8);
  EXPECT_TRUE(cluster.crosses(0, 1));
}

TEST(Cluster, RefusesNodesThatDoNotFit) {
  EXPECT_EQ(error_of([] { make_cluster(8, 0); }), "0 ranks per node do not fit 8 ranks: choose 1 to 8");
  EXPECT_EQ(error_of([] { make_cluster(8, 9); }), "9 ranks per node do not fit 8 ranks: choose 1 to 8");
}

}  // namespace
}  // namespace startrail
