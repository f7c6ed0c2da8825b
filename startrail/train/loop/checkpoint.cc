#include "startrail/train/loop/checkpoint.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/train/model/weights.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kElement = 4;  // everything is kept in float32

std::string name_of(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

// The step of a folder that name_of named, or -1: a copy called step-5-good is the user's own.
int64_t step_of(const fs::path& folder) {
  const std::string name = folder.filename();
  constexpr std::string_view kPrefix = "step-";
  int64_t step = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kPrefix.size(), end, step);
  return read.ec == std::errc() && read.ptr == end ? step : -1;
}

// Complete checkpoints of a run by step, lowest first.
std::vector<fs::path> checkpoints(const fs::path& run) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / kCheckpointFolder, none))
    if (step_of(entry.path()) >= 0 && fs::exists(entry.path() / kStateFile)) found.push_back(entry.path());
  std::sort(found.begin(), found.end(), [](auto& a, auto& b) { return step_of(a) < step_of(b); });
  return found;
}

std::string state_text(const TrainingState& state, json files) {
  const json json = {{"format", 1},
                     {"step", state.step},
                     {"examples", state.examples},
                     {"updates", state.updates},
                     {"seconds", state.seconds},
                     {"data", state.data},
                     {"settings", state.settings},
                     {"files", std::move(files)}};
  return json.dump(1) + "\n";
}

// Gives a finished folder its name in one step, also where a folder of that name is there already.
void publish(const fs::path& partial, const fs::path& done) {
  const unsigned flags = fs::exists(done) ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, done.c_str(), flags) == 0) return;
  if (flags == RENAME_EXCHANGE) throw ClusterError(cat(done.string(), " cannot be replaced: ", std::strerror(errno)));
  fs::rename(partial, done);  // a file system without flags
}

// What an interrupted save or removal left.
void remove_partial(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".partial") found.push_back(entry.path());
  for (const fs::path& path : found) fs::remove_all(path);
}

void point_latest(const fs::path& folder, const std::string& name) {
  const fs::path fresh = folder / ".latest";
  fs::remove(fresh);
  fs::create_directory_symlink(name, fresh);
  fs::rename(fresh, folder / kLatest);
  sync_folder(folder);
}

// After step `now` was saved: all but the newest `keep`, and those beyond it, which a run that went back has given up.
void remove_old(const fs::path& run, int64_t now, int64_t keep) {
  auto all = checkpoints(run);
  const auto beyond = std::find_if(all.begin(), all.end(), [&](auto& path) { return step_of(path) > now; });
  const auto kept = keep > 0 ? beyond - std::min<std::ptrdiff_t>(keep, beyond - all.begin()) : all.begin();
  all.erase(kept, beyond);
  for (const fs::path& path : all)  // out of sight first: a folder half removed must not look complete
    fs::rename(path, path.parent_path() / cat(".", path.filename().string(), ".partial"));
  remove_partial(run / kCheckpointFolder);
}

}  // namespace

void save_checkpoint(const fs::path& run, const TrainingState& state, const Model& model, ShardedAdamW& optimizer,
                     Group& world, int64_t keep, const Companions& companions) {
  const fs::path folder = run / kCheckpointFolder, partial = folder / cat(".", name_of(state.step), ".partial");
  const int64_t size = count_parameters(model), between = (kShardUnit - size % kShardUnit) % kShardUnit;
  static_assert(kShardUnit * kElement == kPageBytes);
  Control& control = world.control();
  // The same header everywhere, so every rank knows where its part goes.
  control.agree([&] {
    if (world.rank() != 0) return;
    fs::create_directories(folder);
    remove_partial(folder);
    fs::create_directory(partial);
    write_text(partial / kModelFile, config_text(model, at::kFloat, companions));
    for (const auto& [name, bytes] : companions.files) write_text(partial / name, bytes);
    make_tensor_file(partial / kWeightsFile, tensor_shapes(model, at::kFloat));
    make_tensor_file(partial / kOptimizerFile,
                     {{"mean", at::kFloat, {size}},
                      {"unused", at::kFloat, {between}},  // brings the next to a page's border
                      {"square", at::kFloat, {size}}});
    if (optimizer.ema().defined()) make_tensor_file(partial / kMeanFile, tensor_shapes(model, at::kFloat));
  });
  const Shard& shard = optimizer.shard();
  struct Part {
    const char* file;
    int64_t after;  // values that follow its row in the file
    const at::Tensor& values;
  };
  std::vector<Part> parts{{kWeightsFile, 0, optimizer.weights()},
                          {kOptimizerFile, between + size, optimizer.mean()},
                          {kOptimizerFile, 0, optimizer.square()}};
  if (optimizer.ema().defined()) parts.push_back({kMeanFile, 0, optimizer.ema()});
  std::map<std::string, json> sums{{kModelFile, json::array()}};  // of each file, by its parts
  for (const auto& [name, bytes] : companions.files) sums[name] = json::array();
  for (const Part& part : parts) {
    int64_t begin = 0;
    std::string hash;
    control.agree([&] {
      const at::Tensor values = part.values.contiguous();
      const auto end = static_cast<int64_t>(fs::file_size(partial / part.file));
      begin = end - (part.after + size) * kElement;
      STARTRAIL_CHECK(begin % kPageBytes == 0, part.file, " begins at ", begin);
      write_at(partial / part.file, begin + shard.begin * kElement, values);
      hash = checksum(values);
    });
    const std::vector<std::string> hashes = control.gather(hash);
    for (int rank = 0; rank < world.size(); ++rank) {
      const Shard theirs = shard_of(size, rank, world.size());
      sums[part.file].push_back({begin + theirs.begin * kElement, begin + theirs.end * kElement, hashes[rank]});
    }
  }
  control.agree([&] {
    if (world.rank() != 0) return;
    json files = json::array();
    for (auto& [name, parts_of] : sums) {
      // What no rank's shard covers: the headers, and config.json and companions as a whole.
      const fs::path path = partial / name;
      const auto bytes = static_cast<int64_t>(fs::file_size(path));
      const int64_t end = parts_of.empty() ? bytes : parts_of[0][0].get<int64_t>();
      parts_of.push_back({0, end, checksum(path, 0, end)});
      if (const int64_t gap = bytes - (size + between) * kElement; name == kOptimizerFile && between > 0)
        parts_of.push_back({gap, gap + between * kElement, checksum(path, gap, gap + between * kElement)});
      files.push_back({{"name", name}, {"bytes", bytes}, {"parts", std::move(parts_of)}});
    }
    write_text(partial / kStateFile, state_text(state, files));
    sync_folder(partial);
    const fs::path done = folder / name_of(state.step);
    publish(partial, done);
    sync_folder(folder);
    point_latest(folder, done.filename());
    remove_old(run, state.step, keep);
  });
}

