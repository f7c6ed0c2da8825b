#include "startrail/train/loop/keep_samples.h"

#include <ATen/Parallel.h>
#include <exception>
#include <nlohmann/json.hpp>
#include <thread>

#include "startrail/base/file.h"
#include "startrail/train/data/tokens/token_folder.h"
#include "startrail/train/loop/draw_pictures.h"
#include "startrail/train/loop/estimate.h"
#include "startrail/train/loop/sample_text.h"
#include "startrail/train/store/run_files.h"
#include "startrail/train/tokenizer/tokenizer.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

// Floating-point operations. Text reads all weights for every token, pictures use them for all patches at once.
constexpr double kMostTextWork = 1e11, kMostPictureWork = 1e12;
constexpr int64_t kTokens = 240, kPromptBytes = 80, kPromptTokens = 24;
constexpr int64_t kPicturesEach = 4;

// The start of the held-out data as text; nothing where it cannot be read as one.
std::optional<std::string> prompt_of(const TrainJob& job, const fs::path& checkpoint) {
  const Corpora& data = job.tokens->data();
  const bool bytes = data.training.is_bytes();
  std::vector<int64_t> ids(std::min(bytes ? kPromptBytes : kPromptTokens, data.validation.tokens()));
  if (ids.size() < 2) return std::nullopt;
  data.validation.read(0, static_cast<int64_t>(ids.size()), 1, ids.data());
  if (bytes && std::get<LlamaConfig>(job.model).vocabulary == 256) return std::string(ids.begin(), ids.end());
  if (!bytes && fs::exists(checkpoint / kTokenizerFile)) return Tokenizer(checkpoint).decode(ids);
  return std::nullopt;
}

struct Stopped : std::exception {};

using Stop = std::function<void()>;  // throws Stopped

std::optional<KeptSample> keep_text(const TrainJob& job, const fs::path& checkpoint, const fs::path& file,
                                    const Stop& stop) {
  const double work = 2.0 * static_cast<double>(estimate(job.config, job.model).parameters) * kTokens;
  const std::optional<std::string> prompt = prompt_of(job, checkpoint);
  if (!prompt || work > kMostTextWork) return std::nullopt;
  at::set_num_threads(thread_count(job.config));
  const WrittenText written = sample_texts(
      {.folder = checkpoint, .prompts = {*prompt}, .sampling = {.tokens = kTokens}}, [&](size_t, std::string_view) {
        stop();
        return true;
      })[0];
  const nlohmann::json json = {{"prompt", *prompt}, {"text", written.text}};
  // Bytes of a model need not be UTF-8.
  write_text(cat(file.string(), ".json"), json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  return KeptSample{.prompt = *prompt, .text = written.text};
}

std::optional<KeptSample> keep_pictures(const TrainJob& job, const fs::path& checkpoint, const fs::path& file,
                                        const Stop& stop) {
  const auto& shape = std::get<DitConfig>(job.model);
  if (shape.channels != 1 && shape.channels != 3) return std::nullopt;
  const Drawing drawing =
      make_drawing({.folder = checkpoint, .count = kPicturesEach, .sharing = {.threads = thread_count(job.config)}});
  if (drawing_work(drawing) > kMostPictureWork) return std::nullopt;
  const fs::path picture = cat(file.string(), ".png");
  write_pictures(picture, draw_pictures(drawing, [&](double) { stop(); }), kPicturesEach);
  return KeptSample{.picture = picture};
}

}  // namespace

std::optional<KeptSample> keep_sample(const TrainJob& job, const fs::path& checkpoint,
                                      const std::function<bool()>& stop) {
  const fs::path folder = fs::path(job.config.run.folder) / kSampleFolder;
  std::optional<KeptSample> kept;
  std::exception_ptr error;
  const Stop stop_now = [&] {
    if (stop && stop()) throw Stopped();
  };
  std::thread([&] {
    try {
      fs::create_directories(folder);
      const fs::path file = folder / checkpoint.filename();
      kept = job.tokens ? keep_text(job, checkpoint, file, stop_now) : keep_pictures(job, checkpoint, file, stop_now);
    } catch (const Stopped&) {
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
  return kept;
}

}  // namespace startrail
