#include "startrail/train/store/tensor_file.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "startrail/base/file.h"
#include "startrail/base/testing.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A file of this header and this many zeros; its length field says `length`, or the truth.
std::string raw(const std::string& header, size_t numbers, std::optional<uint64_t> length = {}) {
  const uint64_t size = length.value_or(header.size());
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + std::string(numbers, '\0');
}

// One tensor 'w' as a header has it.
std::string entry(const std::string& type, const std::string& shape, const std::string& offsets) {
  return R"({"w": {"dtype": ")" + type + R"(", "shape": )" + shape + R"(, "data_offsets": )" + offsets + "}}";
}

// What is wrong with a file of this content, without the words that every such message starts with.
std::string refusal(const std::string& content) {
  const TempFolder folder;
  const std::string file = folder.write("a.safetensors", content);
  const std::string start = file + " is not a whole safetensors file: ";
  const std::string error = error_of([&] { read_tensors(file); });
  return error.starts_with(start) ? error.substr(start.size()) : error;
}

TEST(TensorFile, ReadsBackEveryTypeAndShape) {
  const TempFolder folder;
  const fs::path file = folder.path("a.safetensors");
  const std::vector<std::pair<std::string, at::Tensor>> tensors = {
      {"double", at::arange(6, at::kDouble).view({2, 3}) / 7},
      {"float", at::arange(24, at::kFloat).view({2, 3, 4}) / 3},
      {"half", at::arange(5, at::kHalf)},
      {"bfloat16", at::arange(4, at::kBFloat16).view({2, 2}) - 1},
      {"scalar", at::full({}, 2.5, at::kFloat)},
      {"empty", at::empty({0}, at::kFloat)},
      {"empty matrix", at::empty({3, 0}, at::kLong)},
      {"long", at::tensor({int64_t{1} << 40, int64_t{-2}}, at::kLong)},
      {"int", at::tensor({-5, 6}, at::kInt)},
      {"short", at::tensor({-7, 8, 9}, at::kShort)},
      {"char", at::tensor({-1, 2, 3}, at::kChar)},
      {"byte", at::tensor({255, 1}, at::kByte)},
      {"bool", at::tensor({1, 0, 1}, at::kInt).to(at::kBool)},
  };
  std::vector<NamedShape> shapes;
  for (const auto& [name, tensor] : tensors) shapes.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  int64_t offset = make_tensor_file(file, shapes);
  for (const auto& [name, tensor] : tensors) {
    write_at(file, offset, tensor);
    offset += static_cast<int64_t>(tensor.nbytes());
  }
  EXPECT_EQ(static_cast<int64_t>(fs::file_size(file)), offset);
  const TensorFile read = read_tensors(file);
  EXPECT_EQ(read.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(read.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(read.at(name), tensor)) << name << " " << read.at(name);
  }
}

TEST(TensorFile, BeginsTheNumbersAtAMultipleOf8AndWithZeros) {
  const TempFolder folder;
  const fs::path file = folder.path("a.safetensors");
  for (size_t length = 1; length <= 9; ++length) {  // every remainder of the header's own size
    const std::string name(length, 'x');
    const int64_t begin = make_tensor_file(file, {{name, at::kFloat, {3}}});
    EXPECT_EQ(begin % 8, 0) << length;
    const std::string bytes = bytes_of(file);
    ASSERT_EQ(static_cast<int64_t>(bytes.size()), begin + 12);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    EXPECT_EQ(static_cast<int64_t>(header + sizeof header), begin);
    const auto json = nlohmann::json::parse(bytes.substr(sizeof header, header));
    EXPECT_EQ(json.at(name), (nlohmann::json{{"dtype", "F32"}, {"shape", {3}}, {"data_offsets", {0, 12}}}));
    EXPECT_EQ(json.at("__metadata__").at("format"), "pt");  // without it transformers refuses a file
    EXPECT_EQ(bytes.substr(static_cast<size_t>(begin)), std::string(12, '\0'));
  }
}

