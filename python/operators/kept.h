// What the operators keep between calls: for each of the user's process groups a StarTrail group that watches over it,
// and for each kind of call on it the checked options and plans. The first call of a kind is agreed on by all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "startrail/run/attention.h"
#include "startrail/run/hosts/adopted.h"

namespace startrail {

// An attention's options as the operators take them: plain values that a compiler's graph can hold.
struct CallOptions {
  std::string grid, layout;
  int64_t tokens = 0, key_tokens = 0;
  std::vector<int64_t> pieces, key_pieces;  // of layouts that list them
  Mask mask;
  double scale = 0;
  std::string backward, kernel;
};

// The grid that `text` names, "auto" being the one that sends the fewest bytes for these shapes, whatever the length.
Grid grid_of(const std::string& text, const AttentionShape& shape, int ranks);
// Which tokens each rank holds: by its name, or as `pieces` say: layout "lengths" has one length for each rank,
// "listed" for each rank the number of its pieces and then first, count and stride of each. UserError for what does not
// fit.
Layout layout_of(const std::string& text, int64_t tokens, const std::vector<int64_t>& pieces, int ranks);
AttentionOptions attention_options(const CallOptions& call, const AttentionShape& shape, int ranks);

// A kind of call that all ranks have agreed on.
struct KeptCall {
  std::shared_ptr<const PreparedAttention> prepared;
  std::shared_ptr<const std::string> what;  // for those who ask what a rank was at
  size_t hash = 0;
};

class KeptGroup {
 public:
  KeptGroup(c10::intrusive_ptr<c10d::Backend> backend, const std::string& master, std::chrono::milliseconds timeout);

  AdoptedGroup& adopted() { return adopted_; }
  Group& group() { return adopted_.group(); }
  // UserError, the same on all ranks, when one of them refuses or they differ; ClusterError when one does not come.
  // What this rank's tensors are is looked at before anything is sent.
  std::shared_ptr<const KeptCall> find(const CallOptions& call, const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v);
  // The same of a call without a plan: what it is, why this rank refuses it or "", and what to do when ranks differ.
  std::shared_ptr<const KeptCall> agree_on(const std::string& what, const std::string& refusal,
                                           const std::string& advice = "") {
    return agree(what, what, refusal, nullptr, advice);
  }
  // A batch was cut for all ranks. True at the third when no attention has run yet: then it runs elsewhere.
  bool count_batch();
  // How many queries and keys each rank holds: all ranks' queries, then all ranks' keys. All of them ask.
  std::vector<int64_t> lengths(int64_t queries, int64_t keys);

 private:
  struct Entry {
    std::shared_ptr<const KeptCall> call;
    int64_t used = 0;
  };
  std::shared_ptr<const KeptCall> agree(const std::string& key, const std::string& what, const std::string& refusal,
                                        std::shared_ptr<const PreparedAttention> prepared,
                                        const std::string& advice = "");

  AdoptedGroup adopted_;
  std::mutex mutex_;
  int64_t uses_ = 0, batches_ = 0;
  std::map<std::string, Entry> calls_;
};

// That of the process group with this name, if one was made.
std::shared_ptr<KeptGroup> known_group(const std::string& name, at::Device device);
// The same, made at the first call, which all of its ranks make together.
std::shared_ptr<KeptGroup> kept_group(const std::string& name, at::Device device);
// Lets go of all of them: the others are told that this rank leaves.
void forget_groups();

}  // namespace startrail
