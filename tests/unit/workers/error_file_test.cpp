// SPDX-License-Identifier: Apache-2.0
#include "core/json.hpp"
#include "support/fake_files.hpp"
#include "workers/diagnostics.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

namespace elastrun::workers {
namespace {

constexpr std::string_view kRecord =
    R"({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback\n", )"
    R"("timestamp": "1767323045"}}})";

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// An error file that is handed on to the launcher's own.
struct HandedOn {
  explicit HandedOn(const std::string& text) {
    files.add("child.json", text);
    copy();
  }
  void copy() const { REQUIRE(copy_error_file(files.root() + "/child.json", own, 17).has_value()); }
  /// What stands in its message then.
  std::int64_t code() const {
    const auto value = parse_json(contents(own));
    REQUIRE(value.has_value());
    return member_int_or(*find_member(*value, "message"), "errorCode", 0);
  }
  test::FakeFiles files;
  const std::string own = files.root() + "/own.json";
};

TEST_CASE("error file: torch's record is understood") {
  const auto file = parse_error_file(kRecord);
  CHECK(file.understood);
  CHECK_FALSE(file.plain);
  CHECK(file.message == "ValueError: boom");
  CHECK(file.report_text() == "Traceback\n");
  CHECK(file.timestamp == 1767323045);
}

TEST_CASE("error file: a message that is text is understood") {
  const auto file = parse_error_file(R"({"message": "plain words", "timestamp": 5})");
  CHECK(file.understood);
  CHECK(file.plain);
  CHECK(file.report_text() == "plain words");
  CHECK(file.timestamp == 5);
}

TEST_CASE("error file: its words steer no terminal; lines and their indentation stay") {
  const auto file = parse_error_file(
      R"({"message": {"message": "a\u001b]0;PWNED\u0007\u001b[2J\r\n\tb\u009b",
          "extraInfo": {"py_callstack": "Traceback\n  \u001b[31mx\u001b]0;open\nlast\n"}}})");
  CHECK(file.message == "a\n\tb");
  CHECK(file.callstack == "Traceback\n  x\nlast\n");
  CHECK(parse_error_file(R"({"message": "a\u001b[2J"})").message == "a");
  const auto giant = R"({"message": {"message": "a\u001b[2Jb", "x": ")" + std::string(2 << 20, 'x');
  CHECK(parse_error_file(giant).message == "ab");
}

TEST_CASE("error file: what torchrun stumbles over is only less useful") {
  CHECK_FALSE(parse_error_file(R"({"message": {"message": "x"}})").timestamp.has_value());
  CHECK(parse_error_file(R"({"message": {"message": "x"}})").understood);
  CHECK(parse_error_file(R"({"message": {"extraInfo": {"timestamp": "12.5"}}})").understood);
  CHECK_FALSE(parse_error_file(R"({"message": "x", "timestamp": "soon"})").timestamp.has_value());
  for (const char* text : {"", "{ not json", "[]", "null", "{}", R"({"message": null})",
                           R"({"message": 5})", "\xff\xfe", "\"text\""}) {
    const auto file = parse_error_file(text);
    CHECK_MESSAGE(!file.understood, text);
    CHECK(file.raw == text);
  }
}

TEST_CASE("error file: a message that names a file in no UTF-8 is understood") {
  // Python: json.dumps({"message": ...}) of os.fsdecode(b"\xff").
  const std::string mark = "\xEF\xBF\xBD";
  const std::vector<std::pair<std::string, std::string>> messages{
      {R"(a\udcffb)", "a" + mark + "b"},
      {R"(\ud83d)", mark},
      {R"(\uDCFF\uD83D\ude00\ud83d)", mark + "\xF0\x9F\x98\x80" + mark},
      {R"(\ud83d\n\\udcff)", mark + "\n\\udcff"},
      {"raw \xff", "raw " + mark}};
  for (const auto& [json, text] : messages) {
    CAPTURE(json);
    const auto record = R"({"message": {"message": "No such file: )" + json + R"("}})";
    CHECK(parse_error_file(record).message == "No such file: " + text);
    CHECK_FALSE(parse_error_file(record.substr(0, record.size() - 1)).understood);
    CHECK(HandedOn(record).code() == 17);
  }
  for (const char* broken :
       {R"({"message": "\ud8)", R"({"message": "\udcf"})", R"(\udcff)", "\\"}) {
    CHECK_FALSE(parse_error_file(broken).understood);
  }
}

