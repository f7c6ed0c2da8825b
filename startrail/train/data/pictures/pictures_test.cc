#include "startrail/train/data/pictures/pictures.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "startrail/base/testing.h"
#include "startrail/base/threads.h"
#include "startrail/train/data/pictures/picture_testing.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

PicturesOptions options_for(const std::string& path, const PictureShape& shape = {3, 1, 8, 8}) {
  PicturesOptions options;
  options.path = path;
  options.shape = shape;
  return options;
}

at::Tensor read(const Pictures& set, int64_t index, const PictureShape& shape) {
  return set.read(index, {0, shape.frames, 0, shape.height});
}

std::string refusal(const PicturesOptions& options) {
  return without_advice(error_of([&] { open_pictures(options); }));
}

std::string png(const TempFolder& folder, const std::string& name, const TestPng& test = {}) {
  const std::string file = folder.path(name);
  fs::create_directories(fs::path(file).parent_path());
  write_test_png(file, test);
  return file;
}

std::string jpeg(const TempFolder& folder, const std::string& name, const TestJpeg& test = {}) {
  const std::string file = folder.path(name);
  fs::create_directories(fs::path(file).parent_path());
  write_test_jpeg(file, test);
  return file;
}

std::vector<std::string> names(const Pictures& set, const TempFolder& folder) {
  std::vector<std::string> all;
  for (int64_t i = 0; i < set.count(); ++i)
    all.push_back(
        cat(set.name(i).substr(folder.path().size() + 1), " ", set.classes()[static_cast<size_t>(set.label(i))]));
  return all;
}

TEST(Pictures, SubfoldersAreClasses) {
  const TempFolder folder;
  png(folder, "dog/b.PNG");
  jpeg(folder, "dog/a.JPeG");
  png(folder, "cat/deep/er/z.png");
  jpeg(folder, "cat/x.jpg");
  png(folder, "cat-fish/x.png");  // sorts before cat/ as text, but not as a class
  png(folder, "cat/.hidden.png");
  png(folder, "cat/.trash/a.png");
  png(folder, ".thumbnails/a.png");
  folder.write("labels.txt", "x");
  folder.write("dog/notes.gif", "x");
  const auto set = open_pictures(options_for(folder.path()));
  EXPECT_EQ(set->classes(), (std::vector<std::string>{"cat", "cat-fish", "dog"}));
  EXPECT_EQ(names(*set, folder),
            (std::vector<std::string>{"cat/deep/er/z.png cat", "cat/x.jpg cat", "cat-fish/x.png cat-fish",
                                      "dog/a.JPeG dog", "dog/b.PNG dog"}));
  EXPECT_EQ(set->describe(), "3 PNG and 2 JPEG pictures in 3 classes (1 .gif, 1 .txt left out)");
  EXPECT_TRUE(set->skipped().empty());
}

TEST(Pictures, WithoutSubfoldersThereIsOneClass) {
  const TempFolder folder;
  png(folder, "b.png");
  png(folder, "a.png");
  const auto set = open_pictures(options_for(folder.path()));
  EXPECT_EQ(names(*set, folder), (std::vector<std::string>{"a.png all", "b.png all"}));
  EXPECT_EQ(set->describe(), "2 PNG pictures in 1 class");
}

TEST(Pictures, FollowsLinksToClassesAndFiles) {
  const TempFolder folder, elsewhere;
  png(elsewhere, "set/cat/a.png");
  fs::create_directory_symlink(elsewhere.path("set/cat"), folder.path("cat"));
  fs::create_directories(folder.path("dog"));
  fs::create_symlink(elsewhere.path("set/cat/a.png"), folder.path("dog/b.png"));
  fs::create_directory_symlink(folder.path(), folder.path("dog/loop"));
  const auto set = open_pictures(options_for(folder.path()));
  EXPECT_EQ(names(*set, folder), (std::vector<std::string>{"cat/a.png cat", "dog/b.png dog"}));
  EXPECT_EQ(set->describe(), "2 PNG pictures in 2 classes (1 linked folder left out)");
  read(*set, 0, {3, 1, 8, 8});
}

