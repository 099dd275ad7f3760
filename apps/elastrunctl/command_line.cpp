// SPDX-License-Identifier: Apache-2.0

#include "elastrunctl/command_line.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "rendezvous/election/make_elected.hpp"
#include "spec/option_help.hpp"
#include "spec/option_values.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <utility>

#ifndef ELASTRUN_VERSION  // CMake gives the project's
#define ELASTRUN_VERSION "of an unknown version"
#endif

namespace elastrun::ctl {

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}} ", row[i], widths[i]);
    text += line.erase(line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string shown(const std::string& text) {
  // Names come from other processes and machines: an escape sequence in one could rewrite the
  // terminal.
  return without_controls(text);
}

Result<std::string> secret_of(const JobChoice& job) {
  const char* given = std::getenv("ELASTRUN_SECRET");
  const std::string& file = job.secret_file.empty() ? job.config.secret_file : job.secret_file;
  return rendezvous::read_secret(file, given == nullptr ? "" : given);
}

int report_error(const std::string& text, int exit_code) {
  fmt::print(stderr, "elastrunctl: {}\n", without_controls(text, "\n"));
  return exit_code;
}

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

/// Runs the subcommand that the words ask for.
using Chosen = std::function<int()>;

/// Checks the text of --rdzv-conf and says what is wrong with it.
bool read_conf(JobChoice& job) {
  const auto conf = spec::parse_rdzv_conf(spec::rdzv_conf_parts(job.conf));
  if (!conf) {
    report_error("--rdzv-conf: " + conf.error().text, kExitUsage);
    return false;
  }
  job.config = spec::read_rendezvous_config(*conf);
  return true;
}

/// One subcommand, and its options, with which `start` runs it.
template <class Options>
std::pair<CLI::App&, Options&> add_verb(CLI::App& app, Chosen& chosen, const char* name,
                                        const char* help, int (*start)(const Options&)) {
  auto* command = app.add_subcommand(name, help);
  const auto options = std::make_shared<Options>();
  command->callback([&chosen, options, start] {
    chosen = [options, start] {
      if constexpr (requires { options->job.conf; }) {
        if (!read_conf(options->job)) return kExitUsage;
      }
      return start(*options);
    };
  });
  return {*command, *options};
}

template <class Value>
CLI::Option* valued(CLI::App& command, const char* names, Value& value, const char* kind,
                    const std::string& help) {
  return command.add_option(names, value, help)->type_name(kind);
}

void add_job_options(CLI::App& command, JobChoice& job) {
  valued(command, "--rdzv-id,--run-id", job.run_id, "ID", "The job, as --rdzv-id of its agents")
      ->envname("PET_RDZV_ID");
  valued(command, "--secret-file", job.secret_file, "FILE", kSecretHelp);
  valued(command, "--rdzv-conf", job.conf, "CONF",
         "key=value,... as the agents have it: secret_file, and for store keep_alive_interval and "
         "keep_alive_max_attempt");
}

template <class Options>
void add_question_options(CLI::App& command, Options& options) {
  command.add_flag("--json", options.json, "Print the answer as one line of JSON");
  valued(command, "--timeout", options.timeout, "SECONDS", "Seconds to wait for an answer")
      ->check(seconds(0.001, 86400))
      ->capture_default_str();
  add_job_options(command, options.job);
}

void add_status(CLI::App& app, Chosen& chosen) {
  const auto [command, options] = add_verb(
      app, chosen, "status",
      "Who is in, who is missing, who waits for what; which jobs run on this machine", run_status);
  command
      .add_option(
          "job", options.target,
          fmt::format("{}, or a rendezvous endpoint (--rdzv-endpoint, or MASTER_ADDR:MASTER_PORT "
                      "of a static job): HOST[:PORT]. If left out: the jobs that run here",
                      kJobHelp))
      ->envname("PET_RDZV_ENDPOINT");
  add_question_options(command, options);
}

void add_stacks(CLI::App& app, Chosen& chosen) {
  const auto [command, options] =
      add_verb(app, chosen, "stacks", "Where the workers of a running job stand", run_stacks);
  command.add_option(
      "job", options.target,
      fmt::format("{}, or the rendezvous endpoint of a job: HOST[:PORT]; not needed for the only "
                  "one here",
                  kJobHelp));
  command.add_flag("--kernel", options.kernel,
                   "Show what the kernel tells of each thread, too, where there are Python frames");
  add_question_options(command, options);
}

void add_preempt(CLI::App& app, Chosen& chosen) {
  const auto [command, options] = add_verb(
      app, chosen, "preempt",
      "Have a running job save and end with exit code 75, on all of its nodes", run_preempt);
  command.add_option("job", options.job, fmt::format("{}; not needed for the only one", kJobHelp));
  valued(command, "--deadline", options.deadline, "SECONDS",
         "How long it may take; the job's own --preempt-timeout if left out")
      ->check(CLI::Range(0.001, 1e7));
}

void add_logs(CLI::App& app, Chosen& chosen) {
  const auto [command, options] = add_verb(
      app, chosen, "logs", "Show and follow what the workers on this machine write", run_logs);
  command.add_option("job", options.job, fmt::format("{}; not needed for the only one", kJobHelp));
  command.add_option("rank", options.rank, "Rank of the worker; all of this machine if left out")
      ->check(CLI::NonNegativeNumber);
  command.add_flag("!--no-follow", options.follow, "Print what is there and end");
  valued(command, "-n,--lines", options.lines, "LINES",
         "Begin with so many lines of the end of each file; all of this attempt if left out")
      ->check(CLI::NonNegativeNumber);
}

void add_store(CLI::App& app, Chosen& chosen) {
  const auto [command, options] =
      add_verb(app, chosen, "store",
               "Host the rendezvous, and a TCPStore, so that no node of the job has to", run_store);
  valued(command, "--listen", options.listen, "ADDRESS[:PORT]",
         "ADDRESS[:PORT] to listen at: a number, localhost, or * for every address; port 29400 if "
         "left out, any free one if 0")
      ->required();
  command.add_flag("--coordinator-only", options.coordinator_only,
                   "Serve no TCPStore clients at this port");
  valued(command, "--state", options.state, "FILE",
         "File in which it remembers the rounds that run, for when it is begun again");
  add_job_options(command, options.job);
}

void add_report(CLI::App& goodput, Chosen& chosen) {
  const auto [report, options] =
      add_verb(goodput, chosen, "report", "Print the account of a job", run_goodput_report);
  valued(report, "files", options.files, "FILE",
         "journal.jsonl of each submission of the job, or the directory with it, or a log of "
         "ml-goodput-measurement as JSON lines; - is standard input")
      ->required();
  report.add_flag("--json", options.json, "Print the account as one line of JSON");
  report.add_flag("--compatible", options.compatible,
                  "Also the numbers that ml-goodput-measurement would give for its log");
  valued(report, "--html", options.html, "FILE", "Write one page of HTML; - is standard output")
      ->excludes("--json")
      ->excludes("--compatible");
}

void add_convert(CLI::App& goodput, Chosen& chosen) {
  const auto [convert, options] =
      add_verb(goodput, chosen, "convert", "Write the files of a job for other programs",
               run_goodput_convert);
  std::vector<std::string> forms(std::begin(kConversions), std::end(kConversions));
  convert
      .add_option("--to", options.to, "What for: Perfetto, TensorBoard, or from a log to a journal")
      ->required()
      ->check(CLI::IsMember(forms, CLI::ignore_case).description(""))
      ->type_name(join(forms, "|"));
  valued(convert, "-o,--output", options.output, "FILE",
         "Where to, instead of standard output; for TensorBoard also its directory");
  valued(convert, "files", options.files, "FILE", "As those of report; - is standard input")
      ->required();
}

void add_what_if(CLI::App& goodput, Chosen& chosen) {
  const auto [what_if, options] =
      add_verb(goodput, chosen, "what-if", "What another restart policy would have decided",
               run_goodput_what_if);
  what_if.add_option("files", options.files, "As of report")->required()->type_name("FILE");
  what_if
      .add_option("--policy", options.policy,
                  "What this restart policy (else torchrun) would have decided at each failure")
      ->check(CLI::IsMember({"torchrun", "auto"}));
  valued(what_if, "--restart-rule", options.restart_rules, "CAUSE:ACTION",
         "With what rules, as elastrun takes them; may be given several times")
      ->allow_extra_args(false);
  what_if
      .add_option("--max-restarts", options.max_restarts,
                  "With how many restarts, instead of those of the job")
      ->check(CLI::NonNegativeNumber);
  what_if.add_flag("--json", options.json, "Print the answer as one line of JSON");
}

void add_calculate(CLI::App& goodput, Chosen& chosen) {
  const auto [calculate, options] = add_verb(
      goodput, chosen, "calculate",
      "Answer questions on standard input as ml-goodput-measurement does", run_goodput_calculate);
  valued(calculate, "--job", options.job, "NAME", "Whose entries count")->required();
  calculate.add_flag("--elastic", options.elastic, "Count slices, as its elastic calculator");
  valued(calculate, "files", options.files, "FILE",
         "Logs of ml-goodput-measurement, or journal.jsonl");
}

void add_watch(CLI::App& goodput, Chosen& chosen) {
  const auto [watch, options] = add_verb(
      goodput, chosen, "watch", "Show the account of a job as it goes on", run_goodput_watch);
  valued(watch, "job", options.target, "FILE",
         fmt::format("{}, or a journal.jsonl or its directory; not needed for the only job here",
                     kJobHelp));
}

void add_goodput(CLI::App& app, Chosen& chosen) {
  auto* command = app.add_subcommand("goodput", "Where every second of a job went, from its files");
  command->require_subcommand(1);
  for (const auto add : {add_report, add_convert, add_what_if, add_calculate, add_watch})
    add(*command, chosen);
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
    // CLI11 leaves the parser so for --version: what is required need not be there.
    throw CLI::CallForVersion(script, 0);
  };
  app.add_option_function<std::string>("--print-completion", print,
                                       "Print what teaches this shell the options")
      ->type_name("bash|zsh|fish")
      ->trigger_on_parse();
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

/// Reads the words, runs the subcommand they name, and gives its exit status. Help and version are
/// printed on stdout with status 0; mistakes on stderr, with the word that is wrong, with status 2.
int run_command(int argc, char** argv) try {
  CLI::App app(kAbout, "elastrunctl");
  app.set_version_flag("--version", std::string("elastrunctl ") + ELASTRUN_VERSION);
  app.require_subcommand(1);
  add_print_completion(app);
  Chosen chosen;
  for (const auto add : {add_status, add_stacks, add_preempt, add_logs, add_goodput, add_store})
    add(app, chosen);
  app.add_subcommand(
         "clean",
         "Kill what jobs have left on this machine whose two processes were killed together")
      ->callback([&chosen] { chosen = run_clean; });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help or version
    const auto unknown = unknown_command(app, argc, argv);
    return report_error(fmt::format("{} (elastrunctl --help shows what there is)",
                                    unknown.empty() ? error.what() : unknown),
                        kExitUsage);
  }
  return chosen();
} catch (const std::exception& error) {
  return report_error(fmt::format("internal error: {}", error.what()), kExitFailed);
}

}  // namespace

int run_program(int argc, char** argv) {
  // First: with stdout closed, the next file that is opened would become descriptor 1, and the
  // answer would be written into it.
  open_standard_streams();
  const int code = run_command(argc, argv);
  // Who reads an answer from a file must not take half of it for the whole.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return report_error(fmt::format("cannot write to stdout: {}", std::strerror(errno)), kExitFailed);
}

}  // namespace elastrun::ctl
