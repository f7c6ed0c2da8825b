// The `gloo` backend: ranks are processes, messages go over TCP by the Gloo inside libtorch. Only sends and receives,
// as comm/ asks for. Gloo's own waits have no limit, since one that runs out destroys every connection: whether a peer
// is alive is for the watch to say, which then ends all waits here.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace startrail {

struct GlooOptions {
  int rank = 0, size = 1;
  std::string address;                   // of this host: the one Gloo listens on
  std::chrono::milliseconds connect{0};  // how long the peers may take
  // What becomes of a peer that a message broke off with: waits for it and returns the reason to stop.
  std::function<std::string(int peer, const std::string& why)> on_broken;
};

class GlooWorld {
 public:
  // Connects to every peer, which find each other by the store. ClusterError when they do not.
  GlooWorld(c10::intrusive_ptr<c10d::Store> store, const GlooOptions& options);

  c10::intrusive_ptr<c10d::Backend> backend();

  // Ends every wait, now and later, with ClusterError(reason). Memory of receives may still be written to.
  void abort(const std::string& reason);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace startrail
