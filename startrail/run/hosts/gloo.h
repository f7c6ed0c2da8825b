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

// What becomes of a peer that a message broke off with: waits for it and returns the reason to stop.
using OnBroken = std::function<std::string(int peer, const std::string& why)>;

struct GlooOptions {
  int rank = 0, size = 1;
  std::string address;                   // of this host: the one Gloo listens on
  std::chrono::milliseconds connect{0};  // how long the peers may take
  OnBroken on_broken;
};

class GlooWorld {
 public:
  // Connects to every peer, which find each other by the store. ClusterError when they do not.
  GlooWorld(c10::intrusive_ptr<c10d::Store> store, const GlooOptions& options);
  // The ranks of a Gloo backend that someone else connected.
  GlooWorld(c10::intrusive_ptr<c10d::Backend> connected, OnBroken on_broken);

  c10::intrusive_ptr<c10d::Backend> backend();

  // Of each wait from now on: for the time before a watch stands.
  void set_limit(std::chrono::milliseconds limit);
  // How long the wait under way has taken; 0 when there is none.
  std::chrono::milliseconds waited() const;

  // Ends every wait, now and later, with ClusterError(reason). What was posted and not waited for may still be read and
  // written by Gloo, so its memory is never given back.
  void abort(const std::string& reason);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace startrail
