// SPDX-License-Identifier: Apache-2.0
#include "spec/option_values.hpp"

#include "unit/spec/fakes.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace elastrun::spec {
namespace {

template <class T>
std::string text_of(const Answer<T>& answer) {
  return answer ? "accepted" : fmt::format("{}: {}", answer.error().exit_code, answer.error().text);
}

Answer<RdzvConf> read_conf(std::string_view text) {
  return parse_rdzv_conf(rdzv_conf_parts(text));
}

std::string problem(std::string_view text, std::string_view backend = "c10d") {
  const auto conf = read_conf(text);
  if (!conf) return fmt::format("{}: {}", conf.error().exit_code, conf.error().text);
  Words warnings;
  const auto refusal = check_rdzv_conf(*conf, backend, warnings);
  if (refusal) return fmt::format("{}: {}", refusal->exit_code, refusal->text);
  return warnings.empty() ? "" : "warning: " + warnings.front();
}

using SinkKind = SinkChoice::Kind;

Override given(std::vector<std::string> items) {
  Override one{"metrics"_opt, {}, Origin::CommandLine, "--metrics", std::move(items), true};
  return one;
}

Answer<SinkChoice> sink_of(std::string_view text) {
  const auto sinks = metrics_sinks(given({std::string(text)}), {});
  if (!sinks) return std::unexpected(sinks.error());
  return sinks->at(0);
}

std::string refusal_of(std::string_view text) {
  const auto sink = sink_of(text);
  REQUIRE(!sink);
  CHECK(sink.error().exit_code == 2);
  return sink.error().text + "\n" + sink.error().hint;
}

std::string listens(const std::string& text) {
  const auto job = FakeMachine().run({"--http=" + text, "train.py"});
  if (job) return job->spec.http->address + " " + std::to_string(job->spec.http->port);
  CHECK(job.error().exit_code == 2);
  CHECK(job.error().hint.starts_with("expected PORT or ADDRESS:PORT"));
  return job.error().text;
}

}  // namespace

TEST_CASE("values: numbers of nodes") {
  CHECK(parse_nnodes("4") == NodeRange{4, 4});
  CHECK(parse_nnodes("1:4") == NodeRange{1, 4});
  CHECK(parse_nnodes(" 1 : 0_4 ") == NodeRange{1, 4});
  CHECK(text_of(parse_nnodes("1:2:3")) == "1: nnodes=1:2:3 is not in \"MIN:MAX\" format");
  CHECK(text_of(parse_nnodes("many")) ==
        "1: --nnodes: invalid literal for int() with base 10: 'many'");
  CHECK(text_of(parse_nnodes("")) == "1: --nnodes: invalid literal for int() with base 10: ''");
  CHECK(text_of(parse_nnodes("3:2")) ==
        "1: min_nodes must be > 0 and <= max_nodes, got min_nodes=3, max_nodes=2");
  CHECK(contains(text_of(parse_nnodes("0")), "got min_nodes=0, max_nodes=0"));
  CHECK(contains(text_of(parse_nnodes("-1")), "got min_nodes=-1, max_nodes=-1"));
}

TEST_CASE("values: streams for everybody or by rank") {
  const FakeMachine machine;
  const auto map = [&](const std::string& text) {
    return machine.job({"--redirects=" + text, "train.py"}).spec.redirects;
  };
  CHECK(map("3").of(17) == StdMap::kBoth);
  CHECK(map("0:1,12:3").of(0) == StdMap::kOut);
  CHECK(map("0:1,12:3").of(12) == StdMap::kBoth);
  CHECK(map("0:1,12:3").of(1) == StdMap::kNone);
  CHECK(map("1\n").of(0) == StdMap::kOut);
  for (const std::string bad :
       {"4", "", "0:1,", ",", "0:4", ":1", "0:", "a:1", "0:1, 1:1", "0;1", "-1:1", "1:12"}) {
    CHECK(machine.refusal({"--tee=" + bad, "train.py"}) ==
          "1: --tee on the command line: " + bad +
              " does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>");
  }
}

