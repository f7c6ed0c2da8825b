// A DiT as users meet it: training on shapes and on folders, drawing, exporting, and what is refused.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "startrail/base/testing.h"
#include "startrail/train/data/pictures/image_file.h"
#include "startrail/train/data/pictures/shapes.h"
#include "startrail/train/loop/checkpoint.h"
#include "startrail/train/store/tensor_file.h"
#include "tests/command.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class DitCommand : public testing::Test {
 protected:
  // A run of a few steps of a tiny model.
  std::string train(const std::string& data, const std::string& more = "") const {
    return cat("train --set model.preset=dit-tiny --set model.layers=1 --set model.dim=32 --set train.steps=3 ",
               "--set run.folder=", folder_.path("run"), " --set data.path=", data, " ", more);
  }
  static void expect(const Ended& ended, int code, const std::vector<std::string>& parts) {
    EXPECT_EQ(ended.code, code) << ended.text;
    for (const std::string& part : parts)
      EXPECT_NE(ended.text.find(part), std::string::npos) << part << " in\n" << ended.text;
  }
  static void expect(const std::string& command, int code, const std::vector<std::string>& parts) {
    SCOPED_TRACE(command);
    expect(run_command(command), code, parts);
  }
  // `each` shapes of every class as PNG files of `side`.
  std::string pictures(int each, int64_t side) const {
    const PictureShape shape{3, 1, side, side};
    for (int64_t i = 0; i < 4 * each; ++i) {
      const fs::path folder = fs::path(folder_.path("pictures")) / shape_classes()[i % 4];
      fs::create_directories(folder);
      const at::Tensor drawn = draw_shape(1, i, shape, {0, 1, 0, side}).squeeze(1).permute({1, 2, 0});
      write_png(folder / cat(i, ".png"), ((drawn + 1) * 127.5).to(at::kByte).contiguous());
    }
    return folder_.path("pictures");
  }

  TempFolder folder_;
};

TEST_F(DitCommand, TrainsOnShapesDrawsAndGoesOn) {
  const std::string run = folder_.path("run");
  expect(train("shapes", "--set parallel.ranks=4 --set train.ema=0.9 --set train.tokens=128"), 0,
         {"DiT, 1 layers, dim 32", "32 x 32 with 3 channels in patches of 4 x 4, 4 classes, flow", "generated pictures",
          "contiguous", "step 3/3", "mean square", "validation loss", "samples/step-00000003.png"});
  EXPECT_TRUE(fs::exists(run + "/samples/step-00000003.png"));
  expect(cat("train --resume ", run, " --set train.steps=5 --set parallel.ranks=2"), 0, {"from step 3", "step 5/5"});
  expect(cat("train --resume ", run, " --set train.steps=6 --set model.objective=ddpm"), 2,
         {"model.objective = \"ddpm\" is not what", "has, \"flow\": leave it out"});
  expect(cat("train --from ", run, "/checkpoints/latest --set model.objective=ddpm --set data.path=shapes --set ",
             "train.steps=1 --set run.folder=", folder_.path("other")),
         0, {"classes, ddpm"});
  // The same pictures on other ranks, to the last bit but rounding.
  const std::string sample = cat("sample --checkpoint ", run, " --classes 1,-1 --count 2 --steps 4 --seed 5 --out ");
  expect(sample + folder_.path("one.safetensors"), 0, {"4 pictures", "4 steps of Euler, guidance 4"});
  expect(sample + folder_.path("four.safetensors") + " --ranks 4 --grid startrail:2", 0, {"4 pictures"});
  const at::Tensor one = read_tensors(folder_.path("one.safetensors")).at("pictures");
  EXPECT_EQ(one.sizes(), at::IntArrayRef({4, 3, 1, 32, 32}));
  const at::Tensor four = read_tensors(folder_.path("four.safetensors")).at("pictures");
  EXPECT_LT((one - four).norm().item<double>(), 1e-4 * one.norm().item<double>());
  expect(sample + folder_.path("grid.png"), 0, {"grid.png"});
  EXPECT_TRUE(fs::exists(folder_.path("grid.png")));
  expect(cat("export --checkpoint ", run, " --out ", folder_.path("out")), 0,
         {"diffusion_pytorch_model.safetensors", "DiTTransformer2DModel"});
  expect(cat("sample --checkpoint ", folder_.path("out"), " --count 1 --steps 2 --out ", folder_.path("a.png")), 0,
         {"4 pictures"});
  expect(cat("evaluate --checkpoint ", run, " --windows 2"), 0, {"mean square, 2 sequences, the mean of the weights"});
  expect(cat("evaluate --checkpoint ", run, " --windows 2 --last"), 0, {"the last weights"});
  // Another split would train on what was held out.
  expect(cat("train --resume ", run, " --set train.steps=9 --set data.validation=0.5"), 2,
         {"is not what it was at the checkpoint", "data.validation is 0.5 and was 0.05"});
  expect(cat("train --from ", run, "/checkpoints/latest --set model.classes=0 --set data.path=shapes --set run.folder=",
             folder_.path("third")),
         2, {"model.classes = 0 is not what"});
}

