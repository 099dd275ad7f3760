// SPDX-License-Identifier: Apache-2.0
#include "plugin/library.hpp"

#include <doctest/doctest.h>
#include <map>
#include <stdexcept>

using namespace elastrun;
using namespace elastrun::plugin;
using telemetry::Attribute;
using telemetry::Record;

namespace {

/// What a record of the interface says, as text.
std::string text_of(const elastrun_value& value) {
  if (value.type == ELASTRUN_TRUTH) return value.as.truth != 0 ? "true" : "false";
  if (value.type == ELASTRUN_WHOLE) return std::to_string(value.as.whole);
  if (value.type == ELASTRUN_NUMBER) return "~" + std::to_string(value.as.number);
  return value.type == ELASTRUN_TEXT ? std::string("'") + value.as.text + "'" : "none";
}

std::string text_of(const elastrun_record& record) {
  std::string text = std::to_string(record.kind) + " " + record.scope + "." + record.name + "=" +
                     text_of(record.value) + " " + record.unit;
  for (std::size_t i = 0; i < record.attribute_count; ++i) {
    text += std::string(" ") + record.attributes[i].key + "=" + text_of(record.attributes[i].value);
  }
  for (std::size_t i = 0; i < record.aggregate_count; ++i) {
    text +=
        std::string(" <") + record.aggregates[i].key + ">" + text_of(record.aggregates[i].value);
  }
  return text;
}

struct Taken {
  std::vector<std::string> texts;
  elastrun_record last{};
  int answer = 0;
  const char* why = nullptr;
  int closed = 0;
};

int take(void* self, const elastrun_record* record) {
  auto& taken = *static_cast<Taken*>(self);
  taken.texts.push_back(text_of(*record));
  taken.last = *record;
  if (taken.answer == -1) throw std::runtime_error("no\x1b room");
  return taken.answer;
}

Taken* to_be_opened = nullptr;

int open_it(const elastrun_host* host, void** self) {
  *self = to_be_opened;
  host->log(host, ELASTRUN_WARN, host->argument);
  return to_be_opened->answer;
}

elastrun_plugin table_of(Taken& taken) {
  to_be_opened = &taken;
  elastrun_plugin table{};
  table.abi = ELASTRUN_PLUGIN_ABI;
  table.size = sizeof(table);
  table.name = "test";
  table.open = open_it;
  table.metric = table.event = table.span = table.window = table.series = take;
  table.error = [](void* self) { return static_cast<Taken*>(self)->why; };
  table.close = [](void* self) { static_cast<Taken*>(self)->closed += 1; };
  return table;
}

std::string refusal_of(const elastrun_plugin& table) {
  const auto opened = Library::open(&table, "x.so", {});
  REQUIRE(!opened);
  CHECK(opened.error().code == Code::Usage);
  CHECK(opened.error().text.starts_with("x.so: "));
  return opened.error().text;
}

Record record_of(Record::Kind kind) {
  Record record;
  record.kind = kind;
  record.scope = "scope";
  record.name = "name";
  record.stamp = {TimePoint(std::chrono::seconds(5)), WallTime(std::chrono::seconds(1000))};
  return record;
}

}  // namespace

TEST_CASE("plugin library: what is no plug-in of this version is refused with the reason") {
  Taken taken;
  auto table = table_of(taken);
  table.abi = 2;
  CHECK(refusal_of(table).find("version 2") != std::string::npos);
  table = table_of(taken);
  table.size = 4;
  CHECK(refusal_of(table).find("sizeof(elastrun_plugin)") != std::string::npos);
  table = table_of(taken);
  table.metric = table.event = table.span = table.window = table.series = nullptr;
  CHECK(refusal_of(table).find("takes nothing") != std::string::npos);
  taken.answer = 3;
  CHECK(refusal_of(table_of(taken)).ends_with("open() returned 3"));
  taken.why = "no more";
  CHECK(refusal_of(table_of(taken)).ends_with("no more"));
  CHECK(!Library::open(nullptr, "x.so", {}));
  CHECK(!Library::load("no-such-plugin.so", {}));
  CHECK(taken.closed == 0);
}

TEST_CASE("plugin library: one that knows less of the table has only what it knows") {
  Taken taken;
  auto table = table_of(taken);
  table.health = [](void*) { return 1; };
  table.size = offsetof(elastrun_plugin, health);
  const auto library = Library::open(&table, "", {});
  REQUIRE(library.has_value());
  CHECK(!(*library)->has_health());
  CHECK((*library)->takes_series());
}