TEST_CASE("values: filters of ranks and of lines") {
  const FakeMachine machine;
  const auto ranks = [&](const std::string& text) {
    return machine.job({"--local-ranks-filter=" + text, "train.py"}).spec.local_ranks_filter;
  };
  CHECK(ranks("0,1, 7 ,-1,1") == std::vector<int>{0, 1, 7, -1, 1});
  CHECK(ranks("") == std::vector<int>{});
  for (const std::string bad : {"0,x", "0,", "0,,1", "1.5"}) {
    CHECK(machine.refusal({"--local-ranks-filter=" + bad, "train.py"}) ==
          "1: --local_ranks_filter must be a comma-separated list of integers e.g. "
          "--local_ranks_filter=0,1,2");
  }
  const auto filters = [&](const std::string& text) {
    return machine.job({"--duplicate-stdout-filters=" + text, "train.py"}).spec.stdout_filters;
  };
  CHECK(filters("a,,b,c") == Words{"a,b", "c"});
  CHECK(filters("") == Words{""});
  CHECK(filters("a,") == Words{"a", ""});
  CHECK(filters(",,,") == Words{",", ""});
}

TEST_CASE("values: endpoints") {
  CHECK(parse_endpoint(" node1:29400 ") == HostPort{"node1", 29400});
  for (const char* bad : {"n:", "n:70000", "n:65536", "n:x", "n:123456", "n:-1"}) {
    CHECK(text_of(parse_endpoint(bad)) ==
          fmt::format("1: The port number of the rendezvous endpoint '{}' must be an integer "
                      "between 0 and 65536.",
                      bad));
  }
  for (const char* bad : {"lo$cal:29400", ":29500", "a b", "[]:1", "n/x:1"}) {
    CHECK(contains(text_of(parse_endpoint(bad)), "The hostname of the rendezvous endpoint"));
  }
}

std::vector<std::string> signals_in(Opt id, std::vector<std::string> names,
                                    std::vector<std::string>& warnings) {
  return parse_signals({id, {}, Origin::CommandLine, {}, std::move(names), true}, warnings);
}

TEST_CASE("values: signals") {
  Words warnings;
  CHECK(signals_in("signals-to-handle"_opt, {" SIGTERM ", "SIGUSR1", "SIGTERM"}, warnings) ==
        Words{"SIGTERM", "SIGUSR1"});
  CHECK(warnings.empty());
  CHECK(signals_in("signals-to-handle"_opt, {"SIGTEM", "TERM"}, warnings) == Words{});
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[0] ==
        "--signals-to-handle: unknown signal 'SIGTEM' (did you mean SIGTERM?), ignored");
  warnings.clear();
  CHECK(signals_in("signals-to-handle"_opt, {"SIGTERM", "SIGKILL"}, warnings) == Words{"SIGTERM"});
  CHECK(signals_in("signals-to-handle"_opt, {"SIGSTOP"}, warnings) == Words{});
  REQUIRE(warnings.size() == 2);
  CHECK(contains(warnings[0], "SIGKILL cannot be handled"));
  CHECK(contains(warnings[1], "SIGSTOP cannot be handled"));
}

TEST_CASE("values: signals that the agent needs itself cannot be forwarded") {
  std::vector<std::string> warnings;
  CHECK(signals_in("forward-signals"_opt, {"SIGHUP", "SIGCHLD", "SIGKILL"}, warnings) ==
        Words{"SIGHUP"});
  CHECK(warnings ==
        Words{"--forward-signals: SIGCHLD has a meaning for elastrun itself; it is left out",
              "--forward-signals: SIGKILL cannot be handled by any process; it is left out"});
  warnings.clear();
  CHECK_MESSAGE(signals_in("forward-signals"_opt, {"SIGCLD", "SIGIOT"}, warnings).empty(),
                "the same");
  warnings.clear();
  CHECK(signals_in("forward-signals"_opt, {""}, warnings).empty());
  CHECK(warnings.empty());
}

TEST_CASE("rdzv conf: keys and values are trimmed, the last of equal keys counts") {
  CHECK(read_conf(" a = 1 , b=x=y,a=2 ") == RdzvConf{{"a", "2"}, {"b", "x=y"}});
  CHECK(read_conf("  ") == RdzvConf{});
  CHECK(parse_rdzv_conf(Words{"a=1,2"}) == RdzvConf{{"a", "1,2"}});
}

TEST_CASE("rdzv conf: a part without key or value is refused in torchrun's words") {
  const std::string no_key =
      "1: The rendezvous configuration string must be in format "
      "<key1>=<value1>,...,<keyN>=<valueN>.";
  for (const char* bad : {"=5", "a=1,", ",", "a=1,,b=2"}) CHECK(problem(bad) == no_key);
  for (const char* bad : {"timeout", "timeout=", "a=1,timeout = "}) {
    CHECK(problem(bad) ==
          "1: The rendezvous configuration option 'timeout' must have a value specified.");
  }
}

