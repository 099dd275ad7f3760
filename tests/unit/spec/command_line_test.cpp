// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "spec/option_values.hpp"
#include "spec/sources.hpp"
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

// "OPTIONS | POSITIONALS", each word in <>, so that empty words are seen.
std::string read(const Words& words) {
  const auto line = parse_command_line(words);
  if (!line) return "refused: " + line.error().text;
  std::string text;
  for (const auto& one : line->given) {
    const bool flag = row(one.id).kind == Kind::Flag;
    text += "<" + spelling(row(one.id)) + ">" + (flag ? "" : "<" + one.text + ">");
  }
  text += " | ";
  if (line->script) text += "<" + *line->script + ">";
  for (const auto& word : line->script_args) text += "<" + word + ">";
  for (const auto& word : line->unrecognized) text += " ?" + word;
  return text;
}

struct Row {
  Words words;
  std::string expected;
};

std::map<std::string, std::string> given(const Words& words) {
  std::map<std::string, std::string> found;
  const auto line = parse_command_line(words);
  if (!line) return {{"refused", line.error().text}};
  for (const auto& option : line->given) found[std::string(row(option.id).name)] = option.text;
  return found;
}

using Map = std::map<std::string, std::string>;

}  // namespace

TEST_CASE("words: every spelling of an option is understood") {
  const std::vector<Row> rows = {
      {{"--role", "a", "s.py"}, "<--role><a> | <s.py>"},
      {{"--role=a", "s.py"}, "<--role><a> | <s.py>"},
      {{"--role=a=b", "s.py"}, "<--role><a=b> | <s.py>"},
      {{"--role=", "s.py"}, "<--role><> | <s.py>"},
      {{"--role=-x", "s.py"}, "<--role><-x> | <s.py>"},
      {{"--rdzv_id", "7", "s.py"}, "<--rdzv-id><7> | <s.py>"},
      {{"--rdzv_id=7", "s.py"}, "<--rdzv-id><7> | <s.py>"},
      {{"--stand", "s.py"}, "<--standalone> | <s.py>"},
      {{"--rdzv-b", "c10d", "s.py"}, "<--rdzv-backend><c10d> | <s.py>"},
      {{"--nproc-per-n=2", "s.py"}, "<--nproc-per-node><2> | <s.py>"},
      {{"--red", "3", "s.py"}, "<--redirects><3> | <s.py>"},
      {{"-r3", "s.py"}, "<--redirects><3> | <s.py>"},
      {{"-r", "3", "s.py"}, "<--redirects><3> | <s.py>"},
      {{"-r=3", "s.py"}, "<--redirects><3> | <s.py>"},
      {{"-r==3", "s.py"}, "<--redirects><=3> | <s.py>"},
      {{"-mr", "1", "s"}, "<--module><--redirects><1> | <s>"},
      {{"-mr1", "s"}, "<--module><--redirects><1> | <s>"},
      {{"-mr=1", "s"}, "<--module><--redirects><1> | <s>"},
      {{"--node-rank", "-1", "s.py"}, "<--node-rank><-1> | <s.py>"},
      {{"--monitor-interval", "-.5", "s.py"}, "<--monitor-interval><-.5> | <s.py>"},
      {{"--role", "-x y", "s.py"}, "<--role><-x y> | <s.py>"},
      {{"--role", "", "s.py"}, "<--role><> | <s.py>"},
      {{"--max-restarts", " +1_0 ", "s.py"}, "<--max-restarts>< +1_0 > | <s.py>"},
      {{"--role", "a", "--role=b", "s.py"}, "<--role><b> | <s.py>"},
  };
  for (const auto& row : rows) CHECK(read(row.words) == row.expected);
}

TEST_CASE("words: what follows the script is the script's own") {
  const std::vector<Row> rows = {
      {{"s.py", "-m", "-r", "9", "--standalone"}, " | <s.py><-m><-r><9><--standalone>"},
      {{"s.py", "--help", "-h", "--bogus"}, " | <s.py><--help><-h><--bogus>"},
      {{"s.py", "--local", "--no", "--l"}, " | <s.py><--local><--no><--l>"},
      {{"s.py", "", "a b", "é"}, " | <s.py><><a b><é>"},
      {{"-", "a"}, " | <-><a>"},
      {{"-5", "a"}, " | <-5><a>"},
      {{"--", "s.py", "a"}, " | <s.py><a>"},
      {{"--standalone", "--", "-s", "a"}, "<--standalone> | <-s><a>"},
      {{"-m", "--", "mod"}, "<--module> | <mod>"},
      {{"s.py", "--", "a"}, " | <s.py><a>"},
      {{"s.py", "a", "--", "b"}, " | <s.py><a><--><b>"},
      {{"s.py", "--", "--", "b"}, " | <s.py><--><b>"},
      {{"--", "s.py", "--", "b"}, " | <s.py><--><b>"},
      {{}, " | "},
      {{"--"}, " | "},
  };
  for (const auto& row : rows) CHECK(read(row.words) == row.expected);
}

TEST_CASE("words: what cannot be spelled out is refused with argparse's text") {
  const std::vector<Row> rows = {
      {{"--nproc", "2", "s.py"},
       "ambiguous option: --nproc could match --nproc-per-node, --nproc_per_node"},
      {{"--rdzv-e=x", "--nproc=2"},
       "ambiguous option: --nproc=2 could match --nproc-per-node, --nproc_per_node"},
      {{"--role"}, "argument --role: expected one argument"},
      {{"--role", "-x", "s.py"}, "argument --role: expected one argument"},
      {{"--role", "--", "s.py"}, "argument --role: expected one argument"},
      {{"-t"}, "argument -t/--tee: expected one argument"},
      {{"--standalone=1", "s.py"}, "argument --standalone: ignored explicit argument '1'"},
      {{"--no-python=", "s.py"}, "argument --no-python/--no_python: ignored explicit argument ''"},
      {{"-mx", "s.py"}, "argument -m/--module: ignored explicit argument 'x'"},
      {{"-m=", "s.py"}, "argument -m/--module: ignored explicit argument ''"},
  };
  for (const auto& row : rows) CHECK(read(row.words) == "refused: " + row.expected);
}

