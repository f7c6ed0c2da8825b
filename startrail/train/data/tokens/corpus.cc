#include "startrail/train/data/tokens/corpus.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <vector>

#include "startrail/base/error.h"
#include "startrail/train/data/tokens/file_pool.h"
#include "startrail/train/data/tokens/files.h"

namespace startrail {
namespace {

// Consecutive tokens of one file.
struct Extent {
  size_t file;         // of the pool
  int64_t offset;      // of its first token, in bytes
  int64_t count;       // tokens in the file
  bool ends;           // one more follows that is not in the file: the end token
  int64_t first = -1;  // where it begins in the corpus

  int64_t tokens() const { return count + (ends ? 1 : 0); }
};
using Extents = std::vector<Extent>;

int64_t total_tokens(const Extents& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{0},
                         [](int64_t sum, const Extent& extent) { return sum + extent.tokens(); });
}

}  // namespace

struct Corpus::State {
  std::shared_ptr<const FilePool> files;
  bool is_bytes = true;
  int64_t vocabulary = 0, end_token = -1;
  std::string left_out;
  Extents extents;
  int64_t tokens = 0;
  mutable std::mutex mutex;
  mutable std::string fingerprint;  // "" until asked for: it reads up to all of the data

  int64_t token_bytes() const { return is_bytes ? 1 : 2; }
};

namespace {

[[noreturn]] void refuse_token(const Corpus::State& state, const Extent& extent, int64_t place, int64_t token) {
  const std::string where =
      cat(" at byte ", extent.offset + place * state.token_bytes(), " of ", state.files->path(extent.file));
  if (state.is_bytes && token == 0)
    throw UserError(cat("NUL", where, ": text has none, 0 marks the end of a document; leave the file out"));
  throw UserError(cat("token ", token, where, " is not below the vocabulary of ", state.vocabulary,
                      ": set a larger model.vocabulary, or give other data"));
}

// Tokens `first`, `first` + stride, ... of an extent, in blocks that a pread fills.
template <class Token>
void read_extent(const Corpus::State& state, const Extent& extent, int64_t first, int64_t count, int64_t stride,
                 int64_t* out) {
  constexpr int64_t kBlock = (64 << 10) / sizeof(Token);
  Token block[kBlock];
  const int64_t least = state.is_bytes ? 1 : 0, limit = state.vocabulary;
  const int64_t in_block = (kBlock - 1) / stride + 1;
  for (int64_t done = 0, now; done < count; done += now, out += now) {
    now = std::min(in_block, count - done);
    const int64_t place = first + done * stride;
    state.files->read(extent.file, extent.offset + place * static_cast<int64_t>(sizeof(Token)), block,
                      static_cast<size_t>((now - 1) * stride + 1) * sizeof(Token));
    bool valid = true;
    const auto copy = [&](int64_t step) {
      for (int64_t i = 0; i < now; ++i) {
        out[i] = block[i * step];
        valid &= out[i] >= least && out[i] < limit;
      }
    };
    stride == 1 ? copy(1) : copy(stride);  // with a constant step the compiler makes vector code
    for (int64_t i = 0; !valid && i < now; ++i)
      if (out[i] < least || out[i] >= limit) refuse_token(state, extent, place + i * stride, out[i]);
  }
}

// Hashes a range of a file: all of it up to 64 MB, else 256 blocks spread evenly from the first to the last byte.
void hash_range(const FilePool& files, size_t file, int64_t offset, int64_t bytes, XXH3_state_t* hash) {
  constexpr int64_t kWhole = 64 << 20, kPiece = 256 << 10, kBlocks = 256, kBlock = 4 << 10;
  std::vector<char> buffer(static_cast<size_t>(std::min(bytes, kPiece)));
  const auto add = [&](int64_t from, int64_t length) {
    files.read(file, offset + from, buffer.data(), static_cast<size_t>(length));
    XXH3_128bits_update(hash, buffer.data(), static_cast<size_t>(length));
  };
  if (bytes <= kWhole)
    for (int64_t from = 0; from < bytes; from += kPiece) add(from, std::min(kPiece, bytes - from));
  else
    for (int64_t i = 0; i < kBlocks; ++i) add((bytes - kBlock) * i / (kBlocks - 1), kBlock);
}

std::string make_fingerprint(const Corpus::State& state) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), XXH3_freeState);
  XXH3_128bits_reset(hash.get());
  for (const Extent& extent : state.extents) {
    const std::string& name = state.files->name(extent.file);
    const int64_t bytes = extent.count * state.token_bytes();
    const int64_t facts[] = {static_cast<int64_t>(name.size()), state.token_bytes(), extent.offset, bytes, extent.ends};
    XXH3_128bits_update(hash.get(), facts, sizeof facts);
    XXH3_128bits_update(hash.get(), name.data(), name.size());
    hash_range(*state.files, extent.file, extent.offset, bytes, hash.get());
  }
  const XXH128_hash_t sum = XXH3_128bits_digest(hash.get());
  return hex_text(sum.high64) + hex_text(sum.low64);
}

