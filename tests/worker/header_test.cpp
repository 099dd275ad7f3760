// SPDX-License-Identifier: Apache-2.0
// The header for C++ workers against a socket that the test listens on.
#include "worker/agent_socket.hpp"
#include "worker/elastrun.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <doctest/doctest.h>
#include <filesystem>
#include <limits>
#include <map>
#include <sys/wait.h>
#include <thread>
#include <vector>

using namespace elastrun;
using test::in_worker, test::Listener, test::packets_of;

TEST_CASE("worker header: each call is one packet of JSON") {
  const Listener listener;
  const int dropped = in_worker(listener.path, [] {
    worker::step(7);
    worker::checkpoint_done(5);
    worker::metric("loss", 0.5);
    worker::count("tokens", 32, "g");
    worker::metric("bad", std::numeric_limits<double>::quiet_NaN(), "opt");
    worker::event("epoch", {{"name", "a\"b\n"}, {"number", "3"}});
    worker::event("plain");
    {
      const worker::Phase eval("eval");
      const worker::Phase save("save");
    }
    worker::phase("warm-up");
    { const worker::Phase eval("eval"); }
    return static_cast<int>(worker::dropped());
  });
  CHECK(dropped == 0);
  CHECK(listener.packets() ==
        std::vector<std::string>{
            R"({"kind":"step","step":7})", R"({"kind":"checkpoint","step":5})",
            R"({"kind":"metric","name":"loss","value":0.5,"group":"worker","step":7})",
            R"({"kind":"metric","type":"counter","name":"tokens","value":32,"group":"g"})",
            R"({"kind":"metric","name":"bad","value":"nan","group":"opt","step":7})",
            R"({"kind":"event","name":"epoch","attributes":{"name":"a\"b\u000a","number":"3"}})",
            R"({"kind":"event","name":"plain","attributes":{}})",
            R"({"kind":"phase","phase":"eval"})", R"({"kind":"phase","phase":"save"})",
            R"({"kind":"phase","phase":"eval"})", R"({"kind":"phase","phase":"train"})",
            R"({"kind":"phase","phase":"warm-up"})", R"({"kind":"phase","phase":"eval"})",
            R"({"kind":"phase","phase":"warm-up"})"});
}

TEST_CASE("worker header: a phase may have an end, which a phase within it does not move") {
  const auto told = packets_of([] {
    const worker::Phase eval("eval", std::chrono::minutes(5));
    { const worker::Phase save("save", std::chrono::seconds(-1)); }
  });
  REQUIRE(told.size() == 4);
  const std::string begin = R"({"kind":"phase","phase":"eval","at_most":299.)";
  for (const std::size_t i : {0, 2}) CHECK(told[i].substr(0, begin.size()) == begin);
  CHECK(told[1] == R"({"kind":"phase","phase":"save"})");
  CHECK(told[3] == R"({"kind":"phase","phase":"train"})");
}

TEST_CASE("worker header: events of goodput go in packets, all by the end of the process") {
  const auto packets = packets_of([] {
    worker::record_event(worker::Event::StartJob);
    for (int i = 0; i < 1000; ++i) worker::record_event(worker::Event::StartStep, i);
    worker::record_event(worker::Event::StartCustom, "ev\"al");
    worker::record_event(worker::Event::EndCustom, "ev\"al");
    worker::record_event(worker::Event::EndRestore);
    worker::Recorder::instance().flush();  // what a process does that does not call _exit
  });
  REQUIRE(packets.size() >= 1);
  CHECK(packets.size() < 200);
  std::string all;
  for (const auto& packet : packets) {
    CHECK(packet.size() < 16384);
    const std::string_view head = R"({"kind":"goodput","lost":0,"entries":[)";
    REQUIRE(packet.compare(0, head.size(), head) == 0);
    REQUIRE(packet.substr(packet.size() - 2) == "]}");
    all += packet.substr(head.size(), packet.size() - head.size() - 2) + ',';
  }
  CHECK(all.find(R"({"job_start_time":)") == 0);
  for (int i = 0; i < 1000; ++i) {
    CHECK(all.find(R"({"step_count":)" + std::to_string(i) + R"(,"step_start_time":)") !=
          std::string::npos);
  }
  CHECK(all.find(R"({"custom_badput_event_type":"ev\"al","custom_badput_event_end_time":)") !=
        std::string::npos);
  const auto last = all.rfind(R"({"checkpoint_restore_end_time":)");
  REQUIRE(last != std::string::npos);
  const auto now = static_cast<double>(::time(nullptr));
  CHECK(std::stod(all.substr(last + 31)) >= now - 60);
  CHECK(std::stod(all.substr(last + 31)) < now + 2);
}

