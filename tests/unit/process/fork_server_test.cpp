// SPDX-License-Identifier: Apache-2.0
#include "process/fork_server.hpp"

#include "process/process_table.hpp"
#include "support/children.hpp"

#include <array>
#include <cstdlib>
#include <doctest/doctest.h>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

using namespace elastrun;
using namespace elastrun::process;
using namespace elastrun::test;
using namespace std::chrono_literals;
using namespace std::string_literals;

namespace {

constexpr auto kAnyTime = 60s;  // a limit that only a defect reaches
constexpr auto kSoon = 50ms;

// What a server and its children may say and do: Python, like the real one, which forks twice.
constexpr const char* kServerStart = R"(
import os, signal, socket, sys, time
control = socket.socket(fileno=0)
agent = os.getppid()
def say(text):
    control.send(text.encode())
def hear():
    said, given, _, _ = socket.recv_fds(control, 4096, 2)
    if not given:
        os._exit(0)
    return socket.socket(fileno=given[0])
def fork(child):
    if os.fork() == 0:
        born = os.fork()
        if born:
            child.send(b"born %d" % born)
            os._exit(0)
        while os.getppid() != agent:
            time.sleep(0.001)
        return True
    child.close()
    return False
def order(child):
    global given
    said, given, _, _ = socket.recv_fds(child, 64, 5)
    return said
)";

struct PlayedServer {
  Nursery nursery;
  Ear ear;
  std::unique_ptr<ForkServer> server;

  explicit PlayedServer(const std::string& script, bool adopts = false) {
    // Its children become ours, as the agent's.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    LaunchRequest request;
    request.argv = {"python3", "-ISc", kServerStart + script};
    request.environment = {std::string("PATH=") + std::getenv("PATH")};
    auto started = adopts ? adopt(request) : ForkServer::start(nursery.io, request);
    REQUIRE_MESSAGE(started, (started ? "" : started.error().text));
    server = std::move(*started);
  }
  ~PlayedServer() {
    server.reset();
    // What it has forked ends with it, or by the loss of its socket.
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
  }

  Result<std::unique_ptr<ForkServer>> adopt(LaunchRequest request) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    const UniqueFd theirs(ends[1]);
    request.stdin_fd = theirs.get();
    REQUIRE(spawn(nursery.io, request));
    return ForkServer::adopt(UniqueFd(ends[0]), kAnyTime);
  }
  ForkServer::State load() { return server->wait_until_loaded(kAnyTime); }
  Result<Spawned> take(Duration limit = kAnyTime) {
    LaunchRequest request;
    request.argv = {"python3", "train.py", "--lr=1"};
    request.environment = {"RANK=3", "TEXT=a b"};
    request.stdout_fd = ear.mouth();
    request.fork_slot = 0;
    return server->take(request, limit);
  }
};

std::string serving(const std::string& what) {
  return "say('ready')\nwhile True:\n    child = hear()\n    " + what + "\n";
}

}  // namespace

