// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic_agent.hpp"

#include "core/file_io.hpp"
#include "launcher/job_run.hpp"
#include "store/blocking_store.hpp"
#include "support/scratch.hpp"
#include "support/stub_worker.hpp"
#include "telemetry/events.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/route.hpp"

#include <algorithm>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::agent;
using namespace elastrun::rendezvous;

namespace {

struct Folder : elastrun::test::Scratch {
  /// What the workers of all attempts have said on stdout, in no order of workers.
  std::string output() const {
    std::string text;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (entry.path().filename() != "stdout.log") continue;
      std::ifstream file(entry.path());
      text += std::string(std::istreambuf_iterator<char>(file), {});
    }
    return text;
  }
};

struct OwnHandler final : RendezvousHandler {
  std::string get_backend() const override { return "test-own"; }
  std::string get_run_id() const override { return "own-run"; }
  Result<RendezvousInfo> next_rendezvous() override { return next(); }
  std::function<Result<RendezvousInfo>()> next = [] { return RendezvousInfo{}; };
};

WorkerSpec two_workers(const Folder& folder, std::vector<std::string> steps) {
  WorkerSpec spec;
  spec.local_world_size = 2;
  spec.entrypoint = test::stub_worker();
  spec.args = std::move(steps);
  spec.rdzv_handler = std::make_shared<OwnHandler>();
  spec.logs.log_dir = folder.path;
  spec.logs.redirects.everyone = spec::StdMap::kBoth;
  return spec;
}

struct Recorder final : telemetry::metrics::MetricHandler, telemetry::events::EventHandler {
  void emit(const telemetry::metrics::MetricData& data) override { said.push_back(data.name); }
  void record(const telemetry::events::Event& event) override { said.push_back(event.name); }
  std::vector<std::string> said;
};

long count(const std::vector<std::string>& all, std::string_view one) {
  return std::ranges::count(all, one);
}

}  // namespace

TEST_CASE("elastic agent: workers that fail once are started again, and their end is a result") {
  const Folder folder;
  auto spec = two_workers(folder, {"attempt=0", "only=1", "exit=3", "all", "env=RANK"});
  LocalElasticAgent agent(spec);
  const auto result = agent.run();
  REQUIRE(result);
  CHECK(result->state == WorkerState::Succeeded);
  CHECK_FALSE(result->is_failed());
  CHECK(result->return_values == std::map<int, int>{{0, 0}, {1, 0}});
  CHECK(result->failures.empty());
  REQUIRE(agent.job_result());
  CHECK(agent.job_result()->restarts == 1);
  CHECK(folder.output().find("RANK=1") != std::string::npos);
}

TEST_CASE("elastic agent: failures stand in the result by global rank") {
  const Folder folder;
  auto spec = two_workers(folder, {"only=1", "exit=7", "all", "stay"});
  spec.max_restarts = 0;
  LocalElasticAgent agent(spec);
  const auto result = agent.run();
  REQUIRE(result);
  CHECK(result->is_failed());
  CHECK(state_name(result->state) == "FAILED");
  REQUIRE(result->failures.contains(1));
  CHECK(result->failures.at(1).status.as_python() == 7);
  CHECK(result->failures.at(0).stopped_by_us);
  CHECK(result->return_values.empty());
}

TEST_CASE("elastic agent: workers get the run id and the master of the launcher's own rendezvous") {
  const Folder folder;
  auto spec = two_workers(folder, {"env=TORCHELASTIC_RUN_ID", "env=MASTER_ADDR", "env=MASTER_PORT",
                                   "env=TORCHELASTIC_USE_AGENT_STORE", "env=MINE"});
  spec.env["MINE"] = "yes";
  const auto handler = std::make_shared<OwnHandler>();
  handler->next = [] {
    return RendezvousInfo{.bootstrap_store_info = BootstrapStoreInfo{"10.1.2.3", 4321}};
  };
  spec.rdzv_handler = handler;
  REQUIRE(LocalElasticAgent(spec).run());
  const auto said = folder.output();
  for (const char* line : {"TORCHELASTIC_RUN_ID=own-run", "MASTER_ADDR=10.1.2.3",
                           "MASTER_PORT=4321", "TORCHELASTIC_USE_AGENT_STORE=False", "MINE=yes"}) {
    CAPTURE(line);
    CHECK(said.find(line) != std::string::npos);
  }
}

