// SPDX-License-Identifier: Apache-2.0
#include "core/codec.hpp"

#include <boost/describe/class.hpp>
#include <doctest/doctest.h>

namespace elastrun::codec_test {

using namespace std::chrono_literals;

struct Inner {
  std::string text{};
  Duration time{};
  bool operator==(const Inner&) const = default;
};
BOOST_DESCRIBE_STRUCT(Inner, (), (text, time))

struct Outer {
  int count = 7;
  bool flag = false;
  std::uint16_t port = 0;
  std::optional<Inner> maybe{};
  std::shared_ptr<const Inner> shared{};
  std::vector<Inner> all{};
  std::vector<std::string> words{};
  WallTime at{};
};
BOOST_DESCRIBE_STRUCT(Outer, (), (count, flag, port, maybe, shared, all, words, at))

std::string unsound(const char* text, Outer& value) {
  return from_json(parse_json(text).value(), value);
}

TEST_CASE("codec: a described type comes back as it was written, in the order of its members") {
  Outer value{3,
              true,
              80,
              Inner{"a", 1500ms},
              std::make_shared<const Inner>(Inner{"b", 1s}),
              {{"c", 0s}},
              {"d"},
              WallTime(2s)};
  const auto text = json::serialize(to_json(value));
  CHECK(text == R"({"count":3,"flag":true,"port":80,"maybe":{"text":"a","time":1.5E0},)"
                R"("shared":{"text":"b","time":1E0},"all":[{"text":"c","time":0E0}],"words":["d"],)"
                R"("at":2E0})");
  Outer read;
  CHECK(unsound(text.c_str(), read).empty());
  CHECK(json::serialize(to_json(read)) == text);
  CHECK(json::serialize(to_json(Outer{})) ==
        R"({"count":7,"flag":false,"port":0,"all":[],"words":[],"at":0E0})");
}

TEST_CASE("codec: what cannot be is named, and left at its default or the nearest bound") {
  Outer value;
  CHECK(unsound("{}", value).empty());
  CHECK(value.count == 7);
  for (const auto& [text, name] :
       std::vector<std::pair<const char*, const char*>>{{R"({"count":"3"})", "count"},
                                                        {R"({"count":1.5})", "count"},
                                                        {R"({"flag":1,"port":-1})", "flag"},
                                                        {R"({"maybe":[]})", "that is an object"},
                                                        {R"({"maybe":{"time":-1}})", "time"},
                                                        {R"({"all":{}})", "all"},
                                                        {R"({"all":[7]})", "that is an object"},
                                                        {R"({"words":[1,"a"]})", "words"},
                                                        {R"({"at":1e300})", "at"},
                                                        {"[]", "that is an object"}}) {
    CAPTURE(text);
    Outer read;
    CHECK(unsound(text, read) == name);
    CHECK(read.count == 7);
    CHECK(read.at == WallTime());
  }
  unsound(R"({"count":-1,"port":70000,"words":[1,"a"]})", value);
  CHECK(value.count == 0);
  CHECK(value.port == 65535);
  CHECK(value.words == std::vector<std::string>{"a"});
}

TEST_CASE("codec: texts are as a terminal may show them, or whole") {
  const Inner said{"a\x1b[2J\n\xff"};
  CHECK(to_json(said).at("text").as_string() == "a[2J\uFFFD");
  CHECK(to_json(said, Codec::Texts::Whole).at("text").as_string() == "a\x1b[2J\n\uFFFD");
  Inner read;
  CHECK(from_json(json::object{{"text", std::string(2049, 'x')}}, read) == "text");
}

}  // namespace elastrun::codec_test
