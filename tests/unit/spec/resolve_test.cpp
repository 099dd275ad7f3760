// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "spec/sources.hpp"
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

constexpr const char* kRunUuid = "00000000-0000-4000-8000-000000000010";

const std::string kInstalled = "/opt/elastrun/share/elastrun/python";

FakeMachine with_package(const std::string& folder = kInstalled) {
  FakeMachine machine;
  machine.existing.insert(folder + "/elastrun/channel.py");
  return machine;
}

std::string path_of(const FakeMachine& machine, const Words& words) {
  return machine.job(words).spec.worker_env.at("PYTHONPATH");
}

TEST_CASE("worker library: unasked, nothing of the environment changes") {
  const auto spec = with_package().job({"train.py"}).spec;
  CHECK(spec.worker_env.empty());
  CHECK_FALSE(spec.worker_lib);
}

TEST_CASE("worker library: it is found where it was installed with the program, or in the tree") {
  CHECK(path_of(with_package(), {"--worker-lib", "train.py"}) == kInstalled);
  CHECK(with_package().job({"--worker-lib", "train.py"}).spec.worker_lib);
  auto tree = with_package("/src/lib/python");
  tree.program = "/src/build/dev/apps/elastrun";
  CHECK(path_of(tree, {"--worker_lib", "train.py"}) == "/src/lib/python");
}

TEST_CASE("worker library: what is in PYTHONPATH comes first, that of [env] before our own") {
  auto machine = with_package();
  machine.variables["PYTHONPATH"] = "/a:/b";
  CHECK(path_of(machine, {"--worker-lib", "train.py"}) == "/a:/b:" + kInstalled);
  machine.files["job.toml"] =
      "[job]\nscript = \"train.py\"\nworker_lib = true\n[env]\nPYTHONPATH = \"/mine\"\n";
  CHECK(path_of(machine, {"--config", "job.toml"}) == "/mine:" + kInstalled);
  machine.variables["PYTHONPATH"] = "";
  machine.files.clear();
  CHECK(path_of(machine, {"--worker-lib", "train.py"}) == kInstalled);
}

TEST_CASE("worker library: --goodput auto brings it, and its start before all others") {
  auto machine = with_package();
  machine.variables["PYTHONPATH"] = "/a";
  const auto spec = machine.job({"--goodput=auto", "train.py"}).spec;
  CHECK(spec.goodput == Goodput::Auto);
  CHECK(spec.worker_lib);
  CHECK(spec.worker_env.at("PYTHONPATH") == kInstalled + "/elastrun/start:/a:" + kInstalled);
  for (const auto how : {"agent", "off"}) {
    const auto other = machine.job({"--goodput", how, "train.py"}).spec;
    CHECK(other.worker_env.empty());
    CHECK_FALSE(other.worker_lib);
  }
  const auto answer = FakeMachine().run({"--goodput=auto", "train.py"});
  REQUIRE_FALSE(answer);
  CHECK(answer.error().text ==
        "--goodput auto: the Python package elastrun is not beside this program");
}

