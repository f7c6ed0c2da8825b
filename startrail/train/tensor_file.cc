#include "startrail/train/tensor_file.h"

#include <ATen/ATen.h>
#define XXH_INLINE_ALL
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/train/mapped_file.h"

namespace startrail {
namespace {

constexpr uint64_t kLargestHeader = 100'000'000;  // the format's own limit

const std::pair<const char*, at::ScalarType> kTypes[] = {
    {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}, {"I64", at::kLong},
    {"I32", at::kInt},    {"I16", at::kShort}, {"I8", at::kChar},  {"U8", at::kByte},       {"BOOL", at::kBool}};

std::string type_name(at::ScalarType type) {
  for (const auto& [name, known] : kTypes)
    if (known == type) return name;
  throw InternalError(cat("safetensors files do not hold ", type));
}

// A descriptor that closes itself; errors name the file.
class File {
 public:
  File(const std::filesystem::path& path, int flags) : path_(path), handle_(open(path.c_str(), flags, 0644)) {
    if (handle_ < 0) fail("cannot be opened");
  }
  ~File() {
    if (handle_ >= 0) close(handle_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int handle() const { return handle_; }
  void write(const void* data, size_t bytes, int64_t offset) const {
    for (const char* at = static_cast<const char*>(data); bytes > 0;) {
      const ssize_t done = pwrite(handle_, at, bytes, offset);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail("cannot be written");
      at += done;
      offset += done;
      bytes -= static_cast<size_t>(done);
    }
  }
  void flush() const {
    if (fsync(handle_) != 0) fail("cannot be flushed to disk");
  }
  // A wrong path is the user's to repair, a full or broken disk is not.
  [[noreturn]] void fail(const char* what) const {
    const int code = errno;
    const std::string message = cat(path_.string(), " ", what, ": ", std::strerror(code));
    if (code == ENOSPC || code == EIO || code == EDQUOT) throw ClusterError(message);
    throw UserError(message);
  }

 private:
  std::filesystem::path path_;
  int handle_;
};

}  // namespace

int64_t make_tensor_file(const std::filesystem::path& file, const std::vector<NamedShape>& tensors) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t offset = 0;
  for (const auto& [name, type, shape] : tensors) {
    int64_t bytes = static_cast<int64_t>(c10::elementSize(type));
    for (int64_t extent : shape) bytes *= extent;
    header[name] = {{"dtype", type_name(type)}, {"shape", shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  const auto begin = static_cast<int64_t>(sizeof length + text.size());
  const File out(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
  out.write(&length, sizeof length, 0);
  out.write(text.data(), text.size(), sizeof length);
  if (ftruncate(out.handle(), begin + offset) != 0) out.fail("cannot be made as large as it must be");
  out.flush();
  return begin;
}

void write_at(const std::filesystem::path& file, int64_t offset, const at::Tensor& values) {
  STARTRAIL_CHECK(values.is_contiguous() && values.is_cpu(), "only dense memory can be written");
  const File out(file, O_WRONLY | O_CLOEXEC);
  out.write(values.data_ptr(), values.nbytes(), offset);
  out.flush();
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  const File out(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
  out.write(text.data(), text.size(), 0);
  out.flush();
}

void sync_folder(const std::filesystem::path& folder) { File(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC).flush(); }

const at::Tensor& TensorFile::at(const std::string& name) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw UserError(cat(file.string(), " has no tensor '", name, "'"));
  return found->second;
}

TensorFile read_tensors(const std::filesystem::path& path) {
  const auto mapping = std::make_shared<MappedFile>(path);
  const auto fail = [&](const std::string& what) -> UserError {
    return UserError(cat(path.string(), " is not a whole safetensors file: ", what));
  };
  uint64_t length = 0;
  if (mapping->size() < sizeof length) throw fail(cat("it has only ", mapping->size(), " bytes"));
  std::memcpy(&length, mapping->data(), sizeof length);
  if (length > kLargestHeader || length > mapping->size() - sizeof length)
    throw fail(cat("its header says ", length, " bytes, but the file has ", mapping->size()));
  const char* text = mapping->data() + sizeof length;
  const char* numbers = text + length;
  const size_t available = mapping->size() - sizeof length - length;
  TensorFile result;
  result.file = path;
  try {
    const auto header = nlohmann::ordered_json::parse(text, text + length);
    size_t end = 0;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto shape = entry.at("shape").get<std::vector<int64_t>>();
      const auto offsets = entry.at("data_offsets").get<std::array<size_t, 2>>();
      const auto type_text = entry.at("dtype").get<std::string>();
      const auto* type =
          std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& t) { return t.first == type_text; });
      if (type == std::end(kTypes))
        throw fail(cat("tensor '", name, "' has type ", type_text, ", which is not known here"));
      size_t bytes = c10::elementSize(type->second);
      for (int64_t extent : shape) {
        if (extent < 0 || (extent > 0 && bytes > available / static_cast<size_t>(extent)))
          throw fail(cat("tensor '", name, "' has a shape larger than the file"));
        bytes *= static_cast<size_t>(extent);
      }
      if (offsets[1] < offsets[0] || offsets[1] - offsets[0] != bytes)
        throw fail(cat("tensor '", name, "' has ", offsets[1] - offsets[0], " bytes where its shape needs ", bytes));
      if (offsets[1] > available) throw fail(cat("tensor '", name, "' ends at byte ", offsets[1], " of ", available));
      end = std::max(end, offsets[1]);
      // Never written to: the mapping is read-only, and from_blob has no const form.
      void* data = const_cast<char*>(numbers + offsets[0]);
      result.offsets[name] = numbers + offsets[0] - mapping->data();
      result.tensors[name] = at::from_blob(
          data, shape, [mapping](void*) {}, at::TensorOptions(type->second));
    }
    if (end != available) throw fail(cat("its tensors end at byte ", end, " of ", available));
  } catch (const nlohmann::json::exception& error) {
    throw fail(cat("its header cannot be read (", error.what(), ")"));
  }
  return result;
}

namespace {

std::string digest(const void* data, size_t bytes) { return hex_text(XXH3_64bits(data, bytes)); }

}  // namespace

std::string checksum(const std::filesystem::path& file, int64_t begin, int64_t end) {
  const MappedFile mapping(file);
  if (begin < 0 || end < begin || static_cast<size_t>(end) > mapping.size())
    throw UserError(cat(file.string(), " is truncated: it has ", mapping.size(), " bytes and should have ", end));
  return digest(mapping.data() + begin, static_cast<size_t>(end - begin));
}

std::string checksum(const at::Tensor& contiguous) { return digest(contiguous.data_ptr(), contiguous.nbytes()); }

}  // namespace startrail
