// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/host_port.hpp"
#include "spec/job_spec.hpp"
#include "spec/override.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Text to values, with torchrun's rules and its texts. Refusals of texts carry exit code 1, as the
/// exceptions of torchrun's launcher do.
namespace elastrun::spec {

/// A refusal as torchrun's launcher raises it.
Refusal launcher_refusal(std::string text, std::string hint = {});
/// Of a value from the job file, which torchrun does not have: with where it stands (unless the
/// text begins with it), exit code 2.
Refusal placed(Refusal refusal, const Override& given);
/// "invalid literal for int() with base 10: 'x'".
std::string python_int_error(std::string_view text);

struct NodeRange {
  int min = 1, max = 1;
  bool operator==(const NodeRange&) const = default;
};
/// "4" or "1:4".
Answer<NodeRange> parse_nnodes(std::string_view text);

/// "3" or "0:1,1:2"; ranks may have several digits, unlike torchrun's.
Answer<StdMap> parse_std_map(std::string_view text);

/// "0,1,7"; empty: no filter.
Answer<std::vector<int>> parse_ranks_filter(std::string_view text);

/// "a,,b,c" is "a,b" and "c"; the empty text is one empty needle.
std::vector<std::string> split_filters(std::string_view text);

/// "host", "host:29400", "[::1]:29400". Empty: localhost. Refused in torchrun's words.
Answer<HostPort> parse_endpoint(std::string_view text);

/// The names of --signals-to-handle or --forward-signals, trimmed, each once. Left out and named in
/// `warnings`: unknown ones, SIGKILL and SIGSTOP, and of the second those that the agent needs.
std::vector<std::string> parse_signals(const Override& given, std::vector<std::string>& warnings);

}  // namespace elastrun::spec
