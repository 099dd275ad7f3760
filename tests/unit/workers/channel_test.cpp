// SPDX-License-Identifier: Apache-2.0
#include "workers/channel.hpp"

#include "core/unique_fd.hpp"
#include "support/fake_files.hpp"

#include <chrono>
#include <csignal>
#include <cstring>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <semaphore>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace elastrun::workers {
namespace {

UniqueFd connect_to(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

std::unique_ptr<Channel> listen(boost::asio::io_context& loop, const std::string& folder,
                                Channel::OnMessage on_message, Channel::Workers workers = {}) {
  static guardian::Agent nobody;
  auto channel = std::make_unique<Channel>(loop, nobody, std::move(on_message), std::move(workers));
  channel->look_in(folder);
  REQUIRE_FALSE(channel->path().empty());
  return channel;
}

std::string folder_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

struct Hearing {
  test::FakeFiles files;
  boost::asio::io_context loop;
  std::vector<std::pair<pid_t, Message>> heard;
  std::vector<pid_t> workers;  // of the senders
  std::vector<pid_t> refused;  // the same, of what was refused
  pid_t worker_of_all = 0;
  std::unique_ptr<Channel> channel;

  explicit Hearing(const std::string& below = "") {
    channel = listen(loop, files.root() + below,
                     [this](Channel::Sender sender, Message message) {
                       heard.emplace_back(sender.process, std::move(message));
                       workers.push_back(sender.worker);
                     },
                     {[this](pid_t) { return worker_of_all; },
                      [](const std::string& directory) { return directory == "/run/0/3" ? 33 : 0; },
                      [this](pid_t worker) { refused.push_back(worker); }});
  }
  void until_heard(std::size_t count) {
    while (heard.size() < count) loop.run_one();
  }
  void until_refused(std::uint64_t count) {
    while (channel->statistics().refused < count) loop.run_one();
  }
};

void say(const UniqueFd& fd, std::string_view packet) {
  REQUIRE(::send(fd.get(), packet.data(), packet.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(packet.size()));
}

TEST_CASE("channel: whose a sender is is found out when it connects, and remembered") {
  Hearing hearing;
  hearing.worker_of_all = 7;
  const auto worker = connect_to(hearing.channel->path());
  hearing.channel->catch_up();
  hearing.worker_of_all = 0;  // it has ended
  say(worker, R"({"kind":"step","step":1})");
  hearing.until_heard(1);
  CHECK(hearing.workers[0] == 7);
  CHECK(hearing.channel->statistics().strange == 0);
}

TEST_CASE("channel: a sender that has ended when it is heard has said whose it is") {
  Hearing hearing;
  const auto say_once = [&](std::string_view from) {
    const auto gone = connect_to(hearing.channel->path());
    if (!from.empty()) say(gone, from);
    say(gone, R"({"kind":"step","step":1})");
  };
  say_once(R"({"kind":"from","directory":"/run/0/3"})");
  say_once(R"({"kind":"from","directory":"/run/0/4"})");
  say_once("");
  hearing.until_heard(3);
  CHECK(hearing.workers == std::vector<pid_t>{33, 0, 0});
  CHECK(hearing.channel->statistics().messages == 3);
  CHECK(hearing.channel->statistics().strange == 2);
  hearing.worker_of_all = 7;  // what we see ourselves comes first
  say_once(R"({"kind":"from","directory":"/run/0/3"})");
  hearing.until_heard(4);
  CHECK(hearing.workers[3] == 7);
}

TEST_CASE("channel: what workers could not tell is counted, and is no message") {
  Hearing hearing;
  const auto worker = connect_to(hearing.channel->path());
  say(worker, R"({"kind":"lost","count":3})");
  say(worker, R"({"kind":"lost","count":9223372036854775807})");
  say(worker, R"({"kind":"lost","count":-1})");
  say(worker, R"({"kind":"lost"})");
  hearing.until_refused(2);
  CHECK(hearing.channel->statistics().not_told == 3 + (1ull << 40));
  CHECK(hearing.channel->statistics().messages == 0);
}

TEST_CASE("channel: nonsense is counted, and who goes on with it is cut off") {
  Hearing hearing;
  const auto worker = connect_to(hearing.channel->path());
  for (int i = 0; i < 8; ++i) say(worker, "nonsense");
  hearing.until_refused(8);
  char byte = 0;
  CHECK(::recv(worker.get(), &byte, 1, 0) == 0);
  CHECK(hearing.heard.empty());
}

TEST_CASE("channel: all that has been said is heard at once if somebody needs to know") {
  Hearing hearing;
  const auto before = connect_to(hearing.channel->path());
  for (int i = 0; i < 200; ++i) say(before, R"({"kind":"step","step":1})");
  {
    const auto gone = connect_to(hearing.channel->path());
    say(gone, R"({"kind":"step","step":2})");
  }
  hearing.channel->catch_up();
  CHECK(hearing.heard.size() == 201);
  say(before, R"({"kind":"step","step":3})");
  hearing.until_heard(202);
  CHECK(std::get<StepDone>(hearing.heard.back().second).step == 3);
}

TEST_CASE("channel: whose packet is refused is told, of strangers it is not") {
  Hearing hearing;
  const auto stranger = connect_to(hearing.channel->path());
  say(stranger, "nonsense");
  hearing.until_refused(1);
  CHECK(hearing.refused.empty());
  hearing.worker_of_all = 21;
  const auto worker = connect_to(hearing.channel->path());
  say(worker, std::string(kMaxPacket + 1, 'x'));
  say(worker, R"({"kind":"event","name":")" + std::string(300, 'n') + R"("})");
  hearing.until_refused(3);
  CHECK(hearing.refused == std::vector<pid_t>{21, 21});
}

TEST_CASE("channel: where no socket can be made it is elsewhere, and goes with its folder") {
  boost::asio::io_context loop;
  // As on gcsfuse, SMB or 9p: procfs makes no sockets, for root neither.
  for (const char* folder : {"/proc/self", "/nowhere/at/all", ""}) {
    CAPTURE(folder);
    std::string own;
    {
      const auto channel = listen(loop, folder, [](Channel::Sender, Message) {});
      own = folder_of(channel->path());
      CHECK(own.find("/elastrun_") != std::string::npos);
      connect_to(channel->path());
      channel->end(nullptr);
    }
    CHECK_MESSAGE(::access(own.c_str(), F_OK) != 0, "left: " << own);
  }
}

TEST_CASE("channel: a temporary folder that takes no socket either is left clean for the next") {
  test::FakeFiles files;
  boost::asio::io_context loop;
  // mkdtemp(3) succeeds below it, but the path of the socket is too long.
  const std::string deep = files.root() + "/" + std::string(90, 'x');
  std::filesystem::create_directories(deep);
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TMPDIR", deep.c_str(), 1);
  const auto channel = listen(loop, "/proc/self", [](Channel::Sender, Message) {});
  before == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
  CHECK(channel->path().starts_with("/tmp/elastrun_"));
  CHECK(std::filesystem::is_empty(deep));
}

TEST_CASE("channel: its place stays until the thread that is given it has removed it") {
  Hearing hearing;
  const std::string path = hearing.channel->path();
  files::BlockingCalls far(hearing.loop.get_executor());
  std::binary_semaphore gate(0);
  far.enqueue(std::make_shared<const std::string>("a disk"), [&gate] {
    gate.acquire();
    return files::BlockingCalls::Outcome();
  });
  hearing.channel->end(&far);
  CHECK(hearing.channel->path().empty());
  CHECK(::access(path.c_str(), F_OK) == 0);
  gate.release();
  CHECK(far.finish(std::chrono::minutes(1)));
  CHECK(::access(path.c_str(), F_OK) != 0);
}

TEST_CASE("channel: where its name was removed it is opened again, and its counts go on") {
  Hearing hearing;
  const auto before = connect_to(hearing.channel->path());
  say(before, R"({"kind":"step","step":1})");
  hearing.until_heard(1);
  hearing.channel->look_in(hearing.files.root());
  say(before, R"({"kind":"step","step":2})");
  hearing.until_heard(2);
  ::unlink(hearing.channel->path().c_str());
  hearing.channel->look_in(hearing.files.root());
  char byte = 0;
  CHECK(::recv(before.get(), &byte, 1, 0) == 0);
  const auto worker = connect_to(hearing.channel->path());
  say(worker, R"({"kind":"step","step":3})");
  hearing.until_heard(3);
  CHECK(hearing.channel->statistics().connections == 2);
}

TEST_CASE("channel: who has returned hears of it when all have, others are not disturbed") {
  Hearing hearing;
  const auto waits = connect_to(hearing.channel->path());
  const auto stays = connect_to(hearing.channel->path());
  say(waits, R"({"kind":"returned"})");
  say(stays, R"({"kind":"step","step":1})");
  hearing.until_heard(2);
  char byte = 0;
  CHECK(::recv(waits.get(), &byte, 1, MSG_DONTWAIT) == -1);
  hearing.channel->release();
  CHECK(::recv(waits.get(), &byte, 1, MSG_DONTWAIT) == 0);
  CHECK(::recv(stays.get(), &byte, 1, MSG_DONTWAIT) == -1);
  say(stays, R"({"kind":"step","step":2})");
  hearing.until_heard(3);
}

TEST_CASE("channel: who asks gets the answer as a file, others do not") {
  Hearing at;
  const auto asker = connect_to(at.channel->path());
  const auto other = connect_to(at.channel->path());
  say(asker, R"({"kind":"ask_stacks"})");
  say(other, R"({"kind":"step","step":1})");
  at.until_heard(2);
  const std::string text(1 << 20, 'x');  // more than a socket takes
  at.channel->answer(text);
  at.channel->answer("nobody asks any more");
  char nothing = 0;
  iovec data{&nothing, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  REQUIRE(::recvmsg(asker.get(), &message, 0) == 1);
  int file = -1;
  REQUIRE(CMSG_FIRSTHDR(&message) != nullptr);
  std::memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
  const UniqueFd got(file);
  std::string read(text.size() + 1, '\0');
  CHECK(::read(got.get(), read.data(), read.size()) == static_cast<ssize_t>(text.size()));
  CHECK(::recv(asker.get(), &nothing, 1, 0) == 0);
  CHECK(::recv(other.get(), &nothing, 1, MSG_DONTWAIT) == -1);
}

TEST_CASE("channel: one process that has returned can be let go alone") {
  Hearing hearing;
  const auto waits = connect_to(hearing.channel->path());
  say(waits, R"({"kind":"returned"})");
  hearing.until_heard(1);
  char byte = 0;
  hearing.channel->release(::getpid() + 1);
  CHECK(::recv(waits.get(), &byte, 1, MSG_DONTWAIT) == -1);
  hearing.channel->release(::getpid());
  CHECK(::recv(waits.get(), &byte, 1, MSG_DONTWAIT) == 0);
}

/// Of open files, while it lives.
struct Limit {
  explicit Limit(rlim_t soft) {
    ::getrlimit(RLIMIT_NOFILE, &before);
    const rlimit low{soft, before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &low);
  }
  ~Limit() { lift(); }
  void lift() const { ::setrlimit(RLIMIT_NOFILE, &before); }
  rlimit before{};
};

/// A process that connects so many times, and is at its end when its last connection is.
struct Client {
  Client(const Hearing& hearing, const Limit& limit, int connections) {
    pid = ::fork();
    if (pid != 0) return;
    limit.lift();
    std::vector<UniqueFd> all;
    for (int i = 0; i < connections; ++i) all.push_back(connect_to(hearing.channel->path()));
    char byte = 0;
    [[maybe_unused]] const auto ended = ::recv(all.back().get(), &byte, 1, 0);
    ::_exit(0);
  }
  ~Client() {
    if (pid < 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  bool has_ended() {
    if (::waitpid(pid, nullptr, WNOHANG) == pid) pid = -1;
    return pid < 0;
  }
  pid_t pid = -1;
};

/// As long as the client has not ended, and not for ever.
void serve(Hearing& hearing, Client& client) {
  for (int i = 0; i < 1000 && !client.has_ended(); ++i) {
    hearing.loop.run_for(std::chrono::milliseconds(20));
  }
  CHECK(client.pid < 0);
}

TEST_CASE("channel: without a descriptor it refuses, and does not keep the loop busy") {
  const Limit limit(64);
  Hearing hearing;
  std::vector<UniqueFd> others;
  for (UniqueFd one; (one = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));) {
    others.push_back(std::move(one));
  }
  Client client(hearing, limit, 1);
  serve(hearing, client);
  CHECK(hearing.channel->statistics().refused == 1);
  CHECK(hearing.loop.run_for(std::chrono::milliseconds(100)) < 20);
  others.clear();
  const auto worker = connect_to(hearing.channel->path());
  say(worker, R"({"kind":"step","step":1})");
  hearing.until_heard(1);
}

}  // namespace
}  // namespace elastrun::workers