TEST_CASE("fork server: a child gets its order and descriptors, and is the agent's") {
  const int before = open_descriptors();
  {
    PlayedServer here(
        serving("fork(child) and (order(child), child.send(b'ok'), child.recv(8), "
                "os.dup2(given[2], 1), print(os.getppid(), os.read(given[0], 999), "
                "flush=True), os._exit(3))"));
    REQUIRE(here.load() == ForkServer::State::Ready);
    const auto taken = here.take();
    REQUIRE_MESSAGE(taken, (taken ? "" : taken.error().text));
    CHECK(here.server->processes().size() == 1);  // the server; the child is a worker now
    CHECK(here.ear.line() == std::to_string(::getpid()) +
                                 " b'\\x003\\x00python3\\x00train.py\\x00--lr=1\\x00RANK=3\\x00"
                                 "TEXT=a b\\x00'");
    int status = 0;
    CHECK(::waitpid(taken->pid, &status, 0) == taken->pid);
    CHECK(WEXITSTATUS(status) == 3);
    CHECK(here.server->state() == ForkServer::State::Ready);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("fork server: whatever a server says of itself, it is known whether it can serve") {
  using State = ForkServer::State;
  struct Row {
    const char* script;
    State state;
    const char* why;
  };
  for (const auto& [script, state, why] : std::initializer_list<Row>{
           {"say('hello')\nhear()", State::Gone, "it said something without a meaning"},
           {"control.send(b'')\nhear()", State::Gone, "it has ended"},
           {"control.send(bytes(4096))\nhear()", State::Gone,
            "it said something without a meaning"},
           {"say('loading')\nhear()", State::Gone, "it said something without a meaning"},
           {"pass", State::Gone, "it has ended"},
           {"while True:\n    say('ready')", State::Gone, "it talks without end"},
           {"os.kill(os.getpid(), signal.SIGSEGV)", State::Gone, "it has ended"},
           {"say('ready')\nsay('refused late')\nhear()", State::Refused, "late"},
           {"say('refused \\x1b[2J a.b')\nhear()", State::Refused, "[2J a.b"},
           {"say('refused stale: new packages')\nhear()", State::Gone, "stale: new packages"}}) {
    CAPTURE(script);
    PlayedServer here(script);
    auto found = here.load();
    while (found == State::Ready) {  // a second word is on its way
      ::poll(nullptr, 0, 1);
      found = here.server->state();
    }
    CHECK(found == state);
    CHECK(here.server->why() == why);
    CHECK_FALSE(here.take());
    CHECK(here.server->processes().empty());
  }
}

TEST_CASE("fork server: a child that cannot be used is no worker, and the server serves on") {
  const std::string self = std::to_string(::getpid());
  struct Row {
    std::string child, why;
  };
  const std::string forked = "fork(child) and (order(child), ";
  for (const auto& [child, why] : std::initializer_list<Row>{
           {"child.close()", "no child was forked in time"},
           {"child.send(b'unborn')", "no child was forked in time"},
           {"child.send(b'born ')", "its child has no number"},
           {"child.send(b'born x')", "its child has no number"},
           {"child.send(b'born 0')", "its child has no number"},
           {"child.send(b'born -1')", "its child has no number"},
           {"child.send(b'born 1')", "its child has no number"},
           {"child.send(b'born 99999999999')", "its child has no number"},
           // Neither is the agent taken for a worker, nor killed for it.
           {"child.send(b'born " + self + "'), order(child), child.send(b'ok'), child.recv(8)",
            "the child is not ours"},
           {forked + "os._exit(0))", "the child was not ready in time"},
           {forked + "os.kill(os.getpid(), 9))", "the child was not ready in time"},
           {forked + "child.send(b'unfit a\\x07b'), os._exit(127))", "unfit ab"},
           {forked + "child.send(b'o'), child.recv(8), os._exit(0))", "o"}}) {
    CAPTURE(child);
    PlayedServer here(serving(child));
    REQUIRE(here.load() == ForkServer::State::Ready);
    for (int time = 0; time < 2; ++time) {
      const auto taken = here.take();
      REQUIRE_FALSE(taken);
      CHECK(taken.error().text == why);
      CHECK(here.server->state() == ForkServer::State::Ready);
    }
    CHECK(here.server->processes().size() == 1);
  }
}

TEST_CASE("fork server: one that ends while something is asked of it costs no time") {
  for (const char* what :
       {"os._exit(0)",
        // A process that is left holds the child's socket.
        "os.fork() == 0 and (control.close(), order(child), os._exit(0)); os._exit(0)",
        "fork(child) and (order(child), os._exit(0)); os.kill(os.getpid(), 9)"}) {
    CAPTURE(what);
    PlayedServer here(serving(what));
    REQUIRE(here.load() == ForkServer::State::Ready);
    CHECK_FALSE(here.take());
    while (here.server->state() == ForkServer::State::Ready) ::poll(nullptr, 0, 1);
    CHECK(here.server->state() == ForkServer::State::Gone);
    CHECK(here.server->why() == "it has ended");
  }
}

TEST_CASE("fork server: one that does not answer in time is killed with its children") {
  for (const char* what : {"time.sleep(5)", "fork(child) and time.sleep(5)",
                           "fork(child) and (order(child), time.sleep(5))",
                           "os.fork() == 0 and os.kill(os.getpid(), signal.SIGSTOP); "
                           "os.kill(os.getpid(), signal.SIGSTOP)"}) {
    CAPTURE(what);
    PlayedServer here(serving(what));
    REQUIRE(here.load() == ForkServer::State::Ready);
    CHECK_FALSE(here.take(kSoon));
    CHECK(here.server->state() == ForkServer::State::Gone);
    CHECK(here.server->why() == "it did not answer in time");
    for (const auto& left : read_children(::getpid())) ::kill(left.pid, SIGKILL);
  }
}

TEST_CASE("fork server: a child that waits is taken, and replaced if it has ended") {
  PlayedServer here(
      serving("fork(child) and (order(child) or os._exit(0), child.send(b'ok'), "
              "child.recv(8), os._exit(0))"));
  REQUIRE(here.load() == ForkServer::State::Ready);
  const auto spare = [&here](int cgroup = -1) {
    here.server->prepare(0, false, cgroup);
    while (here.server->processes().size() < 2) ::poll(nullptr, 0, 1);
    return here.server->processes().back();
  };
  const pid_t first = spare();
  CHECK(spare() == first);
  ::kill(first, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(first), &info, WEXITED | WNOWAIT);
  pid_t second = first;
  while (second == first) second = spare();
  // One that is in the cgroup of another attempt would end with that.
  const UniqueFd cgroup(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const pid_t third = spare(cgroup.get());
  CHECK(third != second);
  CHECK(spare(cgroup.get()) == third);
  const pid_t fourth = spare();
  CHECK(fourth != third);
  const auto taken = here.take();
  REQUIRE(taken);
  CHECK(taken->pid == fourth);
}

TEST_CASE("fork server: a child of ours that serves already is adopted, and ready at once") {
  const int before = open_descriptors();
  {
    PlayedServer here(
        "say('born %d' % os.getpid())\n"
        "child = hear()\n"
        "fork(child) and (order(child), child.send(b'ok'), child.recv(8), os._exit(3))\n"
        "child = hear()\nchild.send(b'unborn [Errno 12] No \x1bmemory')\nhear()",
        true);
    CHECK(here.server->state() == ForkServer::State::Ready);
    CHECK(here.server->processes().size() == 1);
    const auto taken = here.take();
    REQUIRE_MESSAGE(taken, (taken ? "" : taken.error().text));
    int status = 0;
    CHECK(::waitpid(taken->pid, &status, 0) == taken->pid);
    CHECK(WEXITSTATUS(status) == 3);
    const auto refused = here.take();
    REQUIRE_FALSE(refused);
    CHECK(refused.error().text == "no child was forked: [Errno 12] No memory");
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("fork server: what is no child of ours is not adopted") {
  const auto refusal = [](int type, const std::string& says) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends.data()) == 0);
    const UniqueFd theirs(ends[1]);
    if (!says.empty()) REQUIRE(::write(theirs.get(), says.data(), says.size()) > 0);
    const auto adopted = ForkServer::adopt(UniqueFd(ends[0]), says.empty() ? kSoon : kAnyTime);
    return adopted ? "" : adopted.error().text;
  };
  CHECK(refusal(SOCK_STREAM, "born 5").ends_with("is not a socket of packets"));
  CHECK(refusal(SOCK_SEQPACKET, "") == "it has ended");
  for (const std::string& said :
       {"born 0"s, "born x"s, "ready"s, "born 1"s, "born " + std::to_string(::getpid())}) {
    CAPTURE(said);
    CHECK(refusal(SOCK_SEQPACKET, said) == "it is not our child");
  }
}

TEST_CASE("fork server: while it imports what was learnt, a start waits for no import") {
  for (const char* script : {"say('ready')\nsay('loading')\nkept = hear()\n",
                             "say('ready')\nkept = hear()\nsay('loading')\n"}) {
    CAPTURE(script);
    // It goes on at the second fork that is asked of it.
    PlayedServer here(std::string(script) + "kept = hear()\n" +
                      serving("fork(child) and (order(child) or os._exit(0), child.send(b'ok'), "
                              "child.recv(8), os._exit(0))"));
    REQUIRE(here.load() == ForkServer::State::Ready);
    const auto first = here.take();
    REQUIRE_FALSE(first);
    CHECK(first.error().text == "it is importing what a worker has");
    CHECK(here.server->state() == ForkServer::State::Ready);
    auto taken = here.take();
    // Busy is an answer, too, of a server that the machine gives no time within a take's bound.
    const auto later = [&] {
      const std::string& why = taken.error().text;
      return why == "it is importing what a worker has" || why == "it is busy";
    };
    while (!taken && later()) taken = here.take();
    CHECK_MESSAGE(taken, (taken ? "" : taken.error().text));
  }
}
