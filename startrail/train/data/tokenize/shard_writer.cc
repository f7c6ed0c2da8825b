#include "startrail/train/data/tokenize/shard_writer.h"

#include <cstdio>

#include "startrail/base/error.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial";

std::string shard_name(size_t index) {
  char name[32];
  std::snprintf(name, sizeof name, "tokens-%05zu.bin", index);
  return name;
}

}  // namespace

int64_t touched(const Place& place) { return place.file + (place.offset > 0 ? 1 : 0); }

ShardWriter::ShardWriter(fs::path folder, Journal& journal, const std::vector<std::string>& inputs, int64_t token_bytes)
    : folder_(std::move(folder)), journal_(journal), inputs_(inputs), token_bytes_(token_bytes) {}

ShardWriter::~ShardWriter() {
  if (!file_) return;
  std::error_code ignored;  // the next run writes over it
  fs::remove(folder_ / (shard_.file.name + kPartial), ignored);
}

void ShardWriter::add(const Batch& batch) {
  if (!file_) {
    shard_ = {};
    shard_.file.name = shard_name(journal_.shards.size());
    file_.emplace(folder_ / (shard_.file.name + kPartial), WritableFile::Start::empty);
  }
  file_->write(batch.tokens.data(), batch.tokens.size(), shard_.file.tokens * token_bytes_);
  shard_.file.tokens += batch.token_count;
  shard_.file.documents += batch.documents;
  shard_.text_bytes += batch.text_bytes;
  shard_.skipped += std::ssize(batch.bad);
  if (batch.closes_shard) close(batch.end);
}

void ShardWriter::close(const Place& end) {
  file_->flush();
  const fs::path partial = folder_ / (shard_.file.name + kPartial);
  shard_.file.checksum = checksum(partial, 0, shard_.file.tokens * token_bytes_);
  shard_.end = end;
  shard_.inputs = inputs_[static_cast<size_t>(touched(end))];
  shard_.last = end.file + 1 == std::ssize(inputs_);
  fs::rename(partial, folder_ / shard_.file.name);
  file_.reset();
  sync_folder(folder_);
  journal_.shards.push_back(shard_);
  write_journal(folder_, journal_);
}

}  // namespace startrail
