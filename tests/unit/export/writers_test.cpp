// SPDX-License-Identifier: Apache-2.0
// Files, pages and programs that take what sinks write, on a real loop.
#include "core/system_clock.hpp"
#include "export/exposition.hpp"
#include "export/stream_sink.hpp"
#include "process/posix_launcher.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sys/resource.h>

using namespace elastrun;
using namespace elastrun::exporter;

namespace {

struct Place {
  Place() {
    char name[] = "/tmp/writers.XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    folder = name;
    std::signal(SIGPIPE, SIG_IGN);  // as the launcher does
  }
  ~Place() { std::filesystem::remove_all(folder); }
  std::string path(const std::string& name) const { return folder + "/" + name; }
  std::string text(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  PieceWriter::Written write(PieceWriter& writer, std::vector<std::string> batch) {
    std::optional<PieceWriter::Written> written;
    writer.write(std::move(batch), [&](PieceWriter::Written done) {
      written = std::move(done);
      loop.stop();
    });
    loop.restart();
    loop.run_for(std::chrono::minutes(1));
    REQUIRE(written.has_value());
    return *written;
  }
  PieceWriter& writer(const std::string& name, const FileForm& form = {}) {
    auto file = write_file(calls, path(name), form);
    REQUIRE(file.has_value());
    return *writers.emplace_back(std::move(*file));
  }
  PieceWriter& program(std::string command) {
    return *writers.emplace_back(
        write_program(loop, *clock, launcher, std::move(command), {"PATH=/bin:/usr/bin"}));
  }
  /// Calls what ends by a callback, and waits for that.
  void wait_for(auto end) {
    bool done = false;
    end([&] {
      done = true;
      loop.stop();
    });
    loop.restart();
    if (!done) loop.run_for(std::chrono::minutes(1));
    CHECK(done);
  }
  void close(PieceWriter& one) {
    wait_for([&](PieceWriter::Done done) { one.close(std::move(done)); });
  }
  std::string folder;
  boost::asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  files::BlockingCalls calls{loop.get_executor()};
  process::PosixLauncher launcher{loop, *clock};
  std::vector<std::unique_ptr<PieceWriter>> writers;
};

}  // namespace

TEST_CASE("file writer: lines go on under their name when the file is renamed or removed") {
  Place place;
  const auto path = place.path("run.jsonl");
  auto& writer = place.writer("run.jsonl");
  CHECK(place.write(writer, {"first\n"}).pieces == 1);
  std::filesystem::rename(path, path + ".old");
  CHECK(place.write(writer, {"second\n"}).trouble.empty());
  CHECK(place.text("run.jsonl.old") == "first\n");
  CHECK(place.text("run.jsonl") == "second\n");
  std::ofstream(path + ".new") << "torn";
  std::filesystem::rename(path + ".new", path);  // by its name it is another file
  CHECK(place.write(writer, {"third\n"}).trouble.empty());
  CHECK(place.text("run.jsonl") == "torn\nthird\n");
  std::filesystem::remove(path);
  CHECK(place.write(writer, {"fourth\n"}).pieces == 1);
  CHECK(place.text("run.jsonl") == "fourth\n");
  std::filesystem::remove_all(place.folder);
  const auto written = place.write(writer, {"fifth\n"});
  CHECK(written.pieces == 0);
  CHECK(written.trouble == path + " was removed: No such file or directory");
}

TEST_CASE("file writer: a trace that is removed is told as lost, a renamed one goes on") {
  Place place;
  auto& writer = place.writer("a", {.head = "[\n", .lines = false});
  std::filesystem::rename(place.path("a"), place.path("b"));
  CHECK(place.write(writer, {"1\n"}).pieces == 1);
  CHECK(place.text("b") == "[\n1\n");
  std::filesystem::remove(place.path("b"));
  const auto written = place.write(writer, {"2\n"});
  CHECK(written.pieces == 0);
  CHECK(written.trouble == place.path("a") + " was removed: No such file or directory");
  CHECK_FALSE(std::filesystem::exists(place.path("a")));
}

TEST_CASE("file writer: a head, then the pieces; half a line of somebody else is closed off") {
  Place place;
  std::ofstream(place.path("a")) << "torn";
  auto& writer = place.writer("a", {.lines = true});
  CHECK(place.write(writer, {"one\n", "two\n"}).pieces == 2);
  CHECK(place.write(writer, {"three\n"}).trouble.empty());
  CHECK(place.text("a") == "torn\none\ntwo\nthree\n");
  place.writer("b", {.flags = O_TRUNC, .head = "[\n"});
  CHECK(place.text("b") == "[\n");
}

TEST_CASE("file writer: a tail is what comes last") {
  Place place;
  auto& writer = place.writer("a", {.head = "[\n", .tail = "]\n", .lines = false});
  CHECK(place.write(writer, {"1\n"}).pieces == 1);
  place.close(writer);
  CHECK(place.text("a") == "[\n1\n]\n");
}

TEST_CASE("file writer: a tail for which there is no room leaves no half of it") {
  Place place;
  auto& writer = place.writer("a", {.head = "[\n", .tail = "the end\n]\n", .lines = false});
  CHECK(place.write(writer, {"1,\n"}).pieces == 1);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto* const ignored = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit room{8, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &room) == 0);
  place.close(writer);
  CHECK(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, ignored);
  CHECK(place.text("a") == "[\n1,\n");
}

