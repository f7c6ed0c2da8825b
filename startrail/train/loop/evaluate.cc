#include "startrail/train/loop/evaluate.h"

#include <ATen/ATen.h>
#include <algorithm>

#include "startrail/base/error.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/train/loop/job.h"
#include "startrail/train/loop/recognise.h"
#include "startrail/train/loop/validate.h"
#include "startrail/train/model/diffusion.h"
#include "startrail/train/model/picture_classes.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBuckets = 16;                                // of a GPT's sequence
constexpr int64_t kHeldOut = 2000, kSteps = 200, kDrawn = 200;  // of a classifier

void tell(const std::function<void(const std::string&)>& listener, const std::string& what) {
  if (listener) listener(what);
}

void warn_of_other_data(const EvaluateOptions& options, const std::string& path) {
  tell(options.on_warning,
       cat("the data in ", path, " is not what the run held out and trained on: this loss cannot be compared with the ",
           "run's"));
}

// Where the ranks are: processes, or threads of this one.
class Ranks {
 public:
  Ranks(World* processes, const Sharing& sharing)
      : world_(world_of(processes, std::max(1, sharing.ranks))),
        listing_(listing_of(processes)),
        threads_(sharing.threads) {}

  World& world() const { return *world_; }
  const Listing& listing() const { return listing_; }
  void run(const World::Body& body) const { world_->run(threads_, body); }
  bool has_first() const { return world_->first() == 0; }

 private:
  std::shared_ptr<World> world_;
  Listing listing_;
  int threads_;
};

// By all ranks, which must have the same of each.
Validation validate_on(const EvaluateOptions& options, const Ranks& ranks, const Model& model, const Source& source,
                       const AttentionOptions& attention, int64_t buckets) {
  tell(options.on_progress, cat("evaluating ", source.validation_count(), " sequences"));
  ranks.world().compare({{"data", source.fingerprint()},
                         {"model", config_text(model, options.type)},
                         {"weights", weights_fingerprint(options.folder)},
                         {"grid", to_text(attention.grid)},
                         {"tokens", cat(attention.tokens)},
                         {"sequences", cat(source.validation_count())},
                         {"dtype", cat(options.type)}});
  Validation result;
  ranks.run([&](const std::shared_ptr<Group>& group) {
    Validation mine = validate(model, source, attention, *group, group, buckets);
    if (group->rank() == ranks.world().first()) result = std::move(mine);
  });
  return result;
}

Evaluation evaluate_gpt(const EvaluateOptions& options, const Ranks& ranks) {
  if (options.recognise || options.guidance)
    throw UserError("--recognise and --guidance are for a DiT's pictures: leave them out");
  const auto model = load_llama(options.folder, options.type, options.which);
  const bool of_run = fs::exists(options.folder / kStateFile);
  const TrainingState state = of_run ? read_state(options.folder) : TrainingState{};
  const TrainConfig config = resolve({.config = of_run ? run_config(state, options.folder) : TrainConfig{},
                                      .model = model->shape(),
                                      .where = options.folder.string()})
                                 .config;
  CorpusOptions corpus = corpus_options(config, model->shape().vocabulary, ranks.listing());
  const bool given = !options.data.empty();
  if (given) corpus.path = corpus.validation_path = options.data;
  if (corpus.path.empty()) throw UserError("there is nothing to evaluate on: give --data");
  TokenSourceOptions windows = source_options(config);
  windows.validation_windows = options.windows;
  if (options.tokens > 0) windows.tokens = options.tokens;
  const int64_t buckets = options.buckets.value_or(std::min(kBuckets, windows.tokens));
  if (buckets > windows.tokens)
    throw UserError(cat("--buckets ", buckets, " are more than the ", windows.tokens,
                        " tokens of a sequence: give as many or fewer"));
  const AttentionOptions attention = attention_options(options.sharing, model->shape(), windows.tokens);
  const Corpora data = open_data(corpus);
  if (given) check_bytes(data.validation, model->shape(), options.folder);
  if (given) check_tokenizer(data.validation, options.folder);
  if (!given && !fingerprint(data).starts_with(state.data)) warn_of_other_data(options, corpus.path);
  if (data.validation.tokens() == 0) throw UserError("this run held no data out: give --data");
  if (data.validation.tokens() < windows.tokens + 1)
    throw UserError(cat("the validation data has ", data.validation.tokens(), " tokens, but one sequence needs ",
                        windows.tokens + 1, ": give --tokens ", data.validation.tokens() - 1,
                        " or less, or more data"));
  const TokenSource source({data.validation, data.validation}, windows);
  const Validation result = validate_on(options, ranks, *model, source, attention, buckets);
  if (!result.loss) throw UserError("there is no token to predict: documents of one token only?");
  return {.loss = *result.loss,
          .sequences = source.validation_count(),
          .tokens = windows.tokens,
          .by_position = result.by_position,
          .skipped = {},
          .mean_weights = false,
          .recognition = {}};
}

