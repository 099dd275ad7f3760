// SPDX-License-Identifier: Apache-2.0
#include "export/stream_sink.hpp"

#include "support/fake_clock.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::exporter;
using telemetry::Record;

namespace {

/// Takes a batch and answers when the test says so.
struct SlowWriter final : PieceWriter {
  void write(std::vector<std::string> batch, std::function<void(Written)> answer) override {
    batches.push_back(std::move(batch));
    then = std::move(answer);
  }
  void close(std::function<void()> done) override {
    closed = true;
    done();
  }
  void answer(std::size_t pieces, std::string trouble = {}) {
    std::exchange(then, {})({pieces, std::move(trouble)});
  }
  std::vector<std::vector<std::string>> batches;
  std::function<void(Written)> then;
  bool closed = false;
};

struct StreamPlace {
  test::FakeClock clock;
  SlowWriter* writer = new SlowWriter;
  std::shared_ptr<MetricsSink> made = make_stream_sink(
      clock, "file:x", [](const Record& record) { return record.name; },
      std::unique_ptr<PieceWriter>(writer));
  MetricsSink& sink = *made;
  void give(std::string text, Record::Kind kind = Record::Kind::Event) {
    Record record;
    record.kind = kind;
    record.name = std::move(text);
    sink.consume(record);
  }
};

using Batch = std::vector<std::string>;

}  // namespace

TEST_CASE_FIXTURE(
    StreamPlace,
    "stream sink: events go at once, samples with them, after a pause, or by the batch") {
  give("sample", Record::Kind::Sample);
  CHECK(writer->batches.empty());
  CHECK(clock.armed() == 1);
  clock.advance(kPiecePause);
  CHECK(writer->batches.back() == Batch{"sample"});
  give("event");
  CHECK(writer->batches.size() == 1);  // one batch at a time
  writer->answer(1);
  CHECK(writer->batches.back() == Batch{"event"});
  writer->answer(1);
  give("another", Record::Kind::Sample);
  give("one more");
  CHECK(writer->batches.back() == Batch{"another", "one more"});
  CHECK(sink.account().delivered == 2);
}

TEST_CASE_FIXTURE(
    StreamPlace, "stream sink: what is written in part, dropped or still open at the end is lost") {
  give("one");
  give("two");
  writer->answer(1);
  CHECK(writer->batches.back() == Batch{"two"});
  give(std::string(kMostPieces + 1, 'x'));  // does not fit at all
  CHECK(sink.account().waiting == 1);
  for (int i = 0; i < 6; ++i) give(std::string(1 << 20, static_cast<char>('a' + i)));
  writer->answer(0, "No space left on device");
  CHECK(writer->batches.back().at(0).starts_with('c'));  // the oldest two have gone
  const auto account = sink.account();
  CHECK(account.delivered == 1);
  CHECK(account.lost == 8);  // one refused, three dropped, four open
  CHECK(account.trouble == "No space left on device");
}

TEST_CASE_FIXTURE(StreamPlace,
                  "stream sink: its end comes after the last batch, and closes the writer") {
  bool done = false;
  give("one");
  give("two");
  sink.finish([&] { done = true; });
  writer->answer(1);
  CHECK_FALSE(done);
  writer->answer(1);
  CHECK(done);
  CHECK(writer->closed);
  CHECK(sink.account().lost == 0);
  CHECK(clock.armed() == 0);
}

TEST_CASE_FIXTURE(StreamPlace, "stream sink: with nothing to write its end is at once") {
  give("");  // not for this format
  bool done = false;
  sink.finish([&] { done = true; });
  CHECK(done);
  CHECK(sink.account().delivered == 0);
}
