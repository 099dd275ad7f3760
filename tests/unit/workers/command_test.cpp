// SPDX-License-Identifier: Apache-2.0
#include "workers/command.hpp"

#include <doctest/doctest.h>

namespace elastrun::workers {
namespace {

TEST_CASE("command: only the local rank and $$ are filled in, as Python's safe_substitute does") {
  const std::pair<const char*, const char*> table[] = {
      {"$local_rank", "3"},
      {"x${local_rank}y", "x3y"},
      {"$$", "$"},
      {"$$local_rank", "$local_rank"},
      {"$x", "$x"},
      {"${x}", "${x}"},
      {"$1", "$1"},
      {"$", "$"},
      {"$LOCAL_RANK", "$LOCAL_RANK"},
      {"$local_rankx", "$local_rankx"},
      {"${local_rank", "${local_rank"},
      {"", ""},
      {"$local_rank$local_rank", "33"},
      {"$$$local_rank", "$3"},
      {"${local_rank }", "${local_rank }"},
      {"a$", "a$"},
      {"${}", "${}"},
  };
  for (const auto& [text, wanted] : table) CHECK(fill_local_rank(text, 3) == wanted);
}

}  // namespace
}  // namespace elastrun::workers