TEST_CASE("rdzv conf: values are checked before anybody waits for them") {
  CHECK(problem("read_timeout=30,join_timeout=20,is_host=yes,store_type= TCP ") == "");
  CHECK(problem("store_type=cloud") ==
        "1: Invalid store type given. Currently only supports file and tcp.");
  CHECK(problem("read_timeout=0") == "1: A read_timeout has to be a whole number above 0.");
  CHECK(problem("join_timeout=0") == "1: The join timeout (0:00:00) must be positive.");
  CHECK(problem("last_call_timeout=-1") ==
        "1: The last_call timeout (-1 day, 23:59:59) must be positive.");
  CHECK(problem("join_timeout=x") ==
        "1: The rendezvous configuration option 'join_timeout' does not represent a valid integer "
        "value.");
  CHECK(problem("is_host=maybe") ==
        "1: The rendezvous configuration option 'is_host' does not represent a valid boolean "
        "value.");
  CHECK(
      contains(problem("keep_alive_interval=0"), "'keep_alive_interval' must be positive, got 0"));
  CHECK(contains(problem("protocol=ftp", "etcd-v2"), "must be HTTP or HTTPS"));
  CHECK(problem("store_port=29500-29600") == "");
  CHECK(contains(problem("store_port=9-1"), "must be a port or a range of ports"));
}

TEST_CASE("rdzv conf: keys with options of their own are refused with the option's name") {
  const auto conf = read_conf("run_id=x");
  Words warnings;
  const auto refusal = check_rdzv_conf(*conf, "c10d", warnings);
  REQUIRE(refusal.has_value());
  CHECK(contains(refusal->text, "got multiple values for keyword argument 'run_id'"));
  CHECK(contains(refusal->hint, "--rdzv-id"));
}

TEST_CASE("rdzv conf: a key that nobody reads is a warning with the nearest that somebody does") {
  CHECK(problem("colour=blue") ==
        "warning: --rdzv-conf: the c10d backend does not read 'colour'; it has no effect");
  CHECK(problem("join_timout=5") ==
        "warning: --rdzv-conf: the c10d backend does not read 'join_timout'; it has no effect (did "
        "you mean join_timeout?)");
  CHECK(contains(problem("timeout=5"), "join_timeout is the key that limits"));
  CHECK(problem("timeout=5", "static") == "");
  CHECK(problem("colour=blue", "my-own-backend") == "");
}

TEST_CASE("rdzv conf: settings of an election are read by the back ends that elect") {
  for (const char* backend : {"etcd", "etcd-v2", "file"}) {
    CAPTURE(backend);
    CHECK(problem("lease_ttl=5,coordinator_port=29500-29600,advertise=10.0.0.1", backend) == "");
    CHECK(contains(problem("lease_ttl=0", backend), "'lease_ttl' must be positive, got 0"));
    CHECK(problem("isolation_timeout=600", backend) == "");
  }
  CHECK(problem("store_type=file,lease_ttl=5") == "");
  CHECK(contains(problem("lease_ttl=5"), "the c10d backend does not read 'lease_ttl'"));
  CHECK(problem("user=u,password_file=/secret", "etcd") == "");
}

TEST_CASE("rdzv conf: values become what the rendezvous uses, and what is not given is default") {
  const auto config = [](std::string_view text) {
    return read_rendezvous_config(read_conf(text).value());
  };
  CHECK(config("").join_timeout == std::chrono::seconds(600));
  CHECK(config("join_timeout=7,lease_ttl=2").join_timeout == std::chrono::seconds(7));
  CHECK(config("join_timeout=7,lease_ttl=2").lease_ttl == std::chrono::seconds(2));
  CHECK(config("keep_alive_max_attempt=5").keep_alive_max_attempt == 5);
  CHECK(config("keep_alive_max_attempt=99999999999").keep_alive_max_attempt > 1'000'000);
  CHECK(config("store_port=7-9").store_port == PortRange{7, 9});
  CHECK(config("coordinator_port=29500").coordinator_port == PortRange{29500, 29500});
  CHECK(config("is_host=Yes").is_host == true);
  CHECK(config("is_host=n").is_host == false);
  CHECK(!config("").is_host.has_value());
  CHECK(config("store_type= FILE").meets_in_file);
  CHECK(!config("store_type=tcp").meets_in_file);
}

