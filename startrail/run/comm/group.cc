#include "startrail/run/comm/group.h"

#include <ATen/ATen.h>
#include <chrono>
#include <ctime>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "startrail/base/error.h"
#include "startrail/plan/text.h"
#include "startrail/run/comm/slots.h"

namespace startrail {

Group::Group(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<ComputeSlots> slots)
    : backend_(std::move(backend)), slots_(std::move(slots)), size_(backend_->getSize()) {}
Group::~Group() = default;

int Group::rank() const { return backend_->getRank() - first_; }
int Group::size() const { return size_; }

std::shared_ptr<Group> Group::part(int first, int count) const {
  STARTRAIL_CHECK(first >= 0 && count > 0 && first + count <= size_ && rank() >= first && rank() < first + count, first,
                  " and ", count, " of ", size_, " on rank ", rank());
  auto part = std::make_shared<Group>(backend_, slots_);
  part->first_ = first_ + first;
  part->size_ = count;
  part->trace_ = trace_;
  return part;
}

Pending Group::send(const at::Tensor& tensor, int to, int tag, Traffic kind) {
  STARTRAIL_CHECK(tensor.is_contiguous(), "a sent tensor must be contiguous");
  Count& count = counts_.messages[{kind, to}];
  count.sent_bytes += static_cast<int64_t>(tensor.nbytes());
  ++count.sent_messages;
  std::vector<at::Tensor> tensors{tensor};
  return {backend_->send(tensors, first_ + to, tag), tensor, kind, to};
}

Pending Group::receive(const at::Tensor& tensor, int from, int tag, Traffic kind) {
  STARTRAIL_CHECK(tensor.is_contiguous(), "a received tensor must be contiguous");
  std::vector<at::Tensor> tensors{tensor};
  return {backend_->recv(tensors, first_ + from, tag), tensor, kind, from, trace_ ? trace_->now_us() : -1};
}

void Group::wait(const Pending& pending) {
  const auto start = std::chrono::steady_clock::now();
  pending.work->wait();
  counts_.messages[{pending.kind, pending.peer}].wait_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (trace_ && pending.posted_us >= 0)
    trace_->transfer(to_text(pending.kind), first_ + pending.peer, static_cast<int64_t>(pending.tensor.nbytes()),
                     pending.posted_us);
}

std::vector<at::Tensor> Group::all_gather(const at::Tensor& mine) {
  constexpr int kTag = 1 << 20;  // above every step's
  const at::Tensor own = mine.contiguous();
  std::vector<at::Tensor> all(size_);
  std::vector<Pending> pending;
  for (int peer = 0; peer < size_; ++peer) {
    all[peer] = peer == rank() ? own : at::empty_like(own);
    if (peer == rank()) continue;
    pending.push_back(send(own, peer, kTag, Traffic::gather));
    pending.push_back(receive(all[peer], peer, kTag, Traffic::gather));
  }
  for (const Pending& one : pending) wait(one);
  return all;
}

std::vector<double> Group::all_gather(double mine) {
  std::vector<double> values;
  for (const at::Tensor& one : all_gather(at::full({1}, mine, at::kDouble))) values.push_back(one.item<double>());
  return values;
}

bool Group::done(const Pending& pending) { return pending.work->isCompleted(); }

void Group::barrier() {
  STARTRAIL_CHECK(size_ == backend_->getSize(), "a part of a group has no barrier");
  backend_->barrier()->wait();
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
  const double start = now(), start_us = trace_ ? trace_->now_us() : 0;
  body();
  counts_.busy_seconds[op] += now() - start;
  if (trace_) trace_->span(to_text(op), start_us);
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
