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
#include <optional>
#include <set>

#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/train/model/weights.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kElement = 4;  // everything is kept in float32

// Checkpoints of a run by step, lowest first: complete when they got their names, whatever became of them.
std::vector<fs::path> checkpoints(const fs::path& run) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / kCheckpointFolder, none))
    if (step_of(entry.path().filename()) >= 0) found.push_back(entry.path());
  std::sort(found.begin(), found.end(), [](auto& a, auto& b) { return step_of(a.filename()) < step_of(b.filename()); });
  return found;
}

constexpr const char* kSum = "checksum";  // in training.json: of the rest of it
constexpr size_t kOldFields = 8;          // of one that was written before it had a checksum

std::string sum_of(json state) {
  state.erase(kSum);
  const std::string text = state.dump();
  return checksum(text.data(), text.size());
}

std::string state_text(const TrainingState& state, json files) {
  json json = {{"format", 1},
               {"step", state.step},
               {"examples", state.examples},
               {"updates", state.updates},
               {"seconds", state.seconds},
               {"data", state.data},
               {"settings", state.settings},
               {"files", std::move(files)}};
  json[kSum] = sum_of(json);
  return json.dump(1) + "\n";
}

// Out of sight, to be removed: a folder half removed must not look complete.
void move_aside(const fs::path& folder) {
  fs::rename(folder, folder.parent_path() / cat(".", folder.filename().string(), ".old.partial"));
}

// A checkpoint's training.json, compared with its own checksum if it has one.
json read_state_file(const fs::path& file) {
  const json json = read_json(file);
  if (!json.is_object()) throw UserError(cat(file.string(), " is damaged: it is no JSON object"));
  if (json.contains(kSum) ? json[kSum] != sum_of(json) : json.size() > kOldFields)
    throw UserError(cat(file.string(), " is damaged: it does not have the checksum it was written with"));
  if (!json.contains("format")) throw UserError(cat(file.string(), " is damaged: it has no format"));
  if (json["format"] != 1)
    throw UserError(cat(file.string(), " has format ", json["format"].dump(), ", but this program reads format 1"));
  return json;
}

// A field of it, or of a part of it.
template <class Value, class Key>
Value field(const json& object, const Key& key, const fs::path& file) {
  try {
    return object.at(key).template get<Value>();
  } catch (const json::exception&) {  // its own words may quote all of the file
    throw UserError(cat(file.string(), " is damaged: its field ", key, " is missing or of another kind"));
  }
}

// What is wrong with a checkpoint, or nothing.
std::string problem_of(const fs::path& checkpoint) {
  try {
    verify_checkpoint(checkpoint);
    read_state(checkpoint);
    return "";
  } catch (const std::runtime_error& error) {  // also of a disk that fails
    return error.what();
  }
}

// The newest whole checkpoint of a run beside `without`, if there is one.
std::optional<fs::path> newest_whole(const fs::path& run, const fs::path& without) {
  auto all = checkpoints(run);
  std::reverse(all.begin(), all.end());
  for (const fs::path& one : all)
    if (!fs::equivalent(one, without) && problem_of(one).empty()) return one;
  return std::nullopt;
}

// Gives a finished folder its name in one step, also where a folder of that name is there already.
void publish(const fs::path& partial, const fs::path& done) {
  if (fs::exists(done)) {
    if (renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, done.c_str(), RENAME_EXCHANGE) == 0) return;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
      throw ClusterError(cat(done.string(), " cannot be replaced: ", std::strerror(errno)));
    move_aside(done);  // a file system that cannot exchange, such as NFS: for a moment there is neither
  }
  fs::rename(partial, done);
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
  const auto beyond = std::find_if(all.begin(), all.end(), [&](auto& path) { return step_of(path.filename()) > now; });
  const auto kept = keep > 0 ? beyond - std::min<std::ptrdiff_t>(keep, beyond - all.begin()) : all.begin();
  all.erase(kept, beyond);
  for (const fs::path& path : all) move_aside(path);
  remove_partial(run / kCheckpointFolder);
}

}  // namespace