TEST_F(DitCommand, TrainsOnFoldersOfPicturesAndLatents) {
  const std::string data = pictures(6, 40);
  expect(train(data, "--set data.fit=resize"), 0,
         {"24 PNG pictures in 4 classes: 0 circle, 1 cross, 2 square, 3 triangle", "4 classes, flow", "step 3/3"});
  // Classes are known by their numbers, so other ones are refused; and changed data is noticed.
  fs::create_directories(folder_.path("others"));
  fs::copy(data + "/square", folder_.path("others/square"));
  fs::copy(data + "/circle", folder_.path("others/oval"));
  expect(cat("evaluate --checkpoint ", folder_.path("run"), " --data ", folder_.path("others")), 2,
         {"the data has the classes oval, square", "was trained on circle, cross, square, triangle"});
  expect(cat("export --checkpoint ", folder_.path("run"), " --out ", folder_.path("exported")), 0, {"config.json"});
  for (const char* from : {"run", "exported"})
    expect(cat("train --from ", folder_.path(from), " --set data.path=", folder_.path("others"),
               " --set run.folder=", folder_.path("fine")),
           2, {"their numbers would mean other things"});
  fs::remove(data + "/cross/1.png");
  expect(cat("evaluate --checkpoint ", folder_.path("run")), 0, {"warning: the data in", "mean square"});
  // Latents of a video, without classes.
  const std::string file = folder_.path("videos/a.safetensors");
  fs::create_directories(folder_.path("videos"));
  const int64_t begin = make_tensor_file(file, {{"x", at::kFloat, {4, 4, 8, 8}}, {"y", at::kFloat, {4, 4, 8, 8}}});
  write_at(file, begin, at::randn({2, 4, 4, 8, 8}));
  fs::remove_all(folder_.path("run"));
  expect(train(folder_.path("videos"),
               "--set model.channels=4 --set model.frames=4 --set model.height=8 --set model.width=8 --set "
               "model.patch_frames=2 --set model.heads=2 --set data.validation=0 --set parallel.ranks=2 --set "
               "model.positions=rotary"),
         0, {"4 x 8 x 8 with 4 channels in patches of 2 x 4 x 4, 0 classes", "step 3/3"});
  expect(cat("sample --checkpoint ", folder_.path("run"), " --out ", folder_.path("x.png")), 2,
         {"latents of 4 channels", ".safetensors"});
  expect(cat("sample --checkpoint ", folder_.path("run"), " --steps 2 --count 1 --out ", folder_.path("x.safetensors")),
         0, {"1 pictures"});
  expect(cat("sample --checkpoint ", folder_.path("run"), " --out ", folder_.path("no/x.safetensors")), 2,
         {"is in no folder that is there: make " + folder_.path("no")});
  EXPECT_FALSE(fs::exists(folder_.path("no")));
  expect(cat("export --checkpoint ", folder_.path("run"), " --out ", folder_.path("out")), 0, {"StarTrail only"});
}

