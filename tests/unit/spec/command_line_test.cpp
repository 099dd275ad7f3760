// SPDX-License-Identifier: Apache-2.0
#include "elastrun/command_line.hpp"

#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

std::map<std::string, std::string> given(const Words& words) {
  std::map<std::string, std::string> found;
  const auto line = parse_command_line(words);
  if (!line) return {{"refused", line.error().text}};
  for (const auto& option : line->given) found[std::string(row(option.id).name)] = option.text;
  return found;
}

using Map = std::map<std::string, std::string>;

}  // namespace

TEST_CASE("command line: values arrive as they were written") {
  CHECK(given({"--role", "--", "x"}).contains("refused"));
  CHECK(given({"--role=--config", "--tee=[1,2]", "--log-dir=[a]", "s"}) ==
        Map{{"role", "--config"}, {"tee", "[1,2]"}, {"log-dir", "[a]"}});
  CHECK(given({"--role=", "--rdzv-id", "", "s"}) == Map{{"role", ""}, {"rdzv-id", ""}});
  CHECK(given({"--role=a b=c,d\n{}\"'\\", "s"}) == Map{{"role", "a b=c,d\n{}\"'\\"}});
  CHECK(given({"--node-rank", "-1", "-mr", "1", "s"}) ==
        Map{{"node-rank", "-1"}, {"module", "1"}, {"redirects", "1"}});
}

TEST_CASE("command line: the first error counts") {
  const auto refused = [](const Words& words) { return given(words)["refused"]; };
  CHECK(contains(refused({"--max-restarts=x", "--role"}), "invalid int value: 'x'"));
  CHECK(contains(refused({"--max-restarts=x", "--max-restarts=1"}), "invalid int value: 'x'"));
  CHECK(contains(refused({"--role", "--max-restarts=x"}), "argument --role: expected one"));
}

TEST_CASE("command line: help, version and the like end the reading where they stand") {
  const auto action = [](const Words& words) {
    const auto line = parse_command_line(words);
    return line ? line->action : Action::Run;
  };
  CHECK(action({"-h", "--standalone", "--max-restarts=x"}) == Action::Help);
  CHECK(action({"-h", "--role"}) == Action::Help);
  CHECK(action({"--bogus", "--help"}) == Action::Help);
  CHECK(action({"-mh"}) == Action::Help);
  CHECK(action({"--version", "-h"}) == Action::Version);
  CHECK(action({"--print-config"}) == Action::Config);
  CHECK(action({"--print-completion", "zsh"}) == Action::Completion);
  CHECK(action({"--install-into", "/opt/elastrun"}) == Action::Install);
  CHECK(given({"--install-into"}).contains("refused"));
  CHECK(action({"s.py", "-h"}) == Action::Run);
  CHECK(given({"--max-restarts=x", "-h"}).contains("refused"));
  CHECK(given({"--print-completion", "csh"}).contains("refused"));
  CHECK(given({"-hx"}).contains("refused"));
}

TEST_CASE("command line: each action has its answer") {
  const auto answer = [](const Words& words) {
    return answer_to(*parse_command_line(words), "er", 90);
  };
  CHECK(answer({"-h"}).starts_with("usage: er [OPTION]..."));
  CHECK(answer({"-mh"}) == answer({"-h"}));
  CHECK(answer({"--help"}).size() > 4 * answer({"-h"}).size());
  CHECK(answer({"--version"}).starts_with("elastrun " ELASTRUN_VERSION " (OpenSSL "));
  CHECK(contains(answer({"--print-config"}), "[rendezvous]"));
  CHECK(
      contains(answer({"--print-completion=bash"}), "complete -o filenames -F _elastrun elastrun"));
}

TEST_CASE("command line: a refusal has argparse's form, and its hint stands on lines of its own") {
  const Refusal parser{"unrecognized arguments: --x", 2, true, "one\ntwo"};
  const std::string text = refusal_text(parser, "elastrun");
  CHECK(text.starts_with("usage: elastrun "));
  CHECK(text.ends_with("\nelastrun: error: unrecognized arguments: --x\n  one\n  two\n"));
  CHECK(refusal_text({"bad", 1, false, {}}, "p") == "p: error: bad\n");
}

}  // namespace elastrun::spec
