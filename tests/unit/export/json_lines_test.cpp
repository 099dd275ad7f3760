// SPDX-License-Identifier: Apache-2.0
#include "export/json_lines.hpp"

#include "support/fake_clock.hpp"
#include "support/loop.hpp"

#include <boost/asio/io_context.hpp>
#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <latch>
#include <sstream>
#include <stdlib.h>

using namespace elastrun;
using namespace elastrun::exporter;
using telemetry::Record;

namespace {

using Names = std::vector<std::string>;

struct Scratch {
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "journal_XXXXXX").string();
    directory = ::mkdtemp(pattern.data());
    path = directory + "/journal.jsonl";
  }
  ~Scratch() { std::filesystem::remove_all(directory); }
  /// Writes, and then syncs.
  void finish() {
    do {
      REQUIRE(calls.finish(std::chrono::minutes(1)));
      test::run_ready(loop);
    } while (!calls.idle());
  }
  std::string content() {
    REQUIRE(calls.finish(std::chrono::minutes(1)));
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  Names names(std::uint64_t skipped = 0) {
    finish();
    Names found;
    std::uint64_t torn = 0;
    std::ifstream in(path, std::ios::binary);
    REQUIRE(in);
    for (std::string line; std::getline(in, line);) {
      const auto record = from_json_line(line);
      if (record) found.push_back(record->name);
      torn += !record && !line.empty();
    }
    CHECK(torn == skipped);
    return found;
  }
  std::string directory, path;
  boost::asio::io_context loop;
  test::FakeClock clock;
  files::BlockingCalls calls{loop.get_executor()};
};

struct Journal : Scratch {
  JsonLines journal{clock, calls, path};
};

Record an_event(std::string name) {
  Record record;
  record.stamp.wall = WallTime(Duration(1767323045'000000005));
  record.stamp.mono = TimePoint(Duration(52));
  record.scope = "elastrun.agent";
  record.name = std::move(name);
  return record;
}

Record a_sample(std::string name, telemetry::Value value) {
  Record record = an_event(std::move(name));
  record.kind = Record::Kind::Sample;
  record.value = std::move(value);
  return record;
}

}  // namespace

TEST_CASE("journal: a record is one line of JSON") {
  Record record = an_event("worker.ended\n");
  record.attributes = {{"rank", std::int64_t{0}}, {"why", "\"x\" é"}, {"none", {}}};
  CHECK(to_json_line(record) ==
        R"({"time":1767323045.000000005,"mono_ns":52,"kind":"event","scope":"elastrun.agent",)"
        R"("name":"worker.ended\n","attributes":{"rank":0,"why":"\"x\" \u00e9","none":null}})");
  CHECK(to_json_line(a_sample("m", 0.5)) ==
        R"({"time":1767323045.000000005,"mono_ns":52,"kind":"sample","scope":"elastrun.agent",)"
        R"("name":"m","value":0.5})");
}

TEST_CASE("journal: a line gives its record back") {
  Record record = a_sample("m", std::int64_t{7});
  record.attributes = {{"a", true}, {"f", 1.0}, {"t", "x"}};
  const auto back = from_json_line(to_json_line(record));
  REQUIRE(back);
  CHECK(back->kind == record.kind);
  CHECK(back->scope == record.scope);
  CHECK(back->name == record.name);
  CHECK(back->value == record.value);
  CHECK(back->attributes == record.attributes);
  CHECK(back->stamp.mono == record.stamp.mono);
  CHECK(std::abs((back->stamp.wall - record.stamp.wall).count()) < 1000);  // a double's microsecond
}

TEST_CASE("journal: a number that JSON does not have is null, so the line stays readable") {
  CHECK(from_json_line(to_json_line(a_sample("m", std::nan("")))));
  Record record = an_event("e");
  record.attributes = {{"x", HUGE_VAL}};
  CHECK(from_json_line(to_json_line(record)));
}

TEST_CASE("journal: a line cut anywhere is no record, and neither is other JSON") {
  const std::string line = to_json_line(a_sample("m", "text"));
  for (std::size_t size = 0; size < line.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(from_json_line(line.substr(0, size)));
  }
  for (const char* bad :
       {"[]", "{}", R"({"time":1,"kind":"event"})", R"({"time":"x","name":"n"})",
        R"({"time":1,"kind":"new","name":"n"})", R"({"time":1e300,"kind":"event","name":"n"})"}) {
    CAPTURE(bad);
    CHECK_FALSE(from_json_line(bad));
  }
}

TEST_CASE_FIXTURE(
    Journal, "journal: events are in the file at once, the rest with the next event or flush") {
  journal.consume(a_sample("one", std::int64_t{1}));
  CHECK(content().empty());
  journal.consume(an_event("two"));
  CHECK(names() == Names{"one", "two"});
  journal.consume(a_sample("three", std::int64_t{1}));
  journal.flush({});
  CHECK(names() == Names{"one", "two", "three"});
}

TEST_CASE_FIXTURE(Journal, "journal: what comes without an event is in the file a pause later") {
  CHECK(clock.armed() == 0);
  journal.consume(a_sample("one", std::int64_t{1}));
  clock.advance(JsonLines::kPause / 2);
  journal.consume(a_sample("two", std::int64_t{1}));
  CHECK(content().empty());
  clock.advance(JsonLines::kPause / 2);
  CHECK(names() == Names{"one", "two"});
  CHECK(clock.armed() == 0);  // an idle job wakes nothing
  journal.consume(a_sample("three", std::int64_t{1}));
  journal.flush({});
  CHECK(clock.armed() == 0);
}