TEST_F(DitCommand, NamesTheBadFileOrGoesOnWithoutIt) {
  const std::string data = pictures(4, 32);
  const fs::path victim = fs::path(data) / "cross" / "1.png";
  fs::resize_file(victim, fs::file_size(victim) / 2);
  expect(train(data, "--set train.batch=16"), 2, {victim.string(), "is damaged or truncated", "data.on_error=skip"});
  fs::remove_all(folder_.path("run"));
  expect(train(data, "--set train.batch=16 --set data.on_error=skip --set parallel.ranks=4"), 0,
         {"step 3/3", "  skipped 1\n", "skipped           1 item that could not be used, listed in",
          "; the first: ", victim.string()});
  std::ifstream list(folder_.path("run/skipped.txt"));
  std::string line;
  std::getline(list, line);
  EXPECT_TRUE(line.starts_with(victim.string() + " is damaged or truncated")) << line;
  fs::remove_all(folder_.path("run"));
  const Ended ended = run_command(train(data, "--set train.batch=16 --set data.on_error=skip --json"));
  EXPECT_EQ(json::parse(ended.text)["skipped"], 1);
  fs::remove_all(folder_.path("run"));
  folder_.write("pictures/square/empty.png", "");
  expect(train(data), 2, {"empty.png"});
  fs::remove(folder_.path("pictures/square/empty.png"));
  fs::create_directory(folder_.path("pictures/wedge"));
  expect(train(data), 2, {"wedge"});
  fs::remove(folder_.path("pictures/wedge"));
  expect(train(data, "--set model.channels=4"), 2,
         {"cannot have 4 channels: set model.channels=3, or 1 for gray ones"});
  expect(train(folder_.path("nowhere")), 2, {"nowhere"});
}

// Also where the damage lies outside of what is cropped to.
TEST_F(DitCommand, FindsDamageBehindTheRowsItReads) {
  write_png(folder_.path("tall.png"), at::randint(256, {400, 32, 3}, at::kByte));
  fs::create_directory(folder_.path("tall"));
  fs::rename(folder_.path("tall.png"), folder_.path("tall/a.png"));
  const std::string file = folder_.path("tall/a.png"), more = "--set data.validation=0";
  expect(train(folder_.path("tall"), more), 0, {"step 3/3"});
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekp(static_cast<int64_t>(fs::file_size(file)) - 400);
  damaged.put('\x55');
  damaged.put('\xaa');
  damaged.close();
  fs::remove_all(folder_.path("run"));
  expect(train(folder_.path("tall"), more), 2, {file, "a checksum is wrong"});
}

TEST_F(DitCommand, GoesOnWhenAllThatIsHeldOutIsDamaged) {
  const std::string data = pictures(2, 32), held = folder_.path("held");
  for (const std::string& name : shape_classes()) folder_.write("held/" + name + "/a.png", "\x89PNG\r\n\x1a\n");
  expect(train(data, cat("--set data.validation_path=", held)), 2, {held});
  fs::copy_file(data + "/circle/0.png", held + "/circle/b.png");
  fs::resize_file(held + "/circle/b.png", fs::file_size(held + "/circle/b.png") - 20);  // found when it is read
  expect(train(data, cat("--set data.on_error=skip --set data.validation_path=", held)), 0,
         {"step 3/3", "skipped           5 items"});
  expect(cat("evaluate --checkpoint ", folder_.path("run")), 2, {"no picture can be read", "circle"});
}

// Each run has its own number of generated shapes, which says nothing about other data.
TEST_F(DitCommand, EvaluatesOnOtherDataAndDrawsClassesByName) {
  expect(train("shapes", "--set data.generated=50"), 0, {"step 3/3"});
  expect(cat("evaluate --checkpoint ", folder_.path("run"), " --data ", pictures(2, 32)), 0, {"mean square"});
  expect(cat("sample --checkpoint ", folder_.path("run"), " --classes square,0 --count 1 --steps 1 --out ",
             folder_.path("a.png")),
         0, {"a row for each of the classes square, circle"});
}

