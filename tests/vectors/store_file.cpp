// SPDX-License-Identifier: Apache-2.0
// One request to a file store, for tests that share the file with torch:
//
//   store_file PATH set KEY VALUE | get KEY | add KEY NUMBER | erase KEY | list
//
// Prints the answer; exit status 1 and a sentence if there is none within 10 s.
#include "core/system_clock.hpp"
#include "store/file_store.hpp"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <functional>

namespace {

using namespace elastrun;

std::string show(bool flag) {
  return flag ? "true" : "false";
}
std::string show(std::int64_t number) {
  return std::to_string(number);
}
std::string show(const std::string& text) {
  return text;
}
std::string show(const std::vector<std::string>& keys) {
  auto sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  std::string lines;
  for (const auto& key : sorted) lines += key + " ";
  return lines;
}

int exit_code = 1;

/// Prints whatever the request is answered with.
struct Print {
  void operator()(const Status& status) const {
    if (status) return print("done");
    fail(status.error());
  }
  template <class T>
  void operator()(const Result<T>& answer) const {
    if (answer) return print(show(*answer));
    fail(answer.error());
  }
  static void print(const std::string& text) {
    fmt::print("{}\n", text);
    exit_code = 0;
  }
  static void fail(const Error& error) { fmt::print(stderr, "store_file: {}\n", error.text); }
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  boost::asio::io_context loop(1);
  const auto clock = make_system_clock(loop.get_executor());
  const auto opened = store::FileStore::open(loop, *clock, words.at(0), -1);
  if (!opened) {
    Print::fail(opened.error());
    return 1;
  }
  store::Store& store = **opened;
  const std::string& request = words.at(1);
  if (request == "set") store.set(words.at(2), words.at(3), Print{});
  if (request == "get") store.get(words.at(2), std::chrono::seconds(10), Print{});
  if (request == "add") store.add(words.at(2), std::atoll(words.at(3).c_str()), Print{});
  if (request == "erase") store.erase(words.at(2), Print{});
  if (request == "list") store.list_keys(Print{});
  loop.run();
  return exit_code;
}