TEST_CASE("words: an unknown option is kept, and the rest is read") {
  CHECK(read({"--bogus", "--role", "a", "s.py"}) == "<--role><a> | <s.py> ?--bogus");
  CHECK(read({"--bogus=1", "-q", "s.py"}) == " | <s.py> ?--bogus=1 ?-q");
  CHECK(read({"--bogus", "5", "s.py"}) == " | <5><s.py> ?--bogus");
  CHECK(read({"--no such thing", "s.py"}) == " | <--no such thing><s.py>");
}

TEST_CASE("words: abbreviations of torchrun's options stay what they were") {
  // --report and --rdzv-* of ours must not make these ambiguous.
  CHECK(read({"--re", "3", "s.py"}) == "<--redirects><3> | <s.py>");
  CHECK(read({"--rep", "f", "s.py"}) == "<--report><f> | <s.py>");
  CHECK(read({"--mod", "s"}) == "<--module> | <s>");
  CHECK(read({"--h"}) == "<--help> | ");
  CHECK(read({"--dry", "s.py"}) ==
        "refused: ambiguous option: --dry could match --dry-run, --dry_run");
  CHECK(read({"--expl", "s.py"}) == "<--explain> | <s.py>");
}

TEST_CASE("words: the nearest option is named beside an unknown one") {
  CHECK(unrecognized({"--max-restart-s=1"}).hint ==
        "the option nearest to --max-restart-s is --max-restarts");
  CHECK(unrecognized({"--nproc_per_nod"}).hint ==
        "the option nearest to --nproc_per_nod is --nproc-per-node");
  CHECK(unrecognized({"--bogus", "--x=1"}).text == "unrecognized arguments: --bogus --x=1");
}

TEST_CASE("words: options of other launchers lead to ours, which do it") {
  for (const char* word : {"-n", "-np", "-np4", "--num_processes=4", "--num-processes", "--gpus"}) {
    CHECK(unrecognized({word}).hint.contains("is no option of elastrun: --nproc-per-node N"));
  }
  for (const char* word : {"--hosts=a,b", "-H", "--nodes"}) {
    CHECK(unrecognized({word}).hint.contains("each machine runs its own elastrun, with --nnodes"));
  }
  CHECK(unrecognized({"--use_env"}).hint.starts_with("--use_env is no option of elastrun: leave"));
  const std::vector<std::string> words{"--np", "2", "s.py"};
  CHECK(parse_command_line(words).error().hint == "write the option in full: --nproc-per-node");
}

TEST_CASE("words: an option of ours behind the script is told from the script's own") {
  CHECK(misplaced_option({"--lr", "1", "--nproc-per-node", "2"}) == "--nproc-per-node");
  CHECK(misplaced_option({"--nproc_per_node=2"}) == "--nproc_per_node=2");
  CHECK(misplaced_option({"--nnodes=2"}) == "--nnodes=2");
  CHECK(misplaced_option({"--config", "--name", "--log-dir", "--dry-run", "-m", "a--nnodes",
                          "--nproc", "--", "--nnodes"}) == "");
}

TEST_CASE("words: quotes are Python's") {
  CHECK(in_quotes("a") == "'a'");
  CHECK(in_quotes("it's") == "\"it's\"");
  CHECK(in_quotes("'\"") == "'\\'\"'");
  CHECK(in_quotes("a\n\x01\\") == "'a\\n\\x01\\\\'");
}

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
    return line ? line->instead : std::nullopt;
  };
  CHECK(action({"-h", "--standalone", "--max-restarts=x"}) == "help"_opt);
  CHECK(action({"--help", "--standalone", "--max-restarts=x"}) == "help"_opt);
  CHECK(action({"-h", "--role"}) == "help"_opt);
  CHECK(action({"--bogus", "--help"}) == "help"_opt);
  CHECK(action({"-mh"}) == "help"_opt);
  CHECK(action({"--version", "-h"}) == "version"_opt);
  CHECK(action({"--print-config"}) == "print-config"_opt);
  CHECK(action({"--print-completion", "zsh"}) == "print-completion"_opt);
  CHECK(action({"--install-into", "/opt/elastrun"}) == "install-into"_opt);
  CHECK(given({"--install-into"}).contains("refused"));
  CHECK(action({"s.py", "-h"}) == std::nullopt);
  CHECK(given({"--max-restarts=x", "-h"}).contains("refused"));
  CHECK(given({"--print-completion", "csh"}).contains("refused"));
  CHECK(given({"-hx"}).contains("refused"));
  for (const Words& brief : {Words{"-h"}, Words{"-mh"}})
    CHECK(parse_command_line(brief)->argument == "-h");
  CHECK(parse_command_line(Words{"--help"})->argument != "-h");
}

TEST_CASE("command line: a refusal has argparse's form, and its hint stands on lines of its own") {
  const Refusal parser{"unrecognized arguments: --x", "one\ntwo", 2, true};
  const std::string text = refusal_text(parser, "elastrun");
  CHECK(text.starts_with("usage: elastrun "));
  CHECK(text.ends_with("\nelastrun: error: unrecognized arguments: --x\n  one\n  two\n"));
  CHECK(refusal_text({"bad", {}, 1}, "p") == "p: error: bad\n");
}

}  // namespace elastrun::spec
