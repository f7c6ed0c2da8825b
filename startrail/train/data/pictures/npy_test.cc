#include "startrail/train/data/pictures/npy.h"

#include <gtest/gtest.h>

#include "startrail/base/testing.h"
#include "startrail/train/data/pictures/picture_testing.h"

namespace startrail {
namespace {

const std::string kNumbers(24, '\0');

NpyHeader parse(const std::string& bytes) { return parse_npy(bytes, bytes.size(), "x.npy"); }

std::string refusal(const std::string& bytes) {
  return error_of([&] { parse(bytes); });
}

TEST(Npy, ReadsVersionsAndTypes) {
  for (const int version : {1, 2, 3})
    for (const auto& [name, type, bytes] :
         {std::tuple{"<f2", at::kHalf, 2}, {"<f4", at::kFloat, 4}, {"<f8", at::kDouble, 8}}) {
      const std::string file =
          npy_bytes(npy_dictionary(name, "(2, 1, 3)"), std::string(static_cast<size_t>(6 * bytes), '\0'), version);
      const NpyHeader header = parse(file);
      EXPECT_EQ(header.type, type);
      EXPECT_EQ(header.shape, (std::vector<int64_t>{2, 1, 3}));
      EXPECT_EQ(header.offset, static_cast<int64_t>(file.size()) - 6 * bytes);
    }
}

TEST(Npy, ReadsDictionariesInOtherClothes) {
  for (const std::string dictionary : {"{\"shape\":(6,),\"fortran_order\":False,\"descr\":\"<f4\"}",
                                       "{'descr':'<f4','shape':(6,),'fortran_order':False,}",
                                       "  { 'fortran_order' : False , 'descr' : '<f4' , 'shape' : ( 6 , ) , } "})
    EXPECT_EQ(parse(npy_bytes(dictionary, kNumbers)).shape, std::vector<int64_t>{6}) << dictionary;
  EXPECT_EQ(parse(npy_bytes(npy_dictionary("<f4", "()"), "1234")).shape, std::vector<int64_t>{});
}

TEST(Npy, RefusesWhatItDoesNotRead) {
  EXPECT_EQ(refusal(""), "x.npy is empty: replace or remove it");
  EXPECT_EQ(refusal("PK\x03\x04"), "x.npy is not a .npy file despite its name: replace or remove it");
  EXPECT_EQ(refusal("\x93NUMPY\x01"), "x.npy is truncated: it has only 7 bytes");
  EXPECT_EQ(refusal(npy_bytes("{}", kNumbers, 4)), "x.npy has version 4 of the .npy format: versions 1 to 3 are read");
  EXPECT_EQ(refusal(npy_bytes(npy_dictionary("<f4", "(6,)", "True"), kNumbers)),
            "x.npy is in Fortran order: save numpy.ascontiguousarray of it");
  for (const std::string type : {">f4", "<i4", "|u1", "<c8", "|O"})
    EXPECT_EQ(refusal(npy_bytes(npy_dictionary(type, "(6,)"), kNumbers)),
              "x.npy holds numbers of type " + type + ": latents are <f2, <f4 or <f8");
  EXPECT_EQ(refusal(npy_bytes(npy_dictionary("<f4", "(0, 3)"), "")),
            "x.npy has the empty shape (0, 3): replace or remove it");
  EXPECT_EQ(refusal(npy_bytes(npy_dictionary("<f4", "(7,)"), kNumbers)),
            "x.npy is truncated: its shape (7) does not fit into 24 bytes");
  EXPECT_EQ(refusal(npy_bytes(npy_dictionary("<f4", "(5,)"), kNumbers)),
            "x.npy has 24 bytes of numbers where its shape needs 20");
  EXPECT_EQ(refusal(npy_bytes(npy_dictionary("<f4", "(4294967296, 4294967296, 4294967296)"), kNumbers)),
            "x.npy is truncated: its shape (4294967296, 4294967296, 4294967296) does not fit into 24 bytes");
  for (const std::string dictionary :
       {"{}", "{'descr': '<f4'}", "('descr',)", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-6,)}", "{'descr': '<f4", "{'descr': '<f4' 'shape': (6,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} more",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (6,)}"})
    EXPECT_EQ(refusal(npy_bytes(dictionary, kNumbers)), "x.npy has a header that cannot be read: replace or remove it")
        << dictionary;
}

TEST(Npy, NeedsOnlyTheStartOfAFile) {
  const std::string dictionary = npy_dictionary("<f4", "(6,)"), file = npy_bytes(dictionary, kNumbers);
  const std::string start = file.substr(0, file.size() - kNumbers.size());
  EXPECT_EQ(parse_npy(start, file.size(), "x.npy").shape, std::vector<int64_t>{6});
  EXPECT_EQ(error_of([&] { parse_npy(start.substr(0, 40), file.size(), "x.npy"); }),
            "x.npy is truncated: its header says 118 bytes, but the file has 152");
  EXPECT_EQ(refusal(npy_bytes(dictionary + std::string(20'000, ' '), kNumbers)),
            "x.npy has a header of 20086 bytes: up to 10000 are read; save it again with numpy.save");
}

TEST(Npy, RefusesEveryTruncation) {
  for (const int version : {1, 2}) {
    const std::string file = npy_bytes(npy_dictionary("<f4", "(6,)"), kNumbers, version);
    EXPECT_EQ(refusal(file), "no error");
    for (size_t length = 0; length < file.size(); ++length)
      EXPECT_NE(refusal(file.substr(0, length)), "no error") << length;
    for (size_t place = 0; place < file.size(); ++place)
      for (int bit = 0; bit < 8; ++bit) {  // no harm
        std::string damaged = file;
        damaged[place] ^= static_cast<char>(1 << bit);
        refusal(damaged);
      }
  }
}

}  // namespace
}  // namespace startrail
