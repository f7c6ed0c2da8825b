#include "startrail/train/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "startrail/base/error.h"
#include "startrail/train/tokenizer/bpe.h"
#include "startrail/train/tokenizer/nfc.h"
#include "startrail/train/tokenizer/piece_memo.h"
#include "startrail/train/tokenizer/split.h"

namespace startrail {
namespace {

using nlohmann::json;

struct AddedToken {
  int64_t id;
  std::string content;
  bool takes_left, takes_right;  // the white space beside it
};

// By first byte, the longest first.
struct AddedTokens {
  std::array<std::vector<AddedToken>, 256> by_first;
  std::string first;  // the bytes that have any

  void add(const AddedToken& token) {
    auto& others = by_first[static_cast<unsigned char>(token.content[0])];
    if (others.empty()) first += token.content[0];
    const auto place = std::find_if(others.begin(), others.end(), [&](const AddedToken& other) {
      return other.content.size() < token.content.size();
    });
    others.insert(place, token);
  }
  // The next byte from `at` on that an added token may start with.
  size_t candidate(std::string_view text, size_t at) const {
    if (first.size() == 1) return std::min(text.find(first[0], at), text.size());
    if (first.empty()) return text.size();
    while (at < text.size() && by_first[static_cast<unsigned char>(text[at])].empty()) ++at;
    return at;
  }
};

size_t white_space_at_start(std::string_view text) {
  size_t size = 0;
  for (size_t letter; (letter = letter_size(text.substr(size))) > 0; size += letter)
    if (kWhiteSpace.find(text.substr(size, letter)) == std::string_view::npos) break;
  return size;
}

size_t white_space_at_end(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    size_t letter = begin - 1;
    while (letter > 0 && (text[letter] & 0xc0) == 0x80) --letter;
    const std::string_view last = text.substr(letter, begin - letter);
    if (letter_size(last) != last.size() || kWhiteSpace.find(last) == std::string_view::npos) break;
    begin = letter;
  }
  return text.size() - begin;
}

// Calls `token` for each added token in the text and `rest` for what lies between, in order.
template <class Token, class Rest>
void find_added(const AddedTokens& added, std::string_view text, const Token& token, const Rest& rest) {
  size_t done = 0;
  for (size_t at = 0; (at = added.candidate(text, at)) < text.size();) {
    const auto& candidates = added.by_first[static_cast<unsigned char>(text[at])];
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const AddedToken& candidate) {
      return text.substr(at).starts_with(candidate.content);
    });
    if (found == candidates.end()) {
      ++at;
      continue;
    }
    const size_t end = at + found->content.size();
    const size_t begin = found->takes_left ? at - white_space_at_end(text.substr(0, at)) : at;
    if (begin > done) rest(text.substr(done, begin - done));
    token(found->id);
    done = found->takes_right ? end + white_space_at_start(text.substr(end)) : end;
    at = end;
  }
  if (done < text.size()) rest(text.substr(done));
}

}  // namespace

struct Tokenizer::State {
  Bpe bpe;
  Cuts cuts;
  bool nfc = false;
  bool at_lines = false;                           // see splits_at_lines()
  std::unordered_map<std::string, int64_t> added;  // the id of each
  AddedTokens verbatim, normalized;  // the first are looked for before the normalizer, so before the second

  explicit State(const json& file)
      : bpe(make_bpe(file.at("model"))),
        cuts(make_cuts(file.at("pre_tokenizer"))),
        nfc(needs_nfc(file.value("normalizer", json()))),
        at_lines(cuts_at_lines(cuts)) {
    const std::string decoder = type_of(file.at("decoder"));
    if (decoder != "ByteLevel") throw UserError(cat("decoder ", decoder, " is not supported: only ByteLevel is"));
    for (const json& entry : file.value("added_tokens", json::array())) add(entry);
  }

