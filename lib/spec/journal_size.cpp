// SPDX-License-Identifier: Apache-2.0
#include "spec/journal_size.hpp"

#include "core/text.hpp"
#include "spec/argument_words.hpp"

#include <fmt/format.h>

namespace elastrun::spec {
namespace {

// Smaller parts would be many thousands of files.
constexpr std::int64_t kLeastBytes = 64 << 10, kMostBytes = std::int64_t{1} << 50;

std::optional<std::int64_t> parse_size(std::string_view text) {
  text = trim(text);
  int shift = 0;
  if (!text.empty()) {
    const char last = text.back();
    shift = last == 'K' ? 10 : last == 'M' ? 20 : last == 'G' ? 30 : 0;
    if (shift > 0) text.remove_suffix(1);
  }
  const auto count = parse_int(text);
  // Compared before the shift, which could overflow.
  if (!count || *count < 0 || *count > kMostBytes >> shift) return std::nullopt;
  return *count << shift;
}

}  // namespace

Answer<std::uint64_t> journal_size(const Override& given) {
  const auto size = parse_size(given.text);
  if (size && (*size == 0 || *size >= kLeastBytes)) return static_cast<std::uint64_t>(*size);
  return std::unexpected(
      Refusal{fmt::format("{}: {} is not a journal size", given.source, in_quotes(given.text)), 2,
              false, "expected a number of bytes such as 64M or 1G, at least 64K; 0: no limit"});
}

}  // namespace elastrun::spec
