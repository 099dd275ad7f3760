// SPDX-License-Identifier: Apache-2.0
// Requests of a stranger. The first byte says how the rest is cut: which requests there are must
// not depend on it, and whatever is taken for one must be possible. A refusal may come later in
// pieces: Beast looks at an unfinished head only once.
#include "http/http_server.hpp"

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace {

using namespace elastrun::http;

void require(bool holds) {
  if (!holds) std::abort();
}

std::vector<std::string> read_all(std::string_view bytes, std::size_t piece) {
  std::string taken;
  std::vector<std::string> all;
  while (!bytes.empty()) {
    taken += bytes.substr(0, piece);
    bytes.remove_prefix(std::min(piece, bytes.size()));
    while (const auto next = take_request(taken)) {
      if (!*next) {
        require(next->error().status >= 400 && next->error().status < 500);
        require(!next->error().body.empty());
        all.push_back("refused");
        return all;
      }
      const auto& request = **next;
      require(request.path.starts_with('/'));
      require(request.path.size() + request.query.size() <= kTargetLimit);
      static_cast<void>(is_local_host(request.host));
      all.push_back(request.path + "?" + request.query + " " + request.host);
    }
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 6000) return 0;  // below the limits, which count by pieces
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t piece = 1 + static_cast<std::uint8_t>(bytes.front());
  auto cut = read_all(bytes.substr(1), piece), whole = read_all(bytes.substr(1), bytes.size());
  for (auto* all : {&cut, &whole}) {
    if (!all->empty() && all->back() == "refused") all->pop_back();
  }
  require(cut == whole);
  return 0;
}