  void add(const json& entry) {
    AddedToken token{entry.at("id"), entry.at("content"), entry.value("lstrip", false), entry.value("rstrip", false)};
    if (token.content.empty()) return;
    check_id(cat("added token '", token.content, "'"), token.id);
    if (entry.value("single_word", false))
      throw UserError(cat("added token '", token.content, "' with single_word is not supported: only false is"));
    if (const auto known = bpe.vocabulary.find(token.content); known != bpe.vocabulary.end()) {
      if (known->second != token.id)
        throw UserError(cat("added token '", token.content, "' has id ", token.id, ", but the vocabulary gives it ",
                            known->second));
    } else if (const auto other = bpe.bytes.find(token.id);
               other != bpe.bytes.end() && other->second != token.content) {
      throw UserError(
          cat("added token '", token.content, "' has id ", token.id, ", which token '", other->second, "' has too"));
    }
    bpe.bytes[token.id] = token.content;
    added[token.content] = token.id;
    if (token.takes_left || token.takes_right || token.content.find('\n') != std::string::npos) at_lines = false;
    if (!entry.value("normalized", !entry.value("special", false))) return verbatim.add(token);
    std::string room;
    if (nfc) token.content = to_nfc(std::string(token.content), room);
    normalized.add(token);
  }

  // Appends the tokens of a text; `encode` does so for a piece.
  template <class Encode>
  void walk(std::string_view text, std::vector<uint32_t>& tokens, const Encode& encode) const {
    const auto token = [&](int64_t id) { tokens.push_back(static_cast<uint32_t>(id)); };
    std::string room;
    find_added(verbatim, text, token, [&](std::string_view outer) {
      find_added(normalized, nfc ? to_nfc(outer, room) : outer, token,
                 [&](std::string_view inner) { cut(cuts, inner, encode); });
    });
  }
};

Tokenizer::Tokenizer(const std::filesystem::path& path) {
  std::error_code ignored;  // what is not there is met when it is opened
  const std::filesystem::path file = std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  std::ifstream in(file, std::ios::binary);
  if (!in)
    throw UserError(cat(file.string(), " cannot be read: ", std::strerror(errno),
                        "; give a tokenizer.json or a folder that holds one"));
  try {
    state_ = std::make_unique<const State>(json::parse(in));
  } catch (const UserError& error) {
    throw UserError(cat(file.string(), ": ", error.what()));
  } catch (const json::parse_error& error) {  // its own words may quote the whole file
    throw UserError(cat(file.string(), " is not whole JSON: it cannot be read beyond byte ", error.byte));
  } catch (const json::exception& error) {
    const std::string what = error.what();  // [json.exception.NAME.NUMBER] and a few words
    throw UserError(cat(file.string(), " is no tokenizer.json: ", what.substr(what.find("] ") + 2)));
  }
}

Tokenizer::~Tokenizer() = default;

std::vector<int64_t> Tokenizer::encode(std::string_view text) const {
  std::vector<uint32_t> tokens;
  state_->walk(text, tokens, [&](std::string_view piece) { encode_piece(state_->bpe, piece, tokens); });
  return {tokens.begin(), tokens.end()};
}

void Tokenizer::encode(std::string_view text, PieceMemo& memo, std::vector<uint32_t>& tokens) const {
  state_->walk(text, tokens, [&](std::string_view piece) {
    memo.encode(piece, tokens, [&] { encode_piece(state_->bpe, piece, tokens); });
  });
}

bool Tokenizer::splits_at_lines() const { return state_->at_lines; }

std::optional<int64_t> Tokenizer::find(const std::string& token) const {
  for (const auto* all : {&state_->added, &state_->bpe.vocabulary})
    if (const auto found = all->find(token); found != all->end()) return found->second;
  return std::nullopt;
}

std::string Tokenizer::decode(const std::vector<int64_t>& tokens) const {
  std::string text;
  for (const int64_t token : tokens)
    if (const auto found = state_->bpe.bytes.find(token); found != state_->bpe.bytes.end()) text += found->second;
  return text;
}

int64_t Tokenizer::vocabulary() const {
  int64_t largest = -1;
  for (const auto& [id, bytes] : state_->bpe.bytes) largest = std::max(largest, id);
  return largest + 1;
}

}  // namespace startrail
