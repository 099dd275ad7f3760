// SPDX-License-Identifier: Apache-2.0
#include "goodput_agents.hpp"

#include "export/record_line.hpp"
#include "goodput/journals/one_clock.hpp"
#include "goodput/journals/stitched_journals.hpp"
#include "goodput/journals/submissions.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

namespace elastrun::ctl {
namespace {

using goodput::JournalOutline;
using Verdict = goodput::StitchedJournals::Verdict;
using telemetry::Record;

/// The lines of a journal, file by file.
class Lines {
 public:
  explicit Lines(JournalFiles files) : files_(std::move(files)) {}

  /// None: the end, or a file that cannot be read; then failed() has its name.
  std::optional<std::string> next() {
    if (held_) return std::exchange(held_, {});
    std::string line;
    while (true) {
      if (stream_.is_open() && std::getline(stream_, line)) return line;
      // Not fail(), which the end of a file sets as well.
      if (stream_.bad()) failed_ = files_[next_ - 1];
      if (!failed_.empty() || next_ == files_.size()) return std::nullopt;
      stream_ = std::ifstream(files_[next_++], std::ios::binary);
      if (!stream_.is_open()) failed_ = files_[next_ - 1];
    }
  }
  /// Is the next one again.
  void hold(std::string line) { held_ = std::move(line); }
  const std::string& failed() const { return failed_; }

 private:
  const JournalFiles files_;
  std::size_t next_ = 0;
  std::ifstream stream_;
  std::optional<std::string> held_;
  std::string failed_;
};

JournalOutline outline_of(const JournalFiles& files) {
  JournalOutline outline;
  if (files.front() == "-") return outline;  // what comes through a pipe comes once
  Lines lines(files);
  Record record;
  while (const auto line = lines.next()) {
    if (exporter::read_plain_record(*line, record)) {
      outline.take(record);
    } else if (JournalOutline::concerns(*line)) {
      if (const auto read = exporter::from_json_line(*line)) outline.take(*read);
    }
  }
  return outline;
}

/// Takes the stretches one after the other.
class Stitching {
 public:
  Stitching(GoodputReader& reader, const std::vector<JournalFiles>& all,
            std::vector<goodput::Stretch> stretches)
      : reader_(reader), stitched_(std::move(stretches)), steps_(all.size()) {
    for (const auto& files : all) lines_.emplace_back(files);
  }

  Status take_all() {
    Status status;
    for (std::size_t i = 0; status && i < stitched_.stretches().size(); ++i) status = take(i);
    // It refers to variables of take(), which are gone.
    reader_.before_record = {};
    for (const auto& steps : steps_) reader_.input.agents.clock_steps += steps.count();
    return status;
  }

 private:
  Status take(std::size_t stretch) {
    const auto journal = stitched_.stretches()[stretch].journal;
    auto& lines = lines_[journal];
    bool over = false;
    reader_.before_record = [&](Record& record) {
      const auto stamp = record.stamp;
      const auto verdict = stitched_.take(stretch, record);
      over = verdict == Verdict::Over;
      if (over) return false;
      steps_[journal].take(record, stamp);
      if (verdict == Verdict::LeftOut) return false;
      for (const auto& missed : stitched_.take_missed()) reader_.add(missed);
      return true;
    };
    while (!over) {
      auto line = lines.next();
      if (!line) break;
      if (auto status = reader_.take(*line); !status) return status;
      // The line that ended this stretch is the first of a later one of the same journal.
      if (over) lines.hold(std::move(*line));
    }
    if (lines.failed().empty()) return {};
    return fail(Code::Io, fmt::format("cannot read {} to its end", lines.failed()));
  }

  GoodputReader& reader_;
  goodput::StitchedJournals stitched_;
  std::vector<Lines> lines_;
  std::vector<goodput::ClockSteps> steps_;
};

}  // namespace

std::vector<Submission> find_submissions(std::vector<JournalFiles> all) {
  if (all.size() == 1) return {{std::move(all), {}}};
  std::vector<JournalOutline> outlines;
  for (const auto& files : all) outlines.push_back(outline_of(files));
  std::vector<Submission> submissions;
  for (const auto& members : goodput::submissions_of(outlines)) {
    auto& submission = submissions.emplace_back();
    for (const auto index : members) {
      submission.journals.push_back(std::move(all[index]));
      submission.outlines.push_back(std::move(outlines[index]));
    }
    goodput::put_on_one_clock(submission.outlines);
  }
  return submissions;
}

Status read_agents(GoodputReader& reader, const Submission& submission) {
  const auto& outlines = submission.outlines;
  const auto stretches = goodput::stitch(outlines);
  Stitching stitching(reader, submission.journals, stretches);
  if (auto status = stitching.take_all(); !status) return status;
  std::set<std::size_t> telling;
  for (const auto& stretch : stretches) telling.insert(stretch.journal);
  auto& agents = reader.input.agents;
  agents.journals = std::max(agents.journals, outlines.size());
  // All stretches are by one clock.
  if (telling.size() == 1) return {};
  for (const auto index : telling) {
    agents.without_clock += outlines[index].knows_clock() ? 0 : 1;
    agents.clock_error = std::max(agents.clock_error, outlines[index].clock_error());
  }
  return {};
}

}  // namespace elastrun::ctl
