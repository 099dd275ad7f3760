// SPDX-License-Identifier: Apache-2.0
#include "files/appended_file.hpp"

#include "core/unique_fd.hpp"
#include "support/logged_place.hpp"
#include "support/loop.hpp"
#include "support/no_threads.hpp"

#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <semaphore>
#include <sys/stat.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::files;
using namespace std::chrono_literals;
using elastrun::files::Backlog;
using test::run_ready;
using test::run_until;

namespace {

struct Place : test::LoggedPlace {
  /// A file system that takes nothing yet.
  std::string fifo() const {
    const std::string name = path + "/fifo";
    REQUIRE(::mkfifo(name.c_str(), 0600) == 0);
    return name;
  }
};

std::string read_all(const UniqueFd& fd, std::size_t size) {
  std::string text(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const auto got = ::read(fd.get(), text.data() + have, size - have);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  text.resize(have);
  return text;
}

/// Also what answers ask for.
void end_all(BlockingCalls& calls, boost::asio::io_context& loop) {
  do {
    REQUIRE(calls.finish(60s));
    run_ready(loop);
  } while (!calls.idle());
}

/// -1: none.
int descriptor_of(const std::string& path) {
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(fd, gone) == path) return std::stoi(fd.path().filename());
  }
  return -1;
}

bool is_open(const std::string& path) {
  return descriptor_of(path) >= 0;
}

}  // namespace

TEST_CASE("appended file: the thread closes it, because close(2) may wait as well") {
  Place place;
  const auto fifo = place.fifo(), path = place.path + "/log";
  std::optional<AppendedFile> file(std::in_place, place.calls, path, AppendedFile::Form{});
  file->write("written\n");
  REQUIRE(place.calls.finish(60s));
  AppendedFile stuck(place.calls, fifo, {.flags = 0});
  file.reset();
  CHECK(is_open(path));
  const UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(place.calls.finish(60s));
  CHECK_FALSE(is_open(path));
}

TEST_CASE("appended file: it is made and holds what was written, in order, also after its end") {
  Place place;
  {
    AppendedFile file(place.calls, place.path + "/log", {});
    for (int i = 0; i < 1000; ++i) file.write(std::to_string(i) + "\n");
  }
  REQUIRE(place.calls.finish(60s));
  std::string expected;
  for (int i = 0; i < 1000; ++i) expected += std::to_string(i) + "\n";
  CHECK(place.content("log") == expected);
}

TEST_CASE("appended file: buffers come whole and in order, by one call for all, and go back") {
  Place place;
  const auto pool = std::make_shared<BufferPool>();
  AppendedFile file(place.calls, place.path + "/log", {});
  REQUIRE(place.calls.finish(60s));
  const auto calls = place.calls.returned();
  std::vector<Backlog::Piece> buffers;
  std::vector<const std::string*> lent;
  std::string expected;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    const auto buffer = pool->take();
    buffer->assign(BufferPool::kBytes, letter);
    expected += *buffer;
    lent.push_back(buffer.get());
    buffers.push_back(buffer);
  }
  file.write(buffers);
  buffers.clear();
  REQUIRE(place.calls.finish(60s));
  CHECK(place.calls.returned() == calls + 1);
  CHECK(place.content("log") == expected);
  CHECK(std::ranges::find(lent, pool->take().get()) != lent.end());
}

TEST_CASE("appended file: one that takes nothing holds up who writes to it, and loses nothing") {
  Place place;
  const auto fifo = place.fifo();
  AppendedFile stuck(place.calls, fifo, {.flags = 0});
  const std::string piece(100'000, 'x');
  std::size_t written = 0;
  for (; !stuck.full(); written += piece.size()) stuck.write(piece);
  CHECK(written >= AppendedFile::kFull);
  CHECK(place.calls.busy_with() == fifo);
  stuck.write(piece);  // the last words are taken all the same
  written += piece.size();
  bool room = false;
  stuck.when_room([&] { room = true; });
  CHECK_FALSE(place.calls.finish(1ms));
  run_ready(place.loop);
  CHECK_FALSE(room);
  const UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_CLOEXEC));
  CHECK(read_all(reader, written).size() == written);
  run_until(place.loop, [&] { return room; });
  CHECK_FALSE(stuck.full());
  CHECK(stuck.counts().lost == 0);
}

