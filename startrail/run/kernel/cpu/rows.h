// The work of row_work.h on vectors, once for all processor levels. A row is read from memory once: what it is read
// for again finds it in the first-level cache.
#pragma once

#include "startrail/run/kernel/cpu/row_work.h"
#include "startrail/run/kernel/cpu/vectors.h"

namespace startrail::cpu {
namespace {  // one copy per level

template <typename Level>
struct RowsOf : Vectors<Level> {
  using Base = Vectors<Level>;
  using Base::kWidth;
  using Base::load, Base::store, Base::all, Base::choose, Base::exp;
  using typename Base::Vector, typename Base::Integers, typename Base::Words;
  typedef uint16_t Halves __attribute__((vector_size(2 * kWidth), aligned(2), may_alias));

  STARTRAIL_INLINE static Vector read(const float* from) { return load(from); }
  STARTRAIL_INLINE static Vector read(const uint16_t* from) {
    return reinterpret_cast<Vector>(__builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words) << 16);
  }
  STARTRAIL_INLINE static void write(float* to, Vector v) { store(to, v); }
  // narrow() in every lane.
  STARTRAIL_INLINE static void write(uint16_t* to, Vector v) {
    const Words bits = reinterpret_cast<Words>(v);
    const Words rounded = bits + 0x7fff + ((bits >> 16) & 1), nan = bits | 0x400000;
    const Words kept =
        reinterpret_cast<Words>(choose(v != v, reinterpret_cast<Vector>(nan), reinterpret_cast<Vector>(rounded)));
    *reinterpret_cast<Halves*>(to) = __builtin_convertvector(kept >> 16, Halves);
  }

  // The first `left` lanes, and 0 in others.
  template <typename Element>
  STARTRAIL_INLINE static Vector read(const Element* from, int64_t left) {
    if (left >= kWidth) return read(from);
    Element some[kWidth] = {};
    __builtin_memcpy(some, from, static_cast<unsigned long>(left) * sizeof(Element));
    return read(some);
  }
  template <typename Element>
  STARTRAIL_INLINE static void write(Element* to, Vector v, int64_t left) {
    if (left >= kWidth) return write(to, v);
    Element some[kWidth];
    write(some, v);
    __builtin_memcpy(to, some, static_cast<unsigned long>(left) * sizeof(Element));
  }

  STARTRAIL_INLINE static float total(Vector v) {
    float lanes[kWidth];
    store(lanes, v);
    for (int step = kWidth / 2; step > 0; step /= 2)
      for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
    return lanes[0];
  }

  template <typename Element>
  static void rms_norm(const NormRows& work, float eps, void* y, int64_t begin, int64_t end) {
    const int64_t dim = work.dim;
    const Element* const weight = static_cast<const Element*>(work.weight);
    for (int64_t row = begin; row < end; ++row) {
      const Element* const x = static_cast<const Element*>(work.x) + row * dim;
      Element* const to = static_cast<Element*>(y) + row * dim;
      Vector squares{};
      for (int64_t d = 0; d < dim; d += kWidth) {
        const Vector v = read(x + d, dim - d);
        squares += v * v;
      }
      const float inverse = 1 / __builtin_sqrtf(total(squares) / static_cast<float>(dim) + eps);
      work.inverse[row] = inverse;
      for (int64_t d = 0; d < dim; d += kWidth)
        write(to + d, read(x + d, dim - d) * inverse * read(weight + d, dim - d), dim - d);
    }
  }

  // With unit = x * inverse and dunit = dy * weight: dx = (dunit - unit * mean(dunit * unit)) * inverse.
  template <typename Element>
  static void rms_norm_backward(const NormRows& work, const void* dy, void* dx, float* dweight, int64_t begin,
                                int64_t end) {
    const int64_t dim = work.dim;
    const Element* const weight = static_cast<const Element*>(work.weight);
    for (int64_t row = begin; row < end; ++row) {
      const Element* const x = static_cast<const Element*>(work.x) + row * dim;
      const Element* const from = static_cast<const Element*>(dy) + row * dim;
      Element* const to = static_cast<Element*>(dx) + row * dim;
      const float inverse = work.inverse[row];
      Vector products{};
      for (int64_t d = 0; d < dim; d += kWidth) {
        const Vector along = read(from + d, dim - d) * (read(x + d, dim - d) * inverse);
        products += along * read(weight + d, dim - d);
        write(dweight + d, read(dweight + d, dim - d) + along, dim - d);
      }
      const float mean = total(products) / static_cast<float>(dim);
      for (int64_t d = 0; d < dim; d += kWidth) {
        const Vector dunit = read(from + d, dim - d) * read(weight + d, dim - d);
        write(to + d, (dunit - read(x + d, dim - d) * inverse * mean) * inverse, dim - d);
      }
    }
  }

