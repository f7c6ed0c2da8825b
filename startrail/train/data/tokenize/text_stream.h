// A file of text as a stream of bytes: as it is, or unpacked when its name ends in .gz (gzip) or .zst (zstd). Used for
// what `startrail tokenize` reads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "startrail/base/file.h"

namespace startrail {

// Whether a file's name has this ending, in small letters or large ones.
bool ends_as(std::string_view path, std::string_view ending);
// The ending that says how a file is packed, ".gz" or ".zst"; "" for one that is not.
std::string_view packing_of(std::string_view path);

class TextStream {
 public:
  explicit TextStream(const std::string& path);
  ~TextStream();

  // Up to `bytes` bytes, which are not 0; 0 at the end. UserError when the file is damaged or cut short.
  size_t read(char* out, size_t bytes);
  // Passes over as many bytes. UserError when there are fewer.
  void skip(int64_t bytes);
  // Bytes of the file that have been read.
  int64_t consumed() const { return at_; }

  class Unpacker;  // one for each packing

 private:
  bool fill();  // more of the file; false at its end

  std::string path_;
  OpenFile file_;
  int64_t at_ = 0;
  std::unique_ptr<Unpacker> unpacker_;  // none for a plain file
  std::vector<char> packed_;
  std::string_view rest_;  // of `packed_`
  int64_t lines_ = 0;      // that ended, of what was unpacked
};

}  // namespace startrail
