// SPDX-License-Identifier: Apache-2.0
#include "spec/option_values.hpp"

#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

template <class T>
std::string text_of(const Answer<T>& answer) {
  return answer ? "accepted" : fmt::format("{}: {}", answer.error().exit_code, answer.error().text);
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
  CHECK(parse_std_map("3")->of(17) == StdMap::kBoth);
  const auto map = parse_std_map("0:1,12:3");
  REQUIRE(map.has_value());
  CHECK(map->of(0) == StdMap::kOut);
  CHECK(map->of(12) == StdMap::kBoth);
  CHECK(map->of(1) == StdMap::kNone);
  CHECK(parse_std_map("1\n")->of(0) == StdMap::kOut);
  CHECK(text_of(parse_std_map("4")) ==
        "1: 4 does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>");
  for (const char* bad :
       {"", "0:1,", ",", "0:4", ":1", "0:", "a:1", "0:1, 1:1", "0;1", "-1:1", "1:12"}) {
    CAPTURE(bad);
    CHECK(contains(text_of(parse_std_map(bad)), "does not match"));
  }
}

TEST_CASE("values: filters of ranks and of lines") {
  CHECK(parse_ranks_filter("0,1, 7 ,-1,1") == std::vector<int>{0, 1, 7, -1, 1});
  CHECK(parse_ranks_filter("") == std::vector<int>{});
  for (const char* bad : {"0,x", "0,", "0,,1", "1.5"}) {
    CHECK(contains(text_of(parse_ranks_filter(bad)),
                   "--local_ranks_filter must be a comma-separated list of integers e.g. "
                   "--local_ranks_filter=0,1,2"));
  }
  CHECK(split_filters("a,,b,c") == Words{"a,b", "c"});
  CHECK(split_filters("") == Words{""});
  CHECK(split_filters("a,") == Words{"a", ""});
  CHECK(split_filters(",,,") == Words{",", ""});
}

TEST_CASE("values: endpoints") {
  CHECK(parse_endpoint("") == HostPort{"localhost", {}});
  CHECK(parse_endpoint(" node1:29400 ") == HostPort{"node1", 29400});
  CHECK(parse_endpoint("node-1.example_x") == HostPort{"node-1.example_x", {}});
  CHECK(parse_endpoint("[::1]:29776") == HostPort{"::1", 29776});
  CHECK(parse_endpoint("[fe80::1]") == HostPort{"fe80::1", {}});
  CHECK(parse_endpoint("n:0") == HostPort{"n", 0});
  CHECK(parse_endpoint("n:65535") == HostPort{"n", 65535});
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
  return parse_signals({id, {}, std::move(names), true, Origin::CommandLine, {}}, warnings);
}

TEST_CASE("values: signals") {
  Words warnings;
  CHECK(signals_in(Opt::SignalsToHandle, {" SIGTERM ", "SIGUSR1", "SIGTERM"}, warnings) ==
        Words{"SIGTERM", "SIGUSR1"});
  CHECK(warnings.empty());
  CHECK(signals_in(Opt::SignalsToHandle, {"SIGTEM", "TERM"}, warnings) == Words{});
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[0] ==
        "--signals-to-handle: unknown signal 'SIGTEM' (did you mean SIGTERM?), ignored");
  warnings.clear();
  CHECK(signals_in(Opt::SignalsToHandle, {"SIGTERM", "SIGKILL"}, warnings) == Words{"SIGTERM"});
  CHECK(signals_in(Opt::SignalsToHandle, {"SIGSTOP"}, warnings) == Words{});
  REQUIRE(warnings.size() == 2);
  CHECK(contains(warnings[0], "SIGKILL cannot be handled"));
  CHECK(contains(warnings[1], "SIGSTOP cannot be handled"));
}

TEST_CASE("values: signals that the agent needs itself cannot be forwarded") {
  std::vector<std::string> warnings;
  CHECK(signals_in(Opt::ForwardSignals, {"SIGHUP", "SIGCHLD", "SIGKILL"}, warnings) ==
        Words{"SIGHUP"});
  CHECK(warnings ==
        Words{"--forward-signals: SIGCHLD has a meaning for elastrun itself; it is left out",
              "--forward-signals: SIGKILL cannot be handled by any process; it is left out"});
  warnings.clear();
  CHECK_MESSAGE(signals_in(Opt::ForwardSignals, {"SIGCLD", "SIGIOT"}, warnings).empty(),
                "the same");
  warnings.clear();
  CHECK(signals_in(Opt::ForwardSignals, {""}, warnings).empty());
  CHECK(warnings.empty());
}

}  // namespace elastrun::spec
