#include "startrail/train/data/tokens/corpus.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>
#include <vector>

#include "startrail/base/error.h"
#include "startrail/base/system.h"
#include "startrail/train/data/tokens/documents.h"
#include "startrail/train/data/tokens/file_pool.h"
#include "startrail/train/data/tokens/files.h"
#include "startrail/train/data/tokens/token_folder.h"

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

// All that a path holds.
struct Row {
  std::shared_ptr<const FilePool> files;
  std::filesystem::path folder;  // of a tokens.json
  int64_t token_bytes = 1, vocabulary = 0, end_token = -1, tokens = 0;
  std::string left_out;
  Extents extents;

  bool is_bytes() const { return token_bytes == 1; }
};

}  // namespace

// A row, or what is inside or outside of the ranges held out of it.
struct Corpus::State {
  enum class Side { all, outside, inside };

  std::shared_ptr<const Row> row;
  Side side = Side::all;
  std::shared_ptr<const Ranges> held;
  int64_t documents = -1;  // in it, where they were told apart
  int64_t tokens = 0;
  mutable std::mutex mutex;
  mutable std::string fingerprint;  // "" until asked for: it reads up to all of the data

  Ranges::Run run_at(int64_t position) const {
    if (side == Side::all) return {position, row->tokens - position};
    return side == Side::inside ? held->inside(position) : held->outside(position, row->tokens);
  }
};