TEST(TensorFile, TakesPartsFromRanksInAnyOrder) {
  const TempFolder folder;
  const fs::path file = folder.path("a.safetensors");
  const at::Tensor row = at::arange(100, at::kFloat);
  const int64_t begin = make_tensor_file(file, {{"a", at::kFloat, {30}}, {"b", at::kFloat, {7, 10}}});
  for (int64_t rank : {2, 0, 3, 1})  // rank 1's part crosses from a to b
    write_at(file, begin + rank * 25 * 4, row.narrow(0, rank * 25, 25));
  const TensorFile read = read_tensors(file);
  EXPECT_TRUE(at::equal(read.at("a"), row.narrow(0, 0, 30)));
  EXPECT_TRUE(at::equal(read.at("b"), row.narrow(0, 30, 70).view({7, 10})));
}

TEST(TensorFile, KeepsTheMappingAsLongAsATensorLives) {
  const TempFolder folder;
  const fs::path file = folder.path("a.safetensors");
  const at::Tensor values = at::arange(5000, at::kFloat);
  write_at(file, make_tensor_file(file, {{"w", at::kFloat, {5000}}}), values);
  const at::Tensor kept = read_tensors(file).at("w");
  fs::remove(file);
  EXPECT_TRUE(at::equal(kept, values));
}

TEST(TensorFile, ReplacesALongerFile) {
  const TempFolder folder;
  const std::string file = folder.write("a.safetensors", std::string(10000, 'x'));
  make_tensor_file(file, {{"w", at::kFloat, {2}}});
  EXPECT_TRUE(at::equal(read_tensors(file).at("w"), at::zeros({2})));
}

TEST(TensorFile, NamesATensorThatIsNotThere) {
  const TempFolder folder;
  const fs::path file = folder.path("a.safetensors");
  make_tensor_file(file, {{"w", at::kFloat, {2}}});
  EXPECT_EQ(error_of([&] { read_tensors(file).at("v"); }), file.string() + " has no tensor 'v'");
}

TEST(TensorFile, RefusesPathsThatCannotBeOpened) {
  const TempFolder folder;
  const std::string none = folder.path("none"), inside = folder.path("no/such/folder");
  EXPECT_EQ(error_of([&] { read_tensors(none); }), none + " cannot be opened: No such file or directory");
  EXPECT_EQ(error_of([&] { checksum(none, 0, 0); }), none + " cannot be opened: No such file or directory");
  EXPECT_EQ(error_of([&] { write_at(none, 0, at::zeros({1})); }),
            none + " cannot be opened: No such file or directory");
  EXPECT_FALSE(fs::exists(none));  // write_at makes no file
  EXPECT_EQ(error_of([&] { make_tensor_file(inside, {}); }), inside + " cannot be opened: No such file or directory");
  EXPECT_EQ(error_of([&] { write_text(inside, "x"); }), inside + " cannot be opened: No such file or directory");
}

TEST(TensorFile, RefusesAFileCutAnywhere) {
  const TempFolder folder;
  const std::string file = folder.path("a.safetensors");
  make_tensor_file(file, {{"v", at::kFloat, {3}}, {"w", at::kFloat, {2}}});
  const std::string whole = bytes_of(file);
  EXPECT_EQ(refusal(whole), "no error");
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(refusal(whole.substr(0, size)), "no error") << size;
  EXPECT_EQ(refusal(whole.substr(0, whole.size() - 1)), "tensor 'w' ends at byte 20 of 19");
  EXPECT_EQ(refusal(whole + "x"), "its tensors end at byte 20 of 21");
}

TEST(TensorFile, RefusesBrokenHeaders) {
  EXPECT_EQ(refusal(""), "it has only 0 bytes");
  EXPECT_EQ(refusal("abc"), "it has only 3 bytes");
  EXPECT_EQ(refusal(raw("{}", 0, 3)), "its header says 3 bytes, but the file has 10");
  EXPECT_EQ(refusal(raw("{}", 0, ~uint64_t{0})), "its header says 18446744073709551615 bytes, but the file has 10");
  for (const char* garbage : {"", "garbage!", "{\"w\": ", "[1]", "7", R"({"w": 1})", R"({"w": {"dtype": "F32"}})",
                              R"({"w": {"dtype": 3, "shape": [], "data_offsets": [0, 4]}})"})
    EXPECT_TRUE(refusal(raw(garbage, 4)).starts_with("its header cannot be read (")) << refusal(raw(garbage, 4));
  // What is shown is printable, whatever the bytes are.
  EXPECT_EQ(refusal(raw("\x80\xff{\x1b[31m", 4)), "its header cannot be read (it is no JSON object)");
  EXPECT_EQ(refusal(raw("{\"w\\u001bx\u00e9y\": 1}", 4)),
            "its header cannot be read (tensor 'w?x??y' needs a dtype, a shape and two data_offsets)");
}

