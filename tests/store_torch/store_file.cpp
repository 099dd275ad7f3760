// SPDX-License-Identifier: Apache-2.0
// One request to a file store, for tests that share the file with torch:
//
//   store_file PATH set KEY VALUE | get KEY | add KEY NUMBER | erase KEY | check KEY
//
// Prints the answer; exit status 1 and a sentence if there is none within 10 s.
#include "store/blocking_store.hpp"

#include <cstdlib>
#include <fmt/format.h>

namespace {

using namespace elastrun;

int tell(const Result<std::string>& answer) {
  if (answer) fmt::print("{}\n", *answer);
  if (!answer) fmt::print(stderr, "store_file: {}\n", answer.error().text);
  return answer ? 0 : 1;
}
int tell(const Status& status) {
  return tell(status ? Result<std::string>("done") : std::unexpected(status.error()));
}
template <class T>
int tell(const Result<T>& answer) {
  return tell(answer ? Result<std::string>(fmt::to_string(*answer))
                     : std::unexpected(answer.error()));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto store = store::BlockingStore::open_file(words.at(0));
  if (!store) return tell(Status(std::unexpected(store.error())));
  const std::string &request = words.at(1), &key = words.at(2);
  if (request == "set") return tell((*store)->set(key, words.at(3)));
  if (request == "get") return tell((*store)->get(key, std::chrono::seconds(10)));
  if (request == "add") return tell((*store)->add(key, std::atoll(words.at(3).c_str())));
  if (request == "erase") return tell((*store)->erase(key));
  return tell((*store)->check({key}));
}
