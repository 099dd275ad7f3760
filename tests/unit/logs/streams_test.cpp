// SPDX-License-Identifier: Apache-2.0
#include "core/host.hpp"
#include "core/log.hpp"
#include "logs/stream_factory.hpp"
#include "plumbing.hpp"

#include <doctest/doctest.h>
#include <random>
#include <sys/stat.h>

using namespace elastrun;
using namespace elastrun::logs;
using namespace plumbing;
using namespace std::chrono_literals;
using namespace std::string_view_literals;

namespace {

/// An agent whose console is two pipes.
struct Agent {
  boost::asio::io_context loop;
  FakeClock clock;
  Pipe out, err;
  Scratch scratch;
  Console console{loop.get_executor(), out.writer.get(), err.writer.get()};
  files::BlockingCalls files{loop.get_executor()};
  StreamFactory factory{loop.get_executor(), clock, console, files, false};

  std::string shown() { return take(out.reader.get()); }
  std::string complained() { return take(err.reader.get()); }
};

/// A worker that we play: its two streams are ours to write to.
struct Worker {
  Worker(Agent& agent, StreamSettings settings) : loop(agent.loop), files(agent.files) {
    if (settings.directory.empty()) settings.directory = agent.scratch.path;
    if (settings.directory == "none") settings.directory.clear();
    auto made = agent.factory.make(settings);
    REQUIRE(made);
    streams = std::move(*made);
    if (streams->stdout_fd() >= 0) out = copy_of(streams->stdout_fd());
    if (streams->stderr_fd() >= 0) err = copy_of(streams->stderr_fd());
    streams->started();
  }
  void end(bool give_up = false) {
    if (!give_up) out.reset();
    if (!give_up) err.reset();
    drain(give_up);
  }
  void drain(bool give_up) {
    int told = 0;
    streams->drain(give_up, [&] { ++told; });
    CHECK(told == 0);  // never inside the call
    run_until(loop, [&] { return told == 1; });
    run_ready(loop);
    CHECK(told == 1);
    CHECK(files.finish(60s));
    run_ready(loop);  // warnings
  }
  boost::asio::io_context& loop;
  files::BlockingCalls& files;
  std::unique_ptr<WorkerStreams> streams;
  UniqueFd out, err;
};

}  // namespace

TEST_CASE("streams: what is redirected is in the file and nowhere else") {
  Agent agent;
  Worker worker(agent, {.redirect = 3});
  say(worker.out.get(), "to file");
  say(worker.err.get(), "also\n");
  worker.end();
  CHECK(content(worker.streams->stdout_path()) == "to file");
  CHECK(content(agent.scratch.path + "/stderr.log") == "also\n");
  CHECK(agent.shown().empty());
  CHECK(agent.complained().empty());
  CHECK(worker.streams->last_lines(5) == std::vector<std::string>{"also"});
  CHECK(worker.streams->knows_all_lines());
}

TEST_CASE("streams: without tee a line that comes in pieces stays in one piece for a moment") {
  Agent agent;
  Worker one(agent, {}), two(agent, {});
  say(one.out.get(), "part");
  run_ready(agent.loop);
  say(two.out.get(), "bar 1\rbar 2");
  run_ready(agent.loop);
  CHECK(agent.shown() == "bar 1\r");
  say(one.out.get(), "ial\n");
  run_ready(agent.loop);
  CHECK(agent.shown() == "partial\n");
  say(one.out.get(), "prompt: ");
  agent.clock.advance(20ms);
  run_ready(agent.loop);
  CHECK(agent.shown() == "bar 2");
  agent.clock.advance(20ms);
  run_ready(agent.loop);
  CHECK(agent.shown() == "prompt: ");
  one.end();
  two.end();
}

TEST_CASE("streams: a worker that the filter hides still has its files, and its last lines") {
  Agent agent;
  Worker tee(agent, {.tee = 3, .shown = false, .prefix = "x:"});
  say(tee.out.get(), "kept\n");
  tee.end();
  Worker plain(agent, {.shown = false});
  say(plain.out.get(), "dropped\n");
  say(plain.err.get(), "dropped too\n");
  plain.end();
  CHECK(content(agent.scratch.path + "/stdout.log") == "kept\n");
  CHECK(agent.shown().empty());
  CHECK(agent.complained().empty());
  CHECK(plain.streams->last_lines(3) == std::vector<std::string>{"dropped too"});
}

