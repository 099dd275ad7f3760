// SPDX-License-Identifier: Apache-2.0
#include "core/host.hpp"
#include "logs/stream_factory.hpp"

#include <doctest/doctest.h>
#include <random>

using namespace elastrun::logs;

namespace {

std::string split_whole(std::string_view text) {
  LineSplitter splitter("p:");
  std::string out;
  splitter.feed(text, out);
  splitter.finish(out);
  return out;
}

}  // namespace

TEST_CASE("splitter: each whole line gets the prefix, a last line without newline too") {
  CHECK(split_whole("one\n\n two\nrest") == "p:one\np:\np: two\np:rest\n");
  CHECK(split_whole("").empty());
  CHECK(split_whole("\n") == "p:\n");
}

TEST_CASE("splitter: a carriage return ends no line, and what it overwrites is not shown") {
  CHECK(split_whole("a\rb\r\nc\n") == "p:b\r\np:c\n");
}

TEST_CASE("splitter: text without newline is held until its line is complete") {
  LineSplitter splitter("p:");
  std::string out;
  splitter.feed("par", out);
  splitter.feed("ti", out);
  CHECK(out.empty());
  splitter.feed("al\nnext", out);
  CHECK(out == "p:partial\n");
  splitter.finish(out);
  CHECK(out == "p:partial\np:next\n");
}

TEST_CASE("splitter: the way a text is cut into reads changes nothing") {
  std::string text;
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    text +=
        std::string(random() % 40, static_cast<char>('a' + i % 26)) + (i % 9 == 0 ? "\r" : "\n");
  }
  text += "end";
  const std::string whole = split_whole(text);
  for (int round = 0; round < 50; ++round) {
    LineSplitter splitter("p:");
    std::string out;
    for (std::string_view rest = text; !rest.empty();) {
      const auto size = std::min<std::size_t>(rest.size(), 1 + random() % 64);
      splitter.feed(rest.substr(0, size), out);
      rest.remove_prefix(size);
    }
    splitter.finish(out);
    REQUIRE(out == whole);
  }
}

TEST_CASE("splitter: a line over the limit comes in pieces, and memory stays bounded") {
  LineSplitter splitter("p:", 4);
  std::string out;
  splitter.feed("abcdef", out);
  CHECK(out == "p:abcd\n");
  splitter.feed("ghijkl", out);
  splitter.feed("m\n1234\n12345\n", out);
  CHECK(out == "p:abcd\np:efgh\np:ijkl\np:m\np:1234\np:1234\np:5\n");
}

TEST_CASE("splitter: a filter sees the line without its prefix and gets it with the prefix") {
  const LineFilter filter({"loss", "p:"});
  LineSplitter splitter("p:");
  std::string out, matching;
  splitter.feed("a loss\nother\nlo", out, &filter, &matching);
  splitter.feed("ss 2\nloss at the en", out, &filter, &matching);
  splitter.finish(out, &filter, &matching);
  CHECK(matching == "p:a loss\np:loss 2\np:loss at the en\n");
  CHECK(out == "p:a loss\np:other\np:loss 2\np:loss at the en\n");
}

TEST_CASE("splitter: of a progress bar the newest complete state is shown") {
  LineSplitter splitter("p:");
  std::string out;
  splitter.feed("\r 1%", out);
  CHECK_FALSE(splitter.holds_progress());
  splitter.feed("\r 2%\r 3", out);
  CHECK(splitter.holds_progress());
  splitter.show_progress(out);
  CHECK(out == "p: 2%\n");
  CHECK_FALSE(splitter.holds_progress());
  splitter.feed("%\ndone\n", out);
  CHECK(out == "p: 2%\np: 3%\np:done\n");
}

TEST_CASE("prefix: the default is role and local rank") {
  CHECK(line_prefix("", "default", 5, 1) == "[default1]:");
}

TEST_CASE("prefix: a template is read as Python's Template.safe_substitute reads it") {
  CHECK(line_prefix("<${role_name} $rank/${local_rank} $$ ${other}> ", "reader", 3, 1) ==
        "<reader 3/1 $ ${other}> ");
  CHECK(line_prefix("${hostname}:${rank}: ", "r", 3, 1) == elastrun::host_name() + ":3: ");
  CHECK(line_prefix("$", "r", 0, 0) == "$");
  CHECK(line_prefix("a$ b$1c${", "r", 0, 0) == "a$ b$1c${");
  CHECK(line_prefix("${rank", "r", 2, 0) == "${rank");
  CHECK(line_prefix("${}$rank_$rank", "r", 2, 0) == "${}$rank_2");
  CHECK(line_prefix("$$rank$$$rank", "r", 2, 0) == "$rank$2");
}
