// SPDX-License-Identifier: Apache-2.0
#include "export/record_line.hpp"

#include <doctest/doctest.h>

using namespace elastrun;

TEST_CASE("series name: texts tell series apart, not what is the same for all of a worker or GPU") {
  telemetry::Record record;
  record.kind = telemetry::Record::Kind::Sample;
  record.name = "loss";
  record.attributes = {{"rank", std::int64_t{3}}, {"role", "trainer"}, {"total", true}};
  CHECK(exporter::series_name(record) == "loss");
  record.name = "system.cpu.time";
  record.attributes = {{"cpu.mode", "user"}, {"total", true}};
  CHECK(exporter::series_name(record) == "system.cpu.time/cpu.mode_user");
  record.name = "hw.gpu.utilization";
  record.attributes = {{"hw.id", "GPU-1"}, {"hw.type", "gpu"}, {"index", "0"}, {"hw.model", "H"}};
  CHECK(exporter::series_name(record) == "hw.gpu.utilization/index_0");
  record.attributes = {{"role", "mine"}};  // a label of the user's own
  CHECK(exporter::series_name(record) == "hw.gpu.utilization/role_mine");
}

TEST_CASE("series name: labels of a meaning stand behind the attributes, in lines of JSON, too") {
  telemetry::Record record;
  record.kind = telemetry::Record::Kind::Sample;
  record.name = "norm";
  record.value = 0.5;
  telemetry::Meaning meaning{"1", "Gradients.", {{"layer", "3"}}};
  record.meaning = std::make_shared<const telemetry::Meaning>(std::move(meaning));
  CHECK(exporter::to_json_line(record).ends_with(R"("value":0.5,"attributes":{"layer":"3"}})"));
  record.attributes = {{"rank", std::int64_t{1}}, {"role", "trainer"}};
  CHECK(exporter::series_name(record) == "norm/layer_3");
  CHECK(exporter::to_json_line(record).ends_with(
      R"("attributes":{"rank":1,"role":"trainer","layer":"3"}})"));
}
