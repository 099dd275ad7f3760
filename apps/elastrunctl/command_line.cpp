// SPDX-License-Identifier: Apache-2.0
// The only file of this program that includes CLI11.
#include "command_line.hpp"

#include "core/text.hpp"
#include "spec/argument_words.hpp"
#include "spec/completion.hpp"
#include "spec/option_values.hpp"
#include "subcommands.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <functional>

#ifndef ELASTRUN_VERSION  // CMake gives the project's
#define ELASTRUN_VERSION "of an unknown version"
#endif

namespace elastrun::ctl {
namespace {

/// Unlike CLI::Range it refuses NaN.
CLI::Validator seconds(double least, double most) {
  const auto look = [least, most](const std::string& text) {
    const auto value = parse_float(text);
    return value && *value >= least && *value <= most
               ? std::string()
               : fmt::format("Value {} not in range [{} - {}]", text, least, most);
  };
  return {look, ""};
}

constexpr const char* kAbout =
    "Looks after jobs of elastrun: who is in, who is missing, and a coordinator that no node of a "
    "job has to carry. See elastrunctl(1).";

constexpr const char* kJobHelp =
    "A job of this user on this machine: its name, run id or agent, or how they begin";

constexpr const char* kSecretHelp =
    "File with the job's secret, as secret_file in --rdzv-conf; else ELASTRUN_SECRET";

void add_job_options(CLI::App& command, JobChoice& job, std::string& conf) {
  command.add_option("--rdzv-id,--run-id", job.run_id, "The job, as --rdzv-id of its agents")
      ->envname("PET_RDZV_ID")
      ->type_name("ID");
  command.add_option("--secret-file", job.secret_file, kSecretHelp)->type_name("FILE");
  command
      .add_option("--rdzv-conf", conf,
                  "key=value,... as the agents have it: secret_file, and for store "
                  "keep_alive_interval and keep_alive_max_attempt")
      ->type_name("CONF");
}

template <class Options>
void add_question_options(CLI::App& command, Options& options, std::string& conf) {
  command.add_flag("--json", options.json, "Print the answer as one line of JSON");
  command.add_option("--timeout", options.timeout, "Seconds to wait for an answer")
      ->check(seconds(0.001, 86400))
      ->type_name("SECONDS")
      ->capture_default_str();
  add_job_options(command, options.job, conf);
}

CLI::App* add_status(CLI::App& app, StatusOptions& options, std::string& conf) {
  auto* command = app.add_subcommand(
      "status", "Who is in, who is missing, who waits for what; which jobs run on this machine");
  command
      ->add_option(
          "job", options.target,
          fmt::format("{}, or a rendezvous endpoint (--rdzv-endpoint, or MASTER_ADDR:MASTER_PORT "
                      "of a static job): HOST[:PORT]. If left out: the jobs that run here",
                      kJobHelp))
      ->envname("PET_RDZV_ENDPOINT");
  add_question_options(*command, options, conf);
  return command;
}

CLI::App* add_stacks(CLI::App& app, StacksOptions& options, std::string& conf) {
  auto* command = app.add_subcommand("stacks", "Where the workers of a running job stand");
  command->add_option(
      "job", options.target,
      fmt::format("{}, or the rendezvous endpoint of a job: HOST[:PORT]; not needed for the only "
                  "one here",
                  kJobHelp));
  command->add_flag(
      "--kernel", options.kernel,
      "Show what the kernel tells of each thread, too, where there are Python frames");
  add_question_options(*command, options, conf);
  return command;
}

CLI::App* add_preempt(CLI::App& app, PreemptOptions& options) {
  auto* command = app.add_subcommand(
      "preempt", "Have a running job save and end with exit code 75, on all of its nodes");
  command->add_option("job", options.job, fmt::format("{}; not needed for the only one", kJobHelp));
  command
      ->add_option("--deadline", options.deadline,
                   "How long it may take; the job's own --preempt-timeout if left out")
      ->check(CLI::Range(0.001, 1e7))
      ->type_name("SECONDS");
  return command;
}

CLI::App* add_logs(CLI::App& app, LogsOptions& options) {
  auto* command =
      app.add_subcommand("logs", "Show and follow what the workers on this machine write");
  command->add_option("job", options.job, fmt::format("{}; not needed for the only one", kJobHelp));
  command->add_option("rank", options.rank, "Rank of the worker; all of this machine if left out")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("!--no-follow", options.follow, "Print what is there and end");
  command
      ->add_option("-n,--lines", options.lines,
                   "Begin with so many lines of the end of each file; all of this attempt if left "
                   "out")
      ->check(CLI::NonNegativeNumber)
      ->type_name("LINES");
  return command;
}

CLI::App* add_store(CLI::App& app, StoreOptions& options, std::string& conf) {
  auto* command = app.add_subcommand(
      "store", "Host the rendezvous, and a TCPStore, so that no node of the job has to");
  command
      ->add_option("--listen", options.listen,
                   "ADDRESS[:PORT] to listen at: a number, localhost, or * for every address; "
                   "port 29400 if left out, any free one if 0")
      ->required()
      ->type_name("ADDRESS[:PORT]");
  command->add_flag("--coordinator-only", options.coordinator_only,
                    "Serve no TCPStore clients at this port");
  command
      ->add_option("--state", options.state,
                   "File in which it remembers the rounds that run, for when it is begun again")
      ->type_name("FILE");
  add_job_options(*command, options.job, conf);
  return command;
}

/// The commands after `goodput`; `run` is the one that was chosen.
struct GoodputCommands {
  GoodputOptions report;
  ConvertOptions convert;
  CalculateOptions calculate;
  WatchOptions watch;
  WhatIfOptions what_if;
  std::function<int()> run;
};

void add_report(CLI::App& goodput, GoodputCommands& commands) {
  auto& options = commands.report;
  auto* report = goodput.add_subcommand("report", "Print the account of a job");
  report
      ->add_option("files", options.files,
                   "journal.jsonl of each submission of the job, or the directory with it, or a "
                   "log of ml-goodput-measurement as JSON lines; - is standard input")
      ->required()
      ->type_name("FILE");
  report->add_flag("--json", options.json, "Print the account as one line of JSON");
  report->add_flag("--compatible", options.compatible,
                   "Also the numbers that ml-goodput-measurement would give for its log");
  report->add_option("--html", options.html, "Write one page of HTML; - is standard output")
      ->type_name("FILE")
      ->excludes("--json")
      ->excludes("--compatible");
  report->callback([&] { commands.run = [&] { return run_goodput_report(options); }; });
}

void add_convert(CLI::App& goodput, GoodputCommands& commands) {
  auto& options = commands.convert;
  auto* convert = goodput.add_subcommand("convert", "Write the files of a job for other programs");
  std::vector<std::string> forms(std::begin(kConversions), std::end(kConversions));
  convert
      ->add_option("--to", options.to,
                   "What for: Perfetto, TensorBoard, or from a log to a journal")
      ->required()
      ->check(CLI::IsMember(forms, CLI::ignore_case).description(""))
      ->type_name(join(forms, "|"));
  convert
      ->add_option("-o,--output", options.output,
                   "Where to, instead of standard output; for TensorBoard also its directory")
      ->type_name("FILE");
  convert->add_option("files", options.files, "As those of report; - is standard input")
      ->required()
      ->type_name("FILE");
  convert->callback([&] { commands.run = [&] { return run_goodput_convert(options); }; });
}

void add_calculate(CLI::App& goodput, GoodputCommands& commands) {
  auto& options = commands.calculate;
  auto* calculate = goodput.add_subcommand(
      "calculate", "Answer questions on standard input as ml-goodput-measurement does");
  calculate->add_option("--job", options.job, "Whose entries count")->required()->type_name("NAME");
  calculate->add_flag("--elastic", options.elastic, "Count slices, as its elastic calculator");
  calculate->add_option("files", options.files, "Logs of ml-goodput-measurement, or journal.jsonl")
      ->type_name("FILE");
  calculate->callback([&] { commands.run = [&] { return run_goodput_calculate(options); }; });
}

void add_watch(CLI::App& goodput, GoodputCommands& commands) {
  auto& options = commands.watch;
  auto* watch = goodput.add_subcommand("watch", "Show the account of a job as it goes on");
  watch
      ->add_option("job", options.target,
                   fmt::format("{}, or a journal.jsonl or its directory; not needed for the only "
                               "job here",
                               kJobHelp))
      ->type_name("FILE");
  watch->callback([&] { commands.run = [&] { return run_goodput_watch(options); }; });
}

void add_what_if(CLI::App& goodput, GoodputCommands& commands) {
  auto& options = commands.what_if;
  auto* what_if =
      goodput.add_subcommand("what-if", "What another restart policy would have decided");
  what_if->add_option("files", options.files, "As of report")->required()->type_name("FILE");
  what_if
      ->add_option("--policy", options.policy,
                   "What this restart policy (else torchrun) would have decided at each failure")
      ->check(CLI::IsMember({"torchrun", "auto"}));
  what_if
      ->add_option("--restart-rule", options.restart_rules,
                   "With what rules, as elastrun takes them; may be given several times")
      ->type_name("CAUSE:ACTION")
      ->allow_extra_args(false);
  what_if
      ->add_option("--max-restarts", options.max_restarts,
                   "With how many restarts, instead of those of the job")
      ->check(CLI::NonNegativeNumber);
  what_if->add_flag("--json", options.json, "Print the answer as one line of JSON");
  what_if->callback([&] { commands.run = [&] { return run_goodput_what_if(options); }; });
}

CLI::App* add_goodput(CLI::App& app, GoodputCommands& commands) {
  auto* command = app.add_subcommand("goodput", "Where every second of a job went, from its files");
  command->require_subcommand(1);
  add_report(*command, commands);
  add_convert(*command, commands);
  add_what_if(*command, commands);
  add_calculate(*command, commands);
  add_watch(*command, commands);
  return command;
}

std::vector<spec::Choice> choices_of(const CLI::App& app) {
  std::vector<spec::Choice> choices;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional() && option->get_lnames().empty()) continue;
    spec::Choice choice;
    for (const auto& name : option->get_snames()) choice.names.push_back("-" + name);
    for (const auto& name : option->get_lnames()) choice.names.push_back("--" + name);
    if (option->get_items_expected_max() > 0) choice.value = option->get_type_name();
    // Checks add their own words: "SECONDS:FLOAT in [0.001 - 86400]", "LINES:NONNEGATIVE".
    for (const char* check : {":FLOAT in", ":INT in", ":NONNEGATIVE"}) {
      choice.value.resize(std::min(choice.value.size(), choice.value.find(check)));
    }
    using Takes = spec::Choice::Takes;
    if (!choice.value.empty()) choice.takes = choice.value == "FILE" ? Takes::File : Takes::Word;
    if (choice.value.contains('|')) choice.words = split(choice.value, '|');
    choice.help = option->get_description();
    choices.push_back(std::move(choice));
  }
  return choices;
}