TEST_CASE("appended file: beyond all bounds it loses, counted and said once") {
  Place place;
  const auto fifo = place.fifo();
  AppendedFile stuck(place.calls, fifo, {.flags = 0, .whole_lines = true});
  // Opened for both, a FIFO does not wait for its reader; so it is full that stops this one.
  const std::string lines = std::string(999, 'x') + "\n" + std::string(999, 'y') + "\n";
  std::size_t written = 0;
  for (; written < AppendedFile::kMost + (2u << 20); written += lines.size()) stuck.write(lines);
  CHECK(stuck.counts().lost > 0);
  const UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ::fcntl(reader.get(), F_SETFL, 0);
  const auto most = written - 2000 * stuck.counts().lost / 2;
  (void)read_all(reader, std::min<std::size_t>(most, 8u << 20));
  run_until(place.loop, [&] { return place.said.contains("its file system is too slow"); });
  CHECK(std::ranges::count(place.said, '\n') == 1);
}

TEST_CASE("appended file: a file that cannot be made costs what is for it, and is said once") {
  Place place;
  AppendedFile file(place.calls, "/nowhere/log", {});
  for (int i = 0; i < 3; ++i) file.write("five\n");
  REQUIRE(place.calls.finish(60s));
  run_ready(place.loop);
  CHECK(file.counts().lost == 15);
  CHECK(place.said.contains("cannot write /nowhere/log: No such file or directory; "));
  CHECK(std::ranges::count(place.said, '\n') == 1);
}

// close(2) fails here because somebody else has closed it: a disk that is full only then needs NFS.
TEST_CASE("appended file: a loss that the file system tells at the end is said") {
  Place place;
  const auto path = place.path + "/log";
  std::optional<AppendedFile> file(std::in_place, place.calls, path, AppendedFile::Form{});
  file->write("all of it\n");
  REQUIRE(place.calls.finish(10s));
  REQUIRE(::close(descriptor_of(path)) == 0);
  file.reset();
  REQUIRE(place.calls.finish(10s));
  run_ready(place.loop);
  CHECK(place.said.contains("cannot write " + path + ": Bad file descriptor"));
}

TEST_CASE("appended file: a torn last line is closed off where lines are whole") {
  Place place;
  std::ofstream(place.path + "/log") << "whole\ntorn";
  AppendedFile file(place.calls, place.path + "/log", {.flags = 0, .whole_lines = true});
  file.write("next\n");
  REQUIRE(place.calls.finish(60s));
  CHECK(place.content("log") == "whole\ntorn\nnext\n");
}

TEST_CASE("appended file: is synced after what was written before, once for several requests") {
  Place place;
  AppendedFile file(place.calls, place.path + "/log", {});
  const std::string much(3 << 20, 'x');  // several turns of the thread
  file.write(much);
  file.sync();
  file.sync();
  end_all(place.calls, place.loop);
  CHECK(file.counts().written == much.size());
  CHECK(file.counts().synced >= 1);
  CHECK(file.counts().synced <= 2);
  CHECK(file.counts().lost == 0);
  AppendedFile none(place.calls, "/nowhere/log", {});
  none.sync();
  end_all(place.calls, place.loop);
  CHECK(none.counts().synced == 0);
}

TEST_CASE("appended file: a disk that is waited for holds up no write, and is asked once more") {
  Place place;
  BlockingCalls syncs(place.loop.get_executor());
  const auto fifo = place.fifo();
  syncs.enqueue(std::make_shared<const std::string>("a disk"), [fifo]() -> BlockingCalls::Outcome {
    const UniqueFd stuck(::open(fifo.c_str(), O_RDONLY | O_CLOEXEC));
    return {};
  });
  AppendedFile file(place.calls, place.path + "/log", {.syncs = &syncs});
  for (int i = 0; i < 5; ++i) {
    file.write("line\n");
    file.sync();
    REQUIRE(place.calls.finish(60s));
    run_ready(place.loop);
  }
  CHECK(file.counts().written == 25);
  CHECK(file.counts().synced == 0);
  const UniqueFd writer(::open(fifo.c_str(), O_WRONLY | O_CLOEXEC));
  end_all(syncs, place.loop);
  CHECK(file.counts().synced == 2);
}

TEST_CASE("blocking calls: no signal is delivered to the thread") {
  Place place;
  sigset_t blocked;
  ::sigemptyset(&blocked);
  bool answered = false;
  place.calls.make(
      "mask",
      [] {
        sigset_t mask;
        ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        return mask;
      },
      [&](sigset_t mask) {
        blocked = mask;
        answered = true;
      });
  run_until(place.loop, [&] { return answered; });
  for (const int number : {SIGINT, SIGTERM, SIGCHLD, SIGWINCH}) {
    CHECK(::sigismember(&blocked, number) == 1);
  }
}

