// Files of any kind, read and written so that an error names the file and says who can repair it (throw_file_error).
// Used for data, checkpoints and settings; knows nothing of what is in them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace startrail {

// A file open for reading. Read with pread, not mapped: a file that shrinks under a mapping ends the process with
// SIGBUS whatever was checked before, here it is a short read; and the copy out of the page cache is small beside what
// uses the data.
class OpenFile {
 public:
  explicit OpenFile(std::string path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  struct State {
    int64_t bytes, time_ns;  // its size, and its last change since 1970
  };
  State state() const;

  // Up to `bytes` bytes from `offset` on; how many there were before the file ended.
  size_t read(int64_t offset, void* out, size_t bytes) const;

 private:
  std::string path_;
  int descriptor_;
};

// A file open for writing, made anew or as it is. Closed at its end, but on disk only after flush().
class WritableFile {
 public:
  enum class Start { empty, as_it_is };
  WritableFile(const std::filesystem::path& path, Start start);
  ~WritableFile();
  WritableFile(const WritableFile&) = delete;
  WritableFile& operator=(const WritableFile&) = delete;

  void write(const void* data, size_t bytes, int64_t offset) const;
  void resize(int64_t bytes) const;  // what is new is zero
  void flush() const;

 private:
  std::string path_;
  int descriptor_;
};

// Writes a small file and flushes it to disk.
void write_text(const std::filesystem::path& file, const std::string& text);

// Flushes a folder's entries to disk.
void sync_folder(const std::filesystem::path& folder);

// UserError, naming what the file is for (a flag), when it cannot be written: before the work, not after. Leaves
// nothing behind.
void check_writable(const std::filesystem::path& file, const std::string& name);

// UserError when it is no whole JSON.
nlohmann::json read_json(const std::filesystem::path& file);

// XXH3 of bytes, and of bytes [begin, end) of a file: UserError when it is shorter.
std::string checksum(const void* data, size_t bytes);
std::string checksum(const std::filesystem::path& file, int64_t begin, int64_t end);
std::string checksum(const std::filesystem::path& file);  // of all of it

}  // namespace startrail