TEST_CASE("file writer: a full device takes nothing and says why; no such folder fails at once") {
  Place place;
  const auto none = write_file(place.calls, place.path("no/such"));
  REQUIRE(!none);
  CHECK(none.error().text.find("No such file or directory") != std::string::npos);
  auto full = write_file(place.calls, "/dev/full");
  REQUIRE(full.has_value());
  const auto written = place.write(**full, {"one\n"});
  CHECK(written.pieces == 0);
  CHECK(written.trouble == "No space left on device");
}

TEST_CASE("page sink: the newest page replaces the file; what cannot be written is counted") {
  Place place;
  REQUIRE(put_empty_page(place.path("p"), PageForm::OpenMetrics));
  CHECK(place.text("p") == "# EOF\n");
  const auto sink = make_page_sink(place.calls, "prometheus:p;openmetrics", place.path("p"),
                                   PageForm::OpenMetrics, {.resource = {{"service.name", "x"}}});
  for (int i = 0; i < 3; ++i) sink->pull({});
  place.wait_for([&](MetricsSink::Done done) { sink->finish(std::move(done)); });
  CHECK(place.text("p").find("target_info{service_name=\"x\"} 1") != std::string::npos);
  CHECK(sink->account().delivered == 2);  // the second was replaced by the third while it waited
  CHECK_FALSE(put_empty_page(place.path("no/such"), PageForm::Prometheus).has_value());
}

TEST_CASE("program writer: a program reads all, and its end of input ends it") {
  Place place;
  auto& writer = place.program("cat > " + place.path("out"));
  std::string expected;
  for (int i = 0; i < 3; ++i) {
    const std::string large(100'000, static_cast<char>('a' + i));  // more than the pipe holds
    CHECK(place.write(writer, {large, "x\n"}).pieces == 2);
    expected += large + "x\n";
  }
  place.close(writer);
  CHECK(place.text("out") == expected);
  CHECK(writer.lost() == 0);
}

TEST_CASE(
    "program writer: the next program gets what is left; what the first had not read is lost") {
  Place place;
  // The first reads a line and ends, the second reads on.
  auto& writer = place.program("cd " + place.folder +
                               "; if [ -e was ]; then cat >> out; else touch was; read line; fi");
  const std::string large(300'000, 'a');  // goes on when the first has ended
  const auto written = place.write(writer, {"one\n", "two\n", large + "\n", "last\n"});
  CHECK(written.pieces == 4);
  place.close(writer);
  const auto out = place.text("out");
  CHECK(out.ends_with("last\n"));
  const auto read = static_cast<std::uint64_t>(std::count(out.begin(), out.end(), '\n'));
  CHECK(read + writer.lost() == 3);  // the first has read one, and nobody any twice
}
