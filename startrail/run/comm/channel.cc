#include "startrail/run/comm/channel.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "startrail/base/error.h"
#include "startrail/run/comm/local.h"

namespace startrail {
namespace {

TraceMessage message_of(const Post& post, int peer, int64_t number, double posted_us) {
  return {.sent = post.way == Post::Way::send,
          .kind = to_text(post.kind),
          .peer = peer,
          .tag = post.tag,
          .number = number,
          .bytes = static_cast<int64_t>(post.tensor.nbytes()),
          .posted_us = posted_us,
          .label = post.label ? *post.label : TraceLabel{}};
}

}  // namespace

Channel::Channel(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> members, Meter& meter)
    : backend_(std::move(backend)), members_(std::move(members)), meter_(meter) {}
Channel::~Channel() = default;

std::vector<Pending> Channel::post(const std::vector<Post>& batch) {
  const bool together = batch.size() > 1 && backend_->supportsCoalescing();
  RankTrace* const trace = meter_.trace();
  const double now_us = trace ? trace->now_us() : -1;
  std::vector<Pending> posted;
  if (together) backend_->startCoalescing();
  for (const Post& post : batch) {
    STARTRAIL_CHECK(post.tensor.is_contiguous(), "a message must be contiguous");
    std::vector<at::Tensor> tensors{post.tensor};
    const int peer = members_.at(post.peer), tag = post.tag | mark_;
    const bool sends = post.way == Post::Way::send;
    const int64_t number = trace ? trace->count(sends, peer, post.tag) : 0;
    if (sends) {
      meter_.sent(post.kind, post.peer, static_cast<int64_t>(post.tensor.nbytes()));
      posted.push_back({backend_->send(tensors, peer, tag), post});
      if (trace) trace->add_message(message_of(post, peer, number, now_us));
    } else {
      posted.push_back({backend_->recv(tensors, peer, tag), post, now_us, number});
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
  const double start_us = RankTrace::now_us();
  pending.work->wait();
  const double end_us = RankTrace::now_us();
  meter_.waited(post.kind, post.peer, (end_us - start_us) * 1e-6);
  RankTrace* const trace = meter_.trace();
  if (!trace) return;
  const bool sends = post.way == Post::Way::send;
  trace->add_wait({sends ? "wait to send" : "wait", TraceKind::wait, start_us, end_us,
                   post.label ? *post.label : TraceLabel{}, members_[post.peer],
                   static_cast<int64_t>(post.tensor.nbytes())});
  if (sends || pending.posted_us < 0) return;
  TraceMessage message = message_of(post, members_[post.peer], pending.number, pending.posted_us);
  // Backends of c10d do not say when a message came; but one that had to be waited for came at the wait's end.
  constexpr double kAtOnceUs = 20;
  const std::optional<double> arrived = arrived_us(*pending.work);
  message.arrived_us = arrived ? std::min(*arrived, end_us) : end_us - start_us > kAtOnceUs ? end_us : -1;
  message.read_us = end_us;
  trace->add_message(std::move(message));
}

void Channel::wait(const std::vector<Pending>& all) {
  for (const Pending& pending : all) wait(pending);
}

std::vector<at::Tensor> Channel::all_gather(const at::Tensor& mine) {
  const at::Tensor own = mine.contiguous();
  const int size = static_cast<int>(members_.size());
  const int rank =
      static_cast<int>(std::find(members_.begin(), members_.end(), backend_->getRank()) - members_.begin());
  std::vector<at::Tensor> all(size);
  std::vector<Post> batch;
  for (int peer = 0; peer < size; ++peer) {
    all[peer] = peer == rank ? own : at::empty_like(own);
    if (peer == rank || own.numel() == 0) continue;
    batch.push_back({Post::Way::send, own, peer, kGatherTag, Traffic::gather});
    batch.push_back({Post::Way::receive, all[peer], peer, kGatherTag, Traffic::gather});
  }
  wait(post(batch));
  return all;
}

}  // namespace startrail