TEST_CASE("plugin library: each kind of record comes as it is") {
  Taken taken;
  const auto table = table_of(taken);
  const auto library = *Library::open(&table, "", {});
  auto event = record_of(Record::Kind::Event);
  event.severity = telemetry::Severity::Error;
  event.id = 7;
  event.attributes = {{"t", true}, {"w", std::int64_t{-3}}, {"n", 0.5}, {"s", "x"}, {"null", {}}};
  CHECK(library->take(event));
  CHECK(taken.texts.back() == "0 scope.name=none  t=true w=-3 n=~0.500000 s='x' null=none");
  CHECK(taken.last.size == sizeof(elastrun_record));
  CHECK(taken.last.severity == ELASTRUN_ERROR);
  CHECK(taken.last.id == 7);
  CHECK(taken.last.time_ns == 1'000'000'000'000);
  CHECK(taken.last.mono_ns == 5'000'000'000);

  auto sample = record_of(Record::Kind::Sample);
  sample.value = 0.25;
  CHECK(library->take(sample));
  CHECK(taken.texts.back() == "1 scope.name=~0.250000 ");

  auto span = record_of(Record::Kind::SpanEnd);
  span.attributes = {{"duration_ns", std::int64_t{2'000'000'000}}};
  CHECK(library->take(span));
  CHECK(taken.last.start_ns == 3'000'000'000);
  CHECK(taken.last.end_ns == 5'000'000'000);

  auto window = record_of(Record::Kind::Window);
  telemetry::Window in{TimePoint(Duration(1)), TimePoint(Duration(2))};
  in.count = 4;
  in.unit = "s";
  in.aggregates = {{"mean", 0.5}};
  window.window = std::make_shared<const telemetry::Window>(in);
  CHECK(library->take(window));
  CHECK(taken.texts.back() == "2 scope.name=none s <mean>~0.500000");
  CHECK(taken.last.count == 4);
  CHECK(taken.last.start_ns == 1);
}

TEST_CASE("plugin library: a series comes with its kind, labels and summary") {
  Taken taken;
  const auto table = table_of(taken);
  const auto library = *Library::open(&table, "", {});
  telemetry::Point point;
  point.spec = std::make_shared<const telemetry::Spec>(
      telemetry::Spec{.name = "job.steps", .unit = "{step}", .scope = "s"});
  point.kind = telemetry::Kind::Counter;
  point.labels = {{"rank", "3"}};
  point.value = std::int64_t{12};
  CHECK(library->take(point, {}));
  CHECK(taken.texts.back() == "4 s.job.steps=12 {step} rank='3'");
  point.kind = telemetry::Kind::Stat;
  point.value = {};
  point.summary.add(1);
  point.summary.add(3);
  CHECK(library->take(point, {}));
  CHECK(taken.texts.back() ==
        "7 s.job.steps=none {step} rank='3' <count>2 <sum>~4.000000 <mean>~2.000000 "
        "<min>~1.000000 <max>~3.000000 <stddev>~1.000000");
}

TEST_CASE("plugin library: failures and what is thrown are sentences") {
  Taken taken;
  const auto table = table_of(taken);
  const auto library = *Library::open(&table, "", {"a\nb", "", "", "", ""});
  taken.answer = 3;
  CHECK(library->take(record_of(Record::Kind::Event)).error().text == "event() returned 3");
  taken.why = "the disk is full";
  CHECK(library->take(record_of(Record::Kind::Sample)).error().text == "the disk is full");
  taken.answer = -1;
  const auto thrown = library->take(record_of(Record::Kind::Window)).error().text;
  CHECK(thrown.starts_with("window(): it threw: no"));
  CHECK(thrown.find('\x1b') == std::string::npos);
  library->close();
  CHECK(taken.closed == 1);
}

TEST_CASE("plugin library: lines for the log wait, up to a bound") {
  Taken taken;
  auto table = table_of(taken);
  static const elastrun_host* given = nullptr;
  table.open = [](const elastrun_host* host, void** self) {
    given = host;
    *self = to_be_opened;
    return 0;
  };
  const auto library = *Library::open(&table, "", {"said", "", "", "", ""});
  for (int i = 0; i < 200; ++i) given->log(given, ELASTRUN_WARN, given->argument);
  given->log(given, ELASTRUN_WARN, nullptr);
  const auto lines = library->take_log();
  CHECK(lines.size() == Library::kLines);
  CHECK(lines[0].text == "said");
  CHECK(library->take_log().empty());
}
