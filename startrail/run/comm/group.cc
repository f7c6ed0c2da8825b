#include "startrail/run/comm/group.h"

#include <chrono>
#include <ctime>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "startrail/base/error.h"
#include "startrail/run/comm/slots.h"

namespace startrail {

Group::Group(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<ComputeSlots> slots)
    : backend_(std::move(backend)), slots_(std::move(slots)) {}
Group::~Group() = default;

int Group::rank() const { return backend_->getRank(); }
int Group::size() const { return backend_->getSize(); }

Pending Group::send(const at::Tensor& tensor, int to, int tag, Traffic kind) {
  STARTRAIL_CHECK(tensor.is_contiguous(), "a sent tensor must be contiguous");
  Count& count = counts_.messages[{kind, to}];
  count.sent_bytes += static_cast<int64_t>(tensor.nbytes());
  ++count.sent_messages;
  std::vector<at::Tensor> tensors{tensor};
  return {backend_->send(tensors, to, tag), tensor, kind, to};
}

Pending Group::receive(const at::Tensor& tensor, int from, int tag, Traffic kind) {
  STARTRAIL_CHECK(tensor.is_contiguous(), "a received tensor must be contiguous");
  std::vector<at::Tensor> tensors{tensor};
  return {backend_->recv(tensors, from, tag), tensor, kind, from};
}

void Group::wait(const Pending& pending) {
  const auto start = std::chrono::steady_clock::now();
  pending.work->wait();
  counts_.messages[{pending.kind, pending.peer}].wait_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool Group::done(const Pending& pending) { return pending.work->isCompleted(); }

void Group::barrier() { backend_->barrier()->wait(); }

void Group::all_reduce_max(at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  backend_->allreduce(tensors, options)->wait();
}

void Group::all_reduce_sum(at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  backend_->allreduce(tensors)->wait();
}

Group::Turn Group::compute() {
  if (slots_) slots_->acquire();
  return Turn(slots_.get());
}

void Group::check_alive() const {
  if (slots_) slots_->check();
}

void Group::timed(Op op, const std::function<void()>& body) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  body();
  counts_.busy_seconds[op] += now() - start;
}
Group::Turn::~Turn() {
  if (slots_) slots_->release();
}

Volume Group::Counts::sent() const {
  Volume volume;
  for (const auto& [key, count] : messages) volume[key.first] += count.sent_bytes;
  return volume;
}

double Group::Counts::wait_seconds() const {
  double seconds = 0;
  for (const auto& [key, count] : messages) seconds += count.wait_seconds;
  return seconds;
}

}  // namespace startrail