TEST_CASE("worker header: a scope records its start, and its end whatever ends it") {
  const auto told = packets_of([] {
    const worker::EventScope job(worker::Event::StartJob);
    { const worker::EventScope prep(worker::Event::StartPreparation); }
    { const worker::EventScope step(worker::Event::StartStep, 7); }
    try {
      const worker::EventScope eval(worker::Event::StartCustom, "eval");
      throw 1;
    } catch (int) {
    }
    worker::Recorder::instance().flush();
  });
  std::string all;
  for (const auto& packet : told) all += packet;
  std::size_t at = 0;
  for (const std::string_view one :
       {R"({"job_start_time")", R"({"training_prep_start_time")", R"({"training_prep_end_time")",
        R"({"step_count":7,"step_start_time")",
        R"({"custom_badput_event_type":"eval","custom_badput_event_start_time")",
        R"({"custom_badput_event_type":"eval","custom_badput_event_end_time")"}) {
    at = all.find(one, at);
    REQUIRE_MESSAGE(at != std::string::npos, one);
  }
  CHECK(all.find("step_end") == std::string::npos);
}

TEST_CASE("worker header: what may take its time is told before it begins") {
  const auto told = packets_of([] {
    worker::record_event(worker::Event::StartStep, 1);
    worker::record_event(worker::Event::StartSave);
  });
  std::string all;
  for (const auto& packet : told) all += packet;
  CHECK(all.find(R"({"checkpoint_save_start_time":)") != std::string::npos);
}

namespace {

// What is armed after each packet, by id: the seconds that were asked for.
std::vector<std::map<std::string, std::string>> armed_after_each(
    const std::vector<std::string>& packets) {
  std::vector<std::map<std::string, std::string>> all;
  std::map<std::string, std::string> armed;
  for (const auto& packet : packets) {
    const auto part = [&](const std::string& name) {
      const auto at = packet.find('"' + name + "\":") + name.size() + 3;
      return packet.substr(at, packet.find_first_of(",}", at) - at);
    };
    if (packet.find("\"deadline\":") == std::string::npos) {
      armed.erase(part("id"));
    } else {
      armed[part("id")] = part("after");
    }
    all.push_back(armed);
  }
  return all;
}

void recurse(int depth) {
  const worker::Expires timer(depth);
  if (depth > 1) recurse(depth - 1);
}

std::vector<std::string> waiting(int agent) {
  std::vector<std::string> packets;
  std::string packet(65536, '\0');
  for (ssize_t size = 0; (size = ::recv(agent, packet.data(), packet.size(), 0)) > 0;) {
    packets.push_back(packet.substr(0, static_cast<std::size_t>(size)));
  }
  return packets;
}

// An agent's end of ELASTRUN_PAGE.
struct SharedPage {
  int fd = ::memfd_create("page", MFD_CLOEXEC);
  std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd);
  SharedPage() {
    REQUIRE(::ftruncate(fd, 16384) == 0);
    const std::uint32_t header[] = {1, 16384};
    REQUIRE(::pwrite(fd, "elastrun", 8, 0) == 8);
    REQUIRE(::pwrite(fd, header, 8, 8) == 8);
  }
  ~SharedPage() { ::close(fd); }
  template <class T>
  T at(off_t offset) const {
    T value{};
    REQUIRE(::pread(fd, &value, sizeof value, offset) == sizeof value);
    return value;
  }
  std::string name(int index) const {
    const off_t entry = 128 + 128 * index;
    std::string text(at<std::uint32_t>(entry + 24), '\0');
    REQUIRE(::pread(fd, text.data(), text.size(), entry + 28) == static_cast<ssize_t>(text.size()));
    std::replace(text.begin(), text.end(), '\0', '/');
    return text;
  }
  template <class Script>
  int in_worker(Script script, const std::string& channel = "") const {
    return ::in_worker(channel, [&] {
      ::setenv("ELASTRUN_PAGE", path.c_str(), 1);
      return script();
    });
  }
};

}  // namespace