TEST_CASE("blocking calls: where no thread can be made they are made on the loop, said once") {
  Place place;
  std::optional<AppendedFile> file;
  {
    const test::NoThreads none;
    file.emplace(place.calls, place.path + "/log", AppendedFile::Form{});
    file->write("all the same\n");
  }
  const bool refused = place.said.contains("cannot make a thread: ");
  file->write("and more\n");
  REQUIRE(place.calls.finish(60s));
  CHECK(refused);
  CHECK(std::ranges::count(place.said, '\n') == 1);
  CHECK(place.content("log") == "all the same\nand more\n");
}

TEST_CASE("backlog: what is taken comes out in order, once, and never more than allowed waits") {
  constexpr std::size_t kFull = 1000, kMost = 5000;
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto upto = [&](std::size_t most) {
      return std::uniform_int_distribution<std::size_t>(0, most)(random);
    };
    Backlog backlog(kFull, kMost);
    std::string in, out;
    Backlog::Piece writing;
    bool owes_word = false;
    char next = 'a';
    for (int step = 0; step < 400; ++step) {
      if (upto(2) != 0) {
        std::string piece(upto(900), next);
        next = next == 'z' ? 'a' : static_cast<char>(next + 1);
        const bool must_fit = backlog.size() + piece.size() <= kMost;
        const auto shared = std::make_shared<const std::string>(piece);
        const auto taken = upto(1) == 0 ? backlog.add(piece) : backlog.add(shared);
        CHECK((!must_fit || taken == piece.size()));
        in += piece.substr(0, taken);
        if (backlog.full()) owes_word = true;
      } else if (!writing) {
        writing = backlog.take();
        CHECK((writing != nullptr || backlog.size() == 0));
      } else {
        out += *std::exchange(writing, nullptr);
        // Who was told that it is full hears when there is room, and only then.
        const bool room = backlog.done();
        CHECK(room == (owes_word && backlog.size() <= kFull / 2));
        if (room) owes_word = false;
      }
      REQUIRE(backlog.size() <= kMost);
      REQUIRE(backlog.size() == in.size() - out.size());
    }
    if (writing) out += *writing;
    while (const auto piece = backlog.take()) out += *piece;
    CHECK(out == in);
  }
}

TEST_CASE("backlog: a large buffer is not copied, and nothing is appended to it") {
  Backlog backlog(Backlog::kPiece, 4 * Backlog::kPiece);
  const auto large = std::make_shared<const std::string>(Backlog::kPiece, 'l');
  const auto small = std::make_shared<const std::string>(100, 's');
  CHECK(backlog.add("before") == 6);
  CHECK(backlog.add(large) == large->size());
  CHECK(backlog.add(small) == 100);
  CHECK(backlog.add("after") == 5);
  CHECK(*backlog.take() == "before");
  CHECK(backlog.take() == large);
  CHECK(*backlog.take() == *small + "after");
  CHECK(backlog.take() == nullptr);
}

TEST_CASE("blocking calls: where no thread can be made the answer is an error, until one can") {
  boost::asio::io_context loop;
  BlockingCalls calls(loop.get_executor(), BlockingCalls::WithoutThread::Refuse);
  std::optional<Result<int>> answer;
  const auto ask = [&] {
    answer.reset();
    calls.make(
        "seven", []() -> Result<int> { return 7; },
        [&](Result<int> got) { answer = std::move(got); });
    CHECK(!answer);
    test::run_until(loop, [&] { return answer.has_value(); });
  };
  {
    const test::NoThreads none;
    ask();
    REQUIRE(!answer->has_value());
    CHECK(answer->error().code == Code::Io);
  }
  ask();
  CHECK(**answer == 7);
}

TEST_CASE("blocking calls: nobody hears of a thread that could not be made once they have gone") {
  boost::asio::io_context loop;
  bool told = false;
  {
    const test::NoThreads none;
    BlockingCalls calls(loop.get_executor(), BlockingCalls::WithoutThread::Refuse);
    calls.make(
        "seven", []() -> Result<int> { return 7; }, [&](const Result<int>&) { told = true; });
  }
  loop.run();
  CHECK(!told);
}

TEST_CASE("bounded call: what is returned comes back, also where no thread can be made") {
  const auto seven = [] { return 7; };
  CHECK(result_within("a file", 60s, seven).value() == 7);
  const test::NoThreads none;
  CHECK(result_within("a file", 60s, seven).value() == 7);
}

TEST_CASE("bounded call: what does not answer in time is an error that names it") {
  const auto thawed = std::make_shared<std::binary_semaphore>(0);
  const auto stuck = [thawed] {
    thawed->acquire();
    return 7;
  };
  const auto answer = result_within("the directory /far/away", 1ms, stuck);
  REQUIRE_FALSE(answer);
  CHECK(answer.error().code == Code::Io);
  CHECK(answer.error().text.contains("the directory /far/away: "));
  thawed->release();
}
