// SPDX-License-Identifier: Apache-2.0
#include "vectors/recording.hpp"

#include "core/json.hpp"
#include "support/hex.hpp"

#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>

namespace elastrun::vectors {
namespace {

std::string text_of(const json::value& object, const char* name) {
  return std::string(object.at(name).as_string());
}

std::string bytes_of(const json::value& object, const char* name) {
  return test::parse_hex(text_of(object, name)).value();
}

bool flag_of(const json::value& object, const char* name) {
  const auto* value = find_member(object, name);
  return value != nullptr && value->as_bool();
}

Step read_step(const json::value& value) {
  static const std::map<std::string, Step::Kind> kKinds = {
      {"send", Step::Kind::Send},
      {"recv", Step::Kind::Receive},
      {"recv_eof", Step::Kind::End},
      {"close", Step::Kind::Close},
      {"shutdown_write", Step::Kind::ShutdownWrite}};
  Step step{kKinds.at(text_of(value, "op")), text_of(value, "conn").at(0), {}};
  const bool has_bytes = step.kind == Step::Kind::Send || step.kind == Step::Kind::Receive;
  if (has_bytes) step.bytes = bytes_of(value, "hex");
  return step;
}

Recording read_recording(const json::value& value) {
  Recording recording{.name = text_of(value, "name"),
                      .steps = {},
                      .closed_by_server = flag_of(value, "closed_by_server"),
                      .defect = flag_of(value, "defect"),
                      .unordered_tail = flag_of(value, "unordered_tail")};
  std::string sent, received;
  for (const auto& one : value.at("steps").as_array()) {
    const Step& step = recording.steps.emplace_back(read_step(one));
    if (step.connection != 'A') continue;
    (step.kind == Step::Kind::Send ? sent : received) += step.bytes;
  }
  // The whole traffic is in the file twice, so that a damaged file does not pass for a recording.
  if (sent != bytes_of(value, "client_to_server_hex") ||
      received != bytes_of(value, "server_to_client_hex")) {
    throw std::runtime_error(recording.name + ": its steps are not its traffic");
  }
  return recording;
}

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

std::vector<Better> make_better() {
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

std::vector<Recording> read_recordings(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const auto whole = parse_json(std::string{std::istreambuf_iterator<char>(file), {}}).value();
  std::vector<Recording> recordings;
  for (const auto& value : whole.at("conversations").as_array()) {
    recordings.push_back(read_recording(value));
  }
  return recordings;
}

const std::vector<Better>& better_behaviour() {
  static const std::vector<Better> all = make_better();
  return all;
}

}  // namespace elastrun::vectors
