// Tensors in a safetensors file, as Hugging Face writes them: an 8-byte length, a JSON header, the raw numbers.
// Used for weights, checkpoints and latents. Reading weights maps the file, so a tensor costs memory only when it is
// touched; writing can be shared by ranks that each hold a part.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace startrail {

struct NamedShape {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> shape;
};

// Of memory and of file systems: what hosts write at the same time must not share one.
constexpr int64_t kPageBytes = 4096;

// Makes a file for these tensors, one after the other without gaps, of full size and with the numbers still zero.
// Returns where the numbers begin, a multiple of kPageBytes. UserError when it cannot be written.
int64_t make_tensor_file(const std::filesystem::path& file, const std::vector<NamedShape>& tensors);

// Writes a contiguous tensor's bytes at `offset` of an existing file and flushes them to disk.
void write_at(const std::filesystem::path& file, int64_t offset, const at::Tensor& values);

struct TensorPlace {
  at::ScalarType type;
  std::vector<int64_t> shape;
  int64_t offset;  // where it begins in the file, in bytes
};

// Reads the header only. UserError, naming the file and what is wrong, when it is truncated or not of this format.
std::map<std::string, TensorPlace> list_tensors(const std::filesystem::path& file);

struct TensorFile {
  std::filesystem::path file;
  std::map<std::string, at::Tensor> tensors;  // views of the mapped file: read only, alive as long as any of them is

  // UserError naming the file when it is not there.
  const at::Tensor& at(const std::string& name) const;
};

// UserError as above.
TensorFile read_tensors(const std::filesystem::path& file);

// As file.h's, of its bytes.
std::string checksum(const at::Tensor& contiguous);

}  // namespace startrail
