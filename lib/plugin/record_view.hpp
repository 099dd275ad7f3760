// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugin/elastrun_plugin.h"
#include "telemetry/registry.hpp"

#include <vector>

namespace elastrun::plugin {

/// A record, or a series at one moment, as plug-ins see it. Borrows it. Pure.
class RecordView {
 public:
  explicit RecordView(const telemetry::Record& record);
  RecordView(const telemetry::Point& point, const telemetry::Stamp& at);
  RecordView(const RecordView&) = delete;
  RecordView& operator=(const RecordView&) = delete;

  const elastrun_record* get() const { return &view_; }

 private:
  void put_attributes(const std::vector<telemetry::Attribute>& all);
  void put_aggregates(const std::vector<telemetry::Attribute>& all);
  void put_summary(const telemetry::Point& point);

  elastrun_record view_{};
  std::vector<elastrun_attribute> attributes_, aggregates_;
  std::vector<telemetry::Attribute> summary_;
};

}  // namespace elastrun::plugin