// Of the pictures that a classifier was trained on, which it takes the model's own for.
Recognition recognise(const EvaluateOptions& options, const Ranks& ranks, const Dit& model,
                      const Recogniser& recogniser, const std::vector<std::string>& classes, double guidance) {
  DrawOptions drawing{.labels = {}, .steps = 50, .guidance = guidance, .seed = 1};
  const auto count = static_cast<int64_t>(classes.size());
  for (int64_t i = 0; i < kDrawn; ++i) drawing.labels.push_back(i % count);
  const AttentionOptions attention = attention_options(options.sharing, model.shape(), model.shape().tokens());
  at::Tensor right;
  ranks.run([&](const std::shared_ptr<Group>& group) {
    const bool first = group->rank() == 0;
    const at::Tensor drawn = draw(model, drawing, attention, group, [&](double done) {
      if (first) tell(options.on_progress, cat("drawing ", kDrawn, " pictures: ", fixed(100 * done, 0), "%"));
    });
    if (first) right = recogniser.classes_of(drawn.squeeze(2)) == at::tensor(drawing.labels, at::kLong);
  });
  if (!ranks.has_first()) return {};
  const auto share = [](const at::Tensor& of) { return of.to(at::kDouble).mean().item<double>(); };
  Recognition result{recogniser.accuracy, share(right), kDrawn, guidance, {}};
  for (int64_t i = 0; i < count; ++i)
    result.by_class.emplace_back(classes[static_cast<size_t>(i)], share(right.slice(0, i, kDrawn, count)));
  return result;
}

void check_dit(const EvaluateOptions& options, const DitConfig& shape) {
  if (options.tokens > 0 || options.buckets)
    throw UserError("--tokens and --buckets are for a GPT's text: leave them out");
  if (options.guidance && !options.recognise)
    throw UserError("--guidance is for the pictures of --recognise: leave it out");
  if (options.recognise && ((shape.channels != 1 && shape.channels != 3) || shape.size[0] > 1))
    throw UserError("--recognise is for pictures, not for latents or videos: leave it out");
  if (options.recognise && shape.classes < 2)
    throw UserError("--recognise needs a model that was told the classes of its pictures");
}

Evaluation evaluate_dit(const EvaluateOptions& options, const Ranks& ranks) {
  if (!fs::exists(options.folder / kStateFile))
    throw UserError(
        cat(options.folder.string(), " is not of a run, which says what it was trained on: give a run's folder"));
  const bool given = !options.data.empty();  // then all of it is held out
  const TrainingState state = read_state(options.folder);
  TrainConfig config = run_config(state, options.folder);
  if (given) {
    config.data.path = config.data.validation_path = options.data;
    if (options.data != kShapes) config.data.generated = TrainConfig{}.data.generated;
  }
  config.validate.windows = options.windows;
  config.data.on_error = "skip";  // and the result says what was left out
  const auto model = load_dit(options.folder, options.type, options.which);
  const DitConfig& shape = model->shape();
  check_dit(options, shape);
  const double guidance = guidance_of(options.guidance, shape);
  const AttentionOptions attention = attention_options(options.sharing, shape, config.train.tokens);
  if (options.recognise) attention_options(options.sharing, shape, shape.tokens());  // pictures are drawn too

  PictureSets sets;
  if (given)
    sets.training = sets.held_out = open_pictures(pictures_options(config, shape, /*held_out=*/true, ranks.listing()));
  else
    sets = open_picture_sets(config, shape, ranks.listing());
  const PictureSource source(sets.training, sets.held_out, shape, picture_source_options(config, shape));
  check_classes(source.classes(), shape, options.folder);
  if (!given && source.fingerprint() != state.data) warn_of_other_data(options, config.data.path);
  if (source.validation_count() == 0) throw UserError("this run held no pictures out: give --data");
  const Validation result = validate_on(options, ranks, *model, source, attention, 0);
  if (!result.loss) throw UserError(cat("no picture can be read; the first error: ", source.skipped().front()));
  Evaluation evaluation{.loss = *result.loss,
                        .sequences = source.validation_count(),
                        .tokens = config.train.tokens,
                        .by_position = {},
                        .skipped = source.skipped(),
                        .mean_weights = options.which == Which::mean && fs::exists(options.folder / kMeanFile),
                        .recognition = {}};
  if (!options.recognise) return evaluation;
  tell(options.on_progress, "training a classifier");
  Recogniser recogniser;
  // A network as small as this one is trained by one rank, which has all threads then; the others wait for it.
  if (ranks.has_first())
    run_ranks(1, thread_count(options.sharing), [&](const std::shared_ptr<Group>&) {
      const PicturesOptions pictures = pictures_options(config, shape, given);
      recogniser = train_recogniser(*sets.training, pictures.shape, std::min(kHeldOut, sets.training->count() / 4),
                                    kSteps, 1, pictures.skip_bad);
    });
  auto& skipped = evaluation.skipped;
  for (const auto& [index, problem] : recogniser.skipped)  // some of them a second time
    if (std::find(skipped.begin(), skipped.end(), problem) == skipped.end()) skipped.push_back(problem);
  evaluation.recognition = recognise(options, ranks, *model, recogniser, sets.training->classes(), guidance);
  return evaluation;
}

}  // namespace

Evaluation evaluate(const EvaluateOptions& options, World* processes) {
  const Ranks ranks(processes, options.sharing);
  const bool dit = std::holds_alternative<DitConfig>(read_config(options.folder));
  return dit ? evaluate_dit(options, ranks) : evaluate_gpt(options, ranks);
}

}  // namespace startrail
