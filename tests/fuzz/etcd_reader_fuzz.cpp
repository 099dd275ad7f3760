// SPDX-License-Identifier: Apache-2.0
// Answers of a hostile etcd: JSON around base64. The first byte says which answer it is taken for;
// the reader must refuse or understand, and what it understands must be possible.
#include "net/frame.hpp"
#include "rendezvous/election/election.hpp"
#include "rendezvous/election/make_elected.hpp"

#include <cstdint>
#include <cstdlib>
#include <optional>

namespace {

using namespace elastrun;
namespace etcd = elastrun::rendezvous::etcd;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_entry(const Result<std::optional<etcd::Entry>>& answer) {
  if (answer && *answer) require((*answer)->create_revision > 0);
  if (!answer) require(!answer.error().text.empty());
}

void read_base64(std::string_view text) {
  const auto bytes = net::decode_base64(text);
  // Each text means one thing, and each thing has one text.
  if (bytes) require(net::encode_base64(*bytes) == text);
  require(net::decode_base64(net::encode_base64(text)) == std::string(text));
}

// Whatever stands there, there is a note, and what it is understood to say can be said again.
void read_record(std::string_view text) {
  const auto noted = rendezvous::decode_record(std::string(text));
  require(noted.has_value() != text.empty());
  if (!noted) return;
  const auto again = rendezvous::decode_record(rendezvous::encode_record(*noted));
  require(again && again->world == noted->world);
  require(again->verdict.has_value() == noted->verdict.has_value());
}

void read_answer(char kind, std::string_view text) {
  switch (kind % 9) {
    case 0:
      return check_entry(etcd::read_range(text));
    case 1:
      return check_entry(etcd::read_create(text, "value"));
    case 2:
      static_cast<void>(etcd::read_lease(text));
      return;
    case 3:
      static_cast<void>(etcd::read_success(text));
      return;
    case 4:
      if (const auto token = etcd::read_token(text)) require(!token->empty());
      return;
    case 5:
      require(!etcd::read_refusal(503, text).error.text.empty());
      return;
    case 8:
      return read_record(text);
    default:
      read_base64(text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  read_answer(static_cast<char>(bytes.front() & 0x7F), bytes.substr(1));
  return 0;
}
