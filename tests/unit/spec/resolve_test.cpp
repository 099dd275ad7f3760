// SPDX-License-Identifier: Apache-2.0
#include "spec/resolve.hpp"

#include "core/text.hpp"
#include "spec/explain.hpp"
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

constexpr const char* kRunUuid = "00000000-0000-4000-8000-000000000010";

}  // namespace

TEST_CASE("resolve: command line, variables, file and default win in this order") {
  FakeMachine machine;
  machine.files["job.toml"] =
      "[job]\nrole = \"file\"\n[restart]\nmax_restarts = 1\n"
      "shutdown_timeout = 1\nsignals_to_handle = [\"SIGTERM\"]\n";
  machine.variables["PET_ROLE"] = "variable";
  machine.variables["PET_MAX_RESTARTS"] = " 2 ";
  const auto job = machine.job({"--role=line", "--config=job.toml", "train.py"});
  CHECK(job.spec.role == "line");
  CHECK(job.spec.max_restarts == 2);
  CHECK(job.spec.shutdown_timeout == std::chrono::seconds(1));
  CHECK(job.spec.nproc_per_node == 1);
  CHECK(job.values[Opt::Role].source == "--role on the command line");
  CHECK(job.values[Opt::MaxRestarts].source == "PET_MAX_RESTARTS");
  CHECK(job.values[Opt::ShutdownTimeout].source == "job.toml:5");
  CHECK(job.values[Opt::NprocPerNode].source == "default");
  CHECK(job.spec.signals_text == "SIGTERM");
}

TEST_CASE("resolve: the file may be named by PET_CONFIG and may hold the script") {
  FakeMachine machine;
  machine.files["j"] = "[job]\nscript = \"train.py\"\nargs = [\"a\"]\n[env]\nX = \"1\"";
  machine.variables["PET_CONFIG"] = "j";
  const auto job = machine.job({});
  CHECK(job.spec.script == "train.py");
  CHECK(job.spec.script_args == Words{"a"});
  CHECK(job.script_source == "j:2");
  CHECK(job.spec.worker_env.at("X") == "1");
  const auto other = machine.job({"other.py"});
  CHECK(other.spec.script == "other.py");
  CHECK(other.spec.script_args.empty());
}