TEST_CASE("worker header: a timer is two packets, its scope is where it was made") {
  const auto packets = packets_of([] { const worker::Expires timer(60, {}, SIGTERM); });
  REQUIRE(packets.size() == 2);
  CHECK(packets[0].find("header_test.cpp#") != std::string::npos);
  CHECK(packets[0].find(R"(,"after":60,"signal":15})") != std::string::npos);
  CHECK(packets[1] == packets[0].substr(0, packets[0].find(",\"deadline\"")) + "}");
}

TEST_CASE("worker header: timers inside each other are separate, recursion arms one again") {
  using Armed = std::map<std::string, std::string>;
  const Listener listener;
  in_worker(listener.path, [] {
    const worker::Expires outer(60);
    const worker::Expires inner(2);
  });
  CHECK(armed_after_each(listener.packets()) ==
        std::vector<Armed>{{{"1", "60"}}, {{"1", "60"}, {"2", "2"}}, {{"1", "60"}}, {}});
  in_worker(listener.path, [] { recurse(2); });
  CHECK(armed_after_each(listener.packets()) == std::vector<Armed>{{{"1", "2"}},
                                                                   {{"1", "2"}, {"2", "1"}},
                                                                   {{"2", "1"}},
                                                                   {{"1", "2"}, {"2", "1"}},
                                                                   {{"1", "2"}},
                                                                   {}});
}

TEST_CASE("worker header: the end of a timer is not lost while the agent is behind") {
  const Listener listener;
  std::thread reader;
  const int dropped = in_worker(listener.path, [&]() -> int {
    {
      const worker::Expires timer(60);
      while (worker::dropped() == 0) worker::step(1);
      reader = std::thread([&] { (void)listener.packets(); });
    }
    const auto count = static_cast<int>(worker::dropped());
    ::_exit(count);  // not waiting for the reader
  });
  CHECK(dropped == 1);
}

TEST_CASE("worker header: an agent that was behind hears how much it was not told") {
  const Listener listener;
  const int told = in_worker(listener.path, [&] {
    while (worker::dropped() < 7) worker::step(1);
    const int agent = ::accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    (void)waiting(agent);
    worker::step(2);
    worker::step(3);
    const std::vector<std::string> expected{R"({"kind":"step","step":2})",
                                            R"({"kind":"lost","count":7})",
                                            R"({"kind":"step","step":3})"};
    return waiting(agent) == expected ? 1 : 0;
  });
  CHECK(told == 1);
}

TEST_CASE("worker header: the end of a timer is kept while the agent stands still") {
  const Listener listener;
  const int ends = in_worker(listener.path, [&] {
    using Clock = std::chrono::steady_clock;
    {
      const worker::Expires first(60);
      while (worker::dropped() == 0) worker::step(1);
    }
    const auto before = Clock::now();
    { const worker::Expires second(60); }  // does not wait for a second, too
    const bool quick = Clock::now() - before < std::chrono::milliseconds(500);
    const int agent = ::accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int found = 0;
    const auto count = [&](const std::vector<std::string>& packets) {
      for (const auto& one : packets) {
        const bool timer = one.find("\"timer\"") != std::string::npos;
        found += timer && one.find("deadline") == std::string::npos ? 1 : 0;
      }
    };
    count(waiting(agent));
    worker::step(2);
    const auto last = waiting(agent);
    count(last);
    const bool heard = std::ranges::find(last, R"({"kind":"step","step":2})") != last.end();
    return quick && heard ? found : 100;
  });
  CHECK(ends == 2);
}

