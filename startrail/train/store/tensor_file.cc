#include "startrail/train/store/tensor_file.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>

#include "startrail/base/error.h"
#include "startrail/base/file.h"
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
  uint64_t length = 0;
  text.resize((sizeof length + text.size() + kPageBytes - 1) / kPageBytes * kPageBytes - sizeof length, ' ');
  length = text.size();
  const auto begin = static_cast<int64_t>(sizeof length + text.size());
  const WritableFile out(file, WritableFile::Start::empty);
  out.write(&length, sizeof length, 0);
  out.write(text.data(), text.size(), sizeof length);
  out.resize(begin + offset);
  out.flush();
  return begin;
}

void write_at(const std::filesystem::path& file, int64_t offset, const at::Tensor& values) {
  STARTRAIL_CHECK(values.is_contiguous() && values.is_cpu(), "only dense memory can be written");
  const WritableFile out(file, WritableFile::Start::as_it_is);
  out.write(values.data_ptr(), values.nbytes(), offset);
  out.flush();
}

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

std::string checksum(const at::Tensor& contiguous) { return checksum(contiguous.data_ptr(), contiguous.nbytes()); }

}  // namespace startrail
