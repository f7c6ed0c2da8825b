#include "startrail/train/data/tokenize/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "startrail/base/error.h"
#include "startrail/base/file.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFresh = ".tokenize.json.partial";
constexpr const char* kLock = ".tokenize.lock";

}  // namespace

bool is_journal(const std::string& name) { return name == kJournalFile || name == kFresh || name == kLock; }

Journal read_journal(const fs::path& folder) {
  if (!fs::exists(folder / kJournalFile)) return {};
  try {
    const json found = read_json(folder / kJournalFile);
    Journal journal{found.at("settings"), {}};
    for (const json& one : found.at("shards"))
      journal.shards.push_back({.file = {one.at("name"), one.at("tokens"), one.at("documents"), one.at("checksum")},
                                .end = {one.at("file"), one.at("offset"), one.at("line")},
                                .text_bytes = one.at("text_bytes"),
                                .skipped = one.at("skipped"),
                                .inputs = one.at("inputs"),
                                .last = one.at("last")});
    return journal;
  } catch (const UserError&) {
  } catch (const json::exception&) {
  }
  return {};
}

void write_journal(const fs::path& folder, const Journal& journal) {
  json shards = json::array();
  for (const Shard& shard : journal.shards)
    shards.push_back({{"name", shard.file.name},
                      {"tokens", shard.file.tokens},
                      {"documents", shard.file.documents},
                      {"checksum", shard.file.checksum},
                      {"file", shard.end.file},
                      {"offset", shard.end.offset},
                      {"line", shard.end.line},
                      {"text_bytes", shard.text_bytes},
                      {"skipped", shard.skipped},
                      {"inputs", shard.inputs},
                      {"last", shard.last}});
  const json written{{"settings", journal.settings}, {"shards", std::move(shards)}};
  write_text(folder / kFresh, written.dump(1) + "\n");
  fs::rename(folder / kFresh, folder / kJournalFile);
  sync_folder(folder);
}

FolderLock::FolderLock(const fs::path& folder)
    : descriptor_(open((folder / kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) throw_file_error((folder / kLock).string(), "cannot be opened", errno);
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int code = errno;
  close(descriptor_);
  if (code == EWOULDBLOCK)
    throw UserError(
        cat(folder.string(), " is being written by another startrail: wait for it, or give another folder"));
  throw_file_error((folder / kLock).string(), "cannot be locked", code);
}

FolderLock::~FolderLock() { close(descriptor_); }

}  // namespace startrail
