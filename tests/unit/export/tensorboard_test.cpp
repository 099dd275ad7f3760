// SPDX-License-Identifier: Apache-2.0
#include "export/viewer_files.hpp"
#include "telemetry/route.hpp"
#include "worker/summary.hpp"

#include <boost/algorithm/hex.hpp>
#include <cstring>
#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::exporter;
using telemetry::Record;
using telemetry::Window;

namespace {

std::string hex(const std::string& bytes) {
  return boost::algorithm::hex_lower(bytes);
}

const WallTime kWhen{std::chrono::seconds(1763690000)};

struct Board final : telemetry::Sink {
  void consume(const Record& record) override { file += records.of(record); }
  std::string file = tensorboard_version(kWhen);
  TensorBoardRecords records;
};

/// The payloads of a file; checks lengths and checksums.
std::vector<std::string> payloads(std::string_view file) {
  std::vector<std::string> all;
  while (!file.empty()) {
    REQUIRE(file.size() >= 16);
    std::uint64_t size = 0;
    std::memcpy(&size, file.data(), 8);
    REQUIRE(file.size() >= 16 + size);
    const auto payload = file.substr(12, size);
    CHECK(tf_record(payload) == file.substr(0, 16 + size));
    all.emplace_back(payload);
    file.remove_prefix(16 + size);
  }
  return all;
}

Record a_window(std::shared_ptr<const telemetry::Sketch> sketch = nullptr) {
  Record record;
  record.kind = Record::Kind::Window;
  record.name = "lat";
  record.stamp.wall = kWhen;
  Window window;
  window.aggregates = {{"mean", 0.5}, {"p99", {}}};
  window.sketch = std::move(sketch);
  record.window = std::make_shared<const Window>(window);
  return record;
}

}  // namespace

TEST_CASE("tensorboard: the checksum is CRC-32C, masked as TFRecords want it") {
  CHECK(masked_crc32c("123456789") == 0xc78ab0e5);
  CHECK(masked_crc32c("") == 0xa282ead8);
}

TEST_CASE("tensorboard: records are those of TensorFlow, byte by byte") {
  CHECK(hex(tensorboard_version(kWhen)) ==
        "1800000000000000a37f4b220900000084f147da411a0d627261696e2e4576656e743a321db6fc48");
  CHECK(hex(tensorboard_values(kWhen + std::chrono::milliseconds(1500), 7, {{"a.sum", 10}})) ==
        "1b000000000000001a0d9e130900006084f147da4110072a0e0a0c0a05612e73756d15000020415"
        "1114b2d");
}

TEST_CASE("tensorboard: a file is named as TensorBoard looks for it") {
  CHECK(tensorboard_file_name(kWhen, "node1", 42) == "events.out.tfevents.1763690000.node1.42.0");
}

TEST_CASE("tensorboard: the aggregations of a window are scalars of one step, in their order") {
  Board sink;
  Record record = a_window();
  Window window = *record.window;
  record.name = "asdf";
  window.aggregates = {{"count", std::int64_t{5}}, {"sum", 10.0}};
  record.window = std::make_shared<const Window>(window);
  sink.consume(record);
  const auto all = payloads(sink.file);
  REQUIRE(all.size() == 2);
  CHECK(hex(all[1].substr(9)) ==
        "10002a24"
        "0a110a0a617364662e636f756e74150000a040"
        "0a0f0a08617364662e73756d1500002041");
}

TEST_CASE("tensorboard: steps rise with each value of a tag, or are those that are given") {
  Board sink;
  Record sample;
  sample.kind = Record::Kind::Sample;
  sample.name = "loss";
  sample.value = 0.25;
  sink.consume(sample);
  sink.consume(sample);
  sample.attributes = {{"step", std::int64_t{300}}};
  sink.consume(sample);
  sample.value = "text";
  sink.consume(sample);
  sink.consume(a_window());
  const auto all = payloads(sink.file);
  REQUIRE(all.size() == 5);
  const std::string steps[] = {"1000", "1001", "10ac02", "1000"};
  for (std::size_t i = 0; i < 4; ++i) CHECK(hex(all[i + 1].substr(9)).starts_with(steps[i]));
  CHECK(all[4].find("lat.mean") != std::string::npos);
  CHECK(all[4].find("lat.p99") == std::string::npos);  // has no value
}

TEST_CASE("tensorboard: a gap is not written, and a histogram has its buckets") {
  Board sink;
  Record gap = a_window();
  Window window = *gap.window;
  window.no_data = true;
  gap.window = std::make_shared<const Window>(window);
  sink.consume(gap);
  auto sketch = std::make_shared<telemetry::Sketch>();
  for (const double value : {-2.0, 0.0, 1.0, 1.0, 1.0}) sketch->add(value);
  sink.consume(a_window(sketch));
  const auto all = payloads(sink.file);
  REQUIRE(all.size() == 2);
  // limits -1.957, 0, 0.979, 1; counts 1, 1, 0, 3
  const auto digits = hex(all[1]);
  CHECK(digits.find("000000000000f03f000000000000f03f00000000000000000000000000000840") !=
        std::string::npos);
}