TEST(Pictures, DoesNotFollowLinksToWhatTheyLieIn) {
  const TempFolder folder;
  png(folder, "set/cat/a.png");
  fs::create_directory_symlink(".", folder.path("set/again"));
  fs::create_directory_symlink("..", folder.path("set/up"));
  PicturesOptions options = options_for(folder.path("set"));
  const std::string what = " is a link to a folder that it lies in, all of which would be a class: remove it";
  EXPECT_EQ(refusal(options), folder.path("set/again") + what + " (and 1 more problem)");
  options.skip_bad = true;
  const auto set = open_pictures(options);
  EXPECT_EQ(names(*set, folder), (std::vector<std::string>{"set/cat/a.png cat"}));
  EXPECT_EQ(set->classes(), std::vector<std::string>{"cat"});
  EXPECT_EQ(set->skipped(), (std::vector<std::string>{folder.path("set/again") + what, folder.path("set/up") + what}));
}

TEST(Pictures, LinksThatLeadNowhereAreBadFiles) {
  const TempFolder folder;
  png(folder, "cat/a.png");
  fs::create_symlink("x.png", folder.path("cat/x.png"));
  fs::create_symlink("loop", folder.path("cat/loop"));
  fs::create_symlink("gone", folder.path("dog"));
  PicturesOptions options = options_for(folder.path());
  const std::string gone = folder.path("dog") + " cannot be read: No such file or directory: repair or remove it";
  EXPECT_EQ(refusal(options), gone + " (and 1 more problem)");
  options.skip_bad = true;
  const auto set = open_pictures(options);
  EXPECT_EQ(names(*set, folder), (std::vector<std::string>{"cat/a.png cat"}));
  const std::string endless = ": Too many levels of symbolic links";
  EXPECT_EQ(set->skipped(), (std::vector<std::string>{
                                gone, folder.path("cat/loop") + " cannot be read" + endless + ": repair or remove it",
                                folder.path("cat/x.png") + " cannot be opened" + endless}));
}