bool has_checkpoint(const fs::path& run) { return !checkpoints(run).empty(); }

fs::path find_checkpoint(const fs::path& path) {
  if (fs::exists(path / kStateFile)) return path;
  if (!fs::exists(path)) throw UserError(cat("there is no checkpoint ", path.string()));
  const auto all = checkpoints(path);
  if (all.empty())
    throw UserError(cat(path.string(), " holds no complete checkpoint: give a run's folder, or one of its ",
                        "checkpoints/step-... folders"));
  std::error_code none;
  const fs::path named = fs::read_symlink(path / kCheckpointFolder / kLatest, none).filename();
  const auto latest = std::find_if(all.begin(), all.end(), [&](auto& one) { return one.filename() == named; });
  return latest != all.end() ? *latest : all.back();
}

fs::path model_folder(const fs::path& path) {
  if (fs::exists(path) && !fs::exists(path / kStateFile) && !has_checkpoint(path)) return path;
  const fs::path checkpoint = find_checkpoint(path);
  verify_checkpoint(checkpoint);
  return checkpoint;
}

std::string weights_fingerprint(const fs::path& folder) {
  if (const fs::path state = folder / kStateFile; fs::exists(state))
    return checksum(state, 0, static_cast<int64_t>(fs::file_size(state)));
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors")
      files.insert(cat(entry.path().filename().string(), " ", entry.file_size()));
  const std::string text = join(files);
  return checksum(text.data(), text.size());
}

TrainingState read_state(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kStateFile;
  const json json = read_json(file);
  try {
    if (json.at("format") != 1)
      throw UserError(
          cat(file.string(), " has format ", json.at("format").dump(), ", but this program reads format 1"));
    return {json.at("step"),    json.at("examples"), json.at("updates"),
            json.at("seconds"), json.at("data"),     json.at("settings")};
  } catch (const json::exception& error) {
    throw UserError(cat(file.string(), " is damaged: ", error.what()));
  }
}

void verify_checkpoint(const fs::path& checkpoint, int first, int of) {
  const json state = read_json(checkpoint / kStateFile);
  int number = 0;
  try {
    for (const json& file : state.at("files")) {
      const fs::path path = checkpoint / file.at("name").get<std::string>();
      if (!fs::exists(path)) throw UserError(cat(path.string(), " is missing"));
      if (static_cast<int64_t>(fs::file_size(path)) != file.at("bytes").get<int64_t>())
        throw UserError(cat(path.string(), " has ", fs::file_size(path), " bytes and should have ",
                            file.at("bytes").get<int64_t>()));
      for (const json& part : file.at("parts")) {
        if (number++ % of != first) continue;
        if (checksum(path, part.at(0), part.at(1)) != part.at(2))
          throw UserError(cat(path.string(), " is damaged: bytes ", part.at(0).get<int64_t>(), " to ",
                              part.at(1).get<int64_t>(), " do not have the checksum they were written with"));
      }
    }
  } catch (const json::exception& error) {
    throw UserError(cat((checkpoint / kStateFile).string(), " is damaged: ", error.what()));
  }
}

void load_checkpoint(const fs::path& checkpoint, const Model& model, ShardedAdamW& optimizer, Group& world) {
  const Shard& shard = optimizer.shard();
  at::Tensor weights, ema;
  world.control().agree([&] {
    verify_checkpoint(checkpoint, world.rank(), world.size());
    const TensorFile state = read_tensors(checkpoint / kOptimizerFile);
    for (const char* name : {"mean", "square"})
      if (state.at(name).numel() != count_parameters(model))
        throw UserError(cat(state.file.string(), " is of a model with ", state.at(name).numel(), " parameters, not ",
                            count_parameters(model)));
    optimizer.mean().copy_(state.at("mean").narrow(0, shard.begin, shard.size()));
    optimizer.square().copy_(state.at("square").narrow(0, shard.begin, shard.size()));
    weights = read_shard(open_weights(checkpoint), model, shard);
    if (optimizer.ema().defined() && fs::exists(checkpoint / kMeanFile))
      ema = read_shard(read_tensors(checkpoint / kMeanFile).tensors, model, shard);
  });
  optimizer.set_weights(weights);
  if (ema.defined()) optimizer.ema().copy_(ema);
}

}  // namespace startrail