TEST_CASE("elastic agent: built-in back ends need no thread and no address") {
  for (const char* backend : {"c10d", "static"}) {
    CAPTURE(backend);
    const Folder folder;
    auto spec = two_workers(folder, {"env=TORCHELASTIC_RUN_ID"});
    auto handler =
        get_rendezvous_handler({.backend = backend, .endpoint = "localhost:0", .run_id = "seven"});
    REQUIRE(handler);
    spec.rdzv_handler = *handler;
    const auto result = LocalElasticAgent(spec).run();
    REQUIRE(result);
    CHECK(result->state == WorkerState::Succeeded);
    CHECK(folder.output().find("TORCHELASTIC_RUN_ID=seven") != std::string::npos);
  }
}

TEST_CASE("elastic agent: configured handlers get its metrics and events") {
  const Folder folder;
  const auto heard = std::make_shared<Recorder>();
  telemetry::metrics::configure(heard);
  telemetry::events::register_handler(
      "test-heard", [heard](const telemetry::events::LineWriter&) { return heard; });
  auto spec = two_workers(folder, {"attempt=0", "exit=1", "all"});
  spec.event_log_handler = "test-heard";
  REQUIRE(LocalElasticAgent(spec).run());
  telemetry::metrics::configure(nullptr);
  CHECK(count(heard->said, "torchelastic.worker.status.START") == 4);
  CHECK(count(heard->said, "torchelastic.worker.status.SUCCEEDED") == 3);
  CHECK(count(heard->said, "workers.default.run_success_with_retries") == 1);
  CHECK(count(heard->said, "SimpleElasticAgent._rendezvous.success") == 2);
}

TEST_CASE("elastic agent: a rendezvous that ends, and a signal, are errors") {
  const Folder folder;
  auto spec = two_workers(folder, {"stay"});
  const auto handler = std::make_shared<OwnHandler>();
  spec.rdzv_handler = handler;
  handler->next = [] { return fail(Code::Closed, "closed by the test"); };
  auto result = LocalElasticAgent(spec).run();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Code::Closed);
  CHECK(result.error().text.find("closed by the test") != std::string::npos);

  handler->next = [] {
    ::kill(::getpid(), SIGTERM);
    return RendezvousInfo{};
  };
  result = LocalElasticAgent(spec).run();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Code::Cancelled);
}

TEST_CASE("elastic agent: what cannot be started is an error with a reason") {
  const Folder folder;
  auto spec = two_workers(folder, {});
  spec.entrypoint = "/no/such/program";
  auto result = LocalElasticAgent(spec).run();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Code::Spawn);
  CHECK(result.error().text.find("/no/such/program") != std::string::npos);
  spec.entrypoint = "true";
  spec.event_log_handler = "nobody";
  result = LocalElasticAgent(spec).run();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Code::Usage);
}

TEST_CASE("elastic agent: the process is afterwards as it was before") {
  const Folder folder;
  ::signal(SIGPIPE, SIG_DFL);
  const bool subreaper = process::is_subreaper();
  sigset_t before, after;
  ::sigprocmask(SIG_SETMASK, nullptr, &before);
  REQUIRE(LocalElasticAgent(two_workers(folder, {})).run());
  struct sigaction action {};
  ::sigaction(SIGPIPE, nullptr, &action);
  CHECK((action.sa_handler == SIG_DFL));
  CHECK(process::is_subreaper() == subreaper);
  ::sigprocmask(SIG_SETMASK, nullptr, &after);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGCHLD}) {
    CHECK(::sigismember(&before, number) == ::sigismember(&after, number));
  }
}

TEST_CASE("elastic agent: two nodes meet by a handler of their own, on a shared file") {
  const Folder folder, store_folder;
  const auto agent_of = [&](int rank) {
    auto spec = two_workers(folder, {"env=RANK", "env=WORLD_SIZE"});
    spec.local_addr = "127.0.0.1";
    const auto handler = std::make_shared<OwnHandler>();
    handler->next = [path = store_folder.path + "/store", rank]() -> Result<RendezvousInfo> {
      const auto store = store::BlockingStore::open_file(path);
      if (!store) return std::unexpected(store.error());
      return RendezvousInfo{rank, 2, *store, {}};
    };
    spec.rdzv_handler = handler;
    const auto result = LocalElasticAgent(spec).run();
    return result && result->return_values == std::map<int, int>{{rank * 2, 0}, {rank * 2 + 1, 0}};
  };
  const pid_t other = ::fork();
  if (other == 0) ::_exit(agent_of(1) ? 0 : 1);
  CHECK(agent_of(0));
  int status = -1;
  REQUIRE(::waitpid(other, &status, 0) == other);  // spared, although it is a child of ours
  CHECK(status == 0);
  const auto said = folder.output();
  for (const char* line : {"RANK=0", "RANK=1", "RANK=2", "RANK=3", "WORLD_SIZE=4"}) {
    CHECK(said.find(line) != std::string::npos);
  }
}

