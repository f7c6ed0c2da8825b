// Tensors between the ranks of a group: posted as a batch, waited for one by one, counted. The executor and the
// optimizer talk through it; comm/ alone touches c10d.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "startrail/run/comm/meter.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace startrail {

// A message to be posted. `tensor` must be contiguous and stay untouched until it is waited for.
struct Post {
  enum class Way { send, receive };
  Way way = Way::send;
  at::Tensor tensor;
  int peer = -1;
  int tag = 0;
  Traffic kind = Traffic::p2p;
  std::shared_ptr<const TraceLabel> label = nullptr;  // for the trace
};

// A message under way. Keeps its tensor alive.
struct Pending {
  c10::intrusive_ptr<c10d::Work> work;
  Post post;
  double posted_us = -1;  // of a receive, for the trace; -1 when nothing is recorded
  int64_t number = 0;     // of those from its peer with its tag, for the trace
};

// Tags of messages that are no step's, which are below the first of these; all are below a channel's mark.
enum SpecialTag : int { kGatherTag = 1 << 9, kGradientTag, kWeightTag, kAnswerTag, kClockTag, kControlTag };

class Channel {
 public:
  // `members` are the backend's ranks of this group, in its order.
  Channel(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> members, Meter& meter);
  ~Channel();

  // Posts all of a batch as one: a backend that can makes one launch of it, and then none of its messages waits for
  // another. Messages between two ranks with the same tag arrive in the order sent. Where a backend knows no tags all
  // of them do, so both sides must post theirs in the same order.
  std::vector<Pending> post(const std::vector<Post>& batch);
  void wait(const Pending& pending);
  // Becomes part of every tag from now on, so that messages of different marks never match; below 2 ** 21.
  void set_mark(int mark) { mark_ = mark << kMarkShift; }
  static constexpr int kMarkShift = 10;
  void wait(const std::vector<Pending>& all);

  // Everyone's `mine`, in rank order, all of one shape and type.
  std::vector<at::Tensor> all_gather(const at::Tensor& mine);

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<int> members_;
  Meter& meter_;
  int mark_ = 0;
};

}  // namespace startrail
