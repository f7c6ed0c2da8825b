#include "startrail/train/data/tokens/ngram.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "startrail/base/error.h"
#include "startrail/base/random.h"

namespace startrail {
namespace {

constexpr int kTokenBits = 21;  // three tokens and a mark are a key of 64 bits

// Of longer corpora a sample is enough. With these the tables stay below 1 GB and the time below a minute.
constexpr int64_t kMostBytes = 200'000'000, kMostTokens = 10'000'000;

// Calls use(tokens, context, count) with blocks of the corpus in order: tokens[0 ... count) and the `context` tokens
// before them at tokens[-context ... 0), `reach` of them unless the corpus begins there. A corpus longer than `most` is
// represented by evenly spaced blocks.
void for_each_block(const Corpus& corpus, int64_t most, int64_t reach,
                    const std::function<void(const int64_t* tokens, int64_t context, int64_t count)>& use) {
  constexpr int64_t kBlock = 64 << 10;
  const int64_t blocks = (corpus.tokens() + kBlock - 1) / kBlock;
  const int64_t used = std::min(blocks, most / kBlock);
  std::vector<int64_t> buffer(static_cast<size_t>(kBlock + reach));
  for (int64_t i = 0; i < used; ++i) {
    const int64_t first = i * blocks / used * kBlock;
    const int64_t context = std::min(reach, first), count = std::min(kBlock, corpus.tokens() - first);
    corpus.read(first - context, context + count, 1, buffer.data());
    use(buffer.data() + context, context, count);
  }
}

// A hash table with open addressing that only grows. Key 0 is not used.
template <class Value>
class Table {
 public:
  Value& operator[](uint64_t key) {
    if (4 * ++used_ > 3 * entries_.size()) grow();
    Entry& entry = entries_[place(key)];
    used_ -= entry.key == key;
    entry.key = key;
    return entry.value;
  }
  template <class Use>
  void for_each(const Use& use) const {
    for (const Entry& entry : entries_)
      if (entry.key != 0) use(entry.key, entry.value);
  }
  Value find(uint64_t key) const { return entries_[place(key)].value; }  // Value{} when it is not there

 private:
  struct Entry {
    uint64_t key = 0;
    Value value{};
  };

  size_t place(uint64_t key) const {
    const size_t mask = entries_.size() - 1;
    size_t at = mix(key, 0) & mask;
    while (entries_[at].key != 0 && entries_[at].key != key) at = (at + 1) & mask;
    return at;
  }

  void grow() {
    std::vector<Entry> old(entries_.size() * 2);
    old.swap(entries_);
    for (const Entry& entry : old)
      if (entry.key != 0) entries_[place(entry.key)] = entry;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(1024);
  size_t used_ = 0;
};

struct Context {
  uint32_t total = 0;     // how often something followed
  uint32_t distinct = 0;  // how many different tokens did
};

// The `length` tokens before `end`, after a 1 that tells how many they are.
uint64_t key_of(const int64_t* end, int64_t length) {
  uint64_t key = 1;
  for (int64_t i = length; i > 0; --i) key = key << kTokenBits | static_cast<uint64_t>(end[-i]);
  return key;
}

class Ngrams {
 public:
  // Counts tokens after contexts of 0 ... `reach` tokens, at most 2. The corpus is gone through for the longest only:
  // the shorter ones are sums of those.
  Ngrams(const Corpus& corpus, int64_t reach) {
    const int64_t most = corpus.is_bytes() ? kMostBytes : kMostTokens;
    for_each_block(corpus, most, reach, [&](const int64_t* tokens, int64_t context, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t length = std::min(reach, context + i);
        ++counts_[length][key_of(tokens + i + 1, length + 1)];
      }
    });
    for (int64_t length = reach; length >= 0; --length)
      counts_[length].for_each([&](uint64_t key, uint32_t count) {
        Context& context = contexts_[key >> kTokenBits];
        context.total += count;
        ++context.distinct;
        const uint64_t mark = uint64_t{1} << (kTokenBits * length);
        if (length > 0) counts_[length - 1][mark | (key & (mark - 1))] += count;
      });
  }

  // Witten and Bell 1991, method C: P(w | h) = (count(h w) + distinct(h) P(w | h')) / (total(h) + distinct(h)), where
  // h' is h without its first token; the context of no tokens falls back to `uniform`.
  double probability(const int64_t* token, int64_t longest, double uniform) const {
    double result = uniform;
    for (int64_t length = 0; length <= longest; ++length) {
      const Context context = contexts_.find(key_of(token, length));
      if (context.total == 0) break;  // and so are all longer ones
      const double count = counts_[length].find(key_of(token + 1, length + 1)), distinct = context.distinct;
      result = (count + distinct * result) / (context.total + distinct);
    }
    return result;
  }

 private:
  Table<Context> contexts_;
  Table<uint32_t> counts_[3];  // by the length of the context
};

}  // namespace

double unigram_entropy(const Corpus& corpus) {
  STARTRAIL_CHECK(corpus.tokens() > 0, "an empty corpus has no entropy");
  std::vector<int64_t> counts(static_cast<size_t>(corpus.vocabulary()));
  int64_t total = 0;
  for_each_block(corpus, kMostBytes, 0, [&](const int64_t* tokens, int64_t, int64_t count) {
    for (int64_t i = 0; i < count; ++i) ++counts[static_cast<size_t>(tokens[i])];
    total += count;
  });
  double entropy = 0;
  for (const int64_t count : counts)
    if (count > 0) {
      const double share = static_cast<double>(count) / static_cast<double>(total);
      entropy -= share * std::log(share);
    }
  return entropy;
}

double ngram_loss(const Corpus& training, const Corpus& validation, int n, int64_t vocabulary) {
  STARTRAIL_CHECK(n >= 1 && n <= 3, "n is ", n);
  STARTRAIL_CHECK(validation.tokens() > 0, "there is nothing to measure the loss on");
  STARTRAIL_CHECK(vocabulary <= int64_t{1} << kTokenBits, "a vocabulary of ", vocabulary);
  const int64_t reach = n - 1;
  const Ngrams ngrams(training, reach);
  const double uniform = 1.0 / static_cast<double>(vocabulary);
  double loss = 0;
  int64_t total = 0;
  for_each_block(validation, kMostTokens, reach, [&](const int64_t* tokens, int64_t context, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      loss -= std::log(ngrams.probability(tokens + i, std::min(reach, context + i), uniform));
    total += count;
  });
  return loss / static_cast<double>(total);
}

}  // namespace startrail
