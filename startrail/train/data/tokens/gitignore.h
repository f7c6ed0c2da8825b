// The rules of one .gitignore file, as git reads them: *, **, ?, [sets], a leading and a trailing /, ! and comments.
// files.cc asks the rules of a file's folder and of the folders above it. The one difference from git: a / inside of
// [] or after \ separates folders like any other.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace startrail {

class Gitignore {
 public:
  explicit Gitignore(std::string_view text);

  // Whether `path`, relative to the folder of the .gitignore file, is ignored; nothing when no rule speaks of it. What
  // is inside an ignored folder is ignored too, but is not asked about here.
  std::optional<bool> ignores(std::string_view path, bool is_folder) const;

 private:
  struct Rule {
    std::vector<std::string> parts;  // between the slashes; "**" stands for any number of folders
    bool only_folders, keeps;
  };
  std::vector<Rule> rules_;
};

}  // namespace startrail