TEST_F(DitCommand, DrawsOnlyClassesThatHadDataUnlessAsked) {
  const std::string sample =
      cat("sample --checkpoint ", folder_.path("run"), " --count 1 --steps 1 --out ", folder_.path("a.png"), " ");
  expect(train("shapes", "--set model.classes=6"), 0, {"6 classes", "samples/step-"});
  const std::string last = cat(find_checkpoint(folder_.path("run")).filename().string(), ".png");
  EXPECT_EQ(open_image(folder_.path("run/samples/" + last), ImageFormat::png)->header().height, 4 * 34 - 2);
  expect(sample, 0, {"4 pictures, a row for each of the classes circle, cross, square, triangle;"});
  expect(sample + "--classes 5,square", 0, {"warning: the model had no data of class 5", "classes 5, square;"});
  expect(sample + "--classes Square", 2,
         {"--classes 'Square' is not known: this model has 0 to 5 (circle, cross, square, triangle), and -1 for none"});
}

TEST_F(DitCommand, DoesNotConfuseNumbersOfClassesWithNames) {
  const fs::path data = pictures(2, 32);
  for (int i = 0; i < 4; ++i) fs::rename(data / shape_classes()[i], data / cat(i + 1));
  expect(train(data.string()), 0, {"0 1, 1 2, 2 3, 3 4"});
  const std::string sample = cat("sample --checkpoint ", folder_.path("run"), " --count 1 --steps 1 --out ",
                                 folder_.path("a.png"), " --classes ");
  expect(sample + "0,1", 2, {"--classes 1 could mean the class of that name, number 0, or number 1, named 2"});
  expect(sample + "1,3", 0, {"classes 1, 3;"});
  expect(sample + "2,-1", 0, {"classes 2, -1;"});
  expect(sample + "0,4", 0, {"classes 1, 4;"});  // neither can mean another
}

// Dark and light pictures, which any classifier tells apart. Four cannot be read, more than the three held out: some
// only the classifier meets.
TEST_F(DitCommand, RecognisesWhatIsDrawnWithoutBadFiles) {
  for (int i = 0; i < 16; ++i) {
    const fs::path file = fs::path(folder_.path("shades")) / (i % 2 ? "light" : "dark") / cat(i, ".png");
    fs::create_directories(file.parent_path());
    write_png(file, at::randint(i % 2 ? 200 : 20, i % 2 ? 240 : 60, {8, 8, 3}, at::kByte));
    if (i < 4) fs::resize_file(file, fs::file_size(file) / 2);
  }
  expect(train(folder_.path("shades"),
               "--set model.height=8 --set model.width=8 --set data.on_error=skip --set data.validation=0.2"),
         0, {"step 3/3"});
  const Ended ended = run_command(cat("evaluate --recognise --json --checkpoint ", folder_.path("run")));
  ASSERT_EQ(ended.code, 0) << ended.text;
  const json result = json::parse(ended.text);
  EXPECT_EQ(result["skipped"], 4);
  EXPECT_EQ(result["classifier_accuracy"], 1.0);
  // Of the same number of drawings each, so that the whole is their mean.
  ASSERT_EQ(result["recognised_by_class"].size(), 2u);
  const double dark = result["recognised_by_class"]["dark"], light = result["recognised_by_class"]["light"];
  EXPECT_NEAR(result["recognised"], (dark + light) / 2, 1e-9);
}

