// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/hung_stacks.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun::agent {
namespace {

struct Offering {
  pid_t pid = ::fork();
  Offering() {
    if (pid != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) ::pause();
  }
  Offering(const Offering&) = delete;
  Offering& operator=(const Offering&) = delete;
  ~Offering() { end(); }
  void end() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(std::exchange(pid, 0), nullptr, 0);
  }
};

}  // namespace

TEST_CASE("stack offers: one that is renewed needs no room, and one that has ended gives it up") {
  StackOffers offers(2);
  Offering one, two, three;
  const auto offer = [&](const Offering& process, int signal) {
    offers.heard(process.pid, {signal, 5, 0});
    const auto found = offers.of(process.pid);
    return found ? found->signal : 0;
  };
  CHECK(offer(one, 35) == 35);
  CHECK(offer(two, 36) == 36);
  CHECK_MESSAGE(offer(three, 37) == 0, "no room");
  CHECK(offer(one, 38) == 38);
  two.end();
  CHECK_MESSAGE(offer(three, 37) == 0, "not looked for each time");
  CHECK(offer(three, 37) == 37);
  CHECK(offer(one, 39) == 39);
  offers.forget();
  CHECK(offers.processes().empty());
}

}  // namespace elastrun::agent
