// SPDX-License-Identifier: Apache-2.0
#include "core/log.hpp"

#include "core/json.hpp"
#include "core/spdlog.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <regex>
#include <unistd.h>

using namespace elastrun;

namespace {

struct Said {
  Said() {
    log::set_writer(
        [](void* said, std::string_view line) { static_cast<Said*>(said)->text.append(line); },
        this);
  }
  ~Said() {
    log::set_writer(nullptr, nullptr);
    log::set_level(log::Level::Warning);
    log::set_format(log::Format::Text);
  }
  std::string text;
};

class Kept final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  std::string text;

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    text.append(line.data(), line.size());
  }
  void flush_() override {}
};

}  // namespace

TEST_CASE("log: a line has torch's prefix, and each line of a message has it") {
  Said said;
  log::warning("area", "one\n{}", "two");
  const std::string prefix =
      fmt::format(R"(W\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} {} area\] )", ::getpid());
  CHECK(std::regex_match(said.text, std::regex(prefix + "one\n" + prefix + "two\n")));
}

TEST_CASE("log: nothing that a message quotes steers a terminal") {
  for (const auto format : {log::Format::Text, log::Format::Json}) {
    Said said;
    log::set_format(format);
    log::warning("area", "a\x1b]0;PWNED\a\x1b[2J\r\x9b{}", "\xC2\x9B\u202E\tb");
    CHECK(said.text.contains("a]0;PWNED[2J"));
    CHECK(said.text.find_first_of("\x1b\a\r\x9b") == std::string::npos);
    CHECK_FALSE(said.text.contains("\u202E"));
    CHECK_FALSE(said.text.contains("u001b"));
    CHECK(std::ranges::count(said.text, '\n') == 1);
  }
}

TEST_CASE("log: severities have torch's letters, and what is below the level is not written") {
  Said said;
  log::debug("a", "no");
  log::info("a", "no");
  log::error("a", "yes");
  CHECK(said.text.starts_with("E"));
  CHECK(said.text.find("no") == std::string::npos);
  said.text.clear();
  log::set_level(log::Level::Debug);
  log::debug("a", "1");
  log::info("a", "2");
  log::write(log::Level::Critical, "a", "3");
  CHECK(std::regex_match(said.text, std::regex("V.*1\nI.*2\nC.*3\n")));
}

TEST_CASE("log: as JSON a message is one object, whatever its bytes are") {
  Said said;
  log::set_format(log::Format::Json);
  log::warning("area", "one\ntwo \"quoted\" {}", "\xff");
  REQUIRE(said.text.find('\n') == said.text.size() - 1);
  const auto object = parse_json(said.text);
  REQUIRE(object);
  CHECK(member_text_or(*object, "severity", "") == "WARNING");
  CHECK(member_text_or(*object, "area", "") == "area");
  CHECK(member_text_or(*object, "message", "") == "one\ntwo \"quoted\" \xef\xbf\xbd");
  CHECK(member_int_or(*object, "pid", 0) == ::getpid());
  CHECK(std::regex_match(member_text_or(*object, "time", ""),
                         std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)")));
}

TEST_CASE("log: another sink has a level of its own and is told until it is removed") {
  Said said;
  const auto kept = std::make_shared<Kept>();
  kept->set_level(spdlog::level::info);
  log::add_sink(kept);
  CHECK(log::is_on(log::Level::Info));
  CHECK_FALSE(log::is_on(log::Level::Debug));
  log::info("a", "first");
  log::remove_sink(kept);
  CHECK_FALSE(log::is_on(log::Level::Info));
  log::warning("a", "second");
  CHECK(kept->text.ends_with("a] first\n"));
  CHECK(said.text.ends_with("a] second\n"));
  CHECK(said.text.find("first") == std::string::npos);
}
