// SPDX-License-Identifier: Apache-2.0
#include "export/json_lines.hpp"

#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdlib.h>

using namespace elastrun;
using namespace elastrun::exporter;
using telemetry::Record;

namespace {

struct Scratch {
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "journal_XXXXXX").string();
    directory = ::mkdtemp(pattern.data());
    path = directory + "/journal.jsonl";
  }
  ~Scratch() { std::filesystem::remove_all(directory); }
  std::string directory, path;
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

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> names_in(const std::string& path, std::uint64_t skipped = 0) {
  std::vector<std::string> names;
  const auto read = read_journal(path, [&](Record record) { names.push_back(record.name); });
  REQUIRE(read);
  CHECK(read->records == names.size());
  CHECK(read->skipped == skipped);
  return names;
}

using Names = std::vector<std::string>;

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

TEST_CASE("journal: events are in the file at once, the rest with the next event or flush") {
  const Scratch scratch;
  const auto journal = JsonLines::open(scratch.path).value();
  journal->consume(a_sample("one", std::int64_t{1}));
  CHECK(content(scratch.path).empty());
  journal->consume(an_event("two"));
  CHECK(names_in(scratch.path) == Names{"one", "two"});
  journal->consume(a_sample("three", std::int64_t{1}));
  journal->flush({});
  CHECK(names_in(scratch.path) == Names{"one", "two", "three"});
}

TEST_CASE("journal: samples without events do not pile up") {
  const Scratch scratch;
  const auto journal = JsonLines::open(scratch.path).value();
  for (int i = 0; i < 2000; ++i) journal->consume(a_sample("m", std::int64_t{i}));
  CHECK(content(scratch.path).size() > (64u << 10));
}

TEST_CASE("journal: a torn tail costs its own record only, for readers and for the next writer") {
  const Scratch scratch;
  JsonLines::open(scratch.path).value()->consume(an_event("one"));
  const std::string whole = content(scratch.path);
  for (std::size_t kept = 1; kept < whole.size() - 1; ++kept) {
    CAPTURE(kept);
    std::ofstream(scratch.path, std::ios::trunc) << whole << whole.substr(0, kept);
    CHECK(names_in(scratch.path, 1) == Names{"one"});
    JsonLines::open(scratch.path).value()->consume(an_event("two"));
    CHECK(names_in(scratch.path, kept == whole.size() - 1 ? 0 : 1) == Names{"one", "two"});
  }
}

TEST_CASE("journal: a full disk costs records, counted, and nothing else") {
  const auto journal = JsonLines::open("/dev/full");
  REQUIRE(journal);
  (*journal)->consume(an_event("one"));
  (*journal)->consume(an_event("two"));
  CHECK((*journal)->lost() == 2);
}

TEST_CASE("journal: a file that cannot be opened is an error that names it") {
  const auto journal = JsonLines::open("/nowhere/journal.jsonl");
  REQUIRE_FALSE(journal);
  CHECK(journal.error().text.find("/nowhere/journal.jsonl") != std::string::npos);
  CHECK_FALSE(read_journal("/nowhere/journal.jsonl", [](Record) {}));
}