// root may read everything, and is another user meanwhile.
struct Nobody {
  const bool was_root = geteuid() == 0;
  Nobody() { STARTRAIL_CHECK(!was_root || seteuid(65'534) == 0, "seteuid"); }
  ~Nobody() { EXPECT_TRUE(!was_root || seteuid(0) == 0); }
};

TEST(Pictures, NamesFoldersThatMayNotBeRead) {
  const TempFolder folder;
  png(folder, "cat/a.png");
  png(folder, "cat/deep/b.png");
  png(folder, "dog/c.png");
  constexpr auto kReadable = fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read;
  constexpr auto kAll = kReadable | fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec;
  fs::permissions(folder.path(), kAll);
  fs::permissions(folder.path("cat/deep"), fs::perms::none);
  fs::permissions(folder.path("dog"), kReadable);  // what is in it can be listed, but not opened
  PicturesOptions options = options_for(folder.path());
  const std::string what = " cannot be read: Permission denied: repair or remove it";
  const std::string deep = cat("picture folder ", folder.path("cat/deep"), what);
  {
    const Nobody nobody;
    EXPECT_EQ(refusal(options), deep + " (and 1 more problem)");
    options.skip_bad = true;
    const auto set = open_pictures(options);
    EXPECT_EQ(names(*set, folder), (std::vector<std::string>{"cat/a.png cat"}));
    EXPECT_EQ(set->classes(), (std::vector<std::string>{"cat", "dog"}));
    EXPECT_EQ(set->skipped(), (std::vector<std::string>{deep, cat("picture folder ", folder.path("dog"), what)}));
  }
  fs::permissions(folder.path("cat/deep"), kAll);  // so that it can be removed
  fs::permissions(folder.path("dog"), kAll);
}

TEST(Pictures, SaysWhatItLeftOut) {
  const TempFolder folder;
  for (const char* name : {"a/1.webp", "a/2.WEBP", "b/3.webp", "a/4.gif", "labels", "b/1.txt", "b/2.txt", "b/1.x",
                           "b/2.y", ".DS_Store", "a/Thumbs.db", "a/.hidden.webp"})
    folder.write(name, "x");
  EXPECT_EQ(refusal(options_for(folder.path())),
            "picture folder " + folder.path() +
                " has no pictures (3 .webp, 2 .txt, 1 .gif, 1 .x, 2 of other kinds left out): give one with .png, "
                ".jpg, .jpeg, .npy or .safetensors files");
  png(folder, "a/a.png");
  png(folder, "b/b.png");
  ASSERT_EQ(mkfifo(folder.path("b/pipe.png").c_str(), 0600), 0);
  EXPECT_EQ(open_pictures(options_for(folder.path()))->describe(),
            "2 PNG pictures in 2 classes (3 .webp, 2 .txt, 1 .gif, 1 .x, 2 of other kinds, 1 special file left out)");
}

TEST(Pictures, LeavesOutWhatTrainingWrote) {
  const TempFolder folder;
  png(folder, "cat/a.png");
  png(folder, "runs/now/sample.png");
  PicturesOptions options = options_for(folder.path());
  EXPECT_EQ(open_pictures(options)->count(), 2);
  options.without = folder.path("runs/now/");
  EXPECT_EQ(names(*open_pictures(options), folder), (std::vector<std::string>{"cat/a.png cat"}));
  options.without = folder.path("runs");
  EXPECT_EQ(names(*open_pictures(options), folder), (std::vector<std::string>{"cat/a.png cat"}));
  options.without = folder.path("not there");
  EXPECT_EQ(open_pictures(options)->count(), 2);
  options.without = "";
  folder.write("runs/now/training.json", "{}");
  EXPECT_EQ(open_pictures(options)->describe(), "1 PNG picture in 1 class (1 run or model left out)");
  png(folder, "cat.png");
  fs::remove_all(folder.path("cat"));
  EXPECT_EQ(open_pictures(options)->classes(), std::vector<std::string>{"all"});
}

TEST(Pictures, ColoursAreFromMinusOneToOne) {
  const TempFolder folder;
  const PictureShape shape{3, 1, 11, 13};
  png(folder, "a.png");
  png(folder, "b.png", {.colours = PNG_COLOR_TYPE_GRAY});
  const auto set = open_pictures(options_for(folder.path(), shape));
  const at::Tensor colours = read(*set, 0, shape), gray = read(*set, 1, shape);
  ASSERT_EQ(colours.sizes(), (std::vector<int64_t>{3, 1, 11, 13}));
  ASSERT_EQ(colours.scalar_type(), at::kFloat);
  for (int y = 0; y < 11; ++y)
    for (int x = 0; x < 13; ++x)
      for (int channel = 0; channel < 3; ++channel) {
        EXPECT_FLOAT_EQ(colours[channel][0][y][x].item<float>(), TestPng{}.sample(x, y, channel) / 127.5f - 1);
        EXPECT_FLOAT_EQ(gray[channel][0][y][x].item<float>(), TestPng{}.sample(x, y, 0) / 127.5f - 1);
      }
}

TEST(Pictures, GrayOnesMayHaveOneChannel) {
  const TempFolder folder;
  const PictureShape shape{1, 1, 11, 13};
  png(folder, "a.png", {.depth = 16, .colours = PNG_COLOR_TYPE_GRAY});
  jpeg(folder, "b.jpg", {.colours = JCS_GRAYSCALE, .stored = JCS_GRAYSCALE});
  const auto set = open_pictures(options_for(folder.path(), shape));
  EXPECT_EQ(read(*set, 0, shape).sizes(), (std::vector<int64_t>{1, 1, 11, 13}));
  EXPECT_EQ(read(*set, 1, shape).sizes(), (std::vector<int64_t>{1, 1, 11, 13}));
}

// The heart of splitting pictures over ranks: for every kind of file, both fits, shrinking and growing.
TEST(Pictures, ABandIsExactlyAPartOfTheWhole) {
  const TempFolder folder;
  png(folder, "a.png");
  png(folder, "b.png", {.width = 40, .height = 33, .interlaced = true});
  png(folder, "c.png", {.width = 50, .height = 20, .depth = 4, .colours = PNG_COLOR_TYPE_PALETTE});
  png(folder, "d.png", {.width = 9, .height = 70, .depth = 16, .colours = PNG_COLOR_TYPE_GRAY});
  jpeg(folder, "e.jpg", {.across = 2, .down = 2, .quality = 40});
  jpeg(folder, "f.jpg", {.width = 70, .height = 90, .across = 2, .progressive = true, .quality = 40});
  jpeg(folder, "g.jpg", {.colours = JCS_GRAYSCALE, .stored = JCS_GRAYSCALE, .quality = 40});
  for (const PictureShape& shape : {PictureShape{3, 1, 8, 8}, {3, 1, 43, 37}, {3, 1, 30, 51}, {3, 1, 64, 16}})
    for (const std::string fit : {"crop", "resize"}) {
      PicturesOptions options = options_for(folder.path(), shape);
      options.fit = fit;
      const auto set = open_pictures(options);
      for (int64_t index = 0; index < set->count(); ++index) {
        const at::Tensor whole = read(*set, index, shape);
        EXPECT_LE(whole.abs().max().item<float>(), 1);
        EXPECT_GT(whole.std().item<float>(), 0.01f) << set->name(index);
        for (const int64_t rows : {int64_t{1}, int64_t{5}, shape.height})
          for (int64_t first = 0; first < shape.height; first += rows) {
            const int64_t end = std::min(first + rows, shape.height);
            ASSERT_TRUE(at::equal(set->read(index, {0, 1, first, end}), whole.slice(2, first, end)))
                << set->name(index) << " " << fit << " rows " << first << " to " << end << " of " << shape.height;
          }
        EXPECT_EQ(set->read(index, {0, 1, 3, 3}).sizes(), (std::vector<int64_t>{3, 1, 0, shape.width}));
      }
    }
}

// Against the definition: in each direction the triangle filter over all pixels of the whole picture.
at::Tensor filter_matrix(int64_t from, double ratio, int64_t first, int64_t to) {
  const at::Tensor centres = (at::arange(first, first + to, at::kDouble) + 0.5) * ratio;
  const at::Tensor places = at::arange(from, at::kDouble) + 0.5;
  const at::Tensor weights = (1 - (places - centres.unsqueeze(1)).abs() / std::max(ratio, 1.0)).clamp_min(0);
  return weights / weights.sum(1, true);
}

TEST(Pictures, FitAsTheOptionSays) {
  const TempFolder folder;
  const TestPng test{.width = 60, .height = 40};
  png(folder, "a.png", test);
  const auto file = open_image(folder.path("a.png"), ImageFormat::png);
  at::Tensor pixels = at::empty({40, 60, 3}, at::kByte);
  for (int64_t row = 0; row < 40; ++row) std::memcpy(pixels[row].mutable_data_ptr(), file->read(row), 180);
  pixels = pixels.permute({2, 0, 1}).to(at::kDouble) / 127.5 - 1;
  for (const int64_t side : {16, 64}) {
    PicturesOptions options = options_for(folder.path(), {3, 1, side, side});
    const auto check = [&](const at::Tensor& down, const at::Tensor& across) {
      const at::Tensor expected = at::matmul(at::matmul(down, pixels), across.t());
      const at::Tensor got = read(*open_pictures(options), 0, options.shape).squeeze(1).to(at::kDouble);
      EXPECT_LT((got - expected).abs().max().item<double>(), 1e-5) << options.fit << " " << side;
    };
    const auto s = static_cast<double>(side);
    const int64_t first = (side * 60 / 40 - side) / 2;  // of the scaled picture's columns
    check(filter_matrix(40, 40 / s, 0, side), filter_matrix(60, 40 / s, first, side));
    options.fit = "resize";
    check(filter_matrix(40, 40 / s, 0, side), filter_matrix(60, 60 / s, 0, side));
  }
}

TEST(Pictures, RefusesFoldersThatAreNoSet) {
  const TempFolder folder;
  const std::string choices = ": give a folder of PNG and JPEG files or of latents, or \"shapes\"";
  EXPECT_EQ(refusal(options_for("")), "no path of pictures is given" + choices);
  EXPECT_EQ(refusal(options_for(folder.path("no"))),
            "picture folder " + folder.path("no") + " does not exist" + choices);
  const std::string file = folder.write("file.txt", "x");
  EXPECT_EQ(refusal(options_for(file)), "picture path " + file + " is no folder" + choices);
  EXPECT_EQ(refusal(options_for(folder.path())),
            "picture folder " + folder.path() +
                " has no pictures (1 .txt left out): give one with .png, .jpg, .jpeg, .npy or .safetensors files");
  png(folder, "cat/a.png");
  fs::create_directories(folder.path("dog/puppy"));
  EXPECT_EQ(refusal(options_for(folder.path())),
            "class folder " + folder.path("dog") + " has no pictures: fill or remove it");
  const std::string loose = png(folder, "loose.png");
  const std::string beside = loose + " lies beside folders, which are classes: move it into one of them, or away";
  fs::remove_all(folder.path("dog"));
  EXPECT_EQ(refusal(options_for(folder.path())), beside);
  const std::string latent = folder.write("cat/a.npy", "");
  const std::string stranger = cat(latent, " is a latent, but most of ", folder.path(),
                                   " are pictures: give a folder that has only one of them");
  EXPECT_EQ(error_of([&] { open_pictures(options_for(folder.path())); }),
            beside + " (and 1 more problem); data.on_error=skip goes on without such files");
  fs::remove(loose);
  EXPECT_EQ(refusal(options_for(folder.path())), stranger);
  png(folder, "loose.png");
  PicturesOptions options = options_for(folder.path());
  options.skip_bad = true;
  const auto set = open_pictures(options);
  EXPECT_EQ(names(*set, folder), (std::vector<std::string>{"cat/a.png cat"}));
  EXPECT_EQ(set->skipped(), (std::vector<std::string>{beside, stranger}));
}

TEST(Pictures, RefusesOptionsThatCannotBe) {
  const TempFolder folder;
  const std::string file = png(folder, "a.png");
  EXPECT_EQ(refusal(options_for(folder.path(), {3, 1, 0, 8})),
            "a picture of 3 x 1 x 0 x 8 (channels, frames, height, width) cannot be: give 1 to 65535 for each");
  EXPECT_EQ(refusal(options_for(folder.path(), {1, 1, 8, 8})),
            file + " has colours, but the model has 1 channel: set model.channels=3, or make it gray");
  EXPECT_EQ(refusal(options_for(folder.path(), {4, 1, 8, 8})),
            folder.path() +
                " has PNG or JPEG pictures, which cannot have 4 channels: set model.channels=3, or 1 for gray ones");
  EXPECT_EQ(refusal(options_for(folder.path(), {3, 2, 8, 8})),
            folder.path() +
                " has PNG or JPEG pictures, but the model has 2 frames: set model.frames=1, or give latents of videos");
  PicturesOptions options = options_for(folder.path());
  options.fit = "pad";
  EXPECT_EQ(refusal(options), "fit 'pad' is not known: give crop or resize");
  options = options_for(folder.path());
  options.scale = 0;
  EXPECT_EQ(refusal(options), "scale 0 would make all latents alike: give another number than 0");
  options = options_for("shapes");
  options.generated = 0;
  EXPECT_EQ(refusal(options), "a set of 0 generated pictures is empty: give 1 or more");
  EXPECT_EQ(refusal(options_for("shapes", {4, 1, 8, 8})),
            "generated shapes with 4 channels cannot be: set model.channels to 1 or 3");
}

TEST(Pictures, RefusesOrSkipsBadFiles) {
  const TempFolder folder;
  png(folder, "cat/b.png");
  const std::string empty = folder.write("cat/a.png", "");
  png(folder, "cat/c.png", {.colours = PNG_COLOR_TYPE_RGBA});
  PicturesOptions options = options_for(folder.path());
  EXPECT_EQ(refusal(options), empty + " is empty: replace or remove it (and 1 more problem)");
  jpeg(folder, "dog/cmyk.jpg", {.colours = JCS_CMYK, .stored = JCS_CMYK});  // a class with nothing left
  fs::create_directories(folder.path("eel"));
  fs::create_directories(folder.path("fox"));
  fs::create_symlink("nowhere", folder.path("fox/broken.png"));
  jpeg(folder, "fox/good.jpg");
  options.skip_bad = true;
  const auto set = open_pictures(options);
  EXPECT_EQ(names(*set, folder), (std::vector<std::string>{"cat/b.png cat", "fox/good.jpg fox"}));
  EXPECT_EQ(set->classes(), (std::vector<std::string>{"cat", "dog", "eel", "fox"}));  // dog and eel keep their numbers
  EXPECT_EQ(set->skipped().size(), 5u);
  EXPECT_EQ(set->skipped()[0], "class folder " + folder.path("eel") + " has no pictures: fill or remove it");
  EXPECT_NE(set->skipped()[1].find("is empty"), std::string::npos);
  EXPECT_EQ(set->describe(), "1 PNG and 1 JPEG pictures in 4 classes (5 unusable left out)");
  fs::remove(folder.path("cat/b.png"));
  fs::remove(folder.path("fox/good.jpg"));
  EXPECT_EQ(refusal(options), "class folder " + folder.path("eel") +
                                  " has no pictures: fill or remove it (and 4 more problems); nothing else is left");
}

TEST(Pictures, AFileThatBreaksLaterIsNamed) {
  const TempFolder folder;
  const PictureShape shape{3, 1, 32, 32};
  const std::string file = folder.path("a.png");
  write_png(file, at::randint(256, {200, 200, 3}, at::kByte));
  ASSERT_GT(fs::file_size(file), 40'000u);  // libpng reads 8 kB at once
  fs::resize_file(file, fs::file_size(file) / 2);
  PicturesOptions options = options_for(folder.path(), shape);
  options.skip_bad = true;  // its header is good
  const auto set = open_pictures(options);
  for (const int64_t rows : {1, 32})  // wherever the damage lies
    EXPECT_EQ(error_of([&] {
                set->read(0, {0, 1, 0, rows});
              }),
              file + " is damaged or truncated (it ends too early): replace or remove it");
  fs::remove(file);
  EXPECT_EQ(error_of([&] { read(*set, 0, shape); }), file + " cannot be opened: No such file or directory");
  EXPECT_THROW(set->read(1, {0, 1, 0, 1}), InternalError);
  EXPECT_THROW(set->read(0, {0, 1, 0, 33}), InternalError);
  EXPECT_THROW(set->read(0, {0, 2, 0, 32}), InternalError);
}

TEST(Pictures, TheFingerprintFollowsFilesAndOptions) {
  const TempFolder folder;
  png(folder, "cat/a.png");
  PicturesOptions options = options_for(folder.path());
  std::vector<std::string> seen;
  const auto is_new = [&] {
    const std::string now = open_pictures(options)->fingerprint();
    EXPECT_EQ(open_pictures(options)->fingerprint(), now);
    const bool fresh = std::find(seen.begin(), seen.end(), now) == seen.end();
    seen.push_back(now);
    return fresh;
  };
  EXPECT_TRUE(is_new());
  EXPECT_FALSE(is_new());
  png(folder, "cat/b.png");
  EXPECT_TRUE(is_new());
  fs::rename(folder.path("cat/b.png"), folder.path("cat/c.png"));
  EXPECT_TRUE(is_new());
  fs::last_write_time(folder.path("cat/c.png"), fs::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_TRUE(is_new());
  options.fit = "resize";
  EXPECT_TRUE(is_new());
  options.shape.width = 9;
  EXPECT_TRUE(is_new());
  options.path = "shapes";
  EXPECT_TRUE(is_new());
  options.seed = 2;
  EXPECT_TRUE(is_new());
  options.generated = 7;
  EXPECT_TRUE(is_new());
}

TEST(Pictures, ManyFilesOpenInOrder) {
  const TempFolder folder;
  png(folder, "a/00000.png");
  for (int i = 1; i < 700; ++i)
    fs::create_hard_link(folder.path("a/00000.png"),
                         folder.path(cat("a/", std::to_string(100'000 + i).substr(1), ".png")));
  folder.write("a/00300.jpg", "x");
  folder.write("a/00500.jpg", "x");
  PicturesOptions options = options_for(folder.path());
  EXPECT_EQ(refusal(options), folder.path("a/00300.jpg") +
                                  " is not a JPEG file despite its name: replace or remove it "
                                  "(and 1 more problem)");
  options.skip_bad = true;
  const auto set = open_pictures(options);
  EXPECT_EQ(set->count(), 700);
  EXPECT_EQ(set->name(699), folder.path("a/00699.png"));
}

TEST(Pictures, ManyThreadsReadAtOnce) {
  const TempFolder folder;
  const PictureShape shape{3, 1, 24, 24};
  png(folder, "a.png", {.width = 40, .height = 33});
  png(folder, "b.png", {.interlaced = true});
  jpeg(folder, "c.jpg", {.across = 2, .down = 2});
  folder.write("d.jpg", bytes_of(folder.path("c.jpg")).substr(0, 700));
  const auto set = open_pictures(options_for(folder.path(), shape));
  std::vector<at::Tensor> expected;
  for (int64_t i = 0; i < 3; ++i) expected.push_back(read(*set, i, shape));
  run_threads(4, [&](int thread) {
    for (int64_t i = 0; i < 60; ++i) {
      const int64_t index = (i + thread) % 4;
      if (index == 3)
        EXPECT_THROW(read(*set, index, shape), UserError);
      else
        EXPECT_TRUE(at::equal(read(*set, index, shape), expected[static_cast<size_t>(index)]));
    }
  });
}

TEST(Pictures, ShapesNeedNoFiles) {
  PicturesOptions options = options_for("shapes", {1, 3, 16, 20});
  options.generated = 1234;
  const auto set = open_pictures(options);
  EXPECT_EQ(set->count(), 1234);
  EXPECT_EQ(set->describe(), "1,234 generated videos in 4 classes");
  EXPECT_EQ(set->name(17), "shape 17");
  EXPECT_EQ(set->label(17), 1);
  EXPECT_EQ(set->classes()[1], "cross");
  EXPECT_TRUE(set->skipped().empty());
  const at::Tensor whole = read(*set, 17, options.shape);
  EXPECT_EQ(whole.sizes(), (std::vector<int64_t>{1, 3, 16, 20}));
  EXPECT_TRUE(at::equal(set->read(17, {1, 2, 4, 9}), whole.slice(1, 1, 2).slice(2, 4, 9)));
  EXPECT_THROW(set->read(1234, {0, 1, 0, 1}), InternalError);
}

}  // namespace
}  // namespace startrail
