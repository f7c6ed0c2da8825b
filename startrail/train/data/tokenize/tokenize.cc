#include "startrail/train/data/tokenize/tokenize.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/base/threads.h"
#include "startrail/train/data/tokenize/batch_encoder.h"
#include "startrail/train/data/tokenize/conveyor.h"
#include "startrail/train/data/tokenize/end_token.h"
#include "startrail/train/data/tokenize/shard_writer.h"
#include "startrail/train/tokenizer/tokenizer.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfigFile = "tokenizer_config.json";  // goes with the tokenizer, where there is one

// Everything a run is about, before it starts.
struct Work {
  const TokenizeOptions& options;
  const Tokenizer tokenizer{options.tokenizer};
  TextFiles texts = find_texts(options.paths, options.out, options.leave_out);
  std::vector<std::string> inputs = {};  // fingerprints of the first 0, 1, ... files
  TokenFolder folder = {};
  Journal journal = {};
};

// A chain, so that what was read before a change is still known.
std::vector<std::string> fingerprints(const std::vector<TextFile>& files) {
  std::vector<std::string> all{""};
  for (const TextFile& file : files) {
    const std::string text = cat(all.back(), fs::absolute(file.path).lexically_normal().string(), "\n", file.lines, " ",
                                 file.bytes, " ", file.time_ns);
    all.push_back(checksum(text.data(), text.size()));
  }
  return all;
}

TokenFolder describe(const Work& work) {
  const TokenizeOptions& options = work.options;
  const int64_t vocabulary = work.tokenizer.vocabulary();
  return {.type = vocabulary <= 65'536 ? "uint16" : "uint32",
          .vocabulary = vocabulary,
          .end_token = find_end_token(work.tokenizer, options.tokenizer, options.end_token),
          .tokenizer = fs::weakly_canonical(tokenizer_folder(options.tokenizer)).filename().string(),
          .tokenizer_hash = checksum(tokenizer_file(options.tokenizer)),
          .files = {}};
}

json settings_of(const Work& work) {
  return {{"the tokenizer", work.folder.tokenizer_hash}, {"the end token", work.folder.end_token},
          {"the text field", work.options.text_field},   {"the size of token files", work.options.shard_bytes},
          {"what is skipped", work.options.skip},        {"the version", 1}};
}

// UserError when the folder holds what is not of this command.
void check_out(const fs::path& out) {
  if (fs::exists(out) && !fs::is_directory(out)) throw UserError(cat("--out ", out.string(), " is no folder"));
  fs::create_directories(out);
  bool others = false;
  for (const auto& entry : fs::directory_iterator(out)) {
    if (is_journal(entry.path().filename().string())) return;
    others = true;
  }
  if (others)
    throw UserError(
        cat("--out ", out.string(), " holds other files: give a folder that is new, empty, or of tokenize"));
}

// Takes out of the journal, from the first that does not hold any more, the token files that have to be made anew. Says
// what changed, "" when nothing did.
std::string keep_valid(Work& work) {
  const json settings = settings_of(work);
  Journal& journal = work.journal;
  std::string change;
  for (const auto& [name, value] : settings.items())
    if (journal.settings.is_object() && journal.settings.value(name, json()) != value) change = name + " changed";
  if (!change.empty() || !journal.settings.is_object()) journal.shards.clear();
  journal.settings = settings;
  size_t kept = 0;
  for (; kept < journal.shards.size(); ++kept) {
    const Shard& shard = journal.shards[kept];
    const auto files = static_cast<size_t>(touched(shard.end));
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(work.options.out / shard.file.name, error));
    if (error || bytes != shard.file.tokens * work.folder.token_bytes()) change = shard.file.name + " changed";
    if (files >= work.inputs.size() || work.inputs[files] != shard.inputs ||
        (shard.last && shard.end.file + 1 != std::ssize(work.inputs)))
      change = "the text changed";
    if (!change.empty()) break;
  }
  journal.shards.resize(kept);
  return change;
}

// Removes what an earlier run has left and this one will not have.
void clear(const Work& work) {
  const fs::path& out = work.options.out;
  fs::remove(out / kTokensFile);  // first: without it the folder is not finished
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    const bool kept =
        std::ranges::any_of(work.journal.shards, [&](const Shard& shard) { return shard.file.name == name; });
    if (name.starts_with("tokens-") && !kept) fs::remove(entry.path());
  }
}

class Run {
 public:
  Run(Work& work, const TokenizeObserver& observer)
      : work_(work),
        observer_(observer),
        threads_(work.options.threads > 0 ? work.options.threads : available_cores()),
        conveyor_(static_cast<size_t>(2 * threads_ + 4)),
        reader_(work.texts.files, work.journal.shards.empty() ? Place{} : work.journal.shards.back().end,
                {.shard_bytes = work.options.shard_bytes,
                 .at_lines = work.tokenizer.splits_at_lines(),
                 .skips_files = work.options.skip}) {
    for (const TextFile& file : work.texts.files) progress_.bytes += file.bytes;
    for (const Shard& shard : work.journal.shards) {
      progress_.tokens += shard.file.tokens;
      progress_.documents += shard.file.documents;
    }
  }