  template <typename Element>
  static void rotate(const RotateRows& work, void* y, int64_t begin, int64_t end) {
    const int64_t half = work.dim / 2;
    for (int64_t row = begin; row < end; ++row)
      for (int64_t head = 0; head < work.heads; ++head) {
        const Element* const x = static_cast<const Element*>(work.x) + row * work.row + head * work.head;
        Element* const to = static_cast<Element*>(y) + (row * work.heads + head) * work.dim;
        for (int64_t d = 0; d < half; d += kWidth) {
          const int64_t left = half - d;
          const Vector a = read(x + d, left), b = read(x + half + d, left);
          const Vector cos = read(work.cos + row * half + d, left),
                       sin = read(work.sin + row * half + d, left) * work.sign;
          write(to + d, a * cos - b * sin, left);
          write(to + half + d, b * cos + a * sin, left);
        }
      }
  }

  // 1 / (1 + e^-x). exp() wants its argument below 88, where this is below anything that counts.
  STARTRAIL_INLINE static Vector sigmoid(Vector x) { return 1.f / (1.f + exp(choose(x < all(-87.f), all(87.f), -x))); }

  template <typename Element>
  static void swiglu(const GatedRow& work, void* y, int64_t begin, int64_t end) {
    const Element *const gates = static_cast<const Element*>(work.gate), *const ups =
                                                                             static_cast<const Element*>(work.up);
    Element* const to = static_cast<Element*>(y);
    for (int64_t i = begin; i < end; i += kWidth) {
      const Vector gate = read(gates + i, end - i);
      write(to + i, gate * sigmoid(gate) * read(ups + i, end - i), end - i);
    }
  }

  template <typename Element>
  static void swiglu_backward(const GatedRow& work, const void* dy, void* dgate, void* dup, int64_t begin,
                              int64_t end) {
    const Element *const gates = static_cast<const Element*>(work.gate), *const ups =
                                                                             static_cast<const Element*>(work.up);
    const Element* const from = static_cast<const Element*>(dy);
    for (int64_t i = begin; i < end; i += kWidth) {
      const int64_t left = end - i;
      const Vector gate = read(gates + i, left), share = sigmoid(gate), d = read(from + i, left);
      write(static_cast<Element*>(dup) + i, d * gate * share, left);
      write(static_cast<Element*>(dgate) + i, d * read(ups + i, left) * share * (1.f + gate * (1.f - share)), left);
    }
  }

  static constexpr RowWork work() {
    return {[](const NormRows& work, float eps, void* y, int64_t begin, int64_t end) {
              (work.bfloat16 ? rms_norm<uint16_t> : rms_norm<float>)(work, eps, y, begin, end);
            },
            [](const NormRows& work, const void* dy, void* dx, float* dweight, int64_t begin, int64_t end) {
              (work.bfloat16 ? rms_norm_backward<uint16_t> : rms_norm_backward<float>)(work, dy, dx, dweight, begin,
                                                                                       end);
            },
            [](const RotateRows& work, void* y, int64_t begin, int64_t end) {
              (work.bfloat16 ? rotate<uint16_t> : rotate<float>)(work, y, begin, end);
            },
            [](const GatedRow& work, void* y, int64_t begin, int64_t end) {
              (work.bfloat16 ? swiglu<uint16_t> : swiglu<float>)(work, y, begin, end);
            },
            [](const GatedRow& work, const void* dy, void* dgate, void* dup, int64_t begin, int64_t end) {
              (work.bfloat16 ? swiglu_backward<uint16_t> : swiglu_backward<float>)(work, dy, dgate, dup, begin, end);
            }};
  }
};

}  // namespace
}  // namespace startrail::cpu
