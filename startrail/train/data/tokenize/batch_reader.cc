#include "startrail/train/data/tokenize/batch_reader.h"

#include <algorithm>

#include "startrail/base/text.h"
#include "startrail/train/tokenizer/letters.h"
#include "startrail/train/tokenizer/scan.h"

namespace startrail {
namespace {

constexpr size_t kBatchBytes = 1 << 20;  // a batch ends at the first document, or line, that makes it as large
constexpr size_t kBlockBytes = 1 << 18;

// "" for a file that is UTF-8, else what is wrong with it.
std::string check_utf8(const std::string& path) {
  TextStream stream(path);
  std::string text(kBlockBytes, '\0');
  int64_t before = 0;
  for (size_t kept = 0;;) {
    const size_t got = stream.read(text.data() + kept, text.size() - kept);
    const std::string_view read(text.data(), kept + got);
    const size_t valid = valid_size(read);
    const size_t rest = read.size() - valid;
    if (rest > 3 || (got == 0 && rest > 0))
      return cat("is not UTF-8 text (at byte ", before + static_cast<int64_t>(valid), ")");
    if (got == 0) return "";
    std::copy(read.begin() + static_cast<std::ptrdiff_t>(valid), read.end(), text.begin());
    before += static_cast<int64_t>(valid);
    kept = rest;
  }
}

}  // namespace

BatchReader::BatchReader(const std::vector<TextFile>& files, const Place& from, const BatchOptions& options)
    : files_(files), options_(options), place_(from) {
  for (int64_t i = 0; i < from.file; ++i) consumed_before_ += files[static_cast<size_t>(i)].bytes;
  consumed_ = consumed_before_;
}

void BatchReader::open_file() {
  const TextFile& file = files_[static_cast<size_t>(place_.file)];
  bad_ = options_.skips_files && !file.lines && place_.offset == 0 ? check_utf8(file.path) : "";
  stream_ = std::make_unique<TextStream>(file.path);
  stream_->skip(place_.offset);
}

bool BatchReader::read_more(std::string& text) {
  const size_t before = text.size();
  text.resize(before + kBlockBytes);
  const size_t got = stream_->read(text.data() + before, kBlockBytes);
  text.resize(before + got);
  consumed_ = consumed_before_ + stream_->consumed();
  return got > 0;
}

// Where a part that starts at `begin` may end, after a line end that is not before `from`; npos when there is none yet.
size_t BatchReader::find_cut(const std::string& text, size_t begin, size_t from) const {
  const bool lines = files_[static_cast<size_t>(place_.file)].lines;
  if (!lines && !options_.at_lines) return std::string::npos;
  for (size_t at = from; (at = text.find('\n', at)) != std::string::npos; ++at) {
    if (lines) return at + 1;
    if (may_cut_after(std::string_view(text).substr(begin), at - begin)) return at + 1;
  }
  return std::string::npos;
}

void BatchReader::add_lines(Batch& batch, size_t begin) {
  for (size_t at = begin, end; at < batch.text.size(); at = end) {
    end = std::min(batch.text.find('\n', at), batch.text.size() - 1) + 1;
    ++place_.line;
    const std::string_view line = std::string_view(batch.text).substr(at, end - at);
    if (line.find_first_not_of(" \t\r\n") == std::string_view::npos) continue;
    batch.items.push_back({at, end, place_.file, place_.line, true});
  }
}

// Adds what is left of the file at place_, or as much as fills the batch. True when the file has ended.
bool BatchReader::add_part(Batch& batch) {
  if (!stream_) open_file();
  const size_t begin = batch.text.size();
  batch.text += ahead_;
  ahead_.clear();
  size_t cut, from = std::max(begin, kBatchBytes - 1);
  bool ended = false;
  while ((cut = find_cut(batch.text, begin, std::min(from, batch.text.size()))) == std::string::npos && !ended) {
    from = std::max(from, batch.text.size() - std::min<size_t>(batch.text.size(), 1));  // its next letter may come
    ended = !read_more(batch.text);
  }
  if (cut != std::string::npos) {
    ended = false;
    ahead_ = batch.text.substr(cut);
    batch.text.resize(cut);
  }
  place_.offset += static_cast<int64_t>(batch.text.size() - begin);
  if (files_[static_cast<size_t>(place_.file)].lines) {
    add_lines(batch, begin);
  } else {
    batch.items.push_back({begin, batch.text.size(), place_.file, place_.line + 1, ended, bad_});
    place_.line += std::ranges::count(std::string_view(batch.text).substr(begin), '\n');
  }
  return ended;
}

bool BatchReader::next(Batch& batch) {
  if (place_.file == std::ssize(files_)) return false;
  try {
    while (batch.text.size() < kBatchBytes && place_.file < std::ssize(files_)) {
      if (!add_part(batch)) continue;
      consumed_before_ += files_[static_cast<size_t>(place_.file)].bytes;
      consumed_ = consumed_before_;
      stream_.reset();
      place_ = {place_.file + 1, 0, 0};
    }
  } catch (...) {
    batch.error = std::current_exception();
    batch.text.resize(batch.items.empty() ? 0 : batch.items.back().end);
    return true;
  }
  batch.end = place_;
  shard_bytes_ += static_cast<int64_t>(batch.text.size());
  batch.closes_shard = shard_bytes_ >= options_.shard_bytes || place_.file == std::ssize(files_);
  if (batch.closes_shard) shard_bytes_ = 0;
  return true;
}

}  // namespace startrail