// A path opened as a whole: the files behind a corpus and how to read them, not yet split.
struct Opened {
  DataFiles found;
  std::shared_ptr<const FilePool> pool;
  Extents extents;
};

Opened open_path(const std::string& path, const CorpusOptions& options) {
  Opened opened{find_data_files(path, options.leave_out, options.listing), nullptr, {}};
  std::vector<std::string> names;
  for (const DataFile& file : opened.found.files) {
    opened.extents.push_back({names.size(), file.offset, file.tokens, opened.found.is_folder && opened.found.is_bytes});
    names.push_back(file.name);
  }
  opened.pool = std::make_shared<const FilePool>(opened.found.root, std::move(names));
  return opened;
}

Corpus make_corpus(const CorpusOptions& options, const Opened& opened, Extents extents, std::string left_out) {
  auto state = std::make_shared<Corpus::State>();
  state->files = opened.pool;
  state->is_bytes = opened.found.is_bytes;
  state->vocabulary = options.vocabulary;
  state->end_token = state->is_bytes ? 0 : options.end_token;
  state->left_out = std::move(left_out);
  state->extents = std::move(extents);
  for (Extent& extent : state->extents) {
    extent.first = state->tokens;
    state->tokens += extent.tokens();
  }
  if (options.listing.once) state->fingerprint = options.listing.once([&] { return make_fingerprint(*state); });
  return Corpus(std::move(state));
}

struct Parts {
  Extents training, validation;
};

// Whole files. They are asked in the order of their names' hashes, so that the choice depends on nothing else, and one
// is taken when that brings the bytes held out nearer to the share: a single huge file passes.
Parts split_files(const Opened& opened, double share) {
  std::vector<std::pair<uint64_t, size_t>> order;  // hash, extent
  for (size_t i = 0; i < opened.extents.size(); ++i) {
    const std::string& name = opened.pool->name(i);
    order.emplace_back(XXH3_64bits(name.data(), name.size()), i);
  }
  std::sort(order.begin(), order.end());
  const auto bytes = [&](size_t i) { return static_cast<double>(opened.extents[i].count); };
  double missing = 0;
  for (size_t i = 0; i < order.size(); ++i) missing += share * bytes(i);
  std::vector<bool> held(order.size(), false);
  size_t files_held = 0;
  for (const auto& [hash, i] : order)
    if (files_held + 1 < order.size() && bytes(i) < 2 * missing) {
      held[i] = true;
      missing -= bytes(i);
      ++files_held;
    }
  if (files_held == 0) {
    const auto smallest = [&](const auto& a, const auto& b) { return bytes(a.second) < bytes(b.second); };
    held[std::min_element(order.begin(), order.end(), smallest)->second] = true;
  }
  Parts parts;
  for (size_t i = 0; i < held.size(); ++i) (held[i] ? parts.validation : parts.training).push_back(opened.extents[i]);
  return parts;
}

// The tail, at least one token.
Parts split_tail(const Opened& opened, double share, int64_t token_bytes) {
  const int64_t tokens = total_tokens(opened.extents);
  if (tokens < 2)
    throw UserError(
        cat("validation ", share, " cannot be held out of 1 token: give more data, a validation path, or 0"));
  const int64_t cut = tokens - std::clamp<int64_t>(std::llround(share * static_cast<double>(tokens)), 1, tokens - 1);
  Parts parts;
  int64_t first = 0;
  for (const Extent& extent : opened.extents) {
    const int64_t before = std::clamp<int64_t>(cut - first, 0, extent.tokens());
    first += extent.tokens();
    if (before == extent.tokens()) {
      parts.training.push_back(extent);
    } else {
      if (before > 0) parts.training.push_back({extent.file, extent.offset, before, false});
      parts.validation.push_back(
          {extent.file, extent.offset + before * token_bytes, extent.count - before, extent.ends});
    }
  }
  return parts;
}