TEST_CASE("elastic agent: with a handler, too, the requests of workers to its store are counted") {
  struct Heard final : telemetry::Sink {
    void consume(const telemetry::Record& record) override {
      connecting += record.name == "ranks.connecting" ? 1 : 0;
    }
    int connecting = 0;
  };
  const Folder folder, pages;
  const auto heard = std::make_shared<Heard>();
  const auto route = telemetry::process_pipeline().route({"elastrun.*"}, heard);
  auto spec = two_workers(folder, {"-c", R"(if 1:
    import os, socket, struct
    store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    # VALIDATE, and ADD of 1 to the key in which torch's ranks count.
    store.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + struct.pack("<BQ5sq", 4, 5, b"init/", 1))
    assert len(store.recv(8, socket.MSG_WAITALL)) == 8
  )"});
  spec.entrypoint = "python3";
  const auto page = pages.path + "/metrics.prom";
  spec.options.metrics = {{spec::SinkChoice::Kind::Prometheus, "prometheus", page}};
  const auto result = LocalElasticAgent(spec).run();
  telemetry::process_pipeline().unroute(route);
  REQUIRE(result);
  CHECK(result->state == WorkerState::Succeeded);
  CHECK(heard->connecting == 1);
  const auto text = read_file(page).value();
  const auto requests = text.substr(text.find("\nelastrun_store_requests_total{"));
  CHECK(requests.substr(0, requests.find('\n', 1)).ends_with("} 2"));
}

TEST_CASE("worker spec: every field that cannot be is refused by its name") {
  const Folder folder;
  const auto refused = [&](auto change) {
    auto spec = two_workers(folder, {});
    change(spec);
    const auto job = job_of(spec);
    REQUIRE_FALSE(job);
    CHECK(job.error().code == Code::Usage);
    return job.error().text;
  };
  const auto names = [](const std::string& text, std::string_view field) {
    return text.find(field) != std::string::npos;
  };
  CHECK(names(refused([](auto& s) { s.entrypoint = ""; }), "entrypoint"));
  CHECK(names(refused([](auto& s) { s.rdzv_handler = nullptr; }), "rdzv_handler"));
  CHECK(names(refused([](auto& s) { s.local_world_size = 0; }), "local_world_size"));
  CHECK(names(refused([](auto& s) { s.max_restarts = -1; }), "max_restarts"));
  CHECK(names(refused([](auto& s) { s.monitor_interval = {}; }), "monitor_interval"));
  CHECK(names(refused([](auto& s) { s.shutdown_timeout = -Duration(1); }), "shutdown_timeout"));
  CHECK(names(refused([](auto& s) {
                s.rdzv_handler =
                    std::make_shared<BuiltInHandler>(RendezvousParameters{"c10d", "", "r", 2, 1});
              }),
              "maximum number"));
}

TEST_CASE("rendezvous setup: a back end that was registered is found by its name") {
  REQUIRE(register_rendezvous_handler("test-own", [](const RendezvousParameters& parameters) {
    auto handler = std::make_shared<OwnHandler>();
    handler->next = [endpoint = parameters.endpoint]() -> Result<RendezvousInfo> {
      return fail(Code::Closed, "asked at " + endpoint);
    };
    return handler;
  }));
  const Folder folder;
  auto job = *job_of(two_workers(folder, {}));
  job.rdzv_backend = "test-own";
  job.rdzv_endpoint = "somewhere:1";
  guardian::Agent guardian;
  auto run = JobRun::make(job, guardian);
  REQUIRE(run);
  CHECK((*run)->run().ending.why.find("asked at somewhere:1") != std::string::npos);
  job.rdzv_backend = "test-unknown";
  const auto refused = JobRun::make(job, guardian);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().error.text.find("is not registered") != std::string::npos);
}
