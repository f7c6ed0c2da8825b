// Runs the ranks of a local world, one thread each.
#pragma once

#include "startrail/run/comm/world.h"

namespace startrail {

// local_world(ranks)->run(threads, body), where `threads` are 1 or more.
void run_ranks(int ranks, int threads, const World::Body& body);

}  // namespace startrail
