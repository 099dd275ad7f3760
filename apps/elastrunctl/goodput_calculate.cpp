// SPDX-License-Identifier: Apache-2.0

#include "core/error.hpp"
#include "core/file_io.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "elastrunctl/command_line.hpp"
#include "export/record_line.hpp"
#include "export/viewer_files.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "net/frame.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <fcntl.h>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::ctl {
namespace {

constexpr std::size_t kLongestEntry = 1 << 20;  // a longer line is not an entry
constexpr std::size_t kEntryBytes = 256 << 10;
constexpr std::string_view kBlank = " \t\r\n\v\f";

std::optional<double> number_of(const json::value& value, std::string_view name) {
  const auto* member = find_member(value, name);
  return member != nullptr && member->is_number() ? std::optional(member->to_number<double>())
                                                  : std::nullopt;
}

}  // namespace

/// The entries of one job, of files that grow: those of recorders, journals of ours, and what other
/// programs keep as JSON lines, bare or as {"log_time": SECONDS, "payload": {...}}. Each byte is
/// read once; a line without an end is read again until it is whole.
class MeasurementFiles {
 public:
  MeasurementFiles(std::string job, std::vector<std::string> paths)
      : job_(std::move(job)), paths_(std::move(paths)) {}

  struct Found {
    goodput::MeasurementLog log;
    json::array checkpoints;    // entries of Orbax, as they are
    std::uint64_t skipped = 0;  // invalid lines
    std::uint64_t lost = 0;     // entries that recorders could not write
  };

  /// Takes what is new. True: a file was replaced or has become shorter, and all was read again;
  /// `found` is another one then. What is not there yet is empty; another error is Io.
  Result<bool> read() {
    const bool again = std::ranges::any_of(
        files_, [](const auto& known) { return replaced(known.first, known.second); });
    // What was read is in sums by now, from which nothing can be taken out: all begins again.
    if (again) {
      files_.clear();
      found_ = {};
    }
    for (const auto& path : paths_) {
      if (const auto status = read_file(path, files_[path]); !status) {
        return std::unexpected(status.error());
      }
    }
    return again;
  }

  /// An entry that did not come in a file.
  void take_entry(std::string_view line) { (void)take(line, true); }
  const Found& found() const { return found_; }
  int error_number() const { return errno_; }  // of the last failure of read()

 private:
  struct File {
    off_t offset = 0;
    bool known = false;  // which file it was:
    dev_t device = 0;
    ino_t inode = 0;
    bool skipping = false;  // the rest of a line that is too long
  };

  static bool replaced(const std::string& path, const File& file) {
    if (!file.known) return false;
    struct stat now {};
    if (::stat(path.c_str(), &now) != 0) return errno == ENOENT;
    // Another inode is another file under the name; a shorter one was emptied. In both cases what
    // was read is no longer there, and all is read again.
    return now.st_dev != file.device || now.st_ino != file.inode || now.st_size < file.offset;
  }

