// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "spec/option_help.hpp"
#include "spec/option_values.hpp"
#include "spec/sources.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace elastrun::spec {
namespace {

bool is_digits(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// argparse: ^-\d+$|^-\d*\.\d+$
bool is_negative_number(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return false;
  word.remove_prefix(1);
  const auto point = word.find('.');
  if (point == std::string_view::npos) return is_digits(word);
  return is_digits(word.substr(0, point)) && point + 1 < word.size() &&
         is_digits(word.substr(point + 1));
}

const OptionRow* find_letter(char letter) {
  for (const auto& option : options()) {
    if (option.letter != 0 && option.letter == letter) return &option;
  }
  return nullptr;
}

// What one word is, seen by itself.
struct Reading {
  enum class What { Positional, Option, Unknown } what = What::Positional;
  const OptionRow* option = nullptr;
  bool is_short = false;             // a letter, so that a flag may be followed by more letters
  std::optional<std::string> value;  // what is attached to it
};

struct Match {
  const OptionRow* option;
  std::string spelled;
};

std::vector<Match> matches_of_prefix(std::string_view prefix, bool torchrun) {
  std::vector<Match> found;
  for (const auto& option : options()) {
    if (option.torchrun != torchrun) continue;
    for (std::string spelled : {spelling(option), underscore_spelling(option)}) {
      if (spelled.starts_with(prefix)) found.push_back({&option, std::move(spelled)});
    }
  }
  return found;
}

Answer<Reading> read_long(std::string_view word) {
  const auto equals = word.find('=');
  const auto prefix = word.substr(0, equals);
  Reading reading{Reading::What::Option, nullptr, false, {}};
  if (equals != std::string_view::npos) reading.value = word.substr(equals + 1);
  // The whole name first: one option may be the beginning of another ("--metrics",
  // "--metrics-interval").
  if ((reading.option = find_option(prefix.substr(2))) != nullptr) return reading;
  // torchrun's before ours: an abbreviation that works there must not become ambiguous by an option
  // of ours.
  auto found = matches_of_prefix(prefix, true);
  if (found.empty()) found = matches_of_prefix(prefix, false);
  if (found.size() == 1) {
    reading.option = found.front().option;
    return reading;
  }
  if (found.empty()) return Reading{Reading::What::Unknown, nullptr, false, {}};
  // The text is argparse's, with both spellings of an option; what to do names each one once.
  std::vector<std::string> spelled, names;
  for (auto& match : found) {
    spelled.push_back(std::move(match.spelled));
    if (match.option != reading.option) names.push_back(spelling(*match.option));
    reading.option = match.option;
  }
  return std::unexpected(
      Refusal{fmt::format("ambiguous option: {} could match {}", word, join(spelled, ", ")),
              fmt::format("write the option in full: {}", join(names, " or ")), 2, true});
}

/// Advice in place of an option of other launchers, or of earlier ones of torch.
std::string_view foreign_option(std::string_view name) {
  constexpr std::array<std::array<std::string_view, 2>, 3> kRows = {{
      {"n np num-proc num-procs num-processes gpus ngpus num-gpus",
       "--nproc-per-node N starts N workers on each node"},
      {"N H host hosts hostfile nodes num-nodes num-machines",
       "each machine runs its own elastrun, with --nnodes N and --rdzv-endpoint HOST"},
      {"use-env", "leave it out: workers always find their rank in LOCAL_RANK"},
  }};
  for (const auto& [names, what] : kRows) {
    if (std::ranges::count(split(names, ' '), name) != 0) return what;
  }
  return {};
}

Answer<Reading> read_word(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return Reading{};
  Reading reading;
  if (word[1] == '-') {
    auto answer = read_long(word);
    if (!answer) return answer;
    reading = *answer;
  } else if (const auto* option = find_letter(word[1])) {
    reading = {Reading::What::Option, option, true, {}};
    // `-r=3` is `-r 3`.
    if (word.size() > 2) reading.value = word.substr(word[2] == '=' ? 3 : 2);
  } else {
    reading.what = is_negative_number(word) ? Reading::What::Positional : Reading::What::Unknown;
  }
  // argparse takes a word with a blank in it that is not an option for an argument.
  if (reading.what == Reading::What::Unknown && word.find(' ') != std::string_view::npos)
    return Reading{};
  return reading;
}

// From this option on they are asked for instead of a run.
constexpr Opt kFirstInstead = "print-config"_opt;

// Reads the words up to the script, one after the other. Each option is checked and taken as soon
// as it is read, as argparse does: the first error counts, and --help before it wins.
class Reader {
 public:
  explicit Reader(std::span<const std::string> words) : words_(words) {}

  Answer<CommandLine> run() {
    while (at_ < words_.size() && !line_.instead) {
      const std::string& word = words_[at_];
      if (word == "--") return take_script(at_ + 1, true);
      const auto reading = read_word(word);
      if (!reading) return std::unexpected(reading.error());
      if (reading->what == Reading::What::Positional) return take_script(at_, false);
      ++at_;
      if (reading->what == Reading::What::Unknown) {
        line_.unrecognized.push_back(word);
      } else if (auto refusal = take_option(*reading)) {
        return std::unexpected(std::move(*refusal));
      }
    }
    return std::move(line_);
  }

 private:
  // The script, then its arguments. One `--` is dropped: before the script or right after it.
  Answer<CommandLine> take_script(std::size_t first, bool dashes_seen) {
    if (first < words_.size()) line_.script = words_[first];
    for (std::size_t i = first + 1; i < words_.size(); ++i) {
      if (i == first + 1 && !dashes_seen && words_[i] == "--") continue;
      line_.script_args.push_back(words_[i]);
    }
    return std::move(line_);
  }

  std::optional<Refusal> take_option(Reading reading) {
    // Letters may stand together, as in "-mr 3": each flag is taken by itself, and the first option
    // among them that takes a value gets the rest of the word.
    while (reading.option->kind == Kind::Flag) {
      const OptionRow& flag = *reading.option;
      const bool more = reading.is_short && reading.value && !reading.value->empty();
      const OptionRow* next = more ? find_letter(reading.value->front()) : nullptr;
      if (reading.value && next == nullptr) {
        return refuse_argument(flag, "ignored explicit argument " + in_quotes(*reading.value),
                               "a flag takes no value");
      }
      take(flag, "1");
      if (line_.instead == "help"_opt && reading.is_short) line_.argument = "-h";
      if (next == nullptr || line_.instead) return std::nullopt;
      std::string rest = reading.value->substr(1);
      if (rest.starts_with('=')) rest.erase(0, 1);
      reading.option = next;
      reading.value = rest.empty() ? std::nullopt : std::optional(rest);
    }
    const OptionRow& option = *reading.option;
    if (!reading.value && !take_next_word(reading)) {
      return refuse_argument(option, "expected one argument", missing_value_hint(option));
    }
    if (auto refusal = check_text(option, *reading.value)) return refusal;
    take(option, *reading.value);
    return std::nullopt;
  }

  // The last of several occurrences counts, unless the option repeats: then each adds to what the
  // line has said already.
  void take(const OptionRow& option, const std::string& text) {
    Override given{option.id(), text, Origin::CommandLine,
                   spelling(option) + " on the command line"};
    given.listed = repeats(option.id());
    const auto before = std::ranges::find(line_.given, option.id(), &Override::id);
    if (given.listed) {
      if (before != line_.given.end()) given.items = std::move(before->items);
      given.items.push_back(text);
      given.text = join(given.items, ",");
    }
    if (before != line_.given.end()) line_.given.erase(before);
    line_.given.push_back(std::move(given));
    if (option.id() >= kFirstInstead) line_.instead = option.id();
    line_.argument = text;
  }

  bool take_next_word(Reading& reading) {
    if (at_ >= words_.size() || words_[at_] == "--") return false;
    const auto next = read_word(words_[at_]);
    // argparse takes no word that looks like an option for a value, but a negative number.
    if (!next || next->what != Reading::What::Positional) return false;
    reading.value = words_[at_++];
    return true;
  }

  std::string missing_value_hint(const OptionRow& option) const {
    if (at_ >= words_.size()) return {};
    return fmt::format("a value that starts with a dash is written {}={}", spelling(option),
                       words_[at_]);
  }

  std::span<const std::string> words_;
  std::size_t at_ = 0;
  CommandLine line_;
};

std::optional<Refusal> check_variable(const OptionRow& option, const std::string& name,
                                      const std::string& text) {
  if (option.kind == Kind::Flag) {
    // torchrun takes int() of it: "true" is an error there as well.
    if (parse_int(text)) return std::nullopt;
    return launcher_refusal(fmt::format("{}: {}", name, python_int_error(text)),
                            "0 turns the flag off, 1 turns it on");
  }
  // torchrun does not check choices here; ours that it has not are checked all the same.
  if (option.kind == Kind::Choice && option.torchrun) return std::nullopt;
  auto refusal = check_text(option, text);
  if (refusal) refusal->hint = fmt::format("the value comes from the variable {}", name);
  return refusal;
}

}  // namespace

std::string misplaced_option(const std::vector<std::string>& script_args) {
  for (const auto& word : script_args) {
    if (word == "--") break;
    const auto* option = word.starts_with("--")
                             ? find_option(std::string_view(word).substr(2, word.find('=') - 2))
                             : nullptr;
    if (option == nullptr) continue;
    // Scripts have the words of one syllable themselves (--config, --name), and these two.
    const bool is_ours = option->name.contains('-') || option->id() == "nnodes"_opt ||
                         option->id() == "standalone"_opt;
    if (is_ours && option->id() != "log-dir"_opt && option->id() != "dry-run"_opt) return word;
  }
  return {};
}

Answer<CommandLine> parse_command_line(std::span<const std::string> words) {
  return Reader(words).run();
}

Answer<std::vector<Override>> read_variables(const HostEnvironment& around, const Values& decided) {
  std::vector<Override> found;
  for (const auto& option : options()) {
    // Not even looked at: a variable that is wrong does no harm where it does not count.
    if (decided[option.id()].origin == Origin::CommandLine) continue;
    const std::string name = pet_name(option);
    if (name.empty()) continue;
    if (auto text = around.variable(name)) {
      if (auto refusal = check_variable(option, name, *text)) return std::unexpected(*refusal);
      found.push_back({option.id(), std::move(*text), Origin::Variable, name});
      continue;
    }
    const std::string other(option.variable);
    if (other.empty()) continue;
    auto text = around.variable(other);
    if (!text) continue;
    if (option.kind == Kind::Int && !parse_int(*text)) {
      return std::unexpected(launcher_refusal(fmt::format("{}: {}", other, python_int_error(*text)),
                                              "expected a number of seconds"));
    }
    found.push_back({option.id(), std::move(*text), Origin::Variable, other});
  }
  return found;
}

std::vector<std::string> unknown_variables(const HostEnvironment& around) {
  const auto set = around.pet_variables();
  if (set.empty()) return {};
  std::vector<std::string> known, warnings;
  for (const auto& option : options()) {
    if (auto name = pet_name(option); !name.empty()) known.push_back(std::move(name));
  }
  for (const auto& name : set) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const auto near = nearest(name, known);
    warnings.push_back(fmt::format("the variable {} sets no option and has no effect{}", name,
                                   near ? fmt::format(" (did you mean {}?)", *near) : ""));
  }
  return warnings;
}

