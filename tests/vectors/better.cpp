// SPDX-License-Identifier: Apache-2.0
#include "support/hex.hpp"
#include "vectors/recording.hpp"

#include <sstream>

namespace elastrun::vectors {
namespace {

const std::string kOpen = "00cef7853c0d92100000";  // VALIDATE, PING
const std::string kPong = "92100000";
const std::string kBarrierOf2 = "1202000000000000002f620200000000000000";
const std::string kGetA = "0302000000000000002f61";
const std::string kGetB = "0302000000000000002f62";

/// "A>HEX" sends, "A<HEX" receives, "A." is the server's close.
std::vector<Step> script(const std::vector<std::string>& lines) {
  std::vector<Step> steps;
  for (const auto& line : lines) {
    const auto kind = line[1] == '>'   ? Step::Kind::Send
                      : line[1] == '<' ? Step::Kind::Receive
                                       : Step::Kind::End;
    steps.push_back({kind, line[0], test::parse_hex(line.substr(2)).value()});
  }
  return steps;
}

std::vector<Better> make() {
  std::vector<Better> all;
  all.push_back(
      {"wait_woken_by_failed_compare_set", "a COMPARE_SET that stores nothing wakes nobody",
       script({"A>" + kOpen, "A<" + kPong, "A>06010000000000000002000000000000002f61", "B>" + kOpen,
               "B<" + kPong, "B>0202000000000000002f61010000000000000071010000000000000078",
               "B<010000000000000071", "A>" + kGetA, "A<0000000000000000"})});
  all.push_back({"barrier_reuse_not_reset",
                 "a barrier that is complete starts anew: the third arrival waits for a fourth",
                 script({"A>" + kOpen, "A<" + kPong, "A>" + kBarrierOf2, "B>" + kOpen, "B<" + kPong,
                         "B>" + kBarrierOf2, "B<00", "A<00", "A>" + kBarrierOf2, "A>" + kGetB,
                         "A<010000000000000033"})});
  all.push_back(
      {"barrier_cancel_still_counts", "who cancels has not arrived: one arrival of two waits",
       script({"A>" + kOpen, "A<" + kPong, "A>" + kBarrierOf2, "A>0c", "A<01", "B>" + kOpen,
               "B<" + kPong, "B>" + kBarrierOf2, "A>" + kGetB, "A<010000000000000031"})});
  all.push_back({"second_wait_replaces_count", "each of two waits gets its own answer",
                 script({"A>" + kOpen, "A<" + kPong, "A>06010000000000000002000000000000002f61",
                         "A>06010000000000000002000000000000002f62", "B>" + kOpen, "B<" + kPong,
                         "B>0102000000000000002f62010000000000000031", "A<00",
                         "B>0102000000000000002f61010000000000000031", "A<00"})});
  all.push_back({"validate_split", "VALIDATE may come in any number of pieces",
                 script({"A>00cef7", "A>853c0d06000000", "A<06000000"})});
  all.push_back({"no_validate_bypass",
                 "a first request without VALIDATE is torch 1.13's: 01 is COMPARE_SET there, and "
                 "this one is not complete, so nothing is run",
                 script({"A>0102000000000000002f61010000000000000031", "A>" + kGetA})});
  all.push_back({"http_get", "who does not speak to a store is closed",
                 script({"A>474554202f20485454502f312e300d0a0d0a", "A."})});
  return all;
}

}  // namespace

const std::vector<Better>& better_behaviour() {
  static const std::vector<Better> all = make();
  return all;
}

}  // namespace elastrun::vectors
