// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "goodput/journals/journal_books.hpp"
#include "goodput/reports/summary.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <limits>
#include <numeric>
#include <random>

namespace elastrun::goodput {
namespace {

using namespace std::chrono_literals;
using telemetry::Record;

double seconds_of(const Ledger::Summary& summary, Bucket bucket) {
  return to_seconds(summary.of(bucket));
}

bool closed(const Ledger::Summary& summary) {
  const auto& all = summary.buckets;
  return std::accumulate(all.begin(), all.end(), Duration{}) == summary.elapsed &&
         *std::ranges::min_element(all) >= Duration::zero();
}

json::object entry(std::string_view member, double time) {
  return {{"job_name", "j"}, {member, time}};
}
json::object step(int number, double time) {
  return {{"job_name", "j"}, {"step_count", number}, {"step_start_time", time}};
}

Ledger::Summary books_of(const std::vector<json::object>& entries) {
  MeasurementLog log;
  for (const auto& one : entries) REQUIRE(log.add(members_of(one)));
  const auto books = keep_books(log);
  REQUIRE(books);
  REQUIRE(closed(books->summary));
  return books->summary;
}

/// Start at 0; two steps of 3 s from 5 on; stopped and started again at 100; two more steps; end.
std::vector<json::object> resumed_at(int number) {
  return {entry("job_start_time", 0),
          step(0, 5),
          step(1, 8),
          step(2, 11),
          entry("job_start_time", 100),
          step(number, 110),
          step(number + 1, 113),
          entry("job_end_time", 116)};
}

}  // namespace

TEST_CASE("measurement books: a resume at the next step keeps all, and the gap is no goodput") {
  const auto summary = books_of(resumed_at(3));
  CHECK(seconds_of(summary, Bucket::Productive) == doctest::Approx(15));
  CHECK(seconds_of(summary, Bucket::Lost) == 0);
  CHECK(seconds_of(summary, Bucket::Restart) == doctest::Approx(86));
  CHECK(seconds_of(summary, Bucket::Running) == doctest::Approx(15));
  CHECK(summary.goodput() == doctest::Approx(15.0 / 116));
}

TEST_CASE("measurement books: a resume further back loses the steps after it") {
  CHECK(seconds_of(books_of(resumed_at(1)), Bucket::Lost) == doctest::Approx(6));
  // What came before the first step is no step, though it is done again, too.
  CHECK(seconds_of(books_of(resumed_at(0)), Bucket::Lost) == doctest::Approx(9));
}

TEST_CASE("measurement books: two runs, evaluations, loads, ranks that say the same") {
  auto entries = resumed_at(3);
  entries.insert(entries.begin() + 4, entry("job_end_time", 14));
  auto summary = books_of(entries);
  CHECK(seconds_of(summary, Bucket::Queued) == doctest::Approx(86));
  CHECK(seconds_of(summary, Bucket::Productive) == doctest::Approx(15));

  json::object begin = entry("custom_badput_event_start_time", 9);
  json::object end = entry("custom_badput_event_end_time", 10.5);
  begin["custom_badput_event_type"] = end["custom_badput_event_type"] = "eval";
  entries.push_back(begin);
  entries.push_back(end);
  entries.push_back(entry("data_loading_start_time", 5));
  entries.push_back(entry("data_loading_end_time", 6));
  entries.push_back(step(1, 8.25));  // of another rank
  begin["custom_badput_event_type"] = end["custom_badput_event_type"] = "logging";
  begin["custom_badput_event_start_time"] = 105;
  end["custom_badput_event_end_time"] = 105.5;
  entries.push_back(begin);
  entries.push_back(end);
  summary = books_of(entries);
  REQUIRE(summary.custom.size() == 1);
  CHECK(to_seconds(summary.custom.at("logging")) == doctest::Approx(0.5));
  CHECK(seconds_of(summary, Bucket::Evaluation) == doctest::Approx(1.5));
  CHECK(seconds_of(summary, Bucket::DataLoading) == doctest::Approx(1));
  // A step of half the time of the others leaves it open what these did.
  CHECK(seconds_of(summary, Bucket::Productive) == doctest::Approx(7.5));
  CHECK(seconds_of(summary, Bucket::Unexplained) == doctest::Approx(3));
}

TEST_CASE("measurement books: the longest names fit 80 columns, too") {
  const auto text =
      summary_text(books_of({entry("job_start_time", 0), entry("data_loading_start_time", 1),
                             entry("data_loading_end_time", 4000), step(0, 5000), step(1, 5001),
                             entry("job_start_time", 9000), step(1, 99999), step(2, 100000)}),
                   false);
  CHECK(text.contains("  data_loading"));
  CHECK(text.contains("from failure to next start\n"));
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    CHECK(end - begin <= 80);
  }
}