TEST_CASE("error file: a number that is no time counts as none") {
  for (const char* number : {"1e300", "-1e300", "9e18", "9223372036854775807", "-1",
                             "18446744073709551615", "\"9223372036854775807\"", "1767323045000"}) {
    CAPTURE(number);
    const auto file =
        parse_error_file(fmt::format(R"({{"message": "x", "timestamp": {}}})", number));
    CHECK(file.understood);
    CHECK_FALSE(file.timestamp.has_value());
  }
  CHECK(parse_error_file(R"({"message": "x", "timestamp": 1767323045.7})").timestamp == 1767323045);
}

TEST_CASE("error file: a record cut at any length does no harm") {
  for (std::size_t size = 0; size < kRecord.size(); ++size) {
    CHECK_FALSE(parse_error_file(kRecord.substr(0, size)).understood);
  }
}

TEST_CASE("error file: nesting without end is refused") {
  CHECK_FALSE(parse_error_file(std::string(100'000, '[')).understood);
  CHECK_FALSE(parse_error_file(std::string(100'000, '{')).understood);
}

TEST_CASE("error file: of a giant file the beginning of the message is known") {
  const test::FakeFiles files;
  const std::string much(3 << 20, 'x');
  files.add("giant.json", "{\"message\": \"" + much + "\"}");
  const auto file = read_error_file(files.root() + "/giant.json");
  REQUIRE(file.has_value());
  CHECK(file->plain);
  CHECK(file->message == much.substr(0, 64 << 10));
  CHECK(file->raw.size() == 64u << 10);
  // As torch writes it: the traceback of a thousand chained exceptions comes after the message.
  const std::string head = R"({ "message": {"message": "Value\"Error: b\u00f6\n", "extra": ")";
  CHECK(parse_error_file(head + much).message == "Value\"Error: b\xC3\xB6\n");
  for (const std::string other : {"{\"other\": \"", "[\"", "{\"message\": {\"a\": \""}) {
    CHECK_FALSE(parse_error_file(other + much).understood);
  }
}

TEST_CASE("error file: a message that is cut inside of a character is a text all the same") {
  const std::string fill(1 << 20, 'x');
  for (std::size_t before = (64 << 10) - 14; before <= 64 << 10; ++before) {
    const auto file =
        parse_error_file("{\"message\": \"" + fill.substr(0, before) + "\\ud83d\\ude00" + fill);
    CHECK(file.message.starts_with(fill.substr(0, std::min<std::size_t>(before, 64000))));
    CHECK(file.message.size() <= (64u << 10) + 4);
  }
}

TEST_CASE("error file: no file, no name and a folder are no error file") {
  const test::FakeFiles files;
  CHECK_FALSE(read_error_file("").has_value());
  CHECK_FALSE(read_error_file(files.root() + "/absent.json").has_value());
}

TEST_CASE("error file: the root cause is handed on with its exit code") {
  const HandedOn record{std::string(kRecord)};
  record.files.add("own.json", "old");
  record.copy();
  CHECK(record.code() == 17);
  CHECK(read_error_file(record.own)->message == "ValueError: boom");
}

TEST_CASE("error file: one that is too large to be looked at is handed on whole") {
  const std::string stack(2 << 20, 'x');
  const HandedOn large(R"({"message": {"message": "x", "extraInfo": {"py_callstack": ")" + stack +
                       R"(", "timestamp": "7"}}})");
  CHECK(large.code() == 17);
  CHECK(contents(large.own).size() > stack.size());
}

TEST_CASE("error file: what is larger than all that is handed on as its message") {
  const HandedOn huge(R"({"message": {"message": "ValueError: boom", "x": ")");
  std::filesystem::resize_file(huge.files.root() + "/child.json", 65 << 20);  // a hole
  huge.copy();
  CHECK(read_error_file(huge.own)->message == "ValueError: boom");
}

TEST_CASE("error file: text messages and broken files are handed on as they are") {
  for (const char* text : {R"({"message": "plain", "timestamp": 5})", "{ not json"}) {
    CHECK(contents(HandedOn(text).own) == text);
  }
}

TEST_CASE("error file: an error of the launcher is written in torch's form") {
  const test::FakeFiles files;
  const auto own = files.root() + "/own.json";
  REQUIRE(write_error_file(own, "no way", WallTime(std::chrono::seconds(7))).has_value());
  const auto file = read_error_file(own);
  REQUIRE(file.has_value());
  CHECK(file->message == "no way");
  CHECK(file->timestamp == 7);
  CHECK_FALSE(write_error_file(files.root() + "/no/folder", "x", {}).has_value());
}

}  // namespace
}  // namespace elastrun::workers