TEST_CASE("worker header: should_save looks at the agent's order in the page") {
  const SharedPage page;
  const std::int64_t order = 12 + 2;
  REQUIRE(::pwrite(page.fd, &order, sizeof order, 104) == sizeof order);
  const int heard = page.in_worker([] {
    return (worker::should_save(11) ? 1 : 0) | (worker::should_save(12) ? 2 : 0) |
           (worker::should_save() ? 4 : 0);
  });
  CHECK(heard == (2 | 4));
  CHECK(page.at<std::int64_t>(32) == 12);  // from which the agent knows how far it is
  CHECK(page.at<std::int64_t>(96) > 0);    // and that it looks
}

TEST_CASE(
    "worker header: the page has the last step, phase and values of a process that was killed") {
  const SharedPage page;
  page.in_worker([] {
    for (int i = 0; i <= 120; ++i) worker::step(i);
    worker::phase("eval");
    worker::metric("loss", 0.5, "model");
    worker::Metric lr("lr");
    for (int i = 0; i < 1000; ++i) lr.put(i);
    for (int i = 0; i < 300; ++i) worker::metric("n" + std::to_string(i), 1);
    ::raise(SIGKILL);
  });
  CHECK(page.at<std::int32_t>(16) > 0);
  CHECK(page.at<std::uint32_t>(20) == 127);
  CHECK(page.at<std::uint64_t>(24) % 2 == 0);
  CHECK(page.at<std::int64_t>(32) == 120);
  CHECK(page.at<std::int64_t>(40) > 0);
  CHECK(page.at<char>(48) == 'e');
  CHECK(page.at<std::int64_t>(80) >= page.at<std::int64_t>(40));
  CHECK(page.name(0) == "model/loss");
  CHECK(page.at<double>(128 + 8) == 0.5);
  CHECK(page.name(1) == "torchelastic/lr");
  CHECK(page.at<double>(256 + 8) == 999);
  CHECK(page.at<std::uint64_t>(256 + 16) == 1000);
  CHECK(page.at<std::uint64_t>(256) == 2000);
}

TEST_CASE("worker header: a page is left alone by forked children and while its writer lives") {
  const SharedPage page;
  page.in_worker([] {
    worker::step(1);
    const pid_t child = ::fork();
    worker::step(child == 0 ? 3 : 2);
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
  });
  CHECK(page.at<std::int64_t>(32) == 2);
  const auto ended = page.at<std::int32_t>(16), alive = static_cast<std::int32_t>(::getpid());
  const auto another = [&] {
    page.in_worker([] {
      worker::step(9);
      worker::Metric("a").put(1);
      return 0;
    });
  };
  REQUIRE(::pwrite(page.fd, &alive, sizeof alive, 16) == sizeof alive);
  another();
  CHECK(page.at<std::int64_t>(32) == 2);
  CHECK(page.at<std::int32_t>(16) == alive);
  CHECK(page.at<std::uint32_t>(20) == 0);
  REQUIRE(::pwrite(page.fd, &ended, sizeof ended, 16) == sizeof ended);
  another();
  CHECK(page.at<std::int64_t>(32) == 9);
  CHECK(page.at<std::int32_t>(16) != ended);
  CHECK(page.name(0) == "torchelastic/a");
}