TEST_CASE("measurement books: order and repetition change nothing, whatever the entries are") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    std::vector<json::object> entries{entry("job_start_time", 0)};
    double time = 1;
    for (int i = 0; i < 40; ++i) {
      time += static_cast<double>(random() % 1000 + 1) / 128;
      constexpr std::string_view kMembers[] = {"job_start_time",          "job_end_time",
                                               "tpu_init_start_time",     "tpu_init_end_time",
                                               "data_loading_start_time", "data_loading_end_time",
                                               "training_prep_end_time"};
      const auto choice = random() % 20;
      entries.push_back(choice < std::size(kMembers) ? entry(kMembers[choice], time)
                                                     : step(static_cast<int>(random() % 12), time));
    }
    const auto once = books_of(entries);
    std::ranges::shuffle(entries, random);
    entries.push_back(entries[random() % entries.size()]);
    const auto again = books_of(entries);
    REQUIRE(again.buckets == once.buckets);
    REQUIRE(again.elapsed == once.elapsed);
  }
}

TEST_CASE("measurement books: times that nobody can mean close all the same") {
  CHECK(closed(books_of({entry("job_start_time", -1e18), step(1, 1e18), step(2, 2e18)})));
  CHECK(closed(books_of({entry("job_start_time", 1e18), step(1, 0), step(2, 1)})));
  CHECK_FALSE(keep_books(MeasurementLog()).has_value());
}

