// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"

/// What the registry keeps of one instrument.
namespace elastrun::telemetry {

/// How far the windows of one view of one series have come.
struct Registry::ViewState {
  View view;
  Series::Cursor cursor{};
  std::int64_t index = 0;  // of the open window
  std::optional<Summary<double>> last{};
  std::unique_ptr<ExactWindows> exact{};  // where a number of values ends a window
};

struct Registry::Entry {
  std::vector<std::string> labels;
  std::shared_ptr<Series> series;
  std::vector<ViewState> views{};
  Totals totals{};  // of the last harvest
  Range range{};
  TimePoint start{}, changed{};
};

struct Registry::Family {
  std::shared_ptr<const Spec> spec;
  Kind kind;
  std::string type;
  std::source_location where;
  std::vector<View> views;
  bool enabled = true;
  std::mutex asking{};  // held while the observer is called; before the registry's
  Observer observer{};
  std::map<std::vector<std::string>, Entry> entries{};
};

/// Whether a name fits a pattern of the registry.
bool fits_pattern(std::string_view pattern, std::string_view name);
/// The labels of a series as attributes.
std::vector<Attribute> attributes_of(const Spec& spec, const std::vector<std::string>& labels);
/// One view's window as the Window record of its series. Its count is that of `window`, so that an
/// empty one can tell what an earlier one had.
Record window_record(const Spec& spec, const std::vector<std::string>& labels, const View& view,
                     const Summary<double>& summary, Window window, bool whole);

}  // namespace elastrun::telemetry