TEST(TensorFile, RefusesTensorsThatDisagreeWithTheirBytes) {
  EXPECT_EQ(refusal(raw(entry("F32", "[2]", "[0, 8]"), 8)), "no error");
  EXPECT_EQ(refusal(raw(entry("F8_E4M3", "[8]", "[0, 8]"), 8)), "tensor 'w' has type F8_E4M3, which is not known here");
  EXPECT_EQ(refusal(raw(entry("F32", "[2]", "[0, 4]"), 8)), "tensor 'w' has 4 bytes where its shape needs 8");
  EXPECT_EQ(refusal(raw(entry("F32", "[2]", "[4, 12]"), 8)), "tensor 'w' ends at byte 12 of 8");
  EXPECT_NE(refusal(raw(entry("F32", "[2]", "[8, 0]"), 8)).find("where its shape needs 8"), std::string::npos);
  EXPECT_NE(refusal(raw(entry("F32", "[2]", "[0]"), 8)).find("its header cannot be read"), std::string::npos);
  for (const char* shape : {"[2.7]", "[2.0]", "[true, 2]", "[2, null]"})
    EXPECT_EQ(refusal(raw(entry("F32", shape, "[0, 8]"), 8)), "tensor 'w' has other than whole numbers as its shape");
  EXPECT_EQ(refusal(raw(entry("F32", "[2]", "[0, 8.5]"), 8)),
            "tensor 'w' has other than whole numbers as its data_offsets");
  // Shapes whose sizes overflow to the right number of bytes.
  for (const char* shape : {"[-2]", "[-1, -2]", "[3]", "[4294967296, 4294967296, 2]", "[2, 4611686018427387905]"})
    EXPECT_EQ(refusal(raw(entry("F32", shape, "[0, 8]"), 8)), "tensor 'w' has a shape larger than the file") << shape;
}

TEST(TensorFile, RefusesTensorsThatOverlap) {
  const auto two = [](const char* first, const char* second) {
    return raw(cat(R"({"v": {"dtype": "F32", "shape": [2], "data_offsets": )", first,
                   R"(}, "e": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4])",
                   R"(}, "w": {"dtype": "F32", "shape": [2], "data_offsets": )", second, "}}"),
               16);
  };
  EXPECT_EQ(refusal(two("[0, 8]", "[8, 16]")), "no error");  // 'e' has no bytes, so it may lie anywhere
  EXPECT_EQ(refusal(two("[8, 16]", "[0, 8]")), "no error");
  EXPECT_EQ(refusal(two("[4, 12]", "[8, 16]")), "tensors 'v' and 'w' overlap");
  EXPECT_EQ(refusal(two("[8, 16]", "[8, 16]")), "tensors 'v' and 'w' overlap");
}

TEST(TensorFile, ChecksumsAreThoseOfTheBytes) {
  const TempFolder folder;
  const fs::path file = folder.path("a.safetensors");
  at::Tensor values = at::arange(1000, at::kFloat);
  const int64_t begin = make_tensor_file(file, {{"w", at::kFloat, {1000}}});
  write_at(file, begin, values);
  const auto in_file = [&] { return checksum(file, begin, begin + 4000); };
  const std::string before = checksum(values);
  EXPECT_EQ(before.size(), 16u);
  EXPECT_EQ(in_file(), before);
  EXPECT_EQ(checksum(file, begin + 400, begin + 1200), checksum(values.narrow(0, 100, 200)));
  EXPECT_NE(checksum(file, begin, begin + 3999), before);
  write_at(file, begin + 2345, at::full({1}, 77, at::kByte));
  EXPECT_NE(in_file(), before);
  values.view(at::kByte)[2345] = 77;
  EXPECT_EQ(in_file(), checksum(values));
  EXPECT_EQ(error_of([&] { checksum(file, begin, begin + 4001); }),
            cat(file.string(), " is truncated: it has ", begin + 4000, " bytes and should have ", begin + 4001));
}

}  // namespace
}  // namespace startrail
