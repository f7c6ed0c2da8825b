#include "startrail/train/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <tuple>

#include "startrail/base/error.h"

namespace startrail {
namespace {

using nlohmann::json;

// The letter that GPT-2's vocabularies write for each byte: itself where it is visible, else the next from U+0100.
// All of them are below U+0800, so two bytes of UTF-8 are enough.
std::array<std::string, 256> make_letters() {
  std::array<std::string, 256> letters;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const int point = visible ? byte : next++;
    if (point >= 0x80) letters[byte].push_back(static_cast<char>(0xc0 | point >> 6));
    letters[byte].push_back(static_cast<char>(point < 0x80 ? point : 0x80 | (point & 0x3f)));
  }
  return letters;
}

const std::array<std::string, 256>& letters() {
  static const std::array<std::string, 256> all = make_letters();
  return all;
}

// The bytes that a vocabulary's text stands for; nothing when one of its letters stands for none.
std::optional<std::string> from_letters(const std::string& text) {
  static const auto byte_of = [] {
    std::unordered_map<std::string, char> all;
    for (int byte = 0; byte < 256; ++byte) all[letters()[byte]] = static_cast<char>(byte);
    return all;
  }();
  std::string bytes;
  for (size_t at = 0, size; at < text.size(); at += size) {
    size = static_cast<unsigned char>(text[at]) < 0x80 ? 1 : 2;
    const auto found = byte_of.find(text.substr(at, size));
    if (found == byte_of.end()) return std::nullopt;
    bytes += found->second;
  }
  return bytes;
}

void refuse(const json& model, const char* key, const std::vector<json>& supported, const char* rule) {
  const auto found = model.find(key);
  if (found == model.end() || std::find(supported.begin(), supported.end(), *found) != supported.end()) return;
  throw UserError(cat("model ", key, " ", found->dump(), " is not supported: ", rule));
}

std::pair<std::string, std::string> merge_of(const json& entry) {
  if (entry.is_array()) return entry.get<std::pair<std::string, std::string>>();
  const std::vector<std::string> parts = split(entry.get<std::string>(), ' ');
  if (parts.size() != 2) throw UserError(cat("merge ", entry.dump(), " is not two tokens with a space between them"));
  return {parts[0], parts[1]};
}

uint32_t token_of(const Bpe& bpe, const std::string& text, const json& merge) {
  const auto found = bpe.vocabulary.find(text);
  if (found == bpe.vocabulary.end())
    throw UserError(cat("merge ", merge.dump(), " needs the token '", text, "', which is not in the vocabulary"));
  return static_cast<uint32_t>(found->second);  // check_id saw it
}

}  // namespace

std::string type_of(const json& part) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  return type != part.end() && type->is_string() ? type->get<std::string>() : part.type_name();
}

void check_id(std::string_view token, int64_t id) {
  if (id < 0 || id > INT32_MAX) throw UserError(cat(token, " has id ", id, ": it must be 0 to ", INT32_MAX));
}

Bpe make_bpe(const json& model) {
  // Old files do not name the type. The unk_token is not needed: a byte without a token is an error.
  if (model.contains("type") && type_of(model) != "BPE")
    throw UserError(cat("model ", type_of(model), " is not supported: only BPE is"));
  refuse(model, "byte_fallback", {false}, "only false is, because byte-level BPE has all bytes");
  refuse(model, "dropout", {nullptr, 0}, "only null is");
  refuse(model, "continuing_subword_prefix", {nullptr, ""}, "only null is");
  refuse(model, "end_of_word_suffix", {nullptr, ""}, "only null is");
  Bpe bpe;
  bpe.ignore_merges = model.value("ignore_merges", false);
  for (const auto& [text, entry] : model.at("vocab").get_ref<const json::object_t&>()) {
    const auto id = entry.get<int64_t>();
    check_id(cat("token '", text, "'"), id);
    if (!bpe.bytes.emplace(id, from_letters(text).value_or(text)).second)
      throw UserError(cat("token '", text, "' has id ", id, ", which another token has too"));
    bpe.vocabulary.emplace(text, id);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = bpe.vocabulary.find(letters()[byte]);
    bpe.byte_tokens[byte] = found == bpe.vocabulary.end() ? -1 : found->second;
  }
  const json& merges = model.at("merges");
  bpe.merges.reserve(merges.size());
  uint32_t rank = 0;
  for (const json& entry : merges) {
    const auto [left, right] = merge_of(entry);
    const uint32_t left_token = token_of(bpe, left, entry), right_token = token_of(bpe, right, entry);
    bpe.merges.set(left_token, right_token, {rank++, token_of(bpe, left + right, entry)});
  }
  return bpe;
}

