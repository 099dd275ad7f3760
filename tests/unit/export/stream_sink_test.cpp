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
  StreamSink sink{clock, "file:x", [](const Record& record) { return record.name; },
                  std::unique_ptr<PieceWriter>(writer)};
  void give(std::string text, Record::Kind kind = Record::Kind::Event) {
    Record record;
    record.kind = kind;
    record.name = std::move(text);
    sink.consume(record);
  }
};

using Batch = std::vector<std::string>;

}  // namespace

TEST_CASE("stream sink: events go at once, samples with them, after a pause, or by the batch") {
  StreamPlace place;
  place.give("sample", Record::Kind::Sample);
  CHECK(place.writer->batches.empty());
  CHECK(place.clock.armed() == 1);
  place.clock.advance(StreamSink::kPause);
  CHECK(place.writer->batches.back() == Batch{"sample"});
  place.give("event");
  CHECK(place.writer->batches.size() == 1);  // one batch at a time
  place.writer->answer(1);
  CHECK(place.writer->batches.back() == Batch{"event"});
  place.writer->answer(1);
  place.give("another", Record::Kind::Sample);
  place.give("one more");
  CHECK(place.writer->batches.back() == Batch{"another", "one more"});
  CHECK(place.sink.account().delivered == 2);
}

TEST_CASE("stream sink: what is written in part, dropped or still open at the end is lost") {
  StreamPlace place;
  place.give("one");
  place.give("two");
  place.writer->answer(1);
  CHECK(place.writer->batches.back() == Batch{"two"});
  place.give(std::string(StreamSink::kMost + 1, 'x'));  // does not fit at all
  CHECK(place.sink.account().waiting == 1);
  for (int i = 0; i < 6; ++i) place.give(std::string(1 << 20, static_cast<char>('a' + i)));
  place.writer->answer(0, "No space left on device");
  CHECK(place.writer->batches.back().at(0).starts_with('c'));  // the oldest two have gone
  const auto account = place.sink.account();
  CHECK(account.delivered == 1);
  CHECK(account.lost == 8);  // one refused, three dropped, four open
  CHECK(account.trouble == "No space left on device");
}

TEST_CASE("stream sink: its end comes after the last batch, and closes the writer") {
  StreamPlace place;
  bool done = false;
  place.give("one");
  place.give("two");
  place.sink.finish([&] { done = true; });
  place.writer->answer(1);
  CHECK_FALSE(done);
  place.writer->answer(1);
  CHECK(done);
  CHECK(place.writer->closed);
  CHECK(place.sink.account().lost == 0);
  CHECK(place.clock.armed() == 0);
}

TEST_CASE("stream sink: with nothing to write its end is at once") {
  StreamPlace place;
  place.give("");  // not for this format
  bool done = false;
  place.sink.finish([&] { done = true; });
  CHECK(done);
  CHECK(place.sink.account().delivered == 0);
}