/// The options that the parser knows, so that nothing is said twice.
spec::Commands commands_of(const CLI::App& app) {
  spec::Commands commands{"elastrunctl", choices_of(app), {}};
  for (const CLI::App* one : app.get_subcommands({})) {
    spec::Subcommand command{one->get_name(), one->get_description(), choices_of(*one), {}, false};
    command.names_job = one->get_option_no_throw("job") != nullptr;
    for (const CLI::App* inner : one->get_subcommands({})) {
      command.inner.emplace_back(inner->get_name(), inner->get_description());
      for (auto& choice : choices_of(*inner)) {
        const auto known = std::ranges::find(command.options, choice.names, &spec::Choice::names);
        if (known != command.options.end()) continue;
        command.options.push_back(std::move(choice));
      }
    }
    commands.subcommands.push_back(std::move(command));
  }
  return commands;
}

void add_print_completion(CLI::App& app) {
  const auto print = [&app](const std::string& shell) {
    auto script = spec::completion_script(shell, commands_of(app));
    if (script.empty()) throw CLI::ValidationError("--print-completion", "bash, zsh or fish");
    script.pop_back();  // exit() adds a newline
    // As CLI11 leaves the parser for --version: what is required need not be there.
    throw CLI::CallForVersion(script, 0);
  };
  app.add_option_function<std::string>("--print-completion", print,
                                       "Print what teaches this shell the options")
      ->type_name("bash|zsh|fish")
      ->trigger_on_parse();
}

