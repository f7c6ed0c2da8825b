#include "startrail/train/loop/event_file.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "startrail/base/error.h"
#include "startrail/base/system.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "events.out.tfevents.";  // what TensorBoard looks for

// A field's number and wire type, and the types used: protobuf's encoding.
enum Wire { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
char tag_of(int field, Wire wire) { return static_cast<char>(field << 3 | wire); }

template <class Value>
std::string raw(Value value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string varint_text(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  return text + static_cast<char>(value);
}

std::string field(int number, std::string_view content) {
  return cat(tag_of(number, bytes), varint_text(content.size()), content);
}

// Event { double wall_time = 1; int64 step = 2; ... }
std::string event_head(int64_t step) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return cat(tag_of(1, fixed64), raw(now), tag_of(2, varint), varint_text(static_cast<uint64_t>(step)));
}

// TFRecord's: a sum of bytes that hold sums themselves is turned and shifted.
uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

// The step of an event as event_head begins it.
std::optional<int64_t> step_of(std::string_view event) {
  constexpr size_t kBefore = 1 + sizeof(double) + 1;
  uint64_t step = 0;
  for (size_t i = kBefore, shift = 0; i < event.size() && shift < 64; ++i, shift += 7) {
    step |= static_cast<uint64_t>(event[i] & 0x7f) << shift;
    if (!(event[i] & 0x80)) return static_cast<int64_t>(step);
  }
  return std::nullopt;
}

// Bytes up to the first record beyond `step`, or the first that is not whole: a kill may have left half of one.
int64_t bytes_up_to(const fs::path& file, int64_t step) {
  std::ifstream in(file, std::ios::binary);
  const std::string all(std::istreambuf_iterator<char>(in), {});
  constexpr size_t kFrame = sizeof(uint64_t) + 2 * sizeof(uint32_t);
  size_t at = 0;
  while (all.size() - at >= kFrame) {
    uint64_t length = 0;
    std::memcpy(&length, all.data() + at, sizeof length);
    if (length > all.size() - at - kFrame) break;
    const auto found = step_of(std::string_view(all).substr(at + sizeof length + sizeof(uint32_t), length));
    if (!found || *found > step) break;
    at += kFrame + length;
  }
  return static_cast<int64_t>(at);
}

void cut_earlier(const fs::path& run, int64_t step) {
  for (const auto& entry : fs::directory_iterator(run))
    if (entry.path().filename().string().starts_with(kName))
      fs::resize_file(entry.path(), static_cast<uintmax_t>(bytes_up_to(entry.path(), step)));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < made.size(); ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0x82f63b78u : 0);
    }
    return made;
  }();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ crc >> 8;
  return ~crc;
}

EventFile::EventFile(const fs::path& run, int64_t step) {
  cut_earlier(run, step);
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  int number = 0;  // for starts within a second
  do file_ = (run / cat(kName, seconds.count(), ".", host_name(), ".", number++)).string();
  while (fs::exists(file_));
  out_.open(file_, std::ios::binary);
  write_record(cat(event_head(step), field(3, "brain.Event:2")));  // Event { string file_version = 3; }
}

void EventFile::write(const StepReport& report) {
  write_scalars(report.step, {{"loss", report.loss},
                              {"learning_rate", report.learning_rate},
                              {"gradient_norm", report.gradient_norm},
                              {"tokens_per_second", report.tokens_per_second},
                              {"waiting", report.wait_share},
                              {"memory_bytes", static_cast<double>(report.peak_bytes)}});
}

void EventFile::write(int64_t step, double validation) { write_scalars(step, {{"validation_loss", validation}}); }

// Event { Summary summary = 5; }, Summary { repeated Value value = 1; }, Value { string tag = 1; float simple_value =
// 2; }
void EventFile::write_scalars(int64_t step, const std::vector<std::pair<const char*, double>>& scalars) {
  std::string summary;
  for (const auto& [name, value] : scalars)
    summary += field(1, cat(field(1, name), tag_of(2, fixed32), raw(static_cast<float>(value))));
  write_record(cat(event_head(step), field(5, summary)));
}

void EventFile::write_record(const std::string& event) {
  const std::string length = raw(static_cast<uint64_t>(event.size()));
  out_ << length << raw(masked(crc32c(length))) << event << raw(masked(crc32c(event))) << std::flush;
  if (!out_) throw_file_error(file_, "cannot be written", errno);
}

}  // namespace startrail