  Status read_file(const std::string& path, File& file) {
    const auto failed = [&] {
      errno_ = errno;
      return std::unexpected(errno_error(Code::Io, fmt::format("cannot read {}", path), errno_));
    };
    // Opened again for each question: over NFS the size of a file that stays open may be an old one
    // (nfs(5), close-to-open).
    const UniqueFd input(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!input) {
      if (errno == ENOENT) return {};
      return failed();
    }
    struct stat now {};
    if (::fstat(input.get(), &now) != 0) return failed();
    file.known = true;
    file.device = now.st_dev;
    file.inode = now.st_ino;
    if (file.offset > 0 && ::lseek(input.get(), file.offset, SEEK_SET) < 0) return failed();
    std::string text;
    for (;;) {
      const auto kept = text.size();
      text.resize(kept + kEntryBytes);
      const auto count = ::read(input.get(), text.data() + kept, kEntryBytes);
      if (count < 0 && errno != EINTR) return failed();
      text.resize(kept + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
      const auto taken = take_lines(text, count == 0, file);
      // Behind the last whole line: half of one is read again with the next question.
      file.offset += static_cast<off_t>(taken);
      text.erase(0, taken);
      if (count == 0) return {};
    }
  }

  /// How many bytes of `text` are done with. `at_end`: no more of it is there yet.
  std::size_t take_lines(std::string_view text, bool at_end, File& file) {
    std::size_t taken = 0;
    for (auto end = text.find('\n'); end != text.npos; end = text.find('\n', taken)) {
      const auto line = text.substr(taken, end - taken);
      const bool skipped = std::exchange(file.skipping, false);
      if (!skipped && line.size() >= kLongestEntry) ++found_.skipped;
      if (!skipped && line.size() < kLongestEntry) (void)take(line, true);
      taken = end + 1;
    }
    const auto rest = text.substr(taken);
    if (!file.skipping && rest.size() >= kLongestEntry) {
      ++found_.skipped;
      file.skipping = true;
    }
    // A last line without its LF may be whole, or may still be written. If it parses it counts
    // now; else it waits for the rest.
    const bool done = file.skipping || (at_end && !rest.empty() && take(rest, false));
    return done ? text.size() : taken;
  }

  /// False: half a line. `whole`: it is none, whatever it says.
  bool take(std::string_view line, bool whole) {
    if (const auto step = exporter::read_plain_step(line)) {
      const bool sound =
          step->job != job_ || found_.log.add_step(step->step, step->time, step->log_time);
      if (!sound) ++found_.skipped;
      return true;
    }
    double log_time = 0;
    if (exporter::read_plain_entry(line, plain_, log_time) &&
        goodput::find_in(plain_, "event_type") == nullptr) {
      if (!add_entry(plain_, log_time)) ++found_.skipped;
      return true;
    }
    if (line.find_first_not_of(kBlank) == line.npos) return whole;
    const auto value = parse_json(line);
    if (!value && !whole) return false;
    if (!value || !take_value(*value)) ++found_.skipped;
    return true;
  }

  bool take_value(const json::value& value) {
    const auto* payload = find_member(value, "payload");
    if (payload != nullptr || find_member(value, "job_name") != nullptr) {
      const auto* entry = (payload != nullptr ? *payload : value).if_object();
      return entry != nullptr &&
             add_entry(goodput::members_of(*entry),
                       number_of(value, "log_time").value_or(std::nan("")), entry);
    }
    const auto* scope = find_member(value, "scope");
    if (scope == nullptr || !scope->is_string()) return false;
    if (std::string_view(scope->get_string()) != goodput::kRecorderScope) return true;
    const auto* attributes = find_member(value, "attributes");
    const auto* entry = attributes == nullptr ? nullptr : attributes->if_object();
    if (entry == nullptr) return false;
    const auto name = member_text_or(value, "name", "");
    const auto members = goodput::members_of(*entry);
    if (name != "lost" && name != "left_out") return add_entry(members, std::nan(""), entry);
    (name == "lost" ? found_.lost : found_.skipped) += goodput::count_in(members, "count");
    return true;
  }

  /// `tree`: what it was read from.
  bool add_entry(goodput::Members entry, double log_time, const json::object* tree = nullptr) {
    const auto* job = goodput::find_in(entry, "job_name");
    const auto* name = std::get_if<std::string>(job);
    if (job != nullptr && (name == nullptr || *name != job_)) return true;
    found_.lost += goodput::count_in(entry, "lost_entries");
    if (tree && is_of_orbax(goodput::kind_of(entry))) found_.checkpoints.push_back(*tree);
    return found_.log.add(entry, log_time).has_value();
  }

  const std::string job_;
  const std::vector<std::string> paths_;
  std::map<std::string, File> files_;  // by path
  Found found_;
  std::vector<telemetry::Attribute> plain_;  // of the last entry, whose memory the next reuses
  int errno_ = 0;
};

// `elastrunctl goodput calculate`: the calculator of ml-goodput-measurement for other programs. A
// line of stdin that is an object with "ask" is a question, answered by one line; every other one
// is an entry. elastrun.goodput of the Python package asks so.

namespace {

using goodput::GoodputCalculator;

constexpr int kLookMilliseconds = 500;  // after which an orphan sees that it is one
constexpr std::string_view kAsk = R"({"ask":)";

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

json::object numbers_json(const goodput::CalculatedGoodput& numbers) {
  json::object all{{"percent", numbers.percent},
                   {"percents", badput_json(numbers.badput_percent)},
                   {"max_step", numbers.max_productive_step},
                   {"total_s", numbers.total_seconds},
                   {"disruptions", numbers.disruptions}};
  if (numbers.slices) {
    all["slices"] = json::object{{"stepping_slice_efficiency", numbers.slices->stepping},
                                 {"available_slice_efficiency", numbers.slices->available}};
  }
  return all;
}

/// Records for the event file of the program that asks, whose values it writes for TensorBoard.
json::object tensorboard_records(const json::value& question) {
  const auto time_in = [](const json::value& value, std::string_view name) {
    return WallTime(from_seconds(number_of(value, name).value_or(0)));
  };
  std::string text;
  const auto* begins = find_member(question, "begins");
  if (begins != nullptr && *begins == true) {
    text = exporter::tensorboard_version(time_in(question, "now"));
  }
  const auto* rows = find_member(question, "rows");
  for (const auto& row : rows != nullptr && rows->is_array() ? rows->get_array() : json::array()) {
    text += exporter::tensorboard_values(
        time_in(row, "time"), member_int_or(row, "step", 0),
        {{member_text_or(row, "tag", ""), number_of(row, "value").value_or(0)}});
  }
  return {{"records", net::encode_base64(text)}};
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
    const auto what = member_text_or(*question, "ask", "");
    const bool reads = what != "known_deviations" && what != "tensorboard";
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
    const auto ideal = number_of(question, "ideal");
    if (what == "job" || what == "without") {
      const bool all = what == "job";
      const auto got = all ? calculator_->job(now, ideal)
                           : calculator_->job_without(spans_of(question), now, ideal);
      if (!got) return std::unexpected(got.error());
      auto answer = numbers_json(*got);
      answer["productive_s"] = got->productive_seconds;
      answer["badput_s"] = badput_json(got->badput_seconds);
      if (!all) answer["excluded_s"] = got->excluded_seconds;
      if (all) answer["deviation_s"] = got->step_deviation_metric;
      if (all) answer["ideal_s"] = got->ideal_step_time.value_or(0);
      return answer;
    }
    if (what == "window") {
      const auto got = calculator_->window(
          {number_of(question, "begin").value_or(0), number_of(question, "end").value_or(0)});
      if (!got) return std::unexpected(got.error());
      return numbers_json(*got);
    }
    if (what == "deviations") {
      calculator_->step_deviations(now, ideal);
      return deviations();
    }
    if (what == "known_deviations") return deviations();
    if (what == "tensorboard") return tensorboard_records(question);
    if (what == "checkpoints") return json::object{{"entries", files_.found().checkpoints}};
    return fail(Code::Usage, fmt::format("unknown question '{}'", what));
  }

  json::object deviations() const {
    json::array steps, seconds;
    for (const auto& one : calculator_->deviations()) {
      steps.emplace_back(one.step);
      seconds.emplace_back(one.seconds);
    }
    return {{"steps", std::move(steps)},
            {"seconds", std::move(seconds)},
            {"ideal_s", calculator_->ideal_step_time().value_or(0)}};
  }

  const GoodputCalculator::Kind kind_;
  MeasurementFiles files_;
  std::unique_ptr<GoodputCalculator> calculator_;
};

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