TEST_CASE("streams: without a directory tee goes to the console alone, and nothing is redirected") {
  Agent agent;
  Worker tee(agent, {.directory = "none", .redirect = 3, .tee = 1, .prefix = "p:"});
  say(tee.out.get(), "teed");
  say(tee.err.get(), "as it is");
  tee.end();
  CHECK(agent.shown() == "p:teed\n");
  CHECK(agent.complained() == "as it is");
  CHECK(tee.streams->stdout_path().empty());
  Worker hidden(agent, {.directory = "none", .redirect = 3, .tee = 3, .shown = false});
  say(hidden.out.get(), "x");
  hidden.end();
  CHECK(agent.shown().empty());
}

TEST_CASE("streams: where no file has the output a congested console stops the reading") {
  Agent agent;
  Worker worker(agent, {});
  ::fcntl(worker.out.get(), F_SETFL, O_NONBLOCK);
  const std::string block(64 << 10, 'x');
  std::size_t written = 0;
  for (int round = 0; round < 200; ++round) {  // until the worker would block
    const ssize_t size = ::write(worker.out.get(), (block + "\n").data(), block.size() + 1);
    if (size > 0) written += static_cast<std::size_t>(size);
    run_ready(agent.loop);
    agent.clock.advance(1s);
  }
  CHECK(written < (4u << 20));
  CHECK(agent.console.outlet(Console::Stream::Out).congested());
  worker.out.reset();
  worker.err.reset();
  bool drained = false;
  worker.streams->drain(false, [&] { drained = true; });
  run_ready(agent.loop);
  CHECK_FALSE(drained);
  std::size_t seen = 0;
  run_until(agent.loop, [&] {
    seen += agent.shown().size();
    return drained;
  });
  while (seen < written) {
    run_ready(agent.loop);
    seen += agent.shown().size();
  }
  CHECK(seen == written);
  CHECK(agent.console.outlet(Console::Stream::Out).lost() == 0);
}

