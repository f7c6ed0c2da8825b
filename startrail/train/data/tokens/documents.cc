#include "startrail/train/data/tokens/documents.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>

#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/base/threads.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

struct Document {
  uint64_t hash = 0;
  int64_t begin = 0, end = 0;  // in the row
};

// The documents that begin in one piece of a file.
struct Found {
  std::vector<Document> below;              // the share
  std::optional<Document> lowest, highest;  // by hash
  int64_t documents = 0;
};

// A piece is what a thread looks at in one go. Its last document is followed beyond its end.
struct Piece {
  size_t file;
  int64_t begin, end;  // tokens of the file
};

constexpr int64_t kPiece = 8 << 20;   // tokens
constexpr int64_t kBlock = 64 << 10;  // tokens that are read at once: they stay in a core's own cache

class Scan {
 public:
  Scan(const DocumentRow& row, double share, int64_t all)
      : row_(row), share_(share), most_(all / 2), hash_(XXH3_createState(), XXH3_freeState) {}

  Found look(const Piece& piece) {
    found_ = {};
    piece_ = &piece;
    start_ = piece.begin == 0 ? 0 : -1;  // -1: within a document of an earlier piece
    open_ = false;
    const DocumentFile& part = row_.parts[piece.file];
    int64_t at = std::max<int64_t>(0, piece.begin - 1);  // the token before tells whether one begins here
    while (at < part.tokens && (at < piece.end || start_ >= 0)) {
      const int64_t count = std::min(kBlock, part.tokens - at);
      read(part, at, count);
      if (!take_block(at, count)) break;
      at += count;
    }
    if (start_ >= 0 && start_ < part.tokens && at >= part.tokens) close(part.tokens, block_.data(), 0);
    return std::move(found_);
  }

 private:
  void read(const DocumentFile& part, int64_t at, int64_t count) {
    block_.resize(kBlock);
    const int64_t width = row_.token_bytes;
    if (width == 4) {
      row_.files.read(piece_->file, part.offset + at * width, block_.data(), static_cast<size_t>(count * width));
      return;
    }
    narrow_.resize(kBlock);
    row_.files.read(piece_->file, part.offset + at * width, narrow_.data(), static_cast<size_t>(count * width));
    std::copy_n(narrow_.data(), count, block_.data());
  }

  // Tokens [at, at + count) of the file are in the block. False when all of the piece's documents have ended.
  bool take_block(int64_t at, int64_t count) {
    const auto end_token = static_cast<uint32_t>(row_.end_token);
    const uint32_t *block = block_.data(), *from = block, *last = block + count;
    for (const uint32_t* end; (end = std::find(from, last, end_token)) != last; from = end + 1) {
      const int64_t after = at + (end - block) + 1;
      if (start_ >= 0) close(after, from, end - from);
      if (after >= piece_->end) {
        start_ = -1;
        return false;
      }
      start_ = after;
    }
    if (start_ >= 0 && from < last) {  // it goes on in the next block
      if (!open_) XXH3_64bits_reset(hash_.get());
      open_ = true;
      XXH3_64bits_update(hash_.get(), from, static_cast<size_t>(last - from) * sizeof(uint32_t));
    }
    return true;
  }

  // The document ends before token `end` of the file; `rest` are its tokens that were not hashed yet.
  void close(int64_t end, const uint32_t* rest, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(uint32_t);
    uint64_t hash;
    if (open_) {
      XXH3_64bits_update(hash_.get(), rest, bytes);
      hash = XXH3_64bits_digest(hash_.get());
    } else {
      hash = XXH3_64bits(rest, bytes);
    }
    open_ = false;
    ++found_.documents;
    const int64_t first = row_.parts[piece_->file].first;
    const Document document{hash, first + start_, first + end};
    if (end - start_ > most_) return;
    if (static_cast<double>(hash >> 11) * 0x1p-53 < share_) found_.below.push_back(document);
    if (!found_.lowest || hash < found_.lowest->hash) found_.lowest = document;
    if (!found_.highest || hash > found_.highest->hash) found_.highest = document;
  }

  const DocumentRow& row_;
  double share_;
  int64_t most_;                                                   // tokens of a document that may be held out
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash_;  // of an open document, up to this block
  std::vector<uint32_t> block_;
  std::vector<uint16_t> narrow_;
  Found found_;
  const Piece* piece_ = nullptr;
  int64_t start_ = -1;  // of the document, in the file
  bool open_ = false;   // a part of it is in hash_
};