TEST_F(DitCommand, SaysHowToDrawWhatIsSlowToDraw) {
  const std::string run = folder_.path("run"), how = cat("sample --checkpoint ", run, " --out ", run, "/samples.png");
  expect(train("shapes",
               "--set model.height=256 --set model.width=256 --set data.validation=0 --set train.steps=1 --set "
               "train.batch=1"),
         0, {"step 1/1", "draw some with: ", how});
  EXPECT_TRUE(fs::is_empty(run + "/samples"));
  fs::remove_all(run);
  // Nor is anything drawn when a run is stopped.
  const Ended stopped =
      run_process(train("shapes", cat("--set train.steps=100000000 2>&1 & for i in $(seq 300); do [ -s ", run,
                                      "/metrics.jsonl ] && grep -q '\"loss\"' ", run,
                                      "/metrics.jsonl && break; sleep 0.1; done; kill -INT $!; wait $!")));
  expect(stopped, 75, {"stopped at step", "draw some with: ", how, "go on with: "});
  EXPECT_FALSE(fs::exists(run + "/samples"));
}

TEST_F(DitCommand, RefusesWhatIsNotForItsKind) {
  expect(train("shapes", "--set model.vocabulary=300"), 2, {"model.vocabulary is for a GPT"});
  expect(train("shapes", "--set train.tokens=100"), 2, {"must be a multiple of the 64 tokens of a picture"});
  expect(train("shapes", "--set model.height=30"), 2, {"model patch_height 4 must divide height 30"});
  expect(train("shapes", "--set model.classes=2"), 2, {"the data has 4 classes, but the model only 2"});
  expect("train --set data.path=. --set model.classes=3", 2, {"model.classes is for a DiT"});
  expect(train("shapes", "--set model.heads=3"), 2, {"model.heads 3 must divide model.dim 32"});
  expect(train("shapes"), 0, {"step 3/3"});
  const std::string sample = cat("sample --checkpoint ", folder_.path("run"), " ");
  expect(sample + "--prompt hello", 2, {"--prompt is for a GPT", "holds a DiT"});
  expect(sample + "--guidance 1e38", 2, {"the numbers that were drawn are not finite: lower --guidance 1e+38"});
  expect(sample + "--classes 7", 2,
         {"--classes '7' is not known: this model has 0 to 3 (circle, cross,", "), and -1 for none"});
  expect(sample + "--steps 0", 2, {"steps 0 must be 1 to 1000"});
  expect(sample + "--out a.jpg", 2, {"must end in .png"});
  expect(sample + "--count 0", 2, {"--count 0 must be 1 to 1000000"});
  expect(sample + "--ranks 65", 2, {"--ranks 65 must be 1 to 64"});
  expect(sample + "--guidance nan", 2, {"--guidance nan must be a number"});
  expect(train("shapes", "--set model.head_dim=1048576 --set model.heads=1048576 --set model.dim=0 --dry-run"), 2,
         {"is beyond any memory"});
  expect(cat("evaluate --checkpoint ", folder_.path("run"), " --data /nowhere"), 2, {"/nowhere"});
  expect(cat("evaluate --checkpoint ", folder_.path("run"), " --buckets 4"), 2, {"are for a GPT's text"});
  expect(cat("evaluate --checkpoint ", folder_.path("run"), " --guidance 3"), 2, {"for the pictures of --recognise"});
  expect(train("shapes", "--set data.scale=2"), 2, {"data.scale is for latents"});
  expect(train(folder_.path(), "--set data.generated=7"), 2, {"data.generated is for generated shapes"});
  expect(sample + "--seed -1", 2, {"--seed"});
  fs::remove_all(folder_.path("run"));
  expect(train("shapes", "--set data.class_dropout=0"), 0, {"step 3/3"});
  expect(sample + "--guidance 2", 2, {"was never trained without a class"});
  expect(sample + "--classes 0,-1", 2, {"--classes -1 cannot be: this model was never trained without a class"});
  expect(cat("export --checkpoint ", folder_.path("run"), " --out ", folder_.path("exported")), 0, {"config.json"});
  expect(cat("sample --checkpoint ", folder_.path("exported"), " --guidance 2"), 2,
         {"was never trained without a class"});
  expect(sample + "--count 1 --steps 1 --out " + folder_.path("a.png"), 0, {"guidance 1"});
}

}  // namespace
}  // namespace startrail