  void run() {
    const auto body = [this](int index) { index == 0 ? read() : index == 1 ? write() : encode(); };
    run_threads(threads_ + 2, body, [this](int, const std::exception_ptr&) { conveyor_.stop(); });
  }

 private:
  void read() {
    for (bool more = true; more;) {
      auto batch = std::make_shared<Batch>();
      more = reader_.next(*batch) && !batch->error;
      const bool failed = batch->error != nullptr;
      if ((more || failed) && !conveyor_.put(std::move(batch))) return;
    }
    conveyor_.close();
  }

  void encode() {
    BatchEncoder encoder(work_.tokenizer, work_.texts.files,
                         {.text_field = work_.options.text_field,
                          .end_token = static_cast<uint32_t>(work_.folder.end_token),
                          .token_bytes = work_.folder.token_bytes()});
    while (const auto batch = conveyor_.take()) {
      encoder.encode(*batch);
      conveyor_.done(*batch);
    }
  }

  void write() {
    ShardWriter writer(work_.options.out, work_.journal, work_.inputs, work_.folder.token_bytes());
    while (const auto batch = conveyor_.next()) {
      for (const std::string& bad : batch->bad) {
        if (!work_.options.skip) throw UserError(cat(bad, "; --on-error skip leaves such documents out"));
        if (observer_.skipped) observer_.skipped(bad);
      }
      if (batch->error) std::rethrow_exception(batch->error);
      writer.add(*batch);
      show(*batch);
    }
  }

  void show(const Batch& batch) {
    using std::chrono::steady_clock;
    constexpr auto kPause = std::chrono::milliseconds(200);
    progress_.done_bytes = reader_.consumed();
    progress_.tokens += batch.token_count;
    progress_.documents += batch.documents;
    if (!observer_.progress || steady_clock::now() - shown_ < kPause) return;
    shown_ = steady_clock::now();
    observer_.progress(progress_);
  }

  Work& work_;
  const TokenizeObserver& observer_;
  int threads_;
  Conveyor conveyor_;
  BatchReader reader_;
  TokenizeProgress progress_;
  std::chrono::steady_clock::time_point shown_ = {};
};

// The tokenizer beside its tokens, so that they can be read without it.
void copy_tokenizer(const TokenizeOptions& options) {
  const auto copy = [&](const fs::path& from, const char* name) {
    const OpenFile file(from.string());
    std::string text(static_cast<size_t>(file.state().bytes), '\0');
    text.resize(file.read(0, text.data(), text.size()));
    const fs::path partial = options.out / cat(name, ".partial");
    write_text(partial, text);
    fs::rename(partial, options.out / name);
  };
  const fs::path config = tokenizer_folder(options.tokenizer) / kConfigFile;
  copy(tokenizer_file(options.tokenizer), kTokenizerFile);
  if (fs::exists(config)) copy(config, kConfigFile);
}

TokenizeResult sum_up(const Work& work) {
  TokenizeResult result{.folder = work.folder, .files = std::ssize(work.texts.files), .left_out = work.texts.left_out};
  for (const TextFile& file : work.texts.files) result.bytes += file.bytes;
  for (const Shard& shard : work.journal.shards) {
    result.folder.files.push_back(shard.file);
    result.documents += shard.file.documents;
    result.tokens += shard.file.tokens;
    result.text_bytes += shard.text_bytes;
    result.skipped += shard.skipped;
  }
  return result;
}

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options, const TokenizeObserver& observer) {
  Work work{options};
  work.folder = describe(work);
  work.inputs = fingerprints(work.texts.files);
  check_out(options.out);
  const FolderLock lock(options.out);
  work.journal = read_journal(options.out);
  const bool was_done = is_token_folder(options.out);
  const std::string change = keep_valid(work);
  if (was_done && change.empty() && !work.journal.shards.empty()) {
    TokenizeResult result = sum_up(work);
    result.kept_tokens = result.tokens;
    result.was_done = true;
    return result;
  }
  if (was_done && !options.replace)
    throw UserError(cat(options.out.string(), " holds other tokens (", change.empty() ? "the journal was lost" : change,
                        " since they were made): ", options.otherwise));
  clear(work);
  write_journal(options.out, work.journal);
  const int64_t kept_tokens = sum_up(work).tokens;
  Run(work, observer).run();
  TokenizeResult result = sum_up(work);
  result.kept_tokens = kept_tokens;
  if (result.tokens == 0)
    throw UserError(cat(join(options.paths), " gave no tokens: ",
                        result.skipped > 0 ? cat("all ", result.skipped, " documents were left out") : "it is empty"));
  copy_tokenizer(options);
  write_token_folder(options.out, result.folder);
  return result;
}

}  // namespace startrail