TEST_CASE("rdzv conf: of two names of one thing ours counts") {
  for (const char* text : {"ca_cert=a,cacert=b", "cacert=b,ca_cert=a", "ca_cert=a"}) {
    CHECK(read_rendezvous_config(read_conf(text).value()).ca_cert == "a");
  }
  CHECK(read_rendezvous_config(read_conf("username=u").value()).user == "u");
}

// What passes the check by force, as a user's program can, falls back to the default.
TEST_CASE("rdzv conf: a value that means nothing counts as not given") {
  const RdzvConf odd{{"join_timeout", "soon"},
                     {"lease_ttl", "-1"},
                     {"store_port", "9-7"},
                     {"is_host", "perhaps"},
                     {"keep_alive_max_attempt", "0"}};
  const auto config = read_rendezvous_config(odd);
  CHECK(config.join_timeout == std::chrono::seconds(600));
  CHECK(config.lease_ttl == std::chrono::seconds(10));
  CHECK(config.store_port == PortRange{});
  CHECK(!config.is_host.has_value());
  CHECK(config.keep_alive_max_attempt == 3);
}

TEST_CASE("metrics sinks: each has its name and argument") {
  CHECK(sink_of("console")->kind == SinkKind::Console);
  CHECK(sink_of("console:*")->argument == "*");
  const auto otlp = sink_of("otlp:http://c:1/x");
  REQUIRE(otlp.has_value());
  CHECK(otlp->kind == SinkKind::Otlp);
  CHECK(otlp->argument == "http://c:1/x");
  CHECK(otlp->text == "otlp:http://c:1/x");
  CHECK(sink_of("exec:a, b")->argument == "a, b");
}

TEST_CASE("metrics sinks: a page of Prometheus is in OpenMetrics where that word is behind it") {
  CHECK_FALSE(sink_of("prometheus:a")->openmetrics);
  const auto open = sink_of("prometheus:a;openmetrics");
  CHECK(open->openmetrics);
  CHECK(open->argument == "a");
  CHECK(refusal_of("prometheus:;openmetrics").find("needs FILE") != std::string::npos);
  CHECK(refusal_of("openmetrics:a").find("unknown sink 'openmetrics'") != std::string::npos);
}

TEST_CASE("metrics sinks: each sample or what a second comes to, as is said or usual") {
  CHECK(sink_of("console:g")->each);
  CHECK(sink_of("jsonl:a")->each);
  CHECK_FALSE(sink_of("jsonl:a;window=1s")->each);
  CHECK(sink_of("jsonl:a;window=1s")->argument == "a");
  CHECK_FALSE(sink_of("console;window=1s")->each);
  CHECK(sink_of("console;window=1s")->argument.empty());
  CHECK_FALSE(sink_of("tensorboard:d")->each);
  CHECK(sink_of("tensorboard:d;window=0")->each);
  // A command may have those words in it.
  CHECK(sink_of("exec:a;window=x y")->argument == "a;window=x y");
  CHECK(refusal_of("prometheus:a;window=1s").find("has no window") != std::string::npos);
  CHECK(refusal_of("jsonl:a;window=10s").find("'10s' is no window") != std::string::npos);
}

TEST_CASE("aggregations: patterns with what is summarised, and nothing else") {
  const auto all = stat_aggregations(given({"train.*=p95+p99", "a=b=mean"}));
  REQUIRE(all);
  REQUIRE(all->size() == 2);
  CHECK((*all)[0].second == std::vector<std::string>{"p95", "p99"});
  CHECK((*all)[1].first == "a=b");
  for (const char* const odd : {"a", "a=", "=mean", "a=p98", "a=mean+", "a=MEAN"}) {
    CAPTURE(odd);
    CHECK_FALSE(stat_aggregations(given({odd})).has_value());
  }
}

