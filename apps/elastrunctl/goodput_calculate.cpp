// SPDX-License-Identifier: Apache-2.0
// `elastrunctl goodput calculate`: the calculator of ml-goodput-measurement for other programs. A
// line of stdin that is an object with "ask" is a question, answered by one line; every other one
// is an entry. elastrun.goodput of the Python package asks so.
#include "core/write_all.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "measurement_files.hpp"
#include "subcommands.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fmt/format.h>
#include <memory>
#include <poll.h>
#include <unistd.h>

namespace elastrun::ctl {
namespace {

using goodput::GoodputCalculator;

constexpr int kLookMilliseconds = 500;  // after which an orphan sees that it is one
constexpr std::string_view kAsk = R"({"ask":)";

std::optional<double> number_of(const json::value& question, std::string_view name) {
  const auto* value = find_member(question, name);
  return value != nullptr && value->is_number() ? std::optional(value->to_number<double>())
                                                : std::nullopt;
}

std::vector<goodput::TimeSpan> spans_of(const json::value& question) {
  std::vector<goodput::TimeSpan> spans;
  const auto* list = find_member(question, "spans");
  if (list == nullptr || !list->is_array()) return spans;
  for (const auto& one : list->get_array()) {
    const auto* ends = one.if_array();
    if (ends == nullptr || ends->size() != 2 || !(*ends)[0].is_number()) continue;
    if ((*ends)[1].is_number()) {
      spans.push_back({(*ends)[0].to_number<double>(), (*ends)[1].to_number<double>()});
    }
  }
  return spans;
}

json::object share_of(double percent, const goodput::BadputTimes& percents, std::int64_t step) {
  return {{"percent", percent}, {"percents", badput_json(percents)}, {"max_step", step}};
}

void add_slices(json::object& answer, const std::optional<goodput::SliceEfficiency>& slices) {
  if (!slices || !slices->counted) return;
  answer["slices"] = json::object{{"stepping_slice_efficiency", slices->stepping},
                                  {"available_slice_efficiency", slices->available}};
}

class Desk {
 public:
  explicit Desk(const CalculateOptions& options)
      : kind_(options.elastic ? GoodputCalculator::Kind::Elastic : GoodputCalculator::Kind::Base),
        files_(options.job, options.files) {
    begin_again();
  }

  void take_entry(std::string_view line) { files_.take_entry(line); }

  json::object answer(std::string_view line) {
    auto answer = read_and_ask(line);
    answer["skipped"] = files_.found().skipped;
    answer["lost"] = files_.found().lost;
    return answer;
  }

 private:
  void begin_again() {
    calculator_ = std::make_unique<GoodputCalculator>(files_.found().log, kind_);
  }

  json::object read_and_ask(std::string_view line) {
    const auto question = parse_json(line);
    if (!question) return {{"error", question.error().text}};
    // What is known of an answer is of the log as it was then.
    const bool reads = member_text_or(*question, "ask", "") != "known_deviations";
    const auto again = reads ? files_.read() : Result<bool>(false);
    if (!again) return {{"error", again.error().text}, {"errno", files_.error_number()}};
    if (*again) begin_again();
    auto answer = ask(*question);
    if (!answer) return {{"error", answer.error().text}, {"began_again", *again}};
    (*answer)["began_again"] = *again;
    return std::move(*answer);
  }

  Result<json::object> ask(const json::value& question) {
    const auto what = member_text_or(question, "ask", "");
    const double now = number_of(question, "now").value_or(0);
    if (what == "job") return job(now, number_of(question, "ideal"));
    if (what == "without") return without(question, now);
    if (what == "window") return window(question);
    if (what == "deviations") {
      calculator_->step_deviations(now, number_of(question, "ideal"));
      return deviations();
    }
    if (what == "known_deviations") return deviations();
    if (what == "checkpoints") return json::object{{"entries", files_.found().checkpoints}};
    return fail(Code::Usage, fmt::format("unknown question '{}'", what));
  }

  Result<json::object> job(double now, std::optional<double> ideal);
  Result<json::object> without(const json::value& question, double now);
  Result<json::object> window(const json::value& question);
  json::object deviations() const;

