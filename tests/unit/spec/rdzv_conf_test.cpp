// SPDX-License-Identifier: Apache-2.0
#include "spec/option_values.hpp"
#include "unit/spec/fakes.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>
#include <regex>
#include <set>

namespace elastrun::spec {

std::string read_source(const std::string& path);  // man_test.cpp

namespace {

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

}  // namespace

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

}  // namespace elastrun::spec