TEST_CASE("metrics sinks: what is none is refused with what there is") {
  CHECK(refusal_of("consol").find("did you mean console?") != std::string::npos);
  CHECK(refusal_of("x").find(known_metrics_sinks()) != std::string::npos);
  CHECK(refusal_of("jsonl").find("needs FILE") != std::string::npos);
  CHECK(refusal_of("jsonl:").find("for example jsonl:run.jsonl") != std::string::npos);
  CHECK(refusal_of("otlp:collector").find("http://HOST") != std::string::npos);
  CHECK(refusal_of("kubeflow").find("unknown sink 'kubeflow'") != std::string::npos);
  CHECK(refusal_of("plugin:./x.so").find("unknown sink 'plugin'") != std::string::npos);
  CHECK(refusal_of("statsd:h").find("unknown sink 'statsd'") != std::string::npos);
  CHECK(refusal_of(std::string_view("jsonl:a\0b", 9)).find("zero byte") != std::string::npos);
}

TEST_CASE("metrics sinks: each once, none is none, routes belong to their sink") {
  const auto sinks = metrics_sinks(given({"none", "console", "jsonl:a", "console"}),
                                   {{"jsonl:a", {"g", "n*", "warn"}, "f:1"},
                                    {"trace:t", {}, "f:2"},
                                    {"jsonl:a", {"h", "", ""}, "f:3"}});
  REQUIRE(sinks.has_value());
  REQUIRE(sinks->size() == 3);
  CHECK((*sinks)[0].routes.empty());
  CHECK((*sinks)[1].routes == std::vector<MetricsRoute>{{"g", "n*", "warn"}, {"h", "", ""}});
  CHECK((*sinks)[2].kind == SinkKind::Trace);
  const auto bad = metrics_sinks(given({}), {{"nothing:a", {}, "f:2"}});
  REQUIRE(!bad);
  CHECK(bad.error().text.starts_with("f:2: "));
}

TEST_CASE("metrics sinks: a variable separates them by commas") {
  const auto sinks =
      metrics_sinks({"metrics"_opt, "console,exec:a,,b", Origin::Variable, "PET_METRICS"}, {});
  REQUIRE(sinks.has_value());
  REQUIRE(sinks->size() == 2);
  CHECK((*sinks)[1].argument == "a,b");
}

TEST_CASE("metrics sinks: routes of a job file, and what is wrong with them") {
  const auto job = parse_toml(
      "[metrics]\nsinks = [\"console\"]\n[[metrics.route]]\nsink = \"jsonl:a\"\nname = \"x*\"\n",
      "f");
  REQUIRE(job.has_value());
  REQUIRE(job->metrics_routes.size() == 1);
  CHECK(job->metrics_routes[0].route.name == "x*");
  CHECK(job->metrics_routes[0].source == "f:3");
  for (const char* bad :
       {"route = 1", "route = [1]", "[[metrics.route]]\nname = \"x\"",
        "[[metrics.route]]\nsink = \"a\"\nsink2 = \"b\"",
        "[[metrics.route]]\nsink = \"a\"\nseverity = \"loud\"", "[[metrics.route]]\nsink = 1"}) {
    CAPTURE(bad);
    const auto refused = parse_toml("[metrics]\n" + std::string(bad), "f");
    REQUIRE(!refused);
    CHECK(refused.error().text.starts_with("f:"));
    CHECK(refused.error().exit_code == 2);
  }
}

TEST_CASE("listen address: this machine only, everybody, or one address, in either family") {
  for (const char* text : {"9400", ":9400", "localhost:9400", "127.0.0.1:9400"}) {
    CHECK(listens(text) == "127.0.0.1 9400");
  }
  CHECK(listens("0") == "127.0.0.1 0");
  CHECK(listens("0.0.0.0:80") == "0.0.0.0 80");
  CHECK(listens("[::]:9400") == ":: 9400");
  CHECK(listens("[fe80::1]:65535") == "fe80::1 65535");
}

TEST_CASE("listen address: what is none is refused with its reason") {
  for (const std::string text : {"99999", "127.0.0.1:", "80 ", "-1", "+80"}) {
    CHECK(listens(text) == "--http " + text + ": the port is a number from 0 to 65535");
  }
  CHECK(listens("node7:80") == "--http node7:80: node7 is not a numeric address");
  CHECK(listens("::1:80") == "--http ::1:80: an IPv6 address stands in brackets");
  CHECK(listens("[127.0.0.1]:80") == "--http [127.0.0.1]:80: 127.0.0.1 is not a numeric address");
  CHECK(listens("1.2.3:80") == "--http 1.2.3:80: 1.2.3 is not a numeric address");
}

}  // namespace elastrun::spec