Refusal unrecognized(const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const auto& option : options()) names.push_back(spelling(option));
  Refusal refusal{"unrecognized arguments: " + join(words, " "), {}, 2, true};
  for (const auto& word : words) {
    const std::string given = word.substr(0, word.find('='));
    std::string name = given;
    // Underscores are as good as dashes, and must not count as faults when the nearest name is
    // looked for.
    std::replace(name.begin(), name.end(), '_', '-');
    const auto near = nearest(name, names);
    std::string_view bare = std::string_view(name).substr(name.starts_with("--") ? 2 : 1);
    if (!name.starts_with("--")) bare = bare.substr(0, bare.find_last_not_of("0123456789") + 1);
    const auto foreign = foreign_option(bare);
    if (!near && foreign.empty()) continue;
    if (!refusal.hint.empty()) refusal.hint += '\n';
    refusal.hint += !foreign.empty()
                        ? fmt::format("{} is no option of elastrun: {}", given, foreign)
                        : fmt::format("the option nearest to {} is {}", given, *near);
  }
  if (refusal.hint.empty()) refusal.hint = "arguments of the script follow the script";
  return refusal;
}

std::string refusal_text(const Refusal& refusal, std::string_view program) {
  std::string text = refusal.with_usage ? usage_text(program) : std::string();
  text += fmt::format("{}: error: {}\n", program, refusal.text);
  if (refusal.hint.empty()) return text;
  for (const auto& line : split(refusal.hint, '\n')) text += fmt::format("  {}\n", line);
  return text;
}

std::optional<std::string> HostEnvironment::variable(const std::string& name) const {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::vector<std::string> HostEnvironment::pet_variables() const {
  std::vector<std::string> names;
  for (char** one = environ; one != nullptr && *one != nullptr; ++one) {
    const std::string_view entry(*one);
    if (entry.starts_with("PET_")) names.emplace_back(entry.substr(0, entry.find('=')));
  }
  // environ(7) is in any order; the warnings come in one.
  std::ranges::sort(names);
  return names;
}

bool HostEnvironment::exists(const std::string& path) const {
  return ::access(path.c_str(), F_OK) == 0;
}

bool HostEnvironment::is_executable(const std::string& path) const {
  struct stat facts {};
  // A folder has the bit for searching it, by which access(2) alone would take it for a program.
  return ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::string HostEnvironment::own_program() const {
  std::error_code unknown;
  // Not by argv[0], which the caller chooses.
  return std::filesystem::read_symlink("/proc/self/exe", unknown).string();
}

}  // namespace elastrun::spec