  const GoodputCalculator::Kind kind_;
  MeasurementFiles files_;
  std::unique_ptr<GoodputCalculator> calculator_;
};

Result<json::object> Desk::job(double now, std::optional<double> ideal) {
  const auto job = calculator_->job(now, ideal);
  if (!job) return std::unexpected(job.error());
  auto answer = share_of(job->percent, job->badput_percent, job->max_productive_step);
  answer["productive_s"] = job->productive_seconds;
  answer["badput_s"] = badput_json(job->badput_seconds);
  answer["total_s"] = job->total_seconds;
  answer["disruptions"] = job->disruptions;
  answer["deviation_s"] = job->step_deviation_metric;
  answer["ideal_s"] = job->ideal_step_time.value_or(0);
  add_slices(answer, job->slices);
  return answer;
}

Result<json::object> Desk::without(const json::value& question, double now) {
  const auto job = calculator_->job_without(spans_of(question), now, number_of(question, "ideal"));
  if (!job) return std::unexpected(job.error());
  auto answer = share_of(job->percent, job->badput_percent, job->max_productive_step);
  answer["excluded_s"] = job->excluded_seconds;
  answer["productive_s"] = job->productive_seconds;
  answer["badput_s"] = badput_json(job->badput_seconds);
  answer["total_s"] = job->total_seconds;
  answer["disruptions"] = job->disruptions;
  return answer;
}

Result<json::object> Desk::window(const json::value& question) {
  const auto found = calculator_->window(
      {number_of(question, "begin").value_or(0), number_of(question, "end").value_or(0)});
  if (!found) return std::unexpected(found.error());
  auto answer = share_of(found->percent, found->badput_percent, found->max_productive_step);
  answer["total_s"] = found->total_seconds;
  answer["disruptions"] = found->disruptions;
  add_slices(answer, found->slices);
  return answer;
}

json::object Desk::deviations() const {
  json::array steps, seconds;
  for (const auto& one : calculator_->deviations()) {
    steps.emplace_back(one.step);
    seconds.emplace_back(one.seconds);
  }
  return {{"steps", std::move(steps)},
          {"seconds", std::move(seconds)},
          {"ideal_s", calculator_->ideal_step_time().value_or(0)}};
}

/// Lines of stdin, until it ends or the process that asks has.
class Questions {
 public:
  bool next(std::string& line) {
    for (;;) {
      if (const auto end = text_.find('\n', looked_); end != text_.npos) {
        line = text_.substr(begin_, end - begin_);
        begin_ = looked_ = end + 1;
        return true;
      }
      text_.erase(0, begin_);
      begin_ = 0;
      // The search goes on from here: a long line comes in many reads.
      looked_ = text_.size();
      if (!more()) return false;
    }
  }

 private:
  /// stdin may stay open in a process that the asking one has forked: so its parent counts, too.
  bool more() {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    while (::poll(&input, 1, kLookMilliseconds) <= 0) {
      // An orphan is given to another process (getppid(2)).
      if (::getppid() != parent_) return false;
    }
    char room[64 << 10];
    const auto count = ::read(STDIN_FILENO, room, sizeof room);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (count > 0) text_.append(room, static_cast<std::size_t>(count));
    return count > 0;
  }

  const pid_t parent_ = ::getppid();
  std::string text_;
  std::size_t begin_ = 0, looked_ = 0;
};

}  // namespace

int run_goodput_calculate(const CalculateOptions& options) {
  std::signal(SIGINT, SIG_IGN);  // Ctrl-C is for the process that asks, whose end ends this one
  // Then write(2) fails, and the program ends by its own way out.
  std::signal(SIGPIPE, SIG_IGN);
  Desk desk(options);
  Questions questions;
  for (std::string line; questions.next(line);) {
    if (!line.starts_with(kAsk)) {
      desk.take_entry(line);
      continue;
    }
    if (write_all(STDOUT_FILENO, json::serialize(desk.answer(line)) + "\n") != 0) break;
  }
  return kExitDone;
}

}  // namespace elastrun::ctl
