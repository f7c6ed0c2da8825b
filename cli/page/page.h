// The page that `startrail show` writes: one HTML file with its style, its script and its data inside, which asks
// nothing of the network. page.html, style.css and the scripts beside it are compiled in; docs/pages.md lists the data.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace startrail::cli {

constexpr int kPageFormat = 1;

// With {"plans", "traces", "runs"} as data. Whatever a text in it says, it stays a text.
std::string make_page(nlohmann::json data, const std::string& title);

std::string base64(std::string_view bytes);

// What `plan --json` wrote, looked at as the page will: UserError for what it would not write. It is proved anew.
nlohmann::json plan_view(nlohmann::json plan, const std::filesystem::path& file);

// A trace file as the page takes it: columns instead of events. Of one larger than `most_bytes` only its last step.
// UserError for what is no trace of ours.
constexpr int64_t kMostTraceBytes = 20'000'000;
nlohmann::json trace_view(const nlohmann::json& trace, const std::filesystem::path& file,
                          int64_t most_bytes = kMostTraceBytes);

// A run's record: its metrics as columns, and its samples. UserError for a folder that holds no run.
nlohmann::json run_view(const std::filesystem::path& folder);

// The losses of a run's view as a curve of characters, `columns` wide: a column shows the least and the greatest of its
// steps, so that no spike is lost; validation is drawn over it.
std::string draw_losses(const nlohmann::json& run, size_t columns, size_t rows = 16);

}  // namespace startrail::cli