namespace {

class Journal {
 public:
  void agent(Duration at, std::string name, std::vector<telemetry::Attribute> attributes = {}) {
    take(at, "elastrun.agent", std::move(name), {}, std::move(attributes));
  }
  void phase(Duration at, std::string name) { agent(at, "phase", {{"phase", std::move(name)}}); }
  void step(Duration at, std::int64_t number) { take(at, "elastrun.worker", "step", number, {}); }
  void worker(Duration at, std::string name, std::vector<telemetry::Attribute> attributes) {
    take(at, "elastrun.worker", std::move(name), {}, std::move(attributes));
  }
  /// What the recorder told of `when`, and the agent got at `at`.
  void entry(Duration at, Duration when, std::string name,
             std::vector<telemetry::Attribute> attributes = {}) {
    attributes.emplace_back(name, 50'000 + to_seconds(when));
    take(at, "elastrun.goodput", std::move(name), {}, std::move(attributes));
  }
  void span_end(Duration at) {
    take(at, "elastrun.agent", "worker", {}, {}, Record::Kind::SpanEnd);
  }
  /// The next submission starts at `at`, and its steady clock anywhere.
  void start(Duration at) {
    boot_ = 7 * at + 1000s;
    begun_ = at;
    agent(at, "job.started", {{"run_id", "night"}, {"max_nodes", std::int64_t{1}}});
  }

  JournalBooks books;

 private:
  void take(Duration at, std::string scope, std::string name, telemetry::Value value,
            std::vector<telemetry::Attribute> attributes, Record::Kind kind = Record::Kind::Event) {
    Record record;
    record.kind = kind;
    record.stamp = {TimePoint(boot_ + at - begun_), WallTime(50'000s + at)};
    record.scope = std::move(scope);
    record.name = std::move(name);
    record.value = std::move(value);
    record.attributes = std::move(attributes);
    books.take(record);
  }
  Duration boot_{}, begun_{};
};

}  // namespace

TEST_CASE("journal books: two submissions, the second one goes on where the first one was killed") {
  Journal journal;
  CHECK_FALSE(journal.books.summary().has_value());
  journal.phase(0s, "running");  // before any start
  journal.start(0s);
  journal.phase(1s, "starting");
  journal.phase(2s, "running");
  for (int i = 1; i <= 8; ++i) journal.step(2s + i * 10s, i);
  // The machine dies after 85 s; the job is submitted again after 200 s and resumes at step 7.
  journal.phase(85s, "running");
  journal.start(200s);
  journal.phase(201s, "starting");
  journal.phase(202s, "running");
  for (int i = 7; i <= 9; ++i) journal.step(142s + i * 10s, i);
  journal.phase(233s, "stopping");
  journal.agent(234s, "worker.ended", {{"exit_code", std::int64_t{0}}});
  journal.agent(234s, "group.gone");
  journal.agent(235s, "job.ended", {{"succeeded", true}});
  journal.span_end(204s);  // written late: not out of place
  journal.agent(235s, "goodput");
  const auto summary = journal.books.summary().value();
  CHECK(closed(summary));
  CHECK(journal.books.submissions() == 2);
  CHECK(journal.books.run_id() == "night");
  CHECK(journal.books.misplaced() == 1);
  CHECK(summary.elapsed == 235s);
  CHECK(summary.of(Bucket::Queued) == 115s);
  CHECK(summary.of(Bucket::Lost) == 23s);        // steps 7 and 8, and the one that was broken off
  CHECK(summary.of(Bucket::Productive) == 90s);  // 60 of steps 1 to 6, then 30
  CHECK(summary.of(Bucket::Stopping) == 3s);     // from the last step on
  CHECK(summary.loss_known);
}

TEST_CASE("journal books: what a recorder has told is where it says, whenever it came") {
  Journal journal;
  journal.start(0s);
  journal.phase(1s, "starting");
  journal.phase(2s, "running");
  journal.entry(3s, 3s, "tpu_init_start_time");
  journal.entry(7s, 6s, "tpu_init_end_time");
  journal.entry(9s, 7s, "data_loading_start_time");
  journal.entry(9s, 8s, "data_loading_end_time");
  journal.entry(11s, 10s, "step_start_time", {{"step_count", std::int64_t{0}}});
  journal.entry(21s, 20s, "step_start_time", {{"step_count", std::int64_t{1}}});
  const std::vector<telemetry::Attribute> eval{{"custom_badput_event_type", "eval"}};
  journal.entry(31s, 30s, "custom_badput_event_start_time", eval);
  journal.entry(34s, 33s, "custom_badput_event_end_time", eval);
  const std::vector<telemetry::Attribute> other{{"custom_badput_event_type", "evaluated"}};
  journal.entry(34s, 34s, "custom_badput_event_start_time", other);
  journal.entry(35s, 35s, "custom_badput_event_end_time", other);
  journal.entry(35s, 35s, "checkpoint_save_start_time");
  journal.entry(36s, 36s, "checkpoint_save_end_time");
  journal.entry(40s, 39s, "job_end_time");
  journal.entry(40s, 39s, "lost", {{"count", std::int64_t{3}}});
  journal.phase(41s, "stopping");
  journal.agent(41s, "job.ended", {{"succeeded", true}});
  const auto summary = journal.books.summary().value();
  CHECK(closed(summary));
  CHECK(summary.of(Bucket::Initialization) == 3s);
  CHECK(summary.of(Bucket::DataLoading) == 1s);
  CHECK(summary.of(Bucket::Evaluation) == 3s);
  CHECK(summary.of(Bucket::Custom) == 1s);
  CHECK(summary.custom == std::map<std::string, Duration>{{"evaluated", 1s}});
  CHECK(summary.of(Bucket::Checkpoint) == 1s);
  CHECK(summary.of(Bucket::Preparation) == 1s);  // 2 to 3
  CHECK(summary.of(Bucket::Running) == 3s);      // 6 to 7, 8 to 10
  CHECK(summary.of(Bucket::Productive) == 24s);  // from 10 to 39 but for 5
  CHECK(summary.of(Bucket::Stopping) == 2s);
  CHECK(summary.last_step == 1);
  CHECK(summary.restarts == 0);
  CHECK(journal.books.lost() == 3);
  CHECK(journal.books.misplaced() == 0);
}

TEST_CASE("journal books: phases of rank 0 have their buckets, until the next one or a step") {
  Journal journal;
  journal.start(0s);
  journal.phase(0s, "starting");
  journal.phase(0s, "running");
  const auto enter = [&](Duration at, std::string name, std::int64_t rank = 0) {
    journal.worker(at, "phase", {{"phase", std::move(name)}, {"rank", rank}});
  };
  for (int i = 1; i <= 5; ++i) journal.step(10s * i, i);
  enter(50s, "eval");
  enter(51s, "test", 1);
  enter(56s, "train");
  journal.step(60s, 6);
  enter(61s, "Save");
  enter(63s, "sampling");
  journal.step(70s, 7);
  journal.step(80s, 8);
  journal.worker(81s, "checkpoint", {{"step", std::int64_t{8}}, {"rank", std::int64_t{3}}});
  const auto summary = journal.books.summary().value();
  CHECK(closed(summary));
  CHECK(summary.of(Bucket::Evaluation) == 6s);
  CHECK(summary.of(Bucket::Checkpoint) == 2s);
  CHECK(summary.of(Bucket::Custom) == 7s);
  // What is left of two steps beside their phases is far shorter than the others.
  CHECK(summary.of(Bucket::Productive) + summary.of(Bucket::Unexplained) == 66s);
  CHECK_FALSE(summary.last_checkpoint.has_value());
}

TEST_CASE("journal books: a recorder's steps are lost and kept like others") {
  Journal journal;
  journal.start(0s);
  journal.phase(0s, "starting");
  journal.phase(0s, "running");
  for (int i = 0; i < 5; ++i) {
    journal.entry(10s * (i + 1), 10s * (i + 1), "step_start_time",
                  {{"step_count", std::int64_t{i}}});
  }
  // An end that never came, and a start after it: the failure ends both.
  journal.entry(55s, 55s, "data_loading_start_time");
  journal.phase(60s, "stopping");
  journal.agent(60s, "worker.ended", {{"exit_code", std::int64_t{1}}});
  journal.agent(60s, "group.gone");
  journal.phase(70s, "starting");
  journal.phase(70s, "running");
  journal.entry(80s, 80s, "step_start_time", {{"step_count", std::int64_t{3}}});
  journal.entry(90s, 90s, "step_start_time", {{"step_count", std::int64_t{4}}});
  const auto summary = journal.books.summary().value();
  CHECK(closed(summary));
  CHECK(summary.of(Bucket::Lost) == 15s);  // step 3, and what there was of step 4
  CHECK(summary.of(Bucket::DataLoading) == 5s);
  CHECK(summary.of(Bucket::Productive) == 40s);
  CHECK(summary.restarts == 1);
}

TEST_CASE("journal books: entries without sense change nothing") {
  Journal journal;
  journal.start(0s);
  journal.phase(1s, "running");
  journal.entry(2s, 2s, "step_start_time");  // without its number
  journal.entry(2s, 2s, "tpu_init_end_time");
  journal.entry(3s, 1'000'000s, "step_start_time", {{"step_count", std::int64_t{0}}});
  journal.entry(4s, -1'000'000s, "step_start_time", {{"step_count", std::int64_t{1}}});
  journal.entry(5s, 5s, "tpu_init_start_time", {{"rank", std::int64_t{1}}});
  journal.phase(6s, "stopping");
  const auto summary = journal.books.summary().value();
  CHECK(closed(summary));
  CHECK(summary.of(Bucket::Initialization) == 0s);
  CHECK(summary.of(Bucket::Unexplained) == 3s);  // of one step nobody knows how long it should last
}

TEST_CASE("journal books: the job begins with its agent, not with the first record of it") {
  Journal journal;
  journal.agent(5s, "job.started", {{"run_id", "night"}, {"since_start_s", 2.5}});
  journal.phase(6s, "running");
  journal.phase(9s, "stopping");
  const auto summary = journal.books.summary().value();
  CHECK(summary.elapsed == 6500ms);
  CHECK(summary.of(Bucket::Startup) == 3500ms);
}

TEST_CASE("journal books: a hang of more than a day is one") {
  Journal journal;
  journal.start(0s);
  journal.phase(1s, "starting");
  journal.phase(2s, "running");
  for (int i = 1; i <= 3; ++i) journal.step(2s + i * 10s, i);
  journal.agent(100032s, "job.hang", {{"standing_s", 100000.0}});
  CHECK(journal.books.summary().value().of(Bucket::Hang) == 100000s);
}

TEST_CASE("journal books: a hang is no training, from the last step to the end of the group") {
  Journal journal;
  journal.start(0s);
  journal.phase(1s, "starting");
  journal.phase(2s, "running");
  for (int i = 1; i <= 3; ++i) journal.step(2s + i * 10s, i);
  journal.agent(95s, "job.hang", {{"text", "rank 3 hangs"}, {"standing_s", 60.0}});
  journal.agent(100s, "restart",
                {{"cause", "rank 3 hangs"}, {"attempt_spent", true}, {"failure", true}});
  journal.phase(100s, "stopping");
  journal.agent(101s, "group.gone");
  const auto summary = journal.books.summary().value();
  CHECK(closed(summary));
  CHECK(summary.of(Bucket::Hang) == 65s);
  CHECK(summary.of(Bucket::Productive) == 30s);
  CHECK(summary.work.failures == 1);
  REQUIRE(journal.books.starts().size() == 1);
  CHECK(journal.books.starts()[0].ended == "rank 3 hangs");
}

TEST_CASE("journal books: what is told twice, and asked for in between, changes nothing") {
  const auto told = [](unsigned seed, bool twice) {
    std::mt19937_64 random(seed);
    Journal journal;
    journal.start(0s);
    Duration now{};
    std::int64_t step = 0;
    for (int fact = 0; fact < 60; ++fact) {
      now += std::chrono::milliseconds(random() % 2000);
      const auto choice = random() % 12;
      step += static_cast<std::int64_t>(random() % 4) - 1;
      for (int times = twice ? 2 : 1; times > 0; --times) {
        constexpr const char* kPhases[] = {"joining", "starting", "running", "stopping", "waiting"};
        if (choice < 5) {
          journal.phase(now, kPhases[choice]);
        } else if (choice == 5) {
          journal.agent(now, "group.gone");
        } else if (choice == 6) {
          journal.agent(now, "restart", {{"cause", "x"}, {"failure", true}});
        } else if (choice == 7) {
          journal.agent(now, "job.hang", {{"standing_s", 1.5}});
        } else {
          journal.step(now, step);
        }
        if (twice) REQUIRE(closed(journal.books.summary().value()));
      }
    }
    return journal.books;
  };
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const auto once = told(seed, false), twice = told(seed, true);
    REQUIRE(once.summary()->buckets == twice.summary()->buckets);
  }
}

TEST_CASE("journal books: times and steps that nobody can mean close all the same") {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  JournalBooks books;
  for (const std::int64_t mono : {kMost, -kMost, std::int64_t{0}, kMost}) {
    for (const auto* name : {"job.started", "phase", "step", "group.gone", "phase", "step"}) {
      Record record;
      record.scope = std::string_view(name) == "step" ? "elastrun.worker" : "elastrun.agent";
      record.name = name;
      record.stamp = {TimePoint(Duration(mono)), WallTime(Duration(-mono))};
      record.value = -kMost - 1;
      record.attributes = {{"run_id", "night"}, {"phase", "running"}};
      books.take(record);
      CHECK(closed(books.summary().value()));
    }
  }
}

TEST_CASE("journal books: records of another job are counted and left out") {
  Journal journal;
  journal.start(0s);
  journal.phase(1s, "running");
  journal.agent(2s, "job.started", {{"run_id", "day"}});
  journal.phase(3s, "stopping");
  CHECK(journal.books.other_jobs() == 2);
  CHECK(journal.books.run_id() == "night");
}

TEST_CASE("journal books: a journal that ends without a word is that of an agent that died") {
  Journal journal;
  journal.start(0s);
  journal.phase(1s, "running");
  for (int step = 1; step <= 30; ++step) journal.step(1s + step * 1s, step);
  journal.worker(31s, "checkpoint", {{"step", std::int64_t{20}}});
  CHECK(journal.books.summary()->of(Bucket::Lost) == 0s);
  journal.books.close();
  journal.books.close();
  const auto summary = journal.books.summary().value();
  CHECK(summary.of(Bucket::Lost) == 10s);
  CHECK(summary.elapsed == 31s);
  CHECK(summary.last_kept == 20);
  CHECK(journal.books.has_ended());
  CHECK(journal.books.starts().front().ended == "agent or machine died");
  Journal over;
  over.start(0s);
  over.phase(1s, "running");
  over.step(2s, 1);
  over.agent(3s, "job.ended", {{"succeeded", true}});
  over.books.close();
  CHECK(over.books.starts().front().ended == "succeeded");
}

}  // namespace elastrun::goodput