TEST_CASE("streams: a file that takes nothing stops its own worker and no other") {
  Agent agent;
  const std::string slow = agent.scratch.path + "/stdout.log";
  REQUIRE(::mkfifo(slow.c_str(), 0600) == 0);
  Worker stuck(agent, {.redirect = 1});
  std::filesystem::create_directory(agent.scratch.path + "/other");
  Worker other(agent, {.tee = 1, .prefix = "other:"});
  ::fcntl(stuck.out.get(), F_SETFL, O_NONBLOCK);
  const std::string block((64 << 10) - 1, 'x');
  std::size_t written = 0;
  for (int round = 0; round < 100; ++round) {
    const ssize_t size = ::write(stuck.out.get(), (block + "\n").data(), block.size() + 1);
    if (size > 0) written += static_cast<std::size_t>(size);
    run_ready(agent.loop);
  }
  CHECK(written < (4u << 20));
  say(other.err.get(), "goes on\n");
  run_ready(agent.loop);
  CHECK(agent.complained() == "goes on\n");
  // The end takes what is in the pipe, and waits for nothing.
  stuck.out.reset();
  bool drained = false;
  stuck.streams->drain(true, [&] { drained = true; });
  run_until(agent.loop, [&] { return drained; });
  const UniqueFd reader(::open(slow.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(reader);
  std::size_t found = 0;
  for (pollfd entry{reader.get(), POLLIN, 0}; found<written&& ::poll(&entry, 1, 60'000)> 0;) {
    found += take(reader.get()).size();
  }
  CHECK(found == written);
}

TEST_CASE("streams: a tee'd line without its end is shown after 100 ms of silence, never torn") {
  Agent agent;
  Worker one(agent, {.tee = 1, .prefix = "1:"});
  Worker two(agent, {.tee = 1, .prefix = "2:"});
  const auto say_to = [&](Worker& worker, std::string_view text) {
    say(worker.out.get(), text);
    run_ready(agent.loop);
  };
  say_to(one, "Loading");
  agent.clock.advance(99ms);
  CHECK(agent.shown().empty());
  say_to(one, "... ");
  agent.clock.advance(99ms);
  CHECK(agent.shown().empty());  // it was not silent for so long
  agent.clock.advance(1ms);
  CHECK(agent.shown() == "1:Loading... ");
  CHECK(agent.clock.armed() == 0);  // nothing more to wait for
  say_to(one, "50 %, ");
  agent.clock.advance(100ms);
  CHECK(agent.shown() == "50 %, ");
  say_to(one, "done\n");
  CHECK(agent.shown() == "done\n");

  // Somebody else speaks meanwhile: whoever goes on, does so with a whole line.
  say_to(one, "Name? ");
  agent.clock.advance(100ms);
  say_to(two, "whole\n");
  CHECK(agent.shown() == "1:Name? \n2:whole\n");
  say_to(one, "x\nnext\n");
  CHECK(agent.shown() == "1:Name? x\n1:next\n");
  say_to(one, "half");
  say_to(two, "of two");
  agent.clock.advance(100ms);
  CHECK(agent.shown() == "1:half\n2:of two");
  agent.console.write(Console::Stream::Out, "agent\n");
  CHECK(agent.shown() == "\nagent\n");
  one.end();
  CHECK(agent.shown() == "1:half\n");
  two.end();
  CHECK(agent.shown() == "2:of two\n");
}

TEST_CASE("streams: a prompt that comes while the console lags is shown when it has caught up") {
  Agent agent;
  Worker worker(agent, {.tee = 1, .prefix = "1:"});
  agent.console.write(Console::Stream::Out, std::string(1 << 20, 'x') + "\n");
  REQUIRE(agent.console.outlet(Console::Stream::Out).congested());
  say(worker.out.get(), "Name? ");
  run_ready(agent.loop);
  // It is not read while somebody may still wait for the console.
  agent.clock.advance(100ms);
  run_ready(agent.loop);
  agent.clock.advance(100ms);
  std::string seen;
  bool idle = false;
  agent.console.when_idle([&] { idle = true; });
  run_until(agent.loop, [&] {
    seen += agent.shown();
    return idle;
  });
  run_ready(agent.loop);
  for (int i = 0; i < 3; ++i) agent.clock.advance(100ms);
  seen += agent.shown();
  CHECK(seen.ends_with("x\n1:Name? "));
  CHECK(agent.clock.armed() == 0);
}

TEST_CASE("streams: what overwrote itself is shown with its prefix, in its last state") {
  Agent agent;
  Worker worker(agent, {.tee = 1, .prefix = "p:"});
  say(worker.out.get(), "\r 50%\r100%\nplain\r\n\rfront\n");
  worker.end();
  CHECK(agent.shown() == "p:100%\np:plain\r\np:front\n");
  CHECK(content(agent.scratch.path + "/stdout.log") == "\r 50%\r100%\nplain\r\n\rfront\n");
}

TEST_CASE("streams: a drain that gives up reads what is there, though somebody holds the pipe") {
  Agent agent;
  Worker worker(agent, {.tee = 1});
  say(worker.out.get(), "said\nrest");
  worker.end(true);
  CHECK(agent.shown() == "said\nrest\n");
}

TEST_CASE("streams: what is there is known at once, and whoever holds the pipe can write on") {
  for (const unsigned tee : {0u, 3u}) {
    CAPTURE(tee);
    Agent agent;
    Worker worker(agent, {.tee = tee});
    say(worker.err.get(), "last words\n");
    worker.streams->catch_up();
    CHECK(worker.streams->last_lines(5) == std::vector<std::string>{"last words"});
    say(worker.out.get(), "saving\n");
    say(worker.err.get(), "saved\n");
    worker.end();
    CHECK(agent.shown() == "saving\n");
    CHECK(agent.complained() == "last words\nsaved\n");
  }
}

TEST_CASE("streams: the pipes of a node take at most half of what a user may have") {
  constexpr std::int64_t kUsual = 64 << 20;
  CHECK(pipe_size(8, kUsual) == 1 << 20);
  CHECK(pipe_size(40, kUsual) == 256 << 10);
  CHECK(pipe_size(1000, kUsual) == 0);
  CHECK(pipe_size(1000, 0) == 1 << 20);
  Agent agent;
  agent.factory.begin_attempt({.workers = 100'000});
  Worker many(agent, {.tee = 3});
  CHECK(::fcntl(many.out.get(), F_GETPIPE_SZ) <= 64 << 10);
  many.end();
}

TEST_CASE("streams: a second drain replaces the first one's answer") {
  Agent agent;
  Worker worker(agent, {.tee = 1});
  bool first = false;
  worker.streams->drain(false, [&] { first = true; });
  say(worker.out.get(), "x\n");
  worker.drain(true);
  CHECK_FALSE(first);
  CHECK(agent.shown() == "x\n");
}

TEST_CASE("streams: nothing is called after they were destroyed") {
  Agent agent;
  Worker worker(agent, {});
  bool told = false;
  worker.streams->drain(true, [&] { told = true; });
  worker.streams.reset();
  run_ready(agent.loop);
  CHECK_FALSE(told);
}

TEST_CASE("streams: a full disk costs the file, not the worker and not the console") {
  Agent agent;
  agent.console.take_log_lines();
  const std::string file = agent.scratch.path + "/stdout.log";
  std::filesystem::create_symlink("/dev/full", file);
  Worker worker(agent, {.tee = 1, .prefix = "p:"});
  say(worker.out.get(), "one\n");
  run_ready(agent.loop);
  say(worker.out.get(), "two\n");
  worker.end();
  CHECK(agent.shown() == "p:one\np:two\n");
  const std::string said = agent.complained();
  CHECK(said.find("cannot write " + file + ": No space left on device") != std::string::npos);
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

TEST_CASE("streams: a file that cannot be made costs the output, and is named") {
  Agent agent;
  agent.console.take_log_lines();
  Worker worker(agent, {.directory = "/nowhere/0", .tee = 1, .prefix = "p:"});
  say(worker.out.get(), "shown\n");
  worker.end();
  CHECK(agent.shown() == "p:shown\n");
  CHECK(agent.complained().find("cannot write /nowhere/0/stdout.log: No such file or directory") !=
        std::string::npos);
}

TEST_CASE("streams: the last lines are those of stderr, cut to a sane length") {
  Agent agent;
  Worker worker(agent, {});
  say(worker.out.get(), "not this\n");
  say(worker.err.get(), std::string(40000, 'y') + "\n");
  run_ready(agent.loop);
  say(worker.err.get(), "one\n\n 10%\r 20%\r\nlast");
  worker.end();
  CHECK_FALSE(worker.streams->knows_all_lines());
  const auto lines = worker.streams->last_lines(4);
  CHECK(lines == std::vector<std::string>{"one", "", " 20%", "last"});
  const auto all = worker.streams->last_lines(100);
  REQUIRE(all.size() == 5);
  CHECK(all[0] == std::string(2000, 'y'));
  CHECK(worker.streams->last_lines(1) == std::vector<std::string>{"last"});
  agent.complained();
}

TEST_CASE("streams: a progress bar without newline is shown once a second") {
  Agent agent;
  Worker worker(agent, {.tee = 1, .prefix = "p:"});
  say(worker.out.get(), "\r 1%\r 2%\r 3");
  run_ready(agent.loop);
  CHECK(agent.shown().empty());
  CHECK(agent.clock.armed() == 1);
  agent.clock.advance(1s);
  CHECK(agent.shown() == "p: 2%\n");
  CHECK(agent.clock.armed() == 0);
  say(worker.out.get(), "%\n");
  worker.end();
  CHECK(agent.shown() == "p: 3%\n");
  CHECK(agent.clock.armed() == 0);
}

TEST_CASE("streams: one place for both console streams keeps their order") {
  boost::asio::io_context loop;
  FakeClock clock;
  Pipe both;
  Console console(loop.get_executor(), both.writer.get(), copy_of(both.writer.get()).release());
  files::BlockingCalls files(loop.get_executor());
  StreamFactory factory(loop.get_executor(), clock, console, files, false);
  auto streams = factory.make({}).value();
  REQUIRE(streams->stdout_fd() == streams->stderr_fd());
  for (int i = 0; i < 100; ++i)
    say(i % 3 == 0 ? streams->stdout_fd() : streams->stderr_fd(), "x\n");
  streams->started();
  bool drained = false;
  streams->drain(false, [&] { drained = true; });
  run_until(loop, [&] { return drained; });
  CHECK(take(both.reader.get()).size() == 200);
}

TEST_CASE(
    "streams: stdout on a terminal without a status line is inherited when stderr is elsewhere") {
  boost::asio::io_context loop;
  FakeClock clock;
  Terminal terminal;
  Pipe err;
  Console console(loop.get_executor(), terminal.side.get(), err.writer.get());
  files::BlockingCalls files(loop.get_executor());
  StreamFactory factory(loop.get_executor(), clock, console, files, false);
  auto streams = factory.make({}).value();
  CHECK(streams->stdout_fd() == -1);
  CHECK(streams->stderr_fd() >= 0);
}

namespace {

constexpr TimePoint kStart{100s};

}  // namespace

TEST_CASE("tail: the last bytes stay, whatever the size of the pieces") {
  Tail tail(10);
  for (char c = 'a'; c <= 'z'; ++c) tail.add(std::string(3, c), kStart);
  CHECK(tail.text().ends_with("xxxyyyzzz"));
  CHECK(tail.text().size() >= 10);
  CHECK(tail.text().size() <= 20);
  tail.add(std::string(100, '-') + "end", kStart);
  CHECK(tail.text().ends_with("-------end"));
  CHECK(tail.text().size() <= 20);
}

TEST_CASE("tail: it is known whether anything was forgotten") {
  Tail tail(10);
  CHECK(tail.is_whole());
  tail.add(std::string(15, 'a'), kStart);
  CHECK_FALSE(tail.is_whole());
  Tail slow(10);
  for (int i = 0; i < 20; ++i) slow.add("a", kStart);
  CHECK(slow.is_whole());
  slow.add("a", kStart);
  CHECK_FALSE(slow.is_whole());
}

TEST_CASE("tail: the last occurrence of a text has the time of its piece") {
  Tail tail(1000);
  CHECK_FALSE(tail.seen_at("error"));
  tail.add("error one\n", kStart);
  tail.add("an err", kStart + 1s);
  CHECK(tail.seen_at("error") == kStart);
  tail.add("or two\n", kStart + 2s);
  CHECK_MESSAGE(tail.seen_at("error") == kStart + 1s, "when it began");
  tail.add("more\n", kStart + 3s);
  CHECK(tail.seen_at("error") == kStart + 1s);
  CHECK(tail.seen_at("more") == kStart + 3s);
}

TEST_CASE("tail: what has left the kept bytes, or came too many pieces ago, has no time") {
  Tail tail(100);
  tail.add("error", kStart);
  for (int i = 0; i < 90; ++i) tail.add("...", kStart + 1s);
  CHECK_FALSE(tail.seen_at("error"));
  Tail pieces(10'000);
  pieces.add("error", kStart);
  for (int i = 0; i < 200; ++i) pieces.add(".", kStart + 1s);
  CHECK(pieces.seen_at("error") == kStart);
  for (int i = 0; i < 2000; ++i) pieces.add(".", kStart + 1s);
  CHECK_FALSE(pieces.seen_at("error"));
}

namespace {

std::string split_whole(std::string_view text) {
  LineSplitter splitter("p:");
  LineSplitter::Lines out;
  splitter.feed(text, out);
  splitter.finish(out);
  return out.all;
}

}  // namespace

TEST_CASE("splitter: each whole line gets the prefix, a last line without newline too") {
  CHECK(split_whole("one\n\n two\nrest") == "p:one\np:\np: two\np:rest\n");
  CHECK(split_whole("").empty());
  CHECK(split_whole("\n") == "p:\n");
}

TEST_CASE("splitter: a carriage return ends no line, and what it overwrites is not shown") {
  CHECK(split_whole("a\rb\r\nc\n") == "p:b\r\np:c\n");
}

TEST_CASE("splitter: text without newline is held until its line is complete") {
  LineSplitter splitter("p:");
  LineSplitter::Lines out;
  splitter.feed("par", out);
  splitter.feed("ti", out);
  CHECK(out.all.empty());
  splitter.feed("al\nnext", out);
  CHECK(out.all == "p:partial\n");
  splitter.finish(out);
  CHECK(out.all == "p:partial\np:next\n");
}

TEST_CASE("splitter: the way a text is cut into reads changes nothing") {
  std::string text;
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    text +=
        std::string(random() % 40, static_cast<char>('a' + i % 26)) + (i % 9 == 0 ? "\r" : "\n");
  }
  text += "end";
  const std::string whole = split_whole(text);
  for (int round = 0; round < 50; ++round) {
    LineSplitter splitter("p:");
    LineSplitter::Lines out;
    for (std::string_view rest = text; !rest.empty();) {
      const auto size = std::min<std::size_t>(rest.size(), 1 + random() % 64);
      splitter.feed(rest.substr(0, size), out);
      rest.remove_prefix(size);
    }
    splitter.finish(out);
    REQUIRE(out.all == whole);
  }
}

TEST_CASE("splitter: a line over the limit comes in pieces, and memory stays bounded") {
  LineSplitter splitter("p:", nullptr, 4);
  LineSplitter::Lines out;
  splitter.feed("abcdef", out);
  CHECK(out.all == "p:abcd\n");
  splitter.feed("ghijkl", out);
  splitter.feed("m\n1234\n12345\n", out);
  CHECK(out.all == "p:abcd\np:efgh\np:ijkl\np:m\np:1234\np:1234\np:5\n");
}

TEST_CASE("splitter: a filter sees the line without its prefix and gets it with the prefix") {
  LineSplitter splitter("p:", std::make_shared<LineFilter>(LineFilter{"loss", "p:"}));
  LineSplitter::Lines out;
  splitter.feed("a loss\nother\nlo", out);
  splitter.feed("ss 2\nloss at the en", out);
  splitter.finish(out);
  CHECK(out.matching == "p:a loss\np:loss 2\np:loss at the en\n");
  CHECK(out.all == "p:a loss\np:other\np:loss 2\np:loss at the en\n");
}

TEST_CASE("splitter: of a progress bar the newest complete state is shown") {
  LineSplitter splitter("p:");
  LineSplitter::Lines out;
  splitter.feed("\r 1%", out);
  CHECK_FALSE(splitter.holds_progress());
  splitter.feed("\r 2%\r 3", out);
  CHECK(splitter.holds_progress());
  splitter.show_progress(out);
  CHECK(out.all == "p: 2%\n");
  CHECK_FALSE(splitter.holds_progress());
  splitter.feed("%\ndone\n", out);
  CHECK(out.all == "p: 2%\np: 3%\np:done\n");
}

TEST_CASE("prefix: the default is role and local rank") {
  CHECK(line_prefix("", "default", 5, 1) == "[default1]:");
}

TEST_CASE("prefix: a template is read as Python's Template.safe_substitute reads it") {
  CHECK(line_prefix("<${role_name} $rank/${local_rank} $$ ${other}> ", "reader", 3, 1) ==
        "<reader 3/1 $ ${other}> ");
  CHECK(line_prefix("${hostname}:${rank}: ", "r", 3, 1) == host_name() + ":3: ");
  CHECK(line_prefix("$", "r", 0, 0) == "$");
  CHECK(line_prefix("a$ b$1c${", "r", 0, 0) == "a$ b$1c${");
  CHECK(line_prefix("${rank", "r", 2, 0) == "${rank");
  CHECK(line_prefix("${}$rank_$rank", "r", 2, 0) == "${}$rank_2");
  CHECK(line_prefix("$$rank$$$rank", "r", 2, 0) == "$rank$2");
}
