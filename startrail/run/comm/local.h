// The `local` backend: ranks are threads of one process, messages are copies in memory. A c10d backend like any other,
// so that everything above it is the same on Gloo or NCCL. Default of the command, and of every multi-rank test.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace startrail {

class LocalWorld {
 public:
  explicit LocalWorld(int ranks);
  ~LocalWorld();

  // The backend of one rank: send and recv, which is all that comm/ asks of one. A send completes when the receiver has
  // the data.
  c10::intrusive_ptr<c10d::Backend> backend(int rank);

  // Ends every wait, now and later, with ClusterError(reason). Returns false when the world was aborted before.
  bool abort(const std::string& reason);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

// When a message of a local backend was there, by the trace's clock; nothing for one that is not, or of other backends.
std::optional<double> arrived_us(const c10d::Work& work);

}  // namespace startrail