TEST_CASE("worker header: a histogram of NaN alone takes no other kind's place, and is counted") {
  const Listener listener;
  const int dropped = in_worker(listener.path, [] {
    worker::Histogram seconds("h", "g");
    seconds.put(std::numeric_limits<double>::quiet_NaN());
    seconds.put(std::numeric_limits<double>::infinity());
    seconds.flush();
    const auto lost = static_cast<int>(worker::dropped());
    seconds.put(1);
    return lost;
  });
  CHECK(dropped == 2);
  const auto packets = listener.packets();
  REQUIRE(packets.size() == 2);
  CHECK(packets[0].find("histogram") != std::string::npos);
  CHECK(packets[1] == R"({"kind":"lost","count":2})");
}

TEST_CASE("worker header: a forked child does not tell the window of its parent again") {
  const Listener listener;
  in_worker(listener.path, [] {
    worker::Stat loss("loss", {worker::Aggregation::Sum}, std::chrono::hours(1));
    loss.add(1);
    const pid_t child = ::fork();
    if (child == 0) loss.add(4);
    if (child != 0) ::waitpid(child, nullptr, 0);
  });
  for (const char* sum : {R"("loss.sum":4)", R"("loss.sum":1)"}) {
    const auto packets = listener.packets();
    REQUIRE(packets.size() == 1);
    CHECK(packets[0].find(sum) != std::string::npos);
  }
}

TEST_CASE(
    "worker header: samples of several threads are each counted once, a child's are its own") {
  const Listener listener;
  in_worker(listener.path, [] {
    worker::Metric metric("a", "g");
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&metric] {
        for (int j = 0; j < 10'000; ++j) metric.put(1);
      });
    }
    for (auto& thread : threads) thread.join();
    metric.put(std::numeric_limits<double>::infinity());
    const pid_t child = ::fork();
    if (child == 0) {
      metric.flush();
      ::_exit(static_cast<int>(worker::dropped()));
    }
    ::waitpid(child, nullptr, 0);
  });
  const auto packets = listener.packets();
  std::uint64_t sum = 0;
  for (const auto& packet : packets) {
    const auto at = packet.find("\"sum\":");
    sum += at == std::string::npos ? packet.find("\"value\":1,") != std::string::npos
                                   : std::stoull(packet.substr(at + 6));
  }
  CHECK(sum == 40'000);
  CHECK(packets.back().find("\"not_finite\":1") != std::string::npos);
  CHECK(listener.packets().empty());
}