HeldOut join_pieces(std::vector<Found> pieces) {
  Found all;
  for (Found& piece : pieces) {
    all.documents += piece.documents;
    all.below.insert(all.below.end(), piece.below.begin(), piece.below.end());
    if (piece.lowest && (!all.lowest || piece.lowest->hash < all.lowest->hash)) all.lowest = piece.lowest;
    if (piece.highest && (!all.highest || piece.highest->hash > all.highest->hash)) all.highest = piece.highest;
  }
  HeldOut held{{}, all.documents, 0};
  if (all.documents < 2 || !all.lowest) return held;
  if (all.below.empty()) all.below = {*all.lowest};
  const bool spare = static_cast<int64_t>(all.below.size()) == all.documents;
  for (const Document& document : all.below) {
    if (spare && document.begin == all.highest->begin) continue;
    held.ranges.add(document.begin, document.end);
    ++held.held;
  }
  return held;
}

// What was looked at, and how.
std::string key_of(const DocumentRow& row, double share) {
  std::string facts = cat("1 ", row.token_bytes, " ", row.end_token, " ", share);
  for (size_t i = 0; i < row.parts.size(); ++i) {
    const DocumentFile& part = row.parts[i];
    const std::string path = fs::weakly_canonical(row.files.path(i)).string();
    facts += cat("\n", path, " ", part.offset, " ", part.tokens, " ", OpenFile(path).state().time_ns);
  }
  return checksum(facts.data(), facts.size());
}

constexpr size_t kSum = 16;  // letters of a checksum, in front of what is kept

std::optional<HeldOut> read_kept(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.size() <= kSum || checksum(text.data() + kSum, text.size() - kSum) != text.substr(0, kSum)) return {};
  return HeldOut::unpack(text.substr(kSum));
}

// Best effort: without it the next start only takes longer.
void keep(const fs::path& file, const HeldOut& held) {
  const fs::path fresh = cat(file.string(), ".", getpid());
  try {
    fs::create_directories(file.parent_path());
    const std::string bytes = held.pack();
    write_text(fresh, checksum(bytes.data(), bytes.size()) + bytes);
    fs::rename(fresh, file);
  } catch (const std::exception&) {
    std::error_code none;
    fs::remove(fresh, none);
  }
}

}  // namespace

std::string HeldOut::pack() const { return cat(documents, " ", held, "\n", ranges.pack()); }

HeldOut HeldOut::unpack(const std::string& bytes) {
  const size_t space = bytes.find(' '), line = bytes.find('\n');
  STARTRAIL_CHECK(space < line && line != std::string::npos, bytes.size(), " bytes");
  return {Ranges::unpack(bytes.substr(line + 1)), parse_int(bytes.substr(0, space), "documents"),
          parse_int(bytes.substr(space + 1, line - space - 1), "held out")};
}

HeldOut hold_out_documents(const DocumentRow& row, double share) {
  std::vector<Piece> pieces;
  int64_t all = 0;
  for (size_t file = 0; file < row.parts.size(); ++file) {
    all += row.parts[file].tokens;
    for (int64_t begin = 0; begin < row.parts[file].tokens; begin += kPiece)
      pieces.push_back({file, begin, std::min(begin + kPiece, row.parts[file].tokens)});
  }
  std::vector<Found> found(pieces.size());
  std::atomic<size_t> next = 0;
  run_threads(static_cast<int>(std::min<size_t>(static_cast<size_t>(available_cores()), pieces.size())), [&](int) {
    Scan scan(row, share, all);
    for (size_t i; (i = next++) < pieces.size();) found[i] = scan.look(pieces[i]);
  });
  return join_pieces(std::move(found));
}

HeldOut hold_out_documents(const DocumentRow& row, double share, const fs::path& cache) {
  if (cache.empty()) return hold_out_documents(row, share);
  const fs::path file = cache / cat(key_of(row, share), ".held_out");
  if (auto kept = read_kept(file)) return std::move(*kept);
  HeldOut held = hold_out_documents(row, share);
  keep(file, held);
  return held;
}

}  // namespace startrail