void Merges::reserve(size_t count) {
  const size_t size = std::bit_ceil(2 * count + 2);
  entries_.assign(size, Entry());
  shift_ = 64 - std::countr_zero(size);
}

void Merges::set(uint32_t left, uint32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  entries_[place(key)] = {key, merge};
}

namespace {

uint32_t byte_token(const Bpe& bpe, char letter) {
  const auto byte = static_cast<unsigned char>(letter);
  if (bpe.byte_tokens[byte] < 0)
    throw UserError(cat("the vocabulary has no token for byte ", int{byte}, " of the text"));
  return static_cast<uint32_t>(bpe.byte_tokens[byte]);
}

constexpr size_t kShort = 48;  // bytes; up to here looking at all pairs is faster than a queue

void encode_short(const Bpe& bpe, std::string_view piece, std::vector<uint32_t>& tokens) {
  uint32_t parts[kShort];
  Merges::Merge pairs[kShort];  // pairs[i] is of parts[i] and the next
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) parts[i] = byte_token(bpe, piece[i]);
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = bpe.merges.find(parts[i], parts[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == Merges::kNone) break;
    parts[best] = pairs[best].token;
    --count;
    for (size_t i = best + 1; i < count; ++i) parts[i] = parts[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) pairs[i] = pairs[i + 1];
    if (best > 0) pairs[best - 1] = bpe.merges.find(parts[best - 1], parts[best]);
    if (best + 1 < count) pairs[best] = bpe.merges.find(parts[best], parts[best + 1]);
  }
  tokens.insert(tokens.end(), parts, parts + count);
}

// O(n log n) with a queue of pairs, of which those that a merge has changed since are skipped.
void encode_long(const Bpe& bpe, std::string_view piece, std::vector<uint32_t>& tokens) {
  struct Part {
    uint32_t token;
    size_t previous, next;  // piece.size() past either end
  };
  struct Pair {
    uint32_t rank;
    size_t at;
    uint32_t left, right, merged;
    bool operator<(const Pair& other) const { return std::tie(other.rank, other.at) < std::tie(rank, at); }
  };
  const size_t end = piece.size();
  std::vector<Part> parts;
  for (size_t i = 0; i < end; ++i) parts.push_back({byte_token(bpe, piece[i]), i == 0 ? end : i - 1, i + 1});
  std::priority_queue<Pair> queue;
  const auto offer = [&](size_t at) {
    if (at == end || parts[at].next == end) return;
    const uint32_t left = parts[at].token, right = parts[parts[at].next].token;
    const Merges::Merge merge = bpe.merges.find(left, right);
    if (merge.rank != Merges::kNone) queue.push({merge.rank, at, left, right, merge.token});
  };
  for (size_t i = 0; i < end; ++i) offer(i);
  while (!queue.empty()) {
    const Pair pair = queue.top();
    queue.pop();
    Part& part = parts[pair.at];
    if (part.token != pair.left || part.next == end || parts[part.next].token != pair.right) continue;
    parts[part.next].token = Merges::kNone;  // swallowed
    part.token = pair.merged;
    part.next = parts[part.next].next;
    if (part.next != end) parts[part.next].previous = pair.at;
    offer(part.previous);
    offer(pair.at);
  }
  for (size_t i = 0; i < end; i = parts[i].next) tokens.push_back(parts[i].token);
}

}  // namespace

// Always merges the pair of the lowest rank, the leftmost of equals.
void encode_piece(const Bpe& bpe, std::string_view piece, std::vector<uint32_t>& tokens) {
  if (bpe.ignore_merges) {
    std::string text;
    for (const char byte : piece) text += letters()[static_cast<unsigned char>(byte)];
    if (const auto found = bpe.vocabulary.find(text); found != bpe.vocabulary.end())
      return tokens.push_back(static_cast<uint32_t>(found->second));
  }
  piece.size() <= kShort ? encode_short(bpe, piece, tokens) : encode_long(bpe, piece, tokens);
}

}  // namespace startrail