/// Of the clock by which series are told once a second.
void begin_second() {
  const auto seconds = [] {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec;
  };
  for (const auto first = seconds(); seconds() == first;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_CASE("worker header: series have labels, a unit and a help, and may be histograms") {
  const auto told = packets_of([] {
    const worker::About about{{{"layer", "3"}}, "s", "A help."};
    worker::metric("a", 1, "g", -1, about);
    worker::count("b", 2, "g", about);
    worker::Metric("c", "g", about).put(1);
    worker::Histogram wait("d", "g", about);
    begin_second();  // in which all go together
    for (const double value : {0.0, 2.0, -1.0, std::nan("")}) wait.put(value);
  });
  const std::string about = R"(,"labels":{"layer":"3"},"unit":"s","help":"A help.")";
  REQUIRE(told.size() == 5);  // of the histogram the first value goes at once
  CHECK(told[0] == R"({"kind":"metric","name":"a","value":1,"group":"g")" + about + '}');
  CHECK(told[1] ==
        R"({"kind":"metric","type":"counter","name":"b","value":2,"group":"g")" + about + '}');
  CHECK(told[2] == R"({"kind":"metric","name":"c","value":1,"group":"g")" + about + '}');
  CHECK(told[3] == R"({"kind":"metric","name":"d","value":0,"group":"g")" + about +
                       R"(,"count":1,"sum":0,"min":0,"max":0,"type":"histogram","scale":5,)"
                       R"("zeros":1,"buckets":[],"negative":[]})");
  CHECK(told[4] == R"({"kind":"metric","name":"d","value":"nan","group":"g")" + about +
                       R"(,"count":2,"sum":1,"min":-1,"max":2,"type":"histogram","scale":5,)"
                       R"("zeros":0,"buckets":[[31,1]],"negative":[[-1,1]],"not_finite":1})");
}

TEST_CASE("worker header: samples come one by one where that is wanted") {
  const auto told = packets_of([] {
    ::setenv("ELASTRUN_SAMPLES", "2", 1);
    worker::Metric loss("loss", "g");
    worker::step(7);
    for (int i = 0; i < 5; ++i) loss.put(i);
  });
  std::size_t rows = 0;
  for (const auto& packet : told) {
    if (packet.find(R"("kind":"samples")") == std::string::npos) continue;
    CHECK(packet.find(R"({"kind":"samples","series":[["g","loss",{},"",""]],"samples":[)") == 0);
    for (auto at = packet.find("[0,1"); at != packet.npos; at = packet.find("[0,1", at + 1)) ++rows;
  }
  CHECK(rows >= 2);  // more, if a second ends meanwhile
  CHECK(rows < 5);
  CHECK(told.back().find(R"("each":true)") != std::string::npos);
}

TEST_CASE("worker header: spans are two events, which know what is around them") {
  const auto told = packets_of([] {
    const worker::Span epoch("epoch", {{"number", 3}});
    try {
      const worker::Span step("step");
      worker::event("bad", {{"a", true}}, {"error", 12.5, "00ff", {}, {}});
      throw 1;
    } catch (int) {
    }
    worker::event("given", {}, {{}, 0, {}, "aa", "bb"});
    return worker::is_enabled() ? 0 : 1;
  });
  REQUIRE(told.size() == 6);
  const auto id_in = [](const std::string& packet, const std::string& key) {
    const auto at = packet.find('"' + key + "\":\"");
    return at == packet.npos ? std::string() : packet.substr(at + key.size() + 4, 16);
  };
  const auto epoch = id_in(told[0], "span.id"), step = id_in(told[1], "span.id");
  CHECK(epoch.size() == 16);
  CHECK(epoch != step);
  CHECK(id_in(told[0], "span.parent").empty());
  CHECK(id_in(told[1], "span.parent") == epoch);
  CHECK(told[2] == R"({"kind":"event","name":"bad","time":12.5,"attributes":{"a":true,)"
                   R"("severity":"error","event.id":"00ff","span.id":")" +
                       step + R"(","span.parent":")" + epoch + R"("}})");
  CHECK(told[3].find(R"("span.error":"exception","span.phase":"stop","span.id":")" + step) !=
        std::string::npos);
  // By the times of its ends and how long it took a trace has it: all fit.
  const auto number_in = [](const std::string& packet, const std::string& key) {
    return std::stod(packet.substr(packet.find('"' + key + "\":") + key.size() + 3));
  };
  const double took = number_in(told[5], "time") - number_in(told[0], "time");
  CHECK(std::abs(took - number_in(told[5], "span.seconds")) < 2e-6);
  CHECK(told[4].find(R"({"span.id":"aa","span.parent":"bb"})") != std::string::npos);
}

TEST_CASE("worker header: attributes are numbers and truths, too; work is measured") {
  const auto packets = packets_of([] {
    worker::event("e", {{"a", 1}, {"b", 0.5}, {"c", true}, {"d", std::string("x")}});
    { const worker::Prof prof("work"); }
    try {
      const worker::Prof prof("bad", "g");
      throw 1;
    } catch (int) {
    }
  });
  REQUIRE(packets.size() == 5);
  CHECK(packets[0] ==
        R"({"kind":"event","name":"e","attributes":{"a":1,"b":0.5,"c":true,"d":"x"}})");
  CHECK(packets[1].find(R"("work.success","value":1,"group":"torchelastic")") != std::string::npos);
  CHECK(packets[2].find("work.duration.ms") != std::string::npos);
  CHECK(packets[3].find(R"("bad.failure","value":1,"group":"g")") != std::string::npos);
}