TEST_CASE("worker library: a program alone says where it has looked") {
  const auto answer = FakeMachine().run({"--worker-lib", "train.py"});
  REQUIRE_FALSE(answer);
  CHECK(answer.error().exit_code == 2);
  CHECK(answer.error().text ==
        "--worker-lib: the Python package elastrun is not beside this program");
  CHECK(contains(answer.error().hint, "looked in /opt/elastrun/share/elastrun/python and "));
}

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
  CHECK(job.values["role"_opt].source == "--role on the command line");
  CHECK(job.values["max-restarts"_opt].source == "PET_MAX_RESTARTS");
  CHECK(job.values["shutdown-timeout"_opt].source == "job.toml:5");
  CHECK(job.values["nproc-per-node"_opt].source == "default");
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
  const Words words = split(
      "-r 0:3 -t 1 --local-ranks-filter=1,0 --log-dir=l --duplicate-stdout-filters=a,,b,c "
      "--duplicate-stderr-filters= --log-line-prefix-template=${rank}> --logs-specs=tiered "
      "--status=off --report=r.json --metrics=console --event-log-handler=mine --exit-code=worker "
      "--exit-barrier-timeout=1.5 --numa-binding=core-complex --virtual-local-rank "
      "--signals-to-handle=SIGINT --dry-run --explain train.py",
      ' ');
  const auto spec = machine.job(words).spec;
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
  CHECK(machine.job({"train.py"}).values["log-line-prefix-template"_opt].source ==
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

TEST_CASE("job name: by --name, PET_NAME or the job file, else by --rdzv-id, else by the script") {
  FakeMachine machine;
  const auto name = [&](Words words) { return machine.job(std::move(words)).spec.name; };
  CHECK(name({"--name=night", "--rdzv-id=x", "dir/train.py"}) == "night");
  CHECK(name({"--rdzv-id=x", "dir/train.py"}) == "x");
  CHECK(name({"dir/train.py"}) == "train");
  CHECK(name({"-m", "lab.train"}) == "lab.train");
  CHECK(name({"--no-python", "/usr/bin/python3", "x.py"}) == "python3");
  CHECK(name({"--name=", "train.py"}) == "train");
  CHECK(name({"lab/"}) == "lab");
  CHECK(name({"--rdzv-id=", "/"}) == "job");
  machine.variables["PET_NAME"] = "day";
  CHECK(name({"train.py"}) == "day");
}

TEST_CASE("job name: log directories have the one that is given, else the run id") {
  FakeMachine machine;
  CHECK(machine.job({"--name=night", "train.py"}).spec.directory_name() == "night");
  const auto job = machine.job({"train.py"}).spec;
  CHECK(job.directory_name() == job.run_id);
}

TEST_CASE("job name: it fits a line and a file name") {
  FakeMachine machine;
  for (const std::string& name : {std::string("a/b"), std::string("a\nb"), std::string("\xff"),
                                  std::string("\xc2\x9b"), std::string(101, 'x')}) {
    CHECK(machine.refusal({"--name=" + name, "train.py"}).starts_with("2: --name on the command"));
  }
  CHECK(machine.job({"--name=" + std::string(100, 'x'), "train.py"}).spec.name.size() == 100);
  CHECK(machine.job({"--name=Nächte 3", "train.py"}).spec.name == "Nächte 3");
}

TEST_CASE("program: the interpreter is PYTHON_EXEC, that of PATH, or the active environment's") {
  FakeMachine machine;
  machine.variables["PATH"] = "/a::/b";
  machine.programs = {"/b/python3", "/a/python", "./tool"};
  const auto interpreter = [&] { return machine.job({"train.py"}).spec.interpreter; };
  CHECK(interpreter() == "/b/python3");
  machine.variables["VIRTUAL_ENV"] = "/v";
  machine.programs.insert("/v/bin/python3");
  CHECK(interpreter() == "/b/python3");
  machine.programs.erase("/b/python3");
  CHECK(interpreter() == "/v/bin/python3");
  machine.programs.erase("/v/bin/python3");
  CHECK(interpreter() == "/a/python");
  machine.variables["PYTHON_EXEC"] = "tool";
  CHECK(interpreter() == "tool");
  CHECK(machine.job({"train.py"}).spec.interpreter_given);
}

TEST_CASE("program: several workers cannot read one standard input") {
  FakeMachine machine;
  machine.programs = {"/usr/bin/python3"};
  machine.variables["PATH"] = "/usr/bin";
  CHECK(machine.job({"-"}).spec.script == "-");
  CHECK(machine.job({"--nproc-per-node=2", "-m", "-"}).spec.script == "-");
  const auto refused = machine.run({"--nproc-per-node=2", "-"});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().exit_code == 2);
  CHECK(
      refused.error().text.starts_with("the script - is standard input, which only one of the 2"));
}

TEST_CASE("program: called by its path, it takes the interpreter beside it") {
  FakeMachine machine;
  machine.called_as = "/v/bin/torchrun";
  machine.programs = {"/usr/bin/python3", "/v/bin/python3", "/v/bin/torchrun"};
  machine.variables["VIRTUAL_ENV"] = "/other";
  const auto interpreter = [&] { return machine.job({"train.py"}).spec.interpreter; };
  CHECK(interpreter() == "/v/bin/python3");
  machine.programs = {"/usr/bin/python3", "/v/bin/python"};
  CHECK(interpreter() == "/v/bin/python");
  machine.programs = {"/usr/bin/python3"};
  CHECK(interpreter() == "/usr/bin/python3");
}

TEST_CASE("program: found in PATH, it takes the interpreter of its environment only") {
  FakeMachine machine;
  machine.programs = {"/v/bin/python3", "/usr/bin/python3", "/usr/bin/elastrun"};
  machine.variables["PATH"] = "/v/bin:/usr/bin";
  const auto interpreter = [&] { return machine.job({"train.py"}).spec.interpreter; };
  CHECK_MESSAGE(interpreter() == "/v/bin/python3", "of the active environment");
  machine.variables["PATH"] = "/usr/bin:/v/bin";
  machine.programs = {"/usr/bin/python3", "/v/bin/python3", "/v/bin/elastrun"};
  CHECK(interpreter() == "/usr/bin/python3");
  for (const char* mark : {"/v/bin/../pyvenv.cfg", "/v/bin/../conda-meta"}) {
    machine.existing = {"train.py", mark};
    CHECK_MESSAGE(interpreter() == "/v/bin/python3", "as torchrun's first line says");
  }
}

