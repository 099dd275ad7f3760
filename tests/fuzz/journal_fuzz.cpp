// SPDX-License-Identifier: Apache-2.0
// Lines of a journal that anybody may have written: both readers of records must agree, and
// whatever the records say, the books must close and what is printed of them must fit. A line "--"
// begins the journal of the next agent: put together, they must hold to the same.
#include "export/record_line.hpp"
#include "goodput/journals/journal_books.hpp"
#include "goodput/reports/summary.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

namespace {

using namespace elastrun;

void require(bool holds) {
  if (!holds) std::abort();
}

bool is_same(const telemetry::Record& one, const telemetry::Record& other) {
  const auto apart = one.stamp.wall - other.stamp.wall;
  return one.kind == other.kind && one.stamp.mono == other.stamp.mono &&
         apart < std::chrono::milliseconds(1) && -apart < std::chrono::milliseconds(1) &&
         one.scope == other.scope && one.name == other.name &&
         one.value.index() == other.value.index() &&
         one.attributes.size() == other.attributes.size();
}

void check(const goodput::JournalBooks& books) {
  const auto summary = books.summary();
  if (!summary) return;
  const auto& buckets = summary->buckets;
  require(std::accumulate(buckets.begin(), buckets.end(), Duration{}) == summary->elapsed);
  require(*std::ranges::min_element(buckets) >= Duration::zero());
  require(0 <= summary->goodput_at_least());
  require(summary->goodput_at_least() <= summary->goodput_at_most());
  require(summary->goodput_at_most() <= 1);
  for (const auto& hint : goodput::hints(*summary, books.restarts())) {
    require(hint.saving >= 0 && hint.saving <= hint.share && hint.share <= 1.0001);
  }
  static_cast<void>(goodput::summary_text(*summary));
  static_cast<void>(goodput::restart_table(books.restarts(), 50, true));
  static_cast<void>(goodput::start_table(books.starts(), 8));
}

using Records = std::vector<telemetry::Record>;

void check_submission(const std::vector<const Records*>& journals,
                      const std::vector<goodput::JournalOutline>& outlines) {
  goodput::JournalBooks books;
  goodput::AgentJournals agents(outlines);
  std::vector<std::size_t> next(journals.size());
  TimePoint last = TimePoint::min();
  for (std::size_t i = 0; i < agents.stretches().size(); ++i) {
    using Verdict = goodput::AgentJournals::Verdict;
    const auto journal = agents.stretches()[i].journal;
    for (auto& at = next.at(journal); at < journals[journal]->size(); ++at) {
      auto record = (*journals[journal])[at];
      const auto verdict = agents.take(i, record);
      if (verdict == Verdict::Over) break;
      if (verdict == Verdict::LeftOut) continue;
      require(record.stamp.mono >= last);
      last = record.stamp.mono;
      books.take(record);
    }
  }
  check(books);
}

void check_together(const std::vector<Records>& journals) {
  std::vector<goodput::JournalOutline> outlines(journals.size());
  for (std::size_t i = 0; i < journals.size(); ++i) {
    for (const auto& record : journals[i]) outlines[i].take(record);
  }
  std::size_t placed = 0;
  for (const auto& members : goodput::submissions_of(outlines)) {
    std::vector<const Records*> own;
    std::vector<goodput::JournalOutline> known;
    for (const auto index : members) {
      own.push_back(&journals.at(index));
      known.push_back(outlines.at(index));
    }
    placed += members.size();
    check_submission(own, known);
  }
  require(placed == journals.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  goodput::JournalBooks books;
  telemetry::Record plain;
  std::vector<Records> journals(1);
  while (!rest.empty()) {
    const auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line == "--") journals.emplace_back();
    const auto record = exporter::from_json_line(line);
    const bool is_plain = exporter::read_plain_record(line, plain);
    require(!is_plain || (record && is_same(plain, *record)));
    if (!record) continue;
    books.take(*record);
    journals.back().push_back(*record);
  }
  check(books);
  if (journals.size() > 1) check_together(journals);
  return 0;
}
