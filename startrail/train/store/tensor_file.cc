#include "startrail/train/store/tensor_file.h"

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
#include <tuple>

#include "startrail/base/error.h"
#include "startrail/train/data/tokens/file_pool.h"
#include "startrail/train/store/mapped_file.h"

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

std::map<std::string, TensorPlace> list_tensors(const std::filesystem::path& path) {
  const OpenFile file(path.string());
  const auto size = static_cast<size_t>(file.state().bytes);
  const auto fail = [&](std::string what) {
    for (char& letter : what)
      if (letter < ' ' || letter > '~') letter = '?';  // a header's words may be any bytes
    return UserError(cat(path.string(), " is not a whole safetensors file: ", what));
  };
  const auto read = [&](int64_t offset, void* out, size_t bytes) {
    if (file.read(offset, out, bytes) != bytes) throw fail("it shrank while it was read");
  };
  uint64_t length = 0;
  if (size < sizeof length) throw fail(cat("it has only ", size, " bytes"));
  read(0, &length, sizeof length);
  if (length > kLargestHeader || length > size - sizeof length)
    throw fail(cat("its header says ", length, " bytes, but the file has ", size));
  std::string text(length, '\0');
  read(sizeof length, text.data(), length);
  const size_t begin = sizeof length + length, available = size - begin;
  const auto header = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!header.is_object()) throw fail("its header cannot be read (it is no JSON object)");
  std::map<std::string, TensorPlace> places;
  std::vector<std::tuple<size_t, size_t, std::string>> parts;  // the bytes of each tensor that has some, and its name
  size_t end = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    std::vector<int64_t> shape;
    std::array<size_t, 2> offsets{};
    std::string type_text;
    try {
      for (const char* key : {"shape", "data_offsets"})
        for (const auto& number : entry.at(key))
          if (!number.is_number_integer())  // would be rounded
            throw fail(cat("tensor '", name, "' has other than whole numbers as its ", key));
      entry.at("shape").get_to(shape);
      entry.at("data_offsets").get_to(offsets);
      entry.at("dtype").get_to(type_text);
    } catch (const nlohmann::json::exception&) {
      throw fail(cat("its header cannot be read (tensor '", name, "' needs a dtype, a shape and two data_offsets)"));
    }
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
    if (bytes > 0) parts.emplace_back(offsets[0], offsets[1], name);
    places[name] = {type->second, shape, static_cast<int64_t>(begin + offsets[0])};
  }
  if (end != available) throw fail(cat("its tensors end at byte ", end, " of ", available));
  std::sort(parts.begin(), parts.end());
  for (size_t i = 1; i < parts.size(); ++i)
    if (std::get<0>(parts[i]) < std::get<1>(parts[i - 1]))
      throw fail(cat("tensors '", std::get<2>(parts[i - 1]), "' and '", std::get<2>(parts[i]), "' overlap"));
  return places;
}

TensorFile read_tensors(const std::filesystem::path& path) {
  TensorFile result{path, {}};
  const auto places = list_tensors(path);
  const auto mapping = std::make_shared<MappedFile>(path);
  for (const auto& [name, place] : places) {
    // Never written to: the mapping is read-only, and from_blob has no const form.
    void* data = const_cast<char*>(mapping->data() + place.offset);
    const at::Tensor tensor = at::from_blob(
        data, place.shape, [mapping](void*) {}, at::TensorOptions(place.type));
    if (static_cast<size_t>(place.offset) + tensor.nbytes() > mapping->size())
      throw UserError(cat(path.string(), " shrank while it was opened: restore it"));
    result.tensors[name] = tensor;
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
