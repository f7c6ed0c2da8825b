#include "startrail/run/comm/control.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <exception>
#include <filesystem>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "startrail/base/error.h"
#include "startrail/run/comm/channel.h"
#include "startrail/run/comm/reason.h"

namespace startrail {
namespace {

// The first message of a text has this size whatever it says, so that both sides know it; the rest follows if there is
// more. A sum over 64 ranks fits.
constexpr int64_t kFirst = 2048, kHead = sizeof(int64_t);

void append_number(std::string& bytes, int64_t value) { bytes.append(reinterpret_cast<const char*>(&value), kHead); }
int64_t read_number(const char* bytes) {
  int64_t value;
  std::memcpy(&value, bytes, kHead);
  return value;
}

at::Tensor bytes_tensor(const std::string& bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

// The kind of an error and what it says, to be thrown as the same kind elsewhere.
std::string error_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const UserError& known) {
    return cat("U", known.what());
  } catch (const InternalError& known) {
    return cat("I", known.what());
  } catch (const std::filesystem::filesystem_error& known) {
    return cat("U", known.path1().string(), ": ", known.code().message());
  } catch (const std::exception& known) {
    return cat("C", reason_of(known));
  } catch (...) {
    return "Cunknown error";
  }
}
[[noreturn]] void throw_error(const std::string& text) {
  const std::string what = text.substr(1);
  if (text[0] == 'U') throw UserError(what);
  if (text[0] == 'I') throw InternalError(what);
  throw ClusterError(what);
}

}  // namespace

Control::Control(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> members, Meter& meter)
    : backend_(std::move(backend)), members_(std::move(members)), meter_(meter) {
  rank_ = static_cast<int>(std::find(members_.begin(), members_.end(), backend_->getRank()) - members_.begin());
}
Control::~Control() = default;

void Control::send(const std::vector<int>& to, const std::string& bytes) {
  std::string first;
  append_number(first, static_cast<int64_t>(bytes.size()));
  first += bytes.substr(0, kFirst - kHead);
  first.resize(kFirst);
  const std::string rest = static_cast<int64_t>(bytes.size()) > kFirst - kHead ? bytes.substr(kFirst - kHead) : "";
  std::vector<c10::intrusive_ptr<c10d::Work>> sends;
  for (const std::string* part : std::initializer_list<const std::string*>{&first, &rest}) {
    if (part->empty()) continue;
    std::vector<at::Tensor> tensors{bytes_tensor(*part)};
    for (int peer : to) sends.push_back(backend_->send(tensors, members_[peer], kControlTag));
  }
  for (const auto& send : sends) send->wait();
}

std::string Control::receive(int from) {
  std::vector<at::Tensor> tensors{at::empty({kFirst}, at::kByte)};
  backend_->recv(tensors, members_[from], kControlTag)->wait();
  const auto* first = static_cast<const char*>(tensors[0].data_ptr());
  const int64_t size = read_number(first), inside = std::min(size, kFirst - kHead);
  std::string bytes(first + kHead, static_cast<size_t>(inside));
  if (inside == size) return bytes;
  tensors[0] = at::empty({size - inside}, at::kByte);
  backend_->recv(tensors, members_[from], kControlTag)->wait();
  return bytes.append(static_cast<const char*>(tensors[0].data_ptr()), static_cast<size_t>(size - inside));
}

std::vector<std::string> Control::gather(std::string_view mine) {
  const double start_us = RankTrace::now_us();
  const int size = static_cast<int>(members_.size());
  std::string all;  // every text behind its length
  const auto append = [&](std::string_view text) {
    append_number(all, static_cast<int64_t>(text.size()));
    all += text;
  };
  if (rank_ == 0) {
    append(mine);
    for (int from = 1; from < size; ++from) append(receive(from));
    std::vector<int> others(size - 1);
    std::iota(others.begin(), others.end(), 1);
    send(others, all);
  } else {
    send({0}, std::string(mine));
    all = receive(0);
  }
  std::vector<std::string> texts;
  for (size_t at = 0; at < all.size();) {
    const auto length = static_cast<size_t>(read_number(all.data() + at));
    texts.push_back(all.substr(at + kHead, length));
    at += kHead + length;
  }
  meter_.waited_for_control(start_us);
  return texts;
}

std::vector<std::string> Control::collect(std::string_view mine) {
  if (rank_ != 0) {
    send({0}, std::string(mine));
    return {};
  }
  std::vector<std::string> texts{std::string(mine)};
  for (int from = 1; from < static_cast<int>(members_.size()); ++from) texts.push_back(receive(from));
  return texts;
}

std::vector<double> Control::gather(double mine) {
  std::vector<double> values;
  for (const auto& one : gather(std::vector{mine})) values.push_back(one.at(0));
  return values;
}

void Control::barrier() { gather(std::string_view()); }

void Control::agree(const std::function<void()>& body) {
  std::exception_ptr error;
  try {
    body();
  } catch (...) {
    error = std::current_exception();
  }
  const auto all = gather(error ? error_text(error) : "");
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  if (first != all.end()) throw_error(*first);
}

}  // namespace startrail
