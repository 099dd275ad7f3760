// SPDX-License-Identifier: Apache-2.0
#include "spec/hostlist.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::spec {
namespace {

// More than any cluster has; ranges and brackets multiply, and a slip would fill the memory.
constexpr std::size_t kMostHosts = 1'000'000;

using Names = std::vector<std::string>;

std::unexpected<Error> bad(std::string_view text, std::string_view why) {
  return fail(Code::Usage, fmt::format("the list of hosts '{}' {}", text, why));
}

bool is_number(std::string_view text) {
  // Eighteen digits always fit into 64 bits.
  return !text.empty() && text.size() <= 18 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "01-03" or "7"; the width of the first number is kept.
bool append_range(std::string_view range, Names& out) {
  const auto dash = range.find('-');
  const auto first = range.substr(0, dash);
  const auto last = dash == std::string_view::npos ? first : range.substr(dash + 1);
  if (!is_number(first) || !is_number(last)) return false;
  const auto from = *parse_int(first), to = *parse_int(last);
  // Before anything is made of it: "[0-999999999999]" would fill the memory.
  if (from > to || static_cast<std::size_t>(to - from) >= kMostHosts) return false;
  for (auto i = from; i <= to; ++i) out.push_back(fmt::format("{:0{}}", i, first.size()));
  return true;
}

// One name with its brackets, already cut out at its commas.
Result<Names> expand_name(std::string_view name) {
  Names done = {""};
  while (!name.empty()) {
    const auto open = name.find('[');
    for (auto& prefix : done) prefix += name.substr(0, open);
    if (open == std::string_view::npos) break;
    const auto close = name.find(']', open);
    if (close == std::string_view::npos) return bad(name, "has a [ without its ]");
    Names numbers, longer;
    for (const auto& range : split(name.substr(open + 1, close - open - 1), ',')) {
      if (!append_range(range, numbers)) return bad(name, "has an invalid range");
    }
    // Several brackets in one name multiply.
    if (done.size() * numbers.size() > kMostHosts) return bad(name, "is too long");
    for (const auto& prefix : done) {
      for (const auto& number : numbers) longer.push_back(prefix + number);
    }
    done = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return done;
}

}  // namespace

Result<std::vector<std::string>> expand_hostlist(std::string_view text) {
  Names hosts;
  std::size_t start = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') ++depth;
    if (i < text.size() && text[i] == ']') --depth;
    // Slurm's brackets do not nest.
    if (depth < 0 || depth > 1) return bad(text, "has brackets that do not match");
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    const auto name = trim(text.substr(start, i - start));
    start = i + 1;
    if (name.empty()) continue;
    auto expanded = expand_name(name);
    if (!expanded) return expanded;
    if (hosts.size() + expanded->size() > kMostHosts) return bad(text, "is too long");
    hosts.insert(hosts.end(), expanded->begin(), expanded->end());
  }
  return hosts;
}

}  // namespace elastrun::spec