void check_options(const CorpusOptions& options) {
  if (!(options.validation >= 0 && options.validation < 1))
    throw UserError(cat("validation ", options.validation, " is not a share: give 0 or more and less than 1"));
  if (options.vocabulary < 1)
    throw UserError(cat("vocabulary ", options.vocabulary, " cannot hold a token: give 1 or more"));
  if (options.end_token < -1 || options.end_token >= options.vocabulary)
    throw UserError(cat("end token ", options.end_token, " is not below the vocabulary of ", options.vocabulary,
                        ": give one in it, or -1 for none"));
}

}  // namespace

Corpora open_data(const CorpusOptions& options) {
  check_options(options);
  const Opened opened = open_path(options.path, options);
  const DataFiles& found = opened.found;
  if (!options.validation_path.empty()) {
    const Opened other = open_path(options.validation_path, options);
    const auto kind = [](const Opened& of) { return of.found.is_bytes ? "text" : "tokens"; };
    if (other.found.is_bytes != found.is_bytes)
      throw UserError(cat("validation path ", options.validation_path, " holds ", kind(other), ", but ", options.path,
                          " holds ", kind(opened), ": give two of the same kind"));
    return {make_corpus(options, opened, opened.extents, found.left_out),
            make_corpus(options, other, other.extents, other.found.left_out)};
  }
  Parts parts{opened.extents, {}};
  if (options.validation > 0)
    parts = found.is_bytes && found.files.size() > 1 ? split_files(opened, options.validation)
                                                     : split_tail(opened, options.validation, found.is_bytes ? 1 : 2);
  return {make_corpus(options, opened, std::move(parts.training), found.left_out),
          make_corpus(options, opened, std::move(parts.validation), "")};
}

std::string fingerprint(const Corpora& data) {
  return cat(data.training.fingerprint(), " ", data.validation.fingerprint());
}

int64_t Corpus::tokens() const { return state_->tokens; }
bool Corpus::is_bytes() const { return state_->is_bytes; }
int64_t Corpus::end_token() const { return state_->end_token; }

std::string Corpus::describe() const {
  if (state_->tokens == 0) return "nothing";
  int64_t count = 0;
  for (const Extent& extent : state_->extents) count += extent.count;
  const size_t files = state_->extents.size();
  return cat(files, state_->is_bytes ? " file" : " token file", files == 1 ? "" : "s", ", ",
             human_bytes(static_cast<double>(count * state_->token_bytes())),
             state_->left_out.empty() ? "" : cat(" (", state_->left_out, " left out)"));
}

std::string Corpus::fingerprint() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->fingerprint.empty()) state_->fingerprint = make_fingerprint(*state_);
  return state_->fingerprint;
}

void Corpus::read(int64_t first, int64_t count, int64_t stride, int64_t* out) const {
  const State& state = *state_;
  const bool inside = first >= 0 && stride >= 1 && count >= 0 &&
                      (count == 0 || (first < state.tokens && count - 1 <= (state.tokens - 1 - first) / stride));
  STARTRAIL_CHECK(inside, count, " tokens from ", first, " on with stride ", stride, " of ", state.tokens);
  if (count == 0) return;
  const auto after = [](int64_t position, const Extent& extent) { return position < extent.first; };
  auto extent = std::prev(std::upper_bound(state.extents.begin(), state.extents.end(), first, after));
  for (int64_t done = 0; done < count; ++extent) {
    const int64_t from = first + done * stride - extent->first;
    const int64_t here = from < extent->count ? std::min(count - done, (extent->count - from - 1) / stride + 1) : 0;
    if (state.is_bytes)
      read_extent<uint8_t>(state, *extent, from, here, stride, out + done);
    else
      read_extent<uint16_t>(state, *extent, from, here, stride, out + done);
    done += here;
    if (extent->ends && done < count && first + done * stride == extent->first + extent->count)
      out[done++] = state.end_token;
  }
}

}  // namespace startrail