TEST_CASE("resolve: roles that restart alone are named alike, whoever names them") {
  FakeMachine machine;
  machine.files["j"] =
      "[role.eval]\nrestart = \"own\"\n[role.a]\nrestart = \"own\"\n"
      "[role.t]\nrestart = \"all\"";
  const Words c10d{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h"};
  const auto with = [&c10d](Words words) {
    words.insert(words.end(), c10d.begin(), c10d.end());
    words.push_back("train.py");
    return words;
  };
  CHECK(machine.job(with({"--config=j"})).spec.role_restart == "a,eval");
  const auto job = machine.job(with({"--role-restart=eval=own", "--role-restart", "a=own"}));
  CHECK(job.spec.role_restart == "a,eval");
  CHECK(machine.job(with({"--config=j", "--role-restart=a=all"})).spec.role_restart.empty());
  machine.variables["PET_ROLE_RESTART"] = "a=own,b=c=own";
  CHECK(machine.job(with({})).spec.role_restart == "a,b=c");
  machine.variables.clear();
  for (const char* wrong : {"a", "=own", "a=", "a=Own", "a=own=x"}) {
    CAPTURE(wrong);
    CHECK(machine.refusal(with({std::string("--role-restart=") + wrong})).starts_with("2: "));
  }
  CHECK(machine.refusal({"--nnodes=2", "--role-restart=a=own", "train.py"}).starts_with("2: "));
  CHECK(machine.job({"--role-restart=a=own", "train.py"}).spec.standalone);
}

TEST_CASE("resolve: the timeouts of the end have variables of torch") {
  FakeMachine machine;
  using std::chrono::seconds;
  machine.variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "7";
  CHECK(machine.job({"train.py"}).spec.shutdown_timeout == seconds(7));
  CHECK(machine.job({"--shutdown-timeout=3", "train.py"}).spec.shutdown_timeout == seconds(3));
  machine.variables["PET_SHUTDOWN_TIMEOUT"] = "4";
  CHECK(machine.job({"train.py"}).spec.shutdown_timeout == seconds(4));
  machine.variables.erase("PET_SHUTDOWN_TIMEOUT");
  machine.variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "-1";
  CHECK(machine.job({"train.py"}).spec.shutdown_timeout == seconds(0));
  machine.variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "";
  CHECK(contains(machine.refusal({"train.py"}), "invalid literal for int() with base 10: ''"));
  CHECK(machine.refusal({"--shutdown-timeout=-5", "train.py"}) ==
        "1: shutdown_timeout must be non-negative, got -5");
  machine.variables.erase("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
  machine.variables["TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"] = "9";
  CHECK(machine.job({"train.py"}).spec.exit_barrier_timeout == seconds(9));
}

TEST_CASE("resolve: workers are counted by number, CPUs or devices") {
  FakeMachine machine;
  const auto count = [&](const std::string& value) {
    return machine.job({"--nproc-per-node=" + value, "train.py"}).spec.nproc_per_node;
  };
  CHECK(count(" 0_2 ") == 2);
  CHECK(count("cpu") == 6);
  CHECK(count("auto") == 6);
  CHECK(machine.refusal({"--nproc-per-node=gpu", "train.py"}) == "1: Cuda is not available.");
  CHECK(machine.refusal({"--nproc-per-node=xpu", "train.py"}) == "1: Xpu is not available.");
  machine.xpus = 3;
  CHECK(count("auto") == 3);
  CHECK(count("xpu") == 3);
  machine.gpus = 4;
  CHECK(count("auto") == 4);
  CHECK(count("gpu") == 4);
  for (const char* bad : {"plenty", "1.5", "", "mtia"}) {
    CHECK(machine.refusal({std::string("--nproc-per-node=") + bad, "train.py"}) ==
          fmt::format("1: Unsupported nproc_per_node value: {}", bad));
  }
  machine.torch = {{"npu", {"npu", 8}}, {"hpu", {"hpu", 0}}};
  CHECK(count("npu") == 8);
  CHECK(machine.refusal({"--nproc-per-node=hpu", "train.py"}) == "1: hpu is not available.");
  machine.gpus = machine.xpus = 0;
  CHECK(count("auto") == 6);  // no device file of others: torch is not asked
  machine.torch = {{"auto", {"npu", 2}}};
  CHECK(count("auto") == 2);
  machine.torch = {{"auto", {"cpu", 0}}};
  CHECK(count("auto") == 6);
  CHECK(machine.refusal({"--nproc-per-node=0", "train.py"}) ==
        "1: nproc_per_node must be > 0, got 0");
  CHECK(machine.refusal({"--nproc-per-node=-3", "train.py"}).starts_with("1: "));
  CHECK(count("20000") == 20000);
  for (const std::string most : {"20001", "9223372036854775807"}) {
    CHECK(machine.refusal({"--nproc-per-node=" + most, "train.py"}) ==
          "1: nproc_per_node must be <= 20000, got " + most);
  }
}

TEST_CASE("resolve: output, reports and limits are read") {
  FakeMachine machine;
  machine.event_handlers = {"mine"};
  machine.logs_specs = {"tiered"};
  const auto spec = machine
                        .job({"-r",
                              "0:3",
                              "-t",
                              "1",
                              "--local-ranks-filter=1,0",
                              "--log-dir=l",
                              "--duplicate-stdout-filters=a,,b,c",
                              "--duplicate-stderr-filters=",
                              "--log-line-prefix-template=${rank}>",
                              "--logs-specs=tiered",
                              "--status=off",
                              "--report=r.json",
                              "--metrics=console",
                              "--event-log-handler=mine",
                              "--exit-code=worker",
                              "--exit-barrier-timeout=1.5",
                              "--numa-binding=core-complex",
                              "--virtual-local-rank",
                              "--signals-to-handle=SIGINT",
                              "--dry-run",
                              "--explain",
                              "train.py"})
                        .spec;
  CHECK(spec.redirects.of(0) == StdMap::kBoth);
  CHECK(spec.redirects.of(1) == StdMap::kNone);
  CHECK(spec.tee.of(5) == StdMap::kOut);
  CHECK(spec.local_ranks_filter == std::vector<int>{1, 0});
  CHECK(spec.log_dir == "l");
  CHECK(spec.stdout_filters == Words{"a,b", "c"});
  CHECK(spec.stderr_filters == Words{""});
  CHECK(spec.prefix_template == "${rank}>");
  CHECK(spec.logs_specs == "tiered");
  CHECK(spec.status == Switch::Off);
  CHECK(spec.report_file == "r.json");
  REQUIRE(spec.metrics.size() == 1);
  CHECK(spec.metrics[0].text == "console");
  CHECK(spec.event_log_handler == "mine");
  CHECK(spec.exit_code_of_worker);
  CHECK(spec.exit_barrier_timeout == std::chrono::milliseconds(1500));
  CHECK(spec.numa == NumaBinding::CoreComplex);
  CHECK(spec.virtual_local_rank);
  CHECK(spec.signals_to_handle == Words{"SIGINT"});
  CHECK(spec.dry_run);
  CHECK(spec.explain);
  const auto plain = machine.job({"train.py"}).spec;
  CHECK(!plain.stdout_filters);
  CHECK_FALSE(plain.hang_auto);
  CHECK_FALSE(plain.hang_limit);
  CHECK(plain.on_hang == OnHang::Report);
  CHECK(machine.job({"--hang-timeout=auto", "train.py"}).spec.hang_auto);
  const auto watched = machine.job({"--hang-timeout=1.5", "--on-hang=fail", "train.py"}).spec;
  CHECK(watched.hang_limit == std::chrono::milliseconds(1500));
  CHECK(watched.on_hang == OnHang::Fail);
  CHECK(plain.prefix_template.empty());
  CHECK(plain.numa == NumaBinding::None);
  CHECK(plain.status == Switch::Auto);
  machine.variables["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "";
  CHECK(machine.job({"train.py"}).values[Opt::PrefixTemplate].source ==
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
}

TEST_CASE("resolve: a signal ends the job or is forwarded, whichever was chosen") {
  FakeMachine machine;
  const auto plain = machine.job({"train.py"}).spec;
  CHECK(plain.forward_signals == Words{"SIGUSR1", "SIGUSR2"});
  const auto hup = machine.job({"--forward-signals=SIGHUP", "train.py"}).spec;
  CHECK(hup.forward_signals == Words{"SIGHUP"});
  CHECK(hup.signals_to_handle == Words{"SIGTERM", "SIGINT", "SIGQUIT"});
  CHECK(hup.signals_text == "SIGTERM,SIGINT,SIGQUIT");
  const auto usr = machine.job({"--signals-to-handle=SIGTERM,SIGUSR1", "train.py"}).spec;
  CHECK(usr.forward_signals == Words{"SIGUSR2"});
  CHECK(machine.job({"--forward-signals=", "train.py"}).spec.forward_signals.empty());
  CHECK(machine.refusal({"--signals-to-handle=SIGUSR1", "--forward-signals=SIGUSR1", "train.py"})
            .starts_with("1: SIGUSR1 cannot both end the job"));
}

TEST_CASE("resolve: a variable PET_* that no option reads is a warning with the nearest name") {
  FakeMachine machine;
  machine.variables["PET_MAX_RESTART"] = "3";
  machine.variables["PET_NNODES"] = "1";
  CHECK(machine.job({"train.py"}).warnings ==
        Words{"the variable PET_MAX_RESTART sets no option and has no effect (did you mean "
              "PET_MAX_RESTARTS?)"});
}

TEST_CASE("resolve: a filter of local ranks that do not run is a warning") {
  FakeMachine machine;
  machine.variables["OMP_NUM_THREADS"] = "1";
  CHECK(
      machine.job({"--nproc-per-node=2", "--local-ranks-filter=1,7", "train.py"}).warnings ==
      Words{"--local-ranks-filter on the command line: local rank 7 does not exist: this node runs "
            "local ranks 0 to 1"});
  CHECK(
      machine.job({"--nproc-per-node=2", "--local-ranks-filter=0,1", "train.py"}).warnings.empty());
}

TEST_CASE("resolve: a refused port names the largest one and where it came from") {
  FakeMachine machine;
  const auto hint = [&](const Words& words) {
    const auto answer = machine.run(words);
    REQUIRE_FALSE(answer);
    return answer.error().hint;
  };
  CHECK(hint({"--rdzv-backend=c10d", "--rdzv-endpoint=n1:99999", "train.py"}) ==
        "a port is a number up to 65535; it comes from --rdzv-endpoint on the command line");
  CHECK(hint({"--nnodes=2", "--master-port=99999", "train.py"}) ==
        "a port is a number up to 65535; it comes from --master-port on the command line");
}

TEST_CASE("explain: each value stands beside its source") {
  FakeMachine machine;
  machine.variables["PET_ROLE"] = "reader";
  machine.gpus = 2;
  const auto text = explain_text(machine.job({"--nproc-per-node=gpu", "train.py"}));
  const auto has = [&](std::string_view name, std::string_view value, std::string_view source) {
    for (const auto& line : split(text, '\n')) {
      if (contains(line, name) && contains(line, value) && contains(line, source)) return true;
    }
    return false;
  };
  CHECK(has("script", "train.py", "on the command line"));
  CHECK(has("interpreter", "/usr/bin/python3", "PATH"));
  CHECK(has("nproc-per-node", "gpu (2)", "--nproc-per-node on the command line"));
  CHECK(has("role", "reader", "PET_ROLE"));
  CHECK(has("rdzv-id", kRunUuid, "implied: one node"));
  CHECK(has("max-restarts", "0", "default"));
  CHECK(!contains(text, "print-config"));
}

TEST_CASE("explain: no line is wider than 100 columns, unless a value is") {
  FakeMachine machine;
  const std::string folder(80, 'a');
  const auto text = explain_text(machine.job({"--log-dir=" + folder, "train.py"}));
  for (const auto& line : split(text, '\n')) {
    if (!contains(line, folder)) CHECK_MESSAGE(line.size() <= 100, line);
  }
}

}  // namespace elastrun::spec