TEST_CASE("worker header: an absent agent costs nothing but the count") {
  const int dropped = in_worker("/nonexistent/channel", [] {
    for (int i = 0; i < 9; ++i) worker::step(i);
    return static_cast<int>(worker::dropped());
  });
  CHECK(dropped == 9);
  CHECK(in_worker("", [] {
          worker::step(1);
          return static_cast<int>(worker::dropped());
        }) == 0);
}

TEST_CASE("worker header: an agent that does not read is not waited for") {
  const Listener listener;
  const int some_dropped = in_worker(listener.path, [] {
    for (int i = 0; i < 20000; ++i) worker::step(i);
    return worker::dropped() > 0 && worker::dropped() < 20000 ? 1 : 0;
  });
  CHECK(some_dropped == 1);
  CHECK(listener.packets().front() == R"({"kind":"step","step":0})");
}

TEST_CASE("worker header: a child forked while another thread reports can report, too") {
  const int failed = in_worker("/nonexistent/channel", [] {
    std::atomic<bool> go_on{true};
    std::thread other([&go_on] {
      while (go_on) worker::step(1);
    });
    int stuck = 0;
    for (int i = 0; i < 300 && stuck == 0; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(30);  // what cannot go on ends by it
        worker::step(2);
        ::_exit(0);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      stuck += status != 0;
    }
    go_on = false;
    other.join();
    return stuck;
  });
  CHECK(failed == 0);
}

TEST_CASE("worker header: a signal handler that records in the middle of a record is not stuck") {
  const Listener listener;
  const int stuck = in_worker(listener.path, [] {
    ::alarm(60);  // what cannot go on ends by it
    static worker::Metric loss("loss");
    static std::atomic<int> handled{0};
    struct sigaction action {};
    action.sa_handler = [](int) {
      worker::record_event(worker::Event::StartSave);
      loss.put(1);
      ++handled;
    };
    ::sigaction(SIGVTALRM, &action, nullptr);
    const itimerval often{{0, 50}, {0, 50}};
    ::setitimer(ITIMER_VIRTUAL, &often, nullptr);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    while (handled < 200 || std::chrono::steady_clock::now() < until) {
      worker::record_event(worker::Event::StartStep, 1);
      loss.put(2);
    }
    const itimerval off{};
    ::setitimer(ITIMER_VIRTUAL, &off, nullptr);
    return 0;
  });
  CHECK(stuck == 0);
}

TEST_CASE("worker header: a name is cut between characters") {
  const std::string name = std::string(255, 'a') + "\u00e9z";
  const auto packets = packets_of([&] {
    worker::phase(name);
    worker::record_event(worker::Event::StartCustom, name);
    worker::Recorder::instance().flush();
  });
  REQUIRE(packets.size() == 2);
  const std::string wanted = '"' + std::string(255, 'a') + '"';
  for (const auto& packet : packets) CHECK(packet.find(wanted) != std::string::npos);
}

TEST_CASE("worker header: of an event that is too long the begins of its texts are told") {
  const Listener listener;
  const int dropped = in_worker(listener.path, [] {
    worker::event("stack", {{"trace", std::string(20000, 'x')}, {"number", 1}});
    // Of many texts, and of bytes that become escapes, less: none of those is cut in the middle.
    std::string text;
    for (int i = 0; i < 5000; ++i) text += "\x01\u20ac\"";
    worker::event("many", {{"a", text}, {"b", text}, {"c", text}, {"d", text}, {"e", text}});
    worker::event("whole", {{"trace", std::string(16000, 'x')}});
    return static_cast<int>(worker::dropped());
  });
  CHECK(dropped == 0);
  const auto told = listener.packets();
  REQUIRE(told.size() == 3);
  CHECK(told[0] == R"({"kind":"event","name":"stack","attributes":{"trace":")" +
                       std::string(4096, 'x') + R"(","number":1}})");
  std::string part;
  for (int i = 0; i < 93; ++i) part += "\\u0001\u20ac\\\"";  // 11 bytes each, of 1,024
  const std::string a = R"("a":")" + part + R"(","b":")", e = R"("e":")" + part + R"("}})";
  CHECK(told[1].find(a) != std::string::npos);
  CHECK(told[1].substr(told[1].size() - e.size()) == e);
  CHECK(told[2].size() > 16000);
}

