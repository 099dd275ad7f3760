// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "spec/option_table.hpp"
#include "unit/spec/fakes.hpp"

#include <algorithm>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fstream>
#include <sstream>

namespace elastrun::spec {

std::string source_path(const std::string& path) {
  return std::string(ELASTRUN_SOURCE_DIR) + "/" + path;
}

std::string read_source(const std::string& path) {
  const std::ifstream file(source_path(path));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

namespace {

// The lines of one section of an mdoc(7) page.
Words section(const std::string& page, std::string_view title) {
  Words lines;
  bool inside = false;
  for (const auto& line : split(page, '\n')) {
    if (line.starts_with(".Sh ")) inside = line == fmt::format(".Sh {}", title);
    if (inside) lines.push_back(line);
  }
  return lines;
}

// What elastrun.toml(5) says about the keys of one section that are options.
Words keys_of_table(std::string_view part) {
  Words lines;
  for (const auto& option : options()) {
    if (!option.toml.starts_with(fmt::format("{}.", part))) continue;
    lines.push_back(fmt::format(".It Cm {}", option.toml.substr(part.size() + 1)));
    const bool list = option.kind == Kind::List;
    lines.push_back(fmt::format(".Fl -{}{}", option.name, list ? " ," : ""));
    if (list) lines.emplace_back(option.id() == "rdzv-conf"_opt ? "a list or a table" : "a list");
  }
  return lines;
}

// The page with what stands between its marks written again.
std::string with_keys_of_table(const std::string& page) {
  constexpr std::string_view kFrom = R"(.\" From the option table: )", kUntil = R"(.\" Until here)";
  Words written;
  bool skips = false;
  for (const auto& line : split(page, '\n')) {
    skips = skips && line != kUntil;
    if (!skips) written.push_back(line);
    if (!line.starts_with(kFrom)) continue;
    const auto keys = keys_of_table(std::string_view(line).substr(kFrom.size()));
    written.insert(written.end(), keys.begin(), keys.end());
    skips = true;
  }
  return join(written, "\n");
}

// The words after `Fl` in ".It Fl m , Fl -module": "m", "-module".
Words flags_of(const std::string& item) {
  Words flags;
  const auto words = split(item, ' ');
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "Fl") flags.push_back(words[i + 1]);
  }
  return flags;
}

// What the page says about each option of OPTIONS, by "-module" and "m".
std::map<std::string, std::string> options_of_page() {
  std::map<std::string, std::string> found;
  Words current;
  for (const auto& line : section(read_source("man/elastrun.1"), "OPTIONS")) {
    if (line.starts_with(".It Fl ")) current = flags_of(line);
    if (line.starts_with(".Ss ")) current.clear();
    for (const auto& flag : current) found[flag] += line + "\n";
  }
  return found;
}

}  // namespace

TEST_CASE("man: elastrun(1) has every option of the table, and no other") {
  auto page = options_of_page();
  for (const auto& option : options()) {
    CAPTURE(option.name);
    CHECK(page.erase(spelling(option).substr(1)) == 1);
    if (option.letter != 0) CHECK(page.erase(std::string(1, option.letter)) == 1);
  }
  for (const auto& [flag, text] : page) FAIL_CHECK("not in the table: " << flag);
}

TEST_CASE("man: elastrun(1) tells the choices and the default of each option") {
  const auto page = options_of_page();
  for (const auto& option : options()) {
    CAPTURE(option.name);
    const auto& text = page.at(spelling(option).substr(1));
    for (const auto& choice : choices(option)) CHECK(contains(text, choice));
    // These two are told in other words.
    if (option.id() == "nnodes"_opt || option.id() == "monitor-interval"_opt) continue;
    CHECK(contains(text, option.fallback));
  }
}

TEST_CASE("man: elastrun(1) has the groups of --help, in their order, and every setting") {
  const std::string page = read_source("man/elastrun.1");
  std::size_t at = 0;
  for (const auto& option : options()) {
    const auto found = page.find(fmt::format(".Ss {}\n", title(option.group)));
    REQUIRE(found != std::string::npos);
    CHECK(found >= at);
    at = found;
  }
  const auto told = join(section(page, "RENDEZVOUS SETTINGS"), " ");
  for (const auto& setting : settings()) {
    const std::string key(setting.name);
    CAPTURE(key);
    // `rank` is set by --node-rank.
    CHECK((key == "rank" || contains(told, key)));
  }
}

TEST_CASE("man: the keys of options in elastrun.toml(5) are those of the table") {
  // If this fails: ELASTRUN_WRITE_PAGES=1 build/dev/tests/unit_spec -tc='man:*'
  const std::string path = "man/elastrun.toml.5";
  const std::string page = read_source(path), written = with_keys_of_table(page);
  if (std::getenv("ELASTRUN_WRITE_PAGES") != nullptr) {
    std::ofstream(source_path(path)) << written;
  } else {
    CHECK_MESSAGE((page == written), path << " is not what the option table says");
  }
  const auto items = std::ranges::count_if(
      split(page, '\n'), [](const auto& line) { return line.starts_with(".It Cm "); });
  constexpr auto kHandWritten = 4;  // script, args, metrics.route, restart of a role
  CHECK(items == std::ranges::count_if(options(), [](auto& one) { return !one.toml.empty(); }) +
                     kHandWritten);
}

TEST_CASE("man: the example of elastrun.toml(5) is a job") {
  const auto lines = section(read_source("man/elastrun.toml.5"), "EXAMPLES");
  std::string text;
  for (const auto& line : lines) {
    if (!line.starts_with('.')) text += line + "\n";
  }
  FakeMachine machine;
  machine.gpus = 8;
  machine.files["job.toml"] = text;
  const auto job = machine.job({"--config=job.toml"});
  CHECK(job.warnings.empty());
  CHECK(job.spec.script_args == Words{"--epochs", "10"});
  CHECK(job.spec.nproc_per_node == 8);
  CHECK(job.spec.max_nodes == 4);
  CHECK(job.spec.rdzv_conf.at("secret_file") == "/etc/job.secret");
}

}  // namespace elastrun::spec
