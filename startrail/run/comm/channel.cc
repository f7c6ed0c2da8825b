#include "startrail/run/comm/channel.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "startrail/base/error.h"

namespace startrail {

Channel::Channel(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> members, Meter& meter)
    : backend_(std::move(backend)), members_(std::move(members)), meter_(meter) {}
Channel::~Channel() = default;

std::vector<Pending> Channel::post(const std::vector<Post>& batch) {
  const bool together = batch.size() > 1 && backend_->supportsCoalescing();
  const double now = meter_.trace() ? meter_.trace()->now_us() : -1;
  std::vector<Pending> posted;
  if (together) backend_->startCoalescing();
  for (const Post& post : batch) {
    STARTRAIL_CHECK(post.tensor.is_contiguous(), "a message must be contiguous");
    std::vector<at::Tensor> tensors{post.tensor};
    const int peer = members_.at(post.peer);
    if (post.way == Post::Way::send) {
      meter_.sent(post.kind, post.peer, static_cast<int64_t>(post.tensor.nbytes()));
      posted.push_back({backend_->send(tensors, peer, post.tag | mark_), post});
    } else {
      posted.push_back({backend_->recv(tensors, peer, post.tag | mark_), post, now});
    }
  }
  if (together) {
    const auto work = backend_->endCoalescing();
    for (Pending& pending : posted) pending.work = work;
  }
  return posted;
}

void Channel::wait(const Pending& pending) {
  const Post& post = pending.post;
  const auto start = std::chrono::steady_clock::now();
  pending.work->wait();
  meter_.waited(post.kind, post.peer, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (meter_.trace() && pending.posted_us >= 0)
    meter_.trace()->add({to_text(post.kind), pending.posted_us, meter_.trace()->now_us(),
                         post.label ? *post.label : TraceLabel{}, members_[post.peer],
                         static_cast<int64_t>(post.tensor.nbytes())});
}

void Channel::wait(const std::vector<Pending>& all) {
  for (const Pending& pending : all) wait(pending);
}

std::vector<at::Tensor> Channel::all_gather(const at::Tensor& mine) {
  constexpr int kTag = 1 << 20;  // above every step's
  const at::Tensor own = mine.contiguous();
  const int size = static_cast<int>(members_.size());
  const int rank =
      static_cast<int>(std::find(members_.begin(), members_.end(), backend_->getRank()) - members_.begin());
  std::vector<at::Tensor> all(size);
  std::vector<Post> batch;
  for (int peer = 0; peer < size; ++peer) {
    all[peer] = peer == rank ? own : at::empty_like(own);
    if (peer == rank || own.numel() == 0) continue;
    batch.push_back({Post::Way::send, own, peer, kTag, Traffic::gather});
    batch.push_back({Post::Way::receive, all[peer], peer, kTag, Traffic::gather});
  }
  wait(post(batch));
  return all;
}

}  // namespace startrail
