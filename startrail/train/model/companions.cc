#include "startrail/train/model/companions.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/train/store/run_files.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kGeneration = "generation_config.json";
// What a folder may have beside tokenizer.json, and transformers reads.
constexpr const char* kOthers[] = {
    kTokenizerConfig, "special_tokens_map.json", "added_tokens.json",   "vocab.json",
    "merges.txt",     "tokenizer.model",         "chat_template.jinja", "chat_template.json"};
constexpr const char* kIds[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

void take_file(const fs::path& folder, const std::string& name, Companions& to) {
  if (!fs::is_regular_file(folder / name)) return;
  std::ifstream in(folder / name, std::ios::binary);
  to.files[name] = {std::istreambuf_iterator<char>(in), {}};
  if (!in) throw UserError(cat((folder / name).string(), " cannot be read"));
}

void take_tokenizer(const fs::path& folder, Companions& to) {
  take_file(folder, kTokenizer, to);
  if (!to.files.contains(kTokenizer)) return;
  for (const char* name : kOthers) take_file(folder, name, to);
  for (const char* name : {kTokenizer, kTokenizerConfig})  // what is read here
    if (to.files.contains(name) && !read_json(folder / name).is_object())
      throw UserError(cat((folder / name).string(), " holds no JSON object"));
}

// The tokens that a tokenizer.json adds to those it learned, which special ones are among, and those.
class Spelling {
 public:
  explicit Spelling(json tokenizer) : tokenizer_(std::move(tokenizer)) {}

  json id_of(const std::string& token) const {
    for (const json& added : added_tokens())
      if (added.value("content", json()) == token) return added.value("id", json());
    const json& known = learned();
    return known.is_object() && known.contains(token) ? known[token] : json();
  }
  std::string token_of(const json& id) const {
    for (const json& added : added_tokens())
      if (added.value("id", json()) == id && added.value("content", json()).is_string())
        return added["content"].get<std::string>();
    const json& known = learned();
    if (known.is_object())
      for (const auto& [token, its] : known.items())
        if (its == id) return token;
    return "";
  }

 private:
  // Those that are objects: what else there may be, the tokenizer itself refuses.
  std::vector<json> added_tokens() const {
    std::vector<json> all;
    for (const json& added : tokenizer_.value("added_tokens", json()))
      if (added.is_object()) all.push_back(added);
    return all;
  }
  const json& learned() const {
    static const json none;
    const auto model = tokenizer_.find("model");
    return model != tokenizer_.end() && model->is_object() && model->contains("vocab") ? (*model)["vocab"] : none;
  }

  json tokenizer_;
};

// A tokenizer_config.json names special tokens by what they spell, some with an object around it.
std::string special_token(const json& config, const char* name) {
  json found = config.value(name, json());
  if (found.is_object()) found = found.value("content", json());
  return found.is_string() ? found.get<std::string>() : "";
}

// What transformers needs and the folder did not have.
void complete(Companions& all, json& ids) {
  const Spelling spelling(json::parse(all.files.at(kTokenizer)));
  if (!all.files.contains(kTokenizerConfig)) {
    // Without a class transformers would take that of the model's kind, which cuts text in its own way.
    json config{{"tokenizer_class", "PreTrainedTokenizerFast"}};
    for (const char* name : {"bos_token", "eos_token"}) {
      const json id = ids.value(cat(name, "_id"), json());
      const std::string token = spelling.token_of(id.is_array() && !id.empty() ? id[0] : id);
      if (!token.empty()) config[name] = token;
    }
    all.files[kTokenizerConfig] = config.dump(2) + "\n";
  }
  const json config = json::parse(all.files.at(kTokenizerConfig));
  for (const char* name : {"bos_token", "eos_token"})
    if (const std::string token = special_token(config, name); !token.empty() && !ids.contains(cat(name, "_id")))
      if (const json id = spelling.id_of(token); !id.is_null()) ids[cat(name, "_id")] = id;
}

}  // namespace

Companions make_companions(const fs::path& model, const fs::path& tokens, int64_t end_token) {
  Companions all;
  json ids = json::object();
  if (!model.empty()) {
    take_tokenizer(model, all);
    take_file(model, kGeneration, all);
    const json config = read_json(model / kModelFile);
    for (const char* name : kIds)
      if (config.contains(name) && !config[name].is_null()) ids[name] = config[name];
  }
  if (!tokens.empty() && !all.files.contains(kTokenizer)) take_tokenizer(tokens, all);
  if (!tokens.empty() && end_token >= 0 && !ids.contains("eos_token_id")) ids["eos_token_id"] = end_token;
  if (all.files.contains(kTokenizer)) complete(all, ids);
  if (!ids.empty() && !all.files.contains(kGeneration)) all.files[kGeneration] = ids.dump(2) + "\n";
  all.ids = ids.dump();
  return all;
}

std::set<int64_t> end_ids(const fs::path& model) {
  std::set<int64_t> ids;
  for (const char* name : {kGeneration, kModelFile}) {
    if (!fs::exists(model / name)) continue;
    const json config = read_json(model / name);
    const json found = config.is_object() ? config.value("eos_token_id", json()) : json();
    for (const json& one : found.is_array() ? found : json::array({found}))
      if (one.is_number_integer()) ids.insert(one.get<int64_t>());
    if (!ids.empty()) return ids;
  }
  return ids;
}

}  // namespace startrail
