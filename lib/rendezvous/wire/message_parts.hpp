// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/json.hpp"
#include "rendezvous/membership/join_phase.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/world.hpp"
#include "spec/worker_count.hpp"

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

/// Nodes, causes, rules and rounds as JSON, and what all JSON of the rendezvous goes through. Only
/// for those who write or read it.
namespace elastrun::rendezvous {

constexpr std::int64_t kMaxCount = 100'000'000;
using spec::kMostWorkers;
/// Machines have an address for each rail of each network: eight of them, twice, with IPv4 and
/// IPv6, and those of container bridges. All of them are within the frame that a coordinator takes,
/// and those of five thousand nodes within the 16 MiB of a round.
constexpr std::size_t kMaxAlternateAddresses = 64;

/// Texts are people's names and sentences; a traceback does not travel with the verdict. As sent:
/// a message with all of them, escaped, is within the frame that a coordinator takes (64 KiB).
constexpr std::size_t kLongestSent = 2 << 10;
/// Of a node or a host: of an id, which is "ADDRESS_PID_NUMBER", or of a name in the DNS.
constexpr std::size_t kLongestName = 300;
constexpr std::size_t kLongestStatus = 256 << 20;  // of tens of thousands of nodes

/// The text as it travels: without_controls(), of at most `longest` bytes, and twice that as JSON
/// writes it, cut between characters.
std::string fit_text(std::string_view text, std::size_t longest = kLongestSent);
/// The name of a node or a host as it travels.
inline std::string fit_name(std::string_view name) {
  return fit_text(name, kLongestName);
}
/// The only way from a message to its bytes: every text in it is made fit. One that is not would be
/// refused by the other side, and its sender with it, each time that it tries again.
std::string to_wire(json::value message, std::size_t longest = kLongestSent);

/// Reads members of an object that came from outside. A missing member has its default; one of the
/// wrong kind, or a number out of range, clears `sound`, which all readers of one message share.
/// Texts come out as a terminal may show them (without_controls), so that no later place has to.
class Reader {
 public:
  Reader(const json::value& value, bool& sound) : value_(&value), sound_(&sound) {
    sound = sound && value.is_object();
  }
  std::string text(std::string_view name, std::size_t longest = kLongestSent) const;
  std::string text_in(const json::value& value, std::size_t longest = kLongestSent) const;
  /// The name of a node or a host: one that is longer, or cannot be shown as it is, is unsound.
  std::string name(std::string_view name) const;
  std::string name_in(const json::value& value) const;
  bool flag(std::string_view name) const;
  std::int64_t integer(std::string_view name, std::int64_t low = 0,
                       std::int64_t high = std::numeric_limits<std::int64_t>::max(),
                       std::int64_t otherwise = 0) const;
  double number(std::string_view name, double low, double high, double otherwise) const;
  /// An object inside this one; empty if missing.
  Reader member(std::string_view name) const;
  /// The elements of an array; none if missing.
  const json::array& elements(std::string_view name) const;
  bool has(std::string_view name) const { return find_member(*value_, name) != nullptr; }
  bool& sound() const { return *sound_; }

 private:
  const json::value* value_;
  bool* sound_;
};

std::unexpected<Error> unknown_message(std::string_view kind);
std::unexpected<Error> unsound_message(std::string_view kind);

/// Adds the address from which this node was seen to come, if it did not name it itself. Behind
/// address translation no node knows its own, and its workers come to the store from there.
void add_source_address(Node& node, const boost::asio::ip::address& seen);

json::object write_node(const Node& node);
Node read_node(const Reader& reader);
json::object write_cause(const Cause& cause);
Cause read_cause(const Reader& reader);
json::object write_rules(const Rules& rules);
Rules read_rules(const Reader& reader);
json::object write_round(const Round& round);
Round read_round(const Reader& reader);

/// The members of a world as text, made once and given to `encode_assignment` for each of its
/// members.
std::string encode_members(const World& world);
/// What `encode` gives for the RoundReady of that member: with all members for group rank 0 and in
/// worlds of up to kFullWorld nodes, with their number only otherwise.
std::string encode_assignment(const World& world, int group_rank, const std::string& members);
constexpr std::size_t kFullWorld = 64;

}  // namespace elastrun::rendezvous