TEST_CASE("program: srun calls by the path that PATH gives, which means no other interpreter") {
  FakeMachine machine;
  machine.called_as = "/usr/bin/elastrun";
  machine.programs = {"/v/bin/python3", "/usr/bin/python3", "/usr/bin/elastrun"};
  machine.variables["PATH"] = "/v/bin:/usr/bin";
  const auto interpreter = [&] { return machine.job({"train.py"}).spec.interpreter; };
  CHECK_MESSAGE(interpreter() == "/v/bin/python3", "of the active environment");
  machine.variables["PATH"] = "/v/bin";
  CHECK_MESSAGE(interpreter() == "/usr/bin/python3", "the path was chosen by somebody");
}

TEST_CASE("program: Windows' line end after the interpreter of a script is named") {
  FakeMachine machine;
  machine.programs = {"./x.sh"};
  machine.files["./x.sh"] = "#!/usr/bin/env bash\r\necho\r\n";
  const auto warnings = machine.job({"--no-python", "./x.sh"}).warnings;
  REQUIRE(warnings.size() == 1);
  CHECK(
      warnings[0].starts_with("the first line of './x.sh', '#!/usr/bin/env bash', ends in CR LF"));
  machine.files["./x.sh"] = "#!/usr/bin/env bash\necho\r\n";
  CHECK(machine.job({"--no-python", "./x.sh"}).warnings.empty());
}

TEST_CASE("program: a missing interpreter is said before anything starts") {
  FakeMachine machine;
  machine.programs.clear();
  CHECK(machine.refusal({"train.py"}).starts_with("1: no python3 and no python in PATH"));
  machine.variables["PYTHON_EXEC"] = "/opt/py";
  CHECK(machine.refusal({"train.py"}) ==
        "1: cannot run the interpreter '/opt/py': No such file or directory");
  machine.variables["PYTHON_EXEC"] = "";
  CHECK(machine.refusal({"train.py"}) == "1: PYTHON_EXEC is empty");
}

TEST_CASE("program: a program must be there and executable") {
  FakeMachine machine;
  machine.programs = {"/bin/echo"};
  machine.existing = {"./plain.txt"};
  CHECK(machine.refusal({"--no-python", "echo"}) == "accepted");
  CHECK(machine.refusal({"--no-python", "./nothing"}) ==
        "1: cannot run the program './nothing': No such file or directory");
  CHECK(machine.refusal({"--no-python", "nothing"}) ==
        "1: cannot run the program 'nothing': No such file or directory");
  CHECK(machine.refusal({"--no-python", "./plain.txt"}) ==
        "1: cannot run the program './plain.txt': Permission denied");
}

TEST_CASE("program: where other nodes wait for this one, it lives to tell them") {
  FakeMachine machine;
  machine.programs = {"/bin/echo"};
  const std::string text = "cannot run the program './nothing': No such file or directory";
  const auto job = machine.job(
      {"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1", "--no-python", "./nothing"});
  CHECK(job.spec.cannot_start == text);
  REQUIRE(job.refusal);
  CHECK(job.refusal->text == text);
  for (const char* more : {"--nnodes=1", "--rdzv-backend=mine", "--standalone", "--dry-run"}) {
    CAPTURE(more);
    CHECK(machine
              .refusal({"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1", more,
                        "--no-python", "./nothing"})
              .starts_with("1: "));
  }
}

TEST_CASE("program: a missing script is a warning, because Python fails by itself") {
  FakeMachine machine;
  CHECK(machine.job({"missing.py"}).warnings ==
        Words{"the script 'missing.py' does not exist in the current directory"});
  CHECK(machine.job({"/missing.py"}).warnings == Words{"the script '/missing.py' does not exist"});
  for (const Words& words :
       {Words{"train.py"}, Words{"-"}, Words{"-m", "missing"}, Words{"job$local_rank.py"}}) {
    CHECK(machine.job(words).warnings.empty());
  }
  machine.variables["PYTHON_EXEC"] = "python3";
  CHECK(machine.job({"some.script"}).warnings.empty());
}

TEST_CASE("host environment: the real machine answers") {
  const HostEnvironment around;
  CHECK(around.variable("PATH").has_value());
  CHECK(!around.variable("ELASTRUN_NO_SUCH_VARIABLE"));
  CHECK(around.is_executable("/bin/sh"));
  CHECK(!around.is_executable("/"));
  CHECK(around.exists("/"));
  CHECK(around.make_uuid() != around.make_uuid());
  CHECK(*around.read_file(std::string(ELASTRUN_SOURCE_DIR) + "/LICENSE") == read_source("LICENSE"));
  const auto missing = around.read_file("/no/such/file");
  REQUIRE(!missing.has_value());
  CHECK(missing.error().text == "/no/such/file: No such file or directory");
  CHECK(!around.read_file("/").has_value());
}

}  // namespace elastrun::spec
