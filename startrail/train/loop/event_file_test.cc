#include "startrail/train/loop/event_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

TEST(EventFile, SumsAsCastagnoliDoes) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);            // the check value of the polynomial
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

// Reads protobuf as any reader does: fields by number, in any order.
struct Reader {
  std::string_view rest;

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string_view take(size_t bytes) {
    if (bytes > rest.size()) throw std::runtime_error("a record ends too early");
    const std::string_view taken = rest.substr(0, bytes);
    rest.remove_prefix(bytes);
    return taken;
  }
  template <class Value>
  Value fixed() {
    Value value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
};

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string version;
  std::map<std::string, float> scalars;
};

void read_summary(std::string_view text, Event& event) {
  for (Reader values{text}; !values.rest.empty();) {
    ASSERT_EQ(values.varint(), 1u << 3 | 2);
    std::string name;
    float number = 0;
    for (Reader value{values.take(values.varint())}; !value.rest.empty();) {
      const uint64_t tag = value.varint();
      if (tag == (1u << 3 | 2))
        name = value.take(value.varint());
      else if (tag == (2u << 3 | 5))
        number = value.fixed<float>();
      else
        FAIL() << "field " << tag;
    }
    event.scalars[name] = number;
  }
}

// All events of a file, whose sums are compared.
std::vector<Event> read_events(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string all(std::istreambuf_iterator<char>(in), {});
  const auto masked = [](std::string_view bytes) {
    const uint32_t crc = crc32c(bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  std::vector<Event> events;
  for (Reader records{all}; !records.rest.empty();) {
    const std::string_view length = records.take(8);
    EXPECT_EQ(records.fixed<uint32_t>(), masked(length));
    const std::string_view content = records.take(Reader{length}.fixed<uint64_t>());
    EXPECT_EQ(records.fixed<uint32_t>(), masked(content));
    Event event;
    for (Reader fields{content}; !fields.rest.empty();) {
      const uint64_t tag = fields.varint();
      if (tag == (1u << 3 | 1)) event.wall_time = fields.fixed<double>();
      if (tag == (2u << 3 | 0)) event.step = static_cast<int64_t>(fields.varint());
      if (tag == (3u << 3 | 2)) event.version = fields.take(fields.varint());
      if (tag == (5u << 3 | 2)) read_summary(fields.take(fields.varint()), event);
    }
    events.push_back(event);
  }
  return events;
}

std::vector<fs::path> files_in(const fs::path& run) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(run)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

StepReport report_of(int64_t step) {
  StepReport report;
  report.step = step;
  report.loss = 5.5 - static_cast<double>(step) / 1024;
  report.learning_rate = 1e-3;
  report.gradient_norm = 2.5;
  report.tokens_per_second = 8000;
  report.wait_share = 0.25;
  report.peak_bytes = 12'400'000;
  return report;
}

TEST(EventFile, HoldsEveryNumberOfEveryStep) {
  const TempFolder folder;
  {
    EventFile file(folder.path(), 0);
    for (int64_t step : {1, 127, 128, 100'000'000}) file.write(report_of(step));
    file.write(128, 2.25);
  }
  const auto files = files_in(folder.path());
  ASSERT_EQ(files.size(), 1u);
  EXPECT_TRUE(files[0].filename().string().starts_with("events.out.tfevents."));
  const std::vector<Event> events = read_events(files[0]);
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.6e9);
  EXPECT_EQ(events[3].step, 128);
  EXPECT_EQ(events[3].scalars, (std::map<std::string, float>{{"loss", 5.375f},
                                                             {"learning_rate", 1e-3f},
                                                             {"gradient_norm", 2.5f},
                                                             {"tokens_per_second", 8000},
                                                             {"waiting", 0.25f},
                                                             {"memory_bytes", 12'400'000}}));
  EXPECT_EQ(events[4].step, 100'000'000);
  EXPECT_EQ(events[5].step, 128);
  EXPECT_EQ(events[5].scalars, (std::map<std::string, float>{{"validation_loss", 2.25f}}));
}

TEST(EventFile, GoesOnAtItsStep) {
  const TempFolder folder;
  {
    EventFile file(folder.path(), 0);
    for (int64_t step = 1; step <= 200; ++step) file.write(report_of(step));
  }
  // Killed in the middle of a record.
  const fs::path first = files_in(folder.path())[0];
  fs::resize_file(first, fs::file_size(first) - 3);
  EventFile(folder.path(), 150).write(report_of(151));
  EventFile(folder.path(), 150).write(report_of(151));
  std::vector<int64_t> steps;
  for (const fs::path& file : files_in(folder.path()))
    for (const Event& event : read_events(file))
      if (!event.scalars.empty()) steps.push_back(event.step);
  ASSERT_EQ(files_in(folder.path()).size(), 3u);
  ASSERT_EQ(steps.size(), 151u);
  for (int64_t step = 1; step <= 151; ++step) EXPECT_EQ(steps[step - 1], step);
}

}  // namespace
}  // namespace startrail
