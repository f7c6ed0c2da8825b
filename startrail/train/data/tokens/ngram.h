// What counting alone achieves on the same data: the yardsticks a trained model is reported against. Of a corpus of
// more than some million tokens (ngram.cc says how many) evenly spaced blocks are taken.
#pragma once

#include "startrail/train/data/tokens/corpus.h"

namespace startrail {

// Entropy of the corpus' own token frequencies, in nats a token: no unigram model of it does better.
double unigram_entropy(const Corpus& corpus);

// Loss on `validation`, in nats a token, of an n-gram model (n = 1, 2, 3) counted on `training` and smoothed by
// interpolation with the shorter contexts (Witten-Bell), down to uniform over the vocabulary.
double ngram_loss(const Corpus& training, const Corpus& validation, int n, int64_t vocabulary);

}  // namespace startrail
