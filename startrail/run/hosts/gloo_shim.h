// Just enough of Gloo to include c10d's ProcessGroupGloo.hpp. libtorch_cpu holds Gloo itself, but the wheel ships no
// headers of it, and those that distributions package are of another version and disagree with it. Only pointers to
// these types cross over; nothing here is made or derived from outside libtorch. The build puts forwarding headers
// under Gloo's own names (cmake/Gloo.cmake), for hosts/gloo.cc alone.
#pragma once

#include <torch/version.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR != 13
#error "gloo_shim.h was compared with the Gloo inside torch 2.13: compare it with this one's before using it"
#endif

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);  // libtorch_cpu exports it; c10d's header names it
};

namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};
}  // namespace transport

namespace rendezvous {
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous

}  // namespace gloo
