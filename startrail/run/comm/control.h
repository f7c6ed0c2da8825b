// Small things that all ranks of a group must know: flags, sums, texts, errors. They go over the group's first rank, on
// the CPU, beside the tensors and not counted with them. Everything here is called by all ranks of the group, in the
// same order.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "startrail/run/comm/meter.h"

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}

namespace startrail {

class Control {
 public:
  Control(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> members, Meter& meter);
  ~Control();

  // Everyone's bytes, in rank order.
  std::vector<std::string> gather(std::string_view mine);

  // The same on the group's first rank alone: for what is long and the others need not know.
  std::vector<std::string> collect(std::string_view mine);

  // Everyone's numbers, in rank order.
  template <class Value>
  std::vector<std::vector<Value>> gather(const std::vector<Value>& mine) {
    static_assert(std::is_trivially_copyable_v<Value>);
    std::vector<std::vector<Value>> all;
    for (const std::string& bytes : gather({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Value)})) {
      all.emplace_back(bytes.size() / sizeof(Value));
      if (!bytes.empty()) std::memcpy(all.back().data(), bytes.data(), bytes.size());
    }
    return all;
  }
  std::vector<double> gather(double mine);

  // Returns when all ranks have called it.
  void barrier();

  // Runs `body` on every rank. When it throws on one, all of them throw the error of the first rank that did: none goes
  // on alone, and none waits for one that has ended.
  void agree(const std::function<void()>& body);

 private:
  void send(const std::vector<int>& to, const std::string& bytes);
  std::string receive(int from);

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<int> members_;
  int rank_;
  Meter& meter_;
};

}  // namespace startrail