namespace {

// Runs `body` on every rank; where the disk is the reason that it fails, says what the user can do.
void agree_on_disk(Control& control, const fs::path& folder, int64_t step, int64_t bytes,
                   const std::function<void()>& body) {
  const auto fail = [&](const std::string& reason) {
    throw ClusterError(cat("the checkpoint of step ", step, " cannot be saved: ", reason, "; it takes ",
                           human_bytes(static_cast<double>(bytes)), ": make room, such as by deleting older ones in ",
                           folder.string(), " or with a smaller run.keep, and go on with --resume"));
  };
  control.agree([&] {
    try {
      body();
    } catch (const ClusterError& error) {
      fail(error.what());
    } catch (const fs::filesystem_error& error) {
      if (error.code() != std::errc::no_space_on_device) throw;
      fail(cat(error.path1().string(), ": ", error.code().message()));
    }
  });
}

void write_checkpoint(const fs::path& run, const fs::path& partial, const TrainingState& state, const Model& model,
                      ShardedAdamW& optimizer, Group& world, int64_t keep, const Companions& companions) {
  const fs::path folder = run / kCheckpointFolder;
  const int64_t size = count_parameters(model), between = (kShardUnit - size % kShardUnit) % kShardUnit;
  static_assert(kShardUnit * kElement == kPageBytes);
  Control& control = world.control();
  const int64_t bytes = size * kElement * (optimizer.ema().defined() ? 4 : 3);
  const auto agree = [&](const std::function<void()>& body) {
    agree_on_disk(control, folder, state.step, bytes, body);
  };
  // The same header everywhere, so every rank knows where its part goes.
  agree([&] {
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
    agree([&] {
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
  agree([&] {
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
    const fs::path done = folder / step_name(state.step);
    publish(partial, done);
    sync_folder(folder);
    point_latest(folder, done.filename());
    remove_old(run, state.step, keep);
  });
}

}  // namespace

void save_checkpoint(const fs::path& run, const TrainingState& state, const Model& model, ShardedAdamW& optimizer,
                     Group& world, int64_t keep, const Companions& companions) {
  const fs::path partial = run / kCheckpointFolder / cat(".", step_name(state.step), ".partial");
  try {
    write_checkpoint(run, partial, state, model, optimizer, world, keep, companions);
  } catch (...) {
    std::error_code ignored;  // out of sight it would keep a full disk full
    if (world.rank() == 0) fs::remove_all(partial, ignored);
    throw;
  }
}

void clear_partial(const fs::path& run) {
  if (fs::exists(run / kCheckpointFolder)) remove_partial(run / kCheckpointFolder);
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

WholeCheckpoint find_whole_checkpoint(const fs::path& path) {
  const fs::path found = find_checkpoint(path);
  const std::string problem = problem_of(found);
  if (problem.empty()) return {found, ""};
  const bool named = fs::equivalent(found, path);
  const fs::path place = fs::canonical(found).parent_path();  // `latest` is a link
  const fs::path run = named && place.filename() == kCheckpointFolder ? place.parent_path() : path;
  const std::optional<fs::path> whole = newest_whole(run, found);
  if (!whole) throw UserError(cat(problem, "; the run has no other checkpoint that is whole"));
  if (named) throw UserError(cat(problem, "; the newest whole checkpoint of the run is ", whole->string()));
  return {*whole, cat(problem, ": going on from ", whole->string(), ", the newest whole checkpoint")};
}

fs::path model_folder(const fs::path& path) {
  if (fs::exists(path) && !fs::exists(path / kStateFile) && !has_checkpoint(path)) return path;
  return find_whole_checkpoint(find_checkpoint(path)).path;
}

std::string weights_fingerprint(const fs::path& folder) {
  if (const fs::path state = folder / kStateFile; fs::exists(state)) return checksum(state);
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors")
      files.insert(cat(entry.path().filename().string(), " ", entry.file_size()));
  const std::string text = join(files);
  return checksum(text.data(), text.size());
}

TrainingState read_state(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kStateFile;
  const json state = read_state_file(file);
  return {field<int64_t>(state, "step", file),     field<int64_t>(state, "examples", file),
          field<int64_t>(state, "updates", file),  field<double>(state, "seconds", file),
          field<std::string>(state, "data", file), field<std::string>(state, "settings", file)};
}

void verify_checkpoint(const fs::path& checkpoint, int first, int of) {
  const fs::path state = checkpoint / kStateFile;
  int number = 0;
  for (const json& file : field<json>(read_state_file(state), "files", state)) {
    const fs::path path = checkpoint / field<std::string>(file, "name", state);
    const auto bytes = field<int64_t>(file, "bytes", state);
    if (!fs::exists(path)) throw UserError(cat(path.string(), " is missing"));
    if (static_cast<int64_t>(fs::file_size(path)) != bytes)
      throw UserError(cat(path.string(), " has ", fs::file_size(path), " bytes and should have ", bytes));
    for (const json& part : field<json>(file, "parts", state)) {
      if (number++ % of != first) continue;
      const auto begin = field<int64_t>(part, 0, state), end = field<int64_t>(part, 1, state);
      if (checksum(path, begin, end) != field<std::string>(part, 2, state))
        throw UserError(cat(path.string(), " is damaged: bytes ", begin, " to ", end,
                            " do not have the checksum they were written with"));
    }
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
