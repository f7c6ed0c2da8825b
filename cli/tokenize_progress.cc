#include "cli/tokenize_progress.h"

#include <algorithm>
#include <iostream>

#include "startrail/base/text.h"

namespace startrail::cli {

TokenizeObserver TokenizeDisplay::observer() {
  return {.progress = [this](const TokenizeProgress& now) { show(now); },
          .skipped = [this](const std::string& why) { show_skipped(why); }};
}

void TokenizeDisplay::show(const TokenizeProgress& now) {
  if (!started_) {
    first_ = now;
    begin_ = std::chrono::steady_clock::now();
    started_ = true;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const auto done = static_cast<double>(now.done_bytes - first_.done_bytes);
  const double speed = seconds > 0 ? done / seconds : 0;
  const double percent =
      100. * static_cast<double>(now.done_bytes) / static_cast<double>(std::max<int64_t>(now.bytes, 1));
  progress_.show(cat("tokenizing: ", fixed(percent, 0), "% of ", human_bytes(static_cast<double>(now.bytes)), ", ",
                     human_count(static_cast<double>(now.tokens)), " tokens",
                     speed > 0 ? cat(", ", human_bytes(speed), "/s, ",
                                     fixed(static_cast<double>(now.bytes - now.done_bytes) / speed, 0), " s left")
                               : ""));
}

void TokenizeDisplay::show_skipped(const std::string& why) {
  constexpr int kMost = 10;
  if (++skipped_ > kMost + 1) return;
  if (shows_live(std::cerr)) std::cerr << "\r\033[K";
  std::cerr << "startrail: skipped: " << (skipped_ <= kMost ? why : "more, which are only counted") << "\n";
}

}  // namespace startrail::cli
