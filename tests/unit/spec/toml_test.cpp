// SPDX-License-Identifier: Apache-2.0
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

std::string problem(std::string_view text) {
  const auto job = parse_toml(text, "job.toml");
  if (job) return "accepted";
  CHECK(job.error().exit_code == 2);
  CHECK(!job.error().with_usage);
  return job.error().text + (job.error().hint.empty() ? "" : " / " + job.error().hint);
}

constexpr std::string_view kWhole = R"(
[job]
script = "train.py"
args = ["--epochs", 3, "", "-m"]
nproc_per_node = 2
role = "trainer"
module = true

[rendezvous]
nnodes = "1:4"
backend = "c10d"
conf = { join_timeout = 60, is_host = true, secret_file = "/s" }

[restart]
max_restarts = 3
monitor_interval = 1
signals_to_handle = ["SIGTERM", "SIGUSR1"]

[logs]
redirects = 3
tee = "0:1,1:2"
local_ranks_filter = [0, 1]
duplicate_stdout_filters = ["loss, step", "x"]

[env]
OMP_NUM_THREADS = 4
NAME = "a b"
)";

}  // namespace

TEST_CASE("toml: a whole job is read") {
  const auto job = parse_toml(kWhole, "dir/job.toml");
  if (!job) FAIL(job.error().text);
  CHECK(job->script == "train.py");
  CHECK(job->script_source == "dir/job.toml:3");
  CHECK(job->script_args == Words{"--epochs", "3", "", "-m"});
  CHECK(job->worker_env ==
        std::map<std::string, std::string>{{"NAME", "a b"}, {"OMP_NUM_THREADS", "4"}});
  std::map<Opt, Override> given;
  for (const auto& option : job->given) given[option.id] = option;
  CHECK(given["nproc-per-node"_opt].text == "2");
  CHECK(given["nproc-per-node"_opt].source == "dir/job.toml:5");
  CHECK(given["module"_opt].text == "1");
  CHECK(given["redirects"_opt].text == "3");
  CHECK(given["monitor-interval"_opt].text == "1");
  CHECK(given["rdzv-conf"_opt].items == Words{"is_host=true", "join_timeout=60", "secret_file=/s"});
  CHECK(given["duplicate-stdout-filters"_opt].items == Words{"loss, step", "x"});
  CHECK(given["local-ranks-filter"_opt].text == "0,1");
  CHECK(given["signals-to-handle"_opt].text == "SIGTERM,SIGUSR1");
  CHECK(given.size() == 13);
}

TEST_CASE("toml: a wrong key is named with its place and the nearest right one") {
  CHECK(problem("[job]\nscirpt = \"x\"") ==
        "job.toml:2:1: unknown key 'scirpt' in [job] / did you mean 'script'?");
  CHECK(problem("[jobs]\n") == "job.toml:1:2: unknown section or key 'jobs' / did you mean [job]?");
  CHECK(problem("role = \"x\"") ==
        "job.toml:1:1: unknown section or key 'role' / 'role' belongs into the section [job]");
  CHECK(problem("[job]\nbackend = \"c10d\"") ==
        "job.toml:2:1: unknown key 'backend' in [job] / 'backend' belongs into the section "
        "[rendezvous]");
  CHECK(problem("[logs]\nlog_dir = \"x\"") ==
        "job.toml:2:1: unknown key 'log_dir' in [logs] / the key of --log-dir is logs.dir");
  CHECK(contains(problem("[reports]\nqqqqqqqq = 1"),
                 "the keys of [reports] are status, summary, goodput, file"));
}

TEST_CASE("toml: a wrong type is named with what was expected") {
  CHECK(problem("job = 1") == "job.toml:1:7: job is 1; expected a section, [job]");
  CHECK(problem("[restart]\nmax_restarts = \"3\"") ==
        "job.toml:2:16: restart.max_restarts is '3'; expected a whole number");
  CHECK(problem("[restart]\nmax_restarts = 1.5") ==
        "job.toml:2:16: restart.max_restarts is 1.5; expected a whole number");
  CHECK(problem("[restart]\nmonitor_interval = \"x\"") ==
        "job.toml:2:20: restart.monitor_interval is 'x'; expected a number");
  CHECK(problem("[job]\nmodule = 1") == "job.toml:2:10: job.module is 1; expected true or false");
  CHECK(problem("[job]\nrole = true") ==
        "job.toml:2:8: job.role is true; expected a text or a number");
  CHECK(problem("[job]\nstart_method = \"thread\"") ==
        "job.toml:2:16: job.start_method is 'thread'; expected one of spawn, fork, "
        "forkserver, auto");
  CHECK(problem("[job]\nscript = 1") == "job.toml:2:10: job.script is 1; expected a text");
  CHECK(contains(problem("[job]\nargs = \"a\""), "expected a list of texts"));
  CHECK(contains(problem("[job]\nargs = [[1]]"), "an item of job.args is a list"));
  CHECK(contains(problem("[logs]\nlocal_ranks_filter = {}"), "is a table; expected a list"));
  CHECK(contains(problem("[rendezvous]\nconf = 1.5"), "expected a table or a list"));
  CHECK(contains(problem("[env]\nX = true"), "env.X is true; expected a text or a number"));
  CHECK(contains(problem("[env]\n\"A=B\" = 1"), "cannot be the name of a variable"));
  CHECK(contains(problem("[job]\nrole = 1979-05-27"), "a date or time"));
}

TEST_CASE("toml: a file cut short anywhere is read or refused, never worse") {
  for (std::size_t size = 0; size <= kWhole.size(); ++size) {
    const auto job = parse_toml(kWhole.substr(0, size), "f");
    if (!job) CHECK(job.error().text.starts_with("f:"));
  }
}

TEST_CASE("toml: an empty text or a 0 stands for no value where there is no default") {
  const auto job = parse_toml(
      "[logs]\ndir = \"\"\n[rendezvous]\nmaster_port = 0\n[job]\nnuma_binding = \"\"\nrole = \"\"",
      "f");
  REQUIRE(job.has_value());
  REQUIRE(job->given.size() == 1);
  CHECK(job->given[0].id == "role"_opt);
}

}  // namespace elastrun::spec