TEST_CASE_FIXTURE(Journal, "journal: samples without events do not pile up") {
  for (int i = 0; i < 2000; ++i) journal.consume(a_sample("m", std::int64_t{i}));
  CHECK(content().size() > (64u << 10));
}

TEST_CASE("journal: a torn tail costs its own record only, for readers and for the next writer") {
  Scratch scratch;
  JsonLines(scratch.clock, scratch.calls, scratch.path).consume(an_event("one"));
  const std::string whole = scratch.content();
  for (std::size_t kept = 1; kept < whole.size() - 1; ++kept) {
    CAPTURE(kept);
    std::ofstream(scratch.path, std::ios::trunc) << whole << whole.substr(0, kept);
    CHECK(scratch.names(1) == Names{"one"});
    JsonLines(scratch.clock, scratch.calls, scratch.path).consume(an_event("two"));
    CHECK(scratch.names(kept == whole.size() - 1 ? 0 : 1) == Names{"one", "two"});
  }
}

TEST_CASE("journal: a full disk costs records, counted, and nothing else") {
  Scratch scratch;
  JsonLines journal(scratch.clock, scratch.calls, "/dev/full");
  journal.consume(an_event("one"));
  journal.consume(an_event("two"));
  REQUIRE(scratch.calls.finish(std::chrono::minutes(1)));
  CHECK(journal.lost() == 2);
}

TEST_CASE("journal: no flood of workers pushes the agent's own records out of a slow disk's") {
  Scratch scratch;
  JsonLines journal(scratch.clock, scratch.calls, scratch.path);
  std::latch answers(1);  // of the file system
  scratch.calls.make(
      "slow", [&] { return answers.wait(), true; }, [](bool) {});
  Record said = an_event("flood");
  said.scope = "elastrun.worker";
  said.attributes = {{"text", std::string(100'000, 'x')}};
  constexpr std::uint64_t kSaid = 200;  // 20 MB
  for (std::uint64_t i = 0; i < kSaid; ++i) journal.consume(said);
  const auto lost = journal.lost();
  CHECK(lost > 0);
  journal.consume(an_event("group.failed"));
  journal.consume(said);
  journal.consume(an_event("restart"));
  CHECK(journal.lost() == lost + 1);
  answers.count_down();
  const auto names = scratch.names();
  REQUIRE(names.size() == kSaid - lost + 2);
  CHECK(names[names.size() - 2] == "group.failed");
  CHECK(names.back() == "restart");
}

TEST_CASE_FIXTURE(Journal,
                  "journal: a failure, a checkpoint and the end outlive a crash of the machine") {
  const auto syncs = [&](Record record) {
    const auto before = journal.synced();
    journal.consume(record);
    CHECK(names().back() == record.name);
    return journal.synced() - before;
  };
  auto checkpoint = an_event("checkpoint");
  CHECK(syncs(checkpoint) == 0);  // the agent has none
  checkpoint.scope = "elastrun.worker";
  CHECK(syncs(checkpoint) == 1);
  CHECK(syncs(an_event("phase")) == 0);
  for (const auto* name : {"group.failed", "restart"}) CHECK(syncs(an_event(name)) == 1);
  for (const auto* name : {"job.ended", "goodput"}) CHECK(syncs(an_event(name)) == 0);
  journal.flush({});  // of all that the end tells
  finish();
  CHECK(journal.synced() == 4);
}

TEST_CASE("journal: what has nothing to be synced, and a disk that is full, cost nothing more") {
  Scratch scratch;
  JsonLines nothing(scratch.clock, scratch.calls, "/dev/null"),
      full(scratch.clock, scratch.calls, "/dev/full");
  nothing.consume(an_event("restart"));
  full.consume(an_event("restart"));
  REQUIRE(scratch.calls.finish(std::chrono::minutes(1)));
  CHECK(nothing.lost() == 0);
  CHECK(full.lost() == 1);
}

TEST_CASE("journal: one that cannot be made costs its records") {
  Scratch scratch;
  JsonLines journal(scratch.clock, scratch.calls, "/nowhere/journal.jsonl");
  journal.consume(an_event("one"));
  REQUIRE(scratch.calls.finish(std::chrono::minutes(1)));
  CHECK(journal.lost() == 1);
}

TEST_CASE("journal: a window tells its time, its values and whether there were any") {
  Record record = an_event("batch.time");
  record.kind = Record::Kind::Window;
  record.attributes = {{"rank", "3"}};
  telemetry::Window window;
  window.end = TimePoint(Duration(60));
  window.index = 4;
  window.count = 2;
  window.unit = "s";
  window.aggregates = {{"mean", 0.5}, {"p99", {}}};
  record.window = std::make_shared<const telemetry::Window>(window);
  CHECK(to_json_line(record).ends_with(
      R"("attributes":{"rank":"3"},"window":{"start_ns":0,"end_ns":60,"index":4,"count":2,)"
      R"("dropped":0,"unit":"s","aggregates":{"mean":0.5,"p99":null}}})"));
  window.no_data = true;
  record.window = std::make_shared<const telemetry::Window>(window);
  CHECK(to_json_line(record).find(R"("no_data":true)") != std::string::npos);
  CHECK(from_json_line(to_json_line(record)));
}

TEST_CASE("journal: severity and id are told where they say something") {
  Record record = an_event("e");
  record.severity = telemetry::Severity::Error;
  record.id = 0xab;
  CHECK(
      to_json_line(record).ends_with(R"("name":"e","severity":"ERROR","id":"00000000000000ab"})"));
}