namespace {

[[noreturn]] void refuse_token(const Row& row, const Extent& extent, int64_t place, int64_t token) {
  const std::string where =
      cat(" at byte ", extent.offset + place * row.token_bytes, " of ", row.files->path(extent.file));
  if (row.is_bytes() && token == 0)
    throw UserError(cat("NUL", where, ": text has none, 0 marks the end of a document; leave the file out"));
  throw UserError(cat("token ", token, where, " is not below the vocabulary of ", row.vocabulary,
                      ": set a larger model.vocabulary, or give other data"));
}

// Tokens `first`, `first` + stride, ... of an extent, in blocks that a pread fills.
template <class Token>
void read_extent(const Row& row, const Extent& extent, int64_t first, int64_t count, int64_t stride, int64_t* out) {
  constexpr int64_t kBlock = (64 << 10) / sizeof(Token);
  Token block[kBlock];
  const int64_t least = row.is_bytes() ? 1 : 0, limit = row.vocabulary;
  const int64_t in_block = (kBlock - 1) / stride + 1;
  for (int64_t done = 0, now; done < count; done += now, out += now) {
    now = std::min(in_block, count - done);
    const int64_t place = first + done * stride;
    row.files->read(extent.file, extent.offset + place * static_cast<int64_t>(sizeof(Token)), block,
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
      if (out[i] < least || out[i] >= limit) refuse_token(row, extent, place + i * stride, out[i]);
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

// Tokens of the row, as Corpus::read gives those of a part.
void read_row(const Row& row, int64_t first, int64_t count, int64_t stride, int64_t* out) {
  const auto after = [](int64_t position, const Extent& extent) { return position < extent.first; };
  auto extent = std::prev(std::upper_bound(row.extents.begin(), row.extents.end(), first, after));
  for (int64_t done = 0; done < count; ++extent) {
    const int64_t from = first + done * stride - extent->first;
    const int64_t here = from < extent->count ? std::min(count - done, (extent->count - from - 1) / stride + 1) : 0;
    if (row.token_bytes == 1)
      read_extent<uint8_t>(row, *extent, from, here, stride, out + done);
    else if (row.token_bytes == 2)
      read_extent<uint16_t>(row, *extent, from, here, stride, out + done);
    else
      read_extent<uint32_t>(row, *extent, from, here, stride, out + done);
    done += here;
    if (extent->ends && done < count && first + done * stride == extent->first + extent->count)
      out[done++] = row.end_token;
  }
}

// The extents of a part: those of the row, cut where it is.
Extents part_extents(const Corpus::State& state) {
  Extents parts;
  auto extent = state.row->extents.begin();
  for (int64_t position = 0; position < state.tokens;) {
    const Ranges::Run run = state.run_at(position);
    for (int64_t at = run.first; at < run.first + run.count;) {
      while (at >= extent->first + extent->tokens()) ++extent;
      const int64_t from = at - extent->first, to = std::min(run.first + run.count - extent->first, extent->tokens());
      const int64_t count = std::min(to, extent->count) - std::min(from, extent->count);
      parts.push_back({extent->file, extent->offset + from * state.row->token_bytes, count, to > extent->count});
      at = extent->first + to;
    }
    position += run.count;
  }
  return parts;
}

std::string fingerprint_of(const Row& row, const Extents& extents, const std::string& more = "") {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), XXH3_freeState);
  XXH3_128bits_reset(hash.get());
  for (const Extent& extent : extents) {
    const std::string& name = row.files->name(extent.file);
    const int64_t bytes = extent.count * row.token_bytes;
    const int64_t facts[] = {static_cast<int64_t>(name.size()), row.token_bytes, extent.offset, bytes, extent.ends};
    XXH3_128bits_update(hash.get(), facts, sizeof facts);
    XXH3_128bits_update(hash.get(), name.data(), name.size());
    hash_range(*row.files, extent.file, extent.offset, bytes, hash.get());
  }
  XXH3_128bits_update(hash.get(), more.data(), more.size());
  const XXH128_hash_t sum = XXH3_128bits_digest(hash.get());
  return hex_text(sum.high64) + hex_text(sum.low64);
}

// Of documents the row's own and which they are: there may be millions.
std::string make_fingerprint(const Corpus::State& state) {
  if (state.documents < 0) return fingerprint_of(*state.row, part_extents(state));
  const bool inside = state.side == Corpus::State::Side::inside;
  return fingerprint_of(*state.row, state.row->extents, cat(inside ? "inside" : "outside", state.held->pack()));
}

void check_options(const CorpusOptions& options, int64_t vocabulary) {
  if (vocabulary < 1) throw UserError(cat("vocabulary ", vocabulary, " cannot hold a token: give 1 or more"));
  if (options.end_token < -1 || options.end_token >= vocabulary)
    throw UserError(cat("end token ", options.end_token, " is not below the vocabulary of ", vocabulary,
                        ": give one in it, or -1 for none"));
}

// What a tokens.json says must be so, and what it does not say must be clear.
void check_tokens(const CorpusOptions& options, const DataFiles& found, int64_t vocabulary) {
  const std::string where = (found.root / kTokensFile).string();
  if (found.vocabulary > vocabulary)
    throw UserError(cat(where, " is of a vocabulary of ", found.vocabulary, ", but the model has ", vocabulary,
                        ": tokenize with the model's own tokenizer or, for a new model, leave model.vocabulary out"));
  if (found.is_described() && options.end_token >= 0 && options.end_token != found.end_token)
    throw UserError(
        cat("data.end_token is ", options.end_token, ", but ", where, " says ", found.end_token, ": leave it out"));
  constexpr int64_t kUint16 = 65536;
  for (const DataFile& file : found.files)
    if (!found.is_described() && found.token_bytes == 2 && file.offset == 0 && vocabulary > kUint16)
      throw UserError(cat("token file ", (found.root / file.name).string(), " has no header, so it would be read as ",
                          "uint16, but ids of the model's vocabulary of ", vocabulary,
                          " need uint32: give a folder that `startrail tokenize` made, or files with llm.c's header"));
}

std::shared_ptr<const Row> open_row(const std::string& path, const CorpusOptions& options) {
  const DataFiles found = find_data_files(path, options.leave_out, options.listing);
  auto row = std::make_shared<Row>();
  row->token_bytes = found.token_bytes;
  row->vocabulary = options.vocabulary;
  if (options.sets_vocabulary && found.is_bytes()) row->vocabulary = 256;
  if (options.sets_vocabulary && found.is_described()) row->vocabulary = found.vocabulary;
  check_options(options, row->vocabulary);
  check_tokens(options, found, row->vocabulary);
  row->end_token = found.is_bytes() ? 0 : found.is_described() ? found.end_token : options.end_token;
  row->left_out = found.left_out;
  if (found.is_described()) row->folder = found.root;
  std::vector<std::string> names;
  for (const DataFile& file : found.files) {
    row->extents.push_back({names.size(), file.offset, file.tokens, found.is_folder && found.is_bytes(), row->tokens});
    row->tokens += row->extents.back().tokens();
    names.push_back(file.name);
  }
  row->files = std::make_shared<const FilePool>(found.root, std::move(names));
  return row;
}

// What is held out of a row, and how it was chosen.
struct Chosen {
  std::string split;
  HeldOut held;
};

// Whole files, each by a hash of its name. A single huge file passes; at least one is taken, and one left.
Chosen split_files(const Row& row, double share) {
  std::vector<std::pair<double, size_t>> order;  // hash, extent
  for (size_t i = 0; i < row.extents.size(); ++i) {
    const std::string& name = row.files->name(i);
    order.emplace_back(static_cast<double>(XXH3_64bits(name.data(), name.size()) >> 11) * 0x1p-53, i);
  }
  std::sort(order.begin(), order.end());
  order.pop_back();
  std::set<size_t> held;
  for (const auto& [hash, i] : order)
    if (row.extents[i].tokens() <= row.tokens / 2 && (hash < share || held.empty())) held.insert(i);
  if (held.empty()) return {};
  Chosen chosen{"files", {{}, static_cast<int64_t>(row.extents.size()), static_cast<int64_t>(held.size())}};
  for (const size_t i : held)
    chosen.held.ranges.add(row.extents[i].first, row.extents[i].first + row.extents[i].tokens());
  return chosen;
}

// Whole documents. One process looks, and tells the others.
Chosen split_documents(const Row& row, double share, const Listing& listing) {
  constexpr int64_t kKept = 256 << 20;  // bytes: what is looked through in less than a second need not be remembered
  const auto find = [&] {
    DocumentRow documents{*row.files, {}, row.token_bytes, row.end_token};
    for (const Extent& extent : row.extents) documents.parts.push_back({extent.offset, extent.count, extent.first});
    const bool keeps = row.tokens * row.token_bytes >= kKept;
    return hold_out_documents(documents, share, keeps ? cache_folder() : "");
  };
  Chosen chosen{"documents", listing.once ? HeldOut::unpack(listing.once([&] { return find().pack(); })) : find()};
  return chosen.held.held > 0 ? chosen : Chosen{};
}

// At least one token.
Chosen split_tail(const Row& row, double share) {
  if (row.tokens < 2)
    throw UserError(
        cat("validation ", share, " cannot be held out of 1 token: give more data, a validation path, or 0"));
  const double wanted = share * static_cast<double>(row.tokens);
  Chosen chosen{"tail", {}};
  chosen.held.ranges.add(row.tokens - std::clamp<int64_t>(std::llround(wanted), 1, row.tokens - 1), row.tokens);
  return chosen;
}

Chosen choose(const Row& row, double share, const Listing& listing) {
  Chosen chosen;
  if (row.is_bytes() && row.extents.size() > 1) chosen = split_files(row, share);
  if (!row.is_bytes() && row.end_token >= 0) chosen = split_documents(row, share, listing);
  return chosen.held.ranges.tokens() > 0 ? chosen : split_tail(row, share);
}

Corpus make_corpus(const CorpusOptions& options, std::shared_ptr<const Row> row, const Chosen& chosen,
                   Corpus::State::Side side) {
  auto state = std::make_shared<Corpus::State>();
  state->row = std::move(row);
  state->side = side;
  state->held = std::make_shared<const Ranges>(chosen.held.ranges);
  const bool all = side == Corpus::State::Side::all, inside = side == Corpus::State::Side::inside;
  const int64_t held = state->held->tokens();
  state->tokens = all ? state->row->tokens : inside ? held : state->row->tokens - held;
  if (chosen.split == "documents")
    state->documents = inside ? chosen.held.held : chosen.held.documents - chosen.held.held;
  if (options.listing.once) state->fingerprint = options.listing.once([&] { return make_fingerprint(*state); });
  return Corpus(std::move(state));
}

std::string tokens_text(int64_t tokens) { return cat(human_count(static_cast<double>(tokens)), " tokens"); }

std::string files_text(const Row& row, size_t files, int64_t tokens, bool left_out = true) {
  return cat(plural(static_cast<int64_t>(files), row.is_bytes() ? "file" : "token file"), ", ",
             human_bytes(static_cast<double>(tokens * row.token_bytes)),
             row.left_out.empty() || !left_out ? "" : cat(" (", row.left_out, " left out)"));
}

int64_t stored_tokens(const Extents& extents) {
  int64_t count = 0;
  for (const Extent& extent : extents) count += extent.count;
  return count;
}

std::string summary_of(const Row& row, const Chosen& chosen) {
  const HeldOut& held = chosen.held;
  const bool documents = chosen.split == "documents";
  std::string text = cat(files_text(row, row.extents.size(), stored_tokens(row.extents)), ", ", tokens_text(row.tokens),
                         documents ? cat(" in ", plural(held.documents, "document")) : "");
  if (chosen.split.empty()) return text + "; nothing held out";
  return cat(text, "; held out for validation: ",
             documents                 ? cat(plural(held.held, "document"), ", ")
             : chosen.split == "files" ? cat(plural(held.held, "file"), ", ")
                                       : "the last ",
             tokens_text(held.ranges.tokens()));
}

}  // namespace

Corpora open_data(const CorpusOptions& options) {
  if (!(options.validation >= 0 && options.validation < 1))
    throw UserError(cat("validation ", options.validation, " is not a share: give 0 or more and less than 1"));
  using Side = Corpus::State::Side;
  const auto row = open_row(options.path, options);
  if (!options.validation_path.empty()) {
    const auto other = open_row(options.validation_path, options);
    const auto kind = [](const Row& of) { return of.is_bytes() ? "text" : "tokens"; };
    if (other->is_bytes() != row->is_bytes())
      throw UserError(cat("validation path ", options.validation_path, " holds ", kind(*other), ", but ", options.path,
                          " holds ", kind(*row), ": give two of the same kind"));
    const std::string summary =
        cat(files_text(*row, row->extents.size(), stored_tokens(row->extents)), ", ", tokens_text(row->tokens),
            "; for validation ", options.validation_path, ": ",
            files_text(*other, other->extents.size(), stored_tokens(other->extents)), ", ", tokens_text(other->tokens));
    return {make_corpus(options, row, {}, Side::all), make_corpus(options, other, {}, Side::all), "", summary};
  }
  const Chosen chosen = options.validation > 0 ? choose(*row, options.validation, options.listing) : Chosen{};
  return {make_corpus(options, row, chosen, Side::outside), make_corpus(options, row, chosen, Side::inside),
          chosen.split, summary_of(*row, chosen)};
}

std::string fingerprint(const Corpora& data) {
  return cat(data.training.fingerprint(), " ", data.validation.fingerprint(), data.split.empty() ? "" : " ",
             data.split);
}

int64_t Corpus::tokens() const { return state_->tokens; }
bool Corpus::is_bytes() const { return state_->row->is_bytes(); }
int64_t Corpus::end_token() const { return state_->row->end_token; }
int64_t Corpus::vocabulary() const { return state_->row->vocabulary; }
std::filesystem::path Corpus::folder() const { return state_->row->folder; }

std::string Corpus::describe() const {
  if (state_->tokens == 0) return "nothing";
  const Row& row = *state_->row;
  if (state_->documents >= 0)
    return cat(plural(state_->documents, "document"), " of ", files_text(row, row.extents.size(), state_->tokens));
  const Extents extents = part_extents(*state_);
  return files_text(row, extents.size(), stored_tokens(extents), state_->side != State::Side::inside);
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
  for (int64_t done = 0; done < count;) {
    const Ranges::Run run = state.run_at(first + done * stride);
    const int64_t here = std::min(count - done, (run.count - 1) / stride + 1);
    read_row(*state.row, run.first, here, stride, out + done);
    done += here;
  }
}

}  // namespace startrail
