// The machine as data: so far only which ranks share a node, which decides what a plan sends over the slow links.
// Used by plan/ to count node-crossing bytes. Links, rates and known clusters as files will join it here.
#pragma once

namespace startrail {

struct Cluster {
  int ranks = 1;
  int ranks_per_node = 1;  // neighbouring ranks fill a node; the last node may hold fewer

  int node_of(int rank) const { return rank / ranks_per_node; }
  int nodes() const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
  bool crosses(int from, int to) const { return node_of(from) != node_of(to); }
};

// A cluster of `ranks` with `ranks_per_node` of them in each node; UserError unless 1 <= ranks_per_node <= ranks.
Cluster make_cluster(int ranks, int ranks_per_node);

}  // namespace startrail
