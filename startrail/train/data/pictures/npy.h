// The header of a .npy file, as numpy.save writes it: what its numbers are and where they begin. Used by latents.cc,
// which reads the numbers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

namespace startrail {

struct NpyHeader {
  at::ScalarType type = at::kFloat;  // half, float or double
  std::vector<int64_t> shape;
  int64_t offset = 0;  // of the first number, in bytes
};

constexpr size_t kLargestNpyHeader = 10'000;  // bytes; numpy's own limit

// Of a file of `size` bytes, from its `start`: all of it, or at least 12 bytes more than the largest header. `name` is
// its name in messages. Versions 1 to 3. UserError when it is empty, not of this format, of a type other than
// little-endian floats, in Fortran order, or longer or shorter than its header says.
NpyHeader parse_npy(std::string_view start, size_t size, const std::string& name);

}  // namespace startrail