/// Checks the text of --rdzv-conf and says what is wrong with it.
bool read_conf(const std::string& text, JobChoice& job) {
  const auto conf = spec::parse_rdzv_conf(spec::rdzv_conf_parts(text));
  if (!conf) {
    report_error("--rdzv-conf: " + conf.error().text, kExitUsage);
    return false;
  }
  job.config = spec::read_rendezvous_config(*conf);
  return true;
}

/// Names the first word that no command took, and the command that may be meant.
std::string unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* level = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    // An option may take the next word, so what follows cannot be judged.
    if (word.starts_with('-')) return {};
    std::vector<std::string> names;
    const CLI::App* next = nullptr;
    for (const CLI::App* one : level->get_subcommands({})) {
      names.push_back(one->get_name());
      if (one->get_name() == word) next = one;
    }
    if (names.empty()) return {};  // the words that follow are the command's arguments
    if (next == nullptr) {
      const auto near = nearest(word, names);
      return fmt::format("unknown command {}{}", spec::in_quotes(word),
                         near ? fmt::format("; did you mean {}?", *near) : "");
    }
    level = next;
  }
  return {};
}

}  // namespace

int run_command(int argc, char** argv) try {
  CLI::App app(kAbout, "elastrunctl");
  app.set_version_flag("--version", std::string("elastrunctl ") + ELASTRUN_VERSION);
  app.require_subcommand(1);
  add_print_completion(app);
  StatusOptions status;
  StoreOptions store;
  LogsOptions logs;
  StacksOptions stacks;
  std::string conf;
  const CLI::App* asks_status = add_status(app, status, conf);
  const CLI::App* asks_stacks = add_stacks(app, stacks, conf);
  PreemptOptions preempt;
  const CLI::App* preempts = add_preempt(app, preempt);
  const CLI::App* asks_logs = add_logs(app, logs);
  GoodputCommands goodput;
  const CLI::App* asks_goodput = add_goodput(app, goodput);
  add_store(app, store, conf);
  const CLI::App* cleans = app.add_subcommand(
      "clean", "Kill what jobs have left on this machine whose two processes were killed together");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help or version
    const auto unknown = unknown_command(app, argc, argv);
    return report_error(fmt::format("{} (elastrunctl --help shows what there is)",
                                    unknown.empty() ? error.what() : unknown),
                        kExitUsage);
  }
  if (asks_logs->parsed()) return run_logs(logs);
  if (preempts->parsed()) return run_preempt(preempt);
  if (cleans->parsed()) return run_clean();
  if (asks_goodput->parsed()) return goodput.run();
  auto& job = asks_status->parsed() ? status.job : asks_stacks->parsed() ? stacks.job : store.job;
  if (!read_conf(conf, job)) return kExitUsage;
  if (asks_stacks->parsed()) return run_stacks(stacks);
  return asks_status->parsed() ? run_status(status) : run_store(store);
} catch (const std::exception& error) {
  return report_error(fmt::format("internal error: {}", error.what()), kExitFailed);
}

}  // namespace elastrun::ctl