TEST_CASE("worker header: what is no UTF-8 is replaced, and costs no packet") {
  CHECK(worker::quoted("a\xc3\xa9\xf0\x9f\x98\x80") == "\"a\xc3\xa9\xf0\x9f\x98\x80\"");
  for (const std::string bad :
       {"\xff", "\xa9", "\xc3", "\xc0\xa9", "\xe2\x82", "\xf5\x80\x80\x80"}) {
    CAPTURE(bad);
    CHECK(worker::quoted(bad + "b").starts_with(R"("\ufffd)"));
    CHECK(worker::quoted(bad + "b").ends_with("b\""));
  }
  CHECK(worker::quoted("\xed\xa0\x80") == R"("\ufffd\ufffd\ufffd")");  // half of a surrogate pair
}

TEST_CASE("worker header: a long scope keeps its end, from the first whole character on") {
  const Listener listener;
  in_worker(listener.path,
            [] { const worker::Expires timer(60, "\u00e9\u00e9" + std::string(255, 'a')); });
  CHECK(listener.packets().front().find("\"" + std::string(255, 'a') + "\"") != std::string::npos);
}

TEST_CASE("worker header: a metric is of the step that is given, or of the last one") {
  const auto told = packets_of([] {
    worker::metric("loss", 1, "g");
    worker::metric("loss", 2, "g", 108);
  });
  CHECK(told == std::vector<std::string>{
                    R"({"kind":"metric","name":"loss","value":1,"group":"g"})",
                    R"({"kind":"metric","name":"loss","value":2,"group":"g","step":108})"});
}

TEST_CASE("worker header: packets of several threads all arrive, each whole") {
  const Listener listener;
  const int dropped = in_worker(listener.path, [] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([i] {
        for (int j = 0; j < 2; ++j) worker::step(i * 10 + j);
      });
    }
    for (auto& thread : threads) thread.join();
    return static_cast<int>(worker::dropped());
  });
  CHECK(dropped == 0);
  auto packets = listener.packets();
  std::sort(packets.begin(), packets.end());
  std::vector<std::string> wanted;
  for (const char* number : {"0", "1", "10", "11", "20", "21", "30", "31"}) {
    wanted.push_back(R"({"kind":"step","step":)" + std::string(number) + "}");
  }
  std::sort(wanted.begin(), wanted.end());
  CHECK(packets == wanted);
}

TEST_CASE("worker header: a forked child gets a connection of its own") {
  const Listener listener;
  in_worker(listener.path, [] {
    worker::step(1);
    const pid_t child = ::fork();
    worker::step(child == 0 ? 3 : 2);
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
  });
  CHECK(listener.packets().size() == 2);
  CHECK(listener.packets() == std::vector<std::string>{R"({"kind":"step","step":3})"});
}

TEST_CASE("worker header: each connection begins with the directory of its worker") {
  const Listener listener;
  in_worker(listener.path, [] {
    ::setenv("ELASTRUN_RUN_DIR", "/run/\"0\"/3", 1);
    worker::step(1);
    const pid_t child = ::fork();
    if (child == 0) {
      worker::step(2);
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
  });
  const std::string from = R"({"kind":"from","directory":"/run/\"0\"/3"})";
  CHECK(listener.packets() == std::vector<std::string>{from, R"({"kind":"step","step":1})"});
  CHECK(listener.packets() == std::vector<std::string>{from, R"({"kind":"step","step":2})"});
}
